//! A file that appears whole under its name, or not at all: whoever finds it finds all of it, and what had its
//! name before stays until then. What is written to it is the callers': reports here, and what `ibv` writes.

use rustix::{
    fs::{self as fs_raw, AtFlags, CWD, Mode, OFlags},
    io::Errno,
};
use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
};

/// Bytes go first to a file without a name on the destination's disk, then, all at once, to the destination. A
/// process that is killed in between leaves nothing, except where the file system knows no files without names:
/// there it leaves a hidden one. What is no regular file, such as a pipe or a terminal, is written to as it is.
#[derive(Debug)]
pub struct Whole {
    path: PathBuf,
    pending: Pending,
}

impl Whole {
    /// The file that will be at `path`.
    ///
    /// # Errors
    /// The operating system's: now, not once there is something to write, where `path` could not be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        let there = fs::metadata(path).ok();
        // An open file has a name there, of which another one can not take the place.
        let own = ["/dev", "/proc"].iter().any(|folder| path.starts_with(folder));
        let (path, mode) = match &there {
            Some(there) if own || !there.is_file() => {
                let file = File::options().append(true).open(path)?;
                return Ok(Self { path: path.into(), pending: Pending::Stream(file) });
            }
            // What a link names is replaced, not the link; and who may read it stays who may read it.
            Some(there) => {
                (fs::canonicalize(path).unwrap_or(path.into()), there.permissions().mode() & 0o777)
            }
            None => (path.into(), 0o666),
        };
        let pending = Pending::create(folder_of(&path), mode)?;
        if there.is_some() {
            // The mask has no say about a file that was there.
            let _ = pending.file().set_permissions(Permissions::from_mode(mode));
        }
        Ok(Self { path, pending })
    }

    /// Where to write: in front of nobody until [`keep`](Self::keep).
    pub fn file(&self) -> &File {
        self.pending.file()
    }

    /// All of its content, and its name.
    ///
    /// # Errors
    /// The operating system's; what had the name has it still.
    pub fn write(self, content: &[u8]) -> io::Result<()> {
        self.file().write_all(content)?;
        self.keep()
    }

    /// What was written reaches the disk, and then its name, in place of whatever had it.
    ///
    /// # Errors
    /// The operating system's; what had the name has it still.
    pub fn keep(self) -> io::Result<()> {
        if !matches!(self.pending, Pending::Stream(_)) {
            self.file().sync_all()?;
        }
        self.pending.name(&self.path)
    }
}

/// Bytes that have not got their name yet.
#[derive(Debug)]
enum Pending {
    /// `O_TMPFILE`, see open(2).
    Nameless(File),
    Hidden(tempfile::NamedTempFile),
    /// It is there, and bytes go by.
    Stream(File),
}

impl Pending {
    fn file(&self) -> &File {
        match self {
            Self::Nameless(file) | Self::Stream(file) => file,
            Self::Hidden(temp) => temp.as_file(),
        }
    }

