//! Every completion status of a software EFA device that a program can provoke, by its own number (`vendor_err`), and what
//! the queue pair is worth afterwards. Statuses of broken requests are in `efa_hostile`.

mod rig;
mod srd;

use ibv_sys::*;
use rig::{Rig, attr, poll};
use softnic::Config;
use softnic::description::Description;
use softnic::efa::cqe::Status;
use softnic::efa::limits::Limits;
use softnic::fault::Fault;
use srd::{Op, Shape, Srd, To, both, handle_to, steps, with, writes};

fn pair(rig: &Rig, shape: Shape) -> (Srd, Srd) {
    (Srd::new(rig, shape), Srd::new(rig, Shape { qkey: 0x2222, ..shape }))
}

/// The next completion, which must have this id, and end so.
fn ends(rig: &mut Rig, end: &Srd, id: u64, status: Status) -> ibv_wc {
    let wc = rig.wait(end.cq);
    assert_eq!((wc.wr_id, wc.vendor_err), (id, status as u32), "{status:?}: {:?}", wc.status);
    let expected = ibv_wc_status(status.verbs().0);
    // libefa 44 has no better name for these.
    let later =
        matches!(status, Status::RemoteBadAddress | Status::UnreachableRemote | Status::RemoteUnknownPeer);
    let general = later && wc.status == IBV_WC_GENERAL_ERR;
    assert!(wc.status == expected || general, "{status:?} is {:?}, not {expected:?}", wc.status);
    wc
}

/// The queue pair still works.
fn works(rig: &mut Rig, a: &Srd, b: &Srd) {
    a.post(999, a.read_of(b, 0), b.to(), 0, 8);
    ends(rig, a, 999, Status::Ok);
}

#[test]
fn a_wrong_local_key_is_a_local_error() {
    both(Limits::default(), |rig| {
        let (a, b) = pair(rig, Shape::default());
        for (id, op) in [(1, Op::Send), (2, a.read_of(&b, 0))] {
            assert_eq!(a.try_post_raw(id, op, b.to(), &[(a.at(0), 8, a.lkey() ^ 1)]), 0);
            ends(rig, &a, id, Status::InvalidLkey);
        }
        let past = a.at(rig::LEN - 4);
        assert_eq!(a.try_post_raw(3, Op::Send, b.to(), &[(past, 8, a.lkey())]), 0);
        ends(rig, &a, 3, Status::InvalidLkey);
        works(rig, &a, &b);
    });
}

#[test]
fn a_read_into_memory_that_may_not_be_written_is_a_local_error() {
    both(Limits::default(), |rig| {
        let (a, b) = pair(rig, Shape::default());
        let mr = rig.reg(a.at(0), 64, IBV_ACCESS_REMOTE_READ);
        // SAFETY: the region is alive, and destroyed once.
        unsafe {
            assert_eq!(a.try_post_raw(1, a.read_of(&b, 0), b.to(), &[(a.at(0), 8, (*mr).lkey)]), 0);
            ends(rig, &a, 1, Status::InvalidLkey);
            assert_eq!(a.try_post_raw(2, Op::Send, b.to(), &[(a.at(0), 8, (*mr).lkey)]), 0);
            b.recv(3, &[(0, 8)]);
            ends(rig, &b, 3, Status::Ok);
            ends(rig, &a, 2, Status::Ok);
            assert_eq!(rig.v().ibv_dereg_mr(mr), 0);
        }
    });
}

#[test]
fn a_wrong_remote_key_range_right_or_domain_is_a_remote_error() {
    both(Limits::default(), |rig| {
        let (a, b) = pair(rig, Shape::default());
        let (rkey, end) = (b.rkey(), b.at(rig::LEN - 4));
        let local = rig.reg(b.at(0), 64, IBV_ACCESS_LOCAL_WRITE);
        let (other, opened) = rig.on_device(1, |rig| Srd::new(rig, Shape::default()));
        // SAFETY: the region is alive, and destroyed once.
        let local_key = unsafe { (*local).rkey };
        let wrong = [
            (1, b.at(0), rkey ^ 1),
            (2, end, rkey),
            (3, b.at(0).wrapping_sub(8), rkey),
            (4, b.at(0), local_key),
            (5, other.at(0), other.rkey()),
            (6, u64::MAX - 3, rkey),
        ];
        for (id, addr, rkey) in wrong {
            a.post(id, Op::Read { addr, rkey }, b.to(), 0, 8);
            ends(rig, &a, id, Status::RemoteBadAddress);
        }
        if writes(rig) {
            let mr = rig.reg(b.at(0), 64, IBV_ACCESS_REMOTE_READ);
            // SAFETY: as above.
            unsafe {
                a.post(9, Op::Write { addr: b.at(0), rkey: (*mr).rkey }, b.to(), 0, 8);
                ends(rig, &a, 9, Status::RemoteBadAddress);
                assert_eq!(rig.v().ibv_dereg_mr(mr), 0);
            }
        }
        works(rig, &a, &b);
        // SAFETY: as above.
        assert_eq!(unsafe { rig.v().ibv_dereg_mr(local) }, 0);
        drop(other);
        drop(opened);
    });
}

