//! The sending half of EFA queue pairs: requests start in any order, are sent again while nobody answers or is ready, and
//! complete in the order in which their answers come. What the other side does is in `responder`.

use std::collections::{BTreeMap, VecDeque};

use provider_mock::model::{self, Retry, Want};

use crate::efa::cqe::{RequestId, Side, Status};
use crate::efa::landing::{Landing, Place, Then};
use crate::efa::message::{Message, Operation, Outcome, Reply, Request, fabric_number};
use crate::efa::qp::{Qp, Service};
use crate::efa::wqe::{Malformed, Op, Payload, Piece, SendWqe};
use crate::efa::{Engine, Timer};
use crate::fabric::packet::{Address, Body, Packet};
use crate::mlx5::qp::Shared;
use crate::mlx5::transition::QpState;
use crate::trace::Event;

/// Requests of a queue pair under way at once, at most.
const WINDOW: usize = 64;
/// Bytes of a queue pair under way at once, at most (one message may be longer).
const WINDOW_BYTES: u64 = 4 << 20;
/// A request overtakes at most so many that were posted before it, at each choice.
const REACH: usize = 16;
/// How often a request goes out again while nobody answers. The hardware's number is not public.
const RESENDS: u32 = 4;
/// The wait before each, in nanoseconds.
const RESEND_AFTER: u64 = 500_000;
/// The wait for a receiver that is not ready, as a code of the verbs (0.64 ms). The hardware's is not public.
const RNR_TIMER: u8 = 12;
/// The number of retries that is none.
pub const RNR_FOREVER: u8 = 7;

/// The state of the sending half.
#[derive(Debug, Default)]
pub struct Requester {
    /// Fetched and not started.
    pub(super) pending: VecDeque<Result<SendWqe, Malformed>>,
    /// Started and not completed, by token.
    flight: BTreeMap<u64, Outstanding>,
    bytes: u64,
}

/// A request under way.
#[derive(Debug)]
struct Outstanding {
    id: RequestId,
    op: Op,
    signalled: bool,
    len: u64,
    packet: Packet,
    /// Where a READ puts its bytes.
    target: Vec<Piece>,
    resends: u32,
    naks: u32,
}

impl Requester {
    /// Whether nothing is under way or waits.
    pub fn is_idle(&self) -> bool {
        self.len() == 0
    }

    /// Requests that were fetched and have not completed.
    pub(super) fn len(&self) -> usize {
        self.pending.len() + self.flight.len()
    }

    fn has_room(&self) -> bool {
        self.flight.len() < WINDOW && (self.flight.is_empty() || self.bytes < WINDOW_BYTES)
    }

    fn take(&mut self, token: u64) -> Option<Outstanding> {
        let outstanding = self.flight.remove(&token)?;
        self.bytes -= outstanding.len;
        Some(outstanding)
    }

    /// Takes any request back, for the flush: its id, operation.
    pub fn pop(&mut self) -> Option<(RequestId, u8)> {
        if let Some(token) = self.flight.keys().next().copied() {
            return self.take(token).map(|o| (o.id, o.op as u8));
        }
        self.pending.pop_front().map(|wqe| match wqe {
            Ok(wqe) => (wqe.id, wqe.op as u8),
            Err(malformed) => (malformed.id, malformed.op),
        })
    }
}

impl Qp {
    /// Whether a request waits to be started.
    pub fn has_pending(&self) -> bool {
        !self.requester.pending.is_empty()
    }

    /// Whether a request could start now.
    pub fn can_send(&self) -> bool {
        !self.frozen
            && self.state == QpState::Rts
            && !self.requester.pending.is_empty()
            && self.requester.has_room()
    }
}

impl Engine {
    /// Starts one request of a queue pair.
    pub(super) fn send_one(&mut self, qpn: u16, shared: &mut Shared) {
        let Some(qp) = self.qps.get_mut(&qpn).filter(|q| q.can_send()) else { return };
        let reach = qp.requester.pending.len().min(REACH);
        let at = if self.devices[qp.device].limits.in_order { 0 } else { self.choices.below(reach) };
        match qp.requester.pending.remove(at) {
            Some(Ok(wqe)) => self.start(qpn, wqe, shared),
            Some(Err(bad)) => self.complete_malformed(qpn, bad, shared),
            None => {}
        }
    }

