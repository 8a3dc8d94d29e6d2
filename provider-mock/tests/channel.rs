//! Completion channels and event descriptors: one event for one arming, nothing lost in between; and the
//! two drives that need no `step`.
mod common;
use common::*;
use ibv_core::*;
use provider_mock::*;
use std::{
    io::Read,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    thread,
    time::{Duration, Instant},
};

/// Whether the descriptor is readable, by peeking with a clone of it that must not block.
fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut peek = UnixStream::from(fd.try_clone_to_owned().unwrap());
    let mut one = [0];
    // Consumes an event, so use it once only where that does not matter.
    matches!(peek.read(&mut one), Ok(1))
}

#[test]
fn one_event_for_one_arming_however_many_completions() {
    let fabric = ordered();
    let [mut a, b] = pair(&fabric);
    let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
    let mut put = |n: usize| {
        for _ in 0..n {
            let _ids = a.qp.put(r.remote(), l.view()).unwrap();
        }
        fabric.run();
    };
    put(2);
    assert_eq!(a.poller.take_events(), Ok(0), "nobody armed");
    a.poller.arm(false).unwrap();
    assert_eq!(a.poller.take_events(), Ok(0), "what was there raises none");
    put(3);
    assert_eq!(a.poller.take_events(), Ok(1));
    put(1);
    assert_eq!(a.poller.take_events(), Ok(0), "armed once, told once");
    assert_eq!(drain(&mut a.poller).len(), 6);
    a.poller.arm(true).unwrap();
    a.poller.arm(false).unwrap();
    a.poller.arm(true).unwrap();
    put(1);
    assert_eq!(a.poller.take_events(), Ok(1), "any outweighs solicited");
}

#[test]
fn the_descriptor_is_readable_while_an_event_waits() {
    let fabric = ordered();
    let [mut a, b] = pair(&fabric);
    let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
    a.poller.arm(false).unwrap();
    assert!(!readable(a.poller.channel().unwrap()));
    let _ids = a.qp.put(r.remote(), l.view()).unwrap();
    fabric.run();
    assert!(readable(a.poller.channel().unwrap()));
}

#[test]
fn solicited_events_are_for_solicited_messages_and_for_errors() {
    let fabric = ordered();
    let [mut a, mut b] = pair(&fabric);
    let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
    for _ in 0..3 {
        b.qp.post_recv(&[r.view()]).unwrap();
    }
    b.poller.arm(true).unwrap();
    let src = [l.view()];
    let _ids = a.qp.post(&Request::send(&src)).unwrap();
    fabric.run();
    assert_eq!(b.poller.take_events(), Ok(0));
    let _ids = a.qp.post(&Request::send(&src).solicited()).unwrap();
    fabric.run();
    assert_eq!(b.poller.take_events(), Ok(1));
    b.poller.arm(true).unwrap();
    b.qp.queue_pair().enter_error().unwrap();
    assert_eq!(b.poller.take_events(), Ok(1), "a flush is an error");
}

#[test]
fn a_queue_without_a_channel_can_not_be_armed() {
    let d = domain(&ordered());
    let mut poller = d.create_cq(4).unwrap().poller().unwrap();
    assert_eq!(poller.arm(false), Err(PollCompletionError::NoChannel));
    assert_eq!(poller.take_events(), Err(PollCompletionError::NoChannel));
    assert!(poller.channel().is_none());
}

#[test]
fn polling_drives_the_fabric_and_its_clock_by_default() {
    let fabric = Fabric::default();
    let [mut a, mut b] = pair_with(&fabric, |_, c| (c.rnr_retry, c.retry_cnt) = (3, 1));
    let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
    let _ids = a.qp.put(r.remote(), l.view()).unwrap();
    assert_eq!(r.to_vec(), [0; 8]);
    assert_eq!(statuses(&a.poll()), [WcStatus::SUCCESS]);
    assert_eq!(r.to_vec(), [1; 8]);
    // Nobody ever posts a receive: time passes while somebody polls.
    let _ids = a.qp.send(l.view()).unwrap();
    let until = soon();
    let wcs = loop {
        let wcs = a.poll();
        if !wcs.is_empty() {
            break wcs;
        }
        assert!(Instant::now() < until, "waited for the retries to run out");
    };
    assert_eq!(statuses(&wcs), [WcStatus::RNR_RETRY_EXC_ERR]);
    assert!(fabric.now() >= Duration::from_micros(3 * 640) && b.poll().is_empty());
}

#[test]
fn a_sleeper_is_woken_by_the_ring_of_another() {
    let fabric = Fabric::default();
    let [mut a, mut b] = pair(&fabric);
    let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
    b.qp.post_recv(&[r.view()]).unwrap();
    b.poller.arm(false).unwrap();
    assert!(b.poll().is_empty());
    let _ids = a.qp.send(l.view()).unwrap();
    assert_eq!(b.poller.take_events(), Ok(1));
    assert_eq!(b.poll().len(), 1);
}

