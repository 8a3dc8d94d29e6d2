//! An EFA device that fails for good: it does nothing any more, its peers get errors and not silence, and everything can be taken
//! away.

mod rig;
mod srd;

use ibv_sys::*;
use rig::*;
use softnic::efa::cqe::Status;
use softnic::efa::limits::Limits;
use softnic::incident::Incident;
use srd::{Op, Shape, Srd};

/// Posts 8 bytes to an end on the second device.
fn post(a: &Srd, id: u64, op: Op, to: &Srd, ah: *mut ibv_ah) {
    assert_eq!(a.try_post_to(id, op, to.to(), ah), 0);
}

/// Runs `test` with an end on each of two devices, and the first one's handle to the second.
fn two(rig: &mut Rig, shape: Shape, test: impl FnOnce(&mut Rig, &Srd, &Srd, *mut ibv_ah)) {
    let a = Srd::new(rig, shape);
    let ah = srd::handle(rig, 1);
    let (b, other) = rig.on_device(1, |rig| Srd::new(rig, shape));
    test(rig, &a, &b, ah);
    rig.destroy_ah(ah);
    drop(b);
    drop(other);
}

#[test]
fn a_device_that_fails_does_nothing_and_its_peers_are_told() {
    srd::both(Limits::default(), |rig| {
        two(rig, Shape { rnr_retry: Some(0), ..Shape::default() }, |rig, a, b, ah| {
            post(a, 1, a.read_of(b, 0), b, ah);
            rig.expect(a.cq, 1, IBV_WC_SUCCESS);
            b.recv(70, &[(0, 64)]);
            rig.nic.befall(1, &Incident::DeviceFatal);
            b.post(2, b.read_of(a, 0), a.to(), 0, 8);
            post(a, 3, a.read_of(b, 0), b, ah);
            post(a, 4, Op::Send, b, ah);
            for _ in 0..2 {
                let wc = rig.wait(a.cq);
                assert_eq!(wc.vendor_err, Status::UnresponsiveRemote as u32);
            }
            rig.settle();
            assert!(poll(b.cq).is_none(), "nothing is reported, and nothing flushed");
            assert_eq!(b.modify(&mut attr(IBV_QPS_ERR), IBV_QP_STATE), libc::EIO);
            post(a, 5, a.read_of(a, 0), a, a.ah);
            rig.expect(a.cq, 5, IBV_WC_SUCCESS);
        });
    });
}

#[test]
fn what_is_landing_when_the_device_fails_ends_too() {
    for steps in 1..14 {
        srd::steps(steps, Limits::default(), |rig| {
            two(rig, Shape::default(), |rig, a, b, ah| {
                b.recv(70, &[(0, 8192)]);
                post(a, 1, Op::Send, b, ah);
                (0..steps).for_each(|_| rig.work());
                rig.nic.befall(1, &Incident::DeviceFatal);
                let wc = rig.wait(a.cq);
                assert_eq!(wc.wr_id, 1);
                rig.nic.run();
                assert!(poll(a.cq).is_none(), "once");
            });
        });
    }
}

#[test]
fn a_request_under_way_on_the_device_that_fails_is_never_reported() {
    for steps in 0..6 {
        srd::steps(steps, Limits::default(), |rig| {
            two(rig, Shape::default(), |rig, a, b, ah| {
                post(a, 1, a.read_of(b, 0), b, ah);
                (0..steps).for_each(|_| rig.work());
                let before = poll(a.cq).is_some();
                rig.nic.befall(0, &Incident::DeviceFatal);
                rig.nic.run();
                assert!(before || poll(a.cq).is_none(), "after {steps} steps");
            });
        });
    }
}
