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
        let (buried, dead, events) = (0, None, 0);
        Self { entries, record, index: 0, count, blocks, current, table, buried, dead, events, shared }
    }

    #[inline]
    fn entry(&self) -> &Cqe {
        let slot = (self.index & (self.count - 1)) * self.blocks + self.blocks - 1;
        &self.entries.items()[slot as usize]
    }

    /// Takes the next entry into `wc`; `false` if the device has not written it.
    #[inline]
    fn take(&mut self, wc: &mut IbvWc) -> Result<bool, PollCompletionError> {
        let entry = self.entry();
        if !Tail::read(entry).is_ready(self.index & self.count != 0) {
            return Ok(false);
        }
        // Only what is read from here on is sure to be what the device wrote.
        udma_from_device_barrier();
        let tail = Tail::read(entry);
        let side = match tail.side() {
            Some(side) if !tail.is_foreign_format() => side,
            _ => return Err(BROKEN),
        };
        if self.current.qpn != tail.qpn() {
            self.turn_to(tail.qpn())?;
        }
        let wr_id = match side {
            Side::Send => self.current.sent(tail.wqe_counter()),
            Side::Recv => self.current.received(tail.wqe_counter()),
        };
        cqe::decode(self.entry(), tail, wr_id, wc);
        self.index = self.index.wrapping_add(1);
        Ok(true)
    }

    /// Finds the slots of another queue pair. Its number can not mean two: a queue pair keeps it until
    /// this queue was seen empty after its death.
    #[cold]
    fn turn_to(&mut self, qpn: u32) -> Result<(), PollCompletionError> {
        if !self.table.iter().any(|s| s.qpn == qpn) {
            self.table = self.shared.reporters();
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
        let graves = self.shared.graves();
        let mut n = 0;
        for wc in &mut *out {
            match self.take(wc) {
                Ok(true) => n += 1,
                Ok(false) => break,
                Err(e) => {
                    self.dead = Some(e);
                    break;
                }
            }
        }
        if n > 0 {
            self.release();
        }
        match self.dead {
            // What was read before the broken entry is not lost.
            Some(e) if n == 0 => return Err(e),
            None if n < out.len() && graves != self.buried => self.bury(graves),
            _ => {}
        }
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
