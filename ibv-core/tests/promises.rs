//! What core promises whatever the provider does, on the toy provider of `ring/`: chunks, credits,
//! refusals, and what is left after each.
mod ring;
use ibv_core::*;
use ring::{Faults, NONE, RingDomain, depths, domain, drain, looped};
use std::{mem, thread};

const GIB: usize = 1 << 30;

/// A view of memory that does not exist; the toy provider touches none.
fn nowhere(len: usize) -> (IbvRemoteMemoryRegionView, IbvMemoryRegionView<'static>) {
    (IbvRemoteMemoryRegionView { addr: 0, len, rkey: 2 }, IbvMemoryRegionView::from_raw_parts(0x1000, len, 1))
}

#[test]
fn half_a_transfer_is_never_rung() {
    let d = domain(RingDomain::with(Faults { refuse: 2, ..NONE }));
    let cq = d.create_cq(8).unwrap();
    let mut q = looped(&d, &cq, depths(4, 0));
    let (dst, long) = nowhere(3 * GIB);
    let mut batch = q.batch();
    let first = batch.put(dst, long.slice(0, 8).unwrap()).unwrap();
    assert_eq!(batch.put(dst, long), Err(PostError::Device(5)));
    assert_eq!(batch.ring(), Err(PostError::Device(5)), "the first request went with it, and says so");
    assert_eq!((q.free_slots(), q.in_flight()), (4, 0));
    let mut poller = cq.poller().unwrap();
    assert!(drain(&mut poller).is_empty());
    assert_eq!(q.put(dst, long).unwrap(), WrIds { count: 3, ..first });
    assert_eq!(drain(&mut poller).len(), 3);
}

#[test]
fn a_refused_doorbell_forgets_the_batch_and_the_next_one_starts_afresh() {
    let d = domain(RingDomain::with(Faults { refuse_ring: 0, ..NONE }));
    let cq = d.create_cq(8).unwrap();
    let mut q = looped(&d, &cq, depths(4, 0));
    let (dst, src) = nowhere(8);
    let mut batch = q.batch();
    let lost = batch.put(dst, src).unwrap();
    assert_eq!(batch.ring(), Err(PostError::Device(11)));
    assert_eq!((q.free_slots(), q.in_flight()), (4, 0));
    assert_eq!(q.put(dst, src).unwrap(), lost, "the id was never used");
    assert_eq!(drain(&mut cq.poller().unwrap()).len(), 1);
}

#[test]
fn a_transfer_costs_one_credit_and_yields_one_id_for_each_chunk() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(16).unwrap();
    let (mut q, mut poller) = (looped(&d, &cq, depths(16, 0)), cq.poller().unwrap());
    for (len, chunks) in [
        (0, 1),
        (1, 1),
        (GIB, 1),
        (GIB + 1, 2),
        ((1 << 31) - 1, 2),
        (1 << 31, 2),
        ((1 << 32) - 1, 4),
        ((1 << 32) + 1, 5),
        (16 * GIB, 16),
    ] {
        let (remote, local) = nowhere(len);
        for get in [false, true] {
            let ids = if get { q.get(local, remote) } else { q.put(remote, local) }.unwrap();
            assert_eq!((ids.count, q.free_slots()), (chunks, 16 - chunks), "{len} bytes");
            let done = drain(&mut poller);
            assert_eq!(done.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), Vec::from(ids), "{len} bytes");
            assert_eq!(q.free_slots(), 16);
        }
        let moved: u64 = {
            let _ids = q.get(local, remote).unwrap();
            drain(&mut poller).iter().map(|wc| u64::from(wc.byte_len)).sum()
        };
        assert_eq!(moved, len as u64);
    }
    let (remote, local) = nowhere(16 * GIB + 1);
    assert_eq!(q.put(remote, local), Err(PostError::QueueFull), "17 chunks never fit 16 slots");
    assert_eq!(q.free_slots(), 16);
}

