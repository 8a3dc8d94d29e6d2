//! What one request does at its peer: is it reachable, is it ready, is it allowed, and the bytes.

use super::{
    device::QpRef,
    engine::nanos,
    state::{State, parse_gid},
    transfer::{Refusal, Side, Source},
    work::{Head, Wqe},
};
use crate::{
    faults::Wire,
    model::{self, Range, Refused, Retry, Start, Want},
    tap::{TapRequest, Verdict},
    trace::What,
};
use ibv_core::{EventObject, EventType, IbvRemoteMemoryRegionView, IbvWc, Op, PortState, QpState, WcStatus};
use std::slice;

/// What came of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It took effect.
    Done,
    /// The peer accepted it; the answer is outstanding (with an atomic's old value).
    Answer(u64),
    /// Again after so many nanoseconds.
    Pause(u64),
    /// Again when that peer has a receive; with `None`, never.
    Park(Option<QpRef>),
    /// It is gone without a trace.
    Vanish,
    /// It failed.
    Fail(WcStatus),
}

impl State {
    /// Everything that is checked before any byte moves: the peer, once all of it holds.
    pub(super) fn begin(&mut self, at: QpRef, slot: u32) -> Result<QpRef, Outcome> {
        let wqe = self.next_try(at, slot)?;
        let not_ready = self.wire_fault(at, slot, &wqe)?;
        self.check_own(at, slot, &wqe)?;
        let Some(peer) = self.reach(at) else { return Err(self.no_answer(at, slot)) };
        if model::consumes_receive(wqe.head.op)
            && (not_ready || self.qp(peer).is_none_or(|p| p.rq.front().is_none()))
        {
            return Err(self.not_ready(at, slot, peer));
        }
        self.check_remote(at, peer, &wqe)?;
        Ok(peer)
    }

    /// The request, if it may be tried once more, as the tap has left it.
    fn next_try(&mut self, at: QpRef, slot: u32) -> Result<Wqe, Outcome> {
        if self.tap.is_some() && self.qp(at).and_then(|qp| qp.sq.get(slot)).is_some_and(|w| !w.tapped) {
            self.tap_request(at, slot)?;
        }
        let qp = self.qp(at).ok_or(Outcome::Park(None))?;
        let wqe = *qp.sq.get(slot).ok_or(Outcome::Park(None))?;
        if wqe.sent > 0 {
            let again = model::on_no_answer(wqe.sent, qp.config.retry_cnt, qp.config.timeout);
            if let Retry::GiveUp(status) = again {
                return Err(Outcome::Fail(status));
            }
            self.device(at.device).counters.retries += 1;
        }
        let Head { id, op, len, .. } = wqe.head;
        self.note(at.device, at.num(), What::Begins { id, op, len });
        Ok(wqe)
    }

    /// The requester's own side: whether it may get at all, and the ranges it reads. Those it writes are
    /// checked when the answer is there.
    fn check_own(&mut self, at: QpRef, slot: u32, wqe: &Wqe) -> Result<(), Outcome> {
        if self.start_rule(at, wqe) == Start::Never {
            return Err(Outcome::Fail(WcStatus::LOC_QP_OP_ERR));
        }
        if wqe.head.op.fills_local() {
            return Ok(());
        }
        let held = self.regions.validate(self.local_side(at, slot, Want::LocalRead));
        held.map_err(|r| Outcome::Fail(self.refused(at.device, r)))
    }

    fn check_remote(&mut self, at: QpRef, peer: QpRef, wqe: &Wqe) -> Result<(), Outcome> {
        let Some(want) = remote_want(wqe.head.op) else { return Ok(()) };
        let pd = self.qp(peer).map_or(0, |p| p.pd);
        let side = Side { pd, ranges: slice::from_ref(&wqe.head.remote), want };
        let held = self.regions.validate(side);
        held.map_err(|r| Outcome::Fail(self.refused_by_peer(at, peer, r)))
    }