    fn complete_malformed(&mut self, qpn: u16, bad: Malformed, shared: &mut Shared) {
        self.complete(qpn, bad.id, bad.op, bad.status, Side::Send, shared);
        if let Some(qp) = self.qps.get_mut(&qpn).filter(|_| bad.status == Status::QpInternalError) {
            qp.fail(shared);
        }
    }

    fn start(&mut self, qpn: u16, wqe: SendWqe, shared: &mut Shared) {
        let (id, op, signalled) = (wqe.id, wqe.op, wqe.signalled);
        let Some(outstanding) = self.build(qpn, wqe, shared).map_or_else(
            |status| {
                self.complete(qpn, id, op as u8, status, Side::Send, shared);
                None
            },
            Some,
        ) else {
            return;
        };
        let sent = Event::Sent { qpn: u32::from(qpn), index: id.low, psn: 0 };
        shared.trace.event(sent);
        let packet = outstanding.packet.clone();
        let Body::Efa(message) = &packet.body else { return };
        if message.wants_answer() {
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.requester.bytes += outstanding.len;
                qp.requester.flight.insert(message.token(), outstanding);
            }
        } else if signalled {
            self.complete(qpn, id, op as u8, Status::Ok, Side::Send, shared);
        }
        shared.send(packet);
    }

    /// Checks a request, and makes its message.
    fn build(&mut self, qpn: u16, wqe: SendWqe, shared: &Shared) -> Result<Outstanding, Status> {
        let token = self.next_token();
        let qp = self.qps.get(&qpn).ok_or(Status::QpInternalError)?;
        let device = &self.devices[qp.device];
        let limits = &device.limits;
        let allowed = match wqe.op {
            Op::Send => true,
            Op::Read => limits.read && qp.service == Service::Srd,
            Op::Write => limits.write && qp.service == Service::Srd,
        };
        if !allowed {
            return Err(Status::UnsupportedOp);
        }
        let gid = self.addresses.gid(qp.device, wqe.handle, qp.pd).ok_or(Status::InvalidAh)?;
        let len = wqe.payload.len();
        let most = if wqe.op == Op::Send { device.mtu } else { limits.max_rdma_size };
        if len > u64::from(most) || wqe.remote.is_some_and(|r| u64::from(r.len) != len) {
            return Err(Status::BadLength);
        }
        let (data, target) = gather(qp, &wqe, shared)?;
        if device.owns(&gid) && !limits.loopback {
            return Err(Status::UnreachableRemote);
        }
        let operation = match (wqe.op, wqe.remote) {
            (Op::Read, Some(r)) => Operation::Read { addr: r.addr, rkey: r.key, len: r.len },
            (Op::Write, Some(r)) => Operation::Write { addr: r.addr, rkey: r.key },
            _ => Operation::Send,
        };
        let reliable = qp.service == Service::Srd;
        let imm = wqe.imm.filter(|_| wqe.op != Op::Read);
        let request = Request { token, qkey: wqe.qkey, reliable, operation, imm, data };
        let packet = Packet {
            from: Address { lid: 0, gid: Some(device.gid()) },
            to: Address { lid: 0, gid: Some(gid) },
            source: fabric_number(qpn),
            target: fabric_number(wqe.qpn),
            body: Body::Efa(Message::Request(request)),
        };
        let SendWqe { id, op, signalled, .. } = wqe;
        Ok(Outstanding { id, op, signalled, len, packet, target, resends: 0, naks: 0 })
    }

    /// An answer arrived.
    pub(super) fn on_reply(&mut self, qpn: u16, from: &Address, reply: Reply, shared: &mut Shared) {
        let Some(qp) = self.qps.get_mut(&qpn).filter(|q| !q.frozen) else { return };
        let token = reply.token;
        let Some(outstanding) = qp.requester.flight.get_mut(&token) else { return };
        match reply.outcome {
            Outcome::Silence => {
                outstanding.resends += 1;
                if outstanding.resends <= RESENDS {
                    return self.wait(qpn, token, RESEND_AFTER, shared.now);
                }
                let to = outstanding.packet.to;
                let status = self.nobody(qpn, &to, shared);
                self.finish(qpn, token, status, shared);
                return;
            }
            Outcome::NotReady => {
                outstanding.naks += 1;
                let retry = model::on_not_ready(outstanding.naks, qp.attr.rnr_retry, RNR_TIMER);
                self.on_not_ready(qpn, token, retry, shared);
            }
            Outcome::Refused(status) => self.finish(qpn, token, status, shared),
            Outcome::Done => self.on_done(qpn, token, reply.data, shared),
        }
        self.responsive.extend(from.gid);
    }

    fn on_not_ready(&mut self, qpn: u16, token: u64, retry: Retry, shared: &mut Shared) {
        match retry {
            Retry::After(pause) | Retry::Forever(pause) => {
                self.wait(qpn, token, pause.as_nanos() as u64, shared.now);
            }
            Retry::GiveUp(_) | Retry::Hang => self.finish(qpn, token, Status::RemoteNotReady, shared),
        }
    }

    fn on_done(&mut self, qpn: u16, token: u64, data: Vec<u8>, shared: &mut Shared) {
        let Some(qp) = self.qps.get(&qpn) else { return };
        let Some(outstanding) = qp.requester.flight.get(&token) else { return };
        let in_order = self.devices[qp.device].limits.in_order;
        if outstanding.op != Op::Read {
            if in_order {
                // Behind the bytes of READs before it.
                return self.land_later(Landing::turn(qpn, Then::Complete(token)));
            }
            return self.finish(qpn, token, Status::Ok, shared);
        }
        if data.len() as u64 != outstanding.len {
            return self.finish(qpn, token, Status::RemoteBadStatus, shared);
        }
        let place = Place { pd: qp.pd, want: Want::LocalWrite, pieces: outstanding.target.clone() };
        let mtu = self.devices[qp.device].mtu;
        let order = (!in_order).then_some(&mut self.choices);
        let landing = Landing::new(qpn, place, data, mtu, order, Then::Complete(token));
        self.land_later(landing);
    }

    /// Completes a request.
    pub(super) fn finish(&mut self, qpn: u16, token: u64, status: Status, shared: &mut Shared) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        let Some(done) = qp.requester.take(token) else { return };
        if done.signalled || status != Status::Ok {
            self.complete(qpn, done.id, done.op as u8, status, Side::Send, shared);
        }
    }

    /// Why nobody answers: at an address that carries messages there is no such queue pair; else nobody is there any more,
    /// or never was.
    fn nobody(&self, qpn: u16, to: &Address, shared: &Shared) -> Status {
        let gid = to.gid.unwrap_or_default();
        let own = self.qps.get(&qpn).map(|q| Address { lid: 0, gid: Some(self.devices[q.device].gid()) });
        let stopped = shared.faults.is_stopped(to) || own.is_some_and(|own| shared.faults.is_stopped(&own));
        if !stopped && self.devices.iter().any(|d| d.answers_at(&gid)) {
            Status::RemoteBadDestQpn
        } else if self.responsive.contains(&gid) {
            Status::UnresponsiveRemote
        } else {
            Status::UnreachableRemote
        }
    }

    fn wait(&mut self, qpn: u16, token: u64, pause: u64, now: u64) {
        self.timers.insert(Timer { at: now + pause, qpn, token });
    }

    /// A pause is over: the request goes out again, if it is still under way.
    pub(super) fn send_again(&mut self, timer: Timer, shared: &mut Shared) {
        let Some(qp) = self.qps.get(&timer.qpn).filter(|q| !q.frozen) else { return };
        let Some(outstanding) = qp.requester.flight.get(&timer.token) else { return };
        let qpn = u32::from(timer.qpn);
        shared.trace.event(Event::Timer { qpn });
        shared.trace.event(Event::Sent { qpn, index: outstanding.id.low, psn: 0 });
        shared.send(outstanding.packet.clone());
    }
}

/// The bytes of a request; or for READ, the places that they will go to.
fn gather(qp: &Qp, wqe: &SendWqe, shared: &Shared) -> Result<(Vec<u8>, Vec<Piece>), Status> {
    let pieces = match &wqe.payload {
        Payload::Inline(bytes) => return Ok((bytes.clone(), Vec::new())),
        Payload::Pieces(pieces) => pieces,
    };
    let want = if wqe.op == Op::Read { Want::LocalWrite } else { Want::LocalRead };
    let mut data = Vec::new();
    for piece in pieces {
        let span = shared
            .regions
            .span(piece.key, qp.pd, want, piece.addr, u64::from(piece.len))
            .map_err(|_| Status::InvalidLkey)?;
        if wqe.op != Op::Read {
            span.append_to(&mut data).map_err(|_| Status::InvalidLkey)?;
        }
    }
    let target = if wqe.op == Op::Read { pieces.clone() } else { Vec::new() };
    Ok((data, target))
}
