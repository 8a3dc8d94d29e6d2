//! One queue pair and many peers, one completion queue and many queue pairs: address handles, batches longer than
//! the device takes at once, numbers that are used again. Under whichever libefa is loaded.
#![allow(unsafe_code)]
//! # Safety
//! An address handle is asked for its number while it is alive.

mod common;

use common::{
    End, completions, domain, domain_of, drop_beside, fresh, nic, nic_with, pair, shallow, take_calls,
    watched, writes,
};
use ibv_core::{
    Connected, Gid, IbvConfig, IbvDomain, IbvMemoryRegion, IbvWc, Peer, PostError, Request,
    verbs::{Ah, Pd},
};
use ibv_sys::{efadv_ah_attr, ibv_ah_attr, ibv_gid, ibv_global_route};
use provider_efa::{EfaDomain, EfaQueuePair};
use softnic::incident::Incident;
use std::{collections::HashSet, sync::Arc};

const PEERS: usize = 8;

/// A queue pair that the hub reaches, and memory of its.
struct Spoke {
    end: End,
    memory: IbvMemoryRegion<EfaDomain>,
    peer: Peer,
}

/// A queue pair on the first domain, connected to itself, and `PEERS` others on the other domains.
fn star(domains: &[IbvDomain<EfaDomain>]) -> (End, Vec<Spoke>) {
    let (mut hub, cq) = fresh(&domains[0], IbvConfig::default());
    let info = hub.get_qp_info().unwrap();
    let mut hub = hub.connect(&info).map_err(|(_, e)| e).unwrap();
    let spokes = (0..PEERS).map(|i| {
        let d = &domains[1 + i % (domains.len() - 1)];
        let (mut qp, cq) = fresh(d, shallow(8));
        let theirs = qp.get_qp_info().unwrap();
        let qp = qp.connect(&info).map_err(|(_, e)| e).unwrap();
        let memory = d.alloc(32).unwrap();
        memory.write_at(0, &[0x10 + i as u8; 32]).unwrap();
        let peer = hub.add_peer(&theirs).unwrap();
        Spoke { end: End { qp, poller: cq.poller().unwrap() }, memory, peer }
    });
    let spokes = spokes.collect();
    (End { qp: hub, poller: cq.poller().unwrap() }, spokes)
}

#[test]
fn one_queue_pair_reaches_eight_peers() {
    let mut nic = nic(3);
    let domains = [domain(0), domain(1), domain(2)];
    let (mut hub, mut spokes) = star(&domains);
    let mine = domains[0].alloc(PEERS * 32).unwrap();
    let part = |i: usize| mine.view().slice(32 * i, 32).unwrap();
    // Gets from all of them, in one batch.
    let mut batch = hub.qp.batch();
    for (i, spoke) in spokes.iter().enumerate() {
        let _ids = batch.get_from(spoke.peer, part(i), spoke.memory.remote()).unwrap();
    }
    batch.ring().unwrap();
    completions(&mut nic, &mut hub.poller, PEERS);
    let want: Vec<u8> = (0..PEERS as u8).flat_map(|i| [0x10 + i; 32]).collect();
    assert_eq!(mine.to_vec(), want);
    // A message to each, one after the other.
    for (i, spoke) in spokes.iter_mut().enumerate() {
        spoke.end.qp.post_recv(&[spoke.memory.view()]).unwrap();
        mine.write_at(32 * i, &[0x40 + i as u8; 32]).unwrap();
        let _ids = hub.qp.send_to(spoke.peer, part(i)).unwrap();
    }
    completions(&mut nic, &mut hub.poller, PEERS);
    for (i, spoke) in spokes.iter_mut().enumerate() {
        completions(&mut nic, &mut spoke.end.poller, 1);
        assert_eq!(spoke.memory.to_vec(), [0x40 + i as u8; 32], "peer {i}");
    }
    if !writes(&domains[0]) {
        return;
    }
    for (i, spoke) in spokes.iter().enumerate() {
        mine.write_at(32 * i, &[0x70 + i as u8; 32]).unwrap();
        let _ids = hub.qp.put_to(spoke.peer, spoke.memory.remote(), part(i)).unwrap();
    }
    completions(&mut nic, &mut hub.poller, PEERS);
    for (i, spoke) in spokes.iter().enumerate() {
        assert_eq!(spoke.memory.to_vec(), [0x70 + i as u8; 32], "peer {i}");
    }
}

