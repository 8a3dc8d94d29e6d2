//! Gets that are treated otherwise than puts, where the suite puts if it can: these show on a device without puts.

use super::requests::{change, local};
use crate::{hooks::with_world, queue_pair::MutantQueuePair, world::World};
use ibv_core::{IbvQueuePair, IbvWc, Op, Payload, PostError, WcStatus, WorkRequest};

super::list! {
    /// Reports no get that is flushed.
    flushed_get_missing { read_only: true, enqueue: note, polled: |w, found| found.retain(|wc| !is_flushed(w, wc)) }
    /// Reports flushed gets as done.
    flushed_get_as_success {
        read_only: true,
        enqueue: note,
        polled: |w, found| {
            for wc in found.iter_mut().filter(|wc| is_flushed(w, wc)) {
                wc.status = WcStatus::SUCCESS;
            }
        }
    }
    /// Reports gets that asked for no completion.
    unsignaled_get_reports {
        read_only: true,
        enqueue: |qp, wr| change(qp, wr, |wr| wr.signaled |= wr.op == Op::Read)
    }
    /// Never uses the slot of an unsignaled get again.
    slot_of_get_leaked { read_only: true, enqueue: leak_slot }
    /// Has room for one get less than its depth.
    depth_for_gets_off_by_one {
        read_only: true,
        enqueue: |qp, wr| {
            let full = wr.op == Op::Read && qp.built[0] >= qp.core().config().max_send_wr;
            if full { Err(PostError::QueueFull) } else { qp.inner.enqueue(wr) }
        }
    }
    /// Gets with any local key.
    local_key_of_get_unchecked { read_only: true, enqueue: any_local_key }
    /// Names no queue pair in the completions of gets.
    qp_num_of_gets_missing {
        read_only: true,
        polled: |_, found| {
            for wc in found.iter_mut().filter(|wc| wc.opcode == ibv_core::WcOpcode::RDMA_READ) {
                wc.qp_num = 0;
            }
        }
    }
}

/// Remembers gets: the completion of a flushed request does not tell what it was.
fn note(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    qp.inner.enqueue(wr)?;
    let request = (qp.name, wr.id);
    if wr.op == Op::Read {
        with_world(qp, |w| w.gets.insert(request));
    }
    Ok(())
}

fn is_flushed(world: &World, wc: &IbvWc) -> bool {
    wc.status == WcStatus::WR_FLUSH_ERR && world.gets.contains(&((world.polling, wc.qp_num), wc.wr_id))
}

fn leak_slot(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    if wr.op == Op::Read && qp.leaked + qp.built[0] > qp.core().config().max_send_wr {
        return Err(PostError::QueueFull);
    }
    qp.leaked += u32::from(wr.op == Op::Read && !wr.signaled);
    qp.inner.enqueue(wr)
}

fn any_local_key(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let Payload::Sges(views) = wr.local else { return qp.inner.enqueue(wr) };
    let known = with_world(qp, |w| {
        views.iter().all(|v| w.at(v.addr(), v.len()).is_some_and(|span| span.region.lkey == v.lkey()))
    });
    if known || wr.op != Op::Read { qp.inner.enqueue(wr) } else { local(qp, wr, &[]) }
}
