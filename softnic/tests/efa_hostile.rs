//! A program that writes what no library writes: broken requests, impossible doorbells, nonsense commands. The device answers
//! or refuses, and serves everybody else on.

mod rig;
mod srd;

use ibv_sys::*;
use rig::{Rig, poll};
use softnic::efa::cqe::Status;
use softnic::efa::limits::Limits;
use srd::{Shape, Srd, steps};

/// Writes into the device's own memory of a queue pair, as its program could through its mapping.
fn ring<T>(rig: &Rig, end: &Srd, write: impl FnOnce(&softnic::efa::qp::Ring) -> T) -> T {
    let qpn = end.qpn() as u16;
    rig.nic.with(|host| write(host.efa.qps[&qpn].send.as_ref().unwrap()))
}

/// Posts a request, and changes it before the device looks, all but its id: libefa must know what completes.
fn put(rig: &Rig, end: &Srd, mut wqe: [u8; 64]) {
    end.post(1, end.read_of(end, 0), end.to(), 0, 8);
    ring(rig, end, |ring| {
        let id = ring.block.memory.load_u32(0) as u16;
        wqe[..2].copy_from_slice(&id.to_le_bytes());
        ring.block.memory.publish(0, &wqe);
    });
}

fn works(rig: &mut Rig) {
    let (a, b) = (Srd::new(rig, Shape::default()), Srd::new(rig, Shape::default()));
    a.post(1, a.read_of(&b, 0), b.to(), 0, 8);
    rig.expect(a.cq, 1, IBV_WC_SUCCESS);
}

/// A request of this operation, otherwise right.
fn wqe(op: u8) -> [u8; 64] {
    let mut w = [0; 64];
    (w[2], w[3]) = (0x80 | op, 0x1c);
    w
}

fn expect(rig: &mut Rig, end: &Srd, status: Status) {
    let wc = rig.wait(end.cq);
    assert_eq!(wc.vendor_err, status as u32);
}

#[test]
fn an_operation_that_does_not_exist_fails_alone() {
    steps(1, Limits { long_ids: false, ..Limits::default() }, |rig| {
        let a = Srd::new(rig, Shape::default());
        put(rig, &a, wqe(9));
        expect(rig, &a, Status::UnsupportedOp);
        works(rig);
    });
}

#[test]
fn an_operation_that_the_device_lacks_fails_alone() {
    let limits = Limits { write: false, long_ids: false, ..Limits::default() };
    steps(1, limits, |rig| {
        let a = Srd::new(rig, Shape::default());
        put(rig, &a, wqe(2));
        expect(rig, &a, Status::UnsupportedOp);
        works(rig);
    });
}

#[test]
fn a_request_without_its_marks_breaks_the_queue_pair() {
    steps(1, Limits { long_ids: false, ..Limits::default() }, |rig| {
        let a = Srd::new(rig, Shape::default());
        a.recv(7, &[(0, 8)]);
        put(rig, &a, [0; 64]);
        expect(rig, &a, Status::QpInternalError);
        expect(rig, &a, Status::Flushed);
        assert_eq!(rig.event(), Some((IBV_EVENT_QP_FATAL, a.qp as u64)));
        works(rig);
    });
}

#[test]
fn a_doorbell_beyond_the_ring_breaks_the_queue_pair() {
    steps(1, Limits::default(), |rig| {
        let (a, b) = (Srd::new(rig, Shape::default()), Srd::new(rig, Shape::default()));
        for i in 0..3 {
            a.recv(i, &[(0, 8)]);
        }
        ring(rig, &a, |ring| ring.doorbell.store(0x8000));
        (0..3).for_each(|_| expect(rig, &a, Status::Flushed));
        let qpn = b.qpn() as u16;
        rig.nic.with(|host| host.efa.qps[&qpn].receive.as_ref().unwrap().doorbell.store(0x7fff));
        let c = Srd::new(rig, Shape { rnr_retry: Some(0), ..Shape::default() });
        c.post(5, srd::Op::Send, b.to(), 0, 8);
        let wc = rig.wait(c.cq);
        assert_ne!(wc.status, IBV_WC_SUCCESS);
        rig.nic.run();
        assert!(poll(b.cq).is_none());
        works(rig);
    });
}

