//! The two files of a transfer: one that is read into a region, one that is written from one. How a file comes to
//! be whole or not at all is [`Whole`]'s.

pub(crate) use conformance::Whole;

use crate::failure::Failure;
use ibv::{HeapMemory, IbvDomainImpl, IbvMemoryRegion};
use sha2::{Digest, Sha256 as Hasher};
use std::{
    fmt,
    fs::{self, File, FileType},
    io::{self, Read, Write},
    os::unix::fs::FileTypeExt,
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

/// Where received bytes go: a regular file that appears whole or not at all.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    whole: Whole,
}

impl Destination {
    /// Fails now, not after the transfer, where the file could not be created.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        if let Some(kind) =
            fs::metadata(path).ok().map(|there| there.file_type()).filter(|kind| !kind.is_file())
        {
            return Err(Failure::NotAFile { path: path.into(), what: name_of(kind) });
        }
        let whole = Whole::create(path).map_err(|e| unwritable(path, e))?;
        Ok(Self { path: path.into(), whole })
    }

    /// Writes all of `region` to the destination's disk.
    pub(crate) fn fill<I: IbvDomainImpl>(
        &mut self,
        region: &IbvMemoryRegion<I, HeapMemory>,
        mut tick: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut file = self.whole.file();
        for_pieces(region, |piece| {
            file.write_all(piece).map_err(|e| unwritable(&self.path, e))?;
            tick()
        })
    }

    /// Gives it its name, in place of whatever had it.
    pub(crate) fn keep(self) -> Result<(), Failure> {
        let Self { path, whole } = self;
        whole.keep().map_err(|e| unwritable(&path, e))
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
    use std::process::Command;

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
}
