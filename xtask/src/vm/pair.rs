//! `cargo xtask vm pair`: a file crosses a wire between two guests, each with a kernel and an rxe of its own.
//! The bytes are `ibv transfer`'s to move; what arrived is summed up by other programs.

use super::{Lab, machine::Ended, machine::Guest, machine::Wire};
use crate::{
    demo,
    sh::{Result, output, program, target},
};
use std::{env, fs, path::PathBuf, process};

/// Bytes in the file.
const SIZE: u64 = 16 << 20;
/// Where the first guest listens, and what it says then.
const ADDRESS: &str = "10.9.0.1:7471";
const LISTENS: &str = "listening on 10.9.0.1:7471";
const HOW: &str = "--provider verbs --timeout 120";
/// Messages of 64 packets at rxe's usual MTU, few enough of them that a slow peer is not overrun.
const CUT: &str = "--chunk 64K --depth 16";

pub(super) fn run_pair(lab: &Lab) -> Result<()> {
    let ibv = super::ibv()?;
    let source = source()?.display().to_string();
    let sent = sum(&output(&mut program("sha256sum", [&source]))?)?;
    let socket = Socket(env::temp_dir().join(format!("xtask-vm-{}.sock", process::id())));
    let receive = format!(
        "\"$0\" transfer /tmp/received.bin --listen {ADDRESS} {HOW} >&2 && sha256sum /tmp/received.bin"
    );
    let send = format!("\"$0\" transfer \"$1\" --to {ADDRESS} {HOW} {CUT}");
    let guest = |host, script, file| {
        let command = ["sh", "-c", script, ibv.as_str(), file].map(str::to_owned);
        let wire = Some(Wire { socket: socket.0.clone(), host });
        Guest { wire, ..lab.guest(&format!("pair-{host}"), &command) }.boot(&lab.kernel, lab.accelerator)
    };
    let mut receiving = guest(1, &receive, "")?;
    receiving.until_it_says(LISTENS)?;
    succeeded("the sending guest", guest(2, &send, &source)?.wait()?)?;
    let received = sum(&succeeded("the receiving guest", receiving.wait()?)?)?;
    if received != sent {
        return Err(
            format!("sent a file whose SHA-256 is {sent}, received one whose SHA-256 is {received}").into()
        );
    }
    println!("{SIZE} bytes crossed between two kernels: SHA-256 {sent} at both ends");
    Ok(())
}

fn source() -> Result<PathBuf> {
    let path = target().join("vm/pair.bin");
    demo::write_bytes(&path, SIZE)?;
    Ok(path)
}

/// Reads `SUM  NAME`.
fn sum(line: &str) -> Result<String> {
    let sum = line.split_whitespace().next().unwrap_or_default();
    if sum.len() == 64 { Ok(sum.to_owned()) } else { Err(format!("sha256sum printed {line:?}").into()) }
}

fn succeeded(whose: &str, ended: Ended) -> Result<String> {
    if ended.code == 0 {
        return Ok(ended.stdout);
    }
    Err(format!("{whose}: exit status {}; logs in {}", ended.code, target().join("vm/logs").display()).into())
}

/// The wire's end in the file system.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_all_of_it() {
        let line = format!("{}  -\n", "a".repeat(64));
        assert_eq!(sum(&line).unwrap(), "a".repeat(64));
        assert!(sum("abc  -").is_err() && sum("").is_err());
    }
}
