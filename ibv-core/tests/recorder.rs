//! Counters and flight recorder, over the toy provider of `ring/`.
mod ring;
use ibv_core::{recorder::Outcome, *};
use ring::{Faults, NONE, RingDomain, depths, domain, drain, looped};

fn recording(keep: u32) -> IbvConfig {
    let mut config = depths(16, 4);
    (config.flight_recorder, config.max_send_sge, config.max_inline) = (keep, 4, 32);
    config
}

fn nowhere(len: usize) -> (IbvRemoteMemoryRegionView, IbvMemoryRegionView<'static>) {
    (
        IbvRemoteMemoryRegionView { addr: 0x2000, len, rkey: 2 },
        IbvMemoryRegionView::from_raw_parts(0x1000, len, 1),
    )
}

#[test]
fn requests_are_counted_by_operation_once_rung() {
    for keep in [0, 8] {
        let d = domain(RingDomain::with(Faults { refuse: 7, ..NONE }));
        let cq = d.create_cq(32).unwrap();
        let (mut q, mut poller) = (looped(&d, &cq, recording(keep)), cq.poller().unwrap());
        let (remote, local) = nowhere(100);
        let mut batch = q.batch();
        for _ in 0..2 {
            let _ids = batch.put(remote, local).unwrap();
        }
        drop(batch);
        assert_eq!(q.counters().put.requests, 0, "a dropped batch never happened");
        let mut batch = q.batch();
        let _ids = batch.put(remote, local).unwrap();
        let _ids = batch.push(&Request::put(remote, &[local]).unsignaled()).unwrap();
        let _ids = batch.get(local, remote).unwrap();
        batch.ring().unwrap();
        let _ids = q.put_with_imm(remote, local, 7).unwrap();
        q.post_recv(&[local]).unwrap();
        let _ids = q.send(local.slice(0, 60).unwrap()).unwrap();
        let (far, long) = nowhere((1 << 30) + 1);
        let _ids = q.get(long, far).unwrap();
        assert_eq!(q.put(remote, local), Err(PostError::Device(5)), "the eighth request");
        assert_eq!(q.put(remote.slice(0, 1).unwrap(), local), Err(PostError::OutOfBounds));
        assert_eq!(q.post_recv(&[local; 9]), Err(PostError::TooManySge));
        drain(&mut poller);
        let c = q.counters();
        let count = |requests, bytes| recorder::OpCount { requests, bytes };
        assert_eq!((c.put, c.put_with_imm, c.send), (count(2, 200), count(1, 100), count(1, 60)));
        assert_eq!((c.get, c.recv), (count(3, 100 + (1 << 30) + 1), count(1, 60)));
        assert_eq!((c.doorbells, c.refused), (4, 3));
        assert_eq!((c.completions, c.errors, c.flushed), (7, 0, 0), "one of eight was silent");
    }
}

#[test]
fn the_record_tells_what_became_of_each_operation() {
    let d = domain(RingDomain::with(Faults { refuse: 4, ..NONE }));
    let cq = d.create_cq(32).unwrap();
    let (mut q, mut poller) = (looped(&d, &cq, recording(16)), cq.poller().unwrap());
    let (remote, local) = nowhere(100);
    let src = [local];
    let silent = q.post(&Request::put(remote, &src).unsignaled()).unwrap();
    let done = q.put(remote, local).unwrap();
    drain(&mut poller);
    drop({
        let mut batch = q.batch();
        let _ids = batch.put(remote, local).unwrap();
        batch
    });
    let waiting = q.get(local, remote).unwrap();
    let _open = q.post_recv(&[local.slice(0, 8).unwrap()]).unwrap();
    let last = q.post(&Request::new(Op::Write, remote, Payload::Inline(b"abc"))).unwrap();
    assert_eq!(q.put(remote, local), Err(PostError::Device(5)));
    let record = q.flight_record();
    let story: Vec<_> = record.operations.iter().map(|op| (op.wr_id, op.name, op.outcome)).collect();
    let discarded = waiting.first;
    assert_eq!(
        story,
        [
            (silent.first, "put", Outcome::Retired),
            (done.first, "put", Outcome::Completed),
            (discarded, "put", Outcome::Discarded),
            (waiting.first, "get", Outcome::InFlight),
            (_open, "recv", Outcome::InFlight),
            (last.first, "put", Outcome::InFlight),
            (0, "put", Outcome::Refused(PostError::Device(5))),
        ]
    );
    assert_eq!((record.forgotten, record.root_cause), (0, None));
    let first = record.operations[0];
    assert_eq!((first.bytes, first.ranges, first.signaled), (100, 1, false));
    assert_eq!((first.local, first.remote), ((0x1000, 1), (0x2000, 2)));
    assert_eq!((record.operations[5].bytes, record.operations[5].ranges), (3, 0));
    assert!(q.root_cause().is_none());
}

