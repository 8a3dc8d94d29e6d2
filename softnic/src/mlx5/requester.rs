//! The sending half of a reliable connection: fetches requests, keeps them until they are answered, retries, completes them
//! in order. What the other side does is in `responder`.

use std::collections::VecDeque;

use ibv_core::WcStatus;
use provider_mock::model::{self, Retry, Start, Want};

use crate::fabric::packet::{Body, Packet, Reply, Request};
use crate::mlx5::cqe::{Kind, Side};
use crate::mlx5::operation::{op, operation};
use crate::mlx5::qp::{Qp, Shared};
use crate::mlx5::region::scatter;
use crate::mlx5::scatter::Scattered;
use crate::mlx5::transition::QpState;
use crate::mlx5::wqe::{DataSegment, Opcode, Segment, SendWqe, decode_send};
use crate::rules::{Nak, Psn, mtu_bytes, packet_count};
use crate::trace::{Event, Kind as Device, Queue};

/// Requests under way at once, at most.
const WINDOW: usize = 128;
/// Payload bytes under way at once, at most (one message may be longer).
const WINDOW_BYTES: u64 = 4 << 20;

/// The state of the sending half.
#[derive(Debug)]
pub struct Requester {
    next: Psn,
    flight: VecDeque<Outstanding>,
    /// Index in `flight` of the next one to be sent (again).
    cursor: usize,
    /// How often requests went out again since the last progress, and how often the peer was not ready.
    resends: u32,
    naks: u32,
    /// When the wait for an answer ends.
    timer: Option<u64>,
    /// Not ready: nothing is sent before.
    not_before: Option<u64>,
    /// A request can't be carried out: nothing after it is fetched.
    halted: bool,
}

impl Default for Requester {
    fn default() -> Self {
        Self {
            next: Psn::new(0),
            flight: VecDeque::new(),
            cursor: 0,
            resends: 0,
            naks: 0,
            timer: None,
            not_before: None,
            halted: false,
        }
    }
}

/// A request that was fetched and has not completed.
#[derive(Debug)]
pub struct Outstanding {
    /// Its first basic block.
    pub index: u16,
    /// Its opcode number.
    pub opcode: u8,
    signalled: bool,
    len: u64,
    psn: Psn,
    packets: u32,
    /// Where a READ or an atomic puts its result. Looked up again when it comes: the region may be gone by then.
    target: Vec<DataSegment>,
    request: Option<Request>,
    outcome: Option<WcStatus>,
    /// The result, if it travels in the completion entry.
    scattered: Option<Scattered>,
}

impl Outstanding {
    fn needs_data(&self) -> bool {
        Opcode::from_code(self.opcode).is_some_and(Opcode::writes_locally)
    }
}

impl Requester {
    /// Starts at the number that `modify_qp` set.
    pub fn start(&mut self, psn: u32) {
        self.next = Psn::new(psn);
    }

    /// First basic block of the oldest request under way.
    pub fn oldest(&self) -> Option<u16> {
        self.flight.front().map(|o| o.index)
    }

    /// Takes the oldest request.
    pub fn pop(&mut self) -> Option<Outstanding> {
        self.cursor = self.cursor.saturating_sub(1);
        self.flight.pop_front()
    }

    /// Ends all waiting.
    pub fn stop(&mut self) {
        (self.timer, self.not_before, self.halted) = (None, None, true);
    }

    /// When a timer of this queue pair is due.
    pub fn next_timer(&self) -> Option<u64> {
        match (self.timer, self.not_before) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn reads(&self) -> usize {
        self.flight.iter().filter(|o| o.needs_data() && o.outcome.is_none()).count()
    }

    fn has_room(&self) -> bool {
        let bytes: u64 = self.flight.iter().map(|o| o.len).sum();
        self.flight.len() < WINDOW && (self.flight.is_empty() || bytes < WINDOW_BYTES)
    }

    fn find(&self, psn: Psn) -> Option<usize> {
        self.flight.iter().position(|o| o.request.is_some() && o.psn == psn)
    }
}

/// What a queue pair would send next.
enum Next {
    Again,
    Fetch,
    Nothing,
}

impl Qp {
    /// Whether a send step would do something.
    pub(crate) fn can_send(&self, now: u64) -> bool {
        !matches!(self.next_send(now), Next::Nothing)
    }

