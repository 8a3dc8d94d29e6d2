//! The transport by its rules, on both schedules: bytes, ranges, keys, receives, retries, flushes.
mod common;
use common::*;
use ibv_core::*;
use provider_mock::*;
use std::time::Duration;

/// Runs `case` on an ordered fabric and on shuffled ones.
fn on_each(case: impl Fn(&Fabric)) {
    case(&ordered());
    for seed in 0..4 {
        case(&unordered(seed, 3));
    }
}

#[test]
fn puts_and_gets_move_exactly_their_bytes() {
    on_each(|fabric| {
        let [mut a, b] = pair(fabric);
        for len in [0, 1, 7, 8, 9, 64, 255] {
            let (l, r) = (a.alloc(1, 256), b.alloc(2, 258));
            let ids = a.qp.put(r.remote().slice(1, len).unwrap(), l.view().slice(0, len).unwrap()).unwrap();
            fabric.run();
            let wcs = a.poll();
            assert_eq!((wcs.len(), wcs[0].wr_id(), wcs[0].status), (1, ids.first, WcStatus::SUCCESS));
            let mut want = vec![2; 258];
            want[1..1 + len].fill(1);
            assert_eq!(r.to_vec(), want, "put of {len}");

            r.write_at(0, &[3; 258]).unwrap();
            let _ids = a.qp.get(l.view(), r.remote().slice(2, len).unwrap()).unwrap();
            fabric.run();
            let wcs = a.poll();
            assert_eq!((wcs[0].status, wcs[0].byte_len), (WcStatus::SUCCESS, len as u32));
            let mut want = vec![1; 256];
            want[..len].fill(3);
            assert_eq!(l.to_vec(), want, "get of {len}");
        }
    });
}

#[test]
fn ranges_are_gathered_and_scattered_in_order() {
    on_each(|fabric| {
        let [mut a, mut b] = pair(fabric);
        let (l, r) = (a.alloc(0, 16), b.alloc(0, 16));
        l.write_at(0, &(0..16).collect::<Vec<u8>>()).unwrap();
        let part = |at, n| l.view().slice(at, n).unwrap();
        let src = [part(12, 3), part(0, 0), part(5, 1), part(0, 4)];
        let _ids = a.qp.post(&Request::put(r.remote(), &src)).unwrap();
        let into = [r.view().slice(15, 1).unwrap(), r.view().slice(8, 7).unwrap()];
        b.qp.post_recv(&into).unwrap();
        let _ids = a.qp.post(&Request::send_with_imm(&src, 0xabcd)).unwrap();
        fabric.run();
        assert_eq!(r.to_vec()[..8], [12, 13, 14, 5, 0, 1, 2, 3]);
        assert_eq!(r.to_vec()[8..], [13, 14, 5, 0, 1, 2, 3, 12]);
        let recv = b.poll();
        assert_eq!((recv[0].opcode, recv[0].byte_len, recv[0].imm()), (WcOpcode::RECV, 8, Some(0xabcd)));
        assert_eq!(statuses(&a.poll()), [WcStatus::SUCCESS; 2]);
    });
}

#[test]
fn inline_bytes_are_taken_when_built() {
    on_each(|fabric| {
        let [mut a, b] = pair(fabric);
        let r = b.alloc(0, 8);
        let mut bytes = [7u8; 5];
        let mut batch = a.qp.batch();
        let _ids = batch.push(&Request::new(Op::Write, r.remote(), Payload::Inline(&bytes))).unwrap();
        bytes.fill(9);
        batch.ring().unwrap();
        fabric.run();
        assert_eq!((r.to_vec(), bytes), (vec![7, 7, 7, 7, 7, 0, 0, 0], [9; 5]));
    });
}

