//! The poller's side of one work queue: how many of its requests are finished, and what failed first.

#[cfg(feature = "recorder")]
use crate::recorder::PollerLog;
use crate::{
    error::{WcStatus, WorkRequestError},
    sync::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    wc::IbvWc,
    wr::SEQ_MASK,
};
use std::sync::{Arc, OnceLock};

/// The queue pair that two routes belong to.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) id: u64,
    /// The first failure on either side; with two pollers, the one that was polled first.
    first_error: OnceLock<WorkRequestError>,
    /// Completions that each route's recorder keeps.
    #[cfg(feature = "recorder")]
    keep: u32,
}

impl Owner {
    pub(crate) fn new(id: u64, _keep: u32) -> Self {
        Self {
            id,
            first_error: OnceLock::new(),
            #[cfg(feature = "recorder")]
            keep: _keep,
        }
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
    /// Requests known to be finished. Written by the poller alone.
    retired: AtomicU64,
    /// Requests that the device was told of. Written by the poster alone, before it tells.
    told: Line,
    #[cfg(feature = "recorder")]
    pub(crate) log: PollerLog,
}

/// A counter on a cache line of its own: the other side's counter is written as often.
#[derive(Debug)]
#[repr(align(64))]
struct Line(AtomicU64);

impl Route {
    pub(crate) fn new(owner: Arc<Owner>, depth: u32, in_order: bool) -> Self {
        let window = if in_order { u64::from(depth) } else { 0 };
        let (retired, told) = (AtomicU64::new(0), Line(AtomicU64::new(0)));
        #[cfg(feature = "recorder")]
        let log = PollerLog::new(owner.keep);
        Self {
            owner,
            depth,
            in_order,
            window,
            retired,
            told,
            #[cfg(feature = "recorder")]
            log,
        }
    }

    /// The route of a slot that has none: it retires nothing.
    pub(crate) fn nobody() -> Self {
        Self::new(Arc::new(Owner::new(0, 0)), 0, true)
    }

    /// Returns the credits that `wc` proves free; false if it answers no request in flight. Called by
    /// the one poller of the queue.
    #[inline]
    pub(crate) fn retire(&self, wc: &IbvWc) -> bool {
        let retired = self.retired.load(Relaxed);
        let mut ahead = wc.wr_id.wrapping_sub(retired) & SEQ_MASK;
        if ahead >= self.window {
            if self.in_order || retired >= self.told.0.load(Acquire) {
                return false;
            }
            // Receives are never in order.
            #[cfg(feature = "recorder")]
            self.log.received(wc);
            ahead = 0;
        }
        #[cfg(feature = "recorder")]
        self.log.polled(wc);
        self.retired.store(retired + ahead + 1, Release);
        if wc.status != WcStatus::SUCCESS {
            self.note(wc);
        }
        true
    }

    /// As if `count` requests had come and gone.
    #[cfg(all(test, not(loom)))]
    pub(super) fn start_at(&self, count: u64) {
        self.retired.store(count, Release);
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
            let _ = self.owner.first_error.set(e);
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

    pub(super) fn retired(&self) -> u64 {
        self.retired.load(Acquire)
    }

    pub(super) fn first_error(&self) -> Option<WorkRequestError> {
        self.owner.first_error.get().copied()
    }
}