#[test]
fn nobody_by_that_number_key_or_service() {
    both(Limits::default(), |rig| {
        let (mut a, mut b) = pair(rig, Shape::default());
        let ud = Srd::new(rig, Shape { ud: true, ..Shape::default() });
        let unready = Srd::unready(rig, Shape::default());
        let wrong = [
            To { qpn: b.qpn() + 300, qkey: b.qkey },
            To { qpn: b.qpn(), qkey: 0x9999 },
            ud.to(),
            unready.to(),
        ];
        for (id, to) in wrong.into_iter().enumerate() {
            a.post(id as u64, a.read_of(&b, 0), to, 0, 8);
            ends(rig, &a, id as u64, Status::RemoteBadDestQpn);
        }
        works(rig, &a, &b);
        let to = b.to();
        assert_eq!(b.modify(&mut attr(IBV_QPS_ERR), IBV_QP_STATE), 0);
        a.post(7, a.read_of(&b, 0), to, 0, 8);
        ends(rig, &a, 7, Status::RemoteBadDestQpn);
        b.destroy_qp();
        a.post(8, a.read_of(&b, 0), to, 0, 8);
        ends(rig, &a, 8, Status::RemoteBadDestQpn);
        a.destroy_qp();
    });
}

#[test]
fn lengths_beyond_the_packet_and_the_device() {
    let limits = Limits { max_rdma_size: 10000, ..Limits::default() };
    both(limits, |rig| {
        let (a, b) = pair(rig, Shape::default());
        a.post(1, Op::Send, b.to(), 0, 8929);
        ends(rig, &a, 1, Status::BadLength);
        a.post(2, a.read_of(&b, 0), b.to(), 0, 10001);
        ends(rig, &a, 2, Status::BadLength);
        a.post(3, a.read_of(&b, 0), b.to(), 0, 10000);
        ends(rig, &a, 3, Status::Ok);
        b.recv(4, &[(0, 8928)]);
        a.post(4, Op::Send, b.to(), 0, 8928);
        ends(rig, &a, 4, Status::Ok);
    });
}

