//! The struct of seed 000 on the software ConnectX: one test for each of A1 to A20, named after it, and the
//! seeds' calls as they are written.
#![allow(unsafe_code)]

use ibv_core::{
    AnyDomain, ErrorKind, IbvBuffer, IbvConfig, IbvDomain, IbvDomainImpl, IbvMemoryRegion,
    IbvMemoryRegionView, IbvQueuePair as QueuePair, IbvRemoteMemoryRegionView, IbvWc, PollTarget, PostError,
    Provider, QpState, WcOpcode, WcStatus,
};
use ibv_sys as sys;
use provider_mlx5::{IbvQueuePair, Mlx5Domain, Mlx5Provider, SeedDomain};
use rdmaxcel_sys as shim;
use softnic::drive::Step;
use std::{collections::HashSet, sync::atomic::Ordering::Relaxed};

mod common;
use common::{domain, dv_qp, nic, record, ring_word};

fn config() -> IbvConfig {
    let mut config = IbvConfig::default();
    (config.max_send_wr, config.max_recv_wr) = (16, 16);
    config
}

/// A queue pair connected to itself.
fn connected(domain: &IbvDomain<Mlx5Domain>) -> IbvQueuePair {
    let mut qp = IbvQueuePair::new(domain, config()).unwrap();
    let info = qp.get_qp_info().unwrap();
    qp.connect(&info).unwrap();
    qp
}

/// Two queue pairs connected to each other.
fn pair(domain: &IbvDomain<Mlx5Domain>) -> [IbvQueuePair; 2] {
    let mut both = [(); 2].map(|()| IbvQueuePair::new(domain, config()).unwrap());
    let infos = both.each_mut().map(|qp| qp.get_qp_info().unwrap());
    both[0].connect(&infos[1]).unwrap();
    both[1].connect(&infos[0]).unwrap();
    both
}

fn region<I: IbvDomainImpl>(domain: &IbvDomain<I>, fill: u8, len: usize) -> (IbvMemoryRegion<I>, IbvBuffer) {
    let region = domain.alloc(len).unwrap();
    region.write_at(0, &vec![fill; len]).unwrap();
    let buffer = IbvBuffer::from(&region);
    (region, buffer)
}

/// Takes one completion; there is one.
fn polled(qp: &mut IbvQueuePair, target: PollTarget) -> IbvWc {
    qp.poll_completion(target).unwrap().expect("a completion").expect("a success")
}

fn dv_cq(at: usize) -> sys::mlx5dv_cq {
    // SAFETY: the callers pass addresses of a live struct.
    unsafe { *(at as *const sys::mlx5dv_cq) }
}

#[test]
fn a1_queues_are_two_and_their_addresses_are_the_libraries() {
    let _nic = nic();
    let d = domain();
    let qp = connected(&d);
    assert!(qp.send_cq != 0 && qp.recv_cq != 0 && qp.send_cq != qp.recv_cq);
    // SAFETY: addresses of live verbs objects.
    let entries = [qp.send_cq, qp.recv_cq].map(|at| unsafe { (*(at as *const sys::ibv_cq)).cqe });
    assert!(entries.iter().all(|n| *n >= 15), "{entries:?}");
}

#[test]
fn a2_addresses_describe_the_rings_as_long_as_the_queue_pair_lives() {
    let _nic = nic();
    let d = domain();
    let qp = connected(&d);
    let qp = Box::new(qp);
    assert_eq!((dv_qp(&qp).sq.stride, dv_qp(&qp).sq.wqe_cnt >= 16), (64, true));
    assert!(!dv_qp(&qp).bf.reg.is_null() && !dv_qp(&qp).dbrec.is_null());
    let [send, recv] = [dv_cq(qp.dv_send_cq), dv_cq(qp.dv_recv_cq)];
    assert_ne!(send.cqn, recv.cqn);
    assert!(send.cqe_cnt >= 16 && recv.cqe_cnt >= 16 && !send.buf.is_null());
}

#[test]
fn a3_the_state_block_is_no_verbs_queue_pair_but_names_it() {
    let _nic = nic();
    let d = domain();
    let mut qp = connected(&d);
    // SAFETY: used while the struct lives.
    let block = unsafe { qp.as_ptr() };
    // SAFETY: as above.
    let (raw, number) = unsafe {
        let raw = shim::rdmaxcel_qp_get_ibv_qp(block).cast::<sys::ibv_qp>();
        (raw, (*raw).qp_num)
    };
    assert_ne!(raw.cast(), block);
    assert_eq!(number, qp.get_qp_info().unwrap().qp_num);
}

