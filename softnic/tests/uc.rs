//! Unreliable connections through unmodified libibverbs and libmlx5: what arrives, and that nobody hears of what does not.

mod rig;

use ibv_sys::*;
use rig::*;
use softnic::fault::Fault;

const OK: ibv_wc_status = IBV_WC_SUCCESS;

fn shape() -> Shape {
    Shape { kind: IBV_QPT_UC, ..Shape::default() }
}

#[test]
fn writes_and_sends_move_their_bytes() {
    both(|rig| {
        let (a, b) = rig.pair(shape());
        a.memory.put(0, &[0xaa; 5000]);
        a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 5000, &b, 64));
        assert_eq!(rig.expect(a.cq, 1, OK).opcode, IBV_WC_RDMA_WRITE);
        b.recv(70, &[(10_000, 100)]);
        b.recv(71, &[]);
        a.post(&a.request(2, IBV_WR_SEND, 0, 100, &b, 0));
        a.post(&a.request(3, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, &b, 20_000));
        rig.expect(a.cq, 2, OK);
        rig.expect(a.cq, 3, OK);
        assert_eq!(rig.expect(b.cq, 70, OK).byte_len, 100);
        let wc = rig.expect(b.cq, 71, OK);
        assert_eq!((wc.opcode, wc.byte_len), (IBV_WC_RECV_RDMA_WITH_IMM, 8));
        assert_eq!(b.memory.get(64, 5000), [0xaa; 5000]);
        assert_eq!(b.memory.get(10_000, 100), [0xaa; 100]);
    });
}

#[test]
fn a_lost_message_is_lost_and_the_next_arrives() {
    both(|rig| {
        let (a, b) = rig.pair(shape());
        b.recv(70, &[(0, 8)]);
        rig.nic.inject(Fault::DropRequest { nth: 0 });
        for (id, byte) in [(1, 1u8), (2, 2)] {
            a.memory.put(0, &[byte; 8]);
            a.post(&a.request(id, IBV_WR_SEND, 0, 8, &b, 0));
            rig.expect(a.cq, id, OK);
        }
        rig.expect(b.cq, 70, OK);
        assert_eq!(b.memory.get(0, 8), [2; 8]);
        assert_eq!((a.state(), b.state()), (IBV_QPS_RTS, IBV_QPS_RTS));
    });
}

#[test]
fn no_receive_and_no_permission_are_silence() {
    both(|rig| {
        let (a, b) = rig.pair(Shape { qp_access: LOCAL, ..shape() });
        a.memory.put(0, &[5; 8]);
        a.post(&a.request(1, IBV_WR_SEND, 0, 8, &b, 0));
        rig.expect(a.cq, 1, OK);
        a.post(&a.request(2, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
        rig.expect(a.cq, 2, OK);
        rig.settle();
        b.recv(70, &[(100, 4)]);
        a.post(&a.request(3, IBV_WR_SEND, 0, 8, &b, 0));
        rig.expect(a.cq, 3, OK);
        rig.settle();
        assert!(poll(b.cq).is_none(), "8 bytes do not fit 4");
        assert_eq!(b.memory.get(0, 8), [0; 8]);
        a.post(&a.request(4, IBV_WR_SEND, 0, 4, &b, 0));
        rig.expect(b.cq, 70, OK);
        rig.expect(a.cq, 4, OK);
        assert_eq!((a.state(), b.state()), (IBV_QPS_RTS, IBV_QPS_RTS));
    });
}

#[test]
fn a_dead_peer_is_not_noticed() {
    both(|rig| {
        let (a, mut b) = rig.pair(shape());
        b.destroy_qp();
        for id in 0..10 {
            a.post(&a.request(id, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
            rig.expect(a.cq, id, OK);
        }
    });
}

#[test]
fn local_errors_stop_the_send_queue_alone() {
    both(|rig| {
        let (a, b) = rig.pair(shape());
        a.recv(80, &[(1000, 100)]);
        let mut bad = a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0);
        bad.pieces[0].2 ^= 1;
        a.post(&bad);
        a.post(&a.request(2, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
        rig.expect(a.cq, 1, IBV_WC_LOC_PROT_ERR);
        rig.expect(a.cq, 2, IBV_WC_WR_FLUSH_ERR);
        assert_eq!(a.state(), IBV_QPS_SQE);
        b.post(&b.request(3, IBV_WR_SEND, 0, 8, &a, 0));
        rig.expect(a.cq, 80, OK);
        rig.expect(b.cq, 3, OK);
    });
}

#[test]
fn only_signalled_messages_report_and_rings_wrap() {
    both(|rig| {
        let (a, b) = rig.pair(Shape { depth: 4, ..shape() });
        for i in 0..2000u64 {
            b.recv(i, &[(8, 8)]);
            a.memory.put(0, &i.to_ne_bytes());
            let mut send = a.request(i, IBV_WR_SEND, 0, 8, &b, 0);
            send.flags = if i % 3 == 2 { IBV_SEND_SIGNALED } else { 0 };
            a.post(&send);
            rig.expect(b.cq, i, OK);
            assert_eq!(b.memory.get(8, 8), i.to_ne_bytes());
            if i % 3 == 2 {
                rig.expect(a.cq, i, OK);
            }
        }
    });
}
