//! A shared completion queue and its one poller.
//!
//! The exclusive half (`I::Poller`, a few words) lives in a `Mutex<Option<_>>` while nobody polls.
//! Claiming moves it out, dropping the claim moves it back: a lock at each hand-over, none at a poll.
//! A forgotten poller leaves the slot empty for good, so the queue is unpollable but
//! nothing is aliased.
//!
//! Routes: see `core.rs`. A route that closes keeps its slot and its share of the depth until the
//! queue has been seen empty after the close; only then can no stale completion name it. (One that never
//! posted needs no such proof.)
#![allow(unsafe_code)]
//! # Safety
//! The one block moves the exclusive half out of a poller that is being dropped, so that no poll has to ask
//! whether it is there.

use crate::{
    core::Route,
    domain::{DomainShared, IbvDomain},
    error::{Error, ErrorKind, PollCompletionError},
    provider::{CompletionQueue, CqConfig, Glance, IbvDomainImpl},
    sync::{
        AtomicU64, Mutex, MutexGuard,
        Ordering::{Acquire, Relaxed, Release},
    },
    wc::IbvWc,
    wr::SEQ_BITS,
};
use std::{
    fmt,
    mem::{self, ManuallyDrop},
    os::fd::BorrowedFd,
    process, slice,
    sync::{Arc, PoisonError},
};

/// A completion queue. Any number of queue pairs may report to it; one [`Poller`] consumes it.
#[derive(Debug)]
pub struct IbvCq<I: IbvDomainImpl> {
    /// `None` while claimed. Before `cq`: a poller drops before its queue.
    parked: Mutex<Option<I::Poller>>,
    cq: I::Cq,
    routes: Mutex<Routes>,
    /// Counts closed routes, so that a poller sees with one load that there is something to reap.
    closes: AtomicU64,
    config: CqConfig,
    /// The process that made it. In a forked child another thread of the parent may hold a lock for ever, so
    /// what drops there is left as it is.
    home: u32,
    domain: Arc<DomainShared<I>>,
}

#[derive(Debug, Default)]
struct Routes {
    slots: Vec<Slot>,
    /// The queue pair whose `poll_completion` holds the poller; nobody else may attach meanwhile.
    sole: Option<u64>,
}

#[derive(Debug, Default)]
struct Slot {
    route: Option<Arc<Route>>,
    /// The value of `closes` that closed it.
    closed: Option<u64>,
}

