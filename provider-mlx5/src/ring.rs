//! Counters and slots of the rings: where the next WQE goes, what is built and what is rung, which
//! request a completion means. Pure: the memory is behind `&[Block]`, device order is `doorbell.rs`'s.
//!
//! Room needs no check here. Core admits at most `max_send_wr` requests between posting and completion,
//! and the ring is created to hold that many of the longest; [`SendRing::new`] refuses a shorter one.

use crate::wqe::{self, Segment, Sink};
use ibv_core::{RecvRequest, WorkRequest};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// 64 bytes of a ring. Atomics because the device may be a thread of this process; relaxed ones, which
/// are plain stores, because the doorbell orders them.
pub type Block = [AtomicU64; 8];

/// What poster and poller of one queue pair share: the request behind each slot.
///
/// The poster writes a slot before it rings, the poller reads it after it saw the completion. The device
/// orders the two in fact; in Rust's model nothing does, so the slots are atomics. A slot is written anew
/// only after core has seen the credit of its last request, which the poller released.
#[derive(Debug)]
pub struct Slots {
    /// The queue pair.
    pub qpn: u32,
    send: Box<[AtomicU64]>,
    recv: Box<[AtomicU64]>,
}

impl Slots {
    /// Slots for rings of that many basic blocks and receives; both are powers of two, or 0.
    pub fn new(qpn: u32, send: u32, recv: u32) -> Arc<Self> {
        let table = |n: u32| (0..n.max(1)).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { qpn, send: table(send), recv: table(recv) })
    }

    /// The request whose WQE starts at basic block `counter`.
    #[inline]
    pub fn sent(&self, counter: u16) -> u64 {
        self.send[usize::from(counter) & (self.send.len() - 1)].load(Relaxed)
    }

    /// The receive of that number.
    #[inline]
    pub fn received(&self, counter: u16) -> u64 {
        self.recv[usize::from(counter) & (self.recv.len() - 1)].load(Relaxed)
    }
}

/// The send queue's counters, in basic blocks. They wrap at 16 bits on the device and count on here.
#[derive(Debug)]
pub struct SendRing {
    slots: Arc<Slots>,
    qpn: u32,
    /// Blocks built.
    next: u64,
    /// Blocks rung.
    rung: u64,
    /// First block of the last WQE built.
    last: u64,
}

impl SendRing {
    /// A ring of `blocks` basic blocks that takes `depth` WQEs of `longest` segments.
    ///
    /// # Errors
    /// What does not fit, in words.
    pub fn new(slots: Arc<Slots>, blocks: u32, depth: u32, longest: u32) -> Result<Self, String> {
        let need = u64::from(depth) * u64::from(wqe::blocks(longest));
        if !blocks.is_power_of_two() || blocks > 1 << 16 || slots.send.len() != blocks as usize {
            return Err(format!("a send queue of {blocks} basic blocks is no power of two up to 65536"));
        }
        if need > u64::from(blocks) || longest > wqe::MAX_SEGMENTS {
            return Err(format!(
                "{depth} work requests of {longest} segments need {need} basic blocks; the device gave {blocks}"
            ));
        }
        Ok(Self { qpn: slots.qpn, slots, next: 0, rung: 0, last: 0 })
    }

    /// Writes `wr`'s WQE behind the last one. The device can not see it until `next` is in the record.
    #[inline]
    pub fn build(&mut self, memory: &[Block], wr: &WorkRequest<'_>) {
        let head = wqe::Head { qpn: self.qpn, index: self.next as u16 };
        let mut at = Cursor { memory, segment: self.next as usize * 4 };
        wqe::encode(wr, head, &mut at);
        let blocks = at.finish(self.next);
        self.built(wr.id, blocks);
    }

