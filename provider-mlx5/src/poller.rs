//! The consuming end of a completion queue: ownership, order of reads, consumer index, arming. What the
//! bytes mean is `cqe.rs`'s.

use crate::{
    completion_queue::CqShared,
    cqe::{self, Cqe, Side, Tail},
    doorbell::{self, DoorbellRecord, udma_from_device_barrier},
    mapped::Mapped,
    ring::Slots,
};
use ibv_core::{CompletionQueue, IbvWc, PollCompletionError};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{Ordering::Release, fence},
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

/// Polls one completion queue directly, never through libmlx5.
#[derive(Debug)]
pub struct Mlx5Poller {
    entries: Mapped<Cqe>,
    record: DoorbellRecord,
    /// Entries taken so far, wrapping.
    index: u32,
    /// Entries of the queue, a power of two.
    count: u32,
    /// Blocks of 64 bytes in an entry: 1, or 2 with the entry in the second.
    blocks: u32,
    /// The queue pair of the last completion; bursts come from one.
    current: Arc<Slots>,
    /// This poller's copy of the queue pairs that report here.
    table: Vec<Arc<Slots>>,
    /// Graves dug that this poller has seen.
    buried: u64,
    /// Queue pairs that left without a trace, as of `table`.
    left: u64,
    /// Why the queue can not be polled any more.
    dead: Option<PollCompletionError>,
    /// Events taken off the channel, which the device counts by twos bits.
    events: u32,
    /// Last: the memory above is this object's.
    shared: Arc<CqShared>,
}

impl Mlx5Poller {
    pub(crate) fn new(
        entries: Mapped<Cqe>,
        record: DoorbellRecord,
        count: u32,
        shared: Arc<CqShared>,
    ) -> Self {
        let blocks = (entries.items().len() / count as usize) as u32;
        let (current, table) = (Slots::new(u32::MAX, 1, 1), Vec::new());
        let (buried, left, dead, events) = (0, 0, None, 0);
        Self { entries, record, index: 0, count, blocks, current, table, buried, left, dead, events, shared }
    }

    #[inline]
    fn entry(&self) -> &Cqe {
        let slot = (self.index & (self.count - 1)) * self.blocks + self.blocks - 1;
        &self.entries.items()[slot as usize]
    }

    /// Takes the next entry into `wc`.
    #[inline]
    fn take(&mut self, wc: &mut IbvWc) -> Taken {
        let entry = self.entry();
        let (seen, parity) = (Tail::read(entry), self.index & self.count != 0);
        if !seen.is_ready(parity) {
            return Taken::Nothing;
        }
        // Only what is read from here on is sure to be what the device wrote.
        udma_from_device_barrier();
        let tail = Tail::read(entry);
        if !tail.is_plain_send(parity) || self.current.qpn != tail.qpn() {
            return self.take_rare(tail, wc);
        }
        cqe::requester(entry, tail, self.current.sent(tail.wqe_counter()), wc);
        self.index = self.index.wrapping_add(1);
        Taken::Entry
    }

    /// The same for receives, errors, and the first entry of another queue pair.
    #[cold]
    fn take_rare(&mut self, tail: Tail, wc: &mut IbvWc) -> Taken {
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
        cqe::decode(self.entry(), tail, wr_id, wc);
        self.index = self.index.wrapping_add(1);
        Taken::Entry
    }

    /// Finds the slots of another queue pair. Its number can not mean two: a queue pair keeps it until
    /// this queue was seen empty after its death.
    #[cold]
    fn turn_to(&mut self, qpn: u32) -> Result<(), PollCompletionError> {
        // One that left without a trace may have left its number to another.
        let left = self.shared.left();
        if left != self.left || !self.table.iter().any(|s| s.qpn == qpn) {
            (self.table, self.left) = (self.shared.reporters(), left);
        }
        let found = self.table.iter().find(|s| s.qpn == qpn);
        self.current = found.ok_or(BROKEN)?.clone();
        Ok(())
    }

    /// Hands `n` slots back to the device, after their bodies were read.
    #[inline]
    fn release(&self) {
        fence(Release);
        self.record.store(doorbell::CONSUMER, self.index & INDEX_MASK);
    }

    /// `n` entries were taken, and then there was none.
    #[inline]
    fn drained(&mut self, n: usize, graves: u64) -> usize {
        if n > 0 {
            self.release();
        }
        if graves != self.buried {
            self.bury(graves);
        }
        n
    }

    /// `n` entries were taken before one that nobody asked for. They are not lost, but they are the last.
    #[cold]
    fn broken(&mut self, n: usize) -> Result<usize, PollCompletionError> {
        self.dead = Some(BROKEN);
        if n == 0 {
            return Err(BROKEN);
        }
        self.release();
        Ok(n)
    }

    /// The queue was empty after `graves` graves were dug: nothing in it is of those.
    #[cold]
    fn bury(&mut self, graves: u64) {
        self.shared.bury(graves);
        self.table = self.shared.reporters();
        self.current = Slots::new(u32::MAX, 1, 1);
        self.buried = graves;
    }
}

impl CompletionQueue for Mlx5Poller {
    #[inline]
    fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        if let Some(e) = self.dead {
            return Err(e);
        }
        let graves = self.shared.graves();
        let mut n = 0;
        for wc in out.iter_mut() {
            match self.take(wc) {
                Taken::Entry => n += 1,
                Taken::Nothing => return Ok(self.drained(n, graves)),
                Taken::Broken => return self.broken(n),
            }
        }
        self.release();
        Ok(n)
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), PollCompletionError> {
        self.shared.channel().ok_or(PollCompletionError::NoChannel)?;
        self.shared.arm(&self.record, self.events, self.index & INDEX_MASK, solicited_only);
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
