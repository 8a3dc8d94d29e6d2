//! One virtual machine: what is in its initial file system, how QEMU is told, how long it may take, and what
//! its exit status means. What guests are for is not known here.

use super::{initramfs::Archive, kernel::Kernel};
use crate::sh::{Result, output, program, target};
use std::{
    env,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

pub(crate) const QEMU: &str = "qemu-system-x86_64";
const BUSYBOX: &str = "/bin/busybox";
/// What the root file system takes. The kernel has what is missing built in.
const MODULES: [&str; 5] = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_rng"];
const BOOT_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 mitigations=off";
/// From QEMU's start to the command's, and from its end to QEMU's, on a busy host.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
const PROBE_LIMIT: Duration = Duration::from_secs(20);

/// How instructions are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    Kvm,
    Emulated,
}

impl Accelerator {
    /// KVM where a guest comes up with it, which is tried once in each of the host's lives.
    pub(crate) fn best(kernel: &Kernel) -> Result<Self> {
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return Ok(Self::Emulated);
        }
        let stamp = target().join("vm/kvm-works");
        let life = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let life = format!("{} {}", kernel.release, life.trim());
        let known = fs::read_to_string(&stamp).ok();
        let works = match known.as_deref().and_then(|text| text.strip_prefix(&life)) {
            Some(answer) => answer == " yes",
            None => {
                let works = Guest::probe(kernel)?;
                fs::write(stamp, format!("{life} {}", if works { "yes" } else { "no" }))?;
                works
            }
        };
        Ok(if works { Self::Kvm } else { Self::Emulated })
    }

    fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Emulated => ["-accel", "tcg,thread=multi", "-cpu", "max"],
        }
    }
}

/// A cable between two guests.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) socket: PathBuf,
    /// 1 or 2; the first waits for the second. Its address is 10.9.0 and this.
    pub(crate) host: u8,
}

/// What to run in a machine of its own.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    /// Of the folder for its logs.
    pub(crate) name: String,
    pub(crate) command: Vec<String>,
    /// How long the command may take; then it is asked to end, and soon after told.
    pub(crate) limit: Duration,
    pub(crate) wire: Option<Wire>,
    /// Whether what the command prints is printed here, too.
    pub(crate) aloud: bool,
}

impl Guest {
    pub(crate) fn boot(&self, kernel: &Kernel, accelerator: Accelerator) -> Result<Running> {
        self.start(kernel, accelerator, "")
    }

    /// Whether a guest comes up with KVM at all.
    fn probe(kernel: &Kernel) -> Result<bool> {
        let guest =
            Self { name: "probe".into(), command: vec![], limit: PROBE_LIMIT, wire: None, aloud: false };
        let mut running = guest.start(kernel, Accelerator::Kvm, " vm.probe")?;
        running.deadline = Instant::now() + PROBE_LIMIT;
        Ok(running.wait().is_ok_and(|ended| ended.code == 0))
    }

    fn start(&self, kernel: &Kernel, accelerator: Accelerator, more: &str) -> Result<Running> {
        let logs = target().join("vm/logs").join(&self.name);
        fs::create_dir_all(&logs)?;
        let initramfs = logs.join("initramfs");
        fs::write(&initramfs, self.initramfs(kernel)?)?;
        let mut qemu = Command::new(QEMU);
        qemu.args(accelerator.arguments());
        qemu.args(["-M", "q35", "-smp", "2", "-m", "1536", "-nodefaults", "-display", "none", "-no-reboot"]);
        qemu.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        // The console, and the command's two streams.
        qemu.arg("-serial").arg(format!("file:{}", logs.join("console.log").display()));
        qemu.args(["-serial", "stdio", "-chardev", "file,id=err,path=/proc/self/fd/2,append=on"]);
        qemu.args(["-serial", "chardev:err"]);
        qemu.args(["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"]);
        qemu.arg("-kernel").arg(&kernel.vmlinux).arg("-initrd").arg(&initramfs);
        qemu.arg("-append").arg(format!("{BOOT_ARGUMENTS}{more}"));
        if let Some(wire) = &self.wire {
            qemu.args(wire.arguments());
        }
        Running::new(qemu, logs, self)
    }

