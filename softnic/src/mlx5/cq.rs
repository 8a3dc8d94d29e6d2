//! Completion queues of mlx5: the ring, the producer's counter, overrun, and the arming of events. What completes is not
//! decided here.

use ibv_core::WcStatus;

use crate::fault::Faults;
use crate::memory::{Fault, Pinned};
use crate::mlx5::cqe::{Cqe, Kind};
use crate::mlx5::moderation::Moderation;
use crate::mlx5::scatter::compress;
use crate::trace::{Breach, Event, Kind as Device, Trace};

/// Counters of completion queues have 24 bits.
const MASK: u32 = 0xff_ffff;
/// `MLX5_CQE_RESIZE_CQ`.
const RESIZED: u8 = 5;
/// What the device leaves in the arm word once it took a request: no arm request has this value.
const TAKEN: u32 = u32::MAX;

/// How a queue was created.
#[derive(Debug, Clone, Copy)]
pub struct CqLayout {
    /// Address of the ring.
    pub buffer: u64,
    /// Address of the two records.
    pub records: u64,
    /// Entries, a power of two.
    pub entries: u32,
    /// Bytes of an entry: 64 or 128.
    pub entry_size: u32,
    /// Whether overrun goes unnoticed (`IGNORE_OVERRUN`).
    pub ignore_overrun: bool,
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
    /// The register page on which it is armed.
    pub page: usize,
    /// Events sent for it that were not taken back.
    pub events: u32,
    /// Asynchronous events sent for it.
    pub async_events: u32,
    /// It overran: nothing is written any more.
    pub dead: bool,
    /// Whether successes are written as compressed blocks.
    pub compressed: bool,
    /// How its events are held back.
    pub moderation: Moderation,
    /// Completions since the last event, and when the first of them was written.
    untold: (u32, u64),
    layout: CqLayout,
    ring: Pinned,
    records: Pinned,
    producer: u32,
    solicited: u32,
    armed: Option<Arm>,
    /// A completion of the kind asked for was written while the request lay in the record, before the register's write was
    /// noticed: the device is slow to look, which is no reason to lose the event.
    overtaken: bool,
}

#[derive(Debug, Clone, Copy)]
struct Arm {
    consumer: u32,
    solicited_only: bool,
    /// Looks to let pass before an event for completions that were there when the queue was armed. An interrupt takes
    /// longer than the poll that follows the arming, and programs (perftest's `-e`) live from that.
    patience: u8,
    /// A completion was written since: the event comes, whatever is consumed meanwhile.
    due: bool,
}

/// See [`Arm::patience`].
const PATIENCE: u8 = 4;

/// The queue has no room for a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overrun;

impl Cq {
    /// Makes a queue over the program's memory.
    pub fn new(context: u32, layout: CqLayout) -> Result<Self, Fault> {
        let ring = Pinned::new(layout.buffer, (layout.entries * layout.entry_size) as usize)?;
        let records = Pinned::new(layout.records, 8)?;
        records.swap_u32(4, TAKEN);
        Ok(Self {
            context,
            user_handle: 0,
            channel: None,
            page: 0,
            events: 0,
            async_events: 0,
            dead: false,
            compressed: false,
            moderation: Moderation::default(),
            untold: (0, 0),
            layout,
            ring,
            records,
            producer: 0,
            solicited: 0,
            armed: None,
            overtaken: false,
        })
    }

    /// Writes a completion.
    pub fn push(&mut self, cqn: u32, cqe: &Cqe, out: &mut CqSide<'_>) -> Result<(), Overrun> {
        if self.dead || self.is_full(cqn, out.trace) {
            self.dead = true;
            return Err(Overrun);
        }
        let mut bytes = cqe.encode(self.owner(), out.now);
        if out.faults.on_cqe() {
            bytes[63] = 0x70 | bytes[63] & 1;
        }
        self.tell_armed(cqe.is_solicited());
        self.untold =
            if self.untold.0 == 0 { (1, out.now) } else { (self.untold.0.saturating_add(1), self.untold.1) };
        if let Some(before) = cqe.scattered.and_then(|s| s.put(&mut bytes, self.layout.entry_size)) {
            let slot = (self.producer & (self.layout.entries - 1)) as usize;
            self.ring.publish(slot * self.layout.entry_size as usize, &before);
        }
        let success = !matches!(cqe.kind, Kind::Error { .. });
        let array = (self.compressed && success).then(|| compress(&mut bytes));
        self.publish(&bytes);
        if let Some(array) = array {
            self.publish(&array);
        }
        if cqe.is_solicited() {
            self.solicited = self.producer;
        }
        let status = if let Kind::Error { status, .. } = cqe.kind { status } else { WcStatus::SUCCESS };
        if out.trace.is_on() {
            let (device, qpn, counter, bytes) = (Device::Mlx5, cqe.qpn, cqe.counter, bytes.to_vec());
            out.trace.event(Event::Completed { device, cqn, qpn, counter, status, bytes });
        }
        Ok(())
    }