    fn next_send(&self, now: u64) -> Next {
        let requester = &self.requester;
        let waits = requester.not_before.is_some_and(|t| now < t);
        if !matches!(self.state, QpState::Rts | QpState::Sqd) || waits || self.frozen {
            return Next::Nothing;
        }
        if requester.cursor < requester.flight.len() {
            return Next::Again;
        }
        let may_fetch = self.state == QpState::Rts && !requester.halted && requester.has_room();
        if may_fetch && self.unfetched() != 0 && !self.is_held_back() { Next::Fetch } else { Next::Nothing }
    }

    /// A fence, or too many READs and atomics under way.
    fn is_held_back(&self) -> bool {
        let Some((control, _)) = self.fetch_bytes(self.fetched) else { return false };
        let Some(op) = Opcode::from_code(control.opcode).and_then(op) else { return false };
        let reads = self.requester.reads() as u32;
        model::start(op, control.fenced(), reads, self.attr.max_rd_atomic) != Start::Now
    }

    /// Sends one request: again, or freshly fetched.
    pub(crate) fn send_one(&mut self, shared: &mut Shared) {
        match self.next_send(shared.now) {
            Next::Nothing => return,
            Next::Again => {}
            Next::Fetch if !self.transport.is_reliable() => return self.send_unreliable(shared),
            Next::Fetch => self.fetch_one(shared),
        }
        self.requester.not_before = None;
        self.transmit(shared);
        self.retire(shared);
    }

    fn fetch_one(&mut self, shared: &mut Shared) {
        let index = self.fetched;
        let Some((control, bytes)) = self.fetch_bytes(index) else { return };
        if shared.trace.strict {
            self.check_unchanged(index, false, &mut shared.trace);
        }
        self.fetched = index.wrapping_add(control.basic_blocks().min(self.unfetched()));
        shared.trace.wqe(Device::Mlx5, self.qpn, Queue::Send, index, || bytes.clone());
        let built = match decode_send(&bytes, self.qpn, index, self.transport) {
            Ok(wqe) if wqe.bind.is_some() => self.bind_window(&wqe, shared),
            Ok(wqe) => self.build(wqe, shared),
            Err(malformed) => {
                crate::log::debug(|| format!("queue pair {:#x} request {index}: {malformed}", self.qpn));
                Err(WcStatus::LOC_QP_OP_ERR)
            }
        };
        let outstanding = built.unwrap_or_else(|status| {
            self.requester.halted = true;
            failed(index, control.opcode, self.requester.next, status)
        });
        if outstanding.request.is_some() {
            self.requester.next = outstanding.psn.plus(outstanding.packets);
        }
        self.requester.flight.push_back(outstanding);
    }

    fn build(&self, wqe: SendWqe, shared: &Shared) -> Result<Outstanding, WcStatus> {
        let len = wqe.len();
        if len > u64::from(self.port.max_message) {
            return Err(WcStatus::LOC_LEN_ERR);
        }
        let psn = self.requester.next;
        let mut outstanding = Outstanding {
            index: wqe.control.index,
            opcode: wqe.opcode as u8,
            signalled: wqe.control.signalled(),
            len,
            psn,
            packets: packet_count(len, mtu_bytes(self.attr.path_mtu).unwrap_or(4096)),
            target: Vec::new(),
            request: None,
            outcome: None,
            scattered: None,
        };
        if wqe.opcode == Opcode::Nop {
            outstanding.outcome = Some(WcStatus::SUCCESS);
            return Ok(outstanding);
        }
        let mut data = Vec::new();
        if wqe.opcode.writes_locally() {
            outstanding.target = self.local_target(&wqe, shared)?;
        } else {
            self.gather(&wqe.segments, &mut data, shared)?;
        }
        let operation = operation(&wqe, len as u32);
        let solicited = wqe.control.solicited();
        outstanding.request = Some(Request { psn, packets: outstanding.packets, operation, solicited, data });
        Ok(outstanding)
    }

    fn local_target(&self, wqe: &SendWqe, shared: &Shared) -> Result<Vec<DataSegment>, WcStatus> {
        let memory = |s: &Segment| if let Segment::Memory(data) = s { Some(*data) } else { None };
        let pieces: Vec<DataSegment> = wqe.segments.iter().filter_map(memory).collect();
        match shared.regions.spans(&pieces, self.pd, Want::LocalWrite, wqe.len()) {
            Ok(_) => Ok(pieces),
            Err(_) => Err(WcStatus::LOC_PROT_ERR),
        }
    }

