//! What a transfer amounted to, as data, as a table and as JSON.

use super::Sha256;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use ibv::{IbvDomain, IbvDomainImpl};
use serde::{Serialize, Serializer};
use std::{fmt, path::Path, time::Duration};

/// What a transfer amounted to, seen from one end. Serializes as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The file that was sent, or the one that was written; empty where the bytes were not kept.
    pub file: String,
    /// The provider's name; empty where the caller opened the domain.
    pub provider: String,
    /// This end's device.
    pub device: String,
    /// The other end's, where it is in this process.
    pub peer_device: Option<String>,
    /// Length of the file.
    pub bytes: u64,
    /// How the bytes were cut; the sending end knows. Its fields are the report's.
    #[serde(flatten)]
    pub cut: Option<Cut>,
    /// To the peer; the sending end knows.
    pub put: Option<Moved>,
    /// Back again; the sending end knows.
    pub get: Option<Moved>,
    /// SHA-256 of the bytes, wherever they were.
    pub sha256: Checksums,
    /// Whether all checksums are equal. A transfer without is a failure, so there is no other report.
    pub equal: bool,
}

/// How the bytes were cut into requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// Bytes in one work request.
    pub chunk: usize,
    /// Work requests in flight at once.
    pub depth: u32,
    /// Work requests in one doorbell, at most.
    pub batch: u32,
}

/// Checksums of the same bytes in different places.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Checksums {
    /// As read from the file.
    #[serde(serialize_with = "as_text")]
    pub source: Sha256,
    /// In the receiving end's region.
    #[serde(serialize_with = "as_text")]
    pub destination: Sha256,
    /// In the sending end's second region, after the get.
    #[serde(serialize_with = "as_maybe_text")]
    pub returned: Option<Sha256>,
}

fn as_text<S: Serializer>(sum: &Sha256, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(sum)
}

fn as_maybe_text<S: Serializer>(sum: &Option<Sha256>, s: S) -> Result<S::Ok, S::Error> {
    match sum {
        Some(sum) => s.collect_str(sum),
        None => s.serialize_none(),
    }
}

/// One direction's numbers. The clock runs from the first post to the last completion.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Moved {
    /// Bytes.
    pub bytes: u64,
    /// Work requests, each of which completed.
    pub requests: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Seconds.
    pub seconds: f64,
    /// 10^9 bytes a second.
    pub gigabytes_per_second: f64,
}

impl Moved {
    pub(super) fn new(bytes: u64, requests: u64, doorbells: u64, took: Duration) -> Self {
        let seconds = took.as_secs_f64().max(1e-9);
        Self { bytes, requests, doorbells, seconds, gigabytes_per_second: bytes as f64 / seconds / 1e9 }
    }
}

impl Report {
    pub(super) fn new<I: IbvDomainImpl>(
        path: &Path,
        domain: &IbvDomain<I>,
        bytes: u64,
        sha256: Checksums,
    ) -> Self {
        let equal =
            sha256.source == sha256.destination && sha256.returned.is_none_or(|sum| sum == sha256.source);
        Self {
            file: path.display().to_string(),
            provider: String::new(),
            device: domain.device_info().name.clone(),
            peer_device: None,
            bytes,
            cut: None,
            put: None,
            get: None,
            sha256,
            equal,
        }
    }

    fn directions(&self) -> Table {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header(["direction", "bytes", "requests", "doorbells", "seconds", "GB/s"]);
        for (name, moved) in [("put", self.put), ("get", self.get)] {
            let Some(m) = moved else { continue };
            let (seconds, rate) = (format!("{:.3}", m.seconds), format!("{:.2}", m.gigabytes_per_second));
            let (bytes, requests, doorbells) =
                (m.bytes.to_string(), m.requests.to_string(), m.doorbells.to_string());
            table.add_row([name, &bytes, &requests, &doorbells, &seconds, &rate]);
        }
        table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
        table
    }
}

/// The table a person reads.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.peer_device.as_deref().map(|d| format!(" to {d}")).unwrap_or_default();
        writeln!(f, "{}: {} bytes", self.file, self.bytes)?;
        write!(f, "provider {}, {}{to}", self.provider, self.device)?;
        if let Some(Cut { chunk, depth, batch }) = self.cut {
            write!(f, "; {chunk} bytes a request, {depth} in flight, {batch} a doorbell at most")?;
        }
        writeln!(f)?;
        if self.put.is_some() || self.get.is_some() {
            writeln!(f, "{}", self.directions())?;
        }
        writeln!(f, "sha256 of the source       {}", self.sha256.source)?;
        writeln!(f, "sha256 at the destination  {}", self.sha256.destination)?;
        if let Some(returned) = self.sha256.returned {
            writeln!(f, "sha256 after coming back   {returned}")?;
        }
        write!(f, "checksums are {}", if self.equal { "equal" } else { "DIFFERENT" })
    }
}
