//! How often the provider rings, counted write by write: as seldom as the device allows. Under whichever libefa is
//! loaded; what that does by itself is in the software device's own tests.
#![cfg(target_arch = "x86_64")]

mod common;

use common::{End, completions, counting_nic, domain, fresh, pair, shallow, writes};
use ibv_core::{IbvConfig, IbvMemoryRegion, IbvWc};
use provider_efa::EfaDomain;
use softnic::{Softnic, trace::Queue};

/// How often a queue of this kind was rung, by all queue pairs or completion queues that there are.
fn rung(nic: &Softnic, queue: Queue) -> u32 {
    nic.doorbells().iter().filter(|r| r.queue == queue).map(|r| r.times).sum()
}

/// How often `act` rings send queues.
fn rings(nic: &Softnic, act: impl FnOnce()) -> u32 {
    let before = rung(nic, Queue::Send);
    act();
    rung(nic, Queue::Send) - before
}

/// Posts a batch of `n` gets of a byte each.
fn gets(near: &mut End, mine: &IbvMemoryRegion<EfaDomain>, theirs: &IbvMemoryRegion<EfaDomain>, n: usize) {
    let mut batch = near.qp.batch();
    for i in 0..n {
        let (to, from) = (mine.view().slice(i, 1).unwrap(), theirs.remote().slice(i, 1).unwrap());
        let _ids = batch.get(to, from).unwrap();
    }
    batch.ring().unwrap();
}

#[test]
fn one_request_of_any_kind_rings_once() {
    let mut nic = counting_nic(2, |_| {});
    let (a, b) = (domain(0), domain(1));
    let [mut near, mut far] = pair(&a, &b, &IbvConfig::default());
    let (mine, theirs) = (a.alloc(64).unwrap(), b.alloc(64).unwrap());
    far.qp.post_recv(&[theirs.view()]).unwrap();
    assert_eq!(rings(&nic, || _ = near.qp.send(mine.view()).unwrap()), 1);
    completions(&mut nic, &mut near.poller, 1);
    assert_eq!(rings(&nic, || _ = near.qp.get(mine.view(), theirs.remote()).unwrap()), 1);
    completions(&mut nic, &mut near.poller, 1);
    if writes(&a) {
        assert_eq!(rings(&nic, || _ = near.qp.put(theirs.remote(), mine.view()).unwrap()), 1);
        completions(&mut nic, &mut near.poller, 1);
    }
}

#[test]
fn a_batch_of_sixteen_rings_once() {
    let mut nic = counting_nic(2, |_| {});
    let (a, b) = (domain(0), domain(1));
    let [mut near, _far] = pair(&a, &b, &IbvConfig::default());
    let (mine, theirs) = (a.alloc(64).unwrap(), b.alloc(64).unwrap());
    assert_eq!(rings(&nic, || gets(&mut near, &mine, &theirs, 16)), 1);
    completions(&mut nic, &mut near.poller, 16);
    if writes(&a) {
        let puts = || {
            let mut batch = near.qp.batch();
            (0..16).for_each(|_| _ = batch.put(theirs.remote(), mine.view()).unwrap());
            batch.ring().unwrap();
        };
        assert_eq!(rings(&nic, puts), 1);
        completions(&mut nic, &mut near.poller, 16);
    }
}

#[test]
fn a_batch_rings_as_often_as_the_device_makes_it_and_no_more() {
    for most in [1usize, 2, 3, 8, 16, 31, 63, 64] {
        let mut nic = counting_nic(2, |limits| limits.max_tx_batch = most as u16);
        let (a, b) = (domain(0), domain(1));
        let [mut near, _far] = pair(&a, &b, &shallow(64));
        let (mine, theirs) = (a.alloc(64).unwrap(), b.alloc(64).unwrap());
        let sizes = [1, 2, most - 1, most, most + 1, 2 * most, 2 * most + 1, 16, 63, 64];
        for n in sizes.into_iter().filter(|n| (1..=64).contains(n)) {
            let times = rings(&nic, || gets(&mut near, &mine, &theirs, n));
            assert_eq!(times as usize, n.div_ceil(most), "a batch of {n}, at most {most} at once");
            let wcs = completions(&mut nic, &mut near.poller, n);
            assert!(wcs.iter().all(IbvWc::is_valid), "{wcs:?}");
        }
        // And no doorbell covered more than the device takes.
        assert_eq!(nic.take_breaches(), []);
    }
}

