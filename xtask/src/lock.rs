//! One process at a time: a lock that several runs of this program take, in a file. What it guards is the callers'.

use crate::sh::Result;
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File},
    path::Path,
};

/// Held until dropped, or until this process ends in whatever way.
#[derive(Debug)]
pub(crate) struct Lock {
    /// The kernel has the lock as long as this is open; programs that are run do not inherit it.
    _file: File,
}

impl Lock {
    /// Waits for `file`'s lock; creates the file.
    pub(crate) fn take(file: &Path) -> Result<Self> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        let failed = |e: std::io::Error| format!("lock {}: {e}", file.display());
        let opened = File::options().create(true).append(true).open(file).map_err(failed)?;
        flock(&opened, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
        Ok(Self { _file: opened })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sh::program;
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
