//! The ordered schedule. Queue pairs take turns; each starts its requests in posting order and as early
//! as the rules allow, and lets answers wait as long as they allow.

use super::{
    device::QpRef,
    engine::Due,
    execute::Outcome,
    state::State,
    work::{Stage, Wqe},
};
use crate::{
    model::{Refused, Start},
    trace::What,
};
use ibv_core::{Op, WcStatus};

enum Action {
    Start(u32),
    Answer(u32),
    Idle,
}

impl State {
    /// Puts a queue pair among those that may have something to do.
    pub(super) fn make_ready(&mut self, at: QpRef) {
        if let Some(qp) = self.qp_mut(at)
            && !std::mem::replace(&mut qp.queued, true)
        {
            self.engine.ready.push_back(at);
        }
    }

    pub(super) fn resume(&mut self, at: QpRef) {
        if let Some(qp) = self.qp_mut(at) {
            qp.paused = false;
            self.make_ready(at);
        }
    }

    /// Does one thing for the queue pair whose turn it is. False where nobody has anything to do.
    pub(super) fn turn(&mut self) -> bool {
        while let Some(at) = self.engine.ready.pop_front() {
            match self.next_action(at) {
                Action::Start(slot) => self.start(at, slot),
                Action::Answer(slot) => self.answer(at, slot),
                Action::Idle => {
                    if let Some(qp) = self.qp_mut(at) {
                        qp.queued = false;
                    }
                    continue;
                }
            }
            if self.qp(at).is_some() {
                self.engine.ready.push_back(at);
            }
            return true;
        }
        false
    }

    fn next_action(&self, at: QpRef) -> Action {
        let Some(qp) = self.qp(at).filter(|_| self.is_up(at)) else { return Action::Idle };
        if let Some(&slot) = qp.sq.waiting.front()
            && let Some(wqe) = qp.sq.get(slot)
            && !qp.paused
            && !qp.halted
            && self.start_rule(at, wqe) != Start::Wait
        {
            return Action::Start(slot);
        }
        qp.sq.started.front().map_or(Action::Idle, |&slot| Action::Answer(slot))
    }

    fn start(&mut self, at: QpRef, slot: u32) {
        let mut outcome = self.begin(at, slot).map_or_else(|o| o, |peer| self.execute(at, slot, peer));
        if self.qp(at).and_then(|qp| qp.sq.get(slot)).is_some_and(|w| w.twice) && outcome == Outcome::Done {
            self.with_wqe(at, slot, |w| w.twice = false);
            outcome = self.begin(at, slot).map_or_else(|o| o, |peer| self.execute(at, slot, peer));
        }
        let stage = match outcome {
            Outcome::Done => Stage::Done(WcStatus::SUCCESS),
            Outcome::Answer(old) => Stage::Answer(old),
            Outcome::Fail(status) => Stage::Done(status),
            Outcome::Vanish => return self.vanish(at, slot),
            Outcome::Pause(ns) => {
                self.pause(at);
                return self.engine.set_timer(ns, Due::Resume(at));
            }
            Outcome::Park(peer) => {
                self.pause(at);
                return self.engine.park(Due::Resume(at), peer);
            }
        };
        let Some(qp) = self.qp_mut(at) else { return };
        // An error elsewhere may have flushed the request meanwhile.
        let Some(wqe) = qp.sq.get_mut(slot) else { return };
        wqe.stage = stage;
        qp.sq.waiting.pop_front();
        qp.sq.started.push_back(slot);
        qp.sq.outstanding += u32::from(matches!(stage, Stage::Answer(_)));
        qp.halted = matches!(outcome, Outcome::Fail(_));
        self.report_finished(at);
    }

    fn vanish(&mut self, at: QpRef, slot: u32) {
        if let Some(qp) = self.qp_mut(at) {
            qp.sq.waiting.pop_front();
            qp.sq.take(slot);
        }
    }