#[test]
fn a_run_of_unsignaled_requests_stays_shorter_than_the_queue_and_returns_with_the_next_signaled_one() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(4).unwrap();
    let (mut q, mut poller) = (looped(&d, &cq, depths(4, 0)), cq.poller().unwrap());
    let (remote, local) = nowhere(8);
    let src = [local];
    let silent = Request::put(remote, &src).unsignaled();
    for _ in 0..3 {
        let _ids = q.post(&silent).unwrap();
    }
    assert_eq!(q.post(&silent), Err(PostError::NeedsSignal));
    assert_eq!((q.free_slots(), q.in_flight()), (1, 3));
    assert!(drain(&mut poller).is_empty(), "nobody reported");
    let last = q.put(remote, local).unwrap();
    assert_eq!(q.post(&silent), Err(PostError::QueueFull));
    assert_eq!(drain(&mut poller).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [last.first]);
    assert_eq!((q.free_slots(), q.in_flight()), (4, 0));
    // A dropped batch does not lengthen the run.
    let mut batch = q.batch();
    for _ in 0..3 {
        let _ids = batch.push(&silent).unwrap();
    }
    drop(batch);
    for _ in 0..3 {
        let _ids = q.post(&silent).unwrap();
    }
}

/// Requests of one range take the short way: the device gets them as they are, whatever they are, and silent ones
/// do not report.
#[test]
fn pushed_requests_of_one_range_reach_the_device_as_they_are_and_report_if_asked_to() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(32).unwrap();
    let (mut q, mut poller) = (looped(&d, &cq, depths(16, 0)), cq.poller().unwrap());
    let (remote, local) = nowhere(8);
    let src = [local];
    use WcOpcode as O;
    let kinds = [
        (Request::put(remote, &src), O::RDMA_WRITE),
        (Request::get(&src, remote), O::RDMA_READ),
        (Request::put_with_imm(remote, &src, 3), O::RDMA_WRITE),
        (Request::send(&src), O::SEND),
        // A send ignores the remote side, even one that is too short.
        (Request::new(Op::Send, remote.slice(0, 1).unwrap(), Payload::Sges(&src)), O::SEND),
    ];
    for (request, opcode) in kinds {
        let mut batch = q.batch();
        let silent = batch.push(&request.unsignaled()).unwrap();
        let loud = batch.push(&request).unwrap();
        assert_eq!((silent.count, loud), (1, WrIds { first: silent.first + 1, count: 1 }));
        batch.ring().unwrap();
        assert_eq!((q.free_slots(), q.in_flight()), (14, 2), "{opcode:?}");
        let at = (silent.first & 0xff) as usize;
        let wqes = [at, at + 1].map(|i| q.queue_pair().ring.wqes[i]);
        let flags = wqes.map(|wqe| (wqe[1], wqe[6], wqe[7] >> 32, wqe[7] & 0xffff_ffff));
        let built = |signaled: u64, id: u64| (signaled << 3, id, u64::from(opcode.0), 8);
        assert_eq!(flags, [built(0, silent.first), built(1, loud.first)]);
        assert_eq!(
            drain(&mut poller).iter().map(|wc| (wc.wr_id, wc.opcode)).collect::<Vec<_>>(),
            [(loud.first, opcode)]
        );
        assert_eq!(q.free_slots(), 16);
    }
}

