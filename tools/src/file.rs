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

/// Where received bytes go: first to an unnamed place beside the destination, then, all at once, to it.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    temp: tempfile::NamedTempFile,
}

impl Destination {
    /// Fails now, not after the transfer, where the file could not be created.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        if fs::metadata(path).is_ok_and(|m| m.is_dir()) {
            return Err(Failure::NotAFile { path: path.into(), what: "a directory" });
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // As `File::create` would: the process's mask takes its bits away.
        let temp = tempfile::Builder::new()
            .prefix(".ibv-transfer-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(|source| Failure::Unwritable { path: path.into(), source })?;
        Ok(Self { path: path.into(), temp })
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
