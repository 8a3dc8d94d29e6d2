//! The unordered schedule. Every request under way is as likely as any other to do its next piece; the
//! pieces of one message are shuffled too, and its completion is the last.

use super::{
    device::QpRef,
    engine::Due,
    execute::Outcome,
    state::State,
    work::{Stage, Wqe},
};
use crate::{
    model::{self, Refused, Retry, Start},
    schedule::shuffled,
    trace::What,
};
use ibv_core::{Op, WcStatus};

impl State {
    /// Takes up what waits in a queue pair, as far as the rules allow.
    pub(super) fn activate(&mut self, at: QpRef) {
        while self.is_up(at)
            && let Some(qp) = self.qp(at)
            && let Some(&slot) = qp.sq.waiting.front()
            && let Some(wqe) = qp.sq.get(slot).copied()
            && self.start_rule(at, &wqe) != Start::Wait
        {
            if let Some(qp) = self.qp_mut(at) {
                qp.sq.waiting.pop_front();
                qp.sq.outstanding += u32::from(wqe.head.op.fills_local());
                if let Some(wqe) = qp.sq.get_mut(slot) {
                    wqe.counted = wqe.head.op.fills_local();
                }
            }
            self.engine.active.push((at, slot));
        }
    }

    /// A request goes on that waited for a timer or for its peer.
    pub(super) fn resume_request(&mut self, at: QpRef, slot: u32, seq: u64) {
        if self.is_up(at) && self.qp(at).and_then(|qp| qp.sq.get(slot)).is_some_and(|w| w.seq == seq) {
            self.engine.active.push((at, slot));
        }
    }

    /// Does the next piece of a random request. False where none is under way.
    pub(super) fn piece(&mut self, chunk: u64) -> bool {
        if self.engine.active.is_empty() {
            return false;
        }
        let pick = self.engine.rng.below(self.engine.active.len());
        let (at, slot) = self.engine.active[pick];
        let Some(wqe) = self.qp(at).and_then(|qp| qp.sq.get(slot)).copied() else {
            self.engine.active.swap_remove(pick);
            return true;
        };
        let done = match wqe.stage {
            Stage::Pieces(k) => self.next_piece(at, slot, &wqe, k, chunk),
            _ => self.begin_pieces(at, slot),
        };
        match done {
            None => {}
            Some(Outcome::Pause(ns)) => {
                self.engine.active.swap_remove(pick);
                self.engine.set_timer(ns, Due::Continue(at, slot, wqe.seq));
            }
            Some(Outcome::Park(peer)) => {
                self.engine.active.swap_remove(pick);
                self.engine.park(Due::Continue(at, slot, wqe.seq), peer);
            }
            Some(Outcome::Fail(status)) => self.end(at, slot, status),
            Some(Outcome::Vanish) => self.forget_request(at, slot),
            Some(Outcome::Done | Outcome::Answer(_)) => self.end(at, slot, WcStatus::SUCCESS),
        }
        true
    }

    /// Takes a request out of the shuffle.
    fn withdraw(&mut self, at: QpRef, slot: u32) {
        self.engine.active.retain(|a| *a != (at, slot));
        let fills = self.qp(at).and_then(|qp| qp.sq.get(slot)).is_some_and(|w| w.counted);
        if fills && let Some(qp) = self.qp_mut(at) {
            qp.sq.outstanding = qp.sq.outstanding.saturating_sub(1);
        }
    }

    fn forget_request(&mut self, at: QpRef, slot: u32) {
        self.withdraw(at, slot);
        if let Some(qp) = self.qp_mut(at) {
            qp.sq.take(slot);
        }
        self.activate(at);
    }

    fn end(&mut self, at: QpRef, slot: u32, status: WcStatus) {
        self.withdraw(at, slot);
        self.finish(at, slot, status);
        if status != WcStatus::SUCCESS {
            return self.enter_error(at);
        }
        self.activate(at);
    }