#[test]
fn a4_counters_start_at_zero_and_count() {
    let nic = nic();
    let d = domain();
    let mut qp = IbvQueuePair::new(&d, config()).unwrap();
    // SAFETY: used while the struct lives, and only read.
    let block = unsafe { &*qp.as_ptr() };
    let all = |b: &shim::rdmaxcel_qp| {
        [&b.send_wqe_idx, &b.send_db_idx, &b.send_cq_idx, &b.recv_wqe_idx, &b.recv_db_idx, &b.recv_cq_idx]
            .map(|c| c.load(Relaxed))
    };
    assert_eq!((all(block), block.rts_timestamp.load(Relaxed)), ([0; 6], u64::MAX));
    assert!(!block.send_cache.is_null() && !block.recv_cache.is_null());
    let info = qp.get_qp_info().unwrap();
    qp.recv(IbvBuffer::default(), IbvBuffer::default()).unwrap();
    assert_eq!(all(block), [0, 0, 0, 1, 0, 0], "not visible in RESET");
    qp.connect(&info).unwrap();
    assert_ne!(block.rts_timestamp.load(Relaxed), u64::MAX);
    let ((_l, l), (_r, r)) = (region(&d, 1, 8), region(&d, 2, 8));
    qp.enqueue_put(l.clone(), r.clone()).unwrap();
    assert_eq!(all(block), [1, 0, 0, 1, 1, 0]);
    qp.put_with_recv(l, r).unwrap();
    assert_eq!(all(block), [2, 2, 0, 1, 1, 0]);
    let mut nic = nic;
    nic.run();
    polled(&mut qp, PollTarget::Send);
    polled(&mut qp, PollTarget::Send);
    polled(&mut qp, PollTarget::Recv);
    assert_eq!((all(block), block.send_done_idx.load(Relaxed)), ([2, 2, 2, 1, 1, 1], 2));
}

#[test]
fn a5_dropping_destroys_queue_pair_then_queues_and_the_domain_outlives_both() {
    let nic = nic();
    let d = domain();
    let live = || nic.with(|h| (h.engine.qps.len(), h.engine.shared.cqs.iter().count()));
    let before = live();
    let qp = connected(&d);
    assert_eq!(live(), (before.0 + 1, before.1 + 2));
    drop(d);
    drop(qp);
    assert_eq!(live(), (0, 0), "queues are gone, which a live queue pair would have forbidden");
}

#[test]
fn a6_the_pointer_is_the_same_on_each_call_and_moves_with_nobody() {
    let _nic = nic();
    let d = domain();
    let qp = connected(&d);
    // SAFETY: only compared.
    let first = unsafe { qp.as_ptr() };
    let moved = Box::new(qp);
    // SAFETY: only compared.
    assert_eq!(unsafe { [moved.as_ptr(), moved.as_ptr()] }, [first; 2]);
}

#[test]
fn a7_new_starts_in_reset_and_leaves_nothing_behind_when_it_fails() {
    let nic = nic();
    let d = domain();
    assert_eq!(IbvQueuePair::new(&d, config()).unwrap().state().unwrap(), 0);
    let live = || nic.with(|h| (h.engine.qps.len(), h.engine.shared.cqs.iter().count()));
    let before = live();
    let mut bad = config();
    bad.max_send_sge = 33;
    assert_eq!(IbvQueuePair::new(&d, bad).unwrap_err().kind(), ErrorKind::InvalidConfig);
    let mut bad = config();
    bad.port_num = 9;
    IbvQueuePair::new(&d, bad).unwrap_err();
    assert_eq!(live(), before);
}

