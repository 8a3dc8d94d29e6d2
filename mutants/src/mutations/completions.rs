//! Completions that are lost, doubled or untrue.

use super::requests::local;
use crate::{
    hooks::with_world,
    queue_pair::MutantQueuePair,
    world::{World, len},
};
use ibv_core::{IbvQueuePair, IbvWc, Op, Payload, PostError, WcOpcode, WcStatus, WorkRequest};

super::list! {
    /// Loses every third completion.
    completion_lost { polled: |w, found| found.retain(|_| !w.tick().is_multiple_of(3)) }
    /// Reports every completion twice.
    completion_doubled { polled: |_, found| *found = found.iter().flat_map(|wc| [*wc; 2]).collect() }
    /// Completes a put before its bytes are there.
    completion_before_data { enqueue: put_late, polled: arrive }
    /// Completes a get before its bytes are there.
    get_completes_before_data { enqueue: get_late, polled: arrive }
    /// Reports the newest completion of a poll first.
    completions_reversed { polled: |_, found| found.reverse() }
    /// Reports success whatever happened.
    success_where_it_failed {
        polled: |_, found| {
            each(found, |wc| wc.status = WcStatus::SUCCESS);
        }
    }
    /// Reports flushed requests as done.
    flush_as_success {
        polled: |_, found| each(found, |wc| {
            if wc.status == WcStatus::WR_FLUSH_ERR { wc.status = WcStatus::SUCCESS }
        })
    }
    /// Reports no flushed request.
    flush_missing { polled: |_, found| found.retain(|wc| wc.status != WcStatus::WR_FLUSH_ERR) }
    /// Gives flushed requests the status of the first failure.
    flush_repeats_the_cause { polled: |w, found| repeat_cause(w, found) }
    /// Reports the failure itself as a flush.
    cause_as_flush {
        polled: |_, found| each(found, |wc| {
            if !wc.is_valid() { wc.status = WcStatus::WR_FLUSH_ERR }
        })
    }
    /// Calls every failure a general error.
    status_vague {
        polled: |_, found| each(found, |wc| {
            if !wc.is_valid() && wc.status != WcStatus::WR_FLUSH_ERR { wc.status = WcStatus::GENERAL_ERR }
        })
    }
    /// Counts one byte too many in a receive.
    byte_len_of_receives_wrong {
        polled: |_, found| each(found, |wc| {
            if wc.opcode == WcOpcode::RECV { wc.byte_len += 1 }
        })
    }
    /// Counts no bytes of gets.
    byte_len_of_gets_missing {
        polled: |_, found| each(found, |wc| {
            if wc.opcode == WcOpcode::RDMA_READ { wc.byte_len = 0 }
        })
    }
    /// Reports gets as puts.
    opcode_of_gets_wrong {
        polled: |_, found| each(found, |wc| {
            if wc.opcode == WcOpcode::RDMA_READ { wc.opcode = WcOpcode::RDMA_WRITE }
        })
    }
    /// Reports receives of an immediate as receives of a send.
    opcode_of_receives_wrong {
        polled: |_, found| each(found, |wc| {
            if wc.opcode == WcOpcode::RECV_RDMA_WITH_IMM { wc.opcode = WcOpcode::RECV }
        })
    }
    /// Names no queue pair in completions.
    qp_num_missing { polled: |_, found| each(found, |wc| wc.qp_num = 0) }
    /// Delivers immediates without saying so.
    immediate_flag_missing {
        polled: |_, found| each(found, |wc| {
            wc.wc_flags &= !IbvWc::WITH_IMM;
        })
    }
    /// Says of every receive that an immediate came along.
    immediate_flag_always {
        polled: |_, found| each(found, |wc| {
            if wc.opcode == WcOpcode::RECV { wc.wc_flags |= IbvWc::WITH_IMM }
        })
    }
    /// Reports sends to the receive queue and receives to the send queue.
    queues_swapped { cqs_swapped: true }
    /// Tells of an immediate before the bytes that it announces are there.
    immediate_before_data {
        shuffled: true,
        fabric: |fabric| drop(fabric.faults().early_immediate())
    }
    /// Does every request twice.
    executed_twice { fabric: |fabric| drop(fabric.faults().repeat_requests(u64::MAX)) }
    /// Arms no completion queue.
    arm_forgotten { arms: false }
}

fn each(found: &mut [IbvWc], f: impl FnMut(&mut IbvWc)) {
    found.iter_mut().for_each(f);
}

fn repeat_cause(world: &mut World, found: &mut [IbvWc]) {
    for wc in found.iter_mut().filter(|wc| !wc.is_valid()) {
        let cause = *world.causes.entry((world.polling, wc.qp_num)).or_insert(*wc);
        wc.status = cause.status;
    }
}

/// Polls between a completion and the bytes that it should have waited for.
const LATE: u64 = 200;

/// Completes at once; the bytes are copied much later.
fn put_late(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let end = qp.name.0;
    let late = with_world(qp, |w| {
        let data = if wr.op == Op::Write { w.gather(wr.local) } else { None };
        let valid = w.keyed(end, wr.remote.rkey).and_then(|_| w.at(wr.remote.addr, len(wr.local)));
        data.zip(valid).map(|(data, to)| w.late.push((to, data))).is_some()
    });
    if late { local(qp, wr, &[]) } else { qp.inner.enqueue(wr) }
}

fn get_late(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let end = qp.name.0;
    let late = with_world(qp, |w| {
        let from = w.keyed(end, wr.remote.rkey).and_then(|_| w.at(wr.remote.addr, len(wr.local)));
        let to = match wr.local {
            Payload::Sges([view]) if wr.op == Op::Read => w.at(view.addr(), view.len()),
            _ => None,
        };
        from.and_then(|s| s.read()).zip(to).map(|(data, to)| w.late.push((to, data))).is_some()
    });
    if late { local(qp, wr, &[]) } else { qp.inner.enqueue(wr) }
}

fn arrive(world: &mut World, _: &mut Vec<IbvWc>) {
    if world.tick().is_multiple_of(LATE) {
        let live: Vec<_> = world.live.iter().map(|r| (r.end, r.rkey)).collect();
        world
            .late
            .drain(..)
            .filter(|(to, _)| live.contains(&(to.region.end, to.region.rkey)))
            .for_each(|(to, data)| to.write(&data));
    }
}
