//! Completion queues of EFA: rings with a phase bit, and the arming of events by a doorbell. What completes is not decided here.
//!
//! A queue has no record of how far the program has read, unless it has a doorbell: one that is too short is written over,
//! as by the hardware.

use crate::efa::cqe::Cqe;
use crate::efa::pages::{Block, Doorbell};
use crate::trace::{Event, Kind, Trace};

/// `EFA_IO_REGS_CQ_DB_*`: consumer index, sequence number of the arming, and the arming itself.
const CONSUMER: u32 = 0xffff;
const ARM: u32 = 0x8000_0000;

/// Looks to let pass before an event for completions that were there when the queue was armed: an interrupt takes longer than
/// the poll that follows the arming.
const PATIENCE: u8 = 4;

/// How a queue was created.
#[derive(Debug, Clone, Copy)]
pub struct CqLayout {
    /// Entries of each ring, a power of two.
    pub entries: u32,
    /// Bytes of an entry: 16 or 32.
    pub entry_size: usize,
    /// Rings.
    pub rings: u16,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// The context it belongs to.
    pub context: u32,
    /// The program's name for it in events.
    pub user_handle: u64,
    /// Its completion channel: the program's descriptor.
    pub channel: Option<i32>,
    /// Events sent for it that were not taken back.
    pub events: u32,
    /// Its memory.
    pub block: Block,
    /// Its doorbell, if it has a channel.
    pub doorbell: Option<Doorbell>,
    layout: CqLayout,
    produced: Vec<u32>,
    /// Of all rings together, as the doorbell counts.
    total: u16,
    /// The doorbell's last value.
    seen: u32,
    /// The last arming that was taken.
    taken: u32,
    arm: Arm,
}

/// Whether an event is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arm {
    /// No.
    Not,
    /// The doorbell was written again before we looked: an arming may have been written over by the poll that followed it.
    Perhaps { due: bool },
    /// Yes.
    Armed { due: bool, patience: u8 },
}

impl Cq {
    /// A queue over its pages.
    pub fn new(context: u32, layout: CqLayout, block: Block, doorbell: Option<Doorbell>) -> Self {
        Self {
            context,
            user_handle: 0,
            channel: None,
            events: 0,
            block,
            doorbell,
            layout,
            produced: vec![0; usize::from(layout.rings)],
            total: 0,
            seen: 0,
            taken: 0,
            arm: Arm::Not,
        }
    }

    /// How many rings it has.
    pub fn rings(&self) -> u16 {
        self.layout.rings
    }

    /// Writes a completion to a ring.
    pub fn push(&mut self, cqn: u32, ring: u16, cqe: &Cqe, trace: &mut Trace) {
        self.look();
        let CqLayout { entries, entry_size, .. } = self.layout;
        let produced = &mut self.produced[usize::from(ring)];
        let slot = (*produced & (entries - 1)) as usize + usize::from(ring) * entries as usize;
        let phase = *produced & entries == 0;
        *produced = produced.wrapping_add(1);
        self.total = self.total.wrapping_add(1);
        let bytes = &cqe.encode(phase)[..entry_size];
        self.block.memory.publish_backwards(slot * entry_size, bytes);
        match &mut self.arm {
            Arm::Not => {}
            Arm::Perhaps { due } | Arm::Armed { due, .. } => *due = true,
        }
        if trace.is_on() {
            let (device, qpn, counter) = (Kind::Efa, u32::from(cqe.qpn), cqe.id.low);
            let (status, bytes) = (cqe.status.verbs(), bytes.to_vec());
            trace.event(Event::Completed { device, cqn, qpn, counter, status, bytes });
        }
    }

    /// Looks at the doorbell.
    pub fn look(&mut self) {
        let Some(doorbell) = &self.doorbell else { return };
        let now = doorbell.load();
        if now == self.seen {
            return;
        }
        let consumed = (now ^ self.seen) & CONSUMER != 0;
        self.seen = now;
        if now & ARM != 0 && now != self.taken {
            self.taken = now;
            self.arm = Arm::Armed { due: false, patience: PATIENCE };
        } else if consumed && self.arm == Arm::Not {
            self.arm = Arm::Perhaps { due: false };
        }
    }

