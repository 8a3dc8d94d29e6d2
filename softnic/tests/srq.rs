//! Shared receive queues through unmodified libibverbs and libmlx5: who takes what, limits, events, and their end.

mod rig;

use ibv_sys::*;
use rig::*;

const OK: ibv_wc_status = IBV_WC_SUCCESS;

fn attributes(rig: &Rig, srq: *mut ibv_srq) -> (u32, u32, u32) {
    // SAFETY: the queue is alive; an all-zero structure is valid.
    unsafe {
        let mut attr: ibv_srq_attr = std::mem::zeroed();
        assert_eq!(rig.v().ibv_query_srq(srq, &mut attr), 0);
        (attr.max_wr, attr.max_sge, attr.srq_limit)
    }
}

fn set_limit(rig: &Rig, srq: *mut ibv_srq, limit: u32) -> i32 {
    // SAFETY: the queue is alive; an all-zero structure is valid.
    unsafe {
        let mut attr: ibv_srq_attr = std::mem::zeroed();
        attr.srq_limit = limit;
        rig.v().ibv_modify_srq(srq, &mut attr, IBV_SRQ_LIMIT as i32)
    }
}

/// Posts a shared receive into a part of an end's buffer.
fn recv(srq: *mut ibv_srq, id: u64, end: &End, at: usize, len: u32) {
    assert_eq!(recv_shared(srq, id, (end.at(at), len, end.lkey())), 0);
}

/// Two senders, and two receivers that share a queue.
fn two_pairs(rig: &mut Rig, srq: *mut ibv_srq, shape: Shape) -> [(End, End); 2] {
    [(), ()].map(|()| {
        let (a, b) = (rig.end(shape), rig.end(Shape { srq, ..shape }));
        rig.connect(&a, &b, shape);
        (a, b)
    })
}

#[test]
fn receives_go_to_whoever_needs_one_next() {
    both(|rig| {
        let srq = rig.srq(32, 2);
        let pairs = two_pairs(rig, srq, Shape::default());
        let home = &pairs[0].1;
        for id in 0..6 {
            recv(srq, id, home, id as usize * 8, 8);
        }
        for (i, id) in [0usize, 1, 1, 0, 1, 0].into_iter().zip(0u64..) {
            let (a, b) = &pairs[i];
            a.memory.put(0, &[id as u8 + 1; 8]);
            a.post(&a.request(id, IBV_WR_SEND, 0, 8, b, 0));
            let wc = rig.expect(b.cq, id, OK);
            assert_eq!((wc.qp_num, wc.src_qp), (b.qpn(), a.qpn()));
            rig.expect(a.cq, id, OK);
            assert_eq!(home.memory.get(id as usize * 8, 8), [id as u8 + 1; 8]);
        }
        drop(pairs);
        assert_eq!(rig.destroy_srq(srq), 0);
    });
}

#[test]
fn an_empty_queue_is_waited_for_and_serves_immediate_data_too() {
    both(|rig| {
        let srq = rig.srq(8, 1);
        let [(a, b), other] = two_pairs(rig, srq, Shape { rnr_retry: 7, ..Shape::default() });
        a.post(&a.request(1, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, &b, 0));
        for _ in 0..100 {
            rig.work();
        }
        assert!(poll(a.cq).is_none());
        recv(srq, 70, &b, 0, 8);
        assert_eq!(rig.expect(b.cq, 70, OK).opcode, IBV_WC_RECV_RDMA_WITH_IMM);
        rig.expect(a.cq, 1, OK);
        drop((a, b, other));
        assert_eq!(rig.destroy_srq(srq), 0);
    });
}

#[test]
fn the_list_survives_many_rounds_in_any_order() {
    both(|rig| {
        let srq = rig.srq(7, 1);
        let pairs = two_pairs(rig, srq, Shape { depth: 8, ..Shape::default() });
        let home = &pairs[0].1;
        let post = |id: u64| recv_shared(srq, id, (home.at(0), 8, home.lkey()));
        let mut posted = 0u64;
        while post(posted) == 0 {
            posted += 1;
        }
        assert!(posted >= 7, "{posted} receives");
        let mut open: std::collections::BTreeSet<u64> = (0..posted).collect();
        for round in 0..1000u64 {
            // Both send before either completion is polled: entries come back in another order than they were taken in.
            for (a, b) in &pairs {
                a.post(&a.request(round, IBV_WR_SEND, 0, 8, b, 0));
            }
            for (a, b) in pairs.iter().rev() {
                let wc = rig.wait(b.cq);
                assert!(wc.status == OK && open.remove(&wc.wr_id), "round {round}: {}", wc.wr_id);
                rig.expect(a.cq, round, OK);
            }
            for id in posted..posted + 2 {
                assert_eq!(post(id), 0, "round {round}");
                open.insert(id);
            }
            posted += 2;
        }
        drop(pairs);
        assert_eq!(rig.destroy_srq(srq), 0);
    });
}

