//! Shared receive queues of mlx5: a linked list of receives in the program's memory, taken by several queue pairs, and the
//! limit below which the program is told. What a receive is filled with is not decided here.
//!
//! Each entry starts with the index of the next one (`mlx5_wqe_srq_next_seg`): the program frees entries in any order and
//! links them anew, so the device must follow the links and may not count.

use crate::memory::{Fault, Pinned};
use crate::mlx5::ring::Ring;
use crate::mlx5::wqe::{DataSegment, decode_receive};

/// Bytes of the link before an entry's pieces.
const LINK: usize = 16;

/// How a queue was created.
#[derive(Debug, Clone, Copy)]
pub struct SrqLayout {
    /// Address of the entries.
    pub buffer: u64,
    /// Address of the record: receives posted, modulo 2^16.
    pub record: u64,
    /// Entries, a power of two.
    pub entries: u32,
    /// Bytes of an entry, a power of two.
    pub entry_size: u32,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// The context it belongs to.
    pub context: u32,
    /// Protection domain, in which its receives' keys are looked up.
    pub pd: u32,
    /// The program's name for it in events.
    pub user_handle: u64,
    /// Receives that it holds, as the program was told, and pieces of each.
    pub caps: (u32, u32),
    /// Asynchronous events sent for it.
    pub async_events: u32,
    /// Tell the program, once, when fewer receives than this are there; 0 tells never.
    pub limit: u32,
    ring: Ring,
    record: Pinned,
    /// Index of the next receive.
    head: u16,
    /// Receives taken, modulo 2^16.
    taken: u16,
}

/// A receive of either kind of queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receive {
    /// What its completion calls it: a position, or an index.
    pub counter: u16,
    /// Protection domain in which its keys are looked up.
    pub pd: u32,
    /// Its pieces.
    pub pieces: Vec<DataSegment>,
}

impl Srq {
    /// Makes a queue over the program's memory; `None` for a layout without entries.
    pub fn new(context: u32, layout: SrqLayout) -> Result<Option<Self>, Fault> {
        let Some(ring) = Ring::new(layout.buffer, 0, layout.entries, layout.entry_size as usize)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            context,
            pd: 0,
            user_handle: 0,
            caps: (0, 0),
            async_events: 0,
            limit: 0,
            ring,
            record: Pinned::new(layout.record, 4)?,
            head: 0,
            taken: 0,
        }))
    }

    /// Receives posted and not taken.
    pub fn available(&self) -> u16 {
        (u32::from_be(self.record.load_u32(0)) as u16).wrapping_sub(self.taken)
    }

    /// The next receive, if there is one.
    pub fn peek(&self) -> Option<Receive> {
        if self.available() == 0 {
            return None;
        }
        let pieces = decode_receive(&self.entry()[LINK..]);
        Some(Receive { counter: self.head, pd: self.pd, pieces })
    }

    /// Takes the next receive; true if the program must be told that the limit was reached.
    pub fn take(&mut self) -> bool {
        let entry = self.entry();
        self.head = u16::from_be_bytes([entry[2], entry[3]]);
        self.taken = self.taken.wrapping_add(1);
        self.reaches_limit()
    }

    /// Sets the limit; true if the program must be told at once.
    pub fn set_limit(&mut self, limit: u32) -> bool {
        self.limit = limit;
        self.reaches_limit()
    }

    /// The limit works once: it is off after it told.
    fn reaches_limit(&mut self) -> bool {
        let reached = u32::from(self.available()) < self.limit;
        if reached {
            self.limit = 0;
        }
        reached
    }

    /// The next receive as it lies in the ring.
    pub(crate) fn entry(&self) -> Vec<u8> {
        self.ring.copy(self.head, self.ring.entry_size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Rig {
        ring: Vec<AtomicU64>,
        record: Box<AtomicU64>,
    }

    impl Rig {
        fn new() -> (Self, Srq) {
            let rig = Self {
                ring: (0..4 * 32 / 8).map(|_| AtomicU64::new(0)).collect(),
                record: Box::new(AtomicU64::new(0)),
            };
            let layout = SrqLayout {
                buffer: rig.ring.as_ptr() as u64,
                record: &raw const *rig.record as u64,
                entries: 4,
                entry_size: 32,
            };
            let srq = Srq::new(1, layout).unwrap().unwrap();
            (rig, srq)
        }

        /// Entry `index` leads to `next` and holds one piece of `len` bytes.
        fn put(&self, index: usize, next: u16, len: u32) {
            let mut bytes = [0; 32];
            bytes[2..4].copy_from_slice(&next.to_be_bytes());
            bytes[16..20].copy_from_slice(&len.to_be_bytes());
            for (i, chunk) in bytes.chunks_exact(8).enumerate() {
                let word = u64::from_ne_bytes(chunk.try_into().unwrap());
                self.ring[index * 4 + i].store(word, Ordering::Relaxed);
            }
        }

        fn publish(&self, posted: u32) {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&posted.to_be_bytes());
            self.record.store(u64::from_ne_bytes(bytes), Ordering::Release);
        }
    }

    #[test]
    fn links_are_followed_in_any_order() {
        let (rig, mut srq) = Rig::new();
        for (index, next) in [(0, 3), (3, 1), (1, 2), (2, 0)] {
            rig.put(index, next, 10 + index as u32);
        }
        rig.publish(4);
        let mut seen = Vec::new();
        while let Some(receive) = srq.peek() {
            seen.push((receive.counter, receive.pieces[0].len));
            srq.take();
        }
        assert_eq!(seen, [(0, 10), (3, 13), (1, 11), (2, 12)]);
        assert_eq!(srq.available(), 0);
    }

    #[test]
    fn a_link_is_read_when_its_entry_is_taken() {
        let (rig, mut srq) = Rig::new();
        rig.put(0, 1, 1);
        rig.publish(1);
        rig.put(0, 2, 1);
        srq.take();
        rig.put(2, 0, 7);
        rig.publish(2);
        assert_eq!(srq.peek().map(|r| r.counter), Some(2));
    }

    #[test]
    fn the_limit_tells_once() {
        let (rig, mut srq) = Rig::new();
        (0..4).for_each(|i| rig.put(i, (i as u16 + 1) % 4, 1));
        rig.publish(4);
        assert!(!srq.set_limit(3));
        assert_eq!([srq.take(), srq.take(), srq.take()], [false, true, false]);
        assert!(srq.set_limit(2), "fewer are there already");
        assert_eq!(srq.limit, 0);
    }

    #[test]
    fn a_link_out_of_range_stays_inside_the_ring() {
        let (rig, mut srq) = Rig::new();
        rig.put(0, 0xffff, 1);
        rig.put(3, 0, 9);
        rig.publish(2);
        srq.take();
        assert_eq!(srq.peek().unwrap().pieces[0].len, 9);
    }
}