#[test]
fn the_root_cause_is_marked_and_the_flushes_behind_it_are_one_line() {
    let d = domain(RingDomain::with(Faults { fail: 2, ..NONE }));
    let cq = d.create_cq(32).unwrap();
    let (mut q, mut poller) = (looped(&d, &cq, recording(8)), cq.poller().unwrap());
    let (remote, local) = nowhere(100);
    let ids: Vec<_> = (0..10).map(|_| q.put(remote, local).unwrap().first).collect();
    drain(&mut poller);
    let cause = q.root_cause().unwrap();
    assert_eq!((cause.error.wr_id, cause.error.status), (ids[2], WcStatus::REM_ACCESS_ERR));
    assert_eq!((cause.record.operations.len(), cause.record.forgotten), (8, 2));
    assert_eq!(cause.record.operations[0].outcome, Outcome::Failed(cause.error));
    let text = cause.to_string();
    let marked: Vec<_> = text.lines().filter(|l| l.starts_with(">>")).collect();
    assert!(
        matches!(marked[..], [line] if line.contains("remote access error") && line.contains("root cause"))
    );
    assert!(text.contains(&format!("7 requests flushed, up to {:#x}", ids[9])), "{text}");
    assert!(text.contains("completions: 10, of which failed 1, flushed 7"), "{text}");
    assert_eq!(text.lines().count(), 1 + 2 + 2 + 2, "{text}");
}

#[test]
fn a_root_cause_that_is_no_longer_kept_is_told_all_the_same() {
    let d = domain(RingDomain::with(Faults { fail: 0, ..NONE }));
    let cq = d.create_cq(32).unwrap();
    let (mut q, mut poller) = (looped(&d, &cq, recording(2)), cq.poller().unwrap());
    let (remote, local) = nowhere(100);
    let first = q.put(remote, local).unwrap().first;
    for _ in 0..5 {
        let _ids = q.put(remote, local).unwrap();
    }
    drain(&mut poller);
    let text = q.flight_record().to_string();
    assert!(
        text.contains(&format!(">> root cause, no longer kept: work request {first:#x} failed")),
        "{text}"
    );
    let closing = q.start_close().unwrap();
    assert_eq!(closing.root_cause().unwrap().error.wr_id, first);
}

/// The poller's half is read while another thread writes it: no entry is ever made of two.
#[test]
fn a_record_taken_while_another_thread_polls_holds_whole_entries() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(32).unwrap();
    let (mut q, mut poller) = (looped(&d, &cq, recording(4)), cq.poller().unwrap());
    let (remote, local) = nowhere(8);
    const ROUNDS: u64 = 20_000;
    let polling = std::thread::spawn(move || {
        let (mut seen, mut wcs) = (0, [IbvWc::default(); 3]);
        while seen < ROUNDS {
            seen += poller.poll(&mut wcs).unwrap() as u64;
            std::thread::yield_now();
        }
    });
    let mut posted = 0;
    while posted < ROUNDS {
        match q.put(remote, local) {
            Ok(_) => posted += 1,
            Err(e) => {
                assert_eq!(e, PostError::QueueFull);
                std::thread::yield_now();
            }
        }
        for op in q.flight_record().operations {
            let fine = matches!(
                op.outcome,
                Outcome::Completed
                    | Outcome::InFlight
                    | Outcome::Retired
                    | Outcome::Refused(PostError::QueueFull)
            );
            assert!(fine, "{op:?}");
        }
    }
    polling.join().unwrap();
    assert_eq!(q.counters().completions, ROUNDS);
}
