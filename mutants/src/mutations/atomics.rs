//! Atomics that are none.

use super::requests::change;
use crate::{
    hooks::with_world,
    queue_pair::MutantQueuePair,
    world::{Qp, Span, World},
};
use ibv_core::{IbvQueuePair, IbvWc, Op, Payload, PostError, WorkRequest};

super::list! {
    /// Hands back what an addition made, not what was there.
    atomic_returns_the_new_value { enqueue: note_new, polled: |w, found| settle(w, found) }
    /// Swaps whether or not the value was the expected one.
    compare_swap_always_swaps { enqueue: always_swap }
    /// Compares and never swaps.
    compare_swap_never_swaps {
        enqueue: |qp, wr| change(qp, wr, |wr| {
            if let Op::CompareSwap { compare, swap } = &mut wr.op { *swap = *compare }
        })
    }
    /// Reads, adds and writes back later.
    fetch_add_not_atomic { enqueue: torn_add, polled: |w, found| settle(w, found) }
    /// Adds twice.
    fetch_add_repeated {
        enqueue: |qp, wr| {
            if let Op::FetchAdd(_) = wr.op { change(qp, wr, |wr| wr.signaled = false)? }
            qp.inner.enqueue(wr)
        }
    }
    /// Adds 32 bits.
    fetch_add_loses_carries {
        enqueue: |qp, wr| change(qp, wr, |wr| {
            if let Op::FetchAdd(add) = &mut wr.op { *add &= 0xffff_ffff }
        })
    }
}

/// The 8 local bytes that the old value goes to, and the 8 remote ones.
fn operands(world: &World, name: Qp, wr: &WorkRequest<'_>) -> Option<(Span, Span)> {
    let Payload::Sges([view]) = wr.local else { return None };
    world.keyed(name.0, wr.remote.rkey)?;
    Some((world.at(view.addr(), 8)?, world.at(wr.remote.addr, 8)?))
}

fn note_new(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let (name, request) = (qp.name, (qp.name, wr.id));
    with_world(qp, |w| {
        if let (Op::FetchAdd(add), Some((old, _))) = (wr.op, operands(w, name, wr)) {
            w.adds.insert(request, (old, add));
        }
    });
    qp.inner.enqueue(wr)
}

fn torn_add(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let (name, request) = (qp.name, (qp.name, wr.id));
    let torn = with_world(qp, |w| {
        let (Op::FetchAdd(add), Some((_, target))) = (wr.op, operands(w, name, wr)) else { return false };
        let sum = target.word().unwrap_or_default().wrapping_add(add);
        w.stores.insert(request, (target, sum));
        true
    });
    change(qp, wr, |wr| {
        if torn {
            wr.op = Op::FetchAdd(0)
        }
    })
}

fn always_swap(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let name = qp.name;
    let now = with_world(qp, |w| operands(w, name, wr)?.1.word());
    change(qp, wr, |wr| {
        if let (Op::CompareSwap { compare, .. }, Some(now)) = (&mut wr.op, now) {
            *compare = now;
        }
    })
}

/// Does what was put off until the request succeeded.
fn settle(world: &mut World, found: &mut [IbvWc]) {
    let end = world.polling;
    for wc in found.iter().filter(|wc| wc.is_valid()) {
        if let Some((to, add)) = world.adds.remove(&((end, wc.qp_num), wc.wr_id)) {
            to.write(&to.word().unwrap_or_default().wrapping_add(add).to_ne_bytes());
        }
        if let Some((to, value)) = world.stores.remove(&((end, wc.qp_num), wc.wr_id)) {
            to.write(&value.to_ne_bytes());
        }
    }
}