#[test]
fn the_limit_is_told_once_when_it_is_reached() {
    both(|rig| {
        let srq = rig.srq(16, 1);
        let [(a, b), other] = two_pairs(rig, srq, Shape::default());
        for id in 0..4 {
            recv(srq, id, &b, 0, 8);
        }
        assert_eq!(set_limit(rig, srq, 3), 0);
        assert_eq!(attributes(rig, srq).2, 3);
        for id in 0..4 {
            a.post(&a.request(id, IBV_WR_SEND, 0, 8, &b, 0));
            rig.expect(a.cq, id, OK);
            rig.expect(b.cq, id, OK);
            match id {
                1 => rig.expect_event(IBV_EVENT_SRQ_LIMIT_REACHED, srq as u64),
                _ => assert_eq!(rig.event(), None, "after {id}"),
            }
        }
        assert_eq!(attributes(rig, srq).2, 0, "the limit works once");
        assert_eq!(set_limit(rig, srq, 2), 0);
        rig.expect_event(IBV_EVENT_SRQ_LIMIT_REACHED, srq as u64);
        assert_eq!(set_limit(rig, srq, 1 << 20), libc::EINVAL);
        drop((a, b, other));
        assert_eq!(rig.destroy_srq(srq), 0);
    });
}

#[test]
fn a_failed_queue_pair_takes_no_receive_along_and_says_that_it_is_done() {
    both(|rig| {
        let srq = rig.srq(16, 1);
        let [(a, b), (c, d)] = two_pairs(rig, srq, Shape::default());
        for id in 70..73 {
            recv(srq, id, &b, 0, 8);
        }
        let mut bad = a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0);
        bad.remote.1 ^= 1;
        a.post(&bad);
        rig.expect(a.cq, 1, IBV_WC_REM_ACCESS_ERR);
        let mut events = [rig.until("an event", |rig| rig.event()), rig.until("an event", |rig| rig.event())];
        events.sort_by_key(|e| e.0.0);
        let qp = b.qp as u64;
        assert_eq!(events, [(IBV_EVENT_QP_ACCESS_ERR, qp), (IBV_EVENT_QP_LAST_WQE_REACHED, qp)]);
        assert!(poll(b.cq).is_none(), "shared receives are not flushed");
        c.post(&c.request(2, IBV_WR_SEND, 0, 8, &d, 0));
        rig.expect(d.cq, 70, OK);
        // A message that does not fit takes its receive.
        c.post(&c.request(3, IBV_WR_SEND, 0, 9, &d, 0));
        rig.expect(d.cq, 71, IBV_WC_LOC_LEN_ERR);
        rig.expect_event(IBV_EVENT_QP_LAST_WQE_REACHED, d.qp as u64);
        drop((a, b, c, d));
        assert_eq!(rig.destroy_srq(srq), 0);
    });
}

#[test]
fn datagrams_share_receives() {
    both(|rig| {
        let srq = rig.srq(16, 1);
        let shape = Shape { kind: IBV_QPT_UD, ..Shape::default() };
        let [(a, b), (c, d)] = two_pairs(rig, srq, shape);
        let ah = rig.ah(|_| {});
        for (id, from, to) in [(1, &a, &b), (2, &c, &d), (3, &a, &d)] {
            recv(srq, id, &b, 0, 48);
            from.memory.put(0, &[id as u8; 8]);
            assert_eq!(from.try_post_to(&from.request(id, IBV_WR_SEND, 0, 8, to, 0), ah, to.qpn(), QKEY), 0);
            rig.expect(to.cq, id, OK);
            assert_eq!(b.memory.get(40, 8), [id as u8; 8]);
        }
        rig.destroy_ah(ah);
        drop((a, b, c, d));
        assert_eq!(rig.destroy_srq(srq), 0);
    });
}

#[test]
fn queues_in_use_and_impossible_sizes_are_refused() {
    let Some(mut rig) = Rig::start(softnic::Config::steps(1)) else { return };
    let srq = rig.srq(100, 3);
    let (max_wr, max_sge, limit) = attributes(&rig, srq);
    assert!(max_wr >= 100 && max_sge >= 3 && limit == 0, "{max_wr} {max_sge} {limit}");
    let end = rig.end(Shape { srq, ..Shape::default() });
    assert_eq!(rig.destroy_srq(srq), libc::EBUSY);
    drop(end);
    // SAFETY: the domain is alive; the calls must refuse.
    unsafe {
        let mut init: ibv_srq_init_attr = std::mem::zeroed();
        for (max_wr, max_sge) in [(1 << 20, 1), (8, 1000)] {
            (init.attr.max_wr, init.attr.max_sge) = (max_wr, max_sge);
            assert!(rig.v().ibv_create_srq(rig.pd, &mut init).is_null(), "{max_wr} {max_sge}");
        }
        let mut attr: ibv_srq_attr = std::mem::zeroed();
        attr.max_wr = 200;
        assert_ne!(rig.v().ibv_modify_srq(srq, &mut attr, IBV_SRQ_MAX_WR as i32), 0, "no resizing");
        assert_eq!(rig.v().ibv_dealloc_pd(rig.pd), libc::EBUSY);
    }
    assert_eq!(rig.destroy_srq(srq), 0);
}
