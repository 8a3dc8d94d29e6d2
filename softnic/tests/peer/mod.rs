//! Another process of a session: a test binary that runs itself again, and what the two say to each other by lines.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::missing_panics_doc)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long anything may take that another process does.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// What a line for the other side begins with; the test harness prints lines of its own.
const MARK: &str = "@ ";
/// What a peer is to do.
const ROLE: &str = "SOFTNIC_TEST_ROLE";

/// A process that runs the test `the_other_process` of this binary in a role. It is killed when this is dropped.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    lines: Receiver<String>,
    /// What it printed that was not for us.
    pub noise: String,
}

/// The role and its argument, in a process that has one.
pub fn role() -> Option<(String, String)> {
    let text = std::env::var(ROLE).ok()?;
    let (role, argument) = text.split_once(' ').expect("a role and its argument");
    Some((role.to_owned(), argument.to_owned()))
}

/// Tells the process that started this one.
pub fn tell(line: &str) {
    // In one write: the harness prints to the same descriptor.
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{MARK}{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// A line from the process that started this one.
pub fn hear() -> String {
    let mut line = String::new();
    assert!(std::io::stdin().read_line(&mut line).unwrap() > 0, "the parent went away");
    line.trim().to_owned()
}

impl Peer {
    pub fn start(role: &str, argument: &str, env: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_other_process", "--nocapture"]).env(ROLE, format!("{role} {argument}"));
        command.envs(env.iter().copied());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let (send, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|l| send.send(l)));
        Self { child, lines, noise: String::new() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next line that it tells.
    pub fn heard(&mut self, what: &str) -> String {
        let start = Instant::now();
        while let Ok(line) = self.lines.recv_timeout(DEADLINE.saturating_sub(start.elapsed())) {
            if let Some(told) = line.strip_prefix(MARK) {
                return told.to_owned();
            }
            self.noise += &line;
            self.noise.push('\n');
        }
        panic!("process {} did not tell {what}: {}", self.pid(), self.noise);
    }

    /// A line that it has told, if there is one.
    pub fn heard_already(&mut self) -> Option<String> {
        while let Ok(line) = self.lines.try_recv() {
            if let Some(told) = line.strip_prefix(MARK) {
                return Some(told.to_owned());
            }
            self.noise += &line;
            self.noise.push('\n');
        }
        None
    }

    /// Kills it as `kill -9` does.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < DEADLINE, "process {} does not end: {}", self.pid(), self.noise);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What processes left behind, once nobody is about to remove it any more: several may be at it.
pub fn left_behind(pids: &[u32], session: &str) -> Vec<String> {
    let start = Instant::now();
    loop {
        let left = left_now(pids, session);
        if left.is_empty() || start.elapsed() > Duration::from_secs(5) {
            return left;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Folders of theirs, and names of the session's sockets.
fn left_now(pids: &[u32], session: &str) -> Vec<String> {
    let named = |name: &str| pids.iter().any(|pid| name.starts_with(&format!("softnic-tree-{pid}-")));
    let folder = std::fs::read_dir(std::env::temp_dir()).unwrap();
    let mut left: Vec<String> =
        folder.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).filter(|n| named(n)).collect();
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let ours = |line: &&str| line.contains("softnic/") && line.ends_with(&format!("/{session}"));
    left.extend(sockets.lines().filter(ours).map(str::to_owned));
    left
}