    fn initramfs(&self, kernel: &Kernel) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for folder in ["bin", "dev", "modules", "vm"] {
            archive.folder(folder);
        }
        archive.character_device("dev/console", 5, 1);
        let busybox = fs::read(BUSYBOX).map_err(|e| format!("{BUSYBOX}: {e}"))?;
        archive.file("bin/busybox", &busybox).file("init", include_bytes!("init.sh"));
        for (at, module) in kernel.modules(&MODULES)?.iter().enumerate() {
            archive.file(&format!("modules/{at:02}"), module);
        }
        archive.file("vm/guest.sh", include_bytes!("guest.sh"));
        archive.file("vm/settings", self.settings(kernel).as_bytes());
        archive.file("vm/command", self.script()?.as_bytes());
        Ok(archive.finish())
    }

    fn settings(&self, kernel: &Kernel) -> String {
        let wire = self.wire.as_ref().map(|wire| wire.host.to_string()).unwrap_or_default();
        let modules = quoted(&kernel.base.display().to_string());
        format!("VM_MODULES={modules}\nVM_WIRE={wire}\nVM_SECONDS={}\n", self.limit.as_secs())
    }

    /// The command as it would run here: same folder, and what of the environment speaks to it.
    fn script(&self) -> Result<String> {
        let ours = |name: &str| {
            ["PATH", "HOME", "RUST_BACKTRACE", "RUST_LOG"].contains(&name) || name.starts_with("IBV_")
        };
        let variables = env::vars().filter(|(name, _)| ours(name));
        let exports: String =
            variables.map(|(name, value)| format!("export {name}={}\n", quoted(&value))).collect();
        let words: Vec<String> = self.command.iter().map(|word| quoted(word)).collect();
        let folder = quoted(&env::current_dir()?.display().to_string());
        Ok(format!("{exports}cd {folder} && exec {}\n", words.join(" ")))
    }
}

impl Wire {
    fn arguments(&self) -> [String; 4] {
        let (socket, host) = (self.socket.display(), self.host);
        let server = if host == 1 { "on" } else { "off" };
        [
            "-netdev".into(),
            format!("stream,id=wire,addr.type=unix,addr.path={socket},server={server}"),
            "-device".into(),
            format!("virtio-net-pci,netdev=wire,mac=52:54:00:00:00:0{host},romfile="),
        ]
    }
}

/// For the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// How a command in a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The command's exit status; 124 where it took too long, 125 where it was never run.
    pub(crate) code: u8,
    pub(crate) stdout: String,
}

/// A machine that runs, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    name: String,
    qemu: Child,
    logs: PathBuf,
    deadline: Instant,
    limit: Duration,
    streams: Vec<JoinHandle<io::Result<()>>>,
    pub(crate) stderr: Arc<Mutex<Vec<u8>>>,
}

impl Running {
    fn new(mut command: Command, logs: PathBuf, guest: &Guest) -> Result<Self> {
        fs::write(logs.join("qemu.txt"), format!("{command:?}\n"))?;
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut qemu = spawned.map_err(|e| format!("{QEMU}: {e}"))?;
        let limit = BOOT_LIMIT + guest.limit;
        let stderr = Arc::default();
        let mut streams = Vec::new();
        if let Some(from) = qemu.stdout.take() {
            let to = guest.aloud.then(io::stdout);
            streams.push(copy(from, File::create(logs.join("stdout.log"))?, to, Arc::default()));
        }
        if let Some(from) = qemu.stderr.take() {
            let to = guest.aloud.then(io::stderr);
            streams.push(copy(from, File::create(logs.join("stderr.log"))?, to, Arc::clone(&stderr)));
        }
        let deadline = Instant::now() + limit;
        Ok(Self { name: guest.name.clone(), qemu, logs, deadline, limit, streams, stderr })
    }