#[test]
fn more_requests_than_the_ring_holds_break_the_queue_pair() {
    use softnic::mlx5::transition::QpState;
    steps(1, Limits::default(), |rig| {
        let a = Srd::new(rig, Shape::default());
        let qpn = a.qpn() as u16;
        let mut states = Vec::new();
        for round in 1..=2 {
            ring(rig, &a, |ring| ring.doorbell.store(round * ring.entries));
            rig.nic.with(|host| host.scan());
            states.push(rig.nic.with(|host| host.efa.qps[&qpn].state));
        }
        // None of the first ring has completed, so there is no room for another one.
        assert_eq!(states, [QpState::Rts, QpState::Error]);
        works(rig);
    });
}

#[test]
fn arbitrary_requests_and_doorbells_never_stop_the_device() {
    // A small generator of nonsense, the same in every run.
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    steps(1, Limits { long_ids: false, ..Limits::default() }, |rig| {
        for _ in 0..60 {
            let a = Srd::new(rig, Shape { rnr_retry: Some(0), ..Shape::default() });
            let to = a.qpn() as u16;
            ring(rig, &a, |ring| {
                for slot in 0..8 {
                    let mut w = [0u8; 64];
                    w.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&next().to_ne_bytes()));
                    if next() % 4 != 0 {
                        // Near enough to a right one to get further.
                        (w[2], w[3]) = (0x80 | w[2] & 0x33, 0x1c);
                        w[4..6].copy_from_slice(&to.to_le_bytes());
                        w[6] &= 3;
                        w[7] = 0;
                    }
                    ring.block.memory.publish(slot * 64, &w);
                }
                ring.doorbell.store(next() as u32 % 9);
            });
            rig.nic.run();
            // What it reported is the program's affair; libefa is not asked to read it.
        }
        works(rig);
    });
}

#[test]
fn arbitrary_commands_are_refused_or_harmless() {
    use proptest::prelude::*;
    use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
    use softnic::uverbs::abi::cmd;
    use softnic::uverbs::call::Call;
    steps(1, Limits::default(), |rig| {
        let end = Srd::new(rig, Shape::default());
        // SAFETY: the context is alive.
        let fd = unsafe { (*rig.context).cmd_fd };
        let commands = [
            cmd::GET_CONTEXT,
            cmd::ALLOC_PD,
            cmd::CREATE_AH,
            cmd::DESTROY_AH,
            cmd::REG_MR,
            cmd::CREATE_CQ,
            cmd::CREATE_QP,
            cmd::MODIFY_QP,
            cmd::CREATE_CQ | cmd::EXTENDED,
            cmd::CREATE_QP | cmd::EXTENDED,
            cmd::QUERY_QP,
            cmd::RESIZE_CQ,
        ];
        let small =
            prop_oneof![Just(0u8), Just(1), Just(2), Just(4), Just(16), Just(64), Just(255), any::<u8>()];
        let bytes = proptest::collection::vec(small, 0..120);
        let strategy = (0..commands.len(), bytes.clone(), bytes);
        let config = ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() };
        // The same in every run: what gets through stays behind, and the rig is particular about that.
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let ran = runner.run(&strategy, |(at, input, driver_input)| {
            rig.nic.with(|host| {
                let context = host.context_of(fd).unwrap();
                let call = Call { input, driver_input, ..Call::default() };
                // Whether it is refused depends on the bytes; that it returns is what is asked for.
                let _ = host.command(context, commands[at], &call);
            });
            Ok(())
        });
        assert_eq!(ran, Ok(()));
        rig.nic.run();
        drop(end);
    });
    // What was made goes with its context: the next machine is as good as new.
    steps(1, Limits::default(), works);
}

#[test]
fn all_of_this_on_newer_rdma_cores() {
    srd::on_newer_rdma_cores();
}
