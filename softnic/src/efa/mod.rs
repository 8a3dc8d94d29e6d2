//! The engine of the software EFA: finds work (doorbells, messages, landings, timers, flushes) and does it, one unit at a time.
//! How units are chosen (a seed, or a thread) is in [`crate::drive`]; commands come from [`crate::uverbs`].

pub mod abi;
pub mod address;
pub mod commands;
pub mod cq;
pub mod cqe;
pub mod cqs;
mod executed;
pub mod landing;
pub mod landings;
pub mod limits;
pub mod message;
pub mod pages;
pub mod qp;
pub mod qps;
pub mod query;
pub mod requester;
pub mod responder;
pub mod rung;
pub mod transition;
pub mod wqe;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::description::{self, Description};
use crate::drive::Choices;
use crate::efa::address::Addresses;
use crate::efa::cqe::{Cqe, NO_HANDLE, Received, RequestId, Side, Status};
use crate::efa::cqs::Cqs;
use crate::efa::executed::Executed;
use crate::efa::landing::{Landed, Landing, Then};
use crate::efa::landings::Landings;
use crate::efa::limits::Limits;
use crate::efa::message::{Asked, INDICES, Message, Outcome, Reply, base, qpn};
use crate::efa::qp::{Qp, receive_id};
use crate::efa::qps::Qps;
use crate::fabric::packet::{Body, Packet};
use crate::mlx5::qp::Shared;
use crate::trace::Action;

/// One thing that the engine can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// Start one request of a queue pair.
    Send(u16),
    /// Report one flushed request of a queue pair.
    Flush(u16),
    /// Put the next parts of a message into memory.
    Land(u64),
}

/// A request that goes out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timer {
    /// When, in nanoseconds of the device's clock.
    pub at: u64,
    /// Its queue pair.
    pub qpn: u16,
    /// Its token.
    pub token: u64,
}

/// What the engine needs of a device's description.
#[derive(Debug, Clone)]
pub struct Device {
    /// Sizes and capabilities.
    pub limits: Limits,
    /// Bytes of a packet, which is also the longest SEND.
    pub mtu: u32,
    gids: Vec<[u8; 16]>,
    /// It failed for good.
    failed: bool,
}

impl Device {
    fn of(description: &description::DeviceDescription) -> Self {
        let ports = &description.ports;
        let gids = ports.iter().flat_map(|p| &p.gids).filter(|g| !g.is_hole()).map(|g| g.gid).collect();
        let mtu = ports.first().map_or(1, |p| p.max_message);
        Self { limits: description.efa.clone(), mtu, gids, failed: false }
    }

    /// Whether the device has this address.
    pub fn owns(&self, gid: &[u8; 16]) -> bool {
        self.gids.contains(gid)
    }

    /// Whether it has this address, and answers.
    pub fn answers_at(&self, gid: &[u8; 16]) -> bool {
        !self.failed && self.owns(gid)
    }

    /// Its first address.
    pub fn gid(&self) -> [u8; 16] {
        self.gids.first().copied().unwrap_or_default()
    }
}

/// Where the tokens of a machine start: peers remember them, so no process repeats them, nor a machine that starts after another
/// one in the same process.
fn first_token() -> u64 {
    static STARTS: AtomicU64 = AtomicU64::new(0);
    let start = STARTS.fetch_add(1, Ordering::Relaxed);
    u64::from(std::process::id()) << 40 | (start & 0xff) << 32
}

/// All EFA queue pairs of the process and what they share.
#[derive(Debug)]
pub struct Engine {
    /// Queue pairs by number.
    pub qps: Qps,
    /// Completion queues.
    pub cqs: Cqs,
    /// Address handles.
    pub addresses: Addresses,
    /// All devices of the machine, by index.
    pub devices: Vec<Device>,
    landings: Landings,
    timers: BTreeSet<Timer>,
    choices: Choices,
    tokens: u64,
    /// Addresses that have answered.
    responsive: BTreeSet<[u8; 16]>,
    executed: Executed,
}

/// Doorbells of each kind that are looked at in a step while there is other work.
const SHARE: usize = 4;

/// Looks at the doorbells of a queue pair; true if it was asked to send.
fn look(qp: &mut Qp, shared: &mut Shared) -> bool {
    qp.tell_rung(&mut shared.trace);
    qp.fetch(shared)
}

