//! Queue pairs of EFA: rings, doorbells, attributes and state. How requests are sent and answered is in `requester` and
//! `responder`.

use crate::efa::cqe::RequestId;
use crate::efa::landing::Taken;
use crate::efa::pages::{Block, Doorbell};
use crate::efa::requester::Requester;
use crate::efa::wqe::{Piece, RECEIVE_PIECE, ReceivePiece, decode_receive, decode_send};
use crate::mlx5::async_event;
use crate::mlx5::qp::Shared;
use crate::mlx5::transition::QpState;
use crate::trace::{Event, Kind, Queue};

/// What service a queue pair gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Scalable reliable datagrams.
    Srd,
    /// Unreliable datagrams.
    Ud,
}

/// A ring of fixed entries in the device's memory.
#[derive(Debug)]
pub struct Ring {
    /// Its pages.
    pub block: Block,
    /// Where the program rings.
    pub doorbell: Doorbell,
    /// Entries, a power of two.
    pub entries: u32,
    /// Bytes of an entry.
    pub entry_size: usize,
}

impl Ring {
    /// Copies entry `index` out.
    fn copy(&self, index: u16) -> Vec<u8> {
        let at = (u32::from(index) & (self.entries - 1)) as usize * self.entry_size;
        let mut bytes = vec![0; self.entry_size];
        self.block.memory.copy_out(at, &mut bytes);
        bytes
    }

    /// Entries published behind `done`; `None` if there are more than the ring holds.
    fn published(&self, done: u16) -> Option<u16> {
        let n = (self.doorbell.load() as u16).wrapping_sub(done);
        (u32::from(n) <= self.entries).then_some(n)
    }
}

/// Attributes that `modify_qp` sets.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "the verbs' own names")]
pub struct QpAttr {
    pub pkey_index: u16,
    pub port: u8,
    pub qkey: u32,
    pub sq_psn: u32,
    pub rnr_retry: u8,
}

/// A receive that a message takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receive {
    /// What its completion names.
    pub taken: Taken,
    /// Its memory.
    pub pieces: Vec<Piece>,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Number.
    pub qpn: u16,
    /// The context it belongs to.
    pub context: u32,
    /// Index of its device.
    pub device: usize,
    /// Protection domain.
    pub pd: u32,
    /// Send completion queue, and which of its rings.
    pub send_cq: (u32, u16),
    /// Receive completion queue, and which of its rings.
    pub receive_cq: (u32, u16),
    /// The program's name for it in events.
    pub user_handle: u64,
    /// What the program asked for: send and receive requests, pieces of each, inline bytes.
    pub caps: [u32; 5],
    /// Whether the program said that each request reports.
    pub all_signalled: bool,
    /// Asynchronous events sent for it.
    pub async_events: u32,
    /// Service.
    pub service: Service,
    /// Whether WRITE with immediate data takes no receive.
    pub unsolicited: bool,
    /// Most requests that one doorbell may cover.
    pub max_batch: u32,
    /// State.
    pub state: QpState,
    /// Its device failed: it does nothing any more.
    pub frozen: bool,
    /// Attributes.
    pub attr: QpAttr,
    /// Send queue.
    pub send: Option<Ring>,
    /// Receive queue.
    pub receive: Option<Ring>,
    /// Next request to fetch.
    fetched: u16,
    /// Next piece of a receive to take.
    taken: u16,
    pub(crate) requester: Requester,
}

/// How a queue pair was created, beyond its rings.
#[derive(Debug, Clone, Copy)]
pub struct QpFacts {
    /// The context it belongs to.
    pub context: u32,
    /// Index of its device.
    pub device: usize,
    /// Protection domain.
    pub pd: u32,
    /// Service.
    pub service: Service,
}

impl Qp {
    /// A queue pair in the reset state.
    pub fn new(qpn: u16, facts: QpFacts, send: Option<Ring>, receive: Option<Ring>) -> Self {
        Self {
            qpn,
            context: facts.context,
            device: facts.device,
            pd: facts.pd,
            send_cq: (0, 0),
            receive_cq: (0, 0),
            user_handle: 0,
            caps: [0; 5],
            all_signalled: false,
            async_events: 0,
            service: facts.service,
            unsolicited: false,
            max_batch: u32::MAX,
            state: QpState::Reset,
            frozen: false,
            attr: QpAttr::default(),
            send,
            receive,
            fetched: 0,
            taken: 0,
            requester: Requester::default(),
        }
    }

