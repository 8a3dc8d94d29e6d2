//! The poller's half: relaxed atomics that one poller at a time writes and the poster may read.

use super::{Counters, Polled};
use crate::{
    error::WcStatus,
    sync::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
        fence,
    },
    wc::IbvWc,
};

/// The first opcode of a receive: `IBV_WC_RECV` (libibverbs/verbs.h) is a flag of its own.
const RECV: u32 = 1 << 7;

/// What one route has reported.
#[derive(Debug)]
pub(crate) struct PollerLog {
    completions: AtomicU64,
    errors: AtomicU64,
    flushed: AtomicU64,
    received: AtomicU64,
    /// Completions kept, ever; the next goes to this slot.
    next: AtomicU64,
    /// Id, and status with vendor error, of the last completions.
    ring: Box<[[AtomicU64; 2]]>,
}

/// The poller is the only writer, so an addition needs no read-modify-write.
#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

impl PollerLog {
    pub(crate) fn new(keep: u32) -> Self {
        let zero = || AtomicU64::new(0);
        // One more than is kept: the oldest slot may be half overwritten, and is never read.
        let slots = if keep == 0 { 0 } else { u64::from(keep) + 1 };
        let ring = (0..slots).map(|_| [zero(), zero()]).collect();
        Self { completions: zero(), errors: zero(), flushed: zero(), received: zero(), next: zero(), ring }
    }

    #[inline]
    pub(crate) fn polled(&self, wc: &IbvWc) {
        add(&self.completions, 1);
        if !self.ring.is_empty() {
            self.keep(wc);
        }
    }

    /// Bytes that came in, where `wc` is a receive.
    #[inline]
    pub(crate) fn received(&self, wc: &IbvWc) {
        if wc.status == WcStatus::SUCCESS && wc.opcode.0 >= RECV {
            add(&self.received, wc.byte_len.into());
        }
    }

    /// `wc` is a failure.
    pub(crate) fn failed(&self, wc: &IbvWc) {
        add(if wc.status == WcStatus::WR_FLUSH_ERR { &self.flushed } else { &self.errors }, 1);
    }

    /// Whoever sees a word of slot `next` also sees that `next` has come this far, by the fence.
    #[inline(never)]
    fn keep(&self, wc: &IbvWc) {
        let next = self.next.load(Relaxed);
        fence(Release);
        if let Some([id, what]) = self.ring.get((next % self.ring.len() as u64) as usize) {
            id.store(wc.wr_id, Relaxed);
            what.store(u64::from(wc.vendor_err) << 32 | u64::from(wc.status.0), Relaxed);
        }
        self.next.store(next + 1, Release);
    }

    /// The completions kept, oldest first. One that was overwritten while it was read is left out.
    pub(super) fn kept(&self) -> Vec<Polled> {
        let len = self.ring.len() as u64;
        let end = self.next.load(Acquire);
        let read = |n: u64| {
            let [id, what] = &self.ring[(n % len) as usize];
            let (wr_id, what) = (id.load(Relaxed), what.load(Relaxed));
            let (status, vendor_err) = (WcStatus(what as u32), (what >> 32) as u32);
            Polled { wr_id, status, vendor_err }
        };
        let all: Vec<_> = (end.saturating_sub(len.saturating_sub(1))..end).map(|n| (n, read(n))).collect();
        fence(Acquire);
        // The slot of number `now` may be half written, and it is that of `now - len`.
        let now = self.next.load(Relaxed);
        all.into_iter().filter(|(n, _)| n + len > now).map(|(_, polled)| polled).collect()
    }

    pub(super) fn count(&self, into: &mut Counters) {
        into.completions += self.completions.load(Relaxed);
        into.errors += self.errors.load(Relaxed);
        into.flushed += self.flushed.load(Relaxed);
        into.recv.bytes += self.received.load(Relaxed);
    }
}
