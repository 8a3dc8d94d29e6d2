//! Work queues: requests in fixed slots, sized when the queue pair is created, so that posting and
//! moving allocate nothing. When a request runs is `engine.rs`'s.

use super::device::QpRef;
use crate::model::Range;
use ibv_core::{IbvMemoryRegionView, Op, Payload, PostError, RecvRequest, WorkRequest};
use std::collections::VecDeque;

/// A request but for its ranges and inline bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub id: u64,
    pub op: Op,
    pub signaled: bool,
    pub fence: bool,
    pub solicited: bool,
    pub remote: Range,
    /// Bytes it moves; an atomic's are 8.
    pub len: u64,
    /// Number of local ranges.
    pub ranges: usize,
    /// Inline bytes, where it has those instead.
    pub inline: Option<usize>,
}

/// How far a request of the send queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not started.
    Posted,
    /// Under way: pieces of an unordered request done so far.
    Pieces(u64),
    /// Accepted by the peer, whose answer is outstanding: the operand's old value, of an atomic.
    Answer(u64),
    /// Over, and its completion is due when those before it have reported.
    Done(ibv_core::WcStatus),
}

/// A request in its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wqe {
    pub head: Head,
    /// Position in posting order.
    pub seq: u64,
    pub stage: Stage,
    /// Times it went out without an answer.
    pub sent: u32,
    /// Times the peer was not ready.
    pub naks: u32,
    /// The peer it reached, and that peer's protection domain.
    pub peer: Option<QpRef>,
    pub peer_pd: u32,
    /// The peer's receive that an unordered request holds.
    pub taken: Option<(QpRef, u32)>,
    /// Seed of its shuffle.
    pub seed: u64,
    /// Among its queue pair's outstanding gets and atomics.
    pub counted: bool,
    /// The tap has seen it.
    pub tapped: bool,
    /// Its next try was held back already.
    pub delayed: bool,
    /// Takes effect twice.
    pub twice: bool,
}

/// The send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    slots: Box<[Option<Wqe>]>,
    ranges: Box<[Range]>,
    inline: Box<[u8]>,
    sizes: Sizes,
    free: Vec<u32>,
    /// Posted and not started, oldest first.
    pub waiting: VecDeque<u32>,
    /// Started and not over, oldest first; of the ordered schedule.
    pub started: VecDeque<u32>,
    /// Gets and atomics whose answer is due.
    pub outstanding: u32,
    seq: u64,
}

/// Largest request of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub depth: usize,
    pub ranges: usize,
    pub inline: usize,
}

impl SendQueue {
    pub fn new(sizes: Sizes) -> Self {
        let Sizes { depth, ranges, inline } = sizes;
        Self {
            slots: vec![None; depth].into(),
            ranges: vec![Range::default(); depth * ranges].into(),
            inline: vec![0; depth * inline].into(),
            sizes,
            free: (0..depth as u32).rev().collect(),
            waiting: VecDeque::with_capacity(depth),
            started: VecDeque::with_capacity(depth),
            outstanding: 0,
            seq: 0,
        }
    }

    pub fn depth(&self) -> usize {
        self.slots.len()
    }

    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Takes over what `built` holds at `i`. There is room.
    pub fn push(&mut self, head: &Head, ranges: &[Range], inline: &[u8], seed: u64) -> Option<u32> {
        let slot = self.free.pop()?;
        let at = slot as usize;
        self.ranges[at * self.sizes.ranges..][..ranges.len()].copy_from_slice(ranges);
        self.inline[at * self.sizes.inline..][..inline.len()].copy_from_slice(inline);
        let (stage, seq) = (Stage::Posted, self.seq);
        let (head, sent, naks, peer, peer_pd, taken) = (*head, 0, 0, None, 0, None);
        let (counted, tapped, delayed, twice) = (false, false, false, false);
        let wqe =
            Wqe { head, seq, stage, sent, naks, peer, peer_pd, taken, seed, counted, tapped, delayed, twice };
        self.slots[at] = Some(wqe);
        self.seq += 1;
        self.waiting.push_back(slot);
        Some(slot)
    }

    pub fn get(&self, slot: u32) -> Option<&Wqe> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Wqe> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The local ranges of a request.
    pub fn ranges(&self, slot: u32) -> &[Range] {
        let n = self.get(slot).map_or(0, |w| w.head.ranges);
        &self.ranges[slot as usize * self.sizes.ranges..][..n]
    }

    /// A request with its ranges and its inline bytes, to change.
    pub fn parts_mut(&mut self, slot: u32) -> Option<(&mut Wqe, &mut [Range], &mut [u8])> {
        let (at, sizes) = (slot as usize, self.sizes);
        let wqe = self.slots.get_mut(at)?.as_mut()?;
        let (ranges, inline) = (wqe.head.ranges, wqe.head.inline.unwrap_or(0));
        Some((
            wqe,
            &mut self.ranges[at * sizes.ranges..][..ranges],
            &mut self.inline[at * sizes.inline..][..inline],
        ))
    }

    /// The inline bytes of a request that has them.
    pub fn inline(&self, slot: u32) -> Option<&[u8]> {
        let n = self.get(slot)?.head.inline?;
        Some(&self.inline[slot as usize * self.sizes.inline..][..n])
    }

    /// Frees a slot; what was in it.
    pub fn take(&mut self, slot: u32) -> Option<Wqe> {
        let wqe = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(wqe)
    }

    /// The oldest request still there.
    pub fn oldest(&self) -> Option<u32> {
        let live = (0u32..).zip(&self.slots).filter_map(|(i, s)| s.as_ref().map(|w| (w.seq, i)));
        live.min().map(|(_, i)| i)
    }

