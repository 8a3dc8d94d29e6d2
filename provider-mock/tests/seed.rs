//! The seeds' calls, through the trait, the box and the registry.
#![allow(unsafe_code)]
mod common;
use common::*;
use ibv_core::*;
use provider_mock::*;

/// A caller that is generic over the trait: remote destination first, ids in a `Vec`.
fn round_trip<Q: IbvQueuePair>(
    q: &mut Q,
    remote: IbvRemoteMemoryRegionView,
    local: IbvMemoryRegionView<'_>,
) -> (Vec<u64>, Vec<u64>) {
    (q.put(remote, local).unwrap(), q.get(local, remote).unwrap())
}

fn polled<Q: IbvQueuePair>(q: &mut Q) -> u64 {
    q.poll_completion(PollTarget::Send).unwrap().unwrap().unwrap().wr_id()
}

/// # Safety
/// Nothing beyond the call: both queues are of the domain.
fn raw<D: IbvDomainImpl>(d: &IbvDomain<D>) -> D::QueuePair {
    let cq = d.create_cq(300).unwrap();
    // SAFETY: the queue was created on this domain.
    unsafe { <D::QueuePair as IbvQueuePair>::new(d, IbvConfig::default(), cq.clone(), cq) }.unwrap()
}

fn whole_life<D: IbvDomainImpl>(d: &IbvDomain<D>) {
    let mut q = raw(d);
    let mr = d.alloc(32).unwrap();
    let (to, from) = (mr.remote().slice(16, 16).unwrap(), mr.view().slice(0, 16).unwrap());
    assert_eq!((q.state().unwrap(), q.max_msg_size()), (QpState::RESET, 1 << 20));
    let e = q.put(to, from).unwrap_err();
    assert_eq!((e.kind(), e.post_error()), (ErrorKind::Post, Some(PostError::NotConnected)));
    let me = q.get_qp_info().unwrap();
    q.connect(&me).unwrap();
    assert_eq!(q.state().unwrap(), QpState::RTS);
    assert_eq!(q.connect(&me).unwrap_err().kind(), ErrorKind::InvalidState);
    mr.write_at(0, &[5; 16]).unwrap();
    let (put, get) = round_trip(&mut q, to, from);
    assert_eq!((put.len(), get.len()), (1, 1));
    assert_eq!([polled(&mut q), polled(&mut q)], [put[0], get[0]]);
    assert!(q.poll_completion(PollTarget::Send).unwrap().is_none());
    assert_eq!(mr.to_vec(), [5; 32]);
    let e = q.put(to.slice(0, 8).unwrap(), from).unwrap_err();
    assert!(e.to_string().contains("(8)") && e.to_string().contains("(16)"), "{e}");
}

#[test]
fn the_trait_s_own_tier_works_on_the_struct_and_on_the_box() {
    whole_life(&domain(&Fabric::default()));
    let registry = Registry::default().with(MockProvider::default());
    whole_life(&registry.open("mock1").unwrap());
    assert_eq!(registry.open("mlx5_0").unwrap_err().kind(), ErrorKind::NoDevice);
}

#[test]
fn a_failed_request_comes_as_the_inner_error() {
    let d = domain(&Fabric::default());
    let mut q = raw(&d);
    let me = q.get_qp_info().unwrap();
    q.connect(&me).unwrap();
    let mr = d.alloc(8).unwrap();
    let wrong = IbvRemoteMemoryRegionView { rkey: 0, ..mr.remote() };
    let ids = q.put(wrong, mr.view()).unwrap();
    let e = q.poll_completion(PollTarget::Send).unwrap().unwrap().unwrap_err();
    assert_eq!((e.wr_id, e.status), (ids[0], WcStatus::REM_ACCESS_ERR));
    assert_eq!(q.state().unwrap(), QpState::ERR);
}
