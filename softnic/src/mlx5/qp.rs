//! Queue pairs of mlx5: rings, doorbells, attributes, state, and the flush. How requests are sent and answered is in
//! `requester` and `responder`.

use ibv_core::WcStatus;

use crate::fabric::Fabric;
use crate::fabric::packet::{Address, Packet};
use crate::fault::Faults;
use crate::memory::{Fault, Pinned};
pub use crate::mlx5::async_event;
use crate::mlx5::cq::CqSide;
use crate::mlx5::cqe::{Cqe, Kind, Side};
use crate::mlx5::cqs::Cqs;
use crate::mlx5::port::Port;
use crate::mlx5::region::Regions;
use crate::mlx5::requester::Requester;
use crate::mlx5::responder::Responder;
use crate::mlx5::ring::Ring;
use crate::mlx5::scatter::{ScatterToCqe, Scattered};
use crate::mlx5::srq::Srq;
use crate::mlx5::transition::{QpState, Transport};
use crate::mlx5::wqe::{BASIC_BLOCK, Control, MAX_DESCRIPTOR};
use crate::numbered::Numbered;
use crate::trace::{Action, Breach, Event, PacketView, Trace};

/// What a queue pair reaches beyond itself.
#[derive(Debug, Default)]
pub struct Shared {
    /// Registered memory.
    pub regions: Regions,
    /// Completion queues.
    pub cqs: Cqs,
    /// Shared receive queues.
    pub srqs: Numbered<Srq>,
    /// The fabric.
    pub fabric: Fabric,
    /// Ordered faults.
    pub faults: Faults,
    /// Trace and breaches.
    pub trace: Trace,
    /// The device's clock in nanoseconds.
    pub now: u64,
    /// Asynchronous events to be sent: context, element, type.
    pub async_events: Vec<(u32, u64, u32)>,
    /// Payloads that are late on purpose.
    pub late: Vec<Late>,
    /// A completion had no room: queue pairs have to be looked at.
    pub overrun: bool,
}

impl Shared {
    /// Sends a packet into the fabric.
    pub fn send(&mut self, packet: Packet) {
        let view = self.trace.is_on().then(|| PacketView::new(Action::Sent, &packet));
        let action = self.fabric.send(packet, &mut self.faults, self.now);
        if let Some(view) = view {
            self.trace.event(Event::Packet(PacketView { action, ..view }));
        }
    }

    /// Moves the device's clock.
    pub fn set_time(&mut self, now: u64) {
        (self.now, self.trace.now) = (now, now);
    }
}

/// A payload that is late on purpose.
#[derive(Debug)]
pub struct Late {
    /// Steps until it lands.
    pub steps: u32,
    /// The region that it goes to; one that is gone meanwhile takes the payload with it.
    pub rkey: u32,
    /// Address in this process.
    pub addr: u64,
    /// The bytes.
    pub data: Vec<u8>,
}

/// How a queue pair was created.
#[derive(Debug, Clone, Copy, Default)]
pub struct QpLayout {
    /// Address of the buffer: the receive queue, and after it the send queue.
    pub buffer: u64,
    /// Address of the two records.
    pub records: u64,
    /// Basic blocks of the send queue, a power of two or 0.
    pub send_blocks: u32,
    /// Slots of the receive queue, a power of two or 0.
    pub receive_slots: u32,
    /// log2 of the bytes of a receive slot.
    pub receive_shift: u32,
}

/// Attributes that `modify_qp` sets.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "the verbs' own names")]
pub struct QpAttr {
    pub access: u32,
    pub pkey_index: u16,
    pub port: u8,
    pub qkey: u32,
    pub dest: Destination,
    pub path_mtu: u8,
    pub dest_qpn: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub path_mig_state: u8,
}

