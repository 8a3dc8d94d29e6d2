//! Ends of queue pairs: what waits is flushed, and what never was leaves nothing behind.
#![allow(unsafe_code)]

mod common;

use common::{domain, nic};
use ibv_core::{IbvConfig, IbvQueuePair as _, IbvWc, WcStatus};
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
