//! Unmodified programs on software devices: one alone or a pair, on the system's rdma-core and on those that were built, each
//! to its end and within a deadline. What they must print is in the tests.
//!
//! Where packages are missing, this says so and the tests pass; `IBV_REQUIRE=softnic-tools` makes that a failure.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::missing_panics_doc)]

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a program may take. They take seconds; a busy machine of two cores takes longer. Well within what the runner of the
/// tests allows a test, so that what hangs is named here.
pub const DEADLINE: Duration = Duration::from_secs(170);

/// Whose libraries a program runs on.
#[derive(Debug, Clone)]
pub struct RdmaCore {
    pub name: String,
    pub build: Option<PathBuf>,
}

/// The system's rdma-core, and those that `cargo xtask rdma-core` built.
pub fn rdma_cores() -> Vec<RdmaCore> {
    let mut cores = vec![RdmaCore { name: "the system's rdma-core".into(), build: None }];
    let mut built: Vec<PathBuf> = target_folder()
        .map(|t| t.join("rdma-core"))
        .and_then(|dir| std::fs::read_dir(dir).ok())
        .map(|dir| dir.filter_map(|e| Some(e.ok()?.path().join("build"))).collect())
        .unwrap_or_default();
    built.retain(|b| b.join(".built").is_file());
    built.sort();
    if built.is_empty() {
        missing("no newer rdma-core is built: cargo xtask rdma-core");
    }
    cores.extend(built.into_iter().map(|b| RdmaCore { name: b.display().to_string(), build: Some(b) }));
    cores
}

pub fn target_folder() -> Option<PathBuf> {
    std::env::current_exe().ok()?.ancestors().nth(3).map(Path::to_owned)
}

/// The preloaded library, which cargo builds beside the tests.
pub fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let path = exe.parent().unwrap().join("libsoftnic.so");
    assert!(path.is_file(), "{} is built with the tests", path.display());
    path
}

/// A program that does not outlive its test: one that polls would keep a core busy for ever.
#[derive(Debug)]
pub struct Reaped(pub Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Says what is missing, and fails if it is required.
pub fn missing(what: &str) {
    let required = std::env::var("IBV_REQUIRE").is_ok_and(|v| v.contains("softnic-tools"));
    assert!(!required, "IBV_REQUIRE=softnic-tools: {what}");
    println!("skipped: {what}");
}

/// Whether a program is there; else says so.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !found {
        missing(&format!(
            "{program} is not installed: apt-get install ibverbs-utils ibverbs-providers perftest ucx-utils \
             libfabric-bin"
        ));
    }
    found
}

/// One pair of programs at a time: several would only starve each other. This holds within a process; a runner that has a
/// process for each test is told in its own configuration.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command on software devices, in a session of its own.
pub fn on_device(core: &RdmaCore, line: &[&str], session: &str, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).env("LD_PRELOAD", library()).env("SOFTNIC_PRELOAD", "1");
    command.env("SOFTNIC_SESSION", session).envs(env.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(build) = &core.build {
        command.env("LD_LIBRARY_PATH", build.join("lib"));
        // The tools of ibverbs-utils use private symbols: each runs on its own version.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", build.join("bin").display()));
    }
    command
}