impl Engine {
    /// An engine for the machine's devices.
    pub fn new(description: &Description) -> Self {
        let devices: Vec<Device> = description.devices.iter().map(Device::of).collect();
        let seed = devices.first().map_or(0, |d| d.limits.seed);
        Self {
            qps: Qps::default(),
            cqs: Cqs::default(),
            addresses: Addresses::default(),
            devices,
            landings: Landings::default(),
            timers: BTreeSet::new(),
            choices: Choices::new(seed),
            tokens: first_token(),
            responsive: BTreeSet::new(),
            executed: Executed::default(),
        }
    }

    /// Chooses anew, by this seed and that of the description.
    pub fn set_seed(&mut self, seed: u64) {
        let own = self.devices.first().map_or(0, |d| d.limits.seed);
        self.choices = Choices::new(seed.rotate_left(32) ^ own);
    }

    /// The lowest free queue-pair number of the process in this slot: numbers are reused at once, as clients must survive.
    pub fn free_qpn(&self, slot: u32) -> Option<u16> {
        let base = base(slot)?;
        (1..INDICES).map(|i| base + i).find(|n| !self.qps.contains_key(n))
    }

    fn next_token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }

    /// Looks at all doorbells; true if any was rung.
    pub fn scan(&mut self, shared: &mut Shared) -> bool {
        self.cqs.look(&mut shared.trace);
        self.qps.look(|qp| look(qp, shared))
    }

    /// Looks at a few doorbells, in turn.
    pub fn scan_some(&mut self, shared: &mut Shared) {
        self.cqs.look_some(SHARE, &mut shared.trace);
        self.qps.look_some(SHARE, |qp| look(qp, shared));
    }

    /// Looks again at the queue pairs that were touched: what they can do.
    pub fn settle(&mut self) {
        self.qps.settle();
    }

    /// How many things could be done now.
    pub fn count(&self) -> usize {
        self.landings.free().len() + self.qps.ready().len()
    }

    /// One of them, by its place of [`Engine::count`].
    pub fn unit(&self, at: usize) -> Option<Unit> {
        let landings = self.landings.free();
        if let Some(id) = landings.get(at) {
            return Some(Unit::Land(*id));
        }
        let qpn = *self.qps.ready().get(at - landings.len())?;
        let sends = self.qps.get(&qpn).is_some_and(Qp::can_send);
        Some(if sends { Unit::Send(qpn) } else { Unit::Flush(qpn) })
    }

    /// Does one unit.
    pub fn perform(&mut self, unit: Unit, shared: &mut Shared) {
        match unit {
            Unit::Send(qpn) => self.send_one(qpn, shared),
            Unit::Flush(qpn) => self.flush_one(qpn, shared),
            Unit::Land(id) => {
                let Some(landing) = self.landings.get_mut(id) else { return };
                match landing.step(&shared.regions) {
                    Landed::Partly => {}
                    landed => {
                        if let Some(landing) = self.landings.remove(id) {
                            self.landed(landing, landed, shared);
                        }
                    }
                }
            }
        }
    }

    /// A packet for an EFA queue pair.
    pub fn deliver(&mut self, packet: Packet, shared: &mut Shared) {
        shared.trace.packet(Action::Delivered, &packet);
        let asked = match &packet.body {
            Body::Efa(Message::Request(request)) => Some(Asked::of(&packet, request)),
            _ => None,
        };
        match (packet.body, asked) {
            (Body::Efa(Message::Request(request)), Some(asked)) => {
                self.on_request(asked, request.data, shared)
            }
            (Body::Efa(Message::Reply(reply)), _) => {
                if let Some(number) = qpn(packet.target) {
                    self.on_reply(number, &packet.from, reply, shared);
                }
            }
            _ => {}
        }
    }

    fn land_later(&mut self, landing: Landing) {
        let device = self.qps.get(&landing.qpn).map(|q| &self.devices[q.device]);
        let in_order = device.is_some_and(|d| d.limits.in_order);
        self.landings.insert(landing, in_order);
    }

    /// Runs timers that are due at the present time.
    pub fn run_timers(&mut self, shared: &mut Shared) -> bool {
        let mut any = false;
        while let Some(timer) = self.timers.first().copied().filter(|t| t.at <= shared.now) {
            self.timers.remove(&timer);
            self.send_again(timer, shared);
            any = true;
        }
        any
    }

    /// When something is due that only time brings, in nanoseconds.
    pub fn next_time(&self) -> Option<u64> {
        self.timers.first().map(|t| t.at)
    }

    /// Reports one request as flushed: first all sends, then all receives.
    fn flush_one(&mut self, number: u16, shared: &mut Shared) {
        self.drop_landings(number, shared);
        let Some(qp) = self.qps.get_mut(&number) else { return };
        if let Some((id, op)) = qp.requester.pop() {
            self.complete(number, id, op, Status::Flushed, Side::Send, shared);
        } else if let Some(receive) = qp.take_receive(shared) {
            let received = Received { handle: NO_HANDLE, ..Received::default() };
            let id = receive_id(receive.taken.id);
            self.complete(number, id, 0, Status::Flushed, Side::Receive(received), shared);
        }
    }

    /// What was landing on a queue pair lands no more: its receives are flushed, and senders learn that it was reset.
    pub(super) fn drop_landings(&mut self, number: u16, shared: &mut Shared) {
        for landing in self.landings.take_of(number) {
            let (asked, receive) = match landing.then {
                Then::Answer { asked, receive } => (asked, receive),
                Then::Read(asked) => (asked, None),
                Then::Complete(_) => continue,
            };
            if let Some(taken) = receive.filter(|t| !t.unsolicited) {
                let received = Received { handle: NO_HANDLE, ..Received::default() };
                let id = receive_id(taken.id);
                self.complete(number, id, 0, Status::Flushed, Side::Receive(received), shared);
            }
            self.answer_status(&asked, Status::RemoteAbort, shared);
        }
    }

    /// A queue pair goes, or starts anew: nothing of it is reported any more.
    pub fn forget(&mut self, number: u16, shared: &mut Shared) {
        for landing in self.landings.take_of(number) {
            if let Then::Answer { asked, .. } | Then::Read(asked) = landing.then {
                self.answer_status(&asked, Status::RemoteAbort, shared);
            }
        }
        let fabric = message::fabric_number(number);
        self.executed.forget(fabric);
    }

    /// A device fails for good: its queue pairs do nothing any more, and what they were asked for is never answered.
    pub fn fail_device(&mut self, device: usize, shared: &mut Shared) {
        if let Some(device) = self.devices.get_mut(device) {
            device.failed = true;
        }
        let frozen = self.qps.values_mut().filter(|q| q.device == device).map(|qp| {
            qp.frozen = true;
            qp.qpn
        });
        let frozen: Vec<u16> = frozen.collect();
        for landing in frozen.into_iter().flat_map(|qpn| self.landings.take_of(qpn)) {
            match landing.then {
                Then::Answer { asked, .. } | Then::Read(asked) if asked.reliable => {
                    shared.send(asked.answer(Reply::new(asked.token, Outcome::Silence)));
                }
                _ => {}
            }
        }
    }

    /// Writes a completion.
    fn complete(
        &mut self,
        number: u16,
        id: RequestId,
        op: u8,
        status: Status,
        side: Side,
        shared: &mut Shared,
    ) {
        let Some(qp) = self.qps.get(&number).filter(|q| !q.frozen) else { return };
        let (cqn, ring) = if side == Side::Send { qp.send_cq } else { qp.receive_cq };
        let cqe = Cqe { qpn: number, id, op, status, side };
        self.cqs.push(cqn, ring, &cqe, &mut shared.trace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_started_again_does_not_repeat_its_tokens() {
        let mut machines = [(); 2].map(|()| Engine::new(&Description::efa(1)));
        let [first, second] = machines.each_mut().map(Engine::next_token);
        assert_ne!(first, second, "a peer that lives on would take it for what it knows");
    }

    #[test]
    fn requests_to_nobody_leave_nothing_behind() {
        use crate::efa::message::{Operation, Request, fabric_number};
        use crate::fabric::packet::Address;
        let (mut engine, mut shared) = (Engine::new(&Description::efa(1)), Shared::default());
        let here = Address { lid: 0, gid: Some(engine.devices[0].gid()) };
        for number in 1..100 {
            let token = engine.next_token();
            let operation = Operation::Send;
            let request = Request { token, qkey: 1, reliable: true, operation, imm: None, data: Vec::new() };
            let (source, target) = (fabric_number(1), fabric_number(number));
            let body = Body::Efa(Message::Request(request));
            engine.deliver(Packet { from: here, to: here, source, target, body }, &mut shared);
        }
        let answered: usize = std::iter::from_fn(|| {
            let flow = shared.fabric.deliverable().first().copied()?;
            shared.fabric.take(flow)
        })
        .count();
        assert_eq!((answered, engine.executed.len()), (99, 0));
    }
}
