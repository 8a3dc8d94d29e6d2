//! Scalable reliable datagrams on a software EFA device, through unmodified libefa: what each operation moves and reports, in
//! any order. WRITE needs rdma-core 46 or newer; the last test runs all of this on those that are built.

mod rig;
mod srd;

use std::collections::BTreeSet;

use ibv_sys::*;
use rig::{Rig, poll};
use softnic::efa::limits::Limits;
use srd::{Op, Shape, Srd, both, steps, writes};

fn pair(rig: &Rig, shape: Shape) -> (Srd, Srd) {
    (Srd::new(rig, shape), Srd::new(rig, Shape { qkey: 0x2222, ..shape }))
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + seed) as u8).collect()
}

#[test]
fn a_send_fills_a_receive_and_names_its_sender() {
    both(Limits::default(), |rig| {
        let (a, b) = pair(rig, Shape::default());
        let data = pattern(5000, 1);
        a.memory.put(0, &data);
        b.recv(7, &[(0, 3000), (20000, 3000)]);
        a.post(1, Op::SendImm(0x1234_5678), b.to(), 0, 5000);
        let got = rig.expect(b.cq, 7, IBV_WC_SUCCESS);
        assert_eq!((got.opcode, got.byte_len, got.src_qp), (IBV_WC_RECV, 5000, a.qpn()));
        assert_eq!(got.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
        // SAFETY: the flag says that it is there.
        assert_eq!(unsafe { got.__bindgen_anon_1.imm_data }, 0x1234_5678u32.to_be());
        rig.expect(a.cq, 1, IBV_WC_SUCCESS);
        assert_eq!(b.memory.get(0, 3000), data[..3000]);
        assert_eq!(b.memory.get(20000, 2000), data[3000..]);
    });
}

#[test]
fn inline_bytes_are_sent_and_may_change_at_once() {
    both(Limits::default(), |rig| {
        let (a, b) = pair(rig, Shape { inline: 32, ..Shape::default() });
        b.recv(1, &[(0, 64)]);
        let mut bytes = *b"thirty-two bytes fit a request..";
        assert_eq!(a.try_post_inline(2, Op::Send, b.to(), &bytes), 0);
        bytes.fill(0);
        assert_eq!(rig.expect(b.cq, 1, IBV_WC_SUCCESS).byte_len, 32);
        rig.expect(a.cq, 2, IBV_WC_SUCCESS);
        assert_eq!(b.memory.get(0, 32), b"thirty-two bytes fit a request..");
        assert_ne!(a.try_post_inline(3, Op::Send, b.to(), &[0; 33]), 0, "one more does not");
    });
}

#[test]
fn a_read_brings_the_peers_bytes() {
    both(Limits::default(), |rig| {
        let (a, b) = pair(rig, Shape::default());
        for len in [0, 1, 8, 8928, 8929, 40000] {
            let data = pattern(len, len);
            b.memory.put(8, &data);
            a.memory.put(0, &vec![0xee; len + 1]);
            a.post(len as u64, a.read_of(&b, 8), b.to(), 0, len as u32);
            rig.expect(a.cq, len as u64, IBV_WC_SUCCESS);
            assert_eq!(a.memory.get(0, len), data);
            assert_eq!(a.memory.get(len, 1), [0xee], "and no byte more");
        }
    });
}

#[test]
fn a_write_puts_bytes_there_and_the_peer_sees_no_completion() {
    both(Limits::default(), |rig| {
        if !writes(rig) {
            return;
        }
        let (a, b) = pair(rig, Shape::default());
        for len in [0, 1, 8, 8928, 8929, 40000] {
            let data = pattern(len, len);
            a.memory.put(0, &data);
            b.memory.put(8, &vec![0xee; len + 1]);
            a.post(len as u64, a.write_to(&b, 8), b.to(), 0, len as u32);
            let done = rig.expect(a.cq, len as u64, IBV_WC_SUCCESS);
            assert_eq!(done.opcode, IBV_WC_RDMA_WRITE);
            assert_eq!(b.memory.get(8, len), data);
            assert_eq!(b.memory.get(8 + len, 1), [0xee], "and no byte more");
        }
        assert!(poll(b.cq).is_none());
    });
}

#[test]
fn a_write_with_immediate_takes_a_receive() {
    both(Limits::default(), |rig| {
        if !writes(rig) {
            return;
        }
        let (a, b) = pair(rig, Shape::default());
        a.memory.put(0, &pattern(40000, 3));
        b.recv(9, &[(60000, 8)]);
        let op = Op::WriteImm { addr: b.at(0), rkey: b.rkey(), imm: 77 };
        a.post(1, op, b.to(), 0, 40000);
        let got = rig.expect(b.cq, 9, IBV_WC_SUCCESS);
        assert_eq!((got.opcode, got.byte_len), (IBV_WC_RECV_RDMA_WITH_IMM, 40000));
        // SAFETY: the opcode says that it is there.
        assert_eq!(unsafe { got.__bindgen_anon_1.imm_data }, 77u32.to_be());
        assert_eq!(b.memory.get(0, 40000), pattern(40000, 3), "its own bytes are there before it tells");
        rig.expect(a.cq, 1, IBV_WC_SUCCESS);
    });
}

#[test]
fn an_unsolicited_immediate_takes_none() {
    both(Limits::default(), |rig| {
        let caps = srd::device(rig).device_caps;
        if !writes(rig) || caps & EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV == 0 {
            return;
        }
        let shape = Shape { flags: EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV, ..Shape::default() };
        let (a, b) = pair(rig, shape);
        let op = Op::WriteImm { addr: b.at(0), rkey: b.rkey(), imm: 5 };
        a.post(1, op, b.to(), 0, 100);
        let got = rig.expect(b.cq, 0, IBV_WC_SUCCESS);
        assert_eq!((got.opcode, got.byte_len), (IBV_WC_RECV_RDMA_WITH_IMM, 100));
        rig.expect(a.cq, 1, IBV_WC_SUCCESS);
    });
}

#[test]
fn wide_requests_carry_inline_writes() {
    both(Limits::default(), |rig| {
        if !writes(rig) || srd::device(rig).inline_buf_size_ex < 80 {
            println!("skipped: inline WRITE came with rdma-core 63");
            return;
        }
        let shape = Shape { flags: EFADV_QP_FLAGS_INLINE_WRITE, inline: 80, ..Shape::default() };
        let (a, b) = pair(rig, shape);
        // Several times round the ring.
        for i in 0..200u64 {
            let bytes = pattern(80, i as usize);
            assert_eq!(a.try_post_inline(i, a.write_to(&b, 8), b.to(), &bytes), 0);
            rig.expect(a.cq, i, IBV_WC_SUCCESS);
            assert_eq!(b.memory.get(8, 80), bytes);
        }
    });
}

/// Ids of completions in the order in which they came.
fn order(rig: &mut Rig, end: &Srd, count: usize) -> Vec<u64> {
    let one = |rig: &mut Rig| {
        let wc = rig.wait(end.cq);
        assert_eq!(wc.status, IBV_WC_SUCCESS, "vendor error {}", wc.vendor_err);
        wc.wr_id
    };
    (0..count).map(|_| one(rig)).collect()
}

#[test]
fn requests_complete_in_any_order_each_once() {
    let mut orders = BTreeSet::new();
    for seed in 0..8 {
        steps(seed, Limits::default(), |rig| {
            let (a, b) = pair(rig, Shape::default());
            let ops = vec![a.read_of(&b, 0); 32];
            assert_eq!(a.post_batch(100, &ops, b.to()), 0);
            let order = order(rig, &a, 32);
            assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), (100..132).collect());
            orders.insert(order);
        });
    }
    assert!(orders.len() > 4 || orders.is_empty(), "seeds change the order: {orders:?}");
}

