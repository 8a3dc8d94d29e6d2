//! The poller's side of one work queue: how many of its requests are finished, and what failed first.

#[cfg(feature = "recorder")]
use crate::recorder::PollerLog;
use crate::{
    error::{WcStatus, WorkRequestError},
    sync::{
        AtomicU64, Mutex, MutexGuard,
        Ordering::{Acquire, Relaxed, Release},
    },
    wc::IbvWc,
    wr::{SEQ_BITS, SEQ_MASK},
};
use std::sync::{Arc, PoisonError};

/// The queue pair that two routes belong to.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) id: u64,
    /// The first failure on either side; with two pollers, the one that was polled first.
    first_error: Mutex<Option<WorkRequestError>>,
    /// Completions that each route's recorder keeps.
    #[cfg(feature = "recorder")]
    keep: u32,
}

impl Owner {
    pub(crate) fn new(id: u64, _keep: u32) -> Self {
        Self {
            id,
            first_error: Mutex::new(None),
            #[cfg(feature = "recorder")]
            keep: _keep,
        }
    }

    fn first_error(&self) -> MutexGuard<'_, Option<WorkRequestError>> {
        self.first_error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shared by one poster, which reads, and one poller at a time, which writes.
#[derive(Debug)]
pub(crate) struct Route {
    owner: Arc<Owner>,
    pub(crate) depth: u32,
    /// A completion also stands for every earlier request. False where each one reports itself.
    pub(super) in_order: bool,
    /// How far ahead of `retired` a completion can be: the depth, or 0 where that says nothing.
    window: u64,
    /// In order: the id of the first request that is not known to be finished, route and all, so that one
    /// comparison tells whether a completion is of this route and in flight. Where the sequence number has just
    /// wrapped, it names the slot behind, which is empty. In no order: how many requests are known to be finished,
    /// to be compared with `told`. Written by the poller alone.
    next: AtomicU64,
    /// The top of this route's ids, where completions are in no order; else none that an id has. Written before
    /// anything is told.
    slot: AtomicU64,
    /// Requests that the device was told of. Written by the poster alone, before it tells.
    told: Line,
    #[cfg(feature = "recorder")]
    pub(crate) log: PollerLog,
}

/// A counter on a cache line of its own: the other side's counter is written as often.
#[derive(Debug)]
#[repr(align(64))]
struct Line(AtomicU64);

/// The slot of a route that is not asked by its slot: no id has it.
const NO_SLOT: u64 = u64::MAX;

impl Route {
    pub(crate) fn new(owner: Arc<Owner>, depth: u32, in_order: bool) -> Self {
        let window = if in_order { u64::from(depth) } else { 0 };
        let (next, slot, told) = (AtomicU64::new(0), AtomicU64::new(NO_SLOT), Line(AtomicU64::new(0)));
        #[cfg(feature = "recorder")]
        let log = PollerLog::new(owner.keep);
        Self {
            owner,
            depth,
            in_order,
            window,
            next,
            slot,
            told,
            #[cfg(feature = "recorder")]
            log,
        }
    }

    /// The route of a slot that has none: it retires nothing.
    pub(crate) fn nobody() -> Self {
        Self::new(Arc::new(Owner::new(0, 0)), 0, true)
    }

    /// Whether it takes completions by comparing ids with `next`. Such a route may answer, for a moment in 2^48
    /// requests, to the first ids of the slot behind its own, so nobody else gets that one.
    pub(crate) fn counts_ahead(&self) -> bool {
        self.window > 0
    }

    /// Puts the route into its slot, before anything is posted.
    pub(super) fn place(&self, slot: u16) {
        if self.in_order {
            self.next.store(u64::from(slot) << SEQ_BITS | self.retired(), Relaxed);
        } else {
            self.slot.store(slot.into(), Relaxed);
        }
    }

    /// Returns the credits that `wc` proves free; false if it answers no request in flight. Called by
    /// the one poller of the queue, and for completions of this route's slot.
    pub(crate) fn retire(&self, wc: &IbvWc) -> bool {
        let next = self.next.load(Relaxed);
        let done = if self.in_order {
            let ahead = wc.wr_id.wrapping_sub(next) & SEQ_MASK;
            if ahead >= self.window {
                return false;
            }
            wc.wr_id & !SEQ_MASK | next.wrapping_add(ahead + 1) & SEQ_MASK
        } else {
            if next >= self.told.0.load(Acquire) {
                return false;
            }
            // Receives are never in order.
            #[cfg(feature = "recorder")]
            self.log.received(wc);
            next + 1
        };
        #[cfg(feature = "recorder")]
        self.log.polled(wc);
        self.next.store(done, Release);
        if wc.status != WcStatus::SUCCESS {
            self.note(wc);
        }
        true
    }

    /// `retire`, for the success of a request in order; false for whatever else, which `retire` judges.
    #[inline(always)]
    pub(crate) fn retire_plain(&self, wc: &IbvWc) -> bool {
        let next = self.next.load(Relaxed);
        if wc.wr_id.wrapping_sub(next) >= self.window || wc.status != WcStatus::SUCCESS {
            return false;
        }
        #[cfg(feature = "recorder")]
        self.log.polled(wc);
        self.next.store(wc.wr_id.wrapping_add(1), Release);
        true
    }

    /// `retire`, for the success of a request of this route where completions are in no order; false for whatever
    /// else, which `retire` judges.
    #[inline(always)]
    pub(crate) fn retire_loose_one(&self, wc: &IbvWc) -> bool {
        let (slot, success, next) = (wc.wr_id >> SEQ_BITS, wc.is_valid(), self.next.load(Relaxed));
        if !success || next >= self.told.0.load(Acquire) || slot != self.slot.load(Relaxed) {
            return false;
        }
        #[cfg(feature = "recorder")]
        {
            self.log.received(wc);
            self.log.polled(wc);
        }
        self.next.store(next + 1, Release);
        true
    }

