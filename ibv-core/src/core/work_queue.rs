//! The poster's side of one work queue: what is built, what is published, what there is room for.

use super::Route;
use crate::{
    error::{PostError, WorkRequestError},
    wr::{SEQ_BITS, SEQ_MASK, WrIds},
};
use std::sync::Arc;

/// Owned by the one poster. Counters only grow; 2^64 requests never happen.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    /// Requests built so far; the next one's sequence number.
    built: u64,
    /// Of those, published.
    posted: u64,
    /// `built` may grow to here before `retired` is read again. 0 while closed, so that the check which
    /// has to happen anyway is also the check for "not connected".
    limit: u64,
    /// One past the last signaled request, built and published.
    signaled: [u64; 2],
    open: bool,
    /// A half-built transfer was thrown away, so the next ring must fail.
    void: Option<PostError>,
    slot: u16,
    /// `slot`, where a `wr_id` has it.
    base: u64,
    route: Arc<Route>,
}

impl WorkQueue {
    /// A queue that refuses every request until [`admit`](Self::admit).
    pub(crate) fn new(slot: u16, route: Arc<Route>) -> Self {
        let base = u64::from(slot) << SEQ_BITS;
        Self { built: 0, posted: 0, limit: 0, signaled: [0; 2], open: false, void: None, slot, base, route }
    }

    pub(crate) fn open(slot: u16, route: Arc<Route>) -> Self {
        let mut queue = Self::new(slot, route);
        queue.admit();
        queue
    }

    pub(crate) fn admit(&mut self) {
        self.open = true;
    }

    pub(crate) fn refuse(&mut self) {
        (self.open, self.limit) = (false, 0);
    }

    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    pub(crate) fn owner(&self) -> u64 {
        self.route.owner
    }

    pub(crate) fn depth(&self) -> u32 {
        self.route.depth
    }

    /// The ids of the next `count` requests, if there is room. Changes nothing: `advance` does, once
    /// the provider has built them.
    #[inline]
    pub(crate) fn reserve(&mut self, count: u32, signaled: bool) -> Result<WrIds, PostError> {
        let end = self.built + u64::from(count);
        if end > self.limit {
            self.refresh(end)?;
        }
        if !signaled && !self.route.in_order {
            return Err(PostError::Unsupported);
        }
        if !signaled && end - self.signaled[0] >= u64::from(self.route.depth) {
            return Err(PostError::NeedsSignal);
        }
        Ok(WrIds { first: self.base | self.built & SEQ_MASK, count })
    }

    #[inline]
    pub(crate) fn advance(&mut self, count: u32, signaled: bool) {
        self.built += u64::from(count);
        if signaled {
            self.signaled[0] = self.built;
        }
    }

    #[cold]
    fn refresh(&mut self, end: u64) -> Result<(), PostError> {
        if !self.open {
            return Err(PostError::NotConnected);
        }
        self.limit = self.route.retired() + u64::from(self.route.depth);
        if end > self.limit { Err(PostError::QueueFull) } else { Ok(()) }
    }

    /// Gives back everything built since the last ring. `why` makes the next ring fail.
    #[inline]
    pub(crate) fn forget(&mut self, why: Option<PostError>) {
        self.built = self.posted;
        self.signaled[0] = self.signaled[1];
        self.void = why;
    }

    #[inline]
    pub(crate) fn dirty(&self) -> bool {
        self.built != self.posted || self.void.is_some()
    }

    #[inline]
    pub(crate) fn take_void(&mut self) -> Option<PostError> {
        self.void.take()
    }

    #[inline]
    pub(crate) fn commit(&mut self) {
        self.posted = self.built;
        self.signaled[1] = self.signaled[0];
    }

    pub(crate) fn free(&self) -> u32 {
        self.depth().saturating_sub(self.built.saturating_sub(self.route.retired()) as u32)
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.posted.saturating_sub(self.route.retired()) as u32
    }

    /// The last published request will not report itself if it succeeded.
    pub(crate) fn ends_silent(&self) -> bool {
        self.signaled[1] != self.posted
    }

    pub(crate) fn first_error(&self) -> Option<WorkRequestError> {
        self.route.first_error()
    }
}
