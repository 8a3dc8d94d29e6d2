//! Clients that assume an order which the device below does not keep, as wrappers around an honest provider:
//! what they tell their caller is what such a client would conclude.

use crate::{
    hooks::with_world,
    queue_pair::MutantQueuePair,
    world::{Belief, End, World, len},
};
use ibv_core::{IbvQueuePair, IbvWc, Op, PostError, WcOpcode, WorkRequest};
use std::collections::VecDeque;

super::list! {
    /// Announces without waiting: takes a put for done when it is rung.
    client_waits_for_no_completion { shuffled: true, enqueue: believe, polled: all_done }
    /// Takes the next completion for that of the oldest request, whatever its id.
    client_counts_completions { shuffled: true, enqueue: believe, polled: |w, found| oldest_first(w, found) }
    /// Polls the last byte: takes a put for done once that is there.
    client_polls_the_last_byte { shuffled: true, enqueue: believe, polled: last_byte_there }
}

/// Remembers end A's puts and gets.
fn believe(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    qp.inner.enqueue(wr)?;
    let (end, qp_num) = qp.name;
    let opcode = match wr.op {
        Op::Write => WcOpcode::RDMA_WRITE,
        Op::Read => WcOpcode::RDMA_READ,
        _ => return Ok(()),
    };
    with_world(qp, |w| {
        let n = len(wr.local);
        let last = || {
            w.keyed(end, wr.remote.rkey)?;
            let byte = *w.gather(wr.local)?.last()?;
            Some((w.at(wr.remote.addr + n as u64 - 1, 1)?, byte))
        };
        let last = if wr.op == Op::Write { last() } else { None };
        let wc = IbvWc { wr_id: wr.id, opcode, qp_num, ..IbvWc::default() };
        if end == End::A {
            w.believed.push_back(Belief { wc, last });
        }
    });
    Ok(())
}

/// Reports what `done` says is done, and keeps the device's own report of it back.
fn tell(world: &mut World, found: &mut Vec<IbvWc>, done: impl Fn(&Belief) -> bool) {
    if world.polling != End::A {
        return;
    }
    found.retain(|wc| match world.told.iter().position(|id| *id == wc.wr_id) {
        Some(i) => {
            world.told.swap_remove(i);
            false
        }
        None => true,
    });
    world.believed.retain(|b| found.iter().all(|wc| wc.wr_id != b.wc.wr_id));
    let (now, later): (VecDeque<_>, _) = world.believed.drain(..).partition(done);
    world.believed = later;
    for Belief { wc, .. } in now {
        world.told.push(wc.wr_id);
        found.push(wc);
    }
}

fn all_done(world: &mut World, found: &mut Vec<IbvWc>) {
    tell(world, found, |b| b.wc.opcode == WcOpcode::RDMA_WRITE);
}

fn last_byte_there(world: &mut World, found: &mut Vec<IbvWc>) {
    tell(world, found, |b| b.last.as_ref().is_some_and(|(at, byte)| at.read().as_deref() == Some(&[*byte])));
}

fn oldest_first(world: &mut World, found: &mut [IbvWc]) {
    let at_a = world.polling == End::A;
    let ours = |wc: &&mut IbvWc| matches!(wc.opcode, WcOpcode::RDMA_WRITE | WcOpcode::RDMA_READ) && at_a;
    for wc in found.iter_mut().filter(ours) {
        if let Some(oldest) = world.believed.pop_front() {
            wc.wr_id = oldest.wc.wr_id;
        }
    }
}
