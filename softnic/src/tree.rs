//! The folder of this process in the temporary folder, in which the sysfs tree is, and its removal. What is in the tree is in
//! [`crate::sysfs`].
//!
//! libibverbs wants real files, and a process that is killed can't remove its own. So each folder is locked by the process
//! that owns it, and whoever starts or ends removes the folders that nobody has locked: the lock is on the folder itself,
//! and the kernel takes it back when its holder ends. A forked child holds the lock together with its parent.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{FlockOperation, Mode, OFlags};

const PREFIX: &str = "softnic-tree-";

/// The lock on the folder while there is one, and the process that made it.
static HELD: Mutex<Option<(OwnedFd, u32)>> = Mutex::new(None);

/// Where the sysfs tree is. The name holds the time at which the process started, because numbers of processes are reused,
/// and are not unique between containers that share a temporary folder.
pub(crate) fn sysfs_root() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let name = || format!("{PREFIX}{}-{}", std::process::id(), start_time().unwrap_or(0));
    FOLDER.get_or_init(|| std::env::temp_dir().join(name())).join("sys")
}

/// In clock ticks since the machine's start: field 22 of `/proc/self/stat`, the 20th behind the name in parentheses.
fn start_time() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Makes this process's folder and locks it, if that is not done yet; removes those that killed processes left. False in a
/// forked child that shares its parent's folder.
pub(crate) fn claim() -> io::Result<bool> {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, owner)) = &*held {
        return Ok(*owner == std::process::id());
    }
    collect();
    *held = Some((claim_folder(&folder())?, std::process::id()));
    Ok(true)
}

/// Removes this process's folder unless a forked relative still holds it, and those that killed processes left.
pub(crate) fn release() {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner).take();
    if held.is_some() {
        drop(held);
        remove_unless_held(&folder());
        collect();
    }
}

fn folder() -> PathBuf {
    let mut path = sysfs_root();
    path.pop();
    path
}

/// Another process may take the folder for a left-over between its making and its locking: then it is made again.
fn claim_folder(path: &Path) -> io::Result<OwnedFd> {
    loop {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        match lock(path) {
            Ok(lock) if is_at(&lock, path) => return Ok(lock),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            // The other process is at it: it will be gone in a moment.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(e) => return Err(e),
        }
    }
}

fn lock(path: &Path) -> io::Result<OwnedFd> {
    let folder = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

/// Whether the open folder is still the one at `path`.
fn is_at(folder: &OwnedFd, path: &Path) -> bool {
    let inode = rustix::fs::fstat(folder).map(|s| (s.st_dev, s.st_ino));
    fs::metadata(path).is_ok_and(|m| inode == Ok((m.dev(), m.ino())))
}

/// Removes the folders of this user that nobody has locked.
fn collect() {
    let user = rustix::process::getuid().as_raw();
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if ours && entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == user) {
            remove_unless_held(&entry.path());
        }
    }
}

fn remove_unless_held(path: &Path) {
    if let Ok(_lock) = lock(path) {
        // What can't be removed stays in the temporary folder, and is tried again by the next process.
        let _ = fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_when_nobody_holds_it_and_not_before() {
        let path = std::env::temp_dir().join(format!("softnic-test-tree-{}", std::process::id()));
        let held = claim_folder(&path).unwrap();
        fs::write(path.join("file"), "text").unwrap();
        let shared_with_a_child = held.try_clone().unwrap();
        drop(held);
        remove_unless_held(&path);
        assert!(path.join("file").is_file());
        drop(shared_with_a_child);
        remove_unless_held(&path);
        assert!(!path.exists());
    }

    #[test]
    fn a_temporary_folder_that_is_not_there_is_not_made() {
        let missing = std::env::temp_dir().join(format!("softnic-test-missing-{}", std::process::id()));
        let error = claim_folder(&missing.join("tree")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!missing.exists());
    }

    #[test]
    fn a_left_over_is_collected() {
        let left = std::env::temp_dir().join(format!("{PREFIX}test-{}", std::process::id()));
        fs::create_dir_all(left.join("sys/class")).unwrap();
        collect();
        assert!(!left.exists());
    }
}