/// The slot of the route that a completion names.
#[inline]
fn slot_of(wc: &IbvWc) -> u16 {
    (wc.wr_id >> SEQ_BITS) as u16
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<I: IbvDomainImpl> IbvCq<I> {
    pub(crate) fn new(domain: Arc<DomainShared<I>>, config: CqConfig) -> Result<Self, Error> {
        let (cq, poller) = domain.imp.create_cq(&config)?;
        let (parked, routes) = (Mutex::new(Some(poller)), Mutex::default());
        Ok(Self { parked, cq, routes, closes: AtomicU64::new(0), config, home: process::id(), domain })
    }

    /// Completions it holds. Queue pairs reserve their share of it when created.
    pub fn depth(&self) -> u32 {
        self.config.depth
    }

    pub(crate) fn imp(&self) -> &I::Cq {
        &self.cq
    }

    pub(crate) fn is_of(&self, domain: &IbvDomain<I>) -> bool {
        std::ptr::eq(&self.domain.imp, domain.imp())
    }

    /// Claims the right to poll, until the poller drops.
    ///
    /// # Errors
    /// `InUse` while somebody else has it.
    pub fn poller(self: &Arc<Self>) -> Result<Poller<I>, Error> {
        self.claim(None).map_err(|e| Error::new(ErrorKind::InUse, "poller", e.to_string()))
    }

    fn claim(self: &Arc<Self>, sole: Option<u64>) -> Result<Poller<I>, PollCompletionError> {
        let mut routes = lock(&self.routes);
        if sole.is_some_and(|me| routes.live().any(|r| r.owner() != me)) {
            return Err(PollCompletionError::Shared);
        }
        let imp = lock(&self.parked).take().ok_or(PollCompletionError::Claimed)?;
        routes.sole = sole;
        let (imp, table, last) = (ManuallyDrop::new(imp), routes.table(), Arc::new(Route::nobody()));
        Ok(Poller { imp, last, table, strange: 0, reaped: 0, took_nothing: false, cq: self.clone() })
    }

    /// Gives `route` a slot and its share of the depth.
    pub(crate) fn attach(&self, route: &Arc<Route>) -> Result<u16, Error> {
        let fail = |kind, detail: String| Err(Error::new(kind, "create_qp", detail));
        let mut routes = lock(&self.routes);
        if routes.sole.is_some() {
            let detail = "the completion queue is polled by another queue pair's poll_completion; give each its own, or poll through IbvCq::poller";
            return fail(ErrorKind::InUse, detail.into());
        }
        let (reserved, depth) = (routes.reserved(), u64::from(self.config.depth));
        if reserved + u64::from(route.depth) > depth {
            let detail = format!(
                "the completion queue has {depth} entries, {reserved} of them reserved, and this work queue needs {}; make it deeper",
                route.depth
            );
            return fail(ErrorKind::OutOfResources, detail);
        }
        let free = routes.free_slot(route);
        let Ok(slot) = u16::try_from(free) else {
            let detail = "so many work queues report to this completion queue that ids run out; use another";
            return fail(ErrorKind::OutOfResources, detail.into());
        };
        if free >= routes.slots.len() {
            routes.slots.resize_with(free + 1, Slot::default);
        }
        routes.slots[free] = Slot { route: Some(route.clone()), closed: None };
        Ok(slot)
    }
}

impl Routes {
    fn live(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.slots.iter().filter(|s| s.closed.is_none()).flat_map(|s| &s.route)
    }
    /// Entries set aside, for the dead too until they are reaped.
    fn reserved(&self) -> u64 {
        self.slots.iter().flat_map(|s| &s.route).map(|r| u64::from(r.depth)).sum()
    }
    /// The first slot for `route`, which does not have to be there yet, and may be one too many. The one behind a
    /// route that counts ahead stays empty: see [`Route::counts_ahead`].
    fn free_slot(&self, route: &Route) -> usize {
        let at = |slot: usize| self.slots.get(slot)?.route.as_ref();
        let behind = |slot: usize| slot.checked_sub(1).and_then(at).is_some_and(|r| r.counts_ahead());
        let room = |slot: usize| at(slot).is_none() && !behind(slot);
        match route.counts_ahead() {
            // What is behind the last of all is the first.
            true => (0..usize::from(u16::MAX)).find(|s| room(*s) && at(s + 1).is_none()),
            false => (0..=usize::from(u16::MAX)).find(|s| room(*s)),
        }
        .unwrap_or(usize::MAX)
    }
    /// What a poller looks up: a route for each slot, one that answers nothing for those without.
    fn table(&self) -> Vec<Arc<Route>> {
        let nobody = Arc::new(Route::nobody());
        let route = |slot: &Slot| slot.route.as_ref().unwrap_or(&nobody).clone();
        self.slots.iter().map(route).collect()
    }
}

/// `IbvCq<I>` without its `I`, for the queue pair that keeps it alive.
pub(crate) trait CqHandle: fmt::Debug + Send + Sync {
    fn close_route(&self, slot: u16);
    fn claim_sole(self: Arc<Self>, owner: u64) -> Result<Box<dyn CompletionQueue>, PollCompletionError>;
}

impl<I: IbvDomainImpl> CqHandle for IbvCq<I> {
    fn close_route(&self, slot: u16) {
        if process::id() != self.home {
            return;
        }
        let mut routes = lock(&self.routes);
        let Some(slot) = routes.slots.get_mut(usize::from(slot)) else { return };
        // A queue pair that failed to be made leaves nothing behind: no completion names a route on which
        // nothing was posted, and while nobody polls nobody has it in a table.
        let unused = slot.route.as_ref().is_some_and(|route| route.is_unused());
        if unused && lock(&self.parked).is_some() {
            *slot = Slot::default();
            return;
        }
        slot.closed = Some(self.closes.fetch_add(1, Release) + 1);
    }
    fn claim_sole(self: Arc<Self>, owner: u64) -> Result<Box<dyn CompletionQueue>, PollCompletionError> {
        Ok(Box::new(self.claim(Some(owner))?))
    }
}

/// The right to poll one queue. `Send`, so a thread can own it; not `Clone`.
#[derive(Debug)]
pub struct Poller<I: IbvDomainImpl> {
    imp: ManuallyDrop<I::Poller>,
    /// The route that completions mostly name, at the moment.
    last: Arc<Route>,
    /// The slot of the last completion that was of another route.
    strange: u16,
    /// This poller's copy of the routes; refreshed when a completion names one it has not met.
    table: Vec<Arc<Route>>,
    reaped: u64,
    /// Tells [`poll_rare`](Self::poll_rare) why it is called: an argument would cost the common case.
    took_nothing: bool,
    cq: Arc<IbvCq<I>>,
}

impl<I: IbvDomainImpl> Poller<I> {
    /// Takes up to `out.len()` completions and returns their credits. Neither allocates nor locks,
    /// but for the first completion of a new queue pair and the first empty poll after one closed.
    ///
    /// # Errors
    /// See [`PollCompletionError`]; `Corrupt` and `Device` mean that the queue's queue pairs are dead.
    // A caller that polls one at a time, or nothing, is spared a call and a result in memory.
    #[inline(always)]
    pub fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        let [wc] = out else {
            let idle = self.imp.is_idle() && self.has_reaped();
            return if idle { Ok(0) } else { self.poll_many(out) };
        };
        match self.imp.glance(wc) {
            Glance::Completion if self.last.retire_plain(wc) => Ok(1),
            Glance::Unordered if self.last.retire_loose_one(wc) => Ok(1),
            Glance::Nothing if self.has_reaped() => Ok(0),
            seen => {
                if matches!(seen, Glance::Nothing | Glance::Unclear) {
                    self.took_nothing = true;
                }
                self.poll_rare(wc)
            }
        }
    }

    /// Whether no route has closed that is not freed.
    #[inline]
    fn has_reaped(&self) -> bool {
        self.cq.closes.load(Relaxed) == self.reaped
    }

    #[inline(never)]
    fn poll_many(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        let n = self.imp.poll(out)?;
        let got = out.get(..n).ok_or(PollCompletionError::Corrupt(n as u64))?;
        let run = self.last.retire_many(got);
        if run == n && (n == out.len() || self.has_reaped()) {
            return Ok(n);
        }
        self.credit(out, run, n)?;
        if n < out.len() && !self.has_reaped() { self.reap(out, n) } else { Ok(n) }
    }

    /// What a glance did not settle, with a completion in `wc` if it took one.
    #[inline(never)]
    fn poll_rare(&mut self, wc: &mut IbvWc) -> Result<usize, PollCompletionError> {
        if mem::take(&mut self.took_nothing) {
            self.poll_many(slice::from_mut(wc))
        } else {
            self.credit_one(wc)
        }
    }

    /// Returns the credits of the completions from `from` to `to`.
    #[inline(never)]
    fn credit(&mut self, out: &[IbvWc], from: usize, to: usize) -> Result<(), PollCompletionError> {
        let mut rest = out.get(from..to).ok_or(PollCompletionError::Corrupt(to as u64))?;
        while let Some(first) = rest.first() {
            let slot = slot_of(first);
            let mut run = match self.table.get(usize::from(slot)) {
                // Failures come in runs too, each of which has to be looked at alone.
                Some(route) if first.is_valid() => route.retire_many(rest),
                _ => 0,
            };
            match run {
                0 => run = self.credit_one(first)?,
                _ => self.meet_again(slot),
            }
            rest = rest.get(run..).unwrap_or_default();
        }
        Ok(())
    }

    /// The same for one of which nothing is known: out of order, a failure, of a new queue pair, of another
    /// than the last.
    fn credit_one(&mut self, wc: &IbvWc) -> Result<usize, PollCompletionError> {
        let slot = slot_of(wc);
        if !self.table.get(usize::from(slot)).is_some_and(|route| route.retire(wc)) {
            self.meet(wc)?;
        }
        self.meet_again(slot);
        Ok(1)
    }

    /// Expects the next completions of the route in that slot, if the one before was of it too: that is not
    /// worth it where completions of many queue pairs alternate.
    fn meet_again(&mut self, slot: u16) {
        if let Some(route) = self.table.get(usize::from(slot))
            && slot == self.strange
            && !Arc::ptr_eq(route, &self.last)
        {
            self.last = route.clone();
        }
        self.strange = slot;
    }

    /// Asks for one event at the channel when the next completion arrives; with `solicited_only`, the
    /// next solicited one or error. Completions already queued raise none: poll once more after arming,
    /// then wait on [`channel`](Self::channel).
    ///
    /// # Errors
    /// `NoChannel` where the queue was created without one, `Unsupported` where `Caps::solicited` is not
    /// offered and `solicited_only` asked for.
    pub fn arm(&mut self, solicited_only: bool) -> Result<(), PollCompletionError> {
        if solicited_only && self.cq.config.channel && !self.cq.domain.imp.caps().solicited {
            return Err(PollCompletionError::Unsupported);
        }
        self.imp.arm(solicited_only)
    }

    /// The channel's descriptor, readable while an event waits; `None` without a channel.
    pub fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.imp.channel()
    }

    /// Takes all waiting events off the channel and returns their number. Never blocks.
    ///
    /// # Errors
    /// `NoChannel` where the queue was created without one.
    pub fn take_events(&mut self) -> Result<u32, PollCompletionError> {
        self.imp.take_events()
    }

    /// A completion of a queue pair that is newer than the table, or of none.
    #[cold]
    fn meet(&mut self, wc: &IbvWc) -> Result<(), PollCompletionError> {
        self.table = lock(&self.cq.routes).table();
        match self.table.get(usize::from(slot_of(wc))) {
            Some(route) if route.retire(wc) => Ok(()),
            _ => Err(PollCompletionError::Corrupt(wc.wr_id)),
        }
    }

    /// Routes have closed. If the queue is empty even now, nothing in it is of those, and they are freed. `n`
    /// completions are in `out` already; how many are in the end.
    #[cold]
    fn reap(&mut self, out: &mut [IbvWc], n: usize) -> Result<usize, PollCompletionError> {
        let closes = self.cq.closes.load(Acquire);
        // Not an error: what was polled before it is good.
        let Ok(more) = self.imp.poll(&mut out[n..]) else { return Ok(n) };
        let all = n.saturating_add(more);
        self.credit(out, n, all)?;
        if all < out.len() {
            let mut routes = lock(&self.cq.routes);
            for slot in &mut routes.slots {
                if slot.closed.is_some_and(|at| at <= closes) {
                    *slot = Slot::default();
                }
            }
            // None of the freed may be found again under a slot that is another's by then.
            (self.table, self.last) = (routes.table(), Arc::new(Route::nobody()));
            self.reaped = closes;
        }
        Ok(all)
    }
}

impl<I: IbvDomainImpl> CompletionQueue for Poller<I> {
    fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        Self::poll(self, out)
    }
    fn arm(&mut self, solicited_only: bool) -> Result<(), PollCompletionError> {
        Self::arm(self, solicited_only)
    }
    fn channel(&self) -> Option<BorrowedFd<'_>> {
        Self::channel(self)
    }
    fn take_events(&mut self) -> Result<u32, PollCompletionError> {
        Self::take_events(self)
    }
}

impl<I: IbvDomainImpl> Drop for Poller<I> {
    fn drop(&mut self) {
        if process::id() != self.cq.home {
            return;
        }
        let mut routes = lock(&self.cq.routes);
        routes.sole = None;
        // SAFETY: taken once, here, and not used afterwards.
        let imp = unsafe { ManuallyDrop::take(&mut self.imp) };
        *lock(&self.cq.parked) = Some(imp);
    }
}
