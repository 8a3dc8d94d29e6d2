//! The poller's side of one work queue: how many of its requests are finished, and what failed first.

use crate::{
    error::{PollCompletionError, WcStatus, WorkRequestError},
    wc::IbvWc,
    wr::SEQ_MASK,
};
use std::sync::{
    OnceLock,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Shared by one poster, which reads, and one poller at a time, which writes.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) owner: u64,
    pub(crate) depth: u32,
    /// A completion also stands for every earlier request. False where each one reports itself.
    pub(super) in_order: bool,
    /// Requests known to be finished. Written by the poller alone.
    retired: AtomicU64,
    first_error: OnceLock<WorkRequestError>,
}

impl Route {
    pub(crate) fn new(owner: u64, depth: u32, in_order: bool) -> Self {
        Self { owner, depth, in_order, retired: AtomicU64::new(0), first_error: OnceLock::new() }
    }

    /// Returns the credits that `wc` proves free. Called by the one poller of the queue.
    #[inline]
    pub(crate) fn retire(&self, wc: &IbvWc) -> Result<(), PollCompletionError> {
        let retired = self.retired.load(Relaxed);
        let ahead = wc.wr_id.wrapping_sub(retired) & SEQ_MASK;
        if self.in_order {
            if ahead >= u64::from(self.depth) {
                return Err(PollCompletionError::Corrupt(wc.wr_id));
            }
            self.retired.store(retired + ahead + 1, Release);
        } else {
            self.retired.store(retired + 1, Release);
        }
        if wc.status != WcStatus::SUCCESS {
            self.note(wc);
        }
        Ok(())
    }

    #[cold]
    fn note(&self, wc: &IbvWc) {
        if let Err(e) = wc.result()
            && !e.is_wr_flush_err()
        {
            let _ = self.first_error.set(e);
        }
    }

    pub(super) fn retired(&self) -> u64 {
        self.retired.load(Acquire)
    }

    pub(super) fn first_error(&self) -> Option<WorkRequestError> {
        self.first_error.get().copied()
    }
}