    pub(crate) fn gather(
        &self,
        segments: &[Segment],
        data: &mut Vec<u8>,
        shared: &Shared,
    ) -> Result<(), WcStatus> {
        for segment in segments {
            match segment {
                Segment::Inline(bytes) => data.extend_from_slice(bytes),
                Segment::Memory(piece) => shared
                    .regions
                    .span(piece.lkey, self.pd, Want::LocalRead, piece.addr, u64::from(piece.len))
                    .ok()
                    .and_then(|span| span.append_to(data).ok())
                    .ok_or(WcStatus::LOC_PROT_ERR)?,
            }
        }
        Ok(())
    }

    /// The next request of an unreliable connection, which nobody keeps.
    pub(crate) fn next_request(&mut self, wqe: &SendWqe, data: Vec<u8>) -> Request {
        let psn = self.requester.next;
        let packets = packet_count(data.len() as u64, mtu_bytes(self.attr.path_mtu).unwrap_or(4096));
        self.requester.next = psn.plus(packets);
        let operation = operation(wqe, data.len() as u32);
        Request { psn, packets, operation, solicited: wqe.control.solicited(), data }
    }

    /// A request left that nobody keeps.
    pub(crate) fn trace_sent(&self, index: u16, shared: &mut Shared) {
        shared.trace.event(Event::Sent { qpn: self.qpn, index, psn: self.requester.next.get() });
    }

    fn transmit(&mut self, shared: &mut Shared) {
        let Some(outstanding) = self.requester.flight.get(self.requester.cursor) else { return };
        self.requester.cursor += 1;
        let Some(request) = outstanding.request.clone() else { return };
        shared.trace.event(Event::Sent {
            qpn: self.qpn,
            index: outstanding.index,
            psn: outstanding.psn.get(),
        });
        let packet = Packet {
            from: self.local,
            to: self.remote,
            source: self.qpn,
            target: self.attr.dest_qpn,
            body: Body::Request(request),
        };
        shared.send(packet);
    }

    /// An answer arrived.
    pub(crate) fn on_reply(&mut self, source: u32, reply: Reply, shared: &mut Shared) {
        let alive = matches!(self.state, QpState::Rts | QpState::Sqd);
        let Some(at) = self.requester.find(reply.psn()).filter(|_| alive && source == self.attr.dest_qpn)
        else {
            return;
        };
        match reply {
            Reply::Ack { .. } => self.acknowledge(at + 1),
            Reply::Data { data, .. } => self.on_data(at, &data, shared),
            Reply::Nak { nak, .. } => {
                self.acknowledge(at);
                self.on_nak(nak, shared);
            }
            Reply::Silence { .. } => self.on_silence(at, shared.now),
        }
        self.retire(shared);
    }

    /// The first `count` requests arrived. One whose data is missing was answered, but the answer was lost: ask again.
    fn acknowledge(&mut self, count: usize) {
        let requester = &mut self.requester;
        let mut progress = false;
        let mut missing = None;
        for (i, outstanding) in requester.flight.iter_mut().take(count).enumerate() {
            if outstanding.outcome.is_some() {
                continue;
            }
            if outstanding.needs_data() {
                missing = Some(i);
                break;
            }
            outstanding.outcome = Some(WcStatus::SUCCESS);
            progress = true;
        }
        if progress {
            requester.refill();
        }
        if let Some(i) = missing.filter(|i| *i < count) {
            self.go_back(i);
        }
    }

    fn on_data(&mut self, at: usize, data: &[u8], shared: &Shared) {
        self.acknowledge(at);
        let scattered = self.scatter_to_cqe(Side::Send, data, shared);
        let Some(outstanding) = self.requester.flight.get_mut(at) else { return };
        let expected = outstanding.needs_data() && outstanding.len == data.len() as u64;
        if !expected || outstanding.outcome.is_some() {
            return;
        }
        let spans = shared.regions.spans(&outstanding.target, self.pd, Want::LocalWrite, outstanding.len);
        let written = match scattered.filter(|_| outstanding.signalled) {
            Some(scattered) => {
                outstanding.scattered = Some(scattered);
                spans.is_ok()
            }
            None => spans.is_ok_and(|spans| scatter(&spans, data).is_ok()),
        };
        outstanding.outcome = Some(if written { WcStatus::SUCCESS } else { WcStatus::LOC_PROT_ERR });
        self.requester.refill();
    }

