//! Completion queues and regions in the hands of safe code, over the toy provider of `ring/`: who may
//! poll, whose room it is, what stays alive, what is freed.
#![allow(unsafe_code)]
//! # Safety
//! `Watched` forwards to the memory it wraps.
mod ring;
use ibv_core::*;
use ring::{RingDomain, RingQueuePair, depths, domain, drain, looped};
use std::{
    mem,
    ptr::NonNull,
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};

fn put<Q: IbvQueuePair>(q: &mut Connected<Q>) -> u64 {
    let remote = IbvRemoteMemoryRegionView { addr: 0, len: 8, rkey: 2 };
    q.put(remote, IbvMemoryRegionView::from_raw_parts(0x1000, 8, 1)).unwrap().first
}

#[test]
fn handles_cross_threads() {
    fn send<T: Send>() {}
    fn share<T: Send + Sync>() {}
    send::<(Connected<RingQueuePair>, QueuePair<RingQueuePair>, Closing<RingQueuePair>)>();
    send::<(Batch<'_, RingQueuePair>, Poller<RingDomain>, Box<dyn IbvQueuePair>, Box<dyn EventSource>)>();
    share::<(IbvDomain<RingDomain>, Arc<IbvCq<RingDomain>>, IbvMemoryRegion<RingDomain>, HeapMemory)>();
    share::<(IbvDomain<AnyDomain>, Registry, Error)>();
}

#[test]
fn queue_pairs_share_a_queue_and_each_gets_its_own_credits_back() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(64).unwrap();
    let mut poller = cq.poller().unwrap();
    let mut pairs: Vec<_> = (0..4).map(|_| looped(&d, &cq, depths(4, 2))).collect();
    let mut ids = Vec::new();
    for (i, q) in pairs.iter_mut().enumerate() {
        ids.extend((0..=i).map(|_| put(q)));
    }
    assert_eq!(pairs.iter().map(|q| q.free_slots()).collect::<Vec<_>>(), [3, 2, 1, 0]);
    assert_eq!(drain(&mut poller).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), ids);
    assert!(pairs.iter().all(|q| q.free_slots() == 4));
    let mut unique = ids.clone();
    unique.dedup();
    assert_eq!(unique.len(), 10);
}

/// An id that wraps reads like the first one of the route behind, for a moment.
#[test]
fn nobody_has_the_ids_behind_those_of_an_ordered_queue() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(64).unwrap();
    let mut poller = cq.poller().unwrap();
    let make = || looped(&d, &cq, depths(4, 2));
    let mut pairs: Vec<_> = (0..5).map(|_| make()).collect();
    for _ in 0..2 {
        let sends: Vec<_> = pairs.iter_mut().map(|q| put(q) >> 48).collect();
        let recvs: Vec<_> = pairs.iter_mut().map(|q| q.post_recv(&[]).unwrap() >> 48).collect();
        let all: Vec<_> = sends.iter().chain(&recvs).collect();
        assert!(sends.iter().all(|s| !all.contains(&&(s + 1))), "sends {sends:?}, receives {recvs:?}");
        assert!(all.iter().all(|s| all.iter().filter(|t| s == *t).count() == 1), "{all:?}");
        // Gaps are filled again.
        drop((pairs.remove(3), pairs.remove(1)));
        assert_eq!(drain(&mut poller).len(), 5);
        pairs.extend((0..2).map(|_| make()));
    }
    assert!(pairs.iter_mut().all(|q| put(q) >> 48 < 15), "15 slots do for ten work queues");
}

#[test]
fn a_poller_is_exclusive_returns_on_drop_and_a_forgotten_one_is_gone() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(8).unwrap();
    let first = cq.poller().unwrap();
    let e = cq.poller().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InUse);
    drop(first);
    mem::forget(cq.poller().unwrap());
    assert_eq!(cq.poller().unwrap_err().kind(), ErrorKind::InUse);
    let mut q = looped(&d, &cq, depths(4, 0));
    let e = q.queue_pair().poll_completion(PollTarget::Send).unwrap_err();
    assert_eq!(e, PollCompletionError::Claimed);
}

#[test]
fn poll_completion_never_takes_another_queue_pairs_completion() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(16).unwrap();
    let (mut a, b) = (looped(&d, &cq, depths(4, 0)), looped(&d, &cq, depths(4, 0)));
    let id = put(&mut a);
    let poll = |q: &mut Connected<RingQueuePair>| q.queue_pair().poll_completion(PollTarget::Send);
    assert_eq!(poll(&mut a).unwrap_err(), PollCompletionError::Shared);
    drop(b);
    assert_eq!(poll(&mut a).unwrap().unwrap().unwrap().wr_id, id);
    assert!(poll(&mut a).unwrap().is_none());
    let e = d.create_queue_pair(depths(4, 0), &cq, &cq).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InUse, "it would report to a queue that `a` polls");
    assert!(cq.poller().is_err());
    drop(a);
    assert!(cq.poller().is_ok(), "the claim goes with its queue pair");
}