    /// Takes the requests that were rung: all at once, for a completion of any of them frees their places in the ring. True
    /// if there were any.
    pub fn fetch(&mut self, shared: &mut Shared) -> bool {
        if self.frozen || !matches!(self.state, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error) {
            return false;
        }
        // Most looks find nothing.
        let Some(ring) = self.send.as_ref().filter(|r| r.doorbell.load() as u16 != self.fetched) else {
            return false;
        };
        let free = (ring.entries as usize).saturating_sub(self.requester.len());
        let n = match ring.published(self.fetched) {
            Some(n) if usize::from(n) <= free => n,
            _ => {
                // A doorbell that no library writes, or more requests than places: nothing in the ring can be trusted.
                self.fetched = ring.doorbell.load() as u16;
                self.fail(shared);
                return true;
            }
        };
        let (qpn, record) = (u32::from(self.qpn), self.fetched.wrapping_add(n));
        shared.trace.event(Event::Doorbell { qpn, record });
        for i in 0..n {
            let index = self.fetched.wrapping_add(i);
            let bytes = ring.copy(index);
            shared.trace.wqe(Kind::Efa, qpn, Queue::Send, index, || bytes.clone());
            self.requester.pending.push_back(decode_send(&bytes));
        }
        self.fetched = record;
        true
    }

    /// Takes the next receive, if there is one.
    pub fn take_receive(&mut self, shared: &mut Shared) -> Option<Receive> {
        let n = match self.receive.as_ref()?.published(self.taken) {
            Some(n) => n,
            None => {
                self.taken = self.receive.as_ref()?.doorbell.load() as u16;
                self.fail(shared);
                return None;
            }
        };
        let mut id = None;
        let mut pieces = Vec::new();
        for _ in 0..n {
            let ReceivePiece { id: own, piece, last, .. } = self.take_piece(shared)?;
            id = id.or(Some(own));
            pieces.push(piece);
            if last {
                break;
            }
        }
        Some(Receive { taken: Taken { id: id?, unsolicited: false }, pieces })
    }

    fn take_piece(&mut self, shared: &mut Shared) -> Option<ReceivePiece> {
        let index = self.taken;
        let bytes = self.receive.as_ref()?.copy(index);
        self.taken = index.wrapping_add(1);
        let piece = decode_receive(bytes.first_chunk::<RECEIVE_PIECE>()?);
        shared.trace.wqe(Kind::Efa, u32::from(self.qpn), Queue::Receive, piece.id, || bytes);
        Some(piece)
    }

    /// Whether a receive is there.
    pub fn has_receive(&self) -> bool {
        self.receive.as_ref().is_some_and(|r| r.published(self.taken).is_none_or(|n| n != 0))
    }

    /// Whether messages are taken.
    pub fn listens(&self) -> bool {
        !self.frozen && matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// The queue pair fails of itself: the program gets an event, and all its requests back.
    pub fn fail(&mut self, shared: &mut Shared) {
        if self.state == QpState::Error {
            return;
        }
        self.async_events += 1;
        shared.async_events.push((self.context, self.user_handle, async_event::QP_FATAL));
        self.set_state(QpState::Error, shared);
    }

    /// Enters a state of its own accord or by `modify_qp`.
    pub fn set_state(&mut self, state: QpState, shared: &mut Shared) {
        if state == QpState::Reset {
            self.reset();
        }
        if self.state != state {
            self.state = state;
            shared.trace.event(Event::State { qpn: u32::from(self.qpn), state });
        }
    }

    /// libefa zeroes its own counters at the same moment; the doorbells are the device's to clear.
    fn reset(&mut self) {
        (self.fetched, self.taken) = (0, 0);
        self.requester = Requester::default();
        self.attr = QpAttr::default();
        self.send.iter().chain(&self.receive).for_each(|ring| ring.doorbell.store(0));
    }

    /// Whether there is anything to flush.
    pub fn must_flush(&self) -> bool {
        !self.frozen && self.state == QpState::Error && (!self.requester.is_idle() || self.has_receive())
    }
}

/// The id of a receive, as its completion names it.
pub fn receive_id(low: u16) -> RequestId {
    RequestId { low, high: [0; 3] }
}
