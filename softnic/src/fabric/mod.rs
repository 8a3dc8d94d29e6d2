//! Carries packets between queue pairs, within the process and across a session. Routing is by queue-pair number (its high
//! bits are the process); whether the address fits is the target port's to check. What packets mean is not known here.

mod flows;
pub mod packet;
pub mod session;
mod stream;
pub mod wire;

use std::collections::BTreeMap;

use flows::Flows;
use packet::{Body, Packet, Reply};
use session::Session;
use wire::Wires;

pub use flows::Flow;

use crate::efa::message::Message;
use crate::fault::Faults;
use crate::trace::Action;

/// Bits of a queue-pair number that say which queue pair of the process.
pub const INDEX_BITS: u32 = 16;

/// The slot of the process that a queue pair is in. Above it, a number may say what kind of device it is on.
fn slot_of(number: u32) -> u32 {
    number >> INDEX_BITS & 0xff
}

/// Bytes that wait for a peer at most, of packets that may get lost: one that is stopped, or slower for ever, does not cost its
/// senders their memory. What is answered is bounded by its senders' windows.
const BACKLOG: usize = 64 << 20;
/// Packets that wait to be delivered, at which no more are taken from peers.
const CROWD: usize = 1 << 14;

/// Packets under way.
#[derive(Debug, Default)]
pub struct Fabric {
    session: Option<Session>,
    wires: Wires,
    /// To queue pairs of this process.
    arriving: Flows,
    /// To those of other processes, held back by a wire or a fault.
    leaving: Flows,
    /// Requests sent to other processes whose answers are outstanding, by slot and queue pair: what to silence if the peer
    /// dies.
    abroad: BTreeMap<(u32, u32), Vec<Packet>>,
}

impl Fabric {
    /// A fabric of this process alone, or shared by a session.
    pub fn new(session: Option<Session>) -> Self {
        Self { session, ..Self::default() }
    }

    /// Lays wires between the ports.
    pub fn set_wires(&mut self, wires: Wires) {
        self.wires = wires;
    }

    /// The first queue-pair number of this process.
    pub fn base(&self) -> u32 {
        self.slot() << INDEX_BITS
    }

    /// This process's slot in the session.
    pub fn slot(&self) -> u32 {
        self.session.as_ref().map_or(0, Session::slot)
    }

    /// Sends a packet, unless a fault or a wire stops it; answers what became of it.
    pub fn send(&mut self, packet: Packet, faults: &mut Faults, now: u64) -> Action {
        let wire = self.wires.carry(&packet.from, &packet.to, now);
        match (faults.on_packet(&packet), wire) {
            (Some(held), Some(wire)) if !self.is_overflowing(&packet) => {
                self.forward(packet, now, held + wire);
                if held + wire == 0 { Action::Sent } else { Action::Delayed }
            }
            _ => {
                if let Some(silence) = packet.lost() {
                    self.forward(silence, now, 0);
                }
                Action::Lost
            }
        }
    }

    /// Whether too much waits for its receiver to add what may get lost.
    fn is_overflowing(&self, packet: &Packet) -> bool {
        let backlog = self.session.as_ref().map_or(0, |s| s.backlog(slot_of(packet.target)));
        backlog > BACKLOG && packet.is_request() && !packet.wants_answer()
    }

    fn forward(&mut self, packet: Packet, now: u64, delay: u64) {
        if slot_of(packet.target) == self.slot() {
            self.arriving.push(packet, now + delay);
        } else {
            self.leaving.push(packet, now + delay);
            self.send_leaving(now);
        }
    }

    /// Sends to other processes what is due; true if anything was.
    fn send_leaving(&mut self, now: u64) -> bool {
        self.leaving.advance(now);
        let mut any = false;
        while let Some(flow) = self.leaving.ready().first().copied() {
            let Some(packet) = self.leaving.take(flow) else { break };
            any = true;
            self.send_abroad(packet, now);
        }
        any
    }

    fn send_abroad(&mut self, packet: Packet, now: u64) {
        let slot = slot_of(packet.target);
        let sent = self.session.as_mut().is_some_and(|s| s.send(slot, &packet));
        let Some(silence) = packet.lost().filter(|_| packet.wants_answer()) else { return };
        if sent {
            self.abroad.entry((slot, packet.source)).or_default().push(silence);
        } else {
            self.arriving.push(silence, now);
        }
    }

