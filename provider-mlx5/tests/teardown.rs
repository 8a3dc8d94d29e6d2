//! Ends of queue pairs: what waits is flushed, and what never was leaves nothing behind.
#![allow(unsafe_code)]

mod common;

use common::{domain, nic};
use ibv_core::{ErrorKind, IbvConfig, IbvQueuePair as _, IbvWc, PollCompletionError, WcStatus};
use softnic::{fault::Fault, incident::Incident};
use std::collections::BTreeSet;

#[test]
fn receives_posted_before_connect_flush_when_the_queue_pair_fails() {
    let mut nic = nic();
    let d = domain();
    let cq = d.create_cq(256).unwrap();
    let mut qp = d.create_queue_pair(IbvConfig::default(), &cq, &cq).unwrap();
    let mut ids = vec![qp.post_recv(&[]).unwrap(), qp.post_recv(&[]).unwrap()];
    qp.queue_pair().enter_error().unwrap();
    ids.push(qp.post_recv(&[]).unwrap());
    let (mut poller, mut wcs, mut seen) = (cq.poller().unwrap(), [IbvWc::default(); 8], Vec::new());
    for _ in 0..10_000 {
        nic.step();
        let n = poller.poll(&mut wcs).unwrap();
        seen.extend(wcs[..n].iter().map(|wc| (wc.wr_id(), wc.status)));
    }
    let want: Vec<_> = ids.iter().map(|id| (*id, WcStatus::WR_FLUSH_ERR)).collect();
    assert_eq!(seen, want, "both of before and the one of after, in order");
}

#[test]
fn queue_pairs_without_a_request_leave_nothing_though_nobody_polls() {
    let _nic = nic();
    let d = domain();
    let cq = d.create_cq(256).unwrap();
    let numbers: BTreeSet<u32> = (0..64)
        .map(|_| {
            let mut qp = d.create_queue_pair(IbvConfig::default(), &cq, &cq).unwrap();
            qp.get_qp_info().unwrap().qp_num
        })
        .collect();
    assert!(numbers.len() < 4, "each number is free again at once: {numbers:?}");
}

#[test]
fn a_queue_that_met_what_nobody_asked_for_stays_dead_whatever_comes_after() {
    let mut nic = nic();
    let d = domain();
    let cq = d.create_cq(1024).unwrap();
    let connected = || {
        let mut qp = d.create_queue_pair(IbvConfig::default(), &cq, &cq).unwrap();
        let own = qp.get_qp_info().unwrap();
        qp.connect(&own).unwrap()
    };
    let (mut first, mut other) = (connected(), connected());
    let (src, dst) = (d.alloc(8).unwrap(), d.alloc(8).unwrap());
    let (mut poller, mut wcs) = (cq.poller().unwrap(), [IbvWc::default(); 8]);
    nic.inject(Fault::PoisonCqe { nth: 0 });
    for qp in [&mut first, &mut other] {
        for _ in 0..3 {
            let _ids = qp.put(dst.remote(), src.view()).unwrap();
        }
        nic.run();
        for _ in 0..3 {
            let answer = poller.poll(&mut wcs);
            assert!(matches!(answer, Err(PollCompletionError::Device(_))), "{answer:?}");
        }
    }
}

/// A device that fails may have completions on their way still.
#[test]
fn ids_and_room_of_a_queue_pair_that_the_device_would_not_reset_are_nobody_elses() {
    for fatal in [false, true] {
        let mut nic = nic();
        let d = domain();
        let mut config = IbvConfig::default();
        (config.max_send_wr, config.max_recv_wr) = (8, 8);
        let cq = d.create_cq(16).unwrap();
        let mut qp = d.create_queue_pair(config.clone(), &cq, &cq).unwrap();
        let own = qp.get_qp_info().unwrap();
        let mut qp = qp.connect(&own).unwrap();
        let (src, dst) = (d.alloc(8).unwrap(), d.alloc(8).unwrap());
        let _ids = qp.put(dst.remote(), src.view()).unwrap();
        nic.run();
        if fatal {
            nic.befall(0, &Incident::DeviceFatal);
        }
        drop(qp);
        let (mut poller, mut wcs) = (cq.poller().unwrap(), [IbvWc::default(); 8]);
        while poller.poll(&mut wcs).unwrap() > 0 {}
        let made = d.create_queue_pair(config, &cq, &cq);
        let no_room = matches!(&made, Err(e) if e.kind() == ErrorKind::OutOfResources);
        assert_eq!((made.is_ok(), no_room), (!fatal, fatal), "{:?}", made.err());
    }
}
