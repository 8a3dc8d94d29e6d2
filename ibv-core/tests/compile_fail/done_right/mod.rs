//! What the failing cases do wrong, done right: that this compiles says that they fail for no other reason.
#![deny(unused_must_use)]
#![allow(dead_code)]
use ibv_core::{
    Closing, Connected, Error, IbvDomain, IbvDomainImpl, IbvMemoryRegionView, IbvQpInfo, IbvQueuePair,
    IbvRemoteMemoryRegionView, IbvWc, PollCompletionError, Poller, PostError, QueuePair, Request, WrIds,
};

fn two<Q: IbvQueuePair>(qp: &mut Connected<Q>) -> Result<(), PostError> {
    let first = qp.batch();
    first.ring()?;
    let second = qp.batch();
    second.ring()
}

fn late<Q: IbvQueuePair>(
    qp: QueuePair<Q>,
    peer: &IbvQpInfo,
    dst: IbvRemoteMemoryRegionView,
    src: IbvMemoryRegionView<'_>,
) -> Result<WrIds, Error> {
    let mut qp = qp.connect(peer).map_err(|(_, e)| e)?;
    Ok(qp.put(dst, src)?)
}

fn drained<Q: IbvQueuePair>(closing: &mut Closing<Q>) -> bool {
    closing.is_drained()
}

fn inside<I: IbvDomainImpl>(domain: &IbvDomain<I>) -> Result<usize, Error> {
    let region = domain.alloc(8)?;
    let len = region.view().len();
    region.deregister().map(|_| len).map_err(|(_, e)| e)
}

fn used<Q: IbvQueuePair>(qp: &mut Connected<Q>) -> Result<WrIds, PostError> {
    qp.post(&Request::send(&[]))
}

fn once<I: IbvDomainImpl>(poller: &mut Poller<I>) -> Result<usize, PollCompletionError> {
    poller.poll(&mut [IbvWc::default()])
}
