//! The step drive: the same seed gives the same trace, other seeds other orders, and all of them the same bytes.

mod rig;

use std::collections::BTreeSet;

use ibv_sys::*;
use rig::*;
use softnic::Config;
use softnic::fault::Fault;
use softnic::trace::Event;

/// A busy little program: two connections, every operation, a lost packet, a late receive, and an error at the end.
fn program(seed: u64) -> Option<(Vec<Event>, Vec<u8>)> {
    let mut rig = Rig::start(Config::steps(seed))?;
    let shape = Shape { rnr_retry: 7, retry: 7, ..Shape::default() };
    let (a, b) = rig.pair(shape);
    let (c, d) = rig.pair(shape);
    rig.nic.inject(Fault::DropRequest { nth: 3 });
    rig.nic.inject(Fault::DropReply { nth: 5 });
    rig.nic.inject(Fault::Delay { nth: 9, ns: 5000 });
    for (from, to) in [(&a, &b), (&c, &d)] {
        from.memory.put(0, &(0..64).collect::<Vec<u8>>());
        for i in 0..8 {
            from.post(&from.request(i, IBV_WR_RDMA_WRITE, 0, 64, to, 64 * i as usize));
        }
        let mut add = from.request(8, IBV_WR_ATOMIC_FETCH_AND_ADD, 1000, 8, to, 1024);
        add.operands = (3, 0);
        from.post(&add);
        from.post(&from.request(9, IBV_WR_RDMA_READ, 2048, 64, to, 64));
        from.post(&from.request(10, IBV_WR_SEND, 0, 64, to, 0));
    }
    for _ in 0..30 {
        rig.nic.step();
    }
    for to in [&b, &d] {
        to.recv(70, &[(4096, 64)]);
    }
    rig.nic.run();
    for from in [&a, &c] {
        let mut bad = from.request(11, IBV_WR_RDMA_WRITE, 0, 64, &b, 0);
        bad.remote.1 = 0xdead;
        from.post(&bad);
    }
    rig.nic.run();
    for (from, to) in [(&a, &b), (&c, &d)] {
        (0..=10).for_each(|i| assert_eq!(rig.expect(from.cq, i, IBV_WC_SUCCESS).wr_id, i));
        rig.expect(from.cq, 11, IBV_WC_REM_ACCESS_ERR);
        rig.expect(to.cq, 70, IBV_WC_SUCCESS);
    }
    let bytes = [b.memory.get(0, 8192), d.memory.get(0, 8192), a.memory.get(0, 4096)].concat();
    assert_eq!(rig.nic.take_breaches(), []);
    let trace = rig.nic.take_trace();
    drop((a, b, c, d));
    Some((trace, bytes))
}

#[test]
fn fifty_repeats_give_the_same_trace() {
    let Some(first) = program(42) else { return };
    assert!(first.0.len() > 100, "the trace has {} events", first.0.len());
    for repeat in 1..50 {
        assert_eq!(program(42).as_ref(), Some(&first), "repeat {repeat}");
    }
}

#[test]
fn other_seeds_give_other_orders_and_the_same_bytes() {
    let Some((_, bytes)) = program(0) else { return };
    let mut traces = BTreeSet::new();
    for seed in 0..20 {
        let (trace, got) = program(seed).expect("it ran before");
        assert_eq!(got, bytes, "seed {seed}");
        traces.insert(format!("{trace:?}"));
    }
    assert!(traces.len() > 10, "20 seeds made {} orders", traces.len());
}

#[test]
fn the_clock_stands_still_while_there_is_work_and_jumps_when_there_is_none() {
    let Some(mut rig) = Rig::start(Config::steps(1)) else { return };
    let shape = Shape { rnr_retry: 7, rnr_timer: 31, ..Shape::default() };
    let (a, b) = rig.pair(shape);
    a.post(&a.request(1, IBV_WR_SEND, 0, 8, &b, 0));
    let start = rig.nic.with(|h| h.engine.shared.now);
    for _ in 0..20 {
        rig.nic.step();
    }
    assert!(
        rig.nic.with(|h| h.engine.shared.now) - start >= 491_520_000,
        "the longest timer took no real time"
    );
    b.recv(7, &[(0, 8)]);
    rig.expect(a.cq, 1, IBV_WC_SUCCESS);
}

#[test]
fn late_payloads_land_after_their_completion() {
    let Some(mut rig) = Rig::start(Config::steps(1)) else { return };
    let (a, b) = rig.pair(Shape::default());
    a.memory.put(0, &[9; 64]);
    rig.nic.inject(Fault::LateDma { nth: 0, steps: 5 });
    a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 64, &b, 0));
    rig.expect(a.cq, 1, IBV_WC_SUCCESS);
    assert_eq!(b.memory.get(0, 64), [0; 64], "completed, but not there");
    for id in 2..10 {
        a.post(&a.request(id, IBV_WR_RDMA_READ, 128, 8, &b, 512));
        rig.expect(a.cq, id, IBV_WC_SUCCESS);
    }
    assert_eq!(b.memory.get(0, 64), [9; 64]);
}

#[test]
fn a_poisoned_completion_makes_the_poll_fail() {
    let Some(mut rig) = Rig::start(Config::steps(1)) else { return };
    let (a, b) = rig.pair(Shape::default());
    let mut raw = rig::raw::Raw::of(&a);
    rig.nic.inject(Fault::PoisonCqe { nth: 1 });
    for i in 0..2 {
        let wqe = raw.write(&a, &b, i);
        raw.put(i, &wqe);
        raw.publish(i + 1);
        raw.doorbell(&wqe);
    }
    let codes: Vec<u8> = (0..2).map(|_| rig.until("an entry", |_| raw.take())[63] >> 4).collect();
    assert_eq!(codes, [0, 7], "7 is no completion of any device");
}

#[test]
fn the_nth_command_fails_as_ordered() {
    let Some(rig) = Rig::start(Config::steps(1)) else { return };
    rig.nic.inject(Fault::FailCommand { nth: 1, errno: libc::ENOMEM });
    let v = rig.v();
    // SAFETY: the context is alive; what is made is destroyed once.
    unsafe {
        let first = v.ibv_alloc_pd(rig.context);
        assert!(!first.is_null());
        assert!(v.ibv_alloc_pd(rig.context).is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(v.ibv_dealloc_pd(first), 0);
    }
}

#[test]
fn a_region_that_went_away_under_a_read_is_not_written() {
    let Some(mut rig) = Rig::start(Config::steps(1)) else { return };
    let (a, b) = rig.pair(Shape::default());
    b.memory.put(0, &[5; 64]);
    let target = Memory::new(4096);
    let mr = rig.reg(target.addr(), 4096, LOCAL);
    // SAFETY: alive until the next lines, which destroy it once.
    let lkey = unsafe { (*mr).lkey };
    rig.nic.inject(Fault::Delay { nth: 1, ns: 1000 });
    let mut read = a.request(1, IBV_WR_RDMA_READ, 0, 64, &b, 0);
    read.pieces[0] = (target.addr(), 64, lkey);
    a.post(&read);
    while rig.nic.step() == softnic::drive::Step::Worked {}
    // SAFETY: as above.
    assert_eq!(unsafe { rig.v().ibv_dereg_mr(mr) }, 0);
    rig.expect(a.cq, 1, IBV_WC_LOC_PROT_ERR);
    assert_eq!(target.get(0, 64), [0; 64], "the answer came after the deregistration");
}
