//! One process at a time: a lock that several runs of this program take, in a file. What it guards is the callers'.

use crate::sh::{Result, program};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
};

/// Held until dropped, or until this process ends in whatever way.
#[derive(Debug)]
pub(crate) struct Lock {
    /// util-linux's `flock`, which holds it as long as its input is open: the standard library's `File::lock` is
    /// newer than the oldest Rust that this is built with.
    holder: Child,
}

impl Lock {
    /// Waits for `file`'s lock; creates the file.
    pub(crate) fn take(file: &Path) -> Result<Self> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        let name = file.display().to_string();
        let mut flock = program("flock", [&name, "sh", "-c", "echo held; exec cat"]);
        let holder = flock.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut lock = Self { holder: holder.map_err(|e| format!("flock {name}: {e}"))? };
        let mut said = String::new();
        if let Some(out) = lock.holder.stdout.as_mut() {
            BufReader::new(out).read_line(&mut said)?;
        }
        if said == "held\n" { Ok(lock) } else { Err(format!("flock {name} did not get the lock").into()) }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread};

    #[test]
    fn the_second_waits_for_the_first() {
        let file = std::env::temp_dir().join(format!("xtask-lock-{}/lock", std::process::id()));
        let first = Lock::take(&file).unwrap();
        let (tell, told) = mpsc::channel();
        let second = thread::spawn({
            let file = file.clone();
            move || {
                let lock = Lock::take(&file).unwrap();
                tell.send(()).unwrap();
                drop(lock);
            }
        });
        let busy = program("flock", ["--nonblock", &file.display().to_string(), "true"]).status().unwrap();
        assert!(!busy.success() && told.try_recv().is_err(), "the first has it");
        drop(first);
        second.join().unwrap();
        assert_eq!(told.try_recv(), Ok(()));
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
    }
}
