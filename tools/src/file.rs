//! The two files of a transfer: one that is read into a region, one that appears whole or not at all.

use crate::failure::Failure;
use ibv::{HeapMemory, IbvDomainImpl, IbvMemoryRegion};
use sha2::{Digest, Sha256 as Hasher};
use std::{
    fmt,
    fs::{self, File, FileType, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{FileTypeExt, PermissionsExt},
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

/// Where received bytes go: first to a hidden file beside the destination, then, all at once, to it. A
/// process that is killed in between leaves the hidden file.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    temp: tempfile::NamedTempFile,
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
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // As `File::create` would: the process's mask takes its bits away.
        let temp = tempfile::Builder::new()
            .prefix(".ibv-transfer-")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(folder)
            .map_err(|e| unwritable(&path, e))?;
        if kept {
            // The mask has no say about a file that was there.
            let _ = temp.as_file().set_permissions(Permissions::from_mode(mode));
        }
        Ok(Self { path, temp })
    }

    /// Writes all of `region` beside the destination, down to the disk.
    pub(crate) fn fill<I: IbvDomainImpl>(
        &mut self,
        region: &IbvMemoryRegion<I, HeapMemory>,
        mut tick: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for_pieces(region, |piece| {
            self.temp.write_all(piece).map_err(|e| unwritable(&self.path, e))?;
            tick()
        })?;
        self.temp.as_file().sync_all().map_err(|e| unwritable(&self.path, e))
    }

    /// Gives it its name, in place of whatever had it.
    pub(crate) fn keep(self) -> Result<(), Failure> {
        let Self { path, temp } = self;
        temp.persist(&path).map(drop).map_err(|e| unwritable(&path, e.error))
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
    use std::{os::unix::fs::symlink, process::Command};

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
}
