//! Faults on purpose: a small vocabulary over the fabric, and what is still to come of it. Where each
//! fault takes effect is the fabric's.

use crate::{Fabric, fabric::State};
use ibv_core::WcStatus;
use std::time::Duration;

/// A call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// Opening a device.
    Open,
    /// Listing the devices.
    Devices,
    /// Creating a completion queue.
    CreateCq,
    /// Destroying one; it stays behind.
    DestroyCq,
    /// Creating a queue pair.
    CreateQp,
    /// A state change: connecting, or moving to the error state.
    ModifyQp,
    /// Asking for the state or the attributes.
    QueryQp,
    /// Destroying a queue pair; it stays behind, silent.
    DestroyQp,
    /// Registering memory.
    RegMr,
    /// Deregistering it; the region leaks its memory.
    DeregMr,
    /// Closing a domain; it stays behind.
    DeallocPd,
    /// Building a request.
    Enqueue,
    /// Ringing the doorbell.
    PostSend,
    /// Posting a receive.
    PostRecv,
    /// Polling.
    PollCq,
    /// Arming.
    ReqNotify,
}

/// What goes wrong with a request on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wire {
    Drop,
    Swallow,
    Delay(Duration),
    NotReady,
    Fail(WcStatus),
    Twice,
}

/// What goes wrong with a completion.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Report {
    Poison,
    Lose,
    Repeat,
    Overrun,
    Delay(Duration),
}

/// A rule that skips some occasions, then applies to some, on one device or on all.
#[derive(Clone, Copy, Debug)]
struct Rule<T> {
    device: Option<u16>,
    skip: u64,
    count: u64,
    what: T,
}

/// What is still to come.
#[derive(Debug, Default)]
pub(crate) struct FaultState {
    calls: Vec<Rule<(Verb, i32)>>,
    wire: Vec<Rule<Wire>>,
    reports: Vec<Rule<Report>>,
    pub late_access: bool,
    pub early_immediate: bool,
}

/// The rule that applies on this occasion, of those that `select` picks.
fn occasion<T: Copy>(rules: &mut [Rule<T>], device: u16, select: impl Fn(&T) -> bool) -> Option<T> {
    let mut hit = None;
    for rule in rules {
        if rule.count == 0 || rule.device.is_some_and(|d| d != device) || !select(&rule.what) {
            continue;
        }
        if rule.skip > 0 {
            rule.skip -= 1;
        } else if hit.is_none() {
            rule.count -= u64::from(rule.count != u64::MAX);
            hit = Some(rule.what);
        }
    }
    hit
}

impl FaultState {
    /// The number with which this call fails, if it does.
    #[inline]
    pub fn call(&mut self, verb: Verb, device: u16) -> Option<i32> {
        if self.calls.is_empty() {
            return None;
        }
        occasion(&mut self.calls, device, |(v, _)| *v == verb).map(|(_, errno)| errno)
    }

    #[inline]
    pub fn wire(&mut self, device: u16, needs_receive: bool) -> Option<Wire> {
        if self.wire.is_empty() {
            return None;
        }
        occasion(&mut self.wire, device, |w| needs_receive || !matches!(w, Wire::NotReady))
    }

    #[inline]
    pub fn report(&mut self, device: u16) -> Option<Report> {
        if self.reports.is_empty() { None } else { occasion(&mut self.reports, device, |_| true) }
    }
}

/// Faults to come, and faults now. Made by [`Fabric::faults`]; every method takes effect at once and
/// hands the builder back, so that they chain:
///
/// ```
/// # use provider_mock::{Fabric, Verb};
/// # let fabric = Fabric::default();
/// fabric.faults().fail(Verb::RegMr, 12);
/// fabric.faults().on(1).after(2).drop_requests(1);
/// ```
///
/// [`on`](Self::on) limits what follows to one device, [`after`](Self::after) lets some occasions pass
/// first. Where several faults meet one occasion, the one set first wins.
#[derive(Clone, Debug)]
#[must_use = "say what is to go wrong"]
pub struct Faults {
    fabric: Fabric,
    device: Option<u16>,
    skip: u64,
}

impl Faults {
    pub(crate) fn new(fabric: Fabric) -> Self {
        Self { fabric, device: None, skip: 0 }
    }

    /// What follows happens on the device `mock{index}` only; requests are their requester's.
    pub fn on(self, index: u16) -> Self {
        Self { device: Some(index), ..self }
    }

    /// What follows spares the next `n` occasions.
    pub fn after(self, n: u64) -> Self {
        Self { skip: n, ..self }
    }

    /// Takes effect now.
    fn now(self, what: impl FnOnce(&mut State)) -> Self {
        let mut state = self.fabric.lock();
        what(&mut state);
        self.fabric.kick(&mut state);
        drop(state);
        self
    }

    fn rule<T>(&self, count: u64, what: T) -> Rule<T> {
        Rule { device: self.device, skip: self.skip, count, what }
    }

    fn wire(self, count: u64, what: Wire) -> Self {
        let rule = self.rule(count, what);
        self.fabric.lock().faults.wire.push(rule);
        self
    }

