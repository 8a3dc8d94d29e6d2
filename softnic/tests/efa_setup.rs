//! Objects of a software EFA device: what exists on which generation, what is refused and how, numbers that come again, and
//! events.

mod rig;
mod srd;

use std::ptr::null_mut;

use ibv_sys::*;
use rig::{Rig, attr, poll};
use softnic::Config;
use softnic::description::Description;
use softnic::efa::limits::Limits;
use srd::{EFA_ALL, Op, Shape, Srd, TO_INIT, TO_RTS, both, device, steps, writes};

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[test]
fn the_device_says_what_it_has() {
    let limits = Limits { max_rdma_size: 12345, max_sq_wr: 1024, ..Limits::default() };
    steps(0, limits, |rig| {
        let d = device(rig);
        assert_eq!((d.max_sq_wr, d.max_rq_wr, d.max_sq_sge, d.max_rq_sge), (1024, 32768, 2, 3));
        assert_eq!((d.inline_buf_size, d.max_rdma_size), (32, 12345));
        let had = EFADV_DEVICE_ATTR_CAPS_RDMA_READ | EFADV_DEVICE_ATTR_CAPS_RNR_RETRY;
        assert_eq!(d.device_caps & had, had);
    });
}

#[test]
fn the_first_generation_has_read_and_nothing_that_came_later() {
    steps(0, Limits::first_generation(), |rig| {
        assert_eq!(device(rig).device_caps, EFADV_DEVICE_ATTR_CAPS_RDMA_READ);
        // SAFETY: the domain is alive; nothing is made.
        unsafe {
            let mr = rig.v().ibv_reg_mr(rig.pd, 0x1000 as *mut _, 8, EFA_ALL);
            assert!(mr.is_null() && errno() == libc::EOPNOTSUPP, "no REMOTE_WRITE: {}", errno());
            let channel = rig.v().ibv_create_comp_channel(rig.context);
            let cq = rig.v().ibv_create_cq(rig.context, 8, null_mut(), channel, 0);
            assert!(cq.is_null() && errno() == libc::EOPNOTSUPP, "no events: {}", errno());
            assert_eq!(rig.v().ibv_destroy_comp_channel(channel), 0);
        }
        let a = Srd::new(rig, Shape::default());
        let qp = srd::create_qp(rig, Shape::default(), a.cq, true);
        assert!(qp.is_null(), "no WRITE");
        a.post(1, a.read_of(&a, 0), a.to(), 100, 8);
        rig.expect(a.cq, 1, IBV_WC_SUCCESS);
    });
}

#[test]
fn retries_are_an_attribute_only_where_the_device_has_them() {
    let shape = Shape { rnr_retry: Some(3), ..Shape::default() };
    for (limits, code) in [(Limits::default(), 0), (Limits::first_generation(), libc::EOPNOTSUPP)] {
        steps(0, limits, |rig| {
            let a = Srd::unready(rig, shape);
            let mut init = attr(IBV_QPS_INIT);
            (init.port_num, init.qkey) = (1, 7);
            assert_eq!(a.modify(&mut init, TO_INIT), 0);
            assert_eq!(a.modify(&mut attr(IBV_QPS_RTR), IBV_QP_STATE), 0);
            let mut rts = attr(IBV_QPS_RTS);
            rts.rnr_retry = 3;
            assert_eq!(a.modify(&mut rts, TO_RTS | IBV_QP_RNR_RETRY), code);
        });
    }
}

#[test]
fn the_state_machine_is_that_of_datagrams() {
    steps(0, Limits::default(), |rig| {
        let a = Srd::unready(rig, Shape::default());
        assert_eq!(a.modify(&mut attr(IBV_QPS_RTS), TO_RTS), libc::EINVAL, "not from RESET");
        let mut init = attr(IBV_QPS_INIT);
        (init.port_num, init.qkey) = (1, 0x77);
        assert_eq!(a.modify(&mut init, TO_INIT & !IBV_QP_QKEY), libc::EINVAL, "a key is needed");
        assert_eq!(a.modify(&mut init, TO_INIT | IBV_QP_ACCESS_FLAGS), libc::EOPNOTSUPP, "rights are not");
        init.port_num = 2;
        assert_eq!(a.modify(&mut init, TO_INIT), libc::EINVAL, "one port");
        init.port_num = 1;
        assert_eq!(a.modify(&mut init, TO_INIT), 0);
        assert_eq!(a.modify(&mut attr(IBV_QPS_RTR), IBV_QP_STATE | IBV_QP_DEST_QPN), libc::EOPNOTSUPP);
        assert_eq!(a.modify(&mut attr(IBV_QPS_RTR), IBV_QP_STATE), 0);
        let mut rts = attr(IBV_QPS_RTS);
        rts.sq_psn = 5;
        assert_eq!(a.modify(&mut rts, TO_RTS), 0);
        // SAFETY: all-zero structures are valid; the queue pair is alive.
        unsafe {
            let (mut now, mut caps) = (std::mem::zeroed::<ibv_qp_attr>(), std::mem::zeroed());
            assert_eq!(rig.v().ibv_query_qp(a.qp, &mut now, 0, &mut caps), 0);
            assert_eq!((now.qp_state, now.qkey, now.sq_psn, now.rnr_retry), (IBV_QPS_RTS, 0x77, 5, 7));
        }
    });
}