    /// What a fault does to this try; `true` says that the peer is to be found not ready.
    fn wire_fault(&mut self, at: QpRef, slot: u32, wqe: &Wqe) -> Result<bool, Outcome> {
        if wqe.delayed {
            self.with_wqe(at, slot, |w| w.delayed = false);
            return Ok(false);
        }
        match self.faults.wire(at.device, model::consumes_receive(wqe.head.op)) {
            None => Ok(false),
            Some(Wire::Drop) => Err(self.no_answer(at, slot)),
            Some(Wire::Swallow) => {
                self.device(at.device).counters.drops += 1;
                self.note(at.device, at.num(), What::Lost { id: wqe.head.id });
                Err(Outcome::Park(None))
            }
            Some(Wire::Delay(by)) => {
                self.with_wqe(at, slot, |w| w.delayed = true);
                Err(Outcome::Pause(nanos(by)))
            }
            Some(Wire::NotReady) => Ok(true),
            Some(Wire::Fail(status)) => Err(Outcome::Fail(status)),
            Some(Wire::Twice) => {
                self.with_wqe(at, slot, |w| w.twice = true);
                Ok(false)
            }
        }
    }

    /// Shows a request to the tap, and takes over what became of it.
    fn tap_request(&mut self, at: QpRef, slot: u32) -> Result<(), Outcome> {
        let qp = self.devices[usize::from(at.device)].qps[at.index].as_mut();
        let parts = qp.and_then(|qp| qp.sq.parts_mut(slot));
        let (Some(tap), Some((wqe, local, inline))) = (&mut self.tap, parts) else { return Ok(()) };
        wqe.tapped = true;
        let h = &mut wqe.head;
        let remote =
            IbvRemoteMemoryRegionView { addr: h.remote.addr, len: h.remote.len as usize, rkey: h.remote.key };
        let Head { id, op, signaled, fence, solicited, .. } = *h;
        let (device, qp_num) = (at.device, at.num());
        let mut shown =
            TapRequest { device, qp_num, id, op, signaled, fence, solicited, remote, local, inline };
        let verdict = tap.request(&mut shown);
        (h.id, h.op, h.signaled, h.solicited) = (shown.id, shown.op, shown.signaled, shown.solicited);
        h.len = h.inline.map_or_else(|| shown.local.iter().map(|r| r.len).sum(), |n| n as u64);
        h.remote = Range { addr: shown.remote.addr, len: h.len, key: shown.remote.rkey };
        match verdict {
            Verdict::Keep => Ok(()),
            Verdict::Drop => Err(Outcome::Vanish),
            Verdict::Repeat => {
                wqe.twice = true;
                Ok(())
            }
            Verdict::Delay(by) => Err(Outcome::Pause(nanos(by))),
        }
    }

    pub(super) fn with_wqe(&mut self, at: QpRef, slot: u32, change: impl FnOnce(&mut Wqe)) {
        if let Some(wqe) = self.qp_mut(at).and_then(|qp| qp.sq.get_mut(slot)) {
            change(wqe);
        }
    }

    pub(super) fn start_rule(&self, at: QpRef, wqe: &Wqe) -> Start {
        self.qp(at).map_or(Start::Never, |qp| {
            let limit = if qp.path.is_some() { qp.config.max_rd_atomic } else { 0 };
            model::start(wqe.head.op, wqe.head.fence, qp.sq.outstanding, limit)
        })
    }