#[test]
fn a_batch_to_many_peers_is_no_reason_to_ring_more() {
    let mut nic = counting_nic(1, |_| {});
    let d = domain(0);
    let (mut qp, cq) = fresh(&d, shallow(64));
    let me = qp.get_qp_info().unwrap();
    let mut qp = qp.connect(&me).map_err(|(_, e)| e).unwrap();
    let peers: Vec<_> = (0..8).map(|_| qp.add_peer(&me).unwrap()).collect();
    let (mr, mut poller) = (d.alloc(64).unwrap(), cq.poller().unwrap());
    let to_all = || {
        let mut batch = qp.batch();
        peers.iter().for_each(|peer| _ = batch.get_from(*peer, mr.view(), mr.remote()).unwrap());
        batch.ring().unwrap();
    };
    assert_eq!(rings(&nic, to_all), 1);
    completions(&mut nic, &mut poller, 8);
}

#[test]
fn what_posts_nothing_does_not_ring() {
    let nic = counting_nic(2, |_| {});
    let (a, b) = (domain(0), domain(1));
    let [mut near, _far] = pair(&a, &b, &shallow(8));
    let (mine, theirs) = (a.alloc(8).unwrap(), b.alloc(8).unwrap());
    assert_eq!(rung(&nic, Queue::Send), 0, "nor does connecting");
    let nothing = || {
        near.qp.batch().ring().unwrap();
        // Dropped, and so not posted; the last one has no place.
        let mut batch = near.qp.batch();
        (0..8).for_each(|_| _ = batch.get(mine.view(), theirs.remote()).unwrap());
        assert!(batch.get(mine.view(), theirs.remote()).is_err());
    };
    assert_eq!(rings(&nic, nothing), 0);
}

#[test]
fn each_receive_rings_once_as_one_posted_to_libefa_does() {
    let nic = counting_nic(2, |_| {});
    let (a, b) = (domain(0), domain(1));
    let [mut near, _far] = pair(&a, &b, &shallow(16));
    let mine = a.alloc(8).unwrap();
    for n in 1..=16 {
        let _id = near.qp.post_recv(&[mine.view()]).unwrap();
        assert_eq!(rung(&nic, Queue::Receive), n);
    }
    assert_eq!(rung(&nic, Queue::Send), 0);
}

#[test]
fn receives_posted_before_connecting_ring_when_it_connects() {
    let nic = counting_nic(1, |_| {});
    let d = domain(0);
    let (mut qp, _cq) = fresh(&d, shallow(16));
    let (me, mine) = (qp.get_qp_info().unwrap(), d.alloc(8).unwrap());
    (0..5).for_each(|_| _ = qp.post_recv(&[mine.view()]).unwrap());
    assert_eq!(rung(&nic, Queue::Receive), 0);
    let _qp = qp.connect(&me).map_err(|(_, e)| e).unwrap();
    assert_eq!(rung(&nic, Queue::Receive), 5);
}

#[test]
fn arming_a_completion_queue_rings_it_once() {
    let nic = counting_nic(1, |_| {});
    let d = domain(0);
    if !d.caps().cq_channel.present() {
        eprintln!("skipped: this libefa has no completion channels");
        return;
    }
    let cq = d.create_cq_with_channel(16).unwrap();
    let mut poller = cq.poller().unwrap();
    for n in 1..=3 {
        poller.arm(false).unwrap();
        assert_eq!(rung(&nic, Queue::Completion), n);
        assert_eq!(poller.poll(&mut [IbvWc::default(); 4]).unwrap(), 0);
    }
    assert_eq!(rung(&nic, Queue::Completion), 3, "a poll that finds nothing does not ring");
}