#[test]
fn limits_are_refused_by_the_library() {
    let limits = Limits { max_sq_wr: 128, ..Limits::default() };
    steps(0, limits, |rig| {
        let a = Srd::new(rig, Shape::default());
        let qp = srd::create_qp(rig, Shape { depth: 129, ..Shape::default() }, a.cq, false);
        assert!(qp.is_null() && errno() == libc::EINVAL);
    });
}

#[test]
fn a_library_that_knows_the_batch_limit_gets_through() {
    let limits = Limits { max_tx_batch: 4, min_sq_wr: 32, ..Limits::default() };
    both(limits, |rig| {
        let a = Srd::new(rig, Shape { depth: 16, ..Shape::default() });
        let ops = [a.read_of(&a, 0); 16];
        for round in 0..6 {
            assert_eq!(a.post_batch(round * 16, &ops, a.to()), 0);
            let mut ids: Vec<u64> = (0..16).map(|_| rig.wait(a.cq).wr_id).collect();
            ids.sort_unstable();
            assert_eq!(ids, (round * 16..round * 16 + 16).collect::<Vec<_>>());
        }
    });
}

#[test]
fn several_rings_in_a_completion_queue_serve() {
    let limits = Limits { sub_cqs: 2, ..Limits::default() };
    both(limits, |rig| {
        let (a, b) = (Srd::new(rig, Shape::default()), Srd::new(rig, Shape::default()));
        for i in 0..300u64 {
            b.recv(i, &[(0, 8)]);
            a.post(i, Op::Send, b.to(), 0, 8);
            rig.expect(b.cq, i, IBV_WC_SUCCESS);
            rig.expect(a.cq, i, IBV_WC_SUCCESS);
        }
    });
}

#[test]
fn numbers_come_again_at_once() {
    both(Limits::default(), |rig| {
        let peer = Srd::new(rig, Shape::default());
        let mut a = Srd::new(rig, Shape::default());
        let qpn = a.qpn();
        for i in 0..20u64 {
            assert_eq!(a.qpn(), qpn);
            // Left in flight: nothing of it may reach the next owner of the number.
            assert_eq!(a.post_batch(100, &[a.read_of(&peer, 0); 4], peer.to()), 0);
            a.recv(200, &[(0, 8)]);
            if i % 2 == 0 {
                rig.work();
            }
            a.destroy_qp();
            drop(a);
            a = Srd::new(rig, Shape::default());
            a.post(i, a.read_of(&peer, 0), peer.to(), 0, 8);
            rig.expect(a.cq, i, IBV_WC_SUCCESS);
            assert!(poll(a.cq).is_none());
        }
    });
}

#[test]
fn one_number_for_an_address_however_many_handles() {
    steps(0, Limits::default(), |rig| {
        let number = |ah: *mut ibv_ah| {
            // SAFETY: the handle is alive; all-zero is a valid structure of the length that is passed.
            unsafe {
                let mut attr: efadv_ah_attr = std::mem::zeroed();
                let len = size_of_val(&attr) as u32;
                assert_eq!(srd::efa().unwrap().efadv_query_ah(ah, &mut attr, len), 0);
                attr.ahn
            }
        };
        let handles = [0, 1, 0, 1].map(|device| srd::handle(rig, device));
        let numbers = handles.map(number);
        assert_eq!(numbers[..2], numbers[2..]);
        assert_ne!(numbers[0], numbers[1]);
        // SAFETY: each once.
        unsafe {
            handles.iter().for_each(|ah| assert_eq!(rig.v().ibv_destroy_ah(*ah), 0));
        }
        let again = srd::handle(rig, 0);
        assert_eq!(number(again), numbers[0]);
        // SAFETY: once.
        assert_eq!(unsafe { rig.v().ibv_destroy_ah(again) }, 0);
    });
}

#[test]
fn queues_in_use_are_not_destroyed() {
    steps(0, Limits::default(), |rig| {
        let a = Srd::new(rig, Shape::default());
        // SAFETY: the queue is alive, and stays so: the call is refused.
        assert_eq!(unsafe { rig.v().ibv_destroy_cq(a.cq) }, libc::EBUSY);
    });
}

