//! Puts, gets, batches: requests that are changed on their way to the device.

use crate::{
    hooks::with_world,
    queue_pair::MutantQueuePair,
    world::{World, len},
};
use ibv_core::{IbvMemoryRegionView, IbvQueuePair, Op, Payload, PostError, WorkRequest};

super::list! {
    /// Puts where it should get, and gets where it should put.
    swapped_direction { enqueue: swap_direction }
    /// Leaves out the last byte of every put.
    lost_last_byte { enqueue: |qp, wr| cut_put(qp, wr, 0, 1) }
    /// Leaves out the first byte of every put.
    lost_first_byte { enqueue: |qp, wr| cut_put(qp, wr, 1, 0) }
    /// Leaves out the last byte of a message of the largest size.
    chunk_off_by_one { enqueue: cut_largest }
    /// Completes gets without moving a byte.
    get_moves_nothing { enqueue: empty_get }
    /// Gathers the ranges of a request in reverse.
    gather_reversed { enqueue: |qp, wr| ranges(qp, wr, |v| v.reverse()) }
    /// Moves the first range of a request and forgets the others.
    first_range_only { enqueue: |qp, wr| ranges(qp, wr, |v| v.truncate(1)) }
    /// Writes to the front of the remote region wherever it was told to.
    remote_offset_ignored { enqueue: to_front }
    /// Reports the id of the next request.
    wrong_wr_id { enqueue: |qp, wr| change(qp, wr, |wr| wr.id += 1) }
    /// Reports requests that asked for no completion.
    unsignaled_reports { enqueue: |qp, wr| change(qp, wr, |wr| wr.signaled = true) }
    /// Reports no success at all.
    signaled_silent { enqueue: |qp, wr| change(qp, wr, |wr| wr.signaled = false) }
    /// Ignores the fence.
    fence_dropped { enqueue: |qp, wr| change(qp, wr, |wr| wr.fence = false) }
    /// Loses the second request of every batch.
    lost_in_batch { enqueue: lose_second }
    /// Lets a put take effect before the doorbell.
    published_at_once { enqueue: publish_early }
    /// Lets a get take effect before the doorbell.
    get_published_at_once { enqueue: fetch_early }
    /// Rings what a dropped batch had built.
    discard_forgotten { discard: |_, _| {} }
    /// Rings a batch that is dropped.
    dropped_batch_rung {
        discard: |qp, by| {
            let _ = qp.inner.ring_doorbell(by);
        }
    }
    /// Publishes every fourth batch and says it did not.
    ring_refuses_what_it_published {
        ring: |qp, by| {
            qp.inner.ring_doorbell(by)?;
            if with_world(qp, World::tick).is_multiple_of(4) { Err(PostError::Device(5)) } else { Ok(()) }
        }
    }
    /// Has room for one request less than its depth.
    depth_off_by_one {
        enqueue: |qp, wr| {
            let full = qp.built[0] >= qp.core().config().max_send_wr;
            if full { Err(PostError::QueueFull) } else { qp.inner.enqueue(wr) }
        }
    }
    /// Never uses the slot of an unsignaled request again.
    slot_leaked { enqueue: leak_slot }
    /// Never completes a put of no bytes.
    zero_length_vanishes {
        enqueue: |qp, wr| {
            if len(wr.local) == 0 { Ok(()) } else { qp.inner.enqueue(wr) }
        }
    }
    /// Takes a put of no bytes for one of 2 GiB.
    zero_length_is_two_gib {
        enqueue: |qp, wr| {
            let huge = [IbvMemoryRegionView::from_raw_parts(0, 1 << 31, 0)];
            if len(wr.local) == 0 && wr.op == Op::Write { local(qp, wr, &huge) } else { qp.inner.enqueue(wr) }
        }
    }
    /// Sends the inline bytes of the request before.
    inline_slot_stale { enqueue: stale_inline }
    /// Swaps the bytes of immediates.
    immediate_byte_order_swapped { enqueue: |qp, wr| immediate(qp, wr, u32::swap_bytes) }
    /// Keeps 16 bits of an immediate.
    immediate_truncated { enqueue: |qp, wr| immediate(qp, wr, |imm| imm & 0xffff) }
    /// Puts without the immediate it was given.
    immediate_dropped {
        enqueue: |qp, wr| change(qp, wr, |wr| {
            if let Op::WriteWithImm(_) = wr.op { wr.op = Op::Write }
        })
    }
    /// Adds an immediate to each chunk of the largest size.
    immediate_on_every_chunk {
        enqueue: |qp, wr| {
            let largest = len(wr.local) == qp.core().limits().max_msg_size;
            change(qp, wr, |wr| if largest && wr.op == Op::Write { wr.op = Op::WriteWithImm(0) })
        }
    }
    /// Lets a plain put consume one of the peer's receives.
    put_takes_a_receive {
        enqueue: |qp, wr| change(qp, wr, |wr| {
            if wr.op == Op::Write { wr.op = Op::WriteWithImm(0) }
        })
    }
}