#[test]
fn a7_an_erased_domain_does_and_another_providers_does_not() {
    let _nic = nic();
    let device = Mlx5Provider.devices().unwrap().remove(0);
    let open = || Mlx5Provider.open(&device).unwrap();
    let erased = IbvDomain::new(AnyDomain::new(open()), device.clone());
    assert_eq!(IbvQueuePair::new(&erased, config()).unwrap().state().unwrap(), 0);
    let own = IbvDomain::new(SeedDomain(open()), device.clone());
    assert_eq!(IbvQueuePair::new(&own, config()).unwrap().state().unwrap(), 0);
    let mock = provider_mock::MockProvider::default();
    let info = mock.devices().unwrap().remove(0);
    let foreign = IbvDomain::new(mock.open(&info).unwrap(), info);
    let e = IbvQueuePair::new(&foreign, config()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ForeignHandle, "{e}");
}

#[test]
fn a8_the_endpoint_is_there_in_reset_and_stable() {
    let _nic = nic();
    let d = domain();
    let mut with_psn = config();
    with_psn.psn = Some(0x12_3456);
    let mut qp = IbvQueuePair::new(&d, with_psn).unwrap();
    let info = qp.get_qp_info().unwrap();
    assert_eq!(info.psn, 0x12_3456);
    assert!(info.gid.is_some() && info.lid != 0 && info.qp_num != 0);
    qp.connect(&info).unwrap();
    let later = qp.get_qp_info().unwrap();
    assert_eq!((later.qp_num, later.psn, later.lid), (info.qp_num, info.psn, info.lid));
}

#[test]
fn a9_the_state_is_the_devices_not_a_copy() {
    let nic = nic();
    let d = domain();
    let mut qp = connected(&d);
    assert_eq!(qp.state().unwrap(), 3);
    QueuePair::enter_error(&mut qp).unwrap();
    assert_eq!(qp.state().unwrap(), 6);
    drop(nic);
}

#[test]
fn a10_a_second_connect_is_an_error_and_a_failed_one_names_its_transition() {
    let _nic = nic();
    let d = domain();
    let mut qp = connected(&d);
    let info = qp.get_qp_info().unwrap();
    assert_eq!(qp.connect(&info).unwrap_err().kind(), ErrorKind::InvalidState);
    assert_eq!(qp.state().unwrap(), 3);
    let mut qp = IbvQueuePair::new(&d, config()).unwrap();
    let mut bad = qp.get_qp_info().unwrap();
    bad.qp_num = 1 << 24;
    let e = qp.connect(&bad).unwrap_err().to_string();
    assert!(e.contains("RTR") || e.contains("16777216") || e.contains("0x1000000"), "{e}");
}

#[test]
fn a11_a_receive_absorbs_a_put_with_immediate_and_a_full_queue_is_an_error() {
    let mut nic = nic();
    let d = domain();
    let mut qp = connected(&d);
    let ((_l, l), (r_mem, r)) = (region(&d, 3, 8), region(&d, 0, 8));
    let first = qp.recv(l.clone(), r.clone()).unwrap();
    let second = qp.recv(IbvBuffer::default(), r.clone()).unwrap();
    assert_eq!(second, first + 1);
    qp.put_with_recv(l.clone(), r.clone()).unwrap();
    nic.run();
    let wc = polled(&mut qp, PollTarget::Recv);
    assert_eq!((wc.wr_id, wc.opcode, wc.imm()), (first, WcOpcode::RECV_RDMA_WITH_IMM, Some(0)));
    assert_eq!(r_mem.to_vec(), [3; 8]);
    for _ in 0..15 {
        qp.recv(l.clone(), r.clone()).unwrap();
    }
    assert_eq!(qp.recv(l, r).unwrap_err().kind(), ErrorKind::Post);
}

#[test]
fn a12_put_with_recv_checks_sizes_and_takes_one_id() {
    let mut nic = nic();
    let d = domain();
    let mut qp = connected(&d);
    let ((_l, l), (_r, r)) = (region(&d, 3, 16), region(&d, 0, 8));
    let e = qp.put_with_recv(l.clone(), r.clone()).unwrap_err();
    assert!(e.to_string().contains("16") && e.to_string().contains('8'), "{e}");
    qp.recv(IbvBuffer::default(), IbvBuffer::default()).unwrap();
    let ids = qp.put_with_recv(r.clone(), l).unwrap();
    nic.run();
    assert_eq!(ids, [polled(&mut qp, PollTarget::Send).wr_id]);
    // Without a receive the peer is not ready; the error comes as a completion.
    assert_eq!(ring_word(&qp, 0, 0) >> 32 & 0xff, 9);
}