#[test]
fn one_peer_that_goes_fails_its_own_requests_alone() {
    let mut nic = nic(3);
    let domains = [domain(0), domain(1), domain(2)];
    let (mut hub, mut spokes) = star(&domains);
    let mine = domains[0].alloc(32).unwrap();
    let gone = spokes.remove(3);
    drop(gone.end);
    let bad = hub.qp.get_from(gone.peer, mine.view(), gone.memory.remote()).unwrap();
    let mut good = HashSet::new();
    for spoke in &spokes {
        good.insert(hub.qp.get_from(spoke.peer, mine.view(), spoke.memory.remote()).unwrap().first);
    }
    for wc in completions(&mut nic, &mut hub.poller, PEERS) {
        assert_eq!(wc.is_valid(), good.contains(&wc.wr_id), "{wc:?}");
    }
    assert_eq!(hub.qp.first_error().map(|e| e.wr_id), Some(bad.first));
    assert_eq!(hub.qp.state().unwrap(), ibv_core::QpState::RTS);
}

#[test]
fn requests_without_a_peer_go_to_the_first_and_strangers_are_refused() {
    let mut nic = nic(2);
    let domains = [domain(0), domain(1)];
    let (mut hub, spokes) = star(&domains);
    let (mut other, _) = star(&domains);
    let mine = domains[0].alloc(32).unwrap();
    let stranger = other.qp.get_from(spokes[0].peer, mine.view(), spokes[0].memory.remote());
    assert_eq!(stranger, Err(PostError::NotConnected));
    // The hub is its own first peer. What was said for one request does not hold for the next, nor after a
    // batch that was dropped.
    let mut batch = hub.qp.batch();
    let _ids = batch.get_from(spokes[5].peer, mine.view(), spokes[5].memory.remote()).unwrap();
    drop(batch);
    let own = domains[0].alloc(32).unwrap();
    own.write_at(0, &[9; 32]).unwrap();
    let _ids = hub.qp.get_from(spokes[6].peer, mine.view(), spokes[6].memory.remote()).unwrap();
    let _ids = hub.qp.get(mine.view(), own.remote()).unwrap();
    let wcs = completions(&mut nic, &mut hub.poller, 2);
    assert!(wcs.iter().all(IbvWc::is_valid), "{wcs:?}");
}

#[test]
fn peers_on_one_adapter_share_an_address_handle() {
    let _nic = nic(3);
    let provider = watched();
    let domains = [domain_of(&provider, 0), domain_of(&provider, 1), domain_of(&provider, 2)];
    take_calls();
    let (hub, spokes) = star(&domains);
    let made = |calls: &[String]| calls.iter().filter(|c| *c == "create_ah").count();
    // The hub's own and two others from its domain; the hub's from each of the others'.
    assert_eq!(made(&take_calls()), 3 + 2);
    let (more, _) = star(&domains);
    assert_eq!(made(&take_calls()), 0, "they are all there");
    drop((hub, spokes));
    let freed = take_calls().iter().filter(|c| *c == "destroy_ah").count();
    assert!(freed <= 2, "{freed} address handles went, and the second star uses those of the hub's domain");
    drop(more);
}