/// Forwards a copy that `f` has changed.
pub(super) fn change(
    qp: &mut MutantQueuePair,
    wr: &WorkRequest<'_>,
    f: impl FnOnce(&mut WorkRequest<'_>),
) -> Result<(), PostError> {
    let mut copy = *wr;
    f(&mut copy);
    qp.inner.enqueue(&copy)
}

/// Forwards with another local side.
pub(super) fn local(
    qp: &mut MutantQueuePair,
    wr: &WorkRequest<'_>,
    views: &[IbvMemoryRegionView<'_>],
) -> Result<(), PostError> {
    let mut copy = *wr;
    copy.local = Payload::Sges(views);
    qp.inner.enqueue(&copy)
}

/// Forwards with the ranges as `f` leaves them; inline data as they are.
fn ranges(
    qp: &mut MutantQueuePair,
    wr: &WorkRequest<'_>,
    f: impl FnOnce(&mut Vec<IbvMemoryRegionView<'_>>),
) -> Result<(), PostError> {
    let Payload::Sges(views) = wr.local else { return qp.inner.enqueue(wr) };
    let mut views = views.to_vec();
    f(&mut views);
    local(qp, wr, &views)
}

fn swap_direction(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let inline = matches!(wr.local, Payload::Inline(_));
    change(qp, wr, |wr| match wr.op {
        Op::Write if !inline => wr.op = Op::Read,
        Op::Read => wr.op = Op::Write,
        _ => {}
    })
}

/// A put without so many bytes at its front and at its end.
fn cut_put(
    qp: &mut MutantQueuePair,
    wr: &WorkRequest<'_>,
    front: usize,
    end: usize,
) -> Result<(), PostError> {
    let n = len(wr.local);
    if !matches!(wr.op, Op::Write | Op::WriteWithImm(_)) || n <= front + end {
        return qp.inner.enqueue(wr);
    }
    let mut copy = *wr;
    copy.remote.addr += front as u64;
    copy.remote.len -= front;
    match wr.local {
        Payload::Inline(data) => copy.local = Payload::Inline(&data[front..n - end]),
        Payload::Sges(views) => return local(qp, &copy, &cut(views, front, n - front - end)),
    }
    qp.inner.enqueue(&copy)
}

/// `keep` bytes of `views` from `skip` on.
pub(super) fn cut<'a>(
    views: &[IbvMemoryRegionView<'a>],
    mut skip: usize,
    mut keep: usize,
) -> Vec<IbvMemoryRegionView<'a>> {
    let mut out = Vec::new();
    for view in views {
        let from = skip.min(view.len());
        let n = keep.min(view.len() - from);
        (skip, keep) = (skip - from, keep - n);
        out.extend(view.slice(from, n).filter(|part| !part.is_empty()));
    }
    out
}

fn cut_largest(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let largest = len(wr.local) == qp.core().limits().max_msg_size;
    cut_put(qp, wr, 0, usize::from(largest))
}

fn empty_get(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    if wr.op == Op::Read { local(qp, wr, &[]) } else { qp.inner.enqueue(wr) }
}

fn to_front(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let front = with_world(qp, |w| w.at(wr.remote.addr, len(wr.local)).map(|span| span.region.base));
    change(qp, wr, |wr| {
        if let (Some(base), Op::Write | Op::WriteWithImm(_)) = (front, wr.op) {
            wr.remote.addr = base;
        }
    })
}

fn leak_slot(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    if qp.leaked + qp.built[0] > qp.core().config().max_send_wr {
        return Err(PostError::QueueFull);
    }
    qp.leaked += u32::from(!wr.signaled);
    qp.inner.enqueue(wr)
}

fn lose_second(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    if qp.built[0] == 2 { Ok(()) } else { qp.inner.enqueue(wr) }
}

/// Copies at once, and again at the doorbell.
fn publish_early(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let end = qp.name.0;
    with_world(qp, |w| {
        let data = if wr.op == Op::Write { w.gather(wr.local) } else { None };
        if let (Some(data), true) = (data, w.keyed(end, wr.remote.rkey).is_some())
            && let Some(to) = w.at(wr.remote.addr, len(wr.local))
        {
            to.write(&data);
        }
    });
    qp.inner.enqueue(wr)
}

/// The same for gets.
fn fetch_early(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let end = qp.name.0;
    with_world(qp, |w| {
        let Payload::Sges([view]) = wr.local else { return };
        let from = w.keyed(end, wr.remote.rkey).and_then(|_| w.at(wr.remote.addr, len(wr.local)));
        let data = from.filter(|_| wr.op == Op::Read).and_then(|from| from.read());
        if let (Some(data), Some(to)) = (data, w.at(view.addr(), view.len())) {
            to.write(&data);
        }
    });
    qp.inner.enqueue(wr)
}

fn stale_inline(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let Payload::Inline(data) = wr.local else { return qp.inner.enqueue(wr) };
    let mut stale = std::mem::replace(&mut qp.inline, data.to_vec());
    stale.resize(data.len(), 0);
    let mut copy = *wr;
    copy.local = Payload::Inline(&stale);
    qp.inner.enqueue(&copy)
}

fn immediate(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>, f: fn(u32) -> u32) -> Result<(), PostError> {
    change(qp, wr, |wr| match &mut wr.op {
        Op::WriteWithImm(imm) | Op::SendWithImm(imm) => *imm = f(*imm),
        _ => {}
    })
}