    /// The owner bit of the next entry.
    fn owner(&self) -> bool {
        self.producer & self.layout.entries != 0
    }

    fn publish(&mut self, bytes: &[u8; 64]) {
        let slot = (self.producer & (self.layout.entries - 1)) as usize;
        let size = self.layout.entry_size as usize;
        // The completion is the last 64 bytes of an entry of 128 (libmlx5's `get_sw_cqe`).
        self.ring.publish(slot * size + size - 64, bytes);
        self.producer = self.producer.wrapping_add(1);
    }

    /// Bytes of an entry.
    pub fn entry_size(&self) -> u32 {
        self.layout.entry_size
    }

    /// Entries that the program has not given back.
    pub fn pending(&self) -> u32 {
        (self.producer & MASK).wrapping_sub(self.consumer()) & MASK
    }

    /// Whether the program could copy what is pending, and the entry that ends it, to a ring of so many entries.
    pub fn fits(&self, entries: u32) -> bool {
        self.pending() < entries.min(self.layout.entries)
    }

    /// Goes on in another ring. The last entry of the old one says so (`MLX5_CQE_RESIZE_CQ`), and counts.
    pub fn resize(&mut self, buffer: u64, entries: u32) -> Result<(), Fault> {
        let ring = Pinned::new(buffer, (entries * self.layout.entry_size) as usize)?;
        let mut last = [0; 64];
        last[63] = RESIZED << 4 | u8::from(self.owner());
        self.publish(&last);
        (self.layout.buffer, self.layout.entries, self.ring) = (buffer, entries, ring);
        Ok(())
    }

    /// A completion is about to be written. Before it is: once it is there, the program may consume it and arm anew.
    fn tell_armed(&mut self, solicited: bool) {
        if let Some(arm) = &mut self.armed {
            arm.due |= solicited || !arm.solicited_only;
        }
        let request = self.records.load_u32(4);
        let wanted = solicited || u32::from_be(request) >> 24 & 1 == 0;
        self.overtaken |= request != TAKEN && wanted;
    }

    fn is_full(&self, cqn: u32, trace: &mut Trace) -> bool {
        let consumer = self.consumer();
        let producer = self.producer & MASK;
        let used = producer.wrapping_sub(consumer) & MASK;
        if used > self.layout.entries {
            trace.breach(Breach::ConsumerAhead { cqn, consumer, producer });
            return false;
        }
        used == self.layout.entries && !self.layout.ignore_overrun
    }

    /// Looks for a consumer record that is ahead of the device.
    pub fn check_consumer(&self, cqn: u32, trace: &mut Trace) {
        let (consumer, producer) = (self.consumer(), self.producer & MASK);
        if producer.wrapping_sub(consumer) & MASK > self.layout.entries {
            trace.breach(Breach::ConsumerAhead { cqn, consumer, producer });
        }
    }

    fn consumer(&self) -> u32 {
        u32::from_be(self.records.load_u32(0)) & MASK
    }

    /// Takes an arm request from the record, if there is one. Call after the queue's register was written.
    pub fn take_arm(&mut self) {
        if self.records.load_u32(4) == TAKEN {
            return;
        }
        let request = u32::from_be(self.records.swap_u32(4, TAKEN));
        let (consumer, solicited_only) = (request & MASK, request >> 24 & 1 == 1);
        let patience = if self.is_ahead(solicited_only, consumer) { PATIENCE } else { 0 };
        let due = std::mem::take(&mut self.overtaken);
        self.armed = Some(Arm { consumer, solicited_only, patience, due });
    }

    /// Whether completions exist at or after a position: the sign of a 24-bit difference.
    fn is_ahead(&self, solicited_only: bool, position: u32) -> bool {
        let newest = if solicited_only { self.solicited } else { self.producer };
        (newest.wrapping_sub(position) << 8) as i32 > 0
    }