    /// Whether the command has printed `words` to its standard error; an error where it has ended without.
    pub(crate) fn until_it_says(&mut self, words: &str) -> Result<()> {
        let said = |seen: &Mutex<Vec<u8>>| {
            seen.lock().is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(words))
        };
        while !said(&self.stderr) {
            self.in_time()?;
            if self.qemu.try_wait()?.is_some() {
                return Err(self.failure(&format!("ended without saying `{words}`")));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Result<Ended> {
        let status = loop {
            if let Some(status) = self.qemu.try_wait()? {
                break status;
            }
            self.in_time()?;
            thread::sleep(Duration::from_millis(50));
        };
        for stream in self.streams.drain(..) {
            stream.join().unwrap_or(Ok(()))?;
        }
        let Some(code) = status.code().and_then(verdict) else {
            return Err(self.failure(&format!("gave no verdict: {status}")));
        };
        if code == 125 {
            return Err(self.failure("could not run the command"));
        }
        let stdout = fs::read_to_string(self.logs.join("stdout.log"))?;
        Ok(Ended { code, stdout })
    }

    fn in_time(&self) -> Result<()> {
        if Instant::now() < self.deadline {
            return Ok(());
        }
        Err(self.failure(&format!("took more than {} s", self.limit.as_secs())))
    }

    fn failure(&self, what: &str) -> Box<dyn std::error::Error> {
        let tail = |name: &str| tail(&self.logs.join(name));
        let (logs, name) = (self.logs.display(), &self.name);
        format!("guest {name} {what}; logs in {logs}\n{}{}", tail("console.log"), tail("stderr.log")).into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        let _ = fs::remove_file(self.logs.join("initramfs"));
    }
}

/// The guest's exit code in QEMU's: isa-debug-exit doubles it and adds one. Anything else, QEMU's own
/// failure or a panic's reboot, is even.
fn verdict(status: i32) -> Option<u8> {
    let status = u8::try_from(status).ok()?;
    (status % 2 == 1).then_some(status >> 1)
}

/// Copies to a log, to memory and perhaps to a stream of ours.
fn copy(
    mut from: impl Read + Send + 'static,
    mut log: File,
    mut to: Option<impl Write + Send + 'static>,
    seen: Arc<Mutex<Vec<u8>>>,
) -> JoinHandle<io::Result<()>> {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            let len = from.read(&mut buffer)?;
            if len == 0 {
                return Ok(());
            }
            log.write_all(&buffer[..len])?;
            if let Ok(mut seen) = seen.lock() {
                seen.extend(&buffer[..len]);
            }
            if let Some(to) = &mut to {
                to.write_all(&buffer[..len]).and_then(|()| to.flush())?;
            }
        }
    })
}

/// The last lines of a log, for a message.
fn tail(path: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].iter().map(|line| format!("  {line}\n")).collect()
}

/// Refuses a QEMU whose guests can not be joined.
pub(crate) fn qemu_is_recent() -> Result<()> {
    let text = output(&mut program(QEMU, ["--version"]))?;
    match version(&text) {
        Some(version) if version >= (7, 2) => Ok(()),
        _ => {
            Err(format!("needs QEMU 7.2, which is the first with stream sockets for a network; found {text}")
                .into())
        }
    }
}

/// Reads `QEMU emulator version 7.2.22 (…)`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split("version ").nth(1)?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_status_is_no_verdict() {
        assert_eq!([1, 3, 251].map(verdict), [Some(0), Some(1), Some(125)]);
        assert_eq!([0, 2, 134, -1, 256].map(verdict), [None; 5]);
    }

    #[test]
    fn words_survive_a_shell() {
        for word in ["", "a b", "it's", "$HOME `x` \"y\" \\"] {
            let printed = output(&mut program("sh", ["-c", &format!("printf %s {}", quoted(word))])).unwrap();
            assert_eq!(printed, word);
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version("QEMU emulator version 10.0.2 (Debian 1:10)"), Some((10, 0)));
        assert_eq!(version("qemu: no such thing"), None);
        assert!(version("version 7.1.0") < Some((7, 2)));
    }

    #[test]
    fn a_log_is_quoted_from_its_end() {
        let path = env::temp_dir().join(format!("vm-tail-{}", std::process::id()));
        fs::write(&path, (0..30).map(|n| format!("{n}\n")).collect::<String>()).unwrap();
        let text = tail(&path);
        fs::remove_file(path).unwrap();
        assert!(text.starts_with("  10\n") && text.ends_with("  29\n"), "{text}");
    }
}
