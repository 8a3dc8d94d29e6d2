//! The consuming end of a completion queue: ownership, order of reads, consumer index, arming. What the
//! bytes mean is `cqe.rs`'s.

use crate::{
    completion_queue::CqShared,
    cqe::{self, Cqe, Expected, Side, Tail},
    doorbell::{self, DoorbellRecord, udma_from_device_barrier},
    mapped::Walk,
    ring::Slots,
};
use ibv_core::{CompletionQueue, Glance, IbvWc, PollCompletionError, WcOpcode};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, Release},
            fence,
        },
    },
};

/// Consumer index bits that the record carries.
const INDEX_MASK: u32 = 0xff_ffff;
/// EIO: the queue holds what this provider never asked the device to write.
const BROKEN: PollCompletionError = PollCompletionError::Device(5);

/// What a look at the next entry gave.
enum Taken {
    Entry,
    /// The device has not written it.
    Nothing,
    /// It was never asked for, or is of no queue pair that reports here.
    Broken,
}

/// What is never written and never ready: where a dead queue looks for its entries.
static NEVER: Cqe = [const { AtomicU64::new(u64::MAX) }; 8];
/// The queue pair of no completion.
const NOBODY: u32 = u32::MAX;

/// Polls one completion queue directly, never through libmlx5.
#[derive(Debug)]
pub struct Mlx5Poller {
    entries: Walk<Cqe>,
    /// What a success of `current`, of an operation like the last, would end in there.
    expected: Expected,
    /// That operation.
    opcode: WcOpcode,
    /// The queue pair of the last completion; bursts come from one.
    current: Arc<Slots>,
    record: DoorbellRecord,
    /// Graves dug that this poller has seen; none is as many as that once the queue is dead.
    buried: u64,
    /// This poller's copy of the queue pairs that report here, by number.
    table: Vec<Arc<Slots>>,
    /// Queue pairs that left without a trace, as of `table`.
    left: u64,
    /// Why the queue can not be polled any more.
    dead: Option<PollCompletionError>,
    /// Events taken off the channel, which the device counts by two bits.
    events: u32,
    /// Last: the memory above is this object's.
    shared: Arc<CqShared>,
}

impl Mlx5Poller {
    /// Of entries in which the device has written nothing yet.
    pub(crate) fn new(entries: Walk<Cqe>, record: DoorbellRecord, shared: Arc<CqShared>) -> Self {
        // As initialised, an entry is the device's by its opcode and ours by its owner bit, which is right
        // for every round but the first. With the bit set it is right for that one too, and one look tells.
        for entry in entries.items() {
            entry[7].store(entry[7].load(Relaxed) | 1u64.to_be(), Relaxed);
        }
        Self {
            entries,
            expected: Expected::nobody(false),
            opcode: WcOpcode::RDMA_WRITE,
            current: Slots::new(NOBODY, 1, 1),
            record,
            buried: 0,
            table: Vec::new(),
            left: 0,
            dead: None,
            events: 0,
            shared,
        }
    }

    /// Takes successes of `current` and of one kind into `out`, to the end of the ring.
    #[inline(always)]
    fn take_run(&mut self, out: &mut [IbvWc]) -> usize {
        // In registers: a barrier makes the compiler forget what it knows of memory.
        let (expected, opcode) = (self.expected, self.opcode);
        let (sent, qpn) = (self.current.all_sent(), self.current.qpn);
        let (taken, complete) = self.entries.run(out, |entry, wc| {
            if !Tail::read(entry).is_of_round(expected) {
                return false;
            }
            udma_from_device_barrier();
            let tail = Tail::read(entry).beside(expected);
            if !tail.is_none() {
                return false;
            }
            cqe::plain(opcode, cqe::byte_count(entry), sent(tail.wqe_counter()), qpn, wc);
            true
        });
        if complete {
            self.expected = expected.next_round();
        }
        taken
    }

    #[inline]
    fn step(&mut self) {
        if self.entries.step() {
            self.expected = self.expected.next_round();
        }
    }

    /// Takes entries of any kind into `out`, of which `n` are filled.
    #[inline(never)]
    fn poll_any(&mut self, out: &mut [IbvWc], mut n: usize) -> Result<usize, PollCompletionError> {
        if n > 0 {
            // A run ends where the ring does.
            n += self.take_run(&mut out[n..]);
        }
        while let Some(wc) = out.get_mut(n) {
            match self.take(wc) {
                Taken::Entry => n += 1,
                Taken::Nothing => return self.ended(n),
                Taken::Broken => return self.broken(n),
            }
        }
        self.release();
        Ok(n)
    }