#[test]
fn a_put_with_immediate_takes_one_receive_and_none_of_its_room() {
    on_each(|fabric| {
        let [mut a, mut b] = pair(fabric);
        let (l, r, room) = (a.alloc(5, 8), b.alloc(0, 8), b.alloc(1, 8));
        let ids = [b.qp.post_recv(&[room.view()]).unwrap(), b.qp.post_recv(&[]).unwrap()];
        let _ids = a.qp.put_with_imm(r.remote(), l.view(), 0x0102_0304).unwrap();
        fabric.run();
        let wcs = b.poll();
        assert_eq!((wcs.len(), wcs[0].wr_id(), wcs[0].imm()), (1, ids[0], Some(0x0102_0304)));
        assert_eq!((wcs[0].opcode, wcs[0].byte_len), (WcOpcode::RECV_RDMA_WITH_IMM, 8));
        assert_eq!((r.to_vec(), room.to_vec()), (vec![5; 8], vec![1; 8]));
        assert_eq!(b.qp.free_recv_slots(), 15);
    });
}

#[test]
fn atomics_return_what_was_there() {
    on_each(|fabric| {
        let [mut a, b] = pair(fabric);
        let (old, target) = (a.alloc(0, 24), b.alloc(0, 16));
        target.write_at(8, &u64::MAX.to_ne_bytes()).unwrap();
        let at = target.remote().slice(8, 8).unwrap();
        let word = |i: usize| old.view().slice(8 * i, 8).unwrap();
        for (i, req) in [
            Request::fetch_add(at, &[word(0)], 6),
            Request::compare_swap(at, &[word(1)], 5, 77),
            Request::compare_swap(at, &[word(2)], 5, 88),
        ]
        .into_iter()
        .enumerate()
        {
            let _ids = a.qp.post(&req).unwrap();
            fabric.run();
            assert_eq!(statuses(&a.poll()), [WcStatus::SUCCESS], "{i}");
        }
        let words = |m: &Region| -> Vec<u64> {
            m.to_vec().chunks_exact(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect()
        };
        assert_eq!(words(&old), [u64::MAX, 5, 77]);
        assert_eq!(words(&target), [0, 77]);
    });
}

#[test]
fn what_a_remote_key_does_not_cover_is_refused_and_untouched() {
    type Aim = fn(IbvRemoteMemoryRegionView) -> IbvRemoteMemoryRegionView;
    let aims: [(&str, Aim); 6] = [
        ("past the end", |r| IbvRemoteMemoryRegionView { addr: r.addr + 9, ..r }),
        ("before the start", |r| IbvRemoteMemoryRegionView { addr: r.addr - 1, ..r }),
        ("at the end", |r| IbvRemoteMemoryRegionView { addr: r.addr + 16, ..r }),
        ("around the address space", |r| IbvRemoteMemoryRegionView { addr: u64::MAX - 3, ..r }),
        ("wrong key", |r| IbvRemoteMemoryRegionView { rkey: r.rkey ^ 0x100, ..r }),
        ("wrong generation", |r| IbvRemoteMemoryRegionView { rkey: r.rkey ^ 2, ..r }),
    ];
    on_each(|fabric| {
        for (what, aim) in aims {
            for get in [false, true] {
                let [mut a, b] = pair(fabric);
                let (l, r) = (a.alloc(1, 8), b.alloc(2, 16));
                let target = IbvRemoteMemoryRegionView { len: 8, ..aim(r.remote()) };
                let _ids = if get { a.qp.get(l.view(), target) } else { a.qp.put(target, l.view()) }.unwrap();
                fabric.run();
                assert_eq!(statuses(&a.poll()), [WcStatus::REM_ACCESS_ERR], "{what}");
                assert_eq!((l.to_vec(), r.to_vec()), (vec![1; 8], vec![2; 16]), "{what}");
                assert_eq!(a.qp.state().unwrap(), QpState::ERR);
            }
        }
        assert_eq!(fabric.counters().refused, 12);
    });
}

#[test]
fn rights_and_domains_are_held_against_the_peer_and_against_oneself() {
    on_each(|fabric| {
        let read_only = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let [mut a, b] = pair(fabric);
        let (l, r) = (a.alloc(1, 8), b.d.register_with(HeapMemory::zeroed(8).unwrap(), read_only).unwrap());
        let _ids = a.qp.put(r.remote(), l.view()).unwrap();
        fabric.run();
        assert_eq!((statuses(&a.poll()), r.to_vec()), (vec![WcStatus::REM_ACCESS_ERR], vec![0; 8]));

        // The peer's own second domain, on the same device.
        let [mut a, b] = pair(fabric);
        let other = open(fabric, 1).alloc(8).unwrap();
        let _ids = a.qp.put(other.remote(), l.view()).unwrap();
        fabric.run();
        // `l` is of the first pair's domain, which is refused first.
        assert_eq!(statuses(&a.poll()), [WcStatus::LOC_PROT_ERR]);
        drop(b);
        let [mut a, _b] = pair(fabric);
        let l = a.alloc(1, 8);
        let _ids = a.qp.put(other.remote(), l.view()).unwrap();
        fabric.run();
        assert_eq!((statuses(&a.poll()), other.to_vec()), (vec![WcStatus::REM_ACCESS_ERR], vec![0; 8]));

        // A local region that may only be read does not take a get.
        let [mut a, b] = pair(fabric);
        let (l, r) =
            (a.d.register_with(HeapMemory::zeroed(8).unwrap(), Access::empty()).unwrap(), b.alloc(1, 8));
        let _ids = a.qp.get(l.view(), r.remote()).unwrap();
        fabric.run();
        assert_eq!((statuses(&a.poll()), l.to_vec()), (vec![WcStatus::LOC_PROT_ERR], vec![0; 8]));
    });
}

#[test]
fn a_region_gone_at_the_peer_is_a_late_access_there() {
    on_each(|fabric| {
        let [mut a, b] = pair(fabric);
        let (l, gone) = (a.alloc(1, 8), b.alloc(0, 8).remote());
        // Its place in the key table is taken again, by another generation of the key.
        let next = b.alloc(2, 8);
        let _ids = a.qp.put(gone, l.view()).unwrap();
        fabric.run();
        assert_eq!(statuses(&a.poll()), [WcStatus::REM_ACCESS_ERR]);
        assert_eq!(next.to_vec(), [2; 8]);
        assert_eq!(fabric.device_counters(1).unwrap().late_refused, 1);
    });
}

#[test]
fn one_failure_is_the_root_cause_and_the_rest_flushes_each_once() {
    on_each(|fabric| {
        let [mut a, mut b] = pair(fabric);
        let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
        for _ in 0..3 {
            b.qp.post_recv(&[r.view()]).unwrap();
            a.qp.post_recv(&[]).unwrap();
        }
        let wrong = IbvRemoteMemoryRegionView { rkey: r.remote().rkey ^ 2, ..r.remote() };
        let mut batch = a.qp.batch();
        let ids: Vec<u64> = (0..8)
            .map(|i| batch.put(if i == 3 { wrong } else { r.remote() }, l.view()).unwrap().first)
            .collect();
        batch.ring().unwrap();
        fabric.run();
        let wcs = a.poll();
        let mut seen: Vec<u64> = wcs.iter().map(IbvWc::wr_id).filter(|id| ids.contains(id)).collect();
        seen.sort_unstable();
        assert_eq!(seen, ids, "each once");
        let roots: Vec<_> =
            wcs.iter().filter(|w| !matches!(w.status, WcStatus::SUCCESS | WcStatus::WR_FLUSH_ERR)).collect();
        assert_eq!((roots.len(), roots[0].wr_id(), roots[0].status), (1, ids[3], WcStatus::REM_ACCESS_ERR));
        assert_eq!(wcs.len(), 11, "the three receives flush too");
        assert_eq!((a.qp.state().unwrap(), a.qp.first_error().unwrap().wr_id), (QpState::ERR, ids[3]));
        assert_eq!((a.qp.free_slots(), a.qp.free_recv_slots()), (16, 16));
        if fabric.config().schedule == Schedule::InOrder {
            let flushed = |w: &&IbvWc| w.status == WcStatus::WR_FLUSH_ERR;
            assert!(wcs[..3].iter().all(IbvWc::is_valid) && wcs[4..].iter().filter(flushed).count() == 7);
            let theirs = b.poll();
            assert_eq!(statuses(&theirs), [WcStatus::WR_FLUSH_ERR; 3], "the responder fails too");
        }
    });
}

#[test]
fn posts_after_the_error_flush_at_once_unsignaled_ones_too() {
    let fabric = ordered();
    let [mut a, b] = pair(&fabric);
    let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
    a.qp.queue_pair().enter_error().unwrap();
    let src = [l.view()];
    let _ids = a.qp.post(&Request::put(r.remote(), &src).unsignaled()).unwrap();
    a.qp.post_recv(&[]).unwrap();
    assert_eq!(statuses(&a.poll()), [WcStatus::WR_FLUSH_ERR; 2]);
    assert_eq!(r.to_vec(), [0; 8]);
}

#[test]
fn the_queue_fills_to_its_depth_and_the_errors_have_their_own_names() {
    on_each(|fabric| {
        let [mut a, b] = pair(fabric);
        let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
        let many = [l.view(); 5];
        assert_eq!(a.qp.post(&Request::put(r.remote(), &many)), Err(PostError::TooManySge));
        let long = Request::new(Op::Write, r.remote(), Payload::Inline(&[0; 65]));
        assert_eq!(a.qp.post(&long), Err(PostError::InlineTooLong));
        for _ in 0..16 {
            let _ids = a.qp.put(r.remote(), l.view()).unwrap();
        }
        assert_eq!(a.qp.put(r.remote(), l.view()), Err(PostError::QueueFull));
        assert_eq!((a.qp.free_slots(), fabric.counters().requests), (0, 16));
        fabric.run();
        assert_eq!(statuses(&a.poll()), [WcStatus::SUCCESS; 16]);
        assert!(a.qp.put(r.remote(), l.view()).is_ok());
    });
}

#[test]
fn a_long_transfer_becomes_as_many_requests_as_were_charged() {
    for schedule in [Schedule::InOrder, Schedule::Unordered { seed: 5, chunk: 16 }] {
        let config =
            FabricConfig { schedule, drive: Drive::Manual, max_msg_size: 64, ..FabricConfig::default() };
        let fabric = Fabric::new(config);
        let [mut a, b] = pair(&fabric);
        for len in [63, 64, 65, 128, 129, 1000] {
            let (l, r) = (a.alloc(0, len), b.alloc(0, len + 1));
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            l.write_at(0, &bytes).unwrap();
            let before = fabric.counters().requests;
            let ids = a.qp.put(r.remote(), l.view()).unwrap();
            assert_eq!(u64::from(ids.count), (len as u64).div_ceil(64));
            assert_eq!(fabric.counters().requests - before, u64::from(ids.count));
            fabric.run();
            assert_eq!(a.poll().len(), ids.count as usize);
            assert_eq!((&r.to_vec()[..len], r.to_vec()[len]), (&bytes[..], 0));
        }
    }
}

#[test]
fn a_send_longer_than_its_receive_fails_both_ends_each_with_its_own_words() {
    on_each(|fabric| {
        let [mut a, mut b] = pair(fabric);
        let (l, r) = (a.alloc(1, 9), b.alloc(0, 16));
        let id = b.qp.post_recv(&[r.view().slice(0, 8).unwrap()]).unwrap();
        let _ids = a.qp.send(l.view()).unwrap();
        fabric.run();
        assert_eq!(statuses(&a.poll()), [WcStatus::REM_INV_REQ_ERR]);
        let wcs = b.poll();
        assert_eq!((wcs[0].wr_id(), wcs[0].status), (id, WcStatus::LOC_LEN_ERR));
        assert_eq!((r.to_vec(), b.qp.state().unwrap()), (vec![0; 16], QpState::ERR));
    });
}

#[test]
fn a_receive_whose_own_range_does_not_hold_is_the_peers_operation_error() {
    on_each(|fabric| {
        let [mut a, mut b] = pair(fabric);
        let l = a.alloc(1, 8);
        let gone = IbvMemoryRegionView::from_raw_parts(0x1000, 8, 0x700);
        b.qp.post_recv(&[gone]).unwrap();
        let _ids = a.qp.send(l.view()).unwrap();
        fabric.run();
        assert_eq!(
            (statuses(&a.poll()), statuses(&b.poll())),
            (vec![WcStatus::REM_OP_ERR], vec![WcStatus::LOC_PROT_ERR])
        );
    });
}

/// Virtual time that a send takes to fail against a peer without a receive, and its status.
fn not_ready(fabric: &Fabric, retries: u8, timer: u8) -> (Duration, Vec<WcStatus>, u64) {
    let [mut a, b] = pair_with(fabric, |_, c| (c.rnr_retry, c.min_rnr_timer) = (retries, timer));
    let (l, start) = (a.alloc(1, 8), fabric.now());
    let _ids = a.qp.send(l.view()).unwrap();
    let naks = fabric.counters().rnr_naks;
    fabric.run();
    drop(b);
    (fabric.now() - start, statuses(&a.poll()), fabric.counters().rnr_naks - naks)
}

#[test]
fn a_peer_without_a_receive_ends_in_an_error_after_exactly_the_retries_allowed() {
    on_each(|fabric| {
        let exceeded = vec![WcStatus::RNR_RETRY_EXC_ERR];
        assert_eq!(not_ready(fabric, 0, 12), (Duration::ZERO, exceeded.clone(), 1));
        assert_eq!(not_ready(fabric, 3, 12), (Duration::from_micros(3 * 640), exceeded.clone(), 4));
        assert_eq!(not_ready(fabric, 1, 0), (Duration::from_micros(655_360), exceeded, 2));
    });
}

#[test]
fn retrying_for_ever_waits_without_turning_and_ends_with_the_receive() {
    on_each(|fabric| {
        let [mut a, mut b] = pair_with(fabric, |_, c| c.rnr_retry = 7);
        let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
        let _ids = a.qp.send(l.view()).unwrap();
        assert!(fabric.run() < 4, "it is parked, not spinning");
        assert_eq!((a.poll().len(), fabric.counters().rnr_naks), (0, 1));
        b.qp.post_recv(&[r.view()]).unwrap();
        fabric.run();
        assert_eq!((statuses(&a.poll()), r.to_vec()), (vec![WcStatus::SUCCESS], vec![1; 8]));
    });
}

#[test]
fn a_receive_posted_in_time_saves_the_send() {
    on_each(|fabric| {
        let [mut a, mut b] = pair_with(fabric, |_, c| c.rnr_retry = 2);
        let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
        let _ids = a.qp.send(l.view()).unwrap();
        fabric.advance(Duration::from_micros(700));
        assert_eq!((a.poll().len(), fabric.counters().rnr_naks), (0, 2));
        b.qp.post_recv(&[r.view()]).unwrap();
        fabric.advance(Duration::from_micros(640));
        assert_eq!((statuses(&a.poll()), r.to_vec()), (vec![WcStatus::SUCCESS], vec![1; 8]));
    });
}

#[test]
fn a_peer_that_is_gone_is_a_retry_error_at_the_time_the_specification_says() {
    on_each(|fabric| {
        let [mut a, b] = pair_with(fabric, |_, c| (c.retry_cnt, c.timeout) = (2, 10));
        let (l, r, start) = (a.alloc(1, 8), b.alloc(0, 8).remote(), fabric.now());
        drop(b);
        let _ids = a.qp.put(r, l.view()).unwrap();
        fabric.run();
        assert_eq!(statuses(&a.poll()), [WcStatus::RETRY_EXC_ERR]);
        assert_eq!(fabric.now() - start, 3 * Duration::from_nanos(4096 << 10));
        let c = fabric.device_counters(0).unwrap();
        assert_eq!((c.drops, c.retries), (3, 2));
    });
}

#[test]
fn without_a_timeout_a_lost_message_hangs_until_the_queue_pair_is_closed() {
    on_each(|fabric| {
        let [mut a, b] = pair_with(fabric, |_, c| c.timeout = 0);
        let (l, r) = (a.alloc(1, 8), b.alloc(0, 8).remote());
        drop(b);
        let _ids = a.qp.put(r, l.view()).unwrap();
        fabric.run();
        assert_eq!((a.poll().len(), a.qp.in_flight(), fabric.counters().drops), (0, 1, 1));
        let mut closing = a.qp.start_close().unwrap();
        assert_eq!(statuses(&drain(&mut a.poller)), [WcStatus::WR_FLUSH_ERR]);
        assert!(closing.is_drained());
    });
}

#[test]
fn ends_that_do_not_match_drop_visibly() {
    on_each(|fabric| {
        type Break = fn(&mut IbvQpInfo);
        let wrong: Break =
            if fabric.config().schedule == Schedule::InOrder { |i| i.psn ^= 1 } else { |i| i.qkey ^= 1 };
        let nobody: Break = |i| i.qp_num = 77;
        for damage in [wrong, nobody] {
            let (d, e) = (open(fabric, 0), open(fabric, 1));
            let (cq, cqe) = (d.create_cq(8).unwrap(), e.create_cq(8).unwrap());
            let mut a = d.create_queue_pair(config(4, 0), &cq, &cq).unwrap();
            let mut b = e.create_queue_pair(config(4, 0), &cqe, &cqe).unwrap();
            let (ia, mut ib) = (a.get_qp_info().unwrap(), b.get_qp_info().unwrap());
            damage(&mut ib);
            let (mut a, _b) = (a.connect(&ib).unwrap(), b.connect(&ia).unwrap());
            let (l, r) = (d.alloc(8).unwrap(), e.alloc(8).unwrap());
            let before = fabric.counters().drops;
            let _ids = a.put(r.remote(), l.view()).unwrap();
            fabric.run();
            assert_eq!(statuses(&drain(&mut cq.poller().unwrap())), [WcStatus::RETRY_EXC_ERR]);
            assert_eq!(fabric.counters().drops - before, 8);
        }
    });
}

#[test]
fn a_device_that_does_not_reach_itself_loses_what_it_sends_there_and_counts_it() {
    let fabric =
        Fabric::new(FabricConfig { loopback: false, drive: Drive::Manual, ..FabricConfig::default() });
    let d = domain(&fabric);
    assert!(!d.caps().loopback);
    let cq = d.create_cq(4).unwrap();
    let (mut q, r) = (looped(&d, &cq, 4), d.alloc(8).unwrap());
    let _ids = q.put(r.remote(), r.view()).unwrap();
    fabric.run();
    assert_eq!(statuses(&drain(&mut cq.poller().unwrap())), [WcStatus::RETRY_EXC_ERR]);
    assert_eq!(fabric.counters().drops, 8);
    let [mut a, b] = pair(&fabric);
    let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
    let _ids = a.qp.put(r.remote(), l.view()).unwrap();
    fabric.run();
    assert_eq!(r.to_vec(), [1; 8], "two devices reach each other");
}

#[test]
fn more_gets_than_may_be_outstanding_queue_and_do_not_fail() {
    on_each(|fabric| {
        let [mut a, b] = pair_with(fabric, |_, c| (c.max_rd_atomic, c.max_dest_rd_atomic) = (2, 2));
        let (l, r) = (a.alloc(0, 64), b.alloc(9, 64));
        let mut batch = a.qp.batch();
        for i in 0..8 {
            let _ids =
                batch.get(l.view().slice(8 * i, 8).unwrap(), r.remote().slice(8 * i, 8).unwrap()).unwrap();
        }
        batch.ring().unwrap();
        fabric.run();
        assert_eq!((statuses(&a.poll()), l.to_vec()), (vec![WcStatus::SUCCESS; 8], vec![9; 64]));
    });
}

#[test]
fn no_gets_at_all_were_agreed_on_is_an_error_of_ones_own() {
    on_each(|fabric| {
        let [mut a, b] = pair_with(fabric, |i, c| {
            if i == 1 {
                c.max_dest_rd_atomic = 0
            }
        });
        assert_eq!(a.qp.config().max_rd_atomic, 0);
        let (l, r) = (a.alloc(0, 8), b.alloc(9, 8));
        let _ids = a.qp.get(l.view(), r.remote()).unwrap();
        fabric.run();
        assert_eq!((statuses(&a.poll()), l.to_vec()), (vec![WcStatus::LOC_QP_OP_ERR], vec![0; 8]));
    });
}