/// The address vector.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "the verbs' own names")]
pub struct Destination {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub dlid: u16,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: bool,
    pub port: u8,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Number.
    pub qpn: u32,
    /// The context it belongs to.
    pub context: u32,
    /// Index of its device.
    pub device: usize,
    /// Protection domain.
    pub pd: u32,
    /// Send completion queue.
    pub send_cq: u32,
    /// Receive completion queue.
    pub receive_cq: u32,
    /// What service it gives.
    pub transport: Transport,
    /// Where its receives come from, if not from a queue of its own.
    pub srq: Option<u32>,
    /// The register page of its doorbell.
    pub page: usize,
    /// The program's index for it, which completions carry.
    pub uidx: u32,
    /// The program's name for it in events.
    pub user_handle: u64,
    /// What the program asked for: send and receive requests, pieces of each, inline bytes.
    pub caps: [u32; 5],
    /// Whether the program said that each request reports.
    pub all_signalled: bool,
    /// Asynchronous events sent for it.
    pub async_events: u32,
    /// State.
    pub state: QpState,
    /// What it puts into completion entries.
    pub scatter: ScatterToCqe,
    /// Its device failed: it does nothing any more.
    pub frozen: bool,
    /// Attributes.
    pub attr: QpAttr,
    /// Its port, once it has one.
    pub port: Port,
    /// Own port's address, once it has a path.
    pub local: Address,
    /// Peer's port, once it has a path.
    pub remote: Address,
    pub(crate) send: Option<Ring>,
    pub(crate) receive: Option<Ring>,
    records: Pinned,
    /// Next basic block to fetch.
    pub(crate) fetched: u16,
    /// The send record when the doorbell was last rung.
    pub(crate) rung: u16,
    /// Next receive to take.
    pub(crate) taken: u16,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// Copies of rung requests (strict mode), by first basic block.
    shadow: Vec<(u16, Vec<u8>)>,
}

impl Qp {
    /// Makes a queue pair over the program's memory, in the reset state.
    pub fn new(qpn: u32, context: u32, layout: QpLayout) -> Result<Self, Fault> {
        let receive_bytes = (layout.receive_slots as usize) << layout.receive_shift;
        let receive = Ring::new(layout.buffer, 0, layout.receive_slots, 1 << layout.receive_shift)?;
        let send = Ring::new(layout.buffer, receive_bytes, layout.send_blocks, BASIC_BLOCK)?;
        let records = Pinned::new(layout.records, 8)?;
        Ok(Self {
            qpn,
            context,
            device: 0,
            pd: 0,
            send_cq: 0,
            receive_cq: 0,
            transport: Transport::Rc,
            srq: None,
            page: 0,
            uidx: 0,
            user_handle: 0,
            caps: [0; 5],
            all_signalled: false,
            async_events: 0,
            state: QpState::Reset,
            scatter: ScatterToCqe::default(),
            frozen: false,
            attr: QpAttr::default(),
            port: Port::default(),
            local: Address::default(),
            remote: Address::default(),
            send,
            receive,
            records,
            fetched: 0,
            rung: 0,
            taken: 0,
            requester: Requester::default(),
            responder: Responder::default(),
            shadow: Vec::new(),
        })
    }

    /// The send record: basic blocks published.
    pub fn send_record(&self) -> u16 {
        u32::from_be(self.records.load_u32(4)) as u16
    }

    /// The receive record: receives published.
    pub fn receive_record(&self) -> u16 {
        u32::from_be(self.records.load_u32(0)) as u16
    }

    /// Its register was written: run up to the send record.
    pub fn doorbell(&mut self, shared: &mut Shared) {
        let record = self.send_record();
        if record == self.rung || self.state == QpState::Reset || self.send.is_none() {
            return;
        }
        if shared.trace.strict {
            self.check_depth(record, &mut shared.trace);
            self.shadow_requests(record);
        }
        self.rung = record;
        shared.trace.event(Event::Doorbell { qpn: self.qpn, record });
    }

