//! Unmodified programs on the devices: the tools of ibverbs-utils and perftest, two processes each, on the system's rdma-core
//! and on a newer one. Each with its own exit status and checked output.
//!
//! Where the packages are missing, the tests say so and pass; `IBV_REQUIRE=softnic-tools` makes that a failure.

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a pair of programs may take. They take seconds; a busy machine of two cores takes longer.
const DEADLINE: Duration = Duration::from_secs(180);

/// Whose libraries a program runs on.
#[derive(Debug, Clone)]
struct RdmaCore {
    name: String,
    build: Option<PathBuf>,
}

/// The system's rdma-core, and those that `cargo xtask rdma-core` built.
fn rdma_cores() -> Vec<RdmaCore> {
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

fn target_folder() -> Option<PathBuf> {
    std::env::current_exe().ok()?.ancestors().nth(3).map(Path::to_owned)
}

/// The preloaded library, which cargo builds beside the tests.
fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let path = exe.parent().unwrap().join("libsoftnic.so");
    assert!(path.is_file(), "{} is built with the tests", path.display());
    path
}

/// A program that does not outlive its test: one that polls would keep a core busy for ever.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Says what is missing, and fails if it is required.
fn missing(what: &str) {
    let required = std::env::var("IBV_REQUIRE").is_ok_and(|v| v.contains("softnic-tools"));
    assert!(!required, "IBV_REQUIRE=softnic-tools: {what}");
    println!("skipped: {what}");
}

/// Whether a program is there; else says so.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !found {
        missing(&format!(
            "{program} is not installed: apt-get install ibverbs-utils ibverbs-providers perftest"
        ));
    }
    found
}