#[test]
fn a13_put_moves_at_once_and_splits_what_one_request_can_not_carry() {
    let mut nic = nic();
    let d = domain();
    let mut qp = connected(&d);
    let ((_l, l), (r_mem, r)) = (region(&d, 5, 100), region(&d, 0, 100));
    let ids = qp.put(l.clone(), r.clone()).unwrap();
    nic.run();
    assert_eq!((r_mem.to_vec(), ids), (vec![5; 100], vec![polled(&mut qp, PollTarget::Send).wr_id]));
    let short = IbvBuffer { size: 99, ..r.clone() };
    let e = qp.put(l.clone(), short).unwrap_err();
    assert!(e.to_string().contains("(99)") && e.to_string().contains("(100)"), "{e}");
    assert_eq!(nic.step(), Step::Idle);
    // A transfer of more than 4 GiB: no length is cut to 32 bits, and no piece is longer than 1 GiB.
    let huge = |b: &IbvBuffer| IbvBuffer { size: (5 << 30) + 8, ..b.clone() };
    let ids = qp.enqueue_put(huge(&l), huge(&r)).unwrap();
    assert!(ids.is_sorted() && ids.len() >= 6, "{ids:?}");
    let lengths: Vec<u64> = (0..ids.len()).map(|i| ring_word(&qp, 1 + i, 4) >> 32).collect();
    assert_eq!(lengths.iter().sum::<u64>(), (5 << 30) + 8);
    assert!(lengths.iter().all(|n| (1..=1 << 30).contains(n)), "{lengths:?}");
    let ahead: Vec<u64> = (0..ids.len()).map(|i| ring_word(&qp, 1 + i, 2) - r.addr as u64).collect();
    assert_eq!(ahead[1], lengths[0], "each behind the one before");
}

#[test]
fn a14_get_moves_the_remote_size_and_refuses_more_than_fits() {
    let mut nic = nic();
    let d = domain();
    let mut qp = connected(&d);
    let ((l_mem, l), (_r, r)) = (region(&d, 1, 8), region(&d, 9, 4));
    let ids = qp.get(l.clone(), r.clone()).unwrap();
    nic.run();
    let wc = polled(&mut qp, PollTarget::Send);
    assert_eq!((ids, wc.opcode, wc.byte_len), (vec![wc.wr_id], WcOpcode::RDMA_READ, 4));
    assert_eq!(l_mem.to_vec(), [9, 9, 9, 9, 1, 1, 1, 1]);
    let e = qp.get(r, l).unwrap_err();
    assert!(e.to_string().contains("local buffer size (4)"), "{e}");
}

#[test]
fn a15_enqueued_requests_are_invisible_and_a_full_ring_overwrites_nothing() {
    let mut nic = nic();
    let d = domain();
    let mut qp = connected(&d);
    let ((_l, l), (r_mem, r)) = (region(&d, 1, 8), region(&d, 0, 8));
    let mut ids = qp.enqueue_get(r.clone(), l.clone()).unwrap();
    for _ in 0..15 {
        ids.extend(qp.enqueue_put(l.clone(), r.clone()).unwrap());
    }
    assert_eq!((record(&qp), nic.step(), r_mem.to_vec()), ([0, 0], Step::Idle, vec![0; 8]));
    let before: Vec<u64> = (0..16 * 8).map(|w| ring_word(&qp, w / 8, w % 8)).collect();
    assert_eq!(qp.enqueue_put(l.clone(), r.clone()).unwrap_err().kind(), ErrorKind::Post);
    let after: Vec<u64> = (0..16 * 8).map(|w| ring_word(&qp, w / 8, w % 8)).collect();
    assert_eq!(before, after);
    qp.ring_doorbell().unwrap();
    nic.run();
    let done: Vec<u64> = (0..16).map(|_| polled(&mut qp, PollTarget::Send).wr_id).collect();
    assert_eq!((done, r_mem.to_vec()), (ids, vec![1; 8]));
    assert_eq!(nic.take_breaches(), []);
}

