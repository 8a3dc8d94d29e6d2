//! A reliable connection through unmodified libibverbs and libmlx5: every operation, and the rings' wrap.

mod rig;

use ibv_sys::*;
use rig::*;

const SIGNALED: u32 = IBV_SEND_SIGNALED;
const INLINE: u32 = IBV_SEND_INLINE;
const FENCE: u32 = IBV_SEND_FENCE;
const OK: ibv_wc_status = IBV_WC_SUCCESS;

#[test]
fn a_write_moves_exactly_its_bytes() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        a.memory.put(0, &[0xaa; 5000]);
        a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 4999, &b, 64));
        let wc = rig.expect(a.cq, 1, OK);
        assert_eq!((wc.opcode, wc.qp_num), (IBV_WC_RDMA_WRITE, a.qpn()));
        assert_eq!(b.memory.get(63, 1), [0]);
        assert_eq!(b.memory.get(64, 4999), [0xaa; 4999]);
        assert_eq!(b.memory.get(64 + 4999, 1), [0]);
        assert!(poll(b.cq).is_none(), "a write tells the peer nothing");
    });
}

#[test]
fn an_inline_write_needs_no_key() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        a.memory.put(0, b"inline bytes of this request");
        let mut send = a.request(1, IBV_WR_RDMA_WRITE, 0, 28, &b, 0);
        send.flags |= INLINE;
        send.pieces[0].2 = 0xdead;
        a.post(&send);
        rig.expect(a.cq, 1, OK);
        assert_eq!(b.memory.get(0, 28), b"inline bytes of this request");
    });
}

#[test]
fn pieces_are_gathered_and_scattered_in_order() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        a.memory.put(0, b"abc");
        a.memory.put(100, b"defgh");
        a.memory.put(200, b"ij");
        let mut send = a.request(1, IBV_WR_SEND, 0, 3, &b, 0);
        send.pieces.push((a.at(100), 5, a.lkey()));
        send.pieces.push((a.at(200), 2, a.lkey()));
        b.recv(7, &[(0, 4), (50, 1), (60, 100)]);
        a.post(&send);
        rig.expect(a.cq, 1, OK);
        let wc = rig.expect(b.cq, 7, OK);
        assert_eq!((wc.byte_len, wc.opcode, wc.src_qp), (10, IBV_WC_RECV, a.qpn()));
        let got = [b.memory.get(0, 4), b.memory.get(50, 1), b.memory.get(60, 5)].concat();
        assert_eq!(got, b"abcdefghij");
        let mut read = a.request(2, IBV_WR_RDMA_READ, 300, 2, &b, 0);
        read.pieces.push((a.at(310), 2, a.lkey()));
        a.post(&read);
        assert_eq!(rig.expect(a.cq, 2, OK).byte_len, 4);
        assert_eq!([a.memory.get(300, 2), a.memory.get(310, 2)].concat(), b"abcd");
    });
}

#[test]
fn immediate_data_arrives_with_sends_and_writes() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        a.memory.put(0, &[5; 100]);
        b.recv(7, &[(0, 100)]);
        b.recv(8, &[]);
        a.post(&a.request(1, IBV_WR_SEND_WITH_IMM, 0, 100, &b, 0));
        a.post(&a.request(2, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 50, &b, 1000));
        for (id, opcode, len) in [(7, IBV_WC_RECV, 100), (8, IBV_WC_RECV_RDMA_WITH_IMM, 50)] {
            let wc = rig.expect(b.cq, id, OK);
            assert_eq!((wc.opcode, wc.byte_len), (opcode, len));
            assert_ne!(wc.wc_flags & IBV_WC_WITH_IMM, 0);
            // SAFETY: the flag says that the union holds immediate data.
            assert_eq!(unsafe { wc.__bindgen_anon_1.imm_data }, 0x1122_3344u32.to_be());
        }
        assert_eq!(rig.expect(a.cq, 1, OK).opcode, IBV_WC_SEND);
        assert_eq!(rig.expect(a.cq, 2, OK).opcode, IBV_WC_RDMA_WRITE);
        assert_eq!(b.memory.get(1000, 50), [5; 50]);
    });
}

#[test]
fn empty_messages_arrive() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        b.recv(7, &[]);
        for (id, opcode) in [(1, IBV_WR_RDMA_WRITE), (2, IBV_WR_RDMA_READ), (3, IBV_WR_SEND)] {
            let mut send = a.request(id, opcode, 0, 0, &b, 0);
            send.pieces.clear();
            send.remote.1 = 0xdead;
            a.post(&send);
            rig.expect(a.cq, id, OK);
        }
        assert_eq!(rig.expect(b.cq, 7, OK).byte_len, 0);
    });
}

