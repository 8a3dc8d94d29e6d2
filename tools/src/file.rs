//! The two files of a transfer: one that is read into a region, one that appears whole or not at all.

use crate::failure::Failure;
use ibv::{HeapMemory, IbvDomainImpl, IbvMemoryRegion};
use rustix::{
    fs::{self as fs_raw, AtFlags, CWD, Mode, OFlags},
    io::Errno,
};
use sha2::{Digest, Sha256 as Hasher};
use std::{
    fmt,
    fs::{self, File, FileType, Permissions},
    io::{self, Read, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{FileTypeExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

/// Bytes read or written at a time.
const PIECE: usize = 1 << 20;

/// A SHA-256 checksum; prints as `sha256sum` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sha256(pub [u8; 32]);

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A regular, readable file that is not empty.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let unreadable = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => Failure::Missing(path.into()),
            _ => Failure::Unreadable { path: path.into(), source },
        };
        let kind = fs::metadata(path).map_err(unreadable)?.file_type();
        if !kind.is_file() {
            return Err(Failure::NotAFile { path: path.into(), what: name_of(kind) });
        }
        let file = File::open(path).map_err(unreadable)?;
        match file.metadata().map_err(unreadable)?.len() {
            0 => Err(Failure::Empty(path.into())),
            len => Ok(Self { path: path.into(), file, len }),
        }
    }

    /// Its length when opened, bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Reads it into `region`, which has its length, and returns the checksum of what was read.
    pub(crate) fn read_into<I: IbvDomainImpl>(
        mut self,
        region: &IbvMemoryRegion<I, HeapMemory>,
        mut tick: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Sha256, Failure> {
        let (mut hasher, mut piece, mut at) = (Hasher::new(), vec![0; PIECE], 0);
        while at < region.len() {
            let want = PIECE.min(region.len() - at);
            let unreadable = |source| Failure::Unreadable { path: self.path.clone(), source };
            self.file.read_exact(&mut piece[..want]).map_err(unreadable)?;
            hasher.update(&piece[..want]);
            region.write_at(at, &piece[..want]).map_err(crate::transfer::out_of_range)?;
            at += want;
            tick()?;
        }
        Ok(Sha256(hasher.finalize().into()))
    }
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        k if k.is_dir() => "a directory",
        k if k.is_fifo() => "a named pipe",
        k if k.is_socket() => "a socket",
        k if k.is_block_device() || k.is_char_device() => "a device",
        _ => "not a regular file",
    }
}

/// Where received bytes go: first to a file without a name on the destination's disk, then, all at once, to
/// the destination. A process that is killed in between leaves nothing, except where the file system knows no
/// files without names: there it leaves a hidden one.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    pending: Pending,
}

/// Bytes that have not got their name yet.
#[derive(Debug)]
enum Pending {
    /// `O_TMPFILE`, see open(2).
    Nameless(File),
    Hidden(tempfile::NamedTempFile),
}

impl Pending {
    fn file(&self) -> &File {
        match self {
            Self::Nameless(file) => file,
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
const HIDDEN: &str = ".ibv-transfer-";
/// Where a process finds its open files by number.
const OWN_FILES: &str = "/proc/self/fd";

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Destination {
    /// Fails now, not after the transfer, where the file could not be created.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let (path, mode, kept) = match fs::metadata(path) {
            Ok(there) if !there.is_file() => {
                let what = name_of(there.file_type());
                return Err(Failure::NotAFile { path: path.into(), what });
            }
            // What a link names is replaced, not the link; and who may read it stays who may read it.
            Ok(there) => {
                (fs::canonicalize(path).unwrap_or(path.into()), there.permissions().mode() & 0o777, true)
            }
            Err(_) => (path.into(), 0o666, false),
        };
        let pending = Pending::create(folder_of(&path), mode).map_err(|e| unwritable(&path, e))?;
        if kept {
            // The mask has no say about a file that was there.
            let _ = pending.file().set_permissions(Permissions::from_mode(mode));
        }
        Ok(Self { path, pending })
    }

    /// Writes all of `region` to the destination's disk.
    pub(crate) fn fill<I: IbvDomainImpl>(
        &mut self,
        region: &IbvMemoryRegion<I, HeapMemory>,
        mut tick: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut file = self.pending.file();
        for_pieces(region, |piece| {
            file.write_all(piece).map_err(|e| unwritable(&self.path, e))?;
            tick()
        })?;
        file.sync_all().map_err(|e| unwritable(&self.path, e))
    }

    /// Gives it its name, in place of whatever had it.
    pub(crate) fn keep(self) -> Result<(), Failure> {
        let Self { path, pending } = self;
        pending.name(&path).map_err(|e| unwritable(&path, e))
    }
}

fn unwritable(path: &Path, source: io::Error) -> Failure {
    Failure::Unwritable { path: path.into(), source }
}

/// The checksum of all bytes of `region`, as they are now.
pub(crate) fn checksum<I: IbvDomainImpl>(
    region: &IbvMemoryRegion<I, HeapMemory>,
    mut tick: impl FnMut() -> Result<(), Failure>,
) -> Result<Sha256, Failure> {
    let mut hasher = Hasher::new();
    for_pieces(region, |piece| {
        hasher.update(piece);
        tick()
    })?;
    Ok(Sha256(hasher.finalize().into()))
}

fn for_pieces<I: IbvDomainImpl>(
    region: &IbvMemoryRegion<I, HeapMemory>,
    mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (mut piece, mut at) = (vec![0; PIECE], 0);
    while at < region.len() {
        let n = PIECE.min(region.len() - at);
        region.read_at(at, &mut piece[..n]).map_err(crate::transfer::out_of_range)?;
        each(&piece[..n])?;
        at += n;
    }
    Ok(())
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
    fn only_regular_files_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for (path, kind) in [
            (pipe.as_path(), "a named pipe"),
            (dir.path(), "a directory"),
            (Path::new("/dev/null"), "a device"),
        ] {
            let refused = Destination::create(path).unwrap_err();
            assert!(matches!(refused, Failure::NotAFile { what, .. } if what == kind), "{refused}");
        }
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    }

    #[test]
    fn a_link_stays_one_and_its_file_keeps_who_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        symlink(&file, &link).unwrap();
        Destination::create(&link).unwrap().keep().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// Names the folder to the process that will be killed.
    const VICTIM: &str = "IBV_TEST_KILLED_RECEIVER";

    /// The process itself: everything is written, and then it waits.
    fn wait_to_be_killed(folder: &Path) {
        let destination = Destination::create(&folder.join("new")).unwrap();
        destination.pending.file().write_all(&[7; 5000]).unwrap();
        let other = Destination::create(&folder.join("old")).unwrap();
        println!("\nwritten {}", matches!(other.pending, Pending::Nameless(_)));
        thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn a_receiver_that_is_killed_leaves_no_file() {
        if let Some(folder) = env::var_os(VICTIM) {
            return wait_to_be_killed(Path::new(&folder));
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("old"), "old").unwrap();
        let this = ["--exact", "file::tests::a_receiver_that_is_killed_leaves_no_file", "--nocapture"];
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
}
