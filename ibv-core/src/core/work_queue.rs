//! The poster's side of one work queue: what is built, what is published, what there is room for.

use super::Route;
use crate::{
    error::{PostError, WorkRequestError},
    wr::{SEQ_BITS, SEQ_MASK, WrIds},
};
use std::{mem, sync::Arc};

/// Owned by the one poster. Counters only grow; 2^64 requests never happen.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    /// Requests built so far; the next one's sequence number.
    built: u64,
    /// Of those, published; so far off where the next ring must fail that it differs from `built` by more
    /// than any queue holds.
    published: u64,
    /// `built` may grow to here before [`refresh`](Self::refresh) looks again. 0 while closed, so that
    /// the check which has to happen anyway is also the check for "not connected"; and never past the
    /// point where the sequence number wraps, so that it is also the check for that.
    limit: u64,
    /// The last run of unsignaled requests. A signaled request, the common one, ends it without a store: the
    /// run is then no longer at the end of the queue.
    silent: Run,
    /// What `silent` was when so many requests were published, before an unsignaled one was built behind them:
    /// likewise without a store for signaled ones.
    before: (u64, Run),
    open: bool,
    /// A half-built transfer was thrown away, so the next ring must fail, and this is why.
    void: Option<PostError>,
    slot: u16,
    /// The id of request number `n` is `base + n`, as long as `n` is below `limit`.
    base: u64,
    route: Arc<Route>,
}

/// More requests than ever are. It marks a queue whose next ring must fail, so that what a ring compares
/// anyway tells.
const VOID: u64 = 1 << 63;

/// Consecutive requests, by number.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    start: u64,
    end: u64,
}

impl Run {
    /// How many of them are the last ones before `end`.
    fn at_end(self, end: u64) -> u64 {
        if self.end == end { end - self.start } else { 0 }
    }

    #[inline]
    fn extend(&mut self, from: u64, to: u64) {
        if self.end != from {
            self.start = from;
        }
        self.end = to;
    }
}

impl WorkQueue {
    /// A queue that refuses every request until [`admit`](Self::admit).
    pub(crate) fn new(slot: u16, route: Arc<Route>) -> Self {
        route.place(slot);
        let (silent, before) = (Run::default(), (u64::MAX, Run::default()));
        Self {
            built: 0,
            published: 0,
            limit: 0,
            silent,
            before,
            open: false,
            void: None,
            slot,
            base: 0,
            route,
        }
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
        self.route.owner()
    }

    pub(crate) fn depth(&self) -> u32 {
        self.route.depth
    }

    /// The id of the next request, if there is room that needs no second look.
    #[inline]
    pub(crate) fn peek(&self) -> Option<u64> {
        (self.built < self.limit).then(|| self.base.wrapping_add(self.built))
    }

    /// The same for a request that reports no success: if the queue may have one, and the run that it makes
    /// longer stays shorter than the queue.
    #[inline(always)]
    pub(crate) fn peek_silent(&self) -> Option<u64> {
        let fits = self.route.in_order && self.silent.at_end(self.built) + 1 < u64::from(self.route.depth);
        self.peek().filter(|_| fits)
    }

    /// [`peek`](Self::peek), with the second look, for a signaled request.
    pub(crate) fn look_again(&mut self) -> Option<u64> {
        self.refresh(self.built + 1).ok()?;
        self.peek()
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
        let silent = self.silent.at_end(self.built) + u64::from(count);
        if !signaled && silent >= u64::from(self.route.depth) {
            return Err(PostError::NeedsSignal);
        }
        Ok(WrIds { first: self.base.wrapping_add(self.built), count })
    }

    #[inline(always)]
    pub(crate) fn advance(&mut self, count: u32, signaled: bool) {
        let end = self.built + u64::from(count);
        if !signaled {
            let posted = self.posted();
            if self.before.0 != posted {
                self.before = (posted, self.silent);
            }
            self.silent.extend(self.built, end);
        }
        self.built = end;
    }

