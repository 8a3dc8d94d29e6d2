//! The engine of the software EFA: finds work (doorbells, messages, landings, timers, flushes) and does it, one unit at a time.
//! How units are chosen (a seed, or a thread) is in [`crate::drive`]; commands come from [`crate::uverbs`].

pub mod abi;
pub mod address;
pub mod commands;
pub mod cq;
pub mod cqe;
pub mod landing;
pub mod limits;
pub mod message;
pub mod pages;
pub mod qp;
pub mod query;
pub mod requester;
pub mod responder;
pub mod rung;
pub mod transition;
pub mod wqe;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::description::{self, Description};
use crate::drive::Choices;
use crate::efa::address::Addresses;
use crate::efa::cq::Cq;
use crate::efa::cqe::{Cqe, NO_HANDLE, Received, RequestId, Side, Status};
use crate::efa::landing::{Landed, Landing, Then};
use crate::efa::limits::Limits;
use crate::efa::message::{Asked, INDICES, Message, Outcome, Reply, base, qpn};
use crate::efa::qp::{Qp, receive_id};
use crate::fabric::packet::{Body, Packet};
use crate::mlx5::qp::Shared;
use crate::numbered::Numbered;
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

/// Outcomes of requests, newest last.
type Executed = VecDeque<(u64, Outcome)>;

/// All EFA queue pairs of the process and what they share.
#[derive(Debug)]
pub struct Engine {
    /// Queue pairs by number.
    pub qps: BTreeMap<u16, Qp>,
    /// Completion queues.
    pub cqs: Numbered<Cq>,
    /// Address handles.
    pub addresses: Addresses,
    /// All devices of the machine, by index.
    pub devices: Vec<Device>,
    /// Queue pairs that had something to do at the last look.
    ready: Vec<u16>,
    landings: BTreeMap<u64, Landing>,
    next_landing: u64,
    timers: BTreeSet<Timer>,
    choices: Choices,
    tokens: u64,
    /// Addresses that have answered.
    responsive: BTreeSet<[u8; 16]>,
    /// Requests that were carried out, by source and target.
    executed: BTreeMap<(u32, u32), Executed>,
}

impl Engine {
    /// An engine for the machine's devices.
    pub fn new(description: &Description) -> Self {
        let devices: Vec<Device> = description.devices.iter().map(Device::of).collect();
        let seed = devices.first().map_or(0, |d| d.limits.seed);
        Self {
            qps: BTreeMap::new(),
            cqs: Numbered::default(),
            addresses: Addresses::default(),
            devices,
            ready: Vec::new(),
            landings: BTreeMap::new(),
            next_landing: 0,
            timers: BTreeSet::new(),
            choices: Choices::new(seed),
            tokens: first_token(),
            responsive: BTreeSet::new(),
            executed: BTreeMap::new(),
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
        let mut any = false;
        self.ready.clear();
        for qp in self.qps.values_mut() {
            qp.tell_rung(&mut shared.trace);
            any |= qp.fetch(shared);
            if qp.has_pending() || qp.must_flush() {
                self.ready.push(qp.qpn);
            }
        }
        for (number, cq) in self.cqs.iter_mut() {
            cq.tell_rung(*number, &mut shared.trace);
            cq.look();
        }
        any
    }

    /// Everything that could be done now, in a fixed order.
    pub fn units(&self) -> Vec<Unit> {
        let mut units = self.landing_units();
        for qp in self.ready.iter().filter_map(|qpn| self.qps.get(qpn)) {
            if qp.can_send() {
                units.push(Unit::Send(qp.qpn));
            } else if qp.must_flush() {
                units.push(Unit::Flush(qp.qpn));
            }
        }
        units
    }

    /// What may land next: anything, or on devices that keep order the oldest of each queue pair.
    fn landing_units(&self) -> Vec<Unit> {
        let mut waiting = BTreeSet::new();
        let may = |(id, landing): (&u64, &Landing)| {
            let device = self.qps.get(&landing.qpn).map(|q| &self.devices[q.device]);
            let keeps = device.is_some_and(|d| d.limits.in_order);
            (!keeps || waiting.insert(landing.qpn)).then_some(Unit::Land(*id))
        };
        self.landings.iter().filter_map(may).collect()
    }

    /// Does one unit.
    pub fn perform(&mut self, unit: Unit, shared: &mut Shared) {
        match unit {
            Unit::Send(qpn) => self.send_one(qpn, shared),
            Unit::Flush(qpn) => self.flush_one(qpn, shared),
            Unit::Land(id) => {
                let Some(landing) = self.landings.get_mut(&id) else { return };
                match landing.step(&shared.regions) {
                    Landed::Partly => {}
                    landed => {
                        if let Some(landing) = self.landings.remove(&id) {
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
        self.landings.insert(self.next_landing, landing);
        self.next_landing += 1;
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
        let ids: Vec<u64> =
            self.landings.iter().filter(|(_, l)| l.qpn == number).map(|(id, _)| *id).collect();
        for id in ids {
            let (asked, receive) = match self.landings.remove(&id).map(|l| l.then) {
                Some(Then::Answer { asked, receive }) => (asked, receive),
                Some(Then::Read(asked)) => (asked, None),
                Some(Then::Complete(_)) | None => continue,
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
        let ids: Vec<u64> =
            self.landings.iter().filter(|(_, l)| l.qpn == number).map(|(id, _)| *id).collect();
        for landing in ids.into_iter().filter_map(|id| self.landings.remove(&id)).collect::<Vec<_>>() {
            if let Then::Answer { asked, .. } | Then::Read(asked) = landing.then {
                self.answer_status(&asked, Status::RemoteAbort, shared);
            }
        }
        let fabric = message::fabric_number(number);
        self.executed.retain(|(_, target), _| *target != fabric);
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
        let frozen: BTreeSet<u16> = frozen.collect();
        let (lost, kept): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.landings).into_iter().partition(|(_, l)| frozen.contains(&l.qpn));
        self.landings = kept;
        for landing in lost.into_values() {
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
        if let Some(cq) = self.cqs.get_mut(cqn) {
            cq.push(cqn, ring, &cqe, &mut shared.trace);
        }
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