#[test]
fn a16_the_doorbell_executes_all_and_nothing_twice() {
    let mut nic = nic();
    let d = domain();
    let mut qp = connected(&d);
    qp.ring_doorbell().unwrap();
    assert_eq!((nic.step(), record(&qp)), (Step::Idle, [0, 0]));
    let ((_l, l), (_r, r)) = (region(&d, 1, 8), region(&d, 0, 8));
    (0..3).for_each(|_| assert_eq!(qp.enqueue_put(l.clone(), r.clone()).unwrap().len(), 1));
    qp.ring_doorbell().unwrap();
    qp.ring_doorbell().unwrap();
    nic.run();
    assert_eq!(record(&qp), [0, 3]);
    (0..3).for_each(|_| assert!(polled(&mut qp, PollTarget::Send).is_valid()));
    assert!(qp.poll_completion(PollTarget::Send).unwrap().is_none());
}

#[test]
fn a17_poll_completion_has_four_outcomes_and_the_right_ids_for_enqueued_requests() {
    let mut nic = nic();
    let d = domain();
    let [mut qp, _peer] = pair(&d);
    assert!(qp.poll_completion(PollTarget::Send).unwrap().is_none());
    let ((_l, l), (_r, r)) = (region(&d, 1, 8), region(&d, 0, 8));
    let enqueued =
        [qp.enqueue_put(l.clone(), r.clone()).unwrap(), qp.enqueue_get(r.clone(), l.clone()).unwrap()];
    let bad = qp.put(l.clone(), IbvBuffer { rkey: r.rkey ^ 0xff00, ..r.clone() }).unwrap();
    let flushed = qp.put(l.clone(), r.clone()).unwrap();
    nic.run();
    for ids in enqueued {
        assert_eq!(ids, [polled(&mut qp, PollTarget::Send).wr_id]);
    }
    let e = qp.poll_completion(PollTarget::Send).unwrap().unwrap().unwrap_err();
    assert_eq!((e.wr_id, e.status), (bad[0], WcStatus::REM_ACCESS_ERR));
    let e = qp.poll_completion(PollTarget::Send).unwrap().unwrap().unwrap_err();
    assert_eq!((e.wr_id, e.is_wr_flush_err()), (flushed[0], true));
    // An entry that was never asked for: the queue can not be polled any more.
    let mut qp = connected(&d);
    nic.inject(softnic::fault::Fault::PoisonCqe { nth: 0 });
    qp.put(l, r).unwrap();
    nic.run();
    assert!(qp.poll_completion(PollTarget::Send).is_err());
    assert!(qp.poll_completion(PollTarget::Send).is_err(), "it stays so");
}

#[test]
fn a18_debug_reads_no_device_memory_and_drop_is_the_structs() {
    let _nic = nic();
    let d = domain();
    let mut qp = connected(&d);
    let text = format!("{qp:?}");
    assert!(text.contains("send_cq") && text.contains("dv_recv_cq"), "{text}");
    // Whatever the fields say, nothing follows them.
    qp.dv_qp = 8;
    assert!(format!("{qp:?}").contains("dv_qp: 8"));
    assert!(std::mem::needs_drop::<IbvQueuePair>());
}

#[test]
fn a19_the_lifecycle_in_its_order_and_no_operation_before_connect() {
    let mut nic = nic();
    let d = domain();
    let ((_l, l), (r_mem, r)) = (region(&d, 7, 8), region(&d, 0, 8));
    let mut a = IbvQueuePair::new(&d, config()).unwrap();
    let mut b = IbvQueuePair::new(&d, config()).unwrap();
    for early in
        [a.put(l.clone(), r.clone()), a.get(l.clone(), r.clone()), a.enqueue_put(l.clone(), r.clone())]
    {
        let e = early.unwrap_err();
        assert!(e.to_string().contains(&PostError::NotConnected.to_string()), "{e}");
    }
    let [ia, ib] = [a.get_qp_info().unwrap(), b.get_qp_info().unwrap()];
    a.connect(&ib).unwrap();
    b.connect(&ia).unwrap();
    let ids = a.put(l, r).unwrap();
    nic.run();
    assert_eq!((ids, r_mem.to_vec()), (vec![polled(&mut a, PollTarget::Send).wr_id], vec![7; 8]));
    assert!(b.poll_completion(PollTarget::Send).unwrap().is_none());
}