#[test]
fn a_queue_can_not_be_overrun_not_even_by_the_completions_of_the_dead() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(4).unwrap();
    let mut a = looped(&d, &cq, depths(4, 0));
    let full = || {
        let e = d.create_queue_pair(depths(1, 0), &cq, &cq).unwrap_err();
        assert!(e.to_string().contains("4 entries, 4 of them reserved"), "{e}");
        e.kind() == ErrorKind::OutOfResources
    };
    assert!(full());
    for _ in 0..4 {
        put(&mut a);
    }
    drop(a);
    assert!(full(), "four completions are still queued");
    assert_eq!(cq.poller().unwrap().poll(&mut [IbvWc::default()]), Ok(1));
    assert!(full(), "three are, and nobody has seen the queue empty");
    drain(&mut cq.poller().unwrap());
    assert_eq!(looped(&d, &cq, depths(4, 0)).free_slots(), 4);
}

#[test]
fn a_queue_pair_that_could_not_be_made_takes_no_room() {
    let d = domain(RingDomain::default());
    let (wide, narrow) = (d.create_cq(8).unwrap(), d.create_cq(2).unwrap());
    for _ in 0..3 {
        let e = d.create_queue_pair(depths(8, 4), &wide, &narrow).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::OutOfResources);
    }
    drop(d.create_queue_pair(depths(8, 2), &wide, &narrow).unwrap());
    assert_eq!(looped(&d, &wide, depths(6, 2)).free_slots(), 6);
    // Somebody who polls may have met the route, so his next empty poll has to free it.
    let mut poller = wide.poller().unwrap();
    drop(d.create_queue_pair(depths(8, 2), &wide, &narrow).unwrap());
    assert!(d.create_queue_pair(depths(8, 2), &wide, &narrow).is_err());
    assert!(drain(&mut poller).is_empty());
    assert!(narrow.poller().unwrap().poll(&mut [IbvWc::default()]).is_ok());
    assert!(d.create_queue_pair(depths(8, 2), &wide, &narrow).is_ok());
}

#[test]
fn a_queue_of_another_domain_is_refused_and_left_alone() {
    let (d, other) = (domain(RingDomain::default()), domain(RingDomain::default()));
    let (mine, foreign) = (d.create_cq(4).unwrap(), other.create_cq(4).unwrap());
    let e = d.create_queue_pair(depths(1, 0), &mine, &foreign).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ForeignHandle);
    assert_eq!((Arc::strong_count(&mine), Arc::strong_count(&foreign)), (1, 1));
    assert!(d.create_queue_pair(depths(4, 0), &mine, &mine).is_ok(), "no room was taken");
}

#[test]
fn a_queue_pair_keeps_its_queues_and_the_domain_alive() {
    let d = domain(RingDomain::default());
    let [s, r] = [d.create_cq(4).unwrap(), d.create_cq(4).unwrap()];
    let q = d.create_queue_pair(depths(1, 1), &s, &r).unwrap();
    assert_eq!((Arc::strong_count(&s), Arc::strong_count(&r)), (2, 2));
    let mr = d.alloc(64).unwrap();
    drop((d, s, r));
    let mut q = q;
    assert_eq!(q.state().unwrap(), QpState::RESET);
    mr.write_at(60, &[1, 2, 3, 4]).unwrap();
    assert_eq!(mr.to_vec()[59..], [0, 1, 2, 3, 4]);
}

#[test]
fn close_gives_up_at_its_deadline_and_says_what_is_left() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(8).unwrap();
    let mut q = looped(&d, &cq, depths(4, 2));
    put(&mut q);
    q.post_recv(&[]).unwrap();
    let _claimed_and_idle = cq.poller().unwrap();
    let closed = q.close(Instant::now()).unwrap();
    assert_eq!(closed, Closed::Abandoned { sends: 1, recvs: 1 });
}

#[test]
fn close_polls_by_itself_where_it_may() {
    let d = domain(RingDomain::default());
    let (s, r) = (d.create_cq(8).unwrap(), d.create_cq(8).unwrap());
    let mut q = d.create_queue_pair(depths(4, 2), &s, &r).unwrap();
    let me = q.get_qp_info().unwrap();
    let mut q = q.connect(&me).unwrap();
    put(&mut q);
    q.post_recv(&[]).unwrap();
    assert_eq!(q.close(Instant::now() + Duration::from_secs(60)).unwrap(), Closed::Drained);
}