    /// Acts on the oldest request without an outcome.
    fn on_nak(&mut self, nak: Nak, shared: &mut Shared) {
        let Some(at) = self.requester.flight.iter().position(|o| o.outcome.is_none()) else { return };
        match nak {
            Nak::ReceiverNotReady(timer) => self.on_not_ready(at, timer, shared.now),
            Nak::Sequence => self.go_back(at),
            _ => self.fail(at, nak.status().unwrap_or(WcStatus::REM_OP_ERR)),
        }
    }

    fn on_not_ready(&mut self, at: usize, timer: u8, now: u64) {
        self.requester.naks += 1;
        // The peer is there: no wait for an answer runs, and what was dropped behind this request goes out again with it.
        self.requester.timer = None;
        match model::on_not_ready(self.requester.naks, self.attr.rnr_retry, timer) {
            Retry::GiveUp(status) => self.fail(at, status),
            Retry::After(pause) | Retry::Forever(pause) => {
                self.requester.cursor = at;
                self.requester.not_before = Some(now + pause.as_nanos() as u64);
            }
            Retry::Hang => {}
        }
    }

    /// Sends again from `at` on, if the budget allows.
    fn go_back(&mut self, at: usize) {
        self.requester.timer = None;
        // A code of 0 stops the timer, not the answers to what was lost.
        let timeout = self.attr.timeout.max(1);
        match model::on_no_answer(self.requester.resends + 1, self.attr.retry_cnt, timeout) {
            Retry::GiveUp(status) => self.fail(at, status),
            _ => {
                self.requester.resends += 1;
                self.requester.cursor = at;
            }
        }
    }

    fn fail(&mut self, at: usize, status: WcStatus) {
        if let Some(outstanding) = self.requester.flight.get_mut(at) {
            outstanding.outcome = Some(status);
        }
        self.requester.stop();
    }

    /// Nobody will answer: the timer runs from now.
    fn on_silence(&mut self, at: usize, now: u64) {
        let unanswered = self.requester.flight.get(at).is_some_and(|o| o.outcome.is_none());
        let not_ready = self.requester.not_before.is_some();
        if unanswered && !not_ready && self.requester.timer.is_none() {
            self.requester.timer = model::ack_timeout(self.attr.timeout).map(|t| now + t.as_nanos() as u64);
        }
    }

    /// Timers that are due.
    pub(crate) fn on_time(&mut self, shared: &mut Shared) {
        if self.requester.not_before.is_some_and(|t| t <= shared.now) {
            self.requester.not_before = None;
        }
        if self.requester.timer.is_none_or(|t| t > shared.now) {
            return;
        }
        shared.trace.event(Event::Timer { qpn: self.qpn });
        let at = self.requester.flight.iter().position(|o| o.outcome.is_none());
        self.requester.timer = None;
        if let Some(at) = at {
            self.go_back(at);
        }
        self.retire(shared);
    }

    /// Completes requests that have an outcome, in order; the first failure ends the connection.
    fn retire(&mut self, shared: &mut Shared) {
        while let Some(status) = self.requester.flight.front().and_then(|o| o.outcome) {
            let Some(done) = self.requester.pop() else { return };
            if status != WcStatus::SUCCESS {
                self.complete_error(Side::Send, done.index, done.opcode, status, shared);
                self.set_state(QpState::Error, shared);
                return;
            }
            if done.signalled {
                let kind = Kind::Request { opcode: done.opcode, len: done.len as u32 };
                self.complete_with(Side::Send, done.index, kind, done.scattered, shared);
            } else if shared.trace.strict {
                self.check_unchanged(done.index, true, &mut shared.trace);
            }
        }
    }
}

impl Requester {
    fn refill(&mut self) {
        (self.resends, self.naks, self.timer) = (0, 0, None);
    }
}

/// A request that was carried out at once, and completes in its turn.
pub(crate) fn done(wqe: &SendWqe) -> Outstanding {
    let signalled = wqe.control.signalled();
    let psn = Psn::new(0);
    Outstanding { signalled, ..failed(wqe.control.index, wqe.opcode as u8, psn, WcStatus::SUCCESS) }
}

fn failed(index: u16, opcode: u8, psn: Psn, status: WcStatus) -> Outstanding {
    Outstanding {
        index,
        opcode,
        signalled: true,
        len: 0,
        psn,
        packets: 1,
        target: Vec::new(),
        request: None,
        outcome: Some(status),
        scattered: None,
    }
}