/// Seed 001's caller: generic, remote destination first.
fn by_trait<Q: QueuePair>(
    qp: &mut Q,
    remote: IbvRemoteMemoryRegionView,
    local: IbvMemoryRegionView<'_>,
) -> [Vec<u64>; 2] {
    [qp.put(remote, local).unwrap(), qp.get(local, remote).unwrap()]
}

#[test]
fn a20_the_trait_takes_remote_first_and_the_struct_local_first() {
    let mut nic = nic();
    let d = domain();
    let mut qp = connected(&d);
    let ((l_mem, l), (r_mem, r)) = (region(&d, 7, 8), region(&d, 0, 8));
    let [put, get] = by_trait(&mut qp, r_mem.remote(), l_mem.view());
    nic.run();
    let done = [polled(&mut qp, PollTarget::Send), polled(&mut qp, PollTarget::Send)];
    assert_eq!([put, get].concat(), done.map(|wc| wc.wr_id));
    assert_eq!(done.map(|wc| wc.opcode), [WcOpcode::RDMA_WRITE, WcOpcode::RDMA_READ]);
    assert_eq!(r_mem.to_vec(), [7; 8]);
    l_mem.write_at(0, &[8; 8]).unwrap();
    qp.put(l, r).unwrap();
    nic.run();
    assert_eq!(r_mem.to_vec(), [8; 8], "local first");
}

#[test]
fn a20_the_traits_new_makes_the_struct() {
    let _nic = nic();
    let device = Mlx5Provider.devices().unwrap().remove(0);
    let d = IbvDomain::new(SeedDomain(Mlx5Provider.open(&device).unwrap()), device);
    let cq = d.create_cq(64).unwrap();
    // SAFETY: both queues are of this domain.
    let made = unsafe { <IbvQueuePair as QueuePair>::new(&d, config(), cq.clone(), cq) };
    let mut qp: IbvQueuePair = made.unwrap();
    assert_eq!(QueuePair::state(&mut qp).unwrap(), QpState::RESET);
    assert_eq!(qp.send_cq, qp.recv_cq);
}

#[test]
fn garbage_in_the_public_fields_changes_nothing() {
    let mut nic = nic();
    let d = domain();
    let mut qp = connected(&d);
    (qp.send_cq, qp.recv_cq) = (!0, 1);
    (qp.dv_qp, qp.dv_send_cq, qp.dv_recv_cq) = (3, !0 - 7, 0);
    let ((_l, l), (r_mem, r)) = (region(&d, 6, 8), region(&d, 0, 8));
    qp.recv(l.clone(), r.clone()).unwrap();
    let ids = [qp.enqueue_put(l.clone(), r.clone()).unwrap(), qp.put_with_recv(l, r).unwrap()].concat();
    nic.run();
    let done: Vec<u64> = (0..2).map(|_| polled(&mut qp, PollTarget::Send).wr_id).collect();
    assert_eq!((done, r_mem.to_vec()), (ids, vec![6; 8]));
    assert!(polled(&mut qp, PollTarget::Recv).imm().is_some());
    assert_eq!(qp.state().unwrap(), 3);
}

/// Ids never repeat across the index's wrap, and nothing but sixteen bits of it reaches the control segment.
#[test]
fn indices_wrap_without_touching_the_opcode_modifier() {
    let mut nic = nic();
    let d = domain();
    let mut qp = connected(&d);
    let ((_l, l), (_r, r)) = (region(&d, 1, 8), region(&d, 0, 8));
    let mut seen = HashSet::new();
    for _ in 0..(66_000 / 16) {
        for _ in 0..16 {
            seen.extend(qp.enqueue_put(l.clone(), r.clone()).unwrap());
        }
        qp.ring_doorbell().unwrap();
        nic.run();
        nic.take_trace();
        (0..16).for_each(|_| assert!(polled(&mut qp, PollTarget::Send).is_valid()));
    }
    assert_eq!(seen.len(), 66_000 / 16 * 16);
    let mask = dv_qp(&qp).sq.wqe_cnt as usize - 1;
    let last = 66_000 / 16 * 16 - 1;
    let control = ring_word(&qp, last & mask, 0);
    assert_eq!((control >> 56, control >> 40 & 0xffff, control >> 32 & 0xff), (0, last as u64 & 0xffff, 8));
    assert_eq!(record(&qp)[1], (last as u32 + 1) & 0xffff);
    assert_eq!(nic.take_breaches(), []);
}