    fn check_depth(&self, record: u16, trace: &mut Trace) {
        let depth = self.send.as_ref().map_or(0, Ring::entries);
        let done = self.requester.oldest().unwrap_or(self.fetched);
        if u32::from(record.wrapping_sub(done)) > depth {
            trace.breach(Breach::Overfull { qpn: self.qpn, record, done, depth });
        }
    }

    fn shadow_requests(&mut self, record: u16) {
        let mut at = self.rung;
        while at != record && self.shadow.len() < usize::from(u16::MAX) {
            let Some((control, bytes)) = self.fetch_bytes(at) else { return };
            self.shadow.push((at, bytes));
            at = at.wrapping_add(control.basic_blocks().min(record.wrapping_sub(at)));
        }
    }

    /// Compares a request with what it was at its doorbell; `last` forgets it.
    pub(crate) fn check_unchanged(&mut self, index: u16, last: bool, trace: &mut Trace) {
        let Some(at) = self.shadow.iter().position(|(i, _)| *i == index) else { return };
        let now = self.fetch_bytes(index).map(|(_, bytes)| bytes);
        if now.as_ref() != Some(&self.shadow[at].1) {
            trace.breach(Breach::Changed { qpn: self.qpn, index });
        }
        if last {
            self.shadow.swap_remove(at);
        }
    }

    /// A record that moved without a doorbell (strict mode, when the program is known to be idle).
    pub fn check_rung(&self, trace: &mut Trace) {
        let record = self.send_record();
        if record != self.rung && !matches!(self.state, QpState::Reset) {
            trace.breach(Breach::NoDoorbell { qpn: self.qpn, record, rung: self.rung });
        }
    }

    /// Compares a register write with the ring (strict mode). `value` is what was written, `copy` a BlueFlame copy.
    pub fn check_register(&self, control: &Control, copy: &[u8], record: u16, trace: &mut Trace) {
        let end = control.index.wrapping_add(control.basic_blocks());
        // Under a thread, the device may have run ahead to a record whose register write came later, and more may follow.
        let depth = self.send.as_ref().map_or(0, Ring::entries);
        let plausible = u32::from(record.wrapping_sub(end)) <= depth;
        if end != record && (trace.exact || !plausible) {
            trace.breach(Breach::DoorbellIndex { qpn: self.qpn, index: control.index, record });
            return;
        }
        let Some((_, bytes)) = self.fetch_bytes(control.index).filter(|_| trace.exact) else { return };
        let len = bytes.len().min(copy.len());
        let copied = copy.iter().skip(8).any(|b| *b != 0);
        if bytes[..8] != copy[..8] || copied && bytes[..len] != copy[..len] {
            trace.breach(Breach::BlueFlame { qpn: self.qpn, index: control.index });
        }
    }

    /// Copies the request at `index` out of the ring: its control segment and its `ds · 16` bytes.
    pub(crate) fn fetch_bytes(&self, index: u16) -> Option<(Control, Vec<u8>)> {
        let ring = self.send.as_ref()?;
        let head = ring.copy(index, 16);
        let control = Control::decode(head.first_chunk()?);
        let len = (usize::from(control.ds) * 16).clamp(16, MAX_DESCRIPTOR);
        Some((control, ring.copy(index, len)))
    }

    /// How many requests were rung and not fetched, in basic blocks.
    pub(crate) fn unfetched(&self) -> u16 {
        self.rung.wrapping_sub(self.fetched)
    }

    /// Enters a state of its own accord or by `modify_qp`.
    pub fn set_state(&mut self, state: QpState, shared: &mut Shared) {
        if self.state == state {
            return;
        }
        self.state = state;
        shared.trace.event(Event::State { qpn: self.qpn, state });
        match state {
            QpState::Reset => self.reset(),
            QpState::Error => {
                self.requester.stop();
                if self.srq.is_some() {
                    self.report(async_event::QP_LAST_WQE_REACHED, shared);
                }
            }
            _ => {}
        }
    }