    fn report(self, count: u64, what: Report) -> Self {
        let rule = self.rule(count, what);
        self.fabric.lock().faults.reports.push(rule);
        self
    }

    fn call(self, count: u64, verb: Verb, errno: i32) -> Self {
        if verb == Verb::Enqueue {
            self.fabric.expect_enqueue_faults();
        }
        let rule = self.rule(count, (verb, errno));
        self.fabric.lock().faults.calls.push(rule);
        self
    }

    /// The next call of `verb` fails with `errno`.
    pub fn fail(self, verb: Verb, errno: i32) -> Self {
        self.call(1, verb, errno)
    }

    /// Every call of `verb` fails with `errno`, until [`clear`](Self::clear).
    pub fn fail_always(self, verb: Verb, errno: i32) -> Self {
        self.call(u64::MAX, verb, errno)
    }

    /// The next `n` messages get lost, retransmissions included; the transport's time-out notices.
    pub fn drop_requests(self, n: u64) -> Self {
        self.wire(n, Wire::Drop)
    }

    /// The next `n` requests vanish in the device: nobody times out, nothing is ever reported, and on an
    /// ordered queue pair nothing behind them moves either.
    pub fn swallow_requests(self, n: u64) -> Self {
        self.wire(n, Wire::Swallow)
    }

    /// The next `n` requests start `by` later.
    pub fn delay_requests(self, n: u64, by: Duration) -> Self {
        self.wire(n, Wire::Delay(by))
    }

    /// The next `n` messages that need a receive find none. Endless ones against a requester that retries
    /// for ever keep [`Fabric::run`] busy for ever.
    pub fn not_ready(self, n: u64) -> Self {
        self.wire(n, Wire::NotReady)
    }

    /// The next request fails with `status`, and its queue pair with it.
    pub fn fail_request(self, status: WcStatus) -> Self {
        self.wire(1, Wire::Fail(status))
    }

    /// The next `n` requests take effect twice.
    pub fn repeat_requests(self, n: u64) -> Self {
        self.wire(n, Wire::Twice)
    }

    /// The next `n` requests are refused as if the queue were full.
    pub fn queue_full(self, n: u64) -> Self {
        self.call(n, Verb::Enqueue, QUEUE_FULL)
    }

    /// The next `n` completions carry garbage.
    pub fn poison_completions(self, n: u64) -> Self {
        self.report(n, Report::Poison)
    }

    /// The next `n` completions are never written.
    pub fn lose_completions(self, n: u64) -> Self {
        self.report(n, Report::Lose)
    }

    /// The next `n` completions are written twice.
    pub fn repeat_completions(self, n: u64) -> Self {
        self.report(n, Report::Repeat)
    }

    /// The next `n` completions are written `by` later, and overtaken by others meanwhile.
    pub fn delay_completions(self, n: u64, by: Duration) -> Self {
        self.report(n, Report::Delay(by))
    }

    /// The next completion finds its queue full, however deep it is.
    pub fn overrun(self) -> Self {
        self.report(1, Report::Overrun)
    }

    /// From now on the device tries to go on with requests that were flushed or whose queue pair was
    /// destroyed, and with regions that were deregistered. Each try is refused and counted in
    /// `Counters::late_refused`.
    pub fn late_access(self) -> Self {
        self.now(|s| s.faults.late_access = true)
    }

    /// From now on, on an unordered fabric, the immediate of a put arrives before its own bytes.
    pub fn early_immediate(self) -> Self {
        self.now(|s| s.faults.early_immediate = true)
    }

    /// The device answers nobody any more, and nobody tells.
    pub fn peer_gone(self, device: u16) -> Self {
        self.now(|s| s.set_gone(device, true))
    }

    /// It answers again.
    pub fn peer_back(self, device: u16) -> Self {
        self.now(|s| s.set_gone(device, false))
    }

    /// The device dies: an event, every queue pair of it fails, and calls on it fail with EIO.
    pub fn device_fatal(self, device: u16) -> Self {
        self.now(|s| s.device_fatal(device))
    }

    /// The device's port goes down, with an event; messages from and to it are lost.
    pub fn port_down(self, device: u16) -> Self {
        self.now(|s| s.set_port(device, false))
    }

    /// The port comes up, with an event.
    pub fn port_up(self, device: u16) -> Self {
        self.now(|s| s.set_port(device, true))
    }

    /// The device's GID changes, with an event. Who connected to the old one gets no answers.
    pub fn change_gid(self, device: u16) -> Self {
        self.now(|s| s.change_gid(device))
    }

    /// The queue pair of that number fails by itself, with an event.
    pub fn queue_pair_fatal(self, device: u16, qp_num: u32) -> Self {
        self.now(|s| s.queue_pair_fatal(device, qp_num))
    }

    /// Forgets all faults to come. What is broken stays broken.
    pub fn clear(self) -> Self {
        self.now(|s| s.faults = FaultState::default())
    }
}

/// Stands for `PostError::QueueFull` among the numbers.
pub(crate) const QUEUE_FULL: i32 = -1;