/// Where the short way ends: each limit by one byte, and a device that lacks the operation.
#[test]
fn pushed_requests_of_one_range_are_refused_by_the_byte() {
    let mut imp = RingDomain::default();
    (imp.caps.max_send_size, imp.caps.read) = (100, Support::Absent);
    let d = domain(imp);
    let cq = d.create_cq(8).unwrap();
    let (mut q, mut poller) = (looped(&d, &cq, depths(4, 0)), cq.poller().unwrap());
    let (remote, local) = nowhere(101);
    let (long, fits) = ([local], [local.slice(0, 100).unwrap()]);
    let small = remote.slice(0, 99).unwrap();
    let mut batch = q.batch();
    for silent in [false, true] {
        let mut push = |r: Request<'_>| batch.push(&if silent { r.unsignaled() } else { r });
        assert_eq!(push(Request::send(&long)), Err(PostError::MessageTooLong));
        assert_eq!(push(Request::put(small, &fits)), Err(PostError::OutOfBounds));
        assert_eq!(push(Request::get(&fits, small)), Err(PostError::Unsupported));
    }
    let ids = [Request::send(&fits), Request::put(remote, &long)].map(|r| batch.push(&r).unwrap().first);
    batch.ring().unwrap();
    assert_eq!(
        drain(&mut poller).iter().map(|wc| (wc.wr_id, wc.byte_len)).collect::<Vec<_>>(),
        [(ids[0], 100), (ids[1], 101)]
    );
    assert_eq!(q.free_slots(), 4);
}

#[test]
fn unordered_completions_forbid_silence_and_return_one_credit_each() {
    let mut imp = RingDomain::default();
    imp.caps.completions_in_order = false;
    let d = domain(imp);
    let cq = d.create_cq(4).unwrap();
    let (mut q, mut poller) = (looped(&d, &cq, depths(4, 0)), cq.poller().unwrap());
    let (remote, local) = nowhere(8);
    let src = [local];
    assert_eq!(q.post(&Request::put(remote, &src).unsignaled()), Err(PostError::Unsupported));
    let mut batch = q.batch();
    for _ in 0..4 {
        let _ids = batch.put(remote, local).unwrap();
    }
    batch.ring().unwrap();
    let mut one = [IbvWc::default()];
    for free in 1..=4 {
        assert_eq!(poller.poll(&mut one), Ok(1));
        assert_eq!(q.free_slots(), free);
    }
}

#[test]
fn posting_needs_a_connected_queue_pair() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(8).unwrap();
    let mut early = d.create_queue_pair(depths(4, 4), &cq, &cq).unwrap();
    let (remote, local) = nowhere(8);
    let e = early.queue_pair().put(remote, local).unwrap_err();
    assert_eq!(e.post_error(), Some(PostError::NotConnected));
    assert!(early.post_recv(&[]).is_ok(), "receives may wait for the peer");
    let me = early.get_qp_info().unwrap();
    let mut q = early.connect(&me).unwrap();
    let again = q.queue_pair().connect(&me).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::InvalidState);
    assert!(q.put(remote, local).is_ok());
}

#[test]
fn a_refused_peer_leaves_the_queue_pair_ready_for_another() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(8).unwrap();
    let mut q = d.create_queue_pair(depths(4, 4), &cq, &cq).unwrap();
    let me = q.get_qp_info().unwrap();
    let (mut q, e) = q.connect(&IbvQpInfo::new(Transport::RC, 5)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Incompatible);
    assert!(e.to_string().contains("RC") && e.to_string().contains("transport 0xc0"), "{e}");
    assert_eq!(q.state().unwrap(), QpState::RESET);
    assert!(q.connect(&me).is_ok());
}

#[test]
fn nothing_is_posted_once_closing_has_begun() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(8).unwrap();
    let mut q = looped(&d, &cq, depths(4, 4));
    let (remote, local) = nowhere(8);
    let src = [local];
    let _ids = q.post(&Request::put(remote, &src).unsignaled()).unwrap();
    q.post_recv(&[]).unwrap();
    let mut poller = cq.poller().unwrap();
    let mut closing = q.start_close().unwrap();
    assert_eq!(closing.state().unwrap(), QpState::ERR);
    let mut flushed = Vec::new();
    for _ in 0..10 {
        if closing.is_drained() {
            break;
        }
        flushed.extend(drain(&mut poller));
    }
    assert!(closing.is_drained(), "the marker behind the unsignaled request flushes");
    assert!(flushed.iter().all(|wc| wc.status == WcStatus::WR_FLUSH_ERR));
    assert_eq!((flushed.len(), closing.finish()), (2, Closed::Drained));
}

