//! Sends and what they meet at the peer.

use super::requests::{cut, local};
use crate::{
    hooks::with_world,
    queue_pair::MutantQueuePair,
    world::{World, len},
};
use ibv_core::{IbvQueuePair, IbvWc, Op, Payload, PostError, RecvRequest, WcOpcode, WorkRequest};

super::list! {
    /// Cuts a send to the size of the receive it meets.
    send_truncated { enqueue: truncate }
    /// Leaves out the last byte of every send.
    send_loses_last_byte {
        enqueue: |qp, wr| match (wr.op, wr.local) {
            (Op::Send | Op::SendWithImm(_), Payload::Sges(views)) => {
                local(qp, wr, &cut(views, 0, len(wr.local).saturating_sub(1)))
            }
            _ => qp.inner.enqueue(wr),
        }
    }
    /// Completes a send that found no receive.
    receiver_not_ready_ignored { enqueue: ignore_rnr }
    /// Never gives up on a peer without a receive.
    receiver_not_ready_for_ever { config: |config| config.rnr_retry = 7 }
    /// Reports the newest receive where the oldest was used.
    receives_reversed { polled: |_, found| reverse_receives(found) }
    /// Loses every third receive.
    receive_lost {
        recv: |qp, wr| {
            if with_world(qp, World::tick).is_multiple_of(3) { Ok(()) } else { qp.inner.enqueue_recv(wr) }
        }
    }
    /// Fills the first range of a receive and forgets the others.
    receive_first_range_only { recv: first_range }
}

/// The size of the receive that this request will take: the oldest that no earlier one took.
fn take_room(qp: &MutantQueuePair, op: Op) -> Option<usize> {
    let takes = matches!(op, Op::Send | Op::SendWithImm(_) | Op::WriteWithImm(_));
    with_world(qp, |w| if takes { w.rooms.get_mut(&qp.peer?)?.pop_front() } else { None })
}

fn truncate(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    match (wr.op, wr.local, take_room(qp, wr.op)) {
        (Op::Send | Op::SendWithImm(_), Payload::Sges(views), Some(room)) => {
            local(qp, wr, &cut(views, 0, room))
        }
        _ => qp.inner.enqueue(wr),
    }
}

/// What needs a receive and finds none becomes a put of no bytes, which needs none.
fn ignore_rnr(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let needs = matches!(wr.op, Op::Send | Op::SendWithImm(_) | Op::WriteWithImm(_));
    if !needs || take_room(qp, wr.op).is_some() {
        return qp.inner.enqueue(wr);
    }
    let mut copy = *wr;
    copy.op = Op::Write;
    local(qp, &copy, &[])
}

fn reverse_receives(found: &mut [IbvWc]) {
    let received = |wc: &&mut IbvWc| wc.is_valid() && wc.opcode == WcOpcode::RECV;
    let ids: Vec<_> = found.iter_mut().filter(received).map(|wc| wc.wr_id).collect();
    for (wc, id) in found.iter_mut().filter(received).zip(ids.into_iter().rev()) {
        wc.wr_id = id;
    }
}

fn first_range(qp: &mut MutantQueuePair, wr: &RecvRequest<'_>) -> Result<(), PostError> {
    let mut copy = *wr;
    copy.local = &wr.local[..wr.local.len().min(1)];
    qp.inner.enqueue_recv(&copy)
}
