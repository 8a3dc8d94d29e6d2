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
    fs::File,
    io::{self, BufRead, BufReader, Read},
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

/// Is told each entry as soon as it is known; an error ends the reading.
pub(crate) type Show<'s> = &'s mut dyn FnMut(&Entry) -> Result<(), Failure>;

/// Entries of a dump, in order.
type Entries<'b> = Box<dyn Iterator<Item = Entry> + 'b>;

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
    /// As people read it: whole lines.
    #[serde(skip)]
    pub(crate) text: String,
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

/// Reads `path`, or standard input where there is none, a trace of software devices or a dump in `format`, and
/// tells `show` of every entry.
///
/// # Errors
/// Those of `show`; `NotADump` where it is neither, `Refused` where this build can not read the device's
/// formats; once everything was shown, `Malformed` where something is wrong with an entry, else `Unread` where
/// lines of a trace could not be read.
pub(crate) fn run(path: Option<&Path>, format: Format, show: Show<'_>) -> Result<(), Failure> {
    let name = path.unwrap_or(Path::new("standard input"));
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => Failure::Missing(name.into()),
        _ => Failure::Unreadable { path: name.into(), source },
    };
    let mut input = open(path).map_err(unreadable)?;
    let (mut start, mut line, mut number) = (Vec::new(), Vec::new(), 0);
    while line.trim_ascii().is_empty() {
        start.append(&mut line);
        if input.read_until(b'\n', &mut line).map_err(unreadable)? == 0 {
            break;
        }
        number += 1;
    }
    if trace::begins(&line) {
        return trace::run(trace::Input { input, line, number }, name, show);
    }
    start.append(&mut line);
    input.read_to_end(&mut start).map_err(unreadable)?;
    let bytes = dump::bytes(&start).map_err(|why| Failure::NotADump { path: name.into(), why })?;
    verdict(entries(&bytes, format)?, show)
}

fn open(path: Option<&Path>) -> io::Result<Box<dyn BufRead>> {
    Ok(match path {
        Some(path) => Box::new(BufReader::new(File::open(path)?)),
        None => Box::new(io::stdin().lock()),
    })
}

/// Shows all entries, and fails where something is wrong with one.
fn verdict(entries: Entries<'_>, show: Show<'_>) -> Result<(), Failure> {
    let mut faults = 0;
    for entry in entries {
        faults += entry.faults.len();
        show(&entry)?;
    }
    if faults == 0 { Ok(()) } else { Err(Failure::Malformed(faults)) }
}

/// The entries of a dump.
fn entries(bytes: &[u8], format: Format) -> Result<Entries<'_>, Failure> {
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