    fn pause(&mut self, at: QpRef) {
        if let Some(qp) = self.qp_mut(at) {
            qp.paused = true;
        }
    }

    /// Completes from the front whatever is over.
    fn report_finished(&mut self, at: QpRef) {
        while let Some(qp) = self.qp_mut(at)
            && let Some(&slot) = qp.sq.started.front()
            && let Some(&Wqe { stage: Stage::Done(status), .. }) = qp.sq.get(slot)
        {
            qp.sq.started.pop_front();
            self.finish(at, slot, status);
            if status != WcStatus::SUCCESS {
                return self.enter_error(at);
            }
        }
    }

    /// The request takes effect at the peer.
    fn execute(&mut self, at: QpRef, slot: u32, peer: QpRef) -> Outcome {
        let Some(wqe) = self.qp(at).and_then(|qp| qp.sq.get(slot)).copied() else {
            return Outcome::Park(None);
        };
        let (op, len) = (wqe.head.op, wqe.head.len);
        let peer_pd = self.qp(peer).map_or(0, |p| p.pd);
        self.with_wqe(at, slot, |w| w.peer_pd = peer_pd);
        match op {
            Op::Read => Outcome::Answer(0),
            Op::CompareSwap { .. } | Op::FetchAdd(_) => match self.update(&wqe, peer) {
                Ok(old) => Outcome::Answer(old),
                Err(r) => Outcome::Fail(self.refused_by_peer(at, peer, r)),
            },
            Op::Write | Op::WriteWithImm(_) => match self.move_rdma(at, slot, peer_pd, 0, len) {
                Ok(()) => self.hand_over(&wqe, peer),
                Err(r) => Outcome::Fail(self.refused_by_peer(at, peer, r)),
            },
            _ => self.send(at, slot, &wqe, peer),
        }
    }

    /// The immediate of a put, if it has one.
    fn hand_over(&mut self, wqe: &Wqe, peer: QpRef) -> Outcome {
        if wqe.head.op.imm().is_some()
            && let Some(recv) = self.qp_mut(peer).and_then(|p| p.rq.reserve())
        {
            self.deliver(wqe, peer, recv);
        }
        Outcome::Done
    }

    fn send(&mut self, at: QpRef, slot: u32, wqe: &Wqe, peer: QpRef) -> Outcome {
        let Some(recv) = self.qp_mut(peer).and_then(|p| p.rq.reserve()) else {
            return Outcome::Park(Some(peer));
        };
        if let Err(why) = self.check_receive(wqe, peer, recv) {
            return Outcome::Fail(self.receive_fails(at, peer, recv, why));
        }
        match self.move_send(at, slot, (peer, recv), 0, wqe.head.len) {
            Ok(()) => {
                self.deliver(wqe, peer, recv);
                Outcome::Done
            }
            Err(r) if r.want.remote() => Outcome::Fail(self.refused_by_peer(at, peer, r)),
            Err(_) => Outcome::Fail(self.receive_fails(at, peer, recv, Refused::PROTECTED)),
        }
    }

    /// The oldest outstanding answer arrives.
    fn answer(&mut self, at: QpRef, slot: u32) {
        let Some(wqe) = self.qp(at).and_then(|qp| qp.sq.get(slot)).copied() else { return };
        let Stage::Answer(old) = wqe.stage else { return self.report_finished(at) };
        self.note(at.device, at.num(), What::Answered { id: wqe.head.id });
        let arrived = match wqe.head.op {
            Op::Read => self.move_rdma(at, slot, wqe.peer_pd, 0, wqe.head.len),
            _ => self.store_old(at, slot, old),
        };
        let status = match arrived {
            Ok(()) => WcStatus::SUCCESS,
            Err(r) => self.refused(at.device, r),
        };
        self.with_wqe(at, slot, |w| w.stage = Stage::Done(status));
        if let Some(qp) = self.qp_mut(at) {
            qp.sq.outstanding = qp.sq.outstanding.saturating_sub(1);
        }
        self.report_finished(at);
    }
}