    #[cold]
    fn refresh(&mut self, end: u64) -> Result<(), PostError> {
        if !self.open {
            return Err(PostError::NotConnected);
        }
        let retired = self.retired();
        let room = retired + u64::from(self.route.depth);
        let laps = self.built & !SEQ_MASK;
        self.base = (u64::from(self.slot) << SEQ_BITS).wrapping_sub(laps);
        self.limit = room.min(laps.saturating_add(SEQ_MASK + 1));
        match end > room {
            true if self.waits_for_silence(retired) => Err(PostError::NeedsSignal),
            true => Err(PostError::QueueFull),
            false => Ok(()),
        }
    }

    /// Whether all that is in flight or built is unsignaled, so that no completion will ever make room.
    fn waits_for_silence(&self, retired: u64) -> bool {
        let silent = self.silent.at_end(self.built);
        silent > 0 && self.built.saturating_sub(silent) <= retired
    }

    /// Gives back everything built since the last ring. `why` makes the next ring fail.
    pub(crate) fn forget(&mut self, why: Option<PostError>) {
        self.built = self.posted();
        self.published = if why.is_some() { self.built ^ VOID } else { self.built };
        // The sequence number may have wrapped since, and `base` with it.
        self.limit = 0;
        self.silent = self.silent_before();
        self.void = why;
    }

    /// The last run of unsignaled requests among those published.
    fn silent_before(&self) -> Run {
        if self.before.0 == self.posted() { self.before.1 } else { self.silent }
    }

    /// Requests known to be finished; more than were built only where the provider invents completions.
    fn retired(&self) -> u64 {
        // In flight there are at most 2^32, so what is between the two fits the sequence number, with its sign.
        const ABOVE: u32 = u64::BITS - SEQ_BITS;
        let behind = (self.built.wrapping_sub(self.route.retired()) << ABOVE) as i64 >> ABOVE;
        self.built.wrapping_add_signed(-behind)
    }

    /// Requests published so far.
    pub(crate) fn posted(&self) -> u64 {
        if self.void.is_some() { self.published ^ VOID } else { self.published }
    }

    /// Whether a ring has anything to do, be it to fail.
    #[inline]
    pub(crate) fn dirty(&self) -> bool {
        self.built != self.published
    }

    /// Why the next ring must fail.
    #[inline]
    pub(crate) fn void(&self) -> Option<PostError> {
        if self.built.wrapping_sub(self.published) < VOID { None } else { self.void }
    }

    /// Everything built is about to become visible to the device.
    #[inline]
    pub(crate) fn tell(&self) {
        self.route.tell(self.built);
    }

    /// The same, and one request more.
    #[inline]
    pub(crate) fn tell_one_more(&self) {
        self.route.tell(self.built + 1);
    }

    /// Everything built becomes visible to the device. What [`uncommit`](Self::uncommit) takes if it did not.
    #[inline]
    pub(crate) fn commit(&mut self) -> u64 {
        mem::replace(&mut self.published, self.built)
    }

    /// Nothing became visible since.
    pub(crate) fn uncommit(&mut self, before: u64) {
        self.published = before;
    }

    pub(crate) fn free(&self) -> u32 {
        self.depth().saturating_sub(self.built.saturating_sub(self.retired()) as u32)
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.posted().saturating_sub(self.retired()) as u32
    }

    /// The last published request will not report itself if it succeeded.
    pub(crate) fn ends_silent(&self) -> bool {
        self.silent_before().at_end(self.posted()) > 0
    }

    /// Whether the request of this id, one of this queue's, is known to be finished. Says nothing where
    /// completions come in any order.
    #[cfg(feature = "recorder")]
    pub(crate) fn has_retired(&self, wr_id: u64) -> bool {
        let mine = (wr_id >> SEQ_BITS) as u16 == self.slot;
        let behind = self.route.retired().wrapping_sub(wr_id).wrapping_sub(1) & SEQ_MASK;
        mine && self.route.in_order && behind < SEQ_MASK / 2
    }

    #[cfg(feature = "recorder")]
    pub(crate) fn log(&self) -> &crate::recorder::PollerLog {
        &self.route.log
    }

    /// What failed first was of a connection that is over.
    pub(crate) fn forgive(&mut self) {
        self.route.forgive();
    }

    pub(crate) fn first_error(&self) -> Option<WorkRequestError> {
        self.route.first_error()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
