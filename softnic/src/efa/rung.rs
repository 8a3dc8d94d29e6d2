//! How often programs rang, where their doorbells are counted: per queue, for tests, for the trace, and for the rule about how
//! much one doorbell may cover. What counts is `trap`.

use crate::efa::Engine;
use crate::efa::cq::Cq;
use crate::efa::pages::Doorbell;
use crate::efa::qp::{Qp, Ring};
use crate::trace::{Breach, Event, Queue, Trace};

/// How often the doorbell of a queue was written since the queue was made. Every write counts, also one that a later one
/// overtook before the device looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rung {
    /// Send and receive queues are those of a queue pair.
    pub queue: Queue,
    /// Number of the queue pair, or of the completion queue.
    pub number: u32,
    /// Writes.
    pub times: u32,
    /// Requests (or pieces of receives) that one write covered at most; means nothing for a completion queue.
    pub widest: u16,
}

impl Rung {
    fn of(queue: Queue, number: u32, doorbell: &Doorbell) -> Option<Self> {
        let times = doorbell.times()?;
        Some(Self { queue, number, times, widest: doorbell.widest() })
    }
}

/// Tells the trace what was written since the last time; true if anything was.
fn tell(queue: Queue, number: u32, doorbell: &mut Doorbell, trace: &mut Trace) -> bool {
    let times = doorbell.take_new();
    if times > 0 {
        trace.event(Event::Rung { queue, number, times });
    }
    times > 0
}

impl Qp {
    /// Tells what was rung, and what one doorbell covered that may not.
    pub(super) fn tell_rung(&mut self, trace: &mut Trace) {
        let number = u32::from(self.qpn);
        if let Some(Ring { doorbell, .. }) = &mut self.receive {
            tell(Queue::Receive, number, doorbell, trace);
        }
        let Some(Ring { doorbell, .. }) = &mut self.send else { return };
        let (requests, most) = (doorbell.widest(), self.max_batch);
        if tell(Queue::Send, number, doorbell, trace) && u32::from(requests) > most {
            trace.breach(Breach::Batch { qpn: number, requests, most });
        }
    }
}

impl Cq {
    /// Tells how often it was armed or polled.
    pub(super) fn tell_rung(&mut self, number: u32, trace: &mut Trace) {
        if let Some(doorbell) = &mut self.doorbell {
            tell(Queue::Completion, number, doorbell, trace);
        }
    }
}

impl Engine {
    /// Of every queue whose doorbell is counted, how often it was written.
    pub fn rung(&self) -> Vec<Rung> {
        let rings = |qp: &Qp| {
            let of = |queue, ring: &Option<Ring>| Rung::of(queue, qp.qpn.into(), &ring.as_ref()?.doorbell);
            [of(Queue::Send, &qp.send), of(Queue::Receive, &qp.receive)].into_iter().flatten()
        };
        let cqs =
            self.cqs.iter().filter_map(|(n, cq)| Rung::of(Queue::Completion, *n, cq.doorbell.as_ref()?));
        self.qps.values().flat_map(rings).chain(cqs).collect()
    }
}
