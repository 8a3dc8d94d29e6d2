//! One request of one range, built and published at once. Requests that are published together are built by `post.rs`.

use super::{One, Parts, discard, enqueue_rare, ring};
use crate::{
    core::FromCore,
    error::PostError,
    memory::{IbvMemoryRegionView, IbvRemoteMemoryRegionView},
    queue_pair::IbvQueuePair,
    wr::{Payload, WrIds},
};
use std::slice;

/// Builds a request of one registered range and publishes it.
#[inline(always)]
pub(crate) fn post_one<Q: IbvQueuePair + ?Sized>(
    qp: &mut Q,
    one: One,
    local: IbvMemoryRegionView<'_>,
    remote: IbvRemoteMemoryRegionView,
) -> Result<WrIds, PostError> {
    if !qp.core().send.dirty()
        && let Some(posted) = post_plain(qp, one, local, remote)
    {
        return posted;
    }
    let (l, r) = ((local.addr(), local.len()), (remote.addr, remote.len));
    post_rare(qp, one, l, r, (local.lkey(), remote.rkey))
}

/// Builds and publishes it if it needs no second look, with nothing built before it.
#[inline(always)]
fn post_plain<Q: IbvQueuePair + ?Sized>(
    qp: &mut Q,
    one: One,
    local: IbvMemoryRegionView<'_>,
    remote: IbvRemoteMemoryRegionView,
) -> Option<Result<WrIds, PostError>> {
    let core = qp.core_mut(FromCore(()));
    if !core.plain.admits(one, local.len(), remote.len) {
        return None;
    }
    let first = core.send.peek()?;
    core.send.tell_one_more();
    let parts = Parts { op: one.op(), signaled: true, fence: false, solicited: false, remote };
    let request = parts.request(first, Payload::Sges(slice::from_ref(&local)));
    if let Err(e) = qp.post_single(&request, FromCore(())) {
        #[cfg(feature = "recorder")]
        qp.core_mut(FromCore(())).log.count_refused();
        return Some(Err(e));
    }
    let core = qp.core_mut(FromCore(()));
    core.send.advance(1, true);
    core.send.commit();
    #[cfg(feature = "recorder")]
    {
        core.log.count(one.op(), local.len());
        core.log.rung();
    }
    Some(Ok(WrIds { first, count: 1 }))
}

#[cold]
#[inline(never)]
fn post_rare<Q: IbvQueuePair + ?Sized>(
    qp: &mut Q,
    one: One,
    local: (u64, usize),
    remote: (u64, usize),
    keys: (u32, u32),
) -> Result<WrIds, PostError> {
    discard(qp);
    let posted = enqueue_rare(qp, one, local, remote, keys).and_then(|ids| ring(qp).map(|()| ids));
    if posted.is_err() {
        discard(qp);
    }
    posted
}
