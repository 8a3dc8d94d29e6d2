//! The lane in which a file crosses between two processes: `ibv transfer` at both ends, on software
//! ConnectX devices under the system's own libibverbs, and another provider at each end.

use crate::{
    demo,
    lanes::Ran,
    sh::{Result, debian_packages, target, this_program},
    workspace::program_of_ours,
};
use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// What libibverbs needs to find an mlx5 device.
const PACKAGES: [&str; 2] = ["ibverbs-providers", "libibverbs1"];
/// What `cargo xtask softnic` is told of the devices, and the providers of the receiving and of the sending
/// end.
type Pair<'a> = (&'a [&'a str], &'a str, &'a str);
const IB: &[&str] = &["--link", "ib"];
const ROCE: &[&str] = &["--link", "roce"];
const PAIRS: [Pair<'_>; 3] = [(IB, "mlx5", "mlx5"), (ROCE, "verbs", "mlx5"), (IB, "mlx5", "verbs")];
/// The system's libefa may be too old for RDMA write.
const EFA: [Pair<'_>; 1] = [(&["--device", "efa", "--rdma-core", "newest"], "efa", "efa")];
/// For one transfer, however slow the machine.
const LIMIT: Duration = Duration::from_secs(300);
/// Names the length of the file in bytes, where it is not this program's that will do.
pub(crate) const BYTES: &str = "IBV_TRANSFER_BYTES";

pub(crate) fn lane() -> Result<Ran> {
    pairs(&PAIRS)
}

/// The same on software EFA adapters under the newest rdma-core.
pub(crate) fn efa() -> Result<Ran> {
    pairs(&EFA)
}

fn pairs(pairs: &[Pair<'_>]) -> Result<Ran> {
    if let Err(why) = debian_packages(&PACKAGES) {
        return Ok(Ran::Not(why.to_string()));
    }
    let ibv = program_of_ours("ibv")?;
    let folder = target().join("pair");
    fs::create_dir_all(&folder)?;
    let source = source(&folder)?;
    for (machine, receiver, sender) in pairs {
        let (out, over) = (folder.join("received.bin"), machine[1]);
        let _ = fs::remove_file(&out);
        transfer(&ibv, machine, (receiver, &out), (sender, &source))?;
        if fs::read(&out)? != fs::read(&source)? {
            return Err(format!("{receiver} received other bytes over {over} than {sender} sent").into());
        }
        let bytes = fs::metadata(&out)?.len();
        println!("{sender} to {receiver} over {over}: {bytes} bytes, equal");
    }
    Ok(Ran::Passed)
}

/// A file of ours that is long enough for many requests: this program; or one of the length that is asked for.
fn source(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("source.bin");
    match env::var(BYTES) {
        Ok(bytes) => demo::write_bytes(&path, bytes.parse().map_err(|e| format!("{BYTES}={bytes}: {e}"))?)?,
        Err(_) => fs::copy(this_program()?, &path).map(drop)?,
    }
    Ok(path)
}

fn transfer(ibv: &Path, machine: &[&str], receiver: (&str, &Path), sender: (&str, &Path)) -> Result<()> {
    let session = format!("xtask-pair-{}", std::process::id());
    let end = |(provider, file): (&str, &Path), role: &[&str]| {
        let mut command = Command::new(this_program()?);
        command.arg("softnic").args(machine).args(["--session", &session, "--"]);
        command.arg(ibv).arg("transfer").arg(file).args(role);
        command.args(["--provider", provider]).stdin(Stdio::null());
        Ok::<_, Box<dyn std::error::Error>>(command)
    };
    let mut listening = Running(end(receiver, &["--listen", "127.0.0.1:0"])?.stderr(Stdio::piped()).spawn()?);
    let addr = listening.address()?;
    let mut sending = Running(end(sender, &["--to", &addr, "--chunk", "64K"])?.spawn()?);
    sending.finish("the sending end")?;
    listening.finish("the receiving end")
}

/// A process that does not outlive this value.
struct Running(Child);

impl Running {
    /// Where it says that it listens. What it says after that is passed on.
    fn address(&mut self) -> Result<String> {
        let mut lines = BufReader::new(self.0.stderr.take().ok_or("no standard error")?);
        let mut line = String::new();
        while lines.read_line(&mut line)? > 0 {
            if let Some(addr) = line.trim_end().strip_prefix("listening on ") {
                let addr = addr.to_owned();
                thread::spawn(move || {
                    let mut rest = String::new();
                    let _ = lines.read_to_string(&mut rest);
                    eprint!("{rest}");
                });
                return Ok(addr);
            }
            eprint!("{line}");
            line.clear();
        }
        Err("the receiving end ended before it listened".into())
    }

    fn finish(&mut self, name: &str) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.0.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{name}: {status}").into()),
                None if Instant::now() > deadline => {
                    return Err(format!("waited {} s for {name}", LIMIT.as_secs()).into());
                }
                None => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
