//! Counters and slots of the rings: where the next WQE goes, what is built and what is rung, which
//! request a completion means. Pure: the memory is `mapped.rs`'s, device order is `doorbell.rs`'s.
//!
//! Room needs no check here. Core admits at most `max_send_wr` requests between posting and completion,
//! and the ring is created to hold that many of the longest; [`SendRing::new`] refuses a shorter one.

use crate::{
    mapped::{Dense, Table},
    wqe::{self, Segment, Sink},
};
use ibv_core::{Op, RecvRequest, WorkRequest};
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
    send: Table<AtomicU64>,
    recv: Table<AtomicU64>,
}

impl Slots {
    /// Slots for rings of that many basic blocks and receives; both are powers of two, or 0.
    pub fn new(qpn: u32, send: u32, recv: u32) -> Arc<Self> {
        Arc::new(Self { qpn, send: Table::new(send as usize), recv: Table::new(recv as usize) })
    }

    /// The request whose WQE starts at basic block `counter`.
    #[inline]
    pub fn sent(&self, counter: u16) -> u64 {
        self.send.at(counter.into()).load(Relaxed)
    }

    /// The requests behind all the slots of the send queue, as [`sent`](Self::sent) finds one.
    #[inline]
    pub fn all_sent(&self) -> impl Fn(u16) -> u64 {
        let send = self.send.view();
        move |counter| send.at(counter.into()).load(Relaxed)
    }

    /// The receive of that number.
    #[inline]
    pub fn received(&self, counter: u16) -> u64 {
        self.recv.at(counter.into()).load(Relaxed)
    }
}

/// The send queue: its memory, and its counters in basic blocks. They wrap at 16 bits on the device and count
/// on here.
#[derive(Debug)]
pub struct SendRing {
    memory: Dense<Block>,
    slots: Arc<Slots>,
    qpn: u32,
    /// What the WQEs of three segments begin with, but for their index, by `Kind`.
    heads: [u64; 3],
    /// Blocks built.
    next: u64,
    /// Blocks rung.
    rung: u64,
    /// The first eight bytes of the last WQE built.
    control: u64,
}

impl SendRing {
    /// A ring in `memory`, of `blocks` basic blocks, that takes `depth` WQEs of `longest` segments.
    ///
    /// # Errors
    /// What does not fit, in words.
    pub fn new(
        memory: Dense<Block>,
        slots: Arc<Slots>,
        blocks: u32,
        depth: u32,
        longest: u32,
    ) -> Result<Self, String> {
        let need = u64::from(depth) * u64::from(wqe::blocks(longest));
        if !blocks.is_power_of_two() || blocks > 1 << 16 || slots.send.len() != blocks as usize {
            return Err(format!("a send queue of {blocks} basic blocks is no power of two up to 65536"));
        }
        if need > u64::from(blocks) || longest > wqe::MAX_SEGMENTS {
            return Err(format!(
                "{depth} work requests of {longest} segments need {need} basic blocks; the device gave {blocks}"
            ));
        }
        let qpn = slots.qpn;
        let head = |op| wqe::control(wqe::Head { qpn, index: 0 }, wqe::opcode(op), 3, 0, 0)[0];
        let heads = [Op::Write, Op::Read, Op::WriteWithImm(0)].map(head);
        Ok(Self { memory, qpn, heads, slots, next: 0, rung: 0, control: 0 })
    }

    /// Writes `wr`'s WQE behind the last one. The device can not see it until `next` is in the record.
    #[inline(never)]
    pub fn build(&mut self, wr: &WorkRequest<'_>) {
        let head = wqe::Head { qpn: self.qpn, index: self.next as u16 };
        let mut at = Cursor { memory: &self.memory, segment: self.next as usize * 4 };
        wqe::encode(wr, head, &mut at);
        let blocks = at.finish(self.next);
        let control = self.memory.at(self.next as usize)[0].load(Relaxed);
        self.built(wr.id, control, blocks);
    }

    /// Writes a WQE of three segments, control and two more: the common case, where nothing can wrap.
    #[inline(always)]
    pub fn build_block(&mut self, id: u64, words: [u64; 4], flags: Flags) {
        let first = self.heads[flags.kind as usize] | wqe::control_index(self.next as u16);
        let block = self.memory.at(self.next as usize);
        block[0].store(first, Relaxed);
        block[1].store(wqe::control_second(flags.fm_ce_se, flags.imm), Relaxed);
        for (slot, word) in block[2..].iter().zip(words) {
            slot.store(word, Relaxed);
        }
        self.built(id, first, 1);
    }