    /// Whether an event is due; if so, the queue is no longer armed. `unread` says that the program has one of it to read.
    pub fn take_event(&mut self, unread: bool) -> bool {
        self.look();
        let waiting = self.total != (self.seen & CONSUMER) as u16;
        let due = match &mut self.arm {
            Arm::Not => return false,
            // The one that is unread wakes the program, which then polls what came before that.
            Arm::Perhaps { due } if unread => {
                *due = false;
                false
            }
            // One more than was asked for harms nobody.
            Arm::Perhaps { due } => *due,
            Arm::Armed { due: true, .. } => true,
            Arm::Armed { patience, .. } if waiting && *patience > 0 => {
                *patience -= 1;
                false
            }
            Arm::Armed { .. } => waiting,
        };
        if due {
            self.arm = Arm::Not;
        }
        due
    }

    /// Whether an event may become due.
    pub fn is_alert(&self) -> bool {
        self.arm != Arm::Not
    }

    /// Whether an event is only being held back.
    pub fn is_patient(&self) -> bool {
        let waiting = self.total != (self.seen & CONSUMER) as u16;
        matches!(self.arm, Arm::Armed { due: false, patience } if patience > 0 && waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::efa::cqe::{RequestId, Side, Status};
    use crate::efa::pages::DeviceMemory;

    fn cq(memory: &mut DeviceMemory, entries: u32, entry_size: usize, rings: u16) -> Cq {
        let block = memory.allocate(entries as usize * entry_size * usize::from(rings)).unwrap();
        let doorbell = memory.allocate_doorbell();
        Cq::new(1, CqLayout { entries, entry_size, rings }, block, doorbell)
    }

    fn push(cq: &mut Cq, ring: u16, id: u16) {
        let id = RequestId { low: id, high: [0; 3] };
        let cqe = Cqe { qpn: 1, id, op: 0, status: Status::Ok, side: Side::Send };
        cq.push(1, ring, &cqe, &mut Trace::default());
    }

    fn ring_doorbell(cq: &Cq, value: u32) {
        cq.doorbell.as_ref().unwrap().store(value);
    }

    #[test]
    fn the_phase_flips_each_time_round_for_both_sizes_and_each_ring() {
        for size in [16, 32] {
            let mut memory = DeviceMemory::new().unwrap();
            let mut cq = cq(&mut memory, 4, size, 2);
            for i in 0..12u32 {
                push(&mut cq, 1, i as u16);
                let at = (4 + i as usize % 4) * size;
                let head = cq.block.memory.load_u32(at);
                assert_eq!((head & 0xffff, head >> 24 & 1), (i, u32::from(i / 4 % 2 == 0)), "entry {i}");
            }
            assert_eq!(cq.block.memory.load_u32(0), 0, "the other ring is untouched");
        }
    }

    #[test]
    fn an_armed_queue_fires_once_for_what_comes() {
        let mut memory = DeviceMemory::new().unwrap();
        let mut cq = cq(&mut memory, 8, 16, 1);
        push(&mut cq, 0, 0);
        assert!(!cq.take_event(false), "not armed");
        ring_doorbell(&cq, 1);
        ring_doorbell(&cq, ARM | 1);
        assert!(!cq.take_event(false));
        push(&mut cq, 0, 1);
        assert!(cq.take_event(false));
        push(&mut cq, 0, 2);
        assert!(!cq.take_event(false), "once");
    }

    #[test]
    fn what_was_there_is_told_after_a_while_unless_it_is_consumed() {
        for (consumed, events) in [(false, 1), (true, 0)] {
            let mut memory = DeviceMemory::new().unwrap();
            let mut cq = cq(&mut memory, 8, 16, 1);
            push(&mut cq, 0, 0);
            ring_doorbell(&cq, ARM);
            assert!(!cq.take_event(false) && cq.is_patient());
            if consumed {
                ring_doorbell(&cq, 1);
            }
            assert_eq!((0..10).filter(|_| cq.take_event(false)).count(), events);
        }
    }

    #[test]
    fn an_arming_that_a_poll_wrote_over_still_tells() {
        let mut memory = DeviceMemory::new().unwrap();
        let mut cq = cq(&mut memory, 8, 16, 1);
        push(&mut cq, 0, 0);
        ring_doorbell(&cq, ARM);
        ring_doorbell(&cq, 1);
        push(&mut cq, 0, 1);
        assert!(!cq.take_event(true), "there is one to read");
        assert!(!cq.take_event(false), "and the program polled when it read it");
        push(&mut cq, 0, 2);
        assert!(cq.take_event(false));
        assert!(!cq.take_event(false));
    }
}