    /// Whether an event is due; if so, the queue is no longer armed. A completion that was written while the queue was armed
    /// always tells; one that was there before tells unless the program has consumed it since.
    pub fn take_event(&mut self, now: u64) -> bool {
        let (n, first) = self.untold;
        if !self.wants_event() || !self.moderation.lets_pass(n, first, now) {
            return false;
        }
        (self.armed, self.untold) = (None, (0, 0));
        true
    }

    fn wants_event(&mut self) -> bool {
        let consumed = self.consumer();
        let Some(arm) = &mut self.armed else { return false };
        if arm.due {
            return true;
        }
        if arm.patience > 0 {
            arm.patience -= 1;
            return false;
        }
        let arm = *arm;
        self.is_ahead(arm.solicited_only, arm.consumer) && self.is_ahead(arm.solicited_only, consumed)
    }

    /// When moderation lets an event pass that is due.
    pub fn next_event(&self) -> Option<u64> {
        self.armed.filter(|arm| arm.due)?;
        self.moderation.ends(self.untold.1)
    }

    /// Whether an event may come.
    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// Whether an event is only being held back.
    pub fn is_patient(&self) -> bool {
        self.armed.is_some_and(|a| a.patience > 0)
    }
}

/// What writing a completion needs beside the queue.
#[derive(Debug)]
pub struct CqSide<'a> {
    /// Ordered faults.
    pub faults: &'a mut Faults,
    /// The trace.
    pub trace: &'a mut Trace,
    /// The device's clock in nanoseconds.
    pub now: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Rig {
        ring: Vec<AtomicU64>,
        records: [Box<AtomicU64>; 1],
        faults: Faults,
        trace: Trace,
    }

    impl Rig {
        fn new(entries: u32, size: u32) -> (Self, Cq) {
            let ring = (0..entries * size / 8).map(|_| AtomicU64::new(15 << 60)).collect();
            let records = [Box::new(AtomicU64::new(0))];
            let mut trace = Trace::default();
            trace.strict = true;
            let rig = Self { ring, records, faults: Faults::default(), trace };
            let layout = CqLayout {
                buffer: rig.ring.as_ptr() as u64,
                records: &raw const *rig.records[0] as u64,
                entries,
                entry_size: size,
                ignore_overrun: false,
            };
            let cq = Cq::new(1, layout).unwrap();
            (rig, cq)
        }

        fn push(&mut self, cq: &mut Cq, counter: u16) -> Result<(), Overrun> {
            let cqe =
                Cqe { qpn: 1, uidx: 0, counter, kind: Kind::Request { opcode: 8, len: 0 }, scattered: None };
            let mut side = CqSide { faults: &mut self.faults, trace: &mut self.trace, now: 0 };
            cq.push(1, &cqe, &mut side)
        }

        fn op_own(&self, entry: usize, words: usize) -> u8 {
            (self.ring[(entry + 1) * words - 1].load(Ordering::Relaxed) >> 56) as u8
        }

        fn set(&mut self, index: usize, value: u32) {
            let mut bytes = self.records[0].load(Ordering::Relaxed).to_ne_bytes();
            bytes[index * 4..index * 4 + 4].copy_from_slice(&value.to_be_bytes());
            self.records[0].store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
    }

    #[test]
    fn the_owner_bit_flips_each_time_round_for_both_sizes() {
        for size in [64, 128] {
            let (mut rig, mut cq) = Rig::new(4, size);
            for i in 0..12 {
                rig.push(&mut cq, i as u16).unwrap();
                assert_eq!(rig.op_own(i % 4, size as usize / 8), (i / 4 % 2) as u8, "entry {i}");
                rig.set(0, i as u32 + 1);
            }
        }
    }

    #[test]
    fn a_full_queue_overruns_and_stays_dead() {
        let (mut rig, mut cq) = Rig::new(4, 64);
        assert!((0..4).all(|i| rig.push(&mut cq, i).is_ok()));
        assert_eq!(rig.push(&mut cq, 4), Err(Overrun));
        rig.set(0, 4);
        assert_eq!(rig.push(&mut cq, 5), Err(Overrun));
    }

    #[test]
    fn a_consumer_that_runs_ahead_is_reported() {
        let (mut rig, mut cq) = Rig::new(4, 64);
        rig.set(0, 3);
        rig.push(&mut cq, 0).unwrap();
        assert!(matches!(
            rig.trace.take_breaches()[..],
            [Breach::ConsumerAhead { consumer: 3, producer: 0, .. }]
        ));
    }

    #[test]
    fn an_armed_queue_fires_once_at_or_after_the_armed_position() {
        let (mut rig, mut cq) = Rig::new(4, 64);
        rig.set(1, 0);
        cq.take_arm();
        assert!(!cq.take_event(0));
        rig.push(&mut cq, 0).unwrap();
        assert!(cq.take_event(0));
        assert!(!cq.take_event(0));
        rig.set(1, 1 << 24 | 1);
        cq.take_arm();
        rig.push(&mut cq, 1).unwrap();
        assert!(!cq.take_event(0), "not solicited");
    }

    #[test]
    fn a_completion_consumed_right_after_arming_needs_no_event() {
        let (mut rig, mut cq) = Rig::new(4, 64);
        rig.push(&mut cq, 0).unwrap();
        rig.set(1, 0);
        cq.take_arm();
        assert!(!cq.take_event(0), "held back");
        rig.set(0, 1);
        assert!((0..10).all(|_| !cq.take_event(0)));
        rig.push(&mut cq, 1).unwrap();
        assert!(cq.take_event(0));
    }

    #[test]
    fn a_completion_written_while_armed_tells_though_it_is_consumed_at_once() {
        let (mut rig, mut cq) = Rig::new(4, 64);
        rig.set(1, 0);
        cq.take_arm();
        rig.push(&mut cq, 0).unwrap();
        rig.set(0, 1);
        assert_eq!((0..10).filter(|_| cq.take_event(0)).count(), 1);
    }

    #[test]
    fn a_completion_that_overtakes_the_arming_tells_though_it_is_consumed_at_once() {
        for (solicited_only, events) in [(0, 1), (1 << 24, 0)] {
            let (mut rig, mut cq) = Rig::new(4, 64);
            rig.set(1, solicited_only);
            rig.push(&mut cq, 0).unwrap();
            rig.set(0, 1);
            assert!(!cq.take_event(0), "the register was not written yet");
            cq.take_arm();
            assert_eq!((0..10).filter(|_| cq.take_event(0)).count(), events);
        }
    }

    #[test]
    fn a_completion_that_was_there_and_stays_is_told_after_a_while() {
        let (mut rig, mut cq) = Rig::new(4, 64);
        rig.push(&mut cq, 0).unwrap();
        rig.set(1, 0);
        cq.take_arm();
        assert!(cq.is_patient());
        assert_eq!((0..10).filter(|_| cq.take_event(0)).count(), 1);
    }

    #[test]
    fn a_resized_queue_goes_on_in_its_new_ring_with_new_owner_bits() {
        let (mut rig, mut cq) = Rig::new(4, 64);
        (0..3).for_each(|i| rig.push(&mut cq, i).unwrap());
        rig.set(0, 1);
        assert!(cq.fits(4) && !cq.fits(2));
        let (larger, _) = Rig::new(8, 64);
        cq.resize(larger.ring.as_ptr() as u64, 8).unwrap();
        assert_eq!(rig.op_own(3, 8), 5 << 4, "the end of the old ring");
        (3..8).for_each(|i| rig.push(&mut cq, i).unwrap());
        let codes: Vec<u8> = (0..8).map(|i| larger.op_own(i, 8)).collect();
        assert_eq!(codes, [1, 15 << 4, 15 << 4, 15 << 4, 0, 0, 0, 0]);
    }

    #[test]
    fn moderation_holds_an_event_back_by_count_and_by_time() {
        let (mut rig, mut cq) = Rig::new(8, 64);
        cq.moderation = Moderation { count: 3, period_us: 10 };
        rig.set(1, 0);
        cq.take_arm();
        (0..2).for_each(|i| rig.push(&mut cq, i).unwrap());
        assert!(!cq.take_event(9_999));
        assert_eq!(cq.next_event(), Some(10_000));
        assert!(cq.take_event(10_000));
        rig.set(1, 1 << 28 | 2);
        cq.take_arm();
        (2..5).for_each(|i| rig.push(&mut cq, i).unwrap());
        assert!(cq.take_event(0), "three are enough");
    }
}
