//! Packets under way, each flow (a pair of queue pairs) in order: which may be delivered now, and when the next is due. The
//! cost of each step does not grow with the number of flows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::packet::Packet;
use crate::ready::Ready;

/// From one queue pair to another.
pub type Flow = (u32, u32);

/// All flows.
#[derive(Debug, Default)]
pub(super) struct Flows {
    queues: BTreeMap<Flow, VecDeque<Waiting>>,
    /// Flows whose first packet may be delivered.
    ready: Ready<Flow>,
    /// The others, by when theirs is due.
    due: BTreeSet<(u64, Flow)>,
    now: u64,
    len: usize,
}

#[derive(Debug)]
struct Waiting {
    not_before: u64,
    packet: Packet,
}

impl Flows {
    /// Adds a packet behind those of its flow.
    pub(super) fn push(&mut self, packet: Packet, not_before: u64) {
        let flow = (packet.source, packet.target);
        let queue = self.queues.entry(flow).or_default();
        queue.push_back(Waiting { not_before, packet });
        let first = queue.len() == 1;
        self.len += 1;
        if first {
            self.place(flow, not_before);
        }
    }

    fn place(&mut self, flow: Flow, not_before: u64) {
        if not_before <= self.now {
            self.ready.insert(flow);
        } else {
            self.due.insert((not_before, flow));
        }
    }

    /// Moves the clock.
    pub(super) fn advance(&mut self, now: u64) {
        self.now = now;
        while let Some((_, flow)) = self.due.first().copied().filter(|(t, _)| *t <= now) {
            self.due.pop_first();
            self.ready.insert(flow);
        }
    }

    /// Takes the first packet of a ready flow.
    pub(super) fn take(&mut self, flow: Flow) -> Option<Packet> {
        let queue = self.queues.get_mut(&flow)?;
        if queue.front()?.not_before > self.now {
            return None;
        }
        let taken = queue.pop_front()?;
        self.len -= 1;
        self.ready.remove(flow);
        match queue.front().map(|w| w.not_before) {
            Some(next) => self.place(flow, next),
            None => drop(self.queues.remove(&flow)),
        }
        Some(taken.packet)
    }

    /// How many packets there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Flows whose first packet may be delivered.
    pub(super) fn ready(&self) -> &[Flow] {
        self.ready.list()
    }

    /// When the next packet is due, if none is now.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.due.first().map(|(t, _)| *t)
    }
}