#[test]
fn a_batch_that_was_leaked_is_never_rung() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(8).unwrap();
    let mut q = looped(&d, &cq, depths(4, 0));
    let (remote, local) = nowhere(8);
    let mut batch = q.batch();
    let leaked = batch.put(remote, local).unwrap();
    mem::forget(batch);
    assert_eq!(q.put(remote, local).unwrap(), leaked);
    assert_eq!(drain(&mut cq.poller().unwrap()).len(), 1);
    // Not by the tier without batches either.
    let mut batch = q.batch();
    let _ids = batch.put(remote, local).unwrap();
    mem::forget(batch);
    assert_eq!(q.queue_pair().put(remote, local).unwrap().len(), 1);
    assert_eq!(drain(&mut cq.poller().unwrap()).len(), 1);
}

#[test]
fn an_id_that_answers_nothing_is_corrupt() {
    // The receive queue's route, one that nobody has, an id too far ahead, one long gone.
    for bits in [2 << 48, 1 << 63, 4, 1 << 47] {
        let d = domain(RingDomain::with(Faults { wr_id: bits, ..NONE }));
        let cq = d.create_cq(8).unwrap();
        let mut q = looped(&d, &cq, depths(4, 0));
        let (remote, local) = nowhere(8);
        let posted = q.put(remote, local).unwrap();
        let mut out = [IbvWc::default(); 4];
        let e = cq.poller().unwrap().poll(&mut out).unwrap_err();
        assert_eq!(e, PollCompletionError::Corrupt(posted.first ^ bits));
        assert!(e.to_string().contains(&format!("{:#x}", posted.first ^ bits)), "{e}");
        assert_eq!(q.free_slots(), 3, "no credit was invented");
    }
}

#[test]
fn a_provider_that_returns_more_than_it_was_asked_for_is_corrupt() {
    let d = domain(RingDomain::with(Faults { too_many: 1, ..NONE }));
    let cq = d.create_cq(8).unwrap();
    let mut q = looped(&d, &cq, depths(4, 0));
    let (remote, local) = nowhere(8);
    let _ids = q.put(remote, local).unwrap();
    let e = cq.poller().unwrap().poll(&mut [IbvWc::default()]).unwrap_err();
    assert_eq!(e, PollCompletionError::Corrupt(2));
    assert_eq!(
        cq.poller().unwrap().poll(&mut []),
        Err(PollCompletionError::Corrupt(1)),
        "even where nothing was asked for"
    );
}

#[test]
fn errors_of_the_convenience_tier_name_both_sizes() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(64).unwrap();
    let mut q = looped(&d, &cq, depths(2, 1));
    let (remote, local) = nowhere(100);
    let says = |e: Error, verb, code, words: &[&str]| {
        assert_eq!((e.verb(), e.post_error()), (verb, Some(code)), "{e}");
        for word in words {
            assert!(e.to_string().contains(word), "{e} does not say {word}");
        }
    };
    let qp = q.queue_pair();
    let short = remote.slice(0, 60).unwrap();
    says(qp.put(short, local).unwrap_err(), "put", PostError::OutOfBounds, &["(60)", "(100)"]);
    let short = local.slice(0, 61).unwrap();
    says(qp.get(short, remote).unwrap_err(), "get", PostError::OutOfBounds, &["(61)", "(100)"]);
    let (far, long) = nowhere(3 * GIB);
    let full = &["2 of 2 slots free", "3 needed"];
    says(qp.put(far, long).unwrap_err(), "put", PostError::QueueFull, full);
    let e = post::recv_explained(qp, &[local; 2]).unwrap_err();
    says(e, "post_recv", PostError::TooManySge, &["2 ranges of at most 1"]);
    post::recv_explained(qp, &[local]).unwrap();
    let e = post::recv_explained(qp, &[local]).unwrap_err();
    says(e, "post_recv", PostError::QueueFull, &["0 of 1 receives free"]);
    let request = Request::new(Op::Write, remote, Payload::Inline(b"x"));
    let e = post::enqueue_explained(qp, "put", &request).unwrap_err();
    says(e, "put", PostError::InlineTooLong, &["1 bytes given, 0 allowed"]);
    let e = post::enqueue_explained(qp, "send", &Request::send(&[long])).unwrap_err();
    says(e, "send", PostError::MessageTooLong, &["3221225472 bytes given", "1048576 allowed"]);
    let many = [local; 2];
    let e = post::enqueue_explained(qp, "put", &Request::put(remote, &many)).unwrap_err();
    says(e, "put", PostError::TooManySge, &["2 given, 1 allowed"]);
}

