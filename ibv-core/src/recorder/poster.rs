//! The poster's half: plain memory, written by the thread that posts.

use super::{Counters, OpCount};
use crate::{
    error::PostError,
    memory::IbvRemoteMemoryRegionView,
    wr::{Op, Payload},
};

/// Operations by index, as users call them.
pub(super) const NAMES: [&str; 8] =
    ["put", "put_with_imm", "get", "send", "send_with_imm", "compare_swap", "fetch_add", "recv"];
const RECV: usize = 7;

#[inline]
const fn index(op: Op) -> usize {
    match op {
        Op::Write => 0,
        Op::WriteWithImm(_) => 1,
        Op::Read => 2,
        Op::Send => 3,
        Op::SendWithImm(_) => 4,
        Op::CompareSwap { .. } => 5,
        Op::FetchAdd(_) => 6,
    }
}

/// What happened to an operation before the device knew of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Built,
    Discarded,
    Refused(PostError),
}

/// One operation, as it was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Built {
    pub(super) wr_id: u64,
    /// Index into [`NAMES`].
    pub(super) kind: u8,
    pub(super) signaled: bool,
    pub(super) ranges: u32,
    pub(super) bytes: usize,
    pub(super) local: (u64, u32),
    pub(super) remote: (u64, u32),
    pub(super) fate: Fate,
}

impl Built {
    /// A request of the send queue.
    #[inline]
    pub(crate) fn send(
        wr_id: u64,
        op: Op,
        signaled: bool,
        local: Payload<'_>,
        remote: IbvRemoteMemoryRegionView,
    ) -> Self {
        let mut built = Self::of(wr_id, index(op), local);
        (built.signaled, built.remote) = (signaled, (remote.addr, remote.rkey));
        built
    }

    /// A receive.
    #[inline]
    pub(crate) fn recv(wr_id: u64, local: Payload<'_>) -> Self {
        Self::of(wr_id, RECV, local)
    }

    #[inline]
    fn of(wr_id: u64, kind: usize, local: Payload<'_>) -> Self {
        let (bytes, ranges, first) = match local {
            Payload::Sges(sges) => (
                sges.iter().fold(0usize, |n, s| n.saturating_add(s.len())),
                sges.len() as u32,
                sges.first().map_or((0, 0), |s| (s.addr(), s.lkey())),
            ),
            Payload::Inline(data) => (data.len(), 0, (0, 0)),
        };
        let (signaled, kind) = (true, kind as u8);
        Self { wr_id, kind, signaled, ranges, bytes, local: first, remote: (0, 0), fate: Fate::Built }
    }
}

/// Counters, and the last operations in a ring that is as long as it will ever be.
#[derive(Debug)]
pub(crate) struct PosterLog {
    /// Requests and bytes by operation: built, and of those rung.
    counts: [[OpCount; 8]; 2],
    doorbells: u64,
    refused: u64,
    /// Empty where nothing is to be kept.
    ring: Vec<Option<Built>>,
    /// Operations recorded, ever.
    next: u64,
    /// Of those, the ones before the last doorbell.
    rung: u64,
}

impl PosterLog {
    pub(crate) fn new(keep: u32) -> Self {
        let ring = vec![None; keep as usize];
        Self { counts: Default::default(), doorbells: 0, refused: 0, ring, next: 0, rung: 0 }
    }

    /// A request of so many bytes was built.
    #[inline]
    pub(crate) fn count(&mut self, op: Op, bytes: usize) {
        let count = &mut self.counts[0][index(op)];
        count.requests += 1;
        count.bytes = count.bytes.wrapping_add(bytes as u64);
    }

    /// A request was refused.
    #[inline]
    pub(crate) fn count_refused(&mut self) {
        self.refused += 1;
    }

    /// Keeps an operation, instead of the oldest, where any is kept.
    pub(crate) fn keep(&mut self, operation: impl FnOnce() -> Built) {
        let at = self.next.checked_rem(self.ring.len() as u64);
        if let Some(slot) = at.and_then(|at| self.ring.get_mut(at as usize)) {
            *slot = Some(operation());
            self.next += 1;
        }
    }

    /// A request was refused, and why.
    #[cold]
    pub(crate) fn refused(&mut self, why: PostError, operation: impl FnOnce() -> Built) {
        self.count_refused();
        self.keep(|| Built { fate: Fate::Refused(why), ..operation() });
    }

    /// A receive was posted: it needs no doorbell.
    pub(crate) fn posted_recv(&mut self, operation: impl FnOnce() -> Built) {
        self.counts[0][RECV].requests += 1;
        self.counts[1][RECV] = self.counts[0][RECV];
        self.keep(operation);
    }

    /// Everything built was rung.
    #[inline]
    pub(crate) fn rung(&mut self) {
        self.counts[1] = self.counts[0];
        self.doorbells += 1;
        self.rung = self.next;
    }

    /// Everything built since the last ring was forgotten.
    pub(crate) fn discarded(&mut self) {
        self.counts[0] = self.counts[1];
        let len = self.ring.len() as u64;
        for n in self.rung.max(self.next.saturating_sub(len))..self.next {
            if let Some(Some(built)) = self.ring.get_mut((n % len) as usize)
                && built.fate == Fate::Built
                && usize::from(built.kind) != RECV
            {
                built.fate = Fate::Discarded;
            }
        }
        self.rung = self.next;
    }

    /// The operations kept, oldest first, and whether the device knows of each.
    pub(super) fn kept(&self) -> impl Iterator<Item = (Built, bool)> {
        let len = self.ring.len() as u64;
        let all = self.next.saturating_sub(len)..self.next;
        all.filter_map(move |n| {
            let built = (*self.ring.get((n % len) as usize)?)?;
            Some((built, n < self.rung || usize::from(built.kind) == RECV))
        })
    }

    pub(super) fn forgotten(&self) -> u64 {
        self.next.saturating_sub(self.ring.len() as u64)
    }

    pub(super) fn counters(&self) -> Counters {
        let [put, put_with_imm, get, send, send_with_imm, compare_swap, fetch_add, recv] = self.counts[1];
        let (doorbells, refused) = (self.doorbells, self.refused);
        Counters {
            put,
            put_with_imm,
            get,
            send,
            send_with_imm,
            compare_swap,
            fetch_add,
            recv,
            doorbells,
            refused,
            ..Counters::default()
        }
    }
}