    /// Writes a WQE of three segments, control and two more: the common case, where nothing can wrap.
    #[inline]
    pub fn build_block(&mut self, memory: &[Block], id: u64, words: [u64; 4], flags: Flags) {
        let control = wqe::control(
            wqe::Head { qpn: self.qpn, index: self.next as u16 },
            flags.opcode,
            3,
            flags.fm_ce_se,
            flags.imm,
        );
        let block = &memory[self.next as usize & (memory.len() - 1)];
        block[0].store(control[0], Relaxed);
        block[1].store(control[1], Relaxed);
        for (slot, word) in block[2..].iter().zip(words) {
            slot.store(word, Relaxed);
        }
        self.built(id, 1);
    }

    #[inline]
    fn built(&mut self, id: u64, blocks: u32) {
        self.slots.send[self.next as usize & (self.slots.send.len() - 1)].store(id, Relaxed);
        self.last = self.next;
        self.next += u64::from(blocks);
    }

    /// What to ring: the record's count and the control word of the last WQE. `None` with nothing new.
    #[inline]
    pub fn pending(&self, memory: &[Block]) -> Option<(u16, u64)> {
        let last = &memory[self.last as usize & (memory.len() - 1)];
        (self.next != self.rung).then(|| (self.next as u16, last[0].load(Relaxed)))
    }

    /// Everything built is rung.
    #[inline]
    pub fn commit(&mut self) {
        self.rung = self.next;
    }

    /// Forgets what is built and not rung.
    pub fn discard(&mut self) {
        self.next = self.rung;
    }

    /// Where the ring is.
    pub fn positions(&self) -> Positions {
        Positions { next: self.next, rung: self.rung, last: self.last }
    }
}

/// A send queue's counters, in basic blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Blocks built.
    pub next: u64,
    /// Blocks rung.
    pub rung: u64,
    /// First block of the last WQE built.
    pub last: u64,
}

/// The control segment's variable part.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    /// `MLX5_OPCODE_*`.
    pub opcode: u8,
    /// Completion, solicited event, fence.
    pub fm_ce_se: u8,
    /// The immediate, or 0.
    pub imm: u32,
}

/// A place in a ring that moves on by segments and wraps at the end.
struct Cursor<'a> {
    memory: &'a [Block],
    segment: usize,
}

impl Sink for Cursor<'_> {
    #[inline]
    fn segment(&mut self, segment: Segment) {
        let block = &self.memory[(self.segment / 4) & (self.memory.len() - 1)];
        let at = self.segment % 4 * 2;
        block[at].store(segment[0], Relaxed);
        block[at + 1].store(segment[1], Relaxed);
        self.segment += 1;
    }
}

impl Cursor<'_> {
    /// Blocks used since block `start`.
    #[inline]
    fn finish(self, start: u64) -> u32 {
        wqe::blocks((self.segment - start as usize * 4) as u32)
    }
}

/// The receive queue's counter, in receives of `stride` segments each.
#[derive(Debug)]
pub struct RecvRing {
    slots: Arc<Slots>,
    next: u64,
    stride: u32,
}

impl RecvRing {
    /// A ring of receives that take `stride` segments each.
    pub fn new(slots: Arc<Slots>, stride: u32) -> Self {
        Self { slots, next: 0, stride }
    }

    /// Writes a receive; returns the count for the record.
    pub fn build(&mut self, memory: &[Segments], wr: &RecvRequest<'_>) -> u16 {
        let slot = self.next as usize & (self.slots.recv.len() - 1);
        let mut at = Linear { memory, segment: slot * self.stride as usize };
        wqe::encode_recv(wr, self.stride, &mut at);
        self.slots.recv[slot].store(wr.id, Relaxed);
        self.next += 1;
        self.count()
    }

    /// Receives posted in all.
    pub fn total(&self) -> u64 {
        self.next
    }

    /// Receives posted, as the record counts them.
    pub fn count(&self) -> u16 {
        self.next as u16
    }
}

/// 16 bytes of a receive queue.
pub type Segments = [AtomicU64; 2];

struct Linear<'a> {
    memory: &'a [Segments],
    segment: usize,
}

impl Sink for Linear<'_> {
    fn segment(&mut self, segment: Segment) {
        if let Some(place) = self.memory.get(self.segment) {
            place[0].store(segment[0], Relaxed);
            place[1].store(segment[1], Relaxed);
        }
        self.segment += 1;
    }
}