pub fn session() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("tools-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Runs one program to its end; answers what it printed.
pub fn run_alone(core: &RdmaCore, line: &[&str], env: &[(&str, &str)]) -> String {
    let child = Reaped(on_device(core, line, &session(), env).spawn().unwrap());
    finished(child, &format!("{line:?} on {}", core.name))
}

/// Runs a server and its client, which take `-p PORT` and the server's address; answers what each printed.
pub fn run_pair(core: &RdmaCore, line: &[&str], env: &[(&str, &str)]) -> (String, String) {
    let port = free_port().to_string();
    let server: Vec<&str> = [line, &["-p", &port]].concat();
    let client: Vec<&str> = [&server[..], &["127.0.0.1"]].concat();
    run_both(core, &server, &client, &port, env)
}

/// Runs a server that listens on `port`, and its client; answers what each printed.
pub fn run_both(
    core: &RdmaCore,
    server_line: &[&str],
    client_line: &[&str],
    port: &str,
    env: &[(&str, &str)],
) -> (String, String) {
    let (server, client) = try_both(core, server_line, client_line, port, env);
    let client = client.success();
    (server.success(), client)
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    pub what: String,
    pub status: ExitStatus,
    pub late: bool,
    pub printed: String,
}

impl Ended {
    /// What it printed; it must have succeeded, in time.
    pub fn success(self) -> String {
        let Self { what, status, late, printed } = self;
        assert!(!late, "{what}: not finished after {DEADLINE:?}: {printed}");
        assert!(status.success(), "{what}: {status}: {printed}");
        printed
    }
}

fn try_both(
    core: &RdmaCore,
    server_line: &[&str],
    client_line: &[&str],
    port: &str,
    env: &[(&str, &str)],
) -> (Ended, Ended) {
    let session = session();
    let what = format!("{server_line:?} {env:?} on {}", core.name);
    let mut server = Reaped(on_device(core, server_line, &session, env).spawn().unwrap());
    wait_until_listening(port, &mut server.0, &what);
    let client = Reaped(on_device(core, client_line, &session, env).spawn().unwrap());
    let client = ended(client, format!("client of {what}"));
    (ended(server, format!("server of {what}")), client)
}

pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub fn wait_until_listening(port: &str, server: &mut Child, what: &str) {
    let needle = format!(":{:04X} ", port.parse::<u16>().unwrap());
    let start = Instant::now();
    loop {
        let tables =
            ["/proc/net/tcp", "/proc/net/tcp6"].map(|t| std::fs::read_to_string(t).unwrap_or_default());
        // Local address, remote address, state: 0A is LISTEN.
        let listens = |l: &str| {
            l.split_whitespace().nth(1).is_some_and(|a| format!("{a} ").ends_with(&needle))
                && l.split_whitespace().nth(3) == Some("0A")
        };
        if tables.iter().any(|t| t.lines().any(listens)) {
            return;
        }
        if server.try_wait().unwrap().is_some() || start.elapsed() > Duration::from_secs(60) {
            server.kill().unwrap();
            let mut text = String::new();
            server.stderr.take().unwrap().read_to_string(&mut text).unwrap();
            panic!("server of {what} does not listen: {text}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the end, which must be a success in time.
pub fn finished(child: Reaped, what: &str) -> String {
    ended(child, what.to_owned()).success()
}

/// Waits for the end, whatever it is; past the deadline it makes one.
pub fn ended(mut child: Reaped, what: String) -> Ended {
    let start = Instant::now();
    let mut late = false;
    let status = loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        late |= start.elapsed() > DEADLINE;
        if late {
            child.0.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut printed = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    child.0.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
    Ended { what, status, late, printed }
}

/// The rows of perftest's table: message size and iterations.
pub fn rows(printed: &str) -> Vec<(u64, u64)> {
    let row = |l: &str| {
        let mut words = l.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    printed.lines().filter(|l| l.starts_with(' ')).filter_map(row).collect()
}

/// Runs a perftest tool on each rdma-core; the client's table must have these rows.
pub fn perftest(line: &str, env: &[(&str, &str)], expected: &[(u64, u64)]) {
    let words: Vec<&str> = line.split(' ').collect();
    if !has(words[0]) {
        return;
    }
    let _turn = turn();
    for core in rdma_cores() {
        let (server, client) = perftest_pair(&core, &words, env);
        assert_eq!(rows(&client), expected, "{line} on {}: {client}", core.name);
        assert!(server.contains("remote address"), "{server}");
    }
}

/// perftest gives up if it can't measure the clock's rate, as on a machine with more to do than cores: then once more.
pub fn perftest_pair(core: &RdmaCore, line: &[&str], env: &[(&str, &str)]) -> (String, String) {
    for _ in 0..9 {
        let port = free_port().to_string();
        let server: Vec<&str> = [line, &["-p", &port]].concat();
        let client: Vec<&str> = [&server[..], &["127.0.0.1"]].concat();
        let (server, client) = try_both(core, &server, &client, &port, env);
        if ![&server, &client].iter().any(|e| e.printed.contains("Can't produce a report")) {
            let client = client.success();
            return (server.success(), client);
        }
    }
    run_pair(core, line, env)
}

/// The lines that a program prints, as they come.
pub fn lines_of(out: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let lines = std::io::BufReader::new(out).lines();
        lines.map_while(Result::ok).take_while(|l| send.send(l.clone()).is_ok()).for_each(drop);
    });
    receive
}

pub fn wait_for(lines: &Receiver<String>, part: &str) {
    let start = Instant::now();
    while let Ok(line) = lines.recv_timeout(DEADLINE.saturating_sub(start.elapsed())) {
        if line.contains(part) {
            return;
        }
    }
    panic!("{part:?} was never printed");
}