    /// Moves packets from and to other processes, and the clock; true if any arrived or left.
    pub fn pump(&mut self, now: u64) -> bool {
        self.arriving.advance(now);
        let left = self.send_leaving(now);
        let Some(session) = &mut self.session else { return left };
        let (arrived, gone) = session.pump(self.arriving.len() < CROWD);
        let any = left || !arrived.is_empty() || !gone.is_empty();
        for packet in arrived {
            self.settle(&packet);
            self.arriving.push(packet, now);
        }
        for slot in gone {
            self.silence(slot, now);
        }
        any
    }

    /// A process went away: none of the requests that it got will be answered.
    fn silence(&mut self, slot: u32, now: u64) {
        let keys: Vec<_> = self.abroad.range((slot, 0)..=(slot, u32::MAX)).map(|(key, _)| *key).collect();
        for key in keys {
            for silence in self.abroad.remove(&key).unwrap_or_default() {
                self.arriving.push(silence, now);
            }
        }
    }

    /// An answer came: what it answers, and all of that queue pair before it, need no silence any more.
    fn settle(&mut self, packet: &Packet) {
        use std::collections::btree_map::Entry;
        let Entry::Occupied(mut entry) = self.abroad.entry((slot_of(packet.source), packet.target)) else {
            return;
        };
        match &packet.body {
            // Answers of EFA come in any order: each settles its own request.
            Body::Efa(Message::Reply(reply)) => {
                entry.get_mut().retain(|s| !matches!(&s.body, Body::Efa(m) if m.token() == reply.token));
            }
            Body::Reply(reply) => entry.get_mut().retain(|silence| match &silence.body {
                Body::Reply(Reply::Silence { psn }) => psn.ahead_of(reply.psn()) > 0,
                _ => true,
            }),
            _ => {}
        }
        if entry.get().is_empty() {
            entry.remove();
        }
    }

    /// The flows whose first packet may be delivered now.
    pub fn deliverable(&self) -> &[Flow] {
        self.arriving.ready()
    }

    /// Takes the first packet of a flow.
    pub fn take(&mut self, flow: Flow) -> Option<Packet> {
        self.arriving.take(flow)
    }

    /// When the next delayed packet is due, in nanoseconds.
    pub fn next_due(&self) -> Option<u64> {
        self.arriving.next_due().into_iter().chain(self.leaving.next_due()).min()
    }

    /// The session, to wait for its sockets.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::packet::{Address, Datagram};
    use super::*;

    fn pair(name: &str) -> (Fabric, Fabric) {
        let name = format!("test-{name}-{}", std::process::id());
        let join = || Fabric::new(Some(Session::join(&name).unwrap()));
        (join(), join())
    }

    fn datagram(to: &Fabric, len: usize) -> Packet {
        let data = vec![7; len];
        let body = Datagram { qkey: 1, imm: None, solicited: false, sl: 0, route: None, data };
        let address = Address { lid: 1, gid: None };
        Packet { from: address, to: address, source: 1, target: to.base() + 1, body: Body::Datagram(body) }
    }

    #[test]
    fn a_stopped_peer_does_not_cost_its_senders_their_memory() {
        let (mut a, mut b) = pair("stopped");
        let send = |a: &mut Fabric| a.send(datagram(&b, 4 << 20), &mut Faults::default(), 0);
        let mut sent = 0;
        while send(&mut a) == Action::Sent {
            sent += 1;
            assert!(sent < 40, "{sent} times 4 MiB were kept");
        }
        assert!(sent >= 16, "{sent}");
        let mut arrived = 0;
        for _ in 0..100_000 {
            a.pump(0);
            b.pump(0);
            while let Some(flow) = b.deliverable().first().copied() {
                arrived += usize::from(b.take(flow).is_some());
            }
            if arrived == sent {
                break;
            }
        }
        assert_eq!(arrived, sent, "what was sent arrives");
        let again = a.send(datagram(&b, 1), &mut Faults::default(), 0);
        assert_eq!(again, Action::Sent, "and there is room again");
    }

    #[test]
    fn a_receiver_that_is_behind_takes_no_more() {
        let (mut a, mut b) = pair("behind");
        let mut held = Vec::new();
        for _ in 0..40 {
            for _ in 0..2000 {
                a.send(datagram(&b, 300), &mut Faults::default(), 0);
            }
            a.pump(0);
            b.pump(0);
            held.push(b.arriving.len());
        }
        let most = held.iter().max().copied().unwrap_or_default();
        // Once more than the crowd is there, one share is the most that came at once.
        assert!((CROWD..CROWD + (4 << 20) / 300).contains(&most), "{most} packets: {held:?}");
        assert_eq!(held[held.len() - 2..], [most; 2], "nothing more came");
    }
}
