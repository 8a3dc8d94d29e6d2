//! Carries packets between queue pairs, within the process and across a session. Routing is by queue-pair number (its high
//! bits are the process); whether the address fits is the target port's to check. What packets mean is not known here.

pub mod packet;
pub mod session;
mod stream;

use std::collections::{BTreeMap, VecDeque};

use packet::{Body, Packet, Reply};
use session::Session;

use crate::efa::message::Message;
use crate::fault::Faults;
use crate::trace::Action;

/// Bits of a queue-pair number that say which queue pair of the process.
pub const INDEX_BITS: u32 = 16;

/// The slot of the process that a queue pair is in. Above it, a number may say what kind of device it is on.
fn slot_of(number: u32) -> u32 {
    number >> INDEX_BITS & 0xff
}

/// Packets under way.
#[derive(Debug, Default)]
pub struct Fabric {
    session: Option<Session>,
    flows: BTreeMap<(u32, u32), VecDeque<Waiting>>,
    /// Requests sent to other processes whose answers are outstanding, by slot: what to silence if the peer dies.
    abroad: BTreeMap<u32, Vec<Packet>>,
}

#[derive(Debug)]
struct Waiting {
    not_before: u64,
    packet: Packet,
}

impl Fabric {
    /// A fabric of this process alone, or shared by a session.
    pub fn new(session: Option<Session>) -> Self {
        Self { session, ..Self::default() }
    }

    /// The first queue-pair number of this process.
    pub fn base(&self) -> u32 {
        self.slot() << INDEX_BITS
    }

    /// This process's slot in the session.
    pub fn slot(&self) -> u32 {
        self.session.as_ref().map_or(0, Session::slot)
    }

    /// Sends a packet, unless a fault stops it; answers what became of it.
    pub fn send(&mut self, packet: Packet, faults: &mut Faults, now: u64) -> Action {
        let fate = faults.on_packet(&packet);
        self.forward(fate, packet, now);
        match fate {
            None => Action::Lost,
            Some(0) => Action::Sent,
            Some(_) => Action::Delayed,
        }
    }

    /// `fate` is what a packet's delay is, in nanoseconds, unless it is lost.
    fn forward(&mut self, fate: Option<u64>, packet: Packet, now: u64) {
        let (packet, delay) = match fate {
            Some(delay) => (packet, delay),
            None => match packet.lost() {
                Some(silence) => (silence, 0),
                None => return,
            },
        };
        let slot = slot_of(packet.target);
        if slot == self.slot() {
            self.queue(packet, now + delay);
        } else {
            self.send_abroad(slot, packet, now);
        }
    }

    fn send_abroad(&mut self, slot: u32, packet: Packet, now: u64) {
        let sent = self.session.as_mut().is_some_and(|s| s.send(slot, &packet));
        let Some(silence) = packet.lost().filter(|_| packet.wants_answer()) else { return };
        if sent {
            self.abroad.entry(slot).or_default().push(silence);
        } else {
            self.queue(silence, now);
        }
    }

    fn queue(&mut self, packet: Packet, not_before: u64) {
        self.flows
            .entry((packet.source, packet.target))
            .or_default()
            .push_back(Waiting { not_before, packet });
    }

    /// Moves packets from and to other processes; true if any arrived.
    pub fn pump(&mut self, now: u64) -> bool {
        let Some(session) = &mut self.session else { return false };
        let (arrived, gone) = session.pump();
        let any = !arrived.is_empty() || !gone.is_empty();
        for packet in arrived {
            self.settle(&packet);
            self.queue(packet, now);
        }
        for slot in gone {
            for silence in self.abroad.remove(&slot).unwrap_or_default() {
                self.queue(silence, now);
            }
        }
        any
    }

    /// An answer came: what it answers, and all of that queue pair before it, need no silence any more.
    fn settle(&mut self, packet: &Packet) {
        let Some(list) = self.abroad.get_mut(&slot_of(packet.source)) else { return };
        if let Body::Efa(Message::Reply(reply)) = &packet.body {
            // Answers of EFA come in any order: each settles its own request.
            return list.retain(|s| !matches!(&s.body, Body::Efa(m) if m.token() == reply.token));
        }
        let Body::Reply(reply) = &packet.body else { return };
        list.retain(|silence| match &silence.body {
            Body::Reply(Reply::Silence { psn }) if silence.target == packet.target => {
                psn.ahead_of(reply.psn()) > 0
            }
            _ => true,
        });
    }

    /// The flows whose first packet may be delivered at `now`.
    pub fn deliverable(&self, now: u64) -> Vec<(u32, u32)> {
        let ready = |q: &VecDeque<Waiting>| q.front().is_some_and(|w| w.not_before <= now);
        self.flows.iter().filter(|(_, q)| ready(q)).map(|(flow, _)| *flow).collect()
    }

    /// Takes the first packet of a flow.
    pub fn take(&mut self, flow: (u32, u32)) -> Option<Packet> {
        let queue = self.flows.get_mut(&flow)?;
        let waiting = queue.pop_front();
        if queue.is_empty() {
            self.flows.remove(&flow);
        }
        waiting.map(|w| w.packet)
    }

    /// When the next delayed packet is due, in nanoseconds.
    pub fn next_due(&self) -> Option<u64> {
        self.flows.values().filter_map(|q| q.front()).map(|w| w.not_before).min()
    }

    /// The session, to wait for its sockets.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }
}
