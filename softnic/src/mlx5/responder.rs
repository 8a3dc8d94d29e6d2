//! The answering half of a reliable connection: sequence, permission, receives, and the access itself. How the requester
//! goes on is in `requester`.

use std::collections::VecDeque;

use ibv_core::{Access, WcStatus};
use provider_mock::model::{self, Denied, Refused, Want};

use crate::fabric::packet::{Body, Function, Operation, Packet, Reply, Request};
use crate::memory;
use crate::mlx5::cqe::{Kind, Source};
use crate::mlx5::qp::{Late, Qp, Shared, async_event};
use crate::mlx5::region::Span;
use crate::mlx5::transition::QpState;
use crate::mlx5::wqe::Opcode;
use crate::rules::{Arrival, Nak, Psn, arrival};

/// Results of atomics kept for repeated requests.
const KEPT_ATOMICS: usize = 16;

/// The state of the answering half.
#[derive(Debug)]
pub struct Responder {
    expected: Psn,
    /// The requester was told that a packet is missing or a receive is; what follows is dropped until it comes.
    told: bool,
    atomics: VecDeque<(Psn, u64)>,
    started: bool,
}

impl Default for Responder {
    fn default() -> Self {
        Self { expected: Psn::new(0), told: false, atomics: VecDeque::new(), started: false }
    }
}

impl Responder {
    /// Starts at the number that `modify_qp` set.
    pub fn start(&mut self, psn: u32) {
        *self = Self { expected: Psn::new(psn), ..Self::default() };
    }
}

/// Why a request was not carried out.
pub(crate) struct Refusal {
    pub(crate) nak: Nak,
    /// The completion of the receive that it would have filled.
    pub(crate) receive: Option<WcStatus>,
}

impl From<Nak> for Refusal {
    fn from(nak: Nak) -> Self {
        Self { nak, receive: None }
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        Self { nak: Nak::for_status(refused.sender), receive: Some(refused.receiver) }
    }
}

impl Qp {
    /// Answers a request; `None` stands for silence.
    pub(crate) fn on_request(&mut self, packet: &Packet, shared: &mut Shared) -> Option<Reply> {
        let Body::Request(request) = &packet.body else { return None };
        if !self.listens_to(packet) {
            return None;
        }
        match arrival(request.psn, self.responder.expected) {
            Arrival::Expected => Some(self.execute(packet, request, shared)),
            Arrival::Duplicate => self.repeat(request, shared),
            Arrival::Ahead if self.responder.told => None,
            Arrival::Ahead => {
                self.responder.told = true;
                Some(Reply::Nak { psn: self.responder.expected, nak: Nak::Sequence })
            }
        }
    }

