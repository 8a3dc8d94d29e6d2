//! What goes wrong from safe code, each proven not to.
#![allow(unsafe_code)]
mod common;
use common::*;
use ibv_core::*;
use provider_mock::*;
use std::{
    mem,
    ptr::NonNull,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

#[test]
fn handles_cross_threads() {
    fn send<T: Send>() {}
    fn share<T: Send + Sync>() {}
    send::<(Qp, QueuePair<MockQueuePair>, Closing<MockQueuePair>, Poller<MockDomain>)>();
    send::<(Batch<'_, MockQueuePair>, Box<dyn IbvQueuePair>)>();
    share::<(Domain, Cq, IbvMemoryRegion<MockDomain>, HeapMemory, Fabric)>();
}

/// Memory that says when it was freed.
struct Watched(HeapMemory, &'static AtomicBool);
// SAFETY: as `HeapMemory`.
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
fn watched(flag: &'static AtomicBool) -> Watched {
    Watched(HeapMemory::zeroed(8).unwrap(), flag)
}

#[test]
fn region_dropped_in_flight_is_freed_and_the_late_dma_is_refused() {
    static FREED: AtomicBool = AtomicBool::new(false);
    let fabric = ordered();
    let d = domain(&fabric);
    let cq = d.create_cq(4).unwrap();
    let (mut q, r) = (looped(&d, &cq, 4), d.alloc(8).unwrap());
    let l = d.register(watched(&FREED)).unwrap();
    let _ids = q.get(l.view(), r.remote()).unwrap();
    drop(l);
    assert!(FREED.load(SeqCst));
    assert!(fabric.run() > 0);
    assert_eq!(drain(&mut cq.poller().unwrap())[0].status, WcStatus::LOC_PROT_ERR);
    assert_eq!(fabric.counters().late_refused, 1);
}

#[test]
fn a_region_dropped_between_the_pieces_of_its_message_is_refused_from_then_on() {
    static FREED: AtomicBool = AtomicBool::new(false);
    let fabric = unordered(3, 1);
    let d = domain(&fabric);
    let cq = d.create_cq(4).unwrap();
    let mut q = looped(&d, &cq, 4);
    let (l, r) = (d.register(watched(&FREED)).unwrap(), d.alloc(8).unwrap());
    l.write_at(0, &[1; 8]).unwrap();
    let _ids = q.put(r.remote(), l.view()).unwrap();
    for _ in 0..4 {
        assert!(fabric.step());
    }
    drop(l);
    assert!(FREED.load(SeqCst));
    fabric.run();
    assert_eq!(drain(&mut cq.poller().unwrap())[0].status, WcStatus::LOC_PROT_ERR);
    assert_eq!(r.to_vec().iter().filter(|b| **b == 1).count(), 3, "one step checks, three moved a byte each");
}

#[test]
fn region_that_cannot_deregister_leaks_its_memory() {
    static FREED: AtomicBool = AtomicBool::new(false);
    let fabric = ordered();
    let d = domain(&fabric);
    let l = d.register(watched(&FREED)).unwrap();
    let _ = fabric.faults().fail_always(Verb::DeregMr, 16);
    drop(l);
    assert!(!FREED.load(SeqCst));
}

#[test]
fn region_forgotten_in_flight_still_takes_the_bytes() {
    let fabric = ordered();
    let d = domain(&fabric);
    let cq = d.create_cq(4).unwrap();
    let (mut q, r, l) = (looped(&d, &cq, 4), d.alloc(8).unwrap(), d.alloc(8).unwrap());
    let _ids = q.get(l.view(), r.remote()).unwrap();
    mem::forget(l);
    drop(d);
    assert!(fabric.run() > 0);
    assert_eq!(drain(&mut cq.poller().unwrap())[0].status, WcStatus::SUCCESS);
}

#[test]
fn batch_forgotten_is_never_rung_and_costs_no_credit() {
    let fabric = ordered();
    let d = domain(&fabric);
    let cq = d.create_cq(4).unwrap();
    let (mut q, r) = (looped(&d, &cq, 4), d.alloc(8).unwrap());
    let mut batch = q.batch();
    let leaked = batch.put(r.remote(), r.view()).unwrap();
    mem::forget(batch);
    assert_eq!(q.put(r.remote(), r.view()).unwrap(), leaked);
    assert_eq!(fabric.counters().requests, 1);
    assert!(fabric.step() && !fabric.step());
    assert_eq!(drain(&mut cq.poller().unwrap()).len(), 1);
    assert_eq!(q.free_slots(), 4);
}

#[test]
fn poller_is_exclusive_returns_on_drop_and_a_forgotten_one_is_gone() {
    let d = domain(&ordered());
    let cq = d.create_cq(4).unwrap();
    let first = cq.poller().unwrap();
    assert_eq!(cq.poller().unwrap_err().kind(), ErrorKind::InUse);
    drop(first);
    mem::forget(cq.poller().unwrap());
    assert_eq!(cq.poller().unwrap_err().kind(), ErrorKind::InUse);
    let mut q = looped(&d, &cq, 4);
    assert_eq!(q.queue_pair().poll_completion(PollTarget::Send).unwrap_err(), PollCompletionError::Claimed);
}

#[test]
fn poll_completion_never_takes_another_queue_pairs_completion() {
    let d = domain(&ordered());
    let cq = d.create_cq(8).unwrap();
    let (mut a, b) = (looped(&d, &cq, 4), looped(&d, &cq, 4));
    assert_eq!(a.queue_pair().poll_completion(PollTarget::Send).unwrap_err(), PollCompletionError::Shared);
    drop(b);
    assert!(a.queue_pair().poll_completion(PollTarget::Send).unwrap().is_none());
    // And nobody joins while `a` polls.
    let e = d.create_queue_pair(config(1, 0), &cq, &cq).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InUse);
    drop(a);
    assert!(cq.poller().is_ok());
}

#[test]
fn shared_queue_credits_each_queue_pair_its_own() {
    let fabric = ordered();
    let d = domain(&fabric);
    let cq = d.create_cq(8).unwrap();
    let (mut a, mut b) = (looped(&d, &cq, 4), looped(&d, &cq, 4));
    let r = d.alloc(8).unwrap();
    let ids = [&mut a, &mut b].map(|q| q.put(r.remote(), r.view()).unwrap().first);
    assert_ne!(ids[0], ids[1]);
    fabric.run();
    let mut poller = cq.poller().unwrap();
    let mut wcs = [IbvWc::default()];
    assert_eq!(poller.poll(&mut wcs), Ok(1));
    assert_eq!((a.free_slots(), b.free_slots()), (4, 3));
    assert_eq!(drain(&mut poller)[0].wr_id(), ids[1]);
    assert_eq!((a.free_slots(), b.free_slots()), (4, 4));
}

#[test]
fn stale_completion_of_a_dead_queue_pair_never_credits_its_successor() {
    let fabric = ordered();
    let d = domain(&fabric);
    let cq = d.create_cq(8).unwrap();
    let (mut a, r) = (looped(&d, &cq, 4), d.alloc(8).unwrap());
    let _ids = a.put(r.remote(), r.view()).unwrap();
    fabric.run();
    drop(a);
    // The device reuses the number while a completion of the old queue pair is still queued.
    let mut b = looped(&d, &cq, 4);
    let _ids = b.put(r.remote(), r.view()).unwrap();
    let mut poller = cq.poller().unwrap();
    let stale = drain(&mut poller);
    assert_eq!((stale.len(), b.free_slots()), (1, 3));
    fabric.run();
    let mine = drain(&mut poller);
    assert_eq!((mine[0].qp_num, b.free_slots()), (stale[0].qp_num, 4));
    assert_ne!(mine[0].wr_id(), stale[0].wr_id());
}

#[test]
fn queue_cannot_be_overrun_not_even_by_the_completions_of_the_dead() {
    let fabric = ordered();
    let d = domain(&fabric);
    let cq = d.create_cq(4).unwrap();
    let (mut a, r) = (looped(&d, &cq, 4), d.alloc(8).unwrap());
    let full = |k| {
        let e = d.create_queue_pair(config(k, 0), &cq, &cq).unwrap_err();
        e.kind() == ErrorKind::OutOfResources
    };
    assert!(full(1));
    for _ in 0..4 {
        let _ids = a.put(r.remote(), r.view()).unwrap();
    }
    fabric.run();
    drop(a);
    assert!(full(1), "four completions are still queued");
    assert_eq!(cq.poller().unwrap().poll(&mut [IbvWc::default()]), Ok(1));
    assert!(full(1), "three are still queued, and nobody has seen the queue empty");
    drain(&mut cq.poller().unwrap());
    let b = looped(&d, &cq, 4);
    assert_eq!((b.free_slots(), fabric.counters().overruns), (4, 0));
}

#[test]
fn queue_of_another_domain_is_refused() {
    let fabric = ordered();
    let (d, other) = (domain(&fabric), domain(&fabric));
    let (mine, foreign) = (d.create_cq(4).unwrap(), other.create_cq(4).unwrap());
    let e = d.create_queue_pair(config(1, 0), &mine, &foreign).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ForeignHandle);
    assert_eq!((Arc::strong_count(&mine), Arc::strong_count(&foreign)), (1, 1));
}

#[test]
fn queue_pair_keeps_both_queues_and_the_domain_alive() {
    let fabric = ordered();
    let d = domain(&fabric);
    let [s, r] = [d.create_cq(4).unwrap(), d.create_cq(4).unwrap()];
    let q = d.create_queue_pair(config(1, 0), &s, &r).unwrap();
    assert_eq!((Arc::strong_count(&s), Arc::strong_count(&r)), (2, 2));
    let both = d.create_queue_pair(config(1, 0), &s, &s).unwrap();
    assert_eq!(Arc::strong_count(&s), 4);
    drop((d, s, r, both));
    drop(q);
    assert_eq!(fabric.counters().misuse, 0);
}

#[test]
fn close_gives_up_at_its_deadline_and_says_what_is_left() {
    let fabric = ordered();
    let d = domain(&fabric);
    let cq = d.create_cq(4).unwrap();
    let (mut q, r) = (looped(&d, &cq, 4), d.alloc(8).unwrap());
    let _ids = q.put(r.remote(), r.view()).unwrap();
    let _claimed_and_idle = cq.poller().unwrap();
    let closed = q.close(Instant::now()).unwrap();
    assert_eq!(closed, Closed::Abandoned { sends: 1, recvs: 0 });
}

#[test]
fn close_in_two_phases_beside_ones_own_poller() {
    let fabric = ordered();
    let d = domain(&fabric);
    let cq = d.create_cq(8).unwrap();
    let (mut a, mut b) = (looped(&d, &cq, 4), looped(&d, &cq, 4));
    let r = d.alloc(8).unwrap();
    let src = [r.view()];
    let mut batch = a.batch();
    let _silent = batch.push(&Request::put(r.remote(), &src).unsignaled()).unwrap();
    batch.ring().unwrap();
    let theirs = b.put(r.remote(), r.view()).unwrap();
    fabric.run();
    let (mut poller, mut closing, mut seen) = (cq.poller().unwrap(), a.start_close().unwrap(), vec![]);
    while !closing.is_drained() {
        assert!(seen.len() < 100, "the marker flushes last");
        seen.extend(drain(&mut poller));
    }
    assert_eq!(closing.finish(), Closed::Drained);
    assert!(seen.iter().any(|wc| wc.wr_id() == theirs.first), "another's completion is not swallowed");
}

#[test]
fn poster_and_poller_on_two_threads_neither_lose_nor_invent_a_credit() {
    const N: usize = if cfg!(miri) { 50 } else { 20_000 };
    let fabric = ordered();
    let d = domain(&fabric);
    let cq = d.create_cq(8).unwrap();
    let (mut q, r) = (looped(&d, &cq, 8), d.alloc(8).unwrap());
    let (mut poller, until) = (cq.poller().unwrap(), soon());
    let (tell, told) = mpsc::channel();
    let polling = thread::spawn(move || {
        let (mut n, mut wcs) = (0, [IbvWc::default(); 3]);
        while n < N && Instant::now() < until {
            fabric.step();
            n += poller.poll(&mut wcs).unwrap();
            thread::yield_now();
        }
        tell.send(n).unwrap();
    });
    let (mut posted, mut refused) = (0, 0);
    while posted < N && Instant::now() < until {
        match q.put(r.remote(), r.view()) {
            Ok(_) => posted += 1,
            Err(e) => {
                assert_eq!(e, PostError::QueueFull);
                refused += 1;
                r.write_at(0, &[refused as u8]).unwrap();
                thread::yield_now();
            }
        }
    }
    polling.join().unwrap();
    assert_eq!((posted, told.recv().unwrap(), q.free_slots()), (N, N, 8));
}

#[test]
fn a_queue_pair_destroyed_while_another_thread_polls_leaves_nothing_behind() {
    const N: usize = if cfg!(miri) { 10 } else { 2_000 };
    let fabric = Fabric::default();
    let d = domain(&fabric);
    let cq = d.create_cq(16).unwrap();
    let r = d.alloc(8).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let polling = {
        let (mut poller, stop) = (cq.poller().unwrap(), stop.clone());
        thread::spawn(move || {
            let (mut wcs, mut seen) = ([IbvWc::default(); 4], 0);
            while !stop.load(SeqCst) {
                seen += poller.poll(&mut wcs).unwrap();
                thread::yield_now();
            }
            (poller, seen)
        })
    };
    let until = soon();
    for _ in 0..N {
        let mut q = loop {
            match d.create_queue_pair(config(4, 0), &cq, &cq) {
                Ok(q) => break q,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::OutOfResources, "{e}");
                    assert!(Instant::now() < until, "waited for the shares of dead queue pairs");
                    thread::yield_now();
                }
            }
        };
        let me = q.get_qp_info().unwrap();
        let mut q = q.connect(&me).unwrap();
        let _ids = q.put(r.remote(), r.view()).unwrap();
        let _ids = q.get(r.view(), r.remote()).unwrap();
        drop(q);
    }
    stop.store(true, SeqCst);
    let (mut poller, seen) = polling.join().unwrap();
    let left = drain(&mut poller).len();
    assert!(seen + left <= 2 * N);
    let counters = fabric.counters();
    assert_eq!((counters.misuse, counters.overruns, counters.requests), (0, 0, 2 * N as u64));
    assert_eq!(counters.completions, (seen + left) as u64);
}
