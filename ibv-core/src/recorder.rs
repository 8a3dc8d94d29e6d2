//! Counters and a flight recorder for each queue pair (feature `recorder`): what was asked, what became
//! of it, and which failure came first. What a device counts by itself is the provider's.
//!
//! The poster's half lives with the poster and costs two additions a request. The poller's half lives in
//! the route, in relaxed atomics that the poller alone writes, because the two may be on two threads. The
//! recorder proper keeps the last `IbvConfig::flight_recorder` operations in memory that was allocated
//! when the queue pair was created; with 0 it is one comparison.

use crate::error::{PostError, WcStatus, WorkRequestError};
use std::fmt;

mod poller;
mod poster;
mod table;
pub(crate) use poller::PollerLog;
pub(crate) use poster::{Built, PosterLog};

/// Work requests and bytes of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OpCount {
    /// Work requests that the device was told of; a transfer in chunks counts each.
    pub requests: u64,
    /// Their bytes. For receives: the bytes that arrived.
    pub bytes: u64,
}

/// What a queue pair has done so far. A snapshot: the poller may be counting meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Counters {
    /// Puts.
    pub put: OpCount,
    /// Puts with an immediate.
    pub put_with_imm: OpCount,
    /// Gets.
    pub get: OpCount,
    /// Sends.
    pub send: OpCount,
    /// Sends with an immediate.
    pub send_with_imm: OpCount,
    /// Compare-and-swaps.
    pub compare_swap: OpCount,
    /// Fetch-and-adds.
    pub fetch_add: OpCount,
    /// Receives.
    pub recv: OpCount,
    /// Doorbells that core rang; a device may need more than one write for each.
    pub doorbells: u64,
    /// Completions polled, of both queues.
    pub completions: u64,
    /// Of those, failures other than flushes.
    pub errors: u64,
    /// Of those, flushes.
    pub flushed: u64,
    /// Posts that were refused, by core or by the device.
    pub refused: u64,
}

impl Counters {
    /// The operations by name, in a fixed order; for tables.
    pub fn operations(&self) -> [(&'static str, OpCount); 8] {
        let Self { put, put_with_imm, get, send, send_with_imm, compare_swap, fetch_add, recv, .. } = *self;
        let counts = [put, put_with_imm, get, send, send_with_imm, compare_swap, fetch_add, recv];
        std::array::from_fn(|i| (poster::NAMES[i], counts[i]))
    }
}

/// What became of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It was refused; nothing was built.
    Refused(PostError),
    /// It was built, and its batch not rung yet.
    Built,
    /// It was built, and its batch dropped or refused.
    Discarded,
    /// The device was told; no completion has been polled that speaks for it.
    InFlight,
    /// A later completion speaks for it: it was unsignaled, or its own is older than the record.
    Retired,
    /// It succeeded.
    Completed,
    /// It failed, and not as a consequence.
    Failed(WorkRequestError),
    /// It was flushed after an earlier failure.
    Flushed,
}

/// One operation of a [`FlightRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// Its id; of a refused one, 0.
    pub wr_id: u64,
    /// What it was: `put`, `get`, `recv`, …
    pub name: &'static str,
    /// Whether it was signaled.
    pub signaled: bool,
    /// Bytes asked for.
    pub bytes: usize,
    /// Local ranges; 0 for inline data and for no data.
    pub ranges: u32,
    /// Address and `lkey` of the first local range.
    pub local: (u64, u32),
    /// Address and `rkey` of the remote range.
    pub remote: (u64, u32),
    /// What became of it.
    pub outcome: Outcome,
}

/// The last operations of a queue pair, oldest first, with what is known of each. Prints as a table that
/// marks the root cause and folds the flushes behind it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FlightRecord {
    /// The operations kept.
    pub operations: Vec<Operation>,
    /// Older ones, which were not.
    pub forgotten: u64,
    /// The first failure that was not a flush, whether or not its operation is still kept.
    pub root_cause: Option<WorkRequestError>,
    /// The counters of the same moment.
    pub counters: Counters,
}

/// A queue pair's first failure together with what led to it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}\n{record}")]
#[non_exhaustive]
pub struct RootCause {
    /// The first failure that was not a flush.
    pub error: WorkRequestError,
    /// What the queue pair did around it.
    pub record: FlightRecord,
}

/// What a poller knows of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Polled {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    pub(crate) vendor_err: u32,
}

impl From<Polled> for Outcome {
    fn from(p: Polled) -> Self {
        match p.status {
            WcStatus::SUCCESS => Self::Completed,
            WcStatus::WR_FLUSH_ERR => Self::Flushed,
            status => Self::Failed(WorkRequestError { wr_id: p.wr_id, status, vendor_err: p.vendor_err }),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(e) => write!(f, "refused: {e}"),
            Self::Built => f.write_str("built, not rung"),
            Self::Discarded => f.write_str("discarded"),
            Self::InFlight => f.write_str("in flight"),
            Self::Retired => f.write_str("retired by a later completion"),
            Self::Completed => f.write_str("completed"),
            Self::Failed(e) => write!(f, "{} (vendor error {:#x})", e.status, e.vendor_err),
            Self::Flushed => f.write_str("flushed"),
        }
    }
}
