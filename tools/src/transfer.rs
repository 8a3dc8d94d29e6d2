//! Moving one file from one end's registered memory to the other's and back. Both ends run
//! [`send`] and [`receive`], in two processes over TCP or in two threads of this one over a socket pair;
//! the bytes themselves go through put and get only. Arguments and exit codes are elsewhere.

mod end;
mod report;
mod session;
mod wire;

pub use crate::file::Sha256;
pub use crate::wire::Link;
pub use report::{Checksums, Cut, Moved, Report};
pub use session::{receive, send};

use crate::failure::Failure;
use ibv::{Error, ErrorKind, IbvDomain, IbvDomainImpl, OutOfRange};
use std::{os::unix::net::UnixStream, path::Path, thread, time::Duration};

/// What each frame of a sender begins with.
pub(crate) const MAGIC: [u8; 4] = <wire::Message as crate::wire::Protocol>::MAGIC;

/// How the bytes are cut and how long to wait.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes in one work request; more than the device's largest message counts as that.
    pub chunk: usize,
    /// Work requests in flight at once: the send queue's depth.
    pub depth: u32,
    /// Work requests that one doorbell publishes, at most.
    pub batch: u32,
    /// How long nothing at all may happen.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { chunk: 1 << 20, depth: 64, batch: 16, timeout: Duration::from_secs(30) }
    }
}

/// Is told how far a transfer has come.
pub trait Watch: Send {
    /// A phase of `bytes` begins.
    fn phase(&mut self, name: &'static str, bytes: u64);
    /// So many of them are done.
    fn done(&mut self, bytes: u64);
}

/// Looks away.
impl Watch for () {
    fn phase(&mut self, _: &'static str, _: u64) {}
    fn done(&mut self, _: u64) {}
}

/// Regions that the sending end holds: the file, and the file as it came back.
const SENDER_COPIES: u64 = 2;
/// Regions that the receiving end holds.
const RECEIVER_COPIES: u64 = 1;

/// Sends `path` from `near` to `far` and gets it back, both in this process; what arrived is verified
/// and not kept.
///
/// # Errors
/// See [`Failure`]; where both ends fail, the one that failed for a reason of its own.
pub fn both_ends<I: IbvDomainImpl>(
    near: &IbvDomain<I>,
    far: &IbvDomain<I>,
    path: &Path,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Report, Failure> {
    let len = crate::file::Source::open(path)?.len();
    fits(path.display(), len, SENDER_COPIES + RECEIVER_COPIES)?;
    let pair = UnixStream::pair().map_err(|source| Failure::Io { what: "socketpair".into(), source });
    let (here, there) = pair?;
    thread::scope(|scope| {
        let far_end = scope.spawn(move || receive(far, there, None, settings, &mut ()));
        let sent = send(near, here, path, settings, watch);
        let received = far_end.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (sent, received) {
            (Err(Failure::PeerFailed(_) | Failure::Vanished(_)), Err(cause)) => Err(cause),
            (sent, _) => sent,
        }
    })
}

/// Refuses what the host has no memory for, before any of it is taken.
fn fits(what: impl ToString, len: u64, copies: u64) -> Result<(), Failure> {
    let need = len.saturating_mul(copies);
    match crate::memory::available() {
        Some(available) if need > available => {
            Err(Failure::TooLarge { what: what.to_string(), need, available })
        }
        _ => Ok(()),
    }
}

/// A region's own length was misjudged: a mistake of this program, reported rather than panicked about.
pub(crate) fn out_of_range(e: OutOfRange) -> Failure {
    Error::new(ErrorKind::InvalidState, "copy", e.to_string()).into()
}