#[test]
fn the_same_seed_gives_the_same_order() {
    let mut orders = Vec::new();
    for _ in 0..2 {
        steps(5, Limits::default(), |rig| {
            let (a, b) = pair(rig, Shape::default());
            assert_eq!(a.post_batch(0, &[a.read_of(&b, 0); 32], b.to()), 0);
            orders.push((order(rig, &a, 32), rig.nic.take_trace()));
        });
    }
    if let [first, second] = &orders[..] {
        assert_eq!(first.0, second.0);
        assert_eq!(first.1.len(), second.1.len());
    }
}

#[test]
fn a_device_that_keeps_order_completes_in_order() {
    let limits = Limits { in_order: true, ..Limits::default() };
    for seed in 0..4 {
        steps(seed, limits.clone(), |rig| {
            let (a, b) = pair(rig, Shape::default());
            (0..32).for_each(|i| b.recv(i, &[(8 * i as usize, 8)]));
            assert_eq!(a.post_batch(0, &[Op::Send; 32], b.to()), 0);
            assert_eq!(order(rig, &b, 32), (0..32).collect::<Vec<_>>());
        });
    }
}

#[test]
fn the_parts_of_a_write_land_in_any_order() {
    let (mut last_before_first, mut ran) = (0, false);
    for seed in 0..8 {
        steps(seed, Limits::default(), |rig| {
            if !writes(rig) {
                return;
            }
            ran = true;
            let (a, b) = pair(rig, Shape::default());
            a.memory.put(0, &[1; 60000]);
            a.post(1, a.write_to(&b, 0), b.to(), 0, 60000);
            let ends = rig.until("a byte", |_| {
                let ends = (b.memory.get(0, 1)[0], b.memory.get(59999, 1)[0]);
                (ends != (0, 0)).then_some(ends)
            });
            last_before_first += usize::from(ends == (0, 1));
            rig.expect(a.cq, 1, IBV_WC_SUCCESS);
        });
    }
    assert!(last_before_first > 0 || !ran, "a poller of the last byte is fooled");
}

