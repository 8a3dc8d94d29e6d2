//! Keys that open too much or too little. None of them touches memory that is gone: where a real device
//! would, the mutant lets the request succeed without moving a byte.

use super::requests::{change, cut, local};
use crate::{hooks::with_world, queue_pair::MutantQueuePair, world::len};
use ibv_core::{Access, Error, ErrorKind, IbvQueuePair, Op, Payload, PostError, WorkRequest};

super::list! {
    /// Accepts any remote key.
    remote_key_ignored { enqueue: right_key }
    /// Cuts a request that reaches past its remote region, and calls it done.
    remote_range_ignored { enqueue: cut_to_region }
    /// Lets every region be read and written by the peer.
    access_ignored { register: |len, access| (len, access | Access::ALL) }
    /// Allows atomics wherever puts are allowed.
    atomics_by_write_access {
        register: |len, access| {
            (len, if access.contains(Access::REMOTE_WRITE) { access | Access::REMOTE_ATOMIC } else { access })
        }
    }
    /// Fills regions that this end may not write.
    local_write_ignored { register: |len, access| (len, access | Access::LOCAL_WRITE) }
    /// Registers the front half of a region.
    half_registered { register: |len, access| (len.div_ceil(2), access) }
    /// Registers a region without its last byte.
    last_byte_unregistered { register: |len, access| (len.saturating_sub(1), access) }
    /// Accepts the remote key of a region that is gone.
    remote_key_outlives_region { enqueue: accept_dead }
    /// Accepts any local key.
    local_key_unchecked { enqueue: any_local_key }
    /// Never lets go of a region.
    deregistration_refused {
        deregister: |_| {
            Err(Error::new(ErrorKind::InUse, "dereg_mr", "the region is in use"))
        }
    }
}

fn right_key(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let key = with_world(qp, |w| w.at(wr.remote.addr, len(wr.local)).map(|span| span.region.rkey));
    change(qp, wr, |wr| wr.remote.rkey = key.unwrap_or(wr.remote.rkey))
}

fn cut_to_region(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let end = qp.name.0;
    let room = with_world(qp, |w| {
        let region = w.keyed(end, wr.remote.rkey)?;
        let end = region.base + region.bytes.len() as u64;
        Some(if wr.remote.addr < region.base { 0 } else { end.saturating_sub(wr.remote.addr) as usize })
    });
    match (wr.op, wr.local, room) {
        (Op::Write | Op::WriteWithImm(_) | Op::Read, Payload::Sges(views), Some(room))
            if room < len(wr.local) =>
        {
            local(qp, wr, &cut(views, 0, room))
        }
        _ => qp.inner.enqueue(wr),
    }
}

fn accept_dead(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let (end, key) = (qp.name.0, wr.remote.rkey);
    let dead = with_world(qp, |w| w.dead.contains(&(end.other(), key)) && w.keyed(end, key).is_none());
    let plain = matches!(wr.op, Op::Write | Op::WriteWithImm(_) | Op::Read);
    if dead && plain { local(qp, wr, &[]) } else { qp.inner.enqueue(wr) }
}

fn any_local_key(qp: &mut MutantQueuePair, wr: &WorkRequest<'_>) -> Result<(), PostError> {
    let Payload::Sges(views) = wr.local else { return qp.inner.enqueue(wr) };
    let known = with_world(qp, |w| {
        views.iter().all(|v| w.at(v.addr(), v.len()).is_some_and(|span| span.region.lkey == v.lkey()))
    });
    let plain = matches!(wr.op, Op::Write | Op::WriteWithImm(_) | Op::Read | Op::Send);
    if known || !plain { qp.inner.enqueue(wr) } else { local(qp, wr, &[]) }
}