/// A queue pair whose completion queue has a channel.
fn with_channel(rig: &Rig) -> (Srd, *mut ibv_comp_channel) {
    // SAFETY: the context is alive.
    unsafe {
        let channel = rig.v().ibv_create_comp_channel(rig.context);
        let cq = rig.v().ibv_create_cq(rig.context, 64, null_mut(), channel, 0);
        assert!(!cq.is_null());
        let end = Srd::on_cq(rig, Shape::default(), cq);
        end.up(Shape::default());
        (end, channel)
    }
}

/// Whether an event can be read.
fn has_event(channel: *mut ibv_comp_channel) -> bool {
    // SAFETY: the channel is alive.
    let mut poll = libc::pollfd { fd: unsafe { (*channel).fd }, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, as said.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

fn take_event(rig: &Rig, channel: *mut ibv_comp_channel) {
    let (mut cq, mut context) = (null_mut(), null_mut());
    // SAFETY: the channel is alive and has an event.
    unsafe {
        assert_eq!(rig.v().ibv_get_cq_event(channel, &mut cq, &mut context), 0);
        rig.v().ibv_ack_cq_events(cq, 1);
    }
}

fn arm(end: &Srd) -> i32 {
    // SAFETY: the queue is alive.
    unsafe { ibv_req_notify_cq(end.cq, 0) }
}

#[test]
fn an_armed_queue_tells_once() {
    both(Limits::default(), |rig| {
        let (a, channel) = with_channel(rig);
        for i in 0..40u64 {
            assert_eq!(arm(&a), 0);
            a.post(i, a.read_of(&a, 0), a.to(), 0, 8);
            rig.until("an event", |_| has_event(channel).then_some(()));
            take_event(rig, channel);
            rig.expect(a.cq, i, IBV_WC_SUCCESS);
            rig.settle();
            assert!(!has_event(channel), "round {i}: one arming, one event");
        }
        // SAFETY: the queue is alive.
        assert_eq!(unsafe { ibv_req_notify_cq(a.cq, 1) }, libc::EOPNOTSUPP, "nothing is solicited");
        drop(a);
        // SAFETY: once, after its queue.
        assert_eq!(unsafe { rig.v().ibv_destroy_comp_channel(channel) }, 0);
    });
}

#[test]
fn arm_poll_and_wait_never_sleeps_through_a_completion() {
    both(Limits::default(), |rig| {
        let (a, channel) = with_channel(rig);
        for i in 0..40u64 {
            a.post(2 * i, a.read_of(&a, 0), a.to(), 0, 8);
            rig.settle();
            // The usual way: arm, drain, and only then wait. The poll writes the doorbell too.
            assert_eq!(arm(&a), 0);
            while poll(a.cq).is_some() {}
            a.post(2 * i + 1, a.read_of(&a, 0), a.to(), 0, 8);
            rig.until("an event", |_| has_event(channel).then_some(()));
            take_event(rig, channel);
            rig.settle();
            while poll(a.cq).is_some() {}
            while has_event(channel) {
                take_event(rig, channel);
            }
        }
        drop(a);
        // SAFETY: once, after its queue.
        assert_eq!(unsafe { rig.v().ibv_destroy_comp_channel(channel) }, 0);
    });
}

#[test]
fn a_queue_with_unread_events_is_destroyed_without_waiting() {
    both(Limits::default(), |rig| {
        let (a, channel) = with_channel(rig);
        assert_eq!(arm(&a), 0);
        a.post(1, a.read_of(&a, 0), a.to(), 0, 8);
        rig.until("an event", |_| has_event(channel).then_some(()));
        drop(a);
        assert!(!has_event(channel));
        // SAFETY: once, after its queue.
        assert_eq!(unsafe { rig.v().ibv_destroy_comp_channel(channel) }, 0);
    });
}

#[test]
fn both_kinds_of_device_live_in_one_machine() {
    let mut description = Description::standard(softnic::description::Link::Ib, 1);
    description.devices.extend(Description::efa(1).devices);
    // `mlx5_0` comes before `rdmap0s6`.
    let Some(mut rig) = Rig::open(Config { description, ..Config::steps(1) }, 1) else { return };
    if srd::efa().is_none() {
        return;
    }
    let a = Srd::new(&rig, Shape::default());
    let ((b, c), opened) = rig.on_device(0, |rig| rig.pair(rig::Shape::default()));
    b.post(&b.request(1, IBV_WR_RDMA_WRITE, 0, 8, &c, 0));
    a.post(2, a.read_of(&a, 0), a.to(), 0, 8);
    rig.expect(a.cq, 2, IBV_WC_SUCCESS);
    rig.expect(b.cq, 1, IBV_WC_SUCCESS);
    drop((b, c));
    drop(opened);
    let _ = writes(&rig);
}

#[test]
fn all_of_this_on_newer_rdma_cores() {
    srd::on_newer_rdma_cores();
}