#[test]
fn a_receive_that_is_too_short_or_forbidden_is_spent_and_both_are_told() {
    both(Limits::default(), |rig| {
        let (a, b) = pair(rig, Shape::default());
        b.recv(1, &[(0, 63)]);
        a.post(1, Op::Send, b.to(), 0, 64);
        ends(rig, &b, 1, Status::BadLength);
        ends(rig, &a, 1, Status::RemoteBadLength);
        b.recv_raw(2, &[(b.at(0), 64, b.lkey() ^ 1)]);
        a.post(2, Op::Send, b.to(), 0, 64);
        ends(rig, &b, 2, Status::InvalidLkey);
        ends(rig, &a, 2, Status::RemoteBadStatus);
        works(rig, &a, &b);
    });
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for_as_often_as_was_said() {
    both(Limits::default(), |rig| {
        for retries in [0, 3] {
            let (a, b) = pair(rig, Shape { rnr_retry: Some(retries), ..Shape::default() });
            a.post(1, Op::Send, b.to(), 0, 64);
            ends(rig, &a, 1, Status::RemoteNotReady);
            works(rig, &a, &b);
        }
    });
    steps(1, Limits::default(), |rig| {
        // No number given: for ever. The clock is virtual.
        let (a, b) = pair(rig, Shape::default());
        a.post(1, Op::Send, b.to(), 0, 64);
        a.post(2, a.read_of(&b, 0), b.to(), 0, 8);
        ends(rig, &a, 2, Status::Ok);
        (0..1000).for_each(|_| rig.work());
        assert!(poll(a.cq).is_none(), "it still waits");
        b.recv(5, &[(0, 64)]);
        ends(rig, &b, 5, Status::Ok);
        ends(rig, &a, 1, Status::Ok);
    });
}

#[test]
fn an_address_handle_of_another_domain_is_none() {
    both(Limits::default(), |rig| {
        let a = Srd::new(rig, Shape::default());
        // SAFETY: each object is destroyed once, after its last use.
        unsafe {
            let own = rig.pd;
            rig.pd = rig.v().ibv_alloc_pd(rig.context);
            let ah = srd::handle(rig, 1);
            assert_eq!(a.try_post_to(1, Op::Send, a.to(), ah), 0);
            ends(rig, &a, 1, Status::InvalidAh);
            assert_ne!(rig.v().ibv_dealloc_pd(rig.pd), 0, "it has a handle");
            assert_eq!(rig.v().ibv_destroy_ah(ah), 0);
            assert_eq!(rig.v().ibv_dealloc_pd(rig.pd), 0);
            rig.pd = own;
        }
    });
}

#[test]
fn an_address_that_nobody_has_is_unreachable() {
    both(Limits::default(), |rig| {
        let a = Srd::new(rig, Shape::default());
        let ah = handle_to(rig, [9; 16]);
        assert_eq!(a.try_post_to(1, Op::Send, a.to(), ah), 0);
        ends(rig, &a, 1, Status::UnreachableRemote);
        // SAFETY: once, after its last use.
        assert_eq!(unsafe { rig.v().ibv_destroy_ah(ah) }, 0);
    });
}

#[test]
fn a_device_may_refuse_its_own_address() {
    let limits = Limits { loopback: false, ..Limits::default() };
    both(limits, |rig| {
        let (a, b) = pair(rig, Shape::default());
        a.post(1, a.read_of(&b, 0), b.to(), 0, 8);
        ends(rig, &a, 1, Status::UnreachableRemote);
    });
}

/// Queue pairs on two devices, with a handle of the first to the second, and back if it is asked for.
fn on_two_devices(rig: &mut Rig, back: bool, test: impl FnOnce(&mut Rig, &Srd, &Srd, *mut ibv_ah)) {
    let a = Srd::new(rig, Shape::default());
    let (b, other) = rig.on_device(1, |rig| {
        let mut b = Srd::new(rig, Shape::default());
        if !back {
            b.destroy_ah();
        }
        b
    });
    let ah = srd::handle(rig, 1);
    test(rig, &a, &b, ah);
    // SAFETY: once, after its last use.
    assert_eq!(unsafe { rig.v().ibv_destroy_ah(ah) }, 0);
    drop(b);
    drop(other);
}

/// A READ through a handle ends so.
fn read_ends(rig: &mut Rig, a: &Srd, b: &Srd, ah: *mut ibv_ah, id: u64, status: Status) {
    assert_eq!(a.try_post_to(id, a.read_of(b, 0), b.to(), ah), 0);
    ends(rig, a, id, status);
}

#[test]
fn remote_memory_is_for_known_peers_only() {
    both(Limits::default(), |rig| {
        on_two_devices(rig, false, |rig, a, b, ah| {
            read_ends(rig, a, b, ah, 1, Status::RemoteUnknownPeer);
            b.recv(2, &[(0, 8)]);
            assert_eq!(a.try_post_to(2, Op::Send, b.to(), ah), 0);
            ends(rig, a, 2, Status::Ok);
            let got = ends(rig, b, 2, Status::Ok);
            assert_eq!(got.slid, 0xffff, "the sender's handle is unknown");
        });
        on_two_devices(rig, true, |rig, a, b, ah| {
            read_ends(rig, a, b, ah, 1, Status::Ok);
        });
    });
}

#[test]
fn a_peer_that_falls_silent_was_responsive_or_never_seen() {
    both(Limits::default(), |rig| {
        on_two_devices(rig, true, |rig, a, b, ah| {
            rig.nic.stop_port(1, 1);
            read_ends(rig, a, b, ah, 1, Status::UnreachableRemote);
            rig.nic.start_port(1, 1);
            read_ends(rig, a, b, ah, 2, Status::Ok);
            rig.nic.stop_port(1, 1);
            read_ends(rig, a, b, ah, 3, Status::UnresponsiveRemote);
            rig.nic.start_port(1, 1);
        });
    });
}

#[test]
fn what_is_lost_on_the_way_is_sent_again_and_done_once() {
    for fault in [Fault::DropRequest { nth: 0 }, Fault::DropReply { nth: 0 }] {
        both(Limits::default(), |rig| {
            let (a, b) = pair(rig, Shape::default());
            b.recv(1, &[(0, 8)]);
            b.recv(2, &[(8, 8)]);
            rig.nic.inject(fault.clone());
            a.post(1, Op::Send, b.to(), 0, 8);
            ends(rig, &a, 1, Status::Ok);
            ends(rig, &b, 1, Status::Ok);
            rig.settle();
            assert!(poll(b.cq).is_none(), "{fault:?}: one message, one receive");
            rig.nic.inject(fault.clone());
            a.post(2, a.read_of(&b, 0), b.to(), 0, 8);
            ends(rig, &a, 2, Status::Ok);
        });
    }
}

#[test]
fn the_error_state_flushes_everything_once() {
    steps(3, Limits::default(), |rig| {
        let (a, b) = pair(rig, Shape::default());
        (0..4).for_each(|i| a.recv(i, &[(0, 8)]));
        assert_eq!(a.post_batch(10, &[a.read_of(&b, 0); 8], b.to()), 0);
        rig.work();
        assert_eq!(a.modify(&mut attr(IBV_QPS_ERR), IBV_QP_STATE), 0);
        let mut ids: Vec<u64> = (0..12)
            .map(|_| {
                let wc = rig.wait(a.cq);
                assert_eq!((wc.status, wc.vendor_err), (IBV_WC_WR_FLUSH_ERR, Status::Flushed as u32));
                wc.wr_id
            })
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17]);
        rig.nic.run();
        assert!(poll(a.cq).is_none());
        assert_eq!(a.modify(&mut attr(IBV_QPS_RESET), IBV_QP_STATE), 0);
        a.up(Shape::default());
        works(rig, &a, &b);
    });
}