/// Memory that says when it was freed.
#[derive(Debug)]
struct Watched(HeapMemory, &'static AtomicBool);

// SAFETY: as `HeapMemory`, which it keeps.
unsafe impl RegionMemory for Watched {
    fn as_raw(&self) -> NonNull<[u8]> {
        self.0.as_raw()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.store(true, SeqCst);
    }
}

#[test]
fn memory_is_freed_with_its_region_or_handed_back_by_deregister() {
    static FREED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
    let d = domain(RingDomain::default());
    let dropped = d.register(Watched(HeapMemory::zeroed(8).unwrap(), &FREED[0])).unwrap();
    drop(dropped);
    assert!(FREED[0].load(SeqCst));
    let kept = d.register(Watched(HeapMemory::zeroed(8).unwrap(), &FREED[1])).unwrap();
    let memory = kept.deregister().map_err(|(_, e)| e).unwrap();
    assert!(!FREED[1].load(SeqCst));
    drop(memory);
    assert!(FREED[1].load(SeqCst));
}

#[test]
fn memory_of_a_region_that_can_not_deregister_leaks() {
    static FREED: AtomicBool = AtomicBool::new(false);
    let d = domain(RingDomain { fail_deregister: true, ..RingDomain::default() });
    let mr = d.register(Watched(HeapMemory::zeroed(8).unwrap(), &FREED)).unwrap();
    let (mr, e) = mr.deregister().unwrap_err();
    assert_eq!((e.kind(), mr.len()), (ErrorKind::InUse, 8));
    drop(mr);
    assert!(!FREED.load(SeqCst));
}

#[test]
fn access_that_contradicts_itself_and_regions_beyond_the_device_are_refused() {
    let mut imp = RingDomain::default();
    imp.caps.max_mr_size = 64;
    let d = domain(imp);
    let e = d.register_with(HeapMemory::zeroed(8).unwrap(), Access::REMOTE_WRITE).unwrap_err();
    assert!(e.kind() == ErrorKind::InvalidConfig && e.to_string().contains("add it"), "{e}");
    let e = d.alloc(65).unwrap_err();
    assert!(e.kind() == ErrorKind::InvalidConfig && e.to_string().contains("at most 64"), "{e}");
    assert_eq!(HeapMemory::zeroed(usize::MAX).unwrap_err().kind(), ErrorKind::OutOfResources);
    let mr = d.alloc(0).unwrap();
    assert!(mr.is_empty() && mr.read_at(0, &mut []).is_ok() && mr.read_at(0, &mut [0]).is_err());
}

#[test]
fn access_bits_without_a_name_reach_no_device() {
    let d = domain(RingDomain::default());
    for bit in (0..32).map(|n| 1u32 << n).filter(|bit| Access::all().bits() & bit == 0) {
        let access = Access::LOCAL_WRITE | Access::from_bits_retain(bit);
        let e = d.register_with(HeapMemory::zeroed(8).unwrap(), access).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidConfig && e.to_string().contains(&format!("{bit:#x}")), "{e}");
    }
}

#[test]
fn a_buffer_is_either_side_of_a_transfer() {
    let d = domain(RingDomain::default());
    let mr = d.alloc(64).unwrap();
    let whole = IbvBuffer::from(&mr);
    assert_eq!((whole.lkey, whole.rkey, whole.size, whole.device_name.as_str()), (1, 2, 64, "ring0"));
    let part = whole.slice(60, 4).unwrap();
    assert_eq!((part.local().addr(), part.local().len()), (mr.view().addr() + 60, 4));
    assert_eq!(part.remote(), mr.remote().slice(60, 4).unwrap());
    assert!(whole.slice(60, 5).is_none() && whole.slice(usize::MAX, 2).is_none());
    assert_eq!(IbvBuffer::from(mr.remote()).remote(), mr.remote());
    assert_eq!(IbvBuffer::from(mr.view()).local().lkey(), 1);
}

#[test]
fn an_event_source_is_a_descriptor_to_wait_on() {
    use std::os::fd::{AsFd, AsRawFd};
    let d = domain(RingDomain::default());
    let mut events = d.events().unwrap();
    assert!(AsFd::as_fd(&events).as_raw_fd() >= 0);
    assert_eq!(events.next_event().unwrap(), None);
    let erased = IbvDomain::new(AnyDomain::new(RingDomain::default()), IbvDeviceInfo::new("ring0"));
    assert_eq!(erased.events().unwrap().next_event().unwrap(), None);
}