/// One pair of programs at a time: several would only starve each other.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command on software devices, in a session of its own.
fn on_device(core: &RdmaCore, line: &[&str], session: &str, env: &[(&str, &str)]) -> Command {
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

fn session() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("tools-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Runs one program to its end; answers what it printed.
fn run_alone(core: &RdmaCore, line: &[&str], env: &[(&str, &str)]) -> String {
    let child = Reaped(on_device(core, line, &session(), env).spawn().unwrap());
    finished(child, &format!("{line:?} on {}", core.name))
}

/// Runs a server and its client; answers what each printed.
fn run_pair(core: &RdmaCore, line: &[&str], env: &[(&str, &str)]) -> (String, String) {
    let (session, port) = (session(), free_port().to_string());
    let with_port: Vec<&str> = [line, &["-p", &port]].concat();
    let what = format!("{line:?} {env:?} on {}", core.name);
    let mut server = Reaped(on_device(core, &with_port, &session, env).spawn().unwrap());
    wait_until_listening(&port, &mut server.0, &what);
    let client_line: Vec<&str> = [&with_port[..], &["127.0.0.1"]].concat();
    let client = Reaped(on_device(core, &client_line, &session, env).spawn().unwrap());
    let client = finished(client, &format!("client of {what}"));
    (finished(server, &format!("server of {what}")), client)
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn wait_until_listening(port: &str, server: &mut Child, what: &str) {
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
fn finished(mut child: Reaped, what: &str) -> String {
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
    assert!(!late, "{what}: not finished after {DEADLINE:?}: {printed}");
    assert!(status.success(), "{what}: {status}: {printed}");
    printed
}

/// The rows of perftest's table: message size and iterations.
fn rows(printed: &str) -> Vec<(u64, u64)> {
    let row = |l: &str| {
        let mut words = l.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    printed.lines().filter(|l| l.starts_with(' ')).filter_map(row).collect()
}

/// Runs a perftest tool on each rdma-core; the client's table must have these rows.
fn perftest(line: &str, env: &[(&str, &str)], expected: &[(u64, u64)]) {
    let words: Vec<&str> = line.split(' ').collect();
    if !has(words[0]) {
        return;
    }
    let _turn = turn();
    for core in rdma_cores() {
        let (server, client) = run_pair(&core, &words, env);
        assert_eq!(rows(&client), expected, "{line} on {}: {client}", core.name);
        assert!(server.contains("remote address"), "{server}");
    }
}

/// All sizes of `-a`: 2 bytes to 8 MiB.
fn all_sizes(iterations: u64) -> Vec<(u64, u64)> {
    (1..=23).map(|n| (1 << n, iterations)).collect()
}

#[test]
fn ibv_devices_lists_them() {
    if has("ibv_devices") {
        let _turn = turn();
        for core in rdma_cores() {
            let printed = run_alone(&core, &["ibv_devices"], &[("SOFTNIC_COUNT", "3")]);
            for i in 0..3 {
                assert!(printed.contains(&format!("mlx5_{i}")), "{printed}");
                assert!(printed.contains(&format!("0c42a10300aabb0{i}")), "{printed}");
            }
        }
    }
}

#[test]
fn ibv_devinfo_describes_both_links() {
    if has("ibv_devinfo") {
        let _turn = turn();
        for core in rdma_cores() {
            let ib = run_alone(&core, &["ibv_devinfo", "-v"], &[]);
            for part in [
                "SOFTNIC_MLX5",
                "PORT_ACTIVE (4)",
                "InfiniBand",
                "4096 (5)",
                "fe80:0000:0000:0000:0c42:a103:00aa:bb00",
            ] {
                assert!(ib.contains(part), "{part}: {ib}");
            }
            let roce = run_alone(&core, &["ibv_devinfo", "-v"], &[("SOFTNIC_LINK", "roce")]);
            for part in ["Ethernet", "RoCE v2", "::ffff:192.0.2.1"] {
                assert!(roce.contains(part), "{part}: {roce}");
            }
        }
    }
}

#[test]
fn ibv_rc_pingpong_plays() {
    if has("ibv_rc_pingpong") {
        let _turn = turn();
        for core in rdma_cores() {
            // -c: each side checks the bytes that it receives.
            for more in [&[][..], &["-e"], &["-c"]] {
                let line = [&["ibv_rc_pingpong", "-n", "300"], more].concat();
                let (server, client) = run_pair(&core, &line, &[("SOFTNIC_STRICT", "1")]);
                for printed in [server, client] {
                    assert!(printed.contains("300 iters in"), "{line:?}: {printed}");
                    assert!(
                        !printed.contains("softnic") && !printed.contains("invalid data"),
                        "{line:?}: {printed}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_dead_peer_ends_in_an_error_and_not_in_a_hang() {
    if !has("ib_write_bw") {
        return;
    }
    let _turn = turn();
    let core = &rdma_cores()[0];
    let (session, port) = (session(), free_port().to_string());
    let line = ["ib_write_bw", "-n", "100000000", "-p", &port];
    let mut server = Reaped(on_device(core, &line, &session, &[]).spawn().unwrap());
    wait_until_listening(&port, &mut server.0, "ib_write_bw");
    // Line by line, so that the table's head says when the traffic starts.
    let client_line: Vec<&str> = [&["stdbuf", "-oL"], &line[..], &["127.0.0.1"]].concat();
    let mut client = Reaped(on_device(core, &client_line, &session, &[]).spawn().unwrap());
    let lines = lines_of(client.0.stdout.take().unwrap());
    wait_for(&lines, "#iterations");
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    let errors = lines_of(client.0.stderr.take().unwrap());
    wait_for(&errors, "Failed status 12");
    assert!(!client.0.wait().unwrap().success());
}

/// The lines that a program prints, as they come.
fn lines_of(out: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let lines = std::io::BufReader::new(out).lines();
        lines.map_while(Result::ok).take_while(|l| send.send(l.clone()).is_ok()).for_each(drop);
    });
    receive
}

fn wait_for(lines: &Receiver<String>, part: &str) {
    let start = Instant::now();
    while let Ok(line) = lines.recv_timeout(DEADLINE.saturating_sub(start.elapsed())) {
        if line.contains(part) {
            return;
        }
    }
    panic!("{part:?} was never printed");
}

#[test]
fn perftest_write() {
    perftest("ib_write_bw -n 100", &[], &[(65536, 100)]);
    perftest("ib_write_lat -n 100", &[], &[(2, 100)]);
    perftest("ib_write_bw -n 50 -b", &[], &[(65536, 50)]);
    perftest("ib_write_bw -n 50 -q 8", &[], &[(65536, 400)]);
}

#[test]
fn perftest_read() {
    perftest("ib_read_bw -n 100", &[], &[(65536, 100)]);
    perftest("ib_read_lat -n 100", &[], &[(2, 100)]);
    perftest("ib_read_bw -n 50 -b", &[], &[(65536, 50)]);
    perftest("ib_read_bw -n 50 -q 8", &[], &[(65536, 400)]);
}

#[test]
fn perftest_send() {
    perftest("ib_send_bw -n 100", &[], &[(65536, 100)]);
    perftest("ib_send_lat -n 100", &[], &[(2, 100)]);
    perftest("ib_send_bw -n 50 -b", &[], &[(65536, 50)]);
    perftest("ib_send_bw -n 50 -q 8", &[], &[(65536, 400)]);
    perftest("ib_send_bw -n 100 -e", &[], &[(65536, 100)]);
    perftest("ib_send_lat -n 100 -e", &[], &[(2, 100)]);
}

#[test]
fn perftest_atomic() {
    perftest("ib_atomic_bw -n 100", &[], &[(8, 100)]);
    perftest("ib_atomic_lat -n 100", &[], &[(8, 100)]);
    perftest("ib_atomic_bw -n 50 -q 8", &[], &[(8, 400)]);
}

#[test]
fn perftest_all_sizes() {
    for tool in ["write", "read", "send"] {
        perftest(&format!("ib_{tool}_bw -a -n 5"), &[], &all_sizes(5));
        perftest(&format!("ib_{tool}_lat -a -n 5"), &[], &all_sizes(5));
    }
}

#[test]
fn perftest_roce() {
    let roce = [("SOFTNIC_LINK", "roce")];
    perftest("ib_write_bw -n 100 -x 3", &roce, &[(65536, 100)]);
    perftest("ib_send_lat -n 100 -x 1", &roce, &[(2, 100)]);
    perftest("ib_read_lat -n 100 -x 0", &roce, &[(2, 100)]);
    perftest("ib_atomic_bw -n 100 -x 2", &roce, &[(8, 100)]);
}

#[test]
fn older_generations_of_the_interface_serve_the_tools_too() {
    for abi in ["invoke", "write"] {
        perftest("ib_write_bw -n 50", &[("SOFTNIC_ABI", abi)], &[(65536, 50)]);
    }
}