    /// Takes the next entry into `wc`.
    fn take(&mut self, wc: &mut IbvWc) -> Taken {
        if !Tail::read(self.entries.here()).is_ready(self.expected.parity()) {
            return Taken::Nothing;
        }
        // Only what is read from here on is sure to be what the device wrote.
        udma_from_device_barrier();
        let tail = Tail::read(self.entries.here());
        let side = match tail.side() {
            Some(side) if !tail.is_foreign_format() => side,
            _ => return Taken::Broken,
        };
        if self.current.qpn != tail.qpn() && self.turn_to(tail.qpn()).is_err() {
            return Taken::Broken;
        }
        let wr_id = match side {
            Side::Send => self.current.sent(tail.wqe_counter()),
            Side::Recv => self.current.received(tail.wqe_counter()),
        };
        cqe::decode(self.entries.here(), tail, wr_id, wc);
        if side == Side::Send && tail.beside(self.expected).plain_send().is_some() {
            (self.expected, self.opcode) = (self.expected.of_opcode(tail.send_opcode()), wc.opcode);
        }
        self.step();
        Taken::Entry
    }

    /// Finds the slots of another queue pair. Its number can not mean two: a queue pair keeps it until
    /// this queue was seen empty after its death.
    fn turn_to(&mut self, qpn: u32) -> Result<(), PollCompletionError> {
        // One that left without a trace may have left its number to another.
        let left = self.shared.left();
        let mut found = self.table.binary_search_by_key(&qpn, |s| s.qpn);
        if left != self.left || found.is_err() {
            (self.table, self.left) = (self.shared.reporters(), left);
            self.table.sort_by_key(|s| s.qpn);
            found = self.table.binary_search_by_key(&qpn, |s| s.qpn);
        }
        self.current = self.table[found.map_err(|_| BROKEN)?].clone();
        self.expected = Expected::new(qpn, self.expected.parity());
        Ok(())
    }

    /// Entries taken so far, as far as the record counts.
    #[inline]
    fn index(&self) -> u32 {
        self.entries.index() as u32 & INDEX_MASK
    }

    /// Hands the slots of what was taken back to the device, after their bodies were read.
    #[inline]
    fn release(&self) {
        fence(Release);
        self.record.store(doorbell::CONSUMER, self.index());
    }

    /// `n` entries were taken, and then there was none.
    #[inline]
    fn ended(&mut self, n: usize) -> Result<usize, PollCompletionError> {
        if n > 0 {
            self.release();
        }
        if self.shared.graves() != self.buried { self.bury(n) } else { Ok(n) }
    }

    /// `n` entries were taken before one that nobody asked for. They are not lost, but they are the last.
    #[cold]
    fn broken(&mut self, n: usize) -> Result<usize, PollCompletionError> {
        if n > 0 {
            self.release();
        }
        // From here on nothing is ready, and the number of graves is never the one seen.
        (self.dead, self.buried, self.entries) = (Some(BROKEN), u64::MAX, Walk::round(&NEVER));
        self.expected = Expected::nobody(false);
        if n == 0 { Err(BROKEN) } else { Ok(n) }
    }

    /// Graves were dug. If the queue is empty even now, nothing in it is of those.
    #[cold]
    fn bury(&mut self, n: usize) -> Result<usize, PollCompletionError> {
        if let Some(e) = self.dead {
            return Err(e);
        }
        let graves = self.shared.graves();
        if !Tail::read(self.entries.here()).is_ready(self.expected.parity()) {
            self.shared.bury(graves);
            self.table.clear();
            self.current = Slots::new(NOBODY, 1, 1);
            self.expected = Expected::nobody(self.expected.parity());
            self.buried = graves;
        }
        Ok(n)
    }
}

impl CompletionQueue for Mlx5Poller {
    #[inline(always)]
    fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        let n = self.take_run(out);
        if n < out.len() {
            return self.poll_any(out, n);
        }
        self.release();
        Ok(n)
    }

    #[inline]
    fn glance(&mut self, wc: &mut IbvWc) -> Glance {
        let entry = self.entries.here();
        if !Tail::read(entry).is_of_round(self.expected) {
            return if self.shared.graves() == self.buried { Glance::Nothing } else { Glance::Unclear };
        }
        // Only what is read from here on is sure to be what the device wrote.
        udma_from_device_barrier();
        let tail = Tail::read(entry).beside(self.expected);
        if !tail.is_none() {
            return Glance::Unclear;
        }
        let (bytes, slots) = (cqe::byte_count(entry), &*self.current);
        let (wr_id, qpn) = (slots.sent(tail.wqe_counter()), slots.qpn);
        self.step();
        self.release();
        cqe::plain(self.opcode, bytes, wr_id, qpn, wc);
        Glance::Completion
    }

    #[inline]
    fn is_idle(&self) -> bool {
        !Tail::read(self.entries.here()).is_of_round(self.expected) && self.shared.graves() == self.buried
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), PollCompletionError> {
        self.shared.channel().ok_or(PollCompletionError::NoChannel)?;
        self.shared.arm(&self.record, self.events, self.index(), solicited_only);
        Ok(())
    }

    fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.shared.channel().map(AsFd::as_fd)
    }

    fn take_events(&mut self) -> Result<u32, PollCompletionError> {
        let taken = self.shared.take_events()?;
        self.events = self.events.wrapping_add(taken);
        Ok(taken)
    }
}