#[test]
fn atomics_answer_the_old_value() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        b.memory.put(128, &37u64.to_ne_bytes());
        let mut add = a.request(1, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, &b, 128);
        add.operands = (5, 0);
        a.post(&add);
        assert_eq!(rig.expect(a.cq, 1, OK).opcode, IBV_WC_FETCH_ADD);
        assert_eq!(a.memory.get(0, 8), 37u64.to_ne_bytes());
        assert_eq!(b.memory.get(128, 8), 42u64.to_ne_bytes());
        for (id, compare, after) in [(2, 41, 42u64), (3, 42, 99)] {
            let mut swap = a.request(id, IBV_WR_ATOMIC_CMP_AND_SWP, 8, 8, &b, 128);
            swap.operands = (compare, 99);
            a.post(&swap);
            assert_eq!(rig.expect(a.cq, id, OK).opcode, IBV_WC_COMP_SWAP);
            assert_eq!(a.memory.get(8, 8), 42u64.to_ne_bytes());
            assert_eq!(b.memory.get(128, 8), after.to_ne_bytes());
        }
    });
}

#[test]
fn a_fenced_write_sees_what_the_read_before_it_brought() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        for round in 0..20u8 {
            b.memory.put(0, &[round; 64]);
            let mut read = a.request(1, IBV_WR_RDMA_READ, 0, 64, &b, 0);
            read.flags = 0;
            let mut write = a.request(2, IBV_WR_RDMA_WRITE, 0, 64, &b, 512);
            write.flags |= FENCE;
            a.post(&read);
            a.post(&write);
            rig.expect(a.cq, 2, OK);
            assert_eq!(b.memory.get(512, 64), [round; 64]);
        }
    });
}

#[test]
fn more_reads_than_the_limit_wait_their_turn() {
    both(|rig| {
        let (a, b) = rig.pair(Shape { rd_atomic: 1, ..Shape::default() });
        b.memory.put(0, &(0..200).collect::<Vec<u8>>());
        (0..20).for_each(|i| a.post(&a.request(i as u64, IBV_WR_RDMA_READ, 1000 + i * 10, 10, &b, i * 10)));
        for i in 0..20 {
            rig.expect(a.cq, i, OK);
        }
        assert_eq!(a.memory.get(1000, 200), (0..200).collect::<Vec<u8>>());
    });
}

#[test]
fn only_signalled_requests_report() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        for i in 0..500 {
            let mut send = a.request(i, IBV_WR_RDMA_WRITE, 0, 8, &b, 0);
            send.flags = if i % 16 == 15 { SIGNALED } else { 0 };
            a.post(&send);
            if i % 16 == 15 {
                rig.expect(a.cq, i, OK);
            }
        }
        rig.settle();
        assert!(poll(a.cq).is_none());
    });
}

/// 2^17 operations in all over each depth, so that 16-bit counters and owner bits wrap.
fn wrap(rig: &mut Rig, depth: u32, operations: u64) {
    let shape = Shape { depth, cq_depth: depth, psn: 0x12_3456, ..Shape::default() };
    let (a, b) = rig.pair(shape);
    let mut posted = 0u64;
    let mut done = 0u64;
    while done < operations {
        while posted < operations && posted - done < u64::from(depth) {
            let to = (posted as usize % 512) * 8;
            a.memory.put(to, &posted.to_ne_bytes());
            let mut send = a.request(posted, IBV_WR_RDMA_WRITE, to, 8, &b, to);
            send.flags |= if posted.is_multiple_of(3) { INLINE } else { 0 };
            if a.try_post(&send) != 0 {
                break;
            }
            posted += 1;
        }
        assert!(posted > done, "the ring takes at least one");
        // In order, each with its own id: a wrong owner bit or counter would show here.
        rig.expect(a.cq, done, OK);
        done += 1;
    }
    let last = (operations - 1) as usize % 512 * 8;
    assert_eq!(b.memory.get(last, 8), (operations - 1).to_ne_bytes());
}

#[test]
fn rings_of_every_depth_wrap_under_steps() {
    with(softnic::Config::steps(3), |rig| {
        for depth in [1, 2, 3, 7, 16, 64, 256, 1024] {
            wrap(rig, depth, (1 << 17) / 8);
        }
    });
}

#[test]
fn rings_of_every_depth_wrap_under_the_thread() {
    with(softnic::Config::thread(), |rig| {
        for depth in [1024, 256, 64, 16] {
            wrap(rig, depth, (1 << 17) / 4);
        }
        for depth in [1, 2, 3, 7] {
            wrap(rig, depth, 1 << 9);
        }
    });
}

#[test]
fn one_ring_takes_2_to_the_17_operations() {
    with(softnic::Config::steps(4), |rig| wrap(rig, 128, 1 << 17));
}

#[test]
fn receives_wrap_too() {
    both(|rig| {
        let (a, b) = rig.pair(Shape { depth: 4, cq_depth: 16, ..Shape::default() });
        for i in 0..3000u64 {
            b.recv(i, &[(8, 8)]);
            a.memory.put(0, &i.to_ne_bytes());
            a.post(&a.request(i, IBV_WR_SEND, 0, 8, &b, 0));
            rig.expect(b.cq, i, OK);
            rig.expect(a.cq, i, OK);
            assert_eq!(b.memory.get(8, 8), i.to_ne_bytes());
        }
    });
}