#[test]
fn a_send_that_is_not_offered_is_unsupported_however_long() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(64).unwrap();
    let mut q = looped(&d, &cq, depths(2, 2));
    assert!(d.caps().send.present() && !d.caps().send_with_imm.present());
    for len in [1, d.caps().max_send_size + 1] {
        let view = [nowhere(len).1];
        assert_eq!(q.post(&Request::send_with_imm(&view, 1)), Err(PostError::Unsupported), "{len} bytes");
    }
    let view = [nowhere(d.caps().max_send_size + 1).1];
    assert_eq!(q.post(&Request::send(&view)), Err(PostError::MessageTooLong));
}

#[test]
fn lengths_that_overflow_are_out_of_bounds() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(64).unwrap();
    let mut config = depths(2, 2);
    (config.max_send_sge, config.max_recv_sge) = (4, 4);
    let mut q = looped(&d, &cq, config);
    let (remote, huge) = nowhere(usize::MAX);
    let two = [huge, huge];
    assert_eq!(q.post(&Request::put(remote, &two)), Err(PostError::OutOfBounds));
    assert_eq!(q.post_recv(&two), Err(PostError::OutOfBounds));
    let e = q.queue_pair().put(remote, huge).unwrap_err();
    assert_eq!(e.post_error(), Some(PostError::QueueFull));
}

#[test]
fn atomics_are_eight_aligned_bytes_and_never_split() {
    let mut imp = RingDomain::default();
    imp.caps.max_msg_size = 4;
    let d = domain(imp);
    let cq = d.create_cq(64).unwrap();
    let mut q = looped(&d, &cq, depths(4, 0));
    let (remote, local) = nowhere(8);
    let old = [local];
    assert_eq!(q.post(&Request::fetch_add(remote, &old, 1)).unwrap().count, 1);
    let odd = IbvRemoteMemoryRegionView { addr: 4, ..remote };
    assert_eq!(q.post(&Request::fetch_add(odd, &old, 1)), Err(PostError::OutOfBounds));
    let short = [local.slice(0, 4).unwrap()];
    assert_eq!(q.post(&Request::fetch_add(remote, &short, 1)), Err(PostError::OutOfBounds));
}

#[test]
fn what_the_device_lacks_is_refused_before_it_is_asked() {
    let mut imp = RingDomain::default();
    imp.caps.write = Support::Absent;
    (imp.caps.fence, imp.caps.send_with_imm) = (Support::Absent, Support::Absent);
    let d = domain(imp);
    let cq = d.create_cq(64).unwrap();
    let mut q = looped(&d, &cq, depths(4, 0));
    let (remote, local) = nowhere(8);
    let src = [local];
    assert_eq!(q.put(remote, local), Err(PostError::Unsupported));
    assert_eq!(q.post(&Request::get(&src, remote).fenced()), Err(PostError::Unsupported));
    assert_eq!(q.post(&Request::send_with_imm(&src, 1)), Err(PostError::Unsupported));
    assert!(q.get(local, remote).is_ok());
    // Closing needs a marker that such a device takes too.
    let _silent = q.post(&Request::get(&src, remote).unsignaled()).unwrap();
    let closed = q.close(std::time::Instant::now() + std::time::Duration::from_secs(20)).unwrap();
    assert_eq!(closed, Closed::Drained);
}