    pub(super) fn local_side(&self, at: QpRef, slot: u32, want: Want) -> Side<'_> {
        let qp = self.qp(at);
        Side { pd: qp.map_or(0, |q| q.pd), ranges: qp.map_or(&[], |q| q.sq.ranges(slot)), want }
    }

    /// The peer, if it answers: both ports up, both ends connected to each other and of one mind.
    pub(super) fn reach(&self, at: QpRef) -> Option<QpRef> {
        let qp = self.qp(at)?;
        let remote = qp.path.as_ref()?.remote;
        let (_, device) = parse_gid(remote.gid?)?;
        let there = self.devices.get(usize::from(device))?;
        let here = &self.devices[usize::from(at.device)];
        let live = |d: &super::device::Device| d.port == PortState::ACTIVE && !d.fatal && !d.gone;
        let looped = device == at.device && !self.config.loopback;
        if !live(here) || !live(there) || looped || Some(there.gid) != remote.gid || here.gid != qp.gid {
            return None;
        }
        let peer = self.qp_at(device, (remote.qp_num as usize).wrapping_sub(1))?;
        let p = self.qp(peer)?;
        let back = p.path.as_ref()?.remote;
        let connected = back.qp_num == at.num() && back.gid == Some(qp.gid);
        let agreed = if self.config.ordered() {
            Some(back.psn) == qp.config.psn && Some(remote.psn) == p.config.psn
        } else {
            Some(remote.qkey) == p.config.qkey
        };
        let partition = p.config.pkey_index == qp.config.pkey_index;
        (model::works(p.state) && connected && agreed && partition).then_some(peer)
    }

    /// Nobody answered this try.
    pub(super) fn no_answer(&mut self, at: QpRef, slot: u32) -> Outcome {
        self.device(at.device).counters.drops += 1;
        let Some(qp) = self.qp_mut(at) else { return Outcome::Park(None) };
        let timeout = qp.config.timeout;
        let Some(wqe) = qp.sq.get_mut(slot) else { return Outcome::Park(None) };
        wqe.sent += 1;
        let id = wqe.head.id;
        self.note(at.device, at.num(), What::Lost { id });
        match model::ack_timeout(timeout) {
            Some(pause) => Outcome::Pause(nanos(pause)),
            None => Outcome::Park(None),
        }
    }

    /// The peer has no receive.
    fn not_ready(&mut self, at: QpRef, slot: u32, peer: QpRef) -> Outcome {
        self.device(at.device).counters.rnr_naks += 1;
        let timer = self.qp(peer).map_or(0, |p| p.config.min_rnr_timer);
        let Some(qp) = self.qp_mut(at) else { return Outcome::Park(None) };
        let most = qp.config.rnr_retry;
        let Some(wqe) = qp.sq.get_mut(slot) else { return Outcome::Park(None) };
        wqe.naks += 1;
        let (id, naks) = (wqe.head.id, wqe.naks);
        self.note(at.device, at.num(), What::NotReady { id, naks });
        match model::on_not_ready(naks, most, timer) {
            Retry::After(pause) => Outcome::Pause(nanos(pause)),
            // A peer that has receives was made to say so, and nothing will wake who waits for one.
            Retry::Forever(pause) if self.qp(peer).is_some_and(|p| p.rq.front().is_some()) => {
                Outcome::Pause(nanos(pause))
            }
            // For ever has no use for a timer that fires for ever: the receive itself wakes it.
            Retry::Forever(_) => Outcome::Park(Some(peer)),
            Retry::Hang => Outcome::Park(None),
            Retry::GiveUp(status) => Outcome::Fail(status),
        }
    }

    /// Counts a refusal; what the requester reports.
    pub(super) fn refused(&mut self, device: u16, r: Refusal) -> WcStatus {
        let late = self.regions.is_dead(r.key);
        let counters = &mut self.device(device).counters;
        counters.refused += 1;
        counters.late_refused += u64::from(late);
        self.note(device, 0, What::Denied { key: r.key, why: r.denied });
        model::denied_status(r.denied, r.want)
    }

    /// The same at the peer, which fails too where it is a reliable connection.
    pub(super) fn refused_by_peer(&mut self, at: QpRef, peer: QpRef, r: Refusal) -> WcStatus {
        let status = self.refused(peer.device, r);
        if self.config.ordered() && peer != at && r.want.remote() {
            let kind = match status {
                WcStatus::REM_ACCESS_ERR => EventType::QP_ACCESS_ERR,
                _ => EventType::QP_REQ_ERR,
            };
            self.enter_error(peer);
            self.raise(peer.device, kind, EventObject::QueuePair(peer.num()));
        }
        status
    }

    /// Moves part of a put or a get.
    pub(super) fn move_rdma(
        &mut self,
        at: QpRef,
        slot: u32,
        peer_pd: u32,
        from: u64,
        len: u64,
    ) -> Result<(), Refusal> {
        let Some(qp) = self.qp(at) else { return Ok(()) };
        let Some(wqe) = qp.sq.get(slot) else { return Ok(()) };
        let remote = slice::from_ref(&wqe.head.remote);
        let moved = if wqe.head.op == Op::Read {
            let src = Side { pd: peer_pd, ranges: remote, want: Want::RemoteRead };
            let dst = self.local_side(at, slot, Want::LocalWrite);
            self.regions.copy(dst, Source::Ranges(src), from, len)
        } else {
            let dst = Side { pd: peer_pd, ranges: remote, want: Want::RemoteWrite };
            self.regions.copy(dst, self.source(at, slot), from, len)
        };
        if moved.is_ok() {
            self.device(at.device).counters.bytes += len;
        }
        moved
    }

    fn source(&self, at: QpRef, slot: u32) -> Source<'_> {
        match self.qp(at).and_then(|qp| qp.sq.inline(slot)) {
            Some(bytes) => Source::Inline(bytes),
            None => Source::Ranges(self.local_side(at, slot, Want::LocalRead)),
        }
    }

    /// Whether the peer's receive can take the message.
    pub(super) fn check_receive(&self, wqe: &Wqe, peer: QpRef, recv: u32) -> Result<(), Refused> {
        let Some(p) = self.qp(peer) else { return Ok(()) };
        if wqe.head.op.imm().is_some() && matches!(wqe.head.op, Op::WriteWithImm(_)) {
            return Ok(());
        }
        let ranges = p.rq.ranges(recv);
        let room = ranges.iter().fold(0u64, |n, r| n.saturating_add(r.len));
        model::accept(wqe.head.op, wqe.head.len, room)?;
        let side = Side { pd: p.pd, ranges, want: Want::LocalWrite };
        self.regions.validate(side).map_err(|_| Refused::PROTECTED)
    }

    /// Moves part of a send into the peer's receive.
    pub(super) fn move_send(
        &mut self,
        at: QpRef,
        slot: u32,
        (peer, recv): (QpRef, u32),
        from: u64,
        len: u64,
    ) -> Result<(), Refusal> {
        let Some(p) = self.qp(peer) else { return Ok(()) };
        let dst = Side { pd: p.pd, ranges: p.rq.ranges(recv), want: Want::LocalWrite };
        self.regions.copy(dst, self.source(at, slot), from, len)?;
        self.device(at.device).counters.bytes += len;
        Ok(())
    }

    /// The receive failed: it says why, its queue pair fails, and the sender learns its part.
    pub(super) fn receive_fails(&mut self, at: QpRef, peer: QpRef, recv: u32, why: Refused) -> WcStatus {
        let wc = IbvWc { status: why.receiver, ..IbvWc::default() };
        self.finish_recv(peer, recv, wc, true);
        if peer != at {
            self.enter_error(peer);
            self.raise(peer.device, EventType::QP_REQ_ERR, EventObject::QueuePair(peer.num()));
        }
        why.sender
    }

    /// Completes the receive that `wqe` took.
    pub(super) fn deliver(&mut self, wqe: &Wqe, peer: QpRef, recv: u32) {
        let opcode = model::recv_opcode(wqe.head.op);
        let mut wc = IbvWc { opcode, byte_len: wqe.head.len as u32, ..IbvWc::default() };
        if let Some(imm) = wqe.head.op.imm() {
            wc.set_imm(imm);
        }
        self.finish_recv(peer, recv, wc, wqe.head.solicited);
    }

    /// Stores an atomic's old value at the requester.
    pub(super) fn store_old(&mut self, at: QpRef, slot: u32, old: u64) -> Result<(), Refusal> {
        let dst = self.local_side(at, slot, Want::LocalWrite);
        self.regions.copy(dst, Source::Inline(&old.to_ne_bytes()), 0, 8)?;
        self.device(at.device).counters.bytes += 8;
        Ok(())
    }

    pub(super) fn update(&mut self, wqe: &Wqe, peer: QpRef) -> Result<u64, Refusal> {
        let pd = self.qp(peer).map_or(0, |p| p.pd);
        self.regions.update(pd, &wqe.head.remote, wqe.head.op)
    }

    pub(super) fn is_up(&self, at: QpRef) -> bool {
        self.qp(at).is_some_and(|qp| qp.state == QpState::RTS && !qp.zombie)
    }
}

fn remote_want(op: Op) -> Option<Want> {
    match op {
        Op::Write | Op::WriteWithImm(_) => Some(Want::RemoteWrite),
        Op::Read => Some(Want::RemoteRead),
        Op::CompareSwap { .. } | Op::FetchAdd(_) => Some(Want::RemoteAtomic),
        _ => None,
    }
}