    /// Its device failed.
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
        self.requester.stop();
    }

    /// libmlx5 zeroes both records and its own indices at the same moment.
    pub(crate) fn reset(&mut self) {
        (self.fetched, self.rung, self.taken) = (0, 0, 0);
        self.requester = Requester::default();
        self.responder = Responder::default();
        self.shadow.clear();
        self.attr = QpAttr::default();
    }

    /// Whether the flush has anything to report. A send queue in error leaves the receives alone.
    pub(crate) fn must_flush(&self) -> bool {
        match self.state {
            _ if self.frozen => false,
            QpState::Error => {
                self.requester.oldest().is_some() || self.unfetched() != 0 || self.untaken() != 0
            }
            QpState::Sqe => self.unfetched() != 0,
            _ => false,
        }
    }

    /// Reports one request as flushed: first all sends, then all receives, each in order.
    pub(crate) fn flush_one(&mut self, shared: &mut Shared) {
        if let Some(request) = self.requester.pop() {
            self.complete_error(Side::Send, request.index, request.opcode, WcStatus::WR_FLUSH_ERR, shared);
        } else if self.unfetched() != 0 {
            self.flush_unfetched(shared);
        } else if self.state == QpState::Error && self.untaken() != 0 {
            let counter = self.taken;
            self.taken = counter.wrapping_add(1);
            self.complete_error(Side::Receive, counter, 0, WcStatus::WR_FLUSH_ERR, shared);
        }
    }

    fn flush_unfetched(&mut self, shared: &mut Shared) {
        let index = self.fetched;
        let Some((control, _)) = self.fetch_bytes(index) else {
            self.fetched = self.rung;
            return;
        };
        self.fetched = index.wrapping_add(control.basic_blocks().min(self.unfetched()));
        self.complete_error(Side::Send, index, control.opcode, WcStatus::WR_FLUSH_ERR, shared);
    }

    /// Receives posted to its own queue and not taken.
    pub(crate) fn untaken(&self) -> u16 {
        match &self.receive {
            Some(_) => self.receive_record().wrapping_sub(self.taken),
            None => 0,
        }
    }

    pub(crate) fn complete_error(
        &mut self,
        side: Side,
        counter: u16,
        opcode: u8,
        status: WcStatus,
        shared: &mut Shared,
    ) {
        self.complete(side, counter, Kind::Error { side, opcode, status }, shared);
    }

    pub(crate) fn complete(&mut self, side: Side, counter: u16, kind: Kind, shared: &mut Shared) {
        self.complete_with(side, counter, kind, None, shared);
    }

    /// Reports a request, and brings the data of its message if there is any.
    pub(crate) fn complete_with(
        &mut self,
        side: Side,
        counter: u16,
        kind: Kind,
        scattered: Option<Scattered>,
        shared: &mut Shared,
    ) {
        if side == Side::Send && shared.trace.strict {
            self.check_unchanged(counter, true, &mut shared.trace);
        }
        let cqn = if side == Side::Send { self.send_cq } else { self.receive_cq };
        let cqe = Cqe { qpn: self.qpn, uidx: self.uidx, counter, kind, scattered };
        let mut out = CqSide { faults: &mut shared.faults, trace: &mut shared.trace, now: shared.now };
        let Some(cq) = shared.cqs.get_mut(cqn) else { return };
        let was_dead = cq.dead;
        if cq.push(cqn, &cqe, &mut out).is_err() {
            shared.overrun = true;
            if !was_dead {
                cq.async_events += 1;
                shared.async_events.push((cq.context, cq.user_handle, async_event::CQ_ERR));
            }
        }
    }

    /// Reports an asynchronous event of this queue pair.
    pub(crate) fn report(&mut self, event: u32, shared: &mut Shared) {
        self.async_events += 1;
        shared.async_events.push((self.context, self.user_handle, event));
    }
}