#[test]
fn an_immediate_overtakes_the_bytes_before_it() {
    let (mut overtaken, mut ran) = (0, false);
    for seed in 0..16 {
        steps(seed, Limits::default(), |rig| {
            if !writes(rig) {
                return;
            }
            ran = true;
            let (a, b) = pair(rig, Shape::default());
            a.memory.put(0, &[1; 30000]);
            b.recv(1, &[(60000, 8)]);
            a.post(1, a.write_to(&b, 0), b.to(), 0, 30000);
            a.post(2, Op::WriteImm { addr: b.at(40000), rkey: b.rkey(), imm: 1 }, b.to(), 0, 8);
            rig.expect(b.cq, 1, IBV_WC_SUCCESS);
            overtaken += usize::from(b.memory.get(0, 30000) != [1; 30000]);
            order(rig, &a, 2);
        });
    }
    assert!(overtaken > 0 || !ran, "an immediate says nothing of other messages");
}

#[test]
fn one_queue_pair_reaches_many() {
    both(Limits::default(), |rig| {
        let a = Srd::new(rig, Shape::default());
        let peers: Vec<Srd> =
            (0..8).map(|i| Srd::new(rig, Shape { qkey: 0x100 + i, ..Shape::default() })).collect();
        for (i, peer) in peers.iter().enumerate() {
            peer.recv(i as u64, &[(0, 8)]);
            a.memory.put(8 * i, &[i as u8 + 1; 8]);
            a.post(i as u64, Op::Send, peer.to(), 8 * i, 8);
        }
        for (i, peer) in peers.iter().enumerate() {
            rig.expect(peer.cq, i as u64, IBV_WC_SUCCESS);
            assert_eq!(peer.memory.get(0, 8), [i as u8 + 1; 8]);
        }
        order(rig, &a, 8);
    });
}

#[test]
fn a_queue_pair_talks_to_itself_and_to_another_device() {
    both(Limits::default(), |rig| {
        let a = Srd::new(rig, Shape::default());
        a.memory.put(0, &[3; 8]);
        a.post(1, a.read_of(&a, 0), a.to(), 100, 8);
        rig.expect(a.cq, 1, IBV_WC_SUCCESS);
        assert_eq!(a.memory.get(100, 8), [3; 8]);
        let (b, other) = rig.on_device(1, |rig| Srd::new(rig, Shape::default()));
        b.memory.put(0, &[4; 8]);
        let ah = srd::handle(rig, 1);
        assert_eq!(a.try_post_to(2, a.read_of(&b, 0), b.to(), ah), 0);
        rig.expect(a.cq, 2, IBV_WC_SUCCESS);
        assert_eq!(a.memory.get(0, 8), [4; 8]);
        // SAFETY: once, after its last use.
        assert_eq!(unsafe { rig.v().ibv_destroy_ah(ah) }, 0);
        drop(b);
        drop(other);
    });
}

#[test]
fn datagrams_go_and_those_that_find_no_taker_are_lost() {
    both(Limits::default(), |rig| {
        let (a, b) = pair(rig, Shape { ud: true, ..Shape::default() });
        b.recv(1, &[(0, 104)]);
        a.memory.put(0, &[5; 64]);
        let wrong = srd::To { qkey: 0x9999, ..b.to() };
        a.post(1, Op::Send, wrong, 0, 64);
        rig.expect(a.cq, 1, IBV_WC_SUCCESS);
        a.post(2, Op::SendImm(9), b.to(), 0, 64);
        rig.expect(a.cq, 2, IBV_WC_SUCCESS);
        let got = rig.expect(b.cq, 1, IBV_WC_SUCCESS);
        assert_eq!((got.byte_len, got.src_qp), (40 + 64, a.qpn()));
        assert_eq!(b.memory.get(40, 64), [5; 64], "behind the room for a header");
        a.post(3, Op::Send, b.to(), 0, 64);
        rig.expect(a.cq, 3, IBV_WC_SUCCESS);
        rig.settle();
        assert!(poll(b.cq).is_none(), "no receive, no message");
    });
}

#[test]
fn many_times_round_both_rings_nothing_is_lost() {
    both(Limits::default(), |rig| {
        let (a, b) = pair(rig, Shape { depth: 16, cq_depth: 32, ..Shape::default() });
        for round in 0..40u64 {
            (0..16).for_each(|i| b.recv(round * 16 + i, &[(8 * i as usize, 8)]));
            assert_eq!(a.post_batch(round * 16, &[Op::Send; 16], b.to()), 0);
            let sent: BTreeSet<u64> = order(rig, &a, 16).into_iter().collect();
            let got: BTreeSet<u64> = order(rig, &b, 16).into_iter().collect();
            let expected: BTreeSet<u64> = (round * 16..round * 16 + 16).collect();
            assert_eq!((sent, got), (expected.clone(), expected));
        }
    });
}

#[test]
fn all_of_this_on_newer_rdma_cores() {
    srd::on_newer_rdma_cores();
}