#[test]
fn a_thread_of_the_fabrics_own_moves_bytes_keeps_time_and_ends_with_it() {
    let fabric = Fabric::new(FabricConfig { drive: Drive::Thread, ..FabricConfig::default() });
    let [mut a, b] = pair_with(&fabric, |_, c| (c.rnr_retry, c.min_rnr_timer) = (1, 1));
    let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
    let mut wait = |n: usize, what: &str| {
        let (until, mut wcs) = (soon(), Vec::new());
        while wcs.len() < n {
            wcs.extend(drain(&mut a.poller));
            assert!(Instant::now() < until, "waited for {what}, have {} of {n}", wcs.len());
            thread::yield_now();
        }
        statuses(&wcs)
    };
    for _ in 0..16 {
        let _ids = a.qp.put(r.remote(), l.view()).unwrap();
    }
    assert_eq!(wait(16, "sixteen puts"), [WcStatus::SUCCESS; 16]);
    assert_eq!(r.to_vec(), [1; 8]);
    let _ids = a.qp.send(l.view()).unwrap();
    assert_eq!(wait(1, "a send to time out"), [WcStatus::RNR_RETRY_EXC_ERR]);
    let before = fabric.now();
    fabric.advance(Duration::from_secs(60));
    assert!(fabric.now() >= before + Duration::from_secs(60));
    drop((a, b, l, r));
    drop(fabric);
}

#[test]
fn a_subscription_sees_its_device_only_and_its_descriptor_tells() {
    let fabric = ordered();
    let (d, e) = (open(&fabric, 0), open(&fabric, 1));
    let (mut mine, mut theirs) = (d.events().unwrap(), e.events().unwrap());
    let _ = fabric.faults().port_down(0);
    assert_eq!(theirs.next_event().unwrap(), None);
    let event = mine.next_event().unwrap().unwrap();
    assert_eq!((event.kind, event.object), (EventType::PORT_ERR, EventObject::Port(1)));
    assert!(!readable(mine.as_fd()));
    let _ = fabric.faults().port_up(0);
    assert!(readable(mine.as_fd()));
    drop(mine);
    let _ = fabric.faults().port_down(0);
    assert_eq!(fabric.counters().events, 3);
}

#[test]
fn a_queue_that_is_really_full_overruns_and_is_an_error_and_not_a_hang() {
    for fabric in [ordered(), unordered(1, 8)] {
        let d = domain(&fabric);
        let cq = d.create_cq(2).unwrap();
        let (mut q, r) = (looped(&d, &cq, 2), d.alloc(8).unwrap());
        let _ = fabric.faults().repeat_completions(1);
        for _ in 0..2 {
            let _ids = q.put(r.remote(), r.view()).unwrap();
        }
        fabric.run();
        assert_eq!((fabric.counters().overruns, q.state().unwrap()), (1, QpState::ERR));
        let mut poller = cq.poller().unwrap();
        let mut wc = [IbvWc::default()];
        let polled: Vec<_> = (0..3).map(|_| poller.poll(&mut wc)).collect();
        assert_eq!(polled[2], Err(PollCompletionError::Device(75)), "{polled:?}");
    }
}

#[test]
fn polls_of_any_size_take_every_completion_once_and_return_the_credits() {
    let fabric = ordered();
    let [mut a, b] = pair_with(&fabric, |_, c| (c.max_send_wr, c.max_recv_wr) = (100, 0));
    let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
    for size in [1, 7, 64, 100, 128] {
        let mut batch = a.qp.batch();
        let ids: Vec<u64> = (0..100).map(|_| batch.put(r.remote(), l.view()).unwrap().first).collect();
        batch.ring().unwrap();
        fabric.run();
        let (mut wcs, mut seen) = (vec![IbvWc::default(); size], Vec::new());
        loop {
            let n = a.poller.poll(&mut wcs).unwrap();
            seen.extend(wcs[..n].iter().map(IbvWc::wr_id));
            assert_eq!(a.qp.free_slots() as usize, seen.len());
            if n < size {
                break;
            }
        }
        assert_eq!(seen, ids, "in polls of {size}");
    }
}

/// The usual way to wait: drain, arm, drain once more, sleep. Nothing that arrives in between is lost.
#[test]
fn arming_and_draining_against_another_thread_loses_no_completion() {
    const N: usize = if cfg!(miri) { 20 } else { 3_000 };
    let fabric = Fabric::new(FabricConfig { drive: Drive::Thread, ..FabricConfig::default() });
    let [a, b] = pair(&fabric);
    let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
    let End { mut qp, mut poller, .. } = a;
    let waiting = thread::spawn(move || {
        let (mut n, until, mut wakes) = (0, soon(), 0u64);
        let mut wcs = [IbvWc::default(); 4];
        while n < N {
            poller.arm(false).unwrap();
            loop {
                let got = poller.poll(&mut wcs).unwrap();
                n += got;
                if got < wcs.len() {
                    break;
                }
            }
            while n < N && poller.take_events().unwrap() == 0 {
                assert!(Instant::now() < until, "asleep for ever with {n} of {N} completions");
                thread::yield_now();
            }
            wakes += 1;
        }
        (n, wakes)
    });
    let until = soon();
    let mut posted = 0;
    while posted < N {
        match qp.put(r.remote(), l.view()) {
            Ok(_) => posted += 1,
            Err(e) => {
                assert_eq!(e, PostError::QueueFull);
                assert!(Instant::now() < until, "waited for room, {posted} of {N} posted");
                thread::yield_now();
            }
        }
    }
    let (n, wakes) = waiting.join().unwrap();
    assert!(n == N && wakes > 0);
}