/// Two queue pairs, and a WRITE (1) of 60000 bytes between them of which a part has landed.
fn half_a_write(rig: &mut Rig) -> Option<(Srd, Srd)> {
    if !writes(rig) {
        return None;
    }
    let (a, b) = pair(rig, Shape::default());
    a.memory.put(0, &[1; 60000]);
    a.post(1, a.write_to(&b, 0), b.to(), 0, 60000);
    rig.until("a part", |_| b.memory.get(0, 60000).contains(&1).then_some(()));
    Some((a, b))
}

#[test]
fn a_peer_that_is_reset_under_a_message_aborts_it() {
    steps(1, Limits::default(), |rig| {
        let Some((a, mut b)) = half_a_write(rig) else { return };
        b.destroy_qp();
        ends(rig, &a, 1, Status::RemoteAbort);
        assert_ne!(b.memory.get(0, 60000), [1; 60000], "and no more of it landed");
    });
}

#[test]
fn a_region_that_goes_under_a_message_ends_it() {
    steps(1, Limits::default(), |rig| {
        let Some((a, mut b)) = half_a_write(rig) else { return };
        // SAFETY: once: the pointer is cleared.
        assert_eq!(unsafe { rig.v().ibv_dereg_mr(b.mr) }, 0);
        b.mr = std::ptr::null_mut();
        ends(rig, &a, 1, Status::RemoteBadAddress);
    });
}

#[test]
fn packets_are_as_long_as_the_description_says() {
    let mut description = Description::efa(1);
    description.devices[0].ports[0].max_message = 1024;
    let config = Config { description, ..Config::steps(1) };
    let Some(mut rig) = Rig::start(config) else { return };
    if srd::efa().is_some() {
        let (a, b) = pair(&rig, Shape::default());
        a.post(1, Op::Send, b.to(), 0, 1025);
        ends(&mut rig, &a, 1, Status::BadLength);
    }
}

#[test]
fn a_killed_context_takes_its_queue_pairs_along() {
    with(Config::steps(1), Limits::default(), |rig| {
        let a = Srd::new(rig, Shape::default());
        let (mut b, other) = rig.on_device(0, |rig| Srd::new(rig, Shape::default()));
        let to = b.to();
        b.destroy_qp();
        drop(b);
        drop(other);
        a.post(1, Op::Read { addr: a.at(0), rkey: a.rkey() }, to, 0, 8);
        ends(rig, &a, 1, Status::RemoteBadDestQpn);
    });
}

#[test]
fn all_of_this_on_newer_rdma_cores() {
    srd::on_newer_rdma_cores();
}
