//! `ibv perf`: bandwidth and latency of write, read and send, as perftest measures them, over any provider.
//! Two ends run [`client`] and [`server`], in two processes over TCP or in two threads of this one over a
//! socket pair. Arguments and exit codes are elsewhere.
//!
//! Latency is half of a round trip for write and send, where the server answers each message with one, and
//! a whole operation for read; bandwidth counts payload alone, from the first post to the last completion.

mod bandwidth;
mod end;
mod ends;
mod html;
mod latency;
mod message;
mod pace;
mod plot;
mod report;
mod session;
mod settings;
mod steps;
mod wire;

pub(crate) use ends::Ends;
pub use report::{Bandwidth, Latency, Report, Row};
pub use session::{client, server};
pub use settings::{Extent, Measure, Operation, Settings};

use crate::failure::Failure;
use ibv::{IbvDomain, IbvDomainImpl};
use std::{os::unix::net::UnixStream, thread};

/// What each frame of a client begins with.
pub(crate) const MAGIC: [u8; 4] = <wire::Message as crate::wire::Protocol>::MAGIC;

/// Is told how far a measurement has come; never inside the hot loop, but every few thousand rounds.
pub trait Watch: Send {
    /// A row of the table begins: what it is, and how many messages or milliseconds it takes.
    fn row(&mut self, what: &str, total: u64);
    /// So many of them are done.
    fn done(&mut self, part: u64);
}

/// Looks away.
impl Watch for () {
    fn row(&mut self, _: &str, _: u64) {}
    fn done(&mut self, _: u64) {}
}

/// Measures between `near`, the client, and `far`, both in this process and each in a thread.
///
/// # Errors
/// See [`Failure`]; where both ends fail, the one that failed for a reason of its own.
pub fn loopback<I: IbvDomainImpl>(
    near: &IbvDomain<I>,
    far: &IbvDomain<I>,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Report, Failure> {
    let pair = UnixStream::pair().map_err(|source| Failure::Io { what: "socketpair".into(), source });
    let (here, there) = pair?;
    thread::scope(|scope| {
        let far_end = scope.spawn(move || server(far, there, settings, &mut ()));
        let near_end = client(near, here, settings, watch);
        let served = far_end.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (near_end, served) {
            (Err(Failure::PeerFailed(_) | Failure::Vanished(_)), Err(cause)) => Err(cause),
            (Ok(_), Err(cause)) => Err(cause),
            (near_end, _) => near_end,
        }
    })
}