    /// `retire_plain`, for as many from the front of `wcs` as it answers true for: how many. It may stop where
    /// the sequence number wraps.
    #[inline(always)]
    pub(crate) fn retire_run(&self, wcs: &[IbvWc]) -> usize {
        let Some(first) = wcs.first() else { return 0 };
        let (mut next, mut taken, mut odd) = (self.next.load(Relaxed), 0, 0);
        for wc in wcs {
            if wc.wr_id.wrapping_sub(next) >= self.window {
                break;
            }
            (next, taken) = (wc.wr_id.wrapping_add(1), taken + 1);
            odd |= u64::from(wc.status.0);
        }
        // Ids that go on in the slot behind are nobody's.
        odd |= (next.wrapping_sub(1) ^ first.wr_id) >> SEQ_BITS;
        match (taken, odd) {
            (0, _) => return 0,
            (_, 0) => {}
            _ => return self.retire_front(wcs),
        }
        #[cfg(feature = "recorder")]
        wcs[..taken].iter().for_each(|wc| self.log.polled(wc));
        self.next.store(next, Release);
        taken
    }

    /// `retire`, for the successes at the front of `wcs` where completions are in no order, and never for more of
    /// them than there are requests in flight: how many.
    #[inline(always)]
    pub(crate) fn retire_loose(&self, wcs: &[IbvWc]) -> usize {
        if self.in_order {
            return 0;
        }
        let next = self.next.load(Relaxed);
        let in_flight = self.told.0.load(Acquire).saturating_sub(next);
        let most = wcs.len().min(usize::try_from(in_flight).unwrap_or(usize::MAX));
        let slot = self.slot.load(Relaxed);
        // Mostly all of them are.
        let (ids, success) = IbvWc::differing(&wcs[..most], slot << SEQ_BITS);
        let taken = if ids >> SEQ_BITS == 0 && success {
            most
        } else {
            let ours = |wc: &&IbvWc| wc.wr_id >> SEQ_BITS == slot && wc.is_valid();
            wcs[..most].iter().take_while(ours).count()
        };
        #[cfg(feature = "recorder")]
        for wc in &wcs[..taken] {
            self.log.received(wc);
            self.log.polled(wc);
        }
        self.next.store(next + taken as u64, Release);
        taken
    }

    /// `retire_run`, or `retire_loose`.
    #[inline(always)]
    pub(crate) fn retire_many(&self, wcs: &[IbvWc]) -> usize {
        match self.retire_run(wcs) {
            0 => self.retire_loose(wcs),
            run => run,
        }
    }

    /// [`retire_run`](Self::retire_run) one by one, up to the first that is odd.
    #[cold]
    #[inline(never)]
    fn retire_front(&self, wcs: &[IbvWc]) -> usize {
        let mine = |wc: &&IbvWc| (wc.wr_id ^ wcs[0].wr_id) >> SEQ_BITS == 0 && self.retire_plain(wc);
        wcs.iter().take_while(mine).count()
    }

    /// As if `count` requests had come and gone.
    #[cfg(all(test, not(loom)))]
    pub(super) fn start_at(&self, count: u64) {
        self.next.store(if self.in_order { count & SEQ_MASK } else { count }, Release);
        self.tell(count);
    }

    pub(crate) fn owner(&self) -> u64 {
        self.owner.id
    }

    #[cold]
    fn note(&self, wc: &IbvWc) {
        #[cfg(feature = "recorder")]
        self.log.failed(wc);
        if let Err(e) = wc.result()
            && !e.is_wr_flush_err()
        {
            self.owner.first_error().get_or_insert(e);
        }
    }

    /// Announces that requests up to `count` are about to be rung, so that more completions than
    /// requests are noticed where their order says nothing.
    #[inline]
    pub(super) fn tell(&self, count: u64) {
        self.told.0.store(count, Release);
    }

    /// Whether the device was never told of any request.
    pub(crate) fn is_unused(&self) -> bool {
        self.told.0.load(Acquire) == 0
    }

    /// Requests known to be finished, as far as a sequence number counts.
    pub(super) fn retired(&self) -> u64 {
        self.next.load(Acquire) & SEQ_MASK
    }

    pub(super) fn first_error(&self) -> Option<WorkRequestError> {
        *self.owner.first_error()
    }

    pub(super) fn forgive(&self) {
        *self.owner.first_error() = None;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn completions_in_no_order_return_as_many_credits_as_there_are_requests() {
        let route = Route::new(Arc::new(Owner::new(1, 0)), 8, false);
        route.place(3);
        route.tell(5);
        let wc = |slot: u64, seq| IbvWc { wr_id: slot << SEQ_BITS | seq, ..IbvWc::default() };
        let mut wcs = [wc(3, 4), wc(3, 0), wc(3, 2), wc(2, 1), wc(3, 1)];
        assert_eq!((route.retire_loose(&wcs), route.retired()), (3, 3), "up to another route's");
        wcs[1].status = WcStatus::WR_FLUSH_ERR;
        assert_eq!((route.retire_loose(&wcs[..3]), route.retired()), (1, 4), "up to a failure");
        assert_eq!((route.retire_loose(&[wc(3, 3); 4]), route.retired()), (1, 5), "five were told of");
        assert_eq!(route.retire_loose(&[wc(3, 3)]), 0);
        let ordered = Route::new(Arc::new(Owner::new(1, 0)), 8, true);
        ordered.tell(5);
        assert_eq!(ordered.retire_loose(&[wc(0, 0)]), 0, "has a way of its own");
    }
}