    /// In `folder`, as `File::create` would: the process's mask takes bits of `mode` away.
    fn create(folder: &Path, mode: u32) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        // Its name will be made from the one it has there.
        if Path::new(OWN_FILES).is_dir() {
            match fs_raw::openat(CWD, folder, flags, Mode::from_raw_mode(mode)) {
                Ok(file) => return Ok(Self::Nameless(file.into())),
                // Of file systems, and of kernels, that can not.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let permissions = Permissions::from_mode(mode);
        let temp = tempfile::Builder::new().prefix(HIDDEN).permissions(permissions).tempfile_in(folder);
        temp.map(Self::Hidden)
    }

    /// Becomes `path`, in place of whatever has that name.
    fn name(self, path: &Path) -> io::Result<()> {
        let file = match self {
            Self::Nameless(file) => file,
            Self::Stream(_) => return Ok(()),
            Self::Hidden(temp) => return temp.persist(path).map(drop).map_err(|e| e.error),
        };
        let own = format!("{OWN_FILES}/{}", file.as_raw_fd());
        let link = |to: &Path| fs_raw::linkat(CWD, &own, CWD, to, AtFlags::SYMLINK_FOLLOW);
        match link(path) {
            // A link replaces nothing, a renaming does.
            Err(Errno::EXIST) => {}
            done => return Ok(done?),
        }
        let beside = folder_of(path).join(format!("{HIDDEN}{}", std::process::id()));
        let _ = fs::remove_file(&beside);
        link(&beside)?;
        fs::rename(&beside, path).inspect_err(|_| drop(fs::remove_file(&beside)))
    }
}

/// What hidden files begin with.
const HIDDEN: &str = ".ibv-";
/// Where a process finds its open files by number.
const OWN_FILES: &str = "/proc/self/fd";

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        env,
        io::{BufRead, BufReader},
        os::unix::fs::symlink,
        process::{Command, Stdio},
        thread,
        time::Duration,
    };

    #[test]
    fn a_link_stays_one_and_its_file_keeps_who_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        symlink(&file, &link).unwrap();
        Whole::create(&link).unwrap().keep().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// Names the folder to the process that will be killed.
    const VICTIM: &str = "IBV_TEST_KILLED_WRITER";

    /// The process itself: everything is written, and then it waits.
    fn wait_to_be_killed(folder: &Path) {
        let new = Whole::create(&folder.join("new")).unwrap();
        new.file().write_all(&[7; 5000]).unwrap();
        let old = Whole::create(&folder.join("old")).unwrap();
        println!("\nwritten {}", matches!(old.pending, Pending::Nameless(_)));
        thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn a_writer_that_is_killed_leaves_no_file() {
        if let Some(folder) = env::var_os(VICTIM) {
            return wait_to_be_killed(Path::new(&folder));
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("old"), "old").unwrap();
        let this = ["--exact", "whole::tests::a_writer_that_is_killed_leaves_no_file", "--nocapture"];
        let mut victim = Command::new(env::current_exe().unwrap());
        let mut victim = victim.args(this).env(VICTIM, dir.path()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let line = lines.map_while(Result::ok).find(|line| line.starts_with("written "));
        victim.kill().unwrap();
        victim.wait().unwrap();
        if line.as_deref() == Some("written false") {
            println!("skipped: the file system of {} has no files without names", dir.path().display());
            return;
        }
        assert_eq!(line.as_deref(), Some("written true"));
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["old"]);
        assert_eq!(fs::read(dir.path().join("old")).unwrap(), b"old");
    }

    /// Both ways of waiting for a name end in the same.
    #[test]
    fn a_name_is_given_to_a_new_file_and_in_place_of_an_old_one() {
        let dir = tempfile::tempdir().unwrap();
        for hidden in [false, true] {
            for name in ["a", "b"] {
                let path = dir.path().join(name);
                let pending = match hidden {
                    true => Pending::Hidden(tempfile::NamedTempFile::new_in(dir.path()).unwrap()),
                    false => Pending::create(dir.path(), 0o600).unwrap(),
                };
                pending.file().write_all(name.as_bytes()).unwrap();
                pending.name(&path).unwrap();
                assert_eq!(fs::read(path).unwrap(), name.as_bytes());
            }
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        let nowhere = Pending::create(dir.path(), 0o600).unwrap().name(&dir.path().join("no/such"));
        assert_eq!(nowhere.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_can_not_be_written_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        fs::write(&path, "old").unwrap();
        let whole = Whole::create(&path).unwrap();
        whole.file().write_all(b"half").unwrap();
        drop(whole);
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read_dir(dir.path()).unwrap().count()),
            (b"old".to_vec(), 1)
        );
        Whole::create(&path).unwrap().write(b"new").unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read_dir(dir.path()).unwrap().count()),
            (b"new".to_vec(), 1)
        );
        let full = Whole::create(Path::new("/dev/full")).unwrap().write(b"x").unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        Whole::create(Path::new("/dev/null")).unwrap().write(b"x").unwrap();
        assert!(Whole::create(dir.path()).is_err() && Whole::create(&dir.path().join("no/such")).is_err());
    }
}