    #[inline]
    fn built(&mut self, id: u64, control: u64, blocks: u32) {
        self.slots.send.at(self.next as usize).store(id, Relaxed);
        self.control = control;
        self.next += u64::from(blocks);
    }

    /// What to ring: the record's count and the control word of the last WQE, if there is one. It is rung then.
    #[inline]
    pub fn publish(&mut self) -> (u16, u64) {
        self.rung = self.next;
        (self.next as u16, self.control)
    }

    /// The blocks of the WQE that would be rung, if it is one that is worth a copy.
    pub fn only(&self, most: usize) -> Option<impl Iterator<Item = &Block>> {
        let blocks = self.next.wrapping_sub(self.rung) as usize;
        let one = is_worth_a_copy(self.control, self.rung as u16, blocks, most);
        one.then(|| (0..blocks).map(|n| self.memory.at(self.rung as usize + n)))
    }

    /// Forgets what is built and not rung.
    pub fn discard(&mut self) {
        self.next = self.rung;
    }

    /// Back to the first block, together with the device.
    pub fn reset(&mut self) {
        (self.next, self.rung, self.control) = (0, 0, 0);
    }

    /// Where the ring is.
    pub fn positions(&self) -> Positions {
        // The last WQE says itself where it begins, by 16 bits; it is behind by a few, or ahead if discarded.
        let ahead = (u64::from_be(self.control) >> 40) as u16;
        let ahead = ahead.wrapping_sub(self.next as u16) as i16;
        Positions { next: self.next, rung: self.rung, last: self.next.wrapping_add_signed(ahead.into()) }
    }
}

/// Whether `blocks` blocks from number `rung` on, whose last WQE begins with `control`, are one WQE, of more
/// than a control segment, and not longer than `most` bytes (rdma-core `providers/mlx5/qp.c`, `post_send_db`).
fn is_worth_a_copy(control: u64, rung: u16, blocks: usize, most: usize) -> bool {
    let first = u64::from_be(control);
    let (index, segments) = ((first >> 40) as u16, first & 0x3f);
    index == rung && segments > 1 && blocks > 0 && blocks * wqe::BLOCK <= most
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

/// The operations whose WQE is control, remote address and one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A put.
    Write,
    /// A get.
    Read,
    /// A put with immediate.
    WriteWithImm,
}

impl Kind {
    /// That of `op`, with its immediate or 0.
    #[inline(always)]
    pub const fn of(op: Op) -> Option<(Self, u32)> {
        match op {
            Op::Write => Some((Self::Write, 0)),
            Op::Read => Some((Self::Read, 0)),
            Op::WriteWithImm(imm) => Some((Self::WriteWithImm, imm)),
            _ => None,
        }
    }
}

/// The control segment's variable part.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    /// The operation.
    pub kind: Kind,
    /// Completion, solicited event, fence.
    pub fm_ce_se: u8,
    /// The immediate, or 0.
    pub imm: u32,
}

/// A place in a ring that moves on by segments and wraps at the end.
struct Cursor<'a> {
    memory: &'a Dense<Block>,
    segment: usize,
}

impl Sink for Cursor<'_> {
    #[inline]
    fn segment(&mut self, segment: Segment) {
        let block = self.memory.at(self.segment / 4);
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
        self.slots.recv.at(slot).store(wr.id, Relaxed);
        self.next += 1;
        self.count()
    }

    /// Back to the first receive, together with the device.
    pub fn reset(&mut self) {
        self.next = 0;
    }

    /// Receives posted since the last reset.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wqe_is_copied_if_it_is_more_than_a_control_segment_and_fits() {
        let copied = |index, segments, rung, blocks| {
            let head = wqe::Head { qpn: 0xff_ffff, index };
            let control = wqe::control(head, wqe::opcode(Op::Send), segments, 0xff, u32::MAX)[0];
            is_worth_a_copy(control, rung, blocks, 256)
        };
        assert!(copied(7, 2, 7, 1) && copied(0xffff, 16, 0xffff, 4));
        assert!(!copied(7, 1, 7, 1), "control alone");
        assert!(!copied(7, 17, 7, 5), "longer than half a register");
        assert!(!copied(8, 2, 7, 2), "the last of two");
        assert!(!copied(7, 2, 7, 0), "nothing new");
    }
}
