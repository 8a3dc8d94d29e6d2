//! The device's own work: which request is next, time, completions, errors. What a request does is
//! `execute.rs`'s; how the two schedules choose is `in_order.rs`'s and `unordered.rs`'s.

use super::{
    config::{Drive, FabricConfig},
    cq::{Armed, CqId},
    device::QpRef,
    state::State,
};
use crate::{
    faults::{Report, Verb},
    model,
    schedule::{Rng, Schedule},
    tap::Verdict,
    trace::What,
};
use ibv_core::{EventObject, EventType, IbvWc, PollCompletionError, QpState, WcStatus};
use std::{
    cmp::Ordering,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

/// What is due at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    /// A queue pair may start its next request again.
    Resume(QpRef),
    /// An unordered request may go on; its slot and its number in posting order.
    Continue(QpRef, u32, u64),
    /// A delayed completion.
    Deliver(QpRef, CqId, IbvWc, bool),
}

impl Due {
    fn is_of(&self, at: QpRef) -> bool {
        match self {
            Self::Resume(who) | Self::Continue(who, ..) => *who == at,
            Self::Deliver(..) => false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    at: u64,
    order: u64,
    due: Due,
}

/// Earliest first, then in the order they were set; `BinaryHeap` is a maximum heap.
impl Ord for Timer {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Timer {}

/// Someone who waits for a peer's receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parked {
    pub who: Due,
    pub peer: QpRef,
}

#[derive(Debug)]
pub(crate) struct Engine {
    /// Virtual time, nanoseconds.
    pub now: u64,
    /// How far it is ahead of the host's, where a thread drives.
    pub skew: u64,
    pub rng: Rng,
    /// Ordered: queue pairs that may have something to do.
    pub ready: VecDeque<QpRef>,
    /// Unordered: requests under way.
    pub active: Vec<(QpRef, u32)>,
    timers: BinaryHeap<Timer>,
    order: u64,
    parked: Vec<Parked>,
    /// Queues that somebody sleeps on.
    pub armed: u32,
    /// The fabric's thread is to end.
    pub stop: bool,
    room: usize,
}

impl Engine {
    pub fn new(config: &FabricConfig) -> Self {
        let seed = match config.schedule {
            Schedule::InOrder => 0,
            Schedule::Unordered { seed, .. } => seed,
        };
        Self {
            now: 0,
            skew: 0,
            rng: Rng(seed),
            ready: VecDeque::new(),
            active: Vec::new(),
            timers: BinaryHeap::new(),
            order: 0,
            parked: Vec::new(),
            armed: 0,
            stop: false,
            room: 0,
        }
    }

    /// Makes room for a queue pair's requests, so that none of them allocates later.
    pub fn reserve(&mut self, requests: usize) {
        self.room += requests + 1;
        let room = self.room;
        self.ready.reserve(room.saturating_sub(self.ready.len()));
        self.active.reserve(room.saturating_sub(self.active.len()));
        self.timers.reserve(room.saturating_sub(self.timers.len()));
        self.parked.reserve(room.saturating_sub(self.parked.len()));
    }

    pub fn set_timer(&mut self, after: u64, due: Due) {
        self.order += 1;
        self.timers.push(Timer { at: self.now.saturating_add(after), order: self.order, due });
    }

    pub fn next_timer(&self) -> Option<u64> {
        self.timers.peek().map(|t| t.at)
    }

    fn take_due(&mut self) -> Option<Due> {
        if self.timers.peek()?.at > self.now {
            return None;
        }
        self.timers.pop().map(|t| t.due)
    }

    /// Waits for `peer`; for `None`, for ever.
    pub fn park(&mut self, who: Due, peer: Option<QpRef>) {
        if let Some(peer) = peer {
            self.parked.push(Parked { who, peer });
        }
    }

    /// Moves the clock.
    pub fn jump(&mut self, to: u64) {
        let by = to.saturating_sub(self.now);
        self.now += by;
        self.skew += by;
    }

    /// Forgets whatever a queue pair waits for, delayed completions aside.
    fn forget(&mut self, at: QpRef) {
        self.active.retain(|(q, _)| *q != at);
        self.timers.retain(|t| !t.due.is_of(at));
        self.parked.retain(|p| !p.who.is_of(at));
    }
}

impl State {
    /// Does one thing that is due now. False where there is none.
    pub fn work(&mut self) -> bool {
        if let Some(due) = self.engine.take_due() {
            self.fire(due);
            return true;
        }
        match self.config.schedule {
            Schedule::InOrder => self.turn(),
            Schedule::Unordered { chunk, .. } => self.piece(chunk.max(1) as u64),
        }
    }

    /// Does one thing, moving the clock to the next timer where nothing is due before.
    pub fn step(&mut self) -> bool {
        if self.work() {
            return true;
        }
        let Some(at) = self.engine.next_timer() else { return false };
        self.engine.jump(at);
        self.work()
    }

    /// Everything that is due now.
    pub fn settle(&mut self) {
        while self.work() {}
    }

    /// The poll's share of the work, where polls drive.
    pub fn on_poll(&mut self, cq: CqId) {
        if self.config.drive != Drive::OnPoll {
            return;
        }
        self.settle();
        if self.cqs[cq.0].as_ref().is_some_and(|c| c.entries.is_empty()) {
            self.engine.jump(self.engine.now.saturating_add(nanos(self.config.poll_tick)));
            if self.engine.next_timer().is_some_and(|at| at <= self.engine.now) {
                self.settle();
            }
        }
    }

    fn fire(&mut self, due: Due) {
        match due {
            Due::Resume(at) => self.resume(at),
            Due::Continue(at, slot, seq) => self.resume_request(at, slot, seq),
            Due::Deliver(at, cq, wc, solicited) => {
                if self.qp(at).is_some_and(|qp| !qp.zombie) {
                    self.write_completion(at.device, cq, wc, solicited);
                }
            }
        }
    }

    /// Looks again at whoever waits for `peer`.
    pub fn wake_parked(&mut self, peer: QpRef) {
        let mut i = 0;
        while let Some(parked) = self.engine.parked.get(i) {
            if parked.peer == peer {
                let who = self.engine.parked.remove(i).who;
                self.fire(who);
            } else {
                i += 1;
            }
        }
    }

    /// Takes newly rung requests up.
    pub fn admit(&mut self, at: QpRef) {
        if self.config.ordered() { self.make_ready(at) } else { self.activate(at) }
    }

    /// Moves a queue pair to ERR and flushes it.
    pub fn enter_error(&mut self, at: QpRef) {
        let Some(qp) = self.qp_mut(at) else { return };
        if qp.zombie {
            return;
        }
        if qp.state != QpState::ERR {
            qp.state = QpState::ERR;
            self.note(at.device, at.num(), What::State(QpState::ERR));
        }
        self.flush(at);
        self.wake_parked(at);
    }

    /// The same, where the oldest request in flight reports `status`.
    pub fn fail(&mut self, at: QpRef, status: WcStatus) {
        if let Some(slot) = self.qp(at).and_then(|qp| qp.sq.oldest()) {
            self.finish(at, slot, status);
        }
        self.enter_error(at);
    }

    /// Reports everything in both work queues as flushed, sends first, each in posting order.
    pub fn flush(&mut self, at: QpRef) {
        self.halt(at);
        while let Some(slot) = self.qp(at).and_then(|qp| qp.sq.oldest()) {
            self.finish(at, slot, model::flushes());
        }
        while let Some(slot) = self.qp(at).and_then(|qp| qp.rq.oldest()) {
            self.finish_recv(at, slot, IbvWc { status: model::flushes(), ..IbvWc::default() }, false);
        }
    }

    /// Forgets everything in both work queues; nothing is reported any more.
    pub fn cancel(&mut self, at: QpRef) {
        self.halt(at);
        while let Some(slot) = self.qp(at).and_then(|qp| qp.sq.oldest()) {
            let wqe = self.qp_mut(at).and_then(|qp| qp.sq.take(slot));
            if let Some(wqe) = wqe
                && self.faults.late_access
            {
                self.late_access(at.device, wqe.head.remote.key);
            }
        }
    }

    fn halt(&mut self, at: QpRef) {
        self.release_receives(at);
        self.engine.forget(at);
        if let Some(qp) = self.qp_mut(at) {
            qp.sq.halt();
            (qp.halted, qp.paused) = (false, false);
        }
    }

    /// Ends a request of the send queue.
    pub fn finish(&mut self, at: QpRef, slot: u32, status: WcStatus) {
        let Some(qp) = self.qp_mut(at) else { return };
        let (cq, Some(wqe)) = (qp.send_cq, qp.sq.take(slot)) else { return };
        let head = wqe.head;
        if status == WcStatus::WR_FLUSH_ERR && self.faults.late_access {
            self.late_access(at.device, head.remote.key);
        }
        self.note(at.device, at.num(), What::Completes { id: head.id, status });
        if model::reports(head.signaled, status) {
            let byte_len = if head.op.fills_local() { head.len as u32 } else { 0 };
            let opcode = model::send_opcode(head.op);
            let qp_num = at.num();
            let wc = IbvWc { wr_id: head.id, status, opcode, byte_len, qp_num, ..IbvWc::default() };
            self.complete(at, cq, wc, false);
        }
    }

    /// Ends a receive; `wc` says how, but for the ids.
    pub fn finish_recv(&mut self, at: QpRef, slot: u32, wc: IbvWc, solicited: bool) {
        let Some(qp) = self.qp_mut(at) else { return };
        let (cq, Some(rqe)) = (qp.recv_cq, qp.rq.take(slot)) else { return };
        let wc = IbvWc { wr_id: rqe.id, qp_num: at.num(), ..wc };
        self.note(at.device, at.num(), What::Receives { id: wc.wr_id, status: wc.status, len: wc.byte_len });
        self.complete(at, cq, wc, solicited);
    }

    /// Writes a completion, unless the tap or a fault has something else in mind.
    fn complete(&mut self, at: QpRef, cq: CqId, mut wc: IbvWc, solicited: bool) {
        let report = self.tap_completion(at, &mut wc).or_else(|| self.faults.report(at.device));
        match report {
            None => {}
            Some(Report::Poison) => {
                wc = IbvWc { wr_id: u64::MAX, qp_num: u32::MAX, vendor_err: u32::MAX, ..wc };
            }
            Some(Report::Lose) => return self.note(at.device, at.num(), What::Fault("lost completion")),
            Some(Report::Repeat) => self.write_completion(at.device, cq, wc, solicited),
            Some(Report::Overrun) => return self.overrun(at.device, cq),
            Some(Report::Delay(by)) => {
                let due = Due::Deliver(at, cq, wc, solicited);
                return self.engine.set_timer(nanos(by), due);
            }
        }
        self.write_completion(at.device, cq, wc, solicited);
    }

    fn tap_completion(&mut self, at: QpRef, wc: &mut IbvWc) -> Option<Report> {
        match self.tap.as_mut()?.completion(at.device, wc) {
            Verdict::Keep => None,
            Verdict::Drop => Some(Report::Lose),
            Verdict::Repeat => Some(Report::Repeat),
            Verdict::Delay(by) => Some(Report::Delay(by)),
        }
    }

    fn write_completion(&mut self, device: u16, id: CqId, wc: IbvWc, solicited: bool) {
        let Some(cq) = self.cqs.get_mut(id.0).and_then(Option::as_mut) else { return };
        let armed = cq.armed != Armed::No;
        let (fits, was_dead) = (cq.push(wc, solicited), cq.overrun);
        self.engine.armed -= u32::from(armed && cq.armed == Armed::No);
        if fits {
            self.device(device).counters.completions += 1;
        } else if was_dead {
            self.device(device).counters.overruns += 1;
        } else {
            self.overrun(device, id);
        }
    }

    /// A completion found its queue full: the queue is broken, and everybody who reports to it fails.
    fn overrun(&mut self, device: u16, id: CqId) {
        self.device(device).counters.overruns += 1;
        let Some(cq) = self.cqs.get_mut(id.0).and_then(Option::as_mut) else { return };
        if std::mem::replace(&mut cq.overrun, true) {
            return;
        }
        if cq.armed != Armed::No {
            cq.raise();
            self.engine.armed -= 1;
        }
        self.raise(device, EventType::CQ_ERR, EventObject::CompletionQueue);
        for d in 0..self.devices.len() as u16 {
            for index in 0..self.devices[usize::from(d)].qps.len() {
                let Some(at) = self.qp_at(d, index) else { continue };
                if self.qp(at).is_some_and(|qp| qp.send_cq == id || qp.recv_cq == id) {
                    self.enter_error(at);
                    self.raise(d, EventType::QP_FATAL, EventObject::QueuePair(at.num()));
                }
            }
        }
    }

    pub fn arm(&mut self, id: CqId, device: u16, solicited_only: bool) -> Result<(), PollCompletionError> {
        if let Some(errno) = self.faults.call(Verb::ReqNotify, device) {
            return Err(PollCompletionError::Device(errno));
        }
        let Some(cq) = self.cqs.get_mut(id.0).and_then(Option::as_mut) else { return Ok(()) };
        self.engine.armed += u32::from(cq.armed == Armed::No);
        // Asking for any outweighs asking for solicited ones, until the event.
        if !solicited_only || cq.armed == Armed::No {
            cq.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        }
        if cq.overrun {
            cq.raise();
            self.engine.armed -= 1;
        }
        Ok(())
    }
}

/// A duration on the fabric's clock, which ends after 584 years.
pub(crate) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}