/// The device's number of the address handle of `gid`.
fn ah_number(pd: &Arc<Pd>, gid: Gid) -> u16 {
    let grh = ibv_global_route { dgid: ibv_gid { raw: gid.0 }, ..ibv_global_route::default() };
    let mut attr = ibv_ah_attr { grh, is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
    let ah = Ah::create(pd, &mut attr).unwrap();
    let mut told = efadv_ah_attr::default();
    // SAFETY: the handle is alive, the struct writable to its length.
    let code = unsafe {
        ibv_sys::efadv().unwrap().efadv_query_ah(ah.as_ptr(), &mut told, size_of::<efadv_ah_attr>() as u32)
    };
    assert_eq!(code, 0);
    told.ahn
}

#[test]
fn a_device_has_one_number_for_an_address() {
    let _nic = nic(2);
    let (a, again, b) = (domain(0), domain(0), domain(1));
    let gid_of = |d: &IbvDomain<EfaDomain>| d.device_info().port(1).unwrap().gids[0].gid;
    let (here, there) = (gid_of(&a), gid_of(&b));
    let number = |d: &IbvDomain<EfaDomain>, gid| ah_number(d.imp().pd(), gid);
    let (_, _keeps) = (fresh(&a, shallow(1)), pair(&a, &b, &shallow(1)));
    assert_eq!(number(&a, there), number(&a, there));
    assert_eq!(number(&a, there), number(&again, there), "in another domain of the device too");
    assert_ne!(number(&a, there), number(&a, here));
}

#[test]
fn a_batch_longer_than_the_device_takes_at_once_rings_as_often_as_it_has_to() {
    for (max_tx_batch, min_sq_wr) in [(8, 0), (3, 0), (0, 16)] {
        let mut nic = nic_with(2, |limits| {
            (limits.max_tx_batch, limits.min_sq_wr) = (max_tx_batch, min_sq_wr);
        });
        let (a, b) = (domain(0), domain(1));
        let told = a.caps().max_batch;
        assert!(told == 0 || max_tx_batch == 0 || told == u32::from(max_tx_batch), "{told}");
        let [mut near, _far] = pair(&a, &b, &shallow(64));
        let (mine, theirs) = (a.alloc(64).unwrap(), b.alloc(64).unwrap());
        theirs.write_at(0, &std::array::from_fn::<u8, 64, _>(|i| i as u8)).unwrap();
        // Twice, so that a batch runs over the end of the ring.
        for posted in [50, 64] {
            mine.write_at(0, &[0xff; 64]).unwrap();
            let mut batch = near.qp.batch();
            for i in 0..posted {
                let (to, from) = (mine.view().slice(i, 1).unwrap(), theirs.remote().slice(i, 1).unwrap());
                let _ids = batch.get(to, from).unwrap();
            }
            batch.ring().unwrap();
            completions(&mut nic, &mut near.poller, posted);
            let got = mine.to_vec();
            assert!((0..posted).all(|i| got[i] == i as u8), "batch of {posted}: {got:?}");
        }
        assert_eq!(nic.take_breaches(), []);
    }
}

/// Two gets in flight or completed, and nobody polled.
fn leave_two(
    qp: &mut Connected<EfaQueuePair>,
    mine: &IbvMemoryRegion<EfaDomain>,
    key: &IbvMemoryRegion<EfaDomain>,
) {
    for _ in 0..2 {
        let _ids = qp.get(mine.view(), key.remote()).unwrap();
    }
}

#[test]
fn completions_of_a_queue_pair_that_is_gone_are_nobodys() {
    let mut nic = nic(2);
    let (a, b) = (domain(0), domain(1));
    let (mine, theirs) = (a.alloc(8).unwrap(), b.alloc(8).unwrap());
    let cq = a.create_cq(6 * 8).unwrap();
    let make = |cq: &common::Cq| {
        let mut near = a.create_queue_pair(shallow(8), cq, cq).unwrap();
        let (mut far, far_cq) = fresh(&b, shallow(8));
        let (ours, theirs) = (near.get_qp_info().unwrap(), far.get_qp_info().unwrap());
        let far = far.connect(&ours).map_err(|(_, e)| e).unwrap();
        (near.connect(&theirs).map_err(|(_, e)| e).unwrap(), ours.qp_num, far, far_cq)
    };
    let (mut keeps, number, _far, _far_cq) = make(&cq);
    let mut poller = cq.poller().unwrap();
    let mut numbers = HashSet::new();
    for round in 0..20 {
        let (mut goes, gone, _far, _far_cq) = make(&cq);
        numbers.insert(gone);
        leave_two(&mut goes, &mine, &theirs);
        leave_two(&mut keeps, &mine, &theirs);
        if round % 2 == 0 {
            nic.run();
        }
        drop_beside(&mut nic, goes);
        let wcs = completions(&mut nic, &mut poller, 2);
        assert!(wcs.iter().all(|wc| wc.is_valid() && wc.qp_num == number), "round {round}: {wcs:?}");
    }
    assert!(numbers.len() < 20, "numbers were used again");
}

#[test]
fn sizes_that_exclude_each_other_are_refused_with_their_numbers() {
    let _nic = nic(1);
    let d = domain(0);
    let caps = d.caps();
    let cq = d.create_cq(4096).unwrap();
    let mut config = IbvConfig::default();
    (config.max_recv_wr, config.max_recv_sge) = (caps.max_recv_wr, 2);
    let e = d.create_queue_pair(config, &cq, &cq).unwrap_err().to_string();
    assert!(e.contains("1024 times max_recv_sge of 2 is 2048 ranges; this device takes 1024"), "{e}");
    if caps.max_inline == 0 || !writes(&d) {
        return;
    }
    let mut config = IbvConfig::default();
    (config.max_send_wr, config.max_inline) = (caps.max_send_wr, 8);
    let e = d.create_queue_pair(config.clone(), &cq, &cq).unwrap_err().to_string();
    assert!(e.contains("max_send_wr is 512; with max_inline of 8 this device takes 1 to 256"), "{e}");
    config.max_send_wr = 256;
    d.create_queue_pair(config, &cq, &cq).unwrap();
}

#[test]
fn an_old_device_and_an_old_library_are_told_apart() {
    let _nic = nic_with(1, |limits| *limits = softnic::efa::limits::Limits::first_generation());
    let d = domain(0);
    assert!(!d.caps().write.present() && d.caps().read.present());
    let why = d.imp().lacks().unwrap();
    let expected =
        ["libefa 44 has no RDMA write: needs rdma-core 46 or newer", "the device has no RDMA write"];
    assert!(expected.contains(&why), "{why}");
    let (mut near, mut far) = (fresh(&d, shallow(8)).0, fresh(&d, shallow(8)).0);
    let (ours, theirs) = (near.get_qp_info().unwrap(), far.get_qp_info().unwrap());
    let _far = far.connect(&ours).map_err(|(_, e)| e).unwrap();
    let mut near = near.connect(&theirs).map_err(|(_, e)| e).unwrap();
    let mine = d.alloc(8).unwrap();
    let view = [mine.view()];
    assert_eq!(near.post(&Request::put(mine.remote(), &view)), Err(PostError::Unsupported));
}

/// An older libefa would give to the next queue pair of a number what comes for one that is gone; so a queue pair whose
/// requests do not come back is kept, with its room. A newer one destroys it.
#[test]
fn a_queue_pair_whose_requests_never_come_back_is_kept_or_gone_but_not_both() {
    let nic = nic(1);
    let d = domain_of(&watched(), 0);
    let (mut qp, cq) = fresh(&d, shallow(4));
    let me = qp.get_qp_info().unwrap();
    let mut qp = qp.connect(&me).map_err(|(_, e)| e).unwrap();
    let mr = d.alloc(8).unwrap();
    let _ids = qp.get(mr.view(), mr.remote()).unwrap();
    nic.befall(0, &Incident::DeviceFatal);
    take_calls();
    drop(qp);
    let gone = take_calls().iter().any(|call| call == "destroy_qp");
    assert!(writes(&d) || !gone, "a libefa without RDMA write is one of the older ones");
    assert_eq!(cq.poller().unwrap().poll(&mut [IbvWc::default()]).unwrap(), 0);
    let e = d.create_queue_pair(shallow(4), &cq, &cq).unwrap_err();
    assert_eq!(e.kind() != ibv_core::ErrorKind::OutOfResources, gone, "{e}");
}