    /// Forgets every order; the slots stay.
    pub fn halt(&mut self) {
        self.waiting.clear();
        self.started.clear();
        self.outstanding = 0;
    }
}

/// A receive in its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rqe {
    pub id: u64,
    pub ranges: usize,
    seq: u64,
    /// Out of the order, and filled by a message under way.
    reserved: bool,
}

/// The receive queue.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    slots: Box<[Option<Rqe>]>,
    ranges: Box<[Range]>,
    per_slot: usize,
    free: Vec<u32>,
    posted: VecDeque<u32>,
    seq: u64,
}

impl RecvQueue {
    pub fn new(depth: usize, per_slot: usize) -> Self {
        Self {
            slots: vec![None; depth].into(),
            ranges: vec![Range::default(); depth * per_slot].into(),
            per_slot,
            free: (0..depth as u32).rev().collect(),
            posted: VecDeque::with_capacity(depth),
            seq: 0,
        }
    }

    pub fn post(&mut self, wr: &RecvRequest<'_>) -> Result<(), PostError> {
        let slot = self.free.pop().ok_or(PostError::QueueFull)?;
        let at = slot as usize;
        for (r, v) in self.ranges[at * self.per_slot..].iter_mut().zip(wr.local) {
            *r = range(v);
        }
        self.slots[at] = Some(Rqe { id: wr.id, ranges: wr.local.len(), seq: self.seq, reserved: false });
        self.seq += 1;
        self.posted.push_back(slot);
        Ok(())
    }

    /// The next receive to be used, which stays.
    pub fn front(&self) -> Option<u32> {
        self.posted.front().copied()
    }

    /// Takes the next receive out of the order; its slot stays occupied.
    pub fn reserve(&mut self) -> Option<u32> {
        let slot = self.posted.pop_front()?;
        self.set_reserved(slot, true);
        Some(slot)
    }

    fn set_reserved(&mut self, slot: u32, reserved: bool) -> bool {
        let rqe = self.slots.get_mut(slot as usize).and_then(Option::as_mut);
        rqe.is_some_and(|r| std::mem::replace(&mut r.reserved, reserved))
    }

    /// Puts a reserved one back to the front.
    pub fn unreserve(&mut self, slot: u32) {
        if self.set_reserved(slot, false) {
            self.posted.push_front(slot);
        }
    }

    pub fn get(&self, slot: u32) -> Option<&Rqe> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub fn ranges(&self, slot: u32) -> &[Range] {
        let n = self.get(slot).map_or(0, |r| r.ranges);
        &self.ranges[slot as usize * self.per_slot..][..n]
    }

    pub fn take(&mut self, slot: u32) -> Option<Rqe> {
        let rqe = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        if !rqe.reserved {
            self.posted.retain(|&s| s != slot);
        }
        Some(rqe)
    }

    pub fn oldest(&self) -> Option<u32> {
        let live = (0u32..).zip(&self.slots).filter_map(|(i, s)| s.as_ref().map(|r| (r.seq, i)));
        live.min().map(|(_, i)| i)
    }
}

/// What a queue pair has built and not rung: of no concern to the fabric, and guarded by nothing but
/// the queue pair's `&mut`.
#[derive(Debug)]
pub(crate) struct Built {
    heads: Vec<Head>,
    ranges: Vec<Range>,
    inline: Vec<u8>,
    depth: usize,
}

impl Built {
    pub fn new(sizes: Sizes) -> Self {
        Self {
            heads: Vec::with_capacity(sizes.depth),
            ranges: Vec::with_capacity(sizes.depth * sizes.ranges),
            inline: Vec::with_capacity(sizes.depth * sizes.inline),
            depth: sizes.depth,
        }
    }

    /// The full queue is core's to prevent; it does as long as no fault invents completions.
    #[inline]
    pub fn push(&mut self, wr: &WorkRequest<'_>) -> Result<(), PostError> {
        if self.heads.len() == self.depth {
            return Err(PostError::QueueFull);
        }
        let remote = Range { addr: wr.remote.addr, len: 0, key: wr.remote.rkey };
        let (len, ranges, inline) = match wr.local {
            Payload::Sges(sges) => {
                let before = self.ranges.len();
                self.ranges.extend(sges.iter().map(range));
                (self.ranges[before..].iter().map(|r| r.len).sum(), sges.len(), None)
            }
            Payload::Inline(bytes) => {
                self.inline.extend_from_slice(bytes);
                (bytes.len() as u64, 0, Some(bytes.len()))
            }
        };
        let remote = Range { len, ..remote };
        let WorkRequest { id, op, signaled, fence, solicited, .. } = *wr;
        self.heads.push(Head { id, op, signaled, fence, solicited, remote, len, ranges, inline });
        Ok(())
    }

    pub fn clear(&mut self) {
        self.heads.clear();
        self.ranges.clear();
        self.inline.clear();
    }

    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Every request with its ranges and inline bytes, in posting order.
    pub fn iter(&self) -> impl Iterator<Item = (&Head, &[Range], &[u8])> {
        let (mut r, mut b) = (0, 0);
        self.heads.iter().map(move |h| {
            let (from_r, from_b) = (r, b);
            (r, b) = (r + h.ranges, b + h.inline.unwrap_or(0));
            (h, &self.ranges[from_r..r], &self.inline[from_b..b])
        })
    }
}

fn range(view: &IbvMemoryRegionView<'_>) -> Range {
    Range { addr: view.addr(), len: view.len() as u64, key: view.lkey() }
}