    /// The checks, and for what needs one, a receive of the peer.
    fn begin_pieces(&mut self, at: QpRef, slot: u32) -> Option<Outcome> {
        let peer = match self.begin(at, slot) {
            Ok(peer) => peer,
            Err(outcome) => return Some(outcome),
        };
        let wqe = self.qp(at)?.sq.get(slot).copied()?;
        let pd = self.qp(peer)?.pd;
        let mut taken = None;
        if model::consumes_receive(wqe.head.op) {
            let recv = self.qp_mut(peer)?.rq.reserve()?;
            if let Err(why) = self.check_receive(&wqe, peer, recv) {
                return Some(Outcome::Fail(self.receive_fails(at, peer, recv, why)));
            }
            taken = Some((peer, recv));
        }
        self.with_wqe(at, slot, |w| {
            (w.stage, w.taken, w.peer, w.peer_pd) = (Stage::Pieces(0), taken, Some(peer), pd)
        });
        None
    }

    /// The `k`th thing that a request does: a shuffled piece of its bytes, then its receive's completion,
    /// then its own.
    fn next_piece(&mut self, at: QpRef, slot: u32, wqe: &Wqe, k: u64, chunk: u64) -> Option<Outcome> {
        let pieces = if is_atomic(wqe.head.op) { 1 } else { wqe.head.len.div_ceil(chunk) };
        if (k < pieces || wqe.taken.is_some()) && self.reach(at) != wqe.peer {
            return Some(self.lost_peer(at, slot, wqe));
        }
        let early = self.faults.early_immediate && matches!(wqe.head.op, Op::WriteWithImm(_));
        if let Some((peer, recv)) = wqe.taken
            && (k == pieces || early)
        {
            self.deliver(wqe, peer, recv);
            self.with_wqe(at, slot, |w| w.taken = None);
            return None;
        }
        if k == pieces {
            if wqe.twice {
                self.with_wqe(at, slot, |w| (w.twice, w.stage) = (false, Stage::Posted));
                return None;
            }
            return Some(Outcome::Done);
        }
        let from = shuffled(k, pieces, wqe.seed) * chunk;
        let failed = self.move_piece(at, slot, wqe, from, chunk.min(wqe.head.len - from));
        self.with_wqe(at, slot, |w| w.stage = Stage::Pieces(k + 1));
        failed.map(Outcome::Fail)
    }

    /// The peer went away in the middle; the request stays as it is until it is back.
    fn lost_peer(&mut self, at: QpRef, slot: u32, wqe: &Wqe) -> Outcome {
        let Some(qp) = self.qp(at) else { return Outcome::Park(None) };
        match model::on_no_answer(wqe.sent, qp.config.retry_cnt, qp.config.timeout) {
            Retry::GiveUp(status) => Outcome::Fail(status),
            _ => self.no_answer(at, slot),
        }
    }

    fn move_piece(&mut self, at: QpRef, slot: u32, wqe: &Wqe, from: u64, len: u64) -> Option<WcStatus> {
        self.note(at.device, at.num(), What::Piece { id: wqe.head.id, at: from, len });
        let peer = wqe.peer?;
        let moved = match wqe.head.op {
            Op::Write | Op::WriteWithImm(_) | Op::Read => self.move_rdma(at, slot, wqe.peer_pd, from, len),
            Op::CompareSwap { .. } | Op::FetchAdd(_) => {
                self.update(wqe, peer).and_then(|old| self.store_old(at, slot, old))
            }
            _ => match wqe.taken {
                Some(taken) => match self.move_send(at, slot, taken, from, len) {
                    Err(r) if r.want == model::Want::LocalWrite => {
                        return Some(self.receive_fails(at, taken.0, taken.1, Refused::PROTECTED));
                    }
                    moved => moved,
                },
                None => Ok(()),
            },
        };
        moved.err().map(|r| {
            if r.want.remote() { self.refused_by_peer(at, peer, r) } else { self.refused(at.device, r) }
        })
    }

    /// Gives back the receives that unfinished requests of a queue pair hold at its peer.
    pub(super) fn release_receives(&mut self, at: QpRef) {
        let slots = self.qp(at).map_or(0, |qp| qp.sq.depth() as u32);
        for slot in 0..slots {
            if let Some((peer, recv)) = self.qp(at).and_then(|qp| qp.sq.get(slot)).and_then(|w| w.taken)
                && let Some(p) = self.qp_mut(peer)
            {
                p.rq.unreserve(recv);
            }
        }
    }
}

fn is_atomic(op: Op) -> bool {
    matches!(op, Op::CompareSwap { .. } | Op::FetchAdd(_))
}