    pub(crate) fn listens_to(&self, packet: &Packet) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
            && packet.source == self.attr.dest_qpn
            && packet.from == self.remote
            && packet.to == self.local
    }

    fn execute(&mut self, packet: &Packet, request: &Request, shared: &mut Shared) -> Reply {
        let psn = request.psn;
        if !self.responder.started {
            self.responder.started = true;
            if self.state == QpState::Rtr {
                self.report(async_event::COMM_EST, shared);
            }
        }
        self.responder.told = false;
        match self.carry_out(packet, request, shared) {
            Ok(reply) => {
                self.responder.expected = psn.plus(request.packets);
                reply
            }
            Err(Refusal { nak: nak @ Nak::ReceiverNotReady(_), .. }) => {
                self.responder.told = true;
                Reply::Nak { psn, nak }
            }
            Err(refusal) => {
                self.refuse(&refusal, shared);
                Reply::Nak { psn, nak: refusal.nak }
            }
        }
    }

    /// A request that can't be carried out ends the connection at this side too.
    fn refuse(&mut self, refusal: &Refusal, shared: &mut Shared) {
        if let Some(status) = refusal.receive {
            self.fail_receive(status, shared);
        } else if refusal.nak == Nak::RemoteAccess {
            self.report(async_event::QP_ACCESS_ERR, shared);
        } else {
            self.report(async_event::QP_REQ_ERR, shared);
        }
        self.set_state(QpState::Error, shared);
    }

    fn carry_out(
        &mut self,
        packet: &Packet,
        request: &Request,
        shared: &mut Shared,
    ) -> Result<Reply, Refusal> {
        let psn = request.psn;
        match request.operation {
            Operation::Send { imm } => {
                self.accept_send(packet, request, imm, shared)?;
                Ok(Reply::Ack { psn })
            }
            Operation::SendInvalidate { rkey } => {
                let spans = self.receive_spans(request.data.len() as u64, shared)?;
                shared.regions.invalidate(rkey, self.qpn, self.pd).map_err(|_| Nak::RemoteAccess)?;
                let scattered = self.fill(&spans, &request.data, shared)?;
                let arrival = arrival_of(packet, request, Opcode::SendInvalidate, Some(rkey.to_be_bytes()));
                self.complete_receive(arrival, scattered, shared);
                Ok(Reply::Ack { psn })
            }
            Operation::Write { addr, rkey, imm } => {
                self.accept_write(packet, request, (addr, rkey), imm, shared)?;
                Ok(Reply::Ack { psn })
            }
            Operation::Read { addr, rkey, len } => {
                let span = self.remote_span(Want::RemoteRead, addr, rkey, u64::from(len), shared)?;
                let mut data = Vec::new();
                span.append_to(&mut data).map_err(|_| Nak::RemoteOperation)?;
                Ok(Reply::Data { psn, data })
            }
            Operation::Atomic { addr, rkey, function } => {
                let old = self.atomic(addr, rkey, function, shared)?;
                self.keep_atomic(psn, old);
                Ok(Reply::Data { psn, data: old.to_ne_bytes().to_vec() })
            }
        }
    }

    /// Carries out a SEND: fills and completes the next receive.
    pub(crate) fn accept_send(
        &mut self,
        packet: &Packet,
        request: &Request,
        imm: Option<[u8; 4]>,
        shared: &mut Shared,
    ) -> Result<(), Refusal> {
        let spans = self.receive_spans(request.data.len() as u64, shared)?;
        let scattered = self.fill(&spans, &request.data, shared)?;
        let opcode = if imm.is_some() { Opcode::SendImm } else { Opcode::Send };
        self.complete_receive(arrival_of(packet, request, opcode, imm), scattered, shared);
        Ok(())
    }

    /// Carries out a WRITE to an address of a key; immediate data completes the next receive.
    pub(crate) fn accept_write(
        &mut self,
        packet: &Packet,
        request: &Request,
        (addr, rkey): (u64, u32),
        imm: Option<[u8; 4]>,
        shared: &mut Shared,
    ) -> Result<(), Refusal> {
        let span = self.remote_span(Want::RemoteWrite, addr, rkey, request.data.len() as u64, shared)?;
        if imm.is_some() && !self.has_receive(shared) {
            return Err(Nak::ReceiverNotReady(self.attr.min_rnr_timer).into());
        }
        self.write(span, rkey, &request.data, shared)?;
        if imm.is_some() {
            self.complete_receive(arrival_of(packet, request, Opcode::WriteImm, imm), None, shared);
        }
        Ok(())
    }

    fn remote_span(
        &self,
        want: Want,
        addr: u64,
        rkey: u32,
        len: u64,
        shared: &Shared,
    ) -> Result<Span, Refusal> {
        if want != Want::RemoteWrite && self.attr.max_dest_rd_atomic == 0 {
            return Err(Nak::InvalidRequest.into());
        }
        if !Access::from_bits_retain(self.attr.access).contains(want.right()) {
            return Err(Nak::RemoteAccess.into());
        }
        if !shared.regions.is_open_to(rkey, self.qpn) {
            return Err(Nak::RemoteAccess.into());
        }
        shared.regions.span(rkey, self.pd, want, addr, len).map_err(|denied| denied_nak(denied, want).into())
    }

    fn write(&self, span: Span, rkey: u32, data: &[u8], shared: &mut Shared) -> Result<(), Refusal> {
        if let Some(steps) = shared.faults.on_write() {
            shared.late.push(Late { steps, rkey, addr: span.addr, data: data.to_vec() });
            return Ok(());
        }
        memory::write(span.addr, data).map_err(|_| Nak::RemoteOperation.into())
    }

    /// Atomic among the requests of this process's devices (`IBV_ATOMIC_HCA`): all of them run under one lock.
    fn atomic(&self, addr: u64, rkey: u32, function: Function, shared: &Shared) -> Result<u64, Refusal> {
        let span = self.remote_span(Want::RemoteAtomic, addr, rkey, 8, shared)?;
        let old = memory::read_u64(span.addr).map_err(|_| Nak::RemoteOperation)?;
        let new = function.apply(old);
        memory::write(span.addr, &new.to_ne_bytes()).map_err(|_| Nak::RemoteOperation)?;
        Ok(old)
    }

    fn keep_atomic(&mut self, psn: Psn, old: u64) {
        self.responder.atomics.push_back((psn, old));
        if self.responder.atomics.len() > KEPT_ATOMICS {
            self.responder.atomics.pop_front();
        }
    }

    /// A request that was carried out before: its answer was lost.
    fn repeat(&mut self, request: &Request, shared: &mut Shared) -> Option<Reply> {
        let psn = request.psn;
        match request.operation {
            Operation::Send { .. } | Operation::SendInvalidate { .. } | Operation::Write { .. } => {
                Some(Reply::Ack { psn })
            }
            Operation::Read { addr, rkey, len } => {
                let span = self.remote_span(Want::RemoteRead, addr, rkey, u64::from(len), shared).ok()?;
                let mut data = Vec::new();
                span.append_to(&mut data).ok()?;
                Some(Reply::Data { psn, data })
            }
            Operation::Atomic { .. } => {
                let old = self.responder.atomics.iter().find(|(p, _)| *p == psn)?.1;
                Some(Reply::Data { psn, data: old.to_ne_bytes().to_vec() })
            }
        }
    }
}

/// What the receiver's completion says of a request.
fn arrival_of(packet: &Packet, request: &Request, opcode: Opcode, imm: Option<[u8; 4]>) -> Kind {
    let global = packet.from.gid.is_some();
    Kind::Response {
        opcode,
        len: request.data.len() as u32,
        imm: imm.unwrap_or_default(),
        source: Source { qpn: packet.source, lid: packet.from.lid, global, ..Source::default() },
        solicited: request.solicited,
    }
}

fn denied_nak(denied: Denied, want: Want) -> Nak {
    Nak::for_status(model::denied_status(denied, want))
}