#[test]
fn the_first_cause_is_kept_and_flushes_are_not_causes() {
    let d = domain(RingDomain::with(Faults { fail: 1, ..NONE }));
    let cq = d.create_cq(8).unwrap();
    let (mut q, mut poller) = (looped(&d, &cq, depths(4, 0)), cq.poller().unwrap());
    let (remote, local) = nowhere(8);
    let ids: Vec<_> = (0..4).map(|_| q.put(remote, local).unwrap().first).collect();
    assert_eq!(q.first_error(), None, "nobody has polled");
    let status: Vec<_> = drain(&mut poller).iter().map(|wc| wc.status).collect();
    use WcStatus as S;
    assert_eq!(status, [S::SUCCESS, S::REM_ACCESS_ERR, S::WR_FLUSH_ERR, S::WR_FLUSH_ERR]);
    let cause = q.first_error().unwrap();
    assert_eq!((cause.wr_id, cause.status, cause.vendor_err), (ids[1], S::REM_ACCESS_ERR, 0x88));
    assert_eq!(q.free_slots(), 4, "failed requests return their credits");
}

#[test]
fn a_queue_pair_dropped_while_another_thread_polls_its_queue_harms_nobody() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(64).unwrap();
    let mut poller = cq.poller().unwrap();
    let (remote, local) = nowhere(8);
    let (rounds, each) = (200, 3);
    let polling = thread::spawn(move || {
        let (mut seen, mut wcs) = (0, [IbvWc::default(); 5]);
        while seen < rounds * each {
            seen += poller.poll(&mut wcs).unwrap();
            thread::yield_now();
        }
        seen
    });
    for _ in 0..rounds {
        // A slot is free again once the poller has seen the queue empty after the drop.
        let mut q = loop {
            match d.create_queue_pair(depths(8, 0), &cq, &cq) {
                Ok(mut q) => {
                    let me = q.get_qp_info().unwrap();
                    break q.connect(&me).unwrap();
                }
                Err(e) => assert_eq!(e.kind(), ErrorKind::OutOfResources),
            }
            thread::yield_now();
        };
        for _ in 0..each {
            let _ids = q.put(remote, local).unwrap();
        }
    }
    assert_eq!(polling.join().unwrap(), rounds * each);
}

/// Every field away from its default.
fn unusual() -> IbvConfig {
    let mut c = IbvConfig::default();
    (c.port_num, c.pkey_index, c.gid, c.path_mtu) = (2, 3, GidChoice::Index(4), Mtu::B1024);
    (c.max_send_wr, c.max_recv_wr, c.max_send_sge, c.max_recv_sge, c.max_inline) = (5, 6, 2, 3, 7);
    (c.retry_cnt, c.rnr_retry, c.timeout, c.min_rnr_timer) = (1, 2, 3, 4);
    (c.max_rd_atomic, c.max_dest_rd_atomic, c.psn, c.qkey) = (5, 6, Some(0x7), Some(0x8));
    (c.traffic_class, c.service_level, c.flow_label, c.hop_limit) = (9, 10, 11, 12);
    c.flight_recorder = 13;
    c
}

#[test]
fn every_field_of_the_configuration_reaches_the_device_and_reads_back() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(64).unwrap();
    let default = format!("{:#?}", IbvConfig::default());
    let set = format!("{:#?}", unusual());
    for (a, b) in default.lines().zip(set.lines()).filter(|(a, _)| a.contains(": ")) {
        assert_ne!(a, b, "the test leaves a field at its default");
    }
    let mut q = looped(&d, &cq, unusual());
    assert_eq!(q.attributes().unwrap().config, unusual(), "what the provider was given");
    let mut negotiated = unusual();
    negotiated.max_dest_rd_atomic = 5;
    assert_eq!(q.config(), &negotiated, "its own peer takes five of its six");
}
