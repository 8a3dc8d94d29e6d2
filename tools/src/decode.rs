//! `ibv decode`: dumps of queues and entries, and traces of software devices, in words. What the bytes mean
//! is in a provider's crate, where that writes or reads them itself; here they are found and printed.

mod dump;
mod efa;
#[cfg(feature = "mlx5")]
mod mlx5;
mod trace;

use crate::failure::Failure;
use serde::Serialize;
use std::{
    fmt, fs,
    io::{self, Read},
    path::Path,
};

/// Whose formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Device {
    /// NVIDIA ConnectX
    Mlx5,
    /// Amazon's Elastic Fabric Adapter
    Efa,
}

/// What a dump is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Send entries, one after the other, each on a basic block of 64 bytes
    Wqe,
    /// A whole send queue, from its first basic block on
    Ring,
    /// Completion queue entries
    Cqe,
    /// Receives, one a slot
    Receive,
}

/// How a dump is to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub(crate) device: Device,
    pub(crate) kind: Kind,
    /// Bytes of a slot, where that is not the device's usual.
    pub(crate) slot: Option<usize>,
}

/// Everything that was found, in order. Serializes as `--json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    entries: Vec<Entry>,
}

/// An entry of a queue, or a line of a trace.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    /// Where it is in the dump, bytes; of a trace, the line.
    at: usize,
    /// What it is.
    title: String,
    /// Its fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fields: Vec<Field>,
    /// What is wrong with it.
    faults: Vec<String>,
    /// As people read it.
    #[serde(skip)]
    text: String,
}

/// A field of an entry.
#[derive(Debug, Serialize)]
pub(crate) struct Field {
    at: usize,
    segment: &'static str,
    name: &'static str,
    /// Hexadecimal, as it lies in memory.
    bytes: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    meaning: String,
}

/// Bytes as fields show them.
fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads `path`, or standard input where there is none: a trace of software devices, or a dump in `format`.
///
/// # Errors
/// `NotADump` where it is neither, `Refused` where this build can not read the device's formats.
pub(crate) fn report(path: Option<&Path>, format: Format) -> Result<Report, Failure> {
    let name = path.unwrap_or(Path::new("standard input"));
    let content = read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Failure::Missing(name.into()),
        _ => Failure::Unreadable { path: name.into(), source },
    })?;
    let not_a_dump = |why| Failure::NotADump { path: name.into(), why };
    let entries = match trace::lines(&content) {
        Some(lines) => trace::entries(lines).map_err(not_a_dump)?,
        None => entries(&dump::bytes(&content).map_err(not_a_dump)?, format)?,
    };
    Ok(Report { entries })
}

fn read(path: Option<&Path>) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    match path {
        Some(path) => return fs::read(path),
        None => io::stdin().lock().read_to_end(&mut content)?,
    };
    Ok(content)
}

/// The entries of a dump.
fn entries(bytes: &[u8], format: Format) -> Result<Vec<Entry>, Failure> {
    match format.device {
        Device::Efa => Ok(efa::entries(bytes, format)),
        #[cfg(feature = "mlx5")]
        Device::Mlx5 => Ok(mlx5::entries(bytes, format)),
        #[cfg(not(feature = "mlx5"))]
        Device::Mlx5 => Err(Failure::Refused(format!(
            "this build has no provider mlx5, so it can not read {} bytes as {:?}",
            bytes.len(),
            (format.kind, format.slot)
        ))),
    }
}

/// An entry of a trace in the device's own format; `None` where this build can not read it.
fn traced(device: &str, queue: trace::Queue, bytes: &[u8]) -> Option<Entry> {
    match (device, queue) {
        #[cfg(feature = "mlx5")]
        ("mlx5", queue) => Some(mlx5::traced(queue, bytes)),
        ("efa", queue) => Some(efa::traced(queue, bytes)),
        _ => None,
    }
}

impl Report {
    /// Fails where something is wrong with an entry; what, has been printed.
    pub(crate) fn verdict(&self) -> Result<(), Failure> {
        match self.entries.iter().map(|entry| entry.faults.len()).sum() {
            0 => Ok(()),
            faults => Err(Failure::Malformed(faults)),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: String = self.entries.iter().map(|entry| entry.text.as_str()).collect();
        f.write_str(text.trim_end())
    }
}
