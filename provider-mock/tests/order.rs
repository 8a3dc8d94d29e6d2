//! What each schedule promises about order, and that it promises no more.
mod common;
use common::*;
use ibv_core::*;
use provider_mock::*;
use std::collections::BTreeSet;

#[test]
fn an_ordered_fabric_completes_in_posting_order_whatever_the_requests_are() {
    let fabric = ordered();
    let [mut a, mut b] = pair(&fabric);
    let (l, r) = (a.alloc(1, 64), b.alloc(0, 64));
    for _ in 0..4 {
        b.qp.post_recv(&[r.view()]).unwrap();
    }
    let word = [l.view().slice(0, 8).unwrap()];
    let mut batch = a.qp.batch();
    let mut ids = Vec::new();
    for i in 0..12 {
        let req = match i % 4 {
            0 => Request::get(&word, r.remote().slice(0, 8).unwrap()),
            1 => Request::put(r.remote(), &word),
            2 => Request::fetch_add(r.remote().slice(8, 8).unwrap(), &word, 1),
            _ => Request::send(&word),
        };
        ids.push(batch.push(&req).unwrap().first);
    }
    batch.ring().unwrap();
    fabric.run();
    let wcs = a.poll();
    assert_eq!(wcs.iter().map(IbvWc::wr_id).collect::<Vec<_>>(), ids);
    assert!(wcs.iter().all(IbvWc::is_valid));
}

#[test]
fn one_signaled_request_returns_the_credits_of_the_silent_ones_before_it() {
    let fabric = ordered();
    let [mut a, b] = pair(&fabric);
    let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
    let src = [l.view()];
    for _ in 0..100 {
        let mut batch = a.qp.batch();
        for _ in 0..7 {
            let _ids = batch.push(&Request::put(r.remote(), &src).unsignaled()).unwrap();
        }
        let _ids = batch.put(r.remote(), l.view()).unwrap();
        batch.ring().unwrap();
        fabric.run();
        assert_eq!((a.poll().len(), a.qp.free_slots()), (1, 16));
    }
}

/// Gets `old` bytes into a buffer and puts that buffer on to elsewhere, in one batch.
fn get_then_put(fabric: &Fabric, fenced: bool) -> Vec<u8> {
    let [mut a, b] = pair(fabric);
    let (buffer, from, to) = (a.alloc(1, 8), b.alloc(2, 8), b.alloc(0, 8));
    let src = [buffer.view()];
    let put = Request::put(to.remote(), &src);
    let mut batch = a.qp.batch();
    let _ids = batch.get(buffer.view(), from.remote()).unwrap();
    let _ids = batch.push(&if fenced { put.fenced() } else { put }).unwrap();
    batch.ring().unwrap();
    fabric.run();
    assert_eq!(statuses(&a.poll()), [WcStatus::SUCCESS; 2]);
    to.to_vec()
}

#[test]
fn a_put_of_what_a_get_fetches_needs_a_fence() {
    assert_eq!(get_then_put(&ordered(), true), [2; 8]);
    assert_eq!(get_then_put(&ordered(), false), [1; 8], "the mock shows the hazard every time");
    let stale = (0..64).filter(|&seed| get_then_put(&unordered(seed, 8), false) == [1; 8]).count();
    assert!((1..64).contains(&stale), "stale with {stale} of 64 seeds");
    for seed in 0..64 {
        assert_eq!(get_then_put(&unordered(seed, 2), true), [2; 8], "seed {seed}");
    }
}

#[test]
fn an_unordered_fabric_shuffles_completions_and_loses_none() {
    let mut orders = BTreeSet::new();
    for seed in 0..20 {
        let fabric = unordered(seed, 4);
        let [mut a, b] = pair(&fabric);
        let (l, r) = (a.alloc(1, 64), b.alloc(0, 64));
        let mut batch = a.qp.batch();
        let mut ids = BTreeSet::new();
        for i in 0..8 {
            let at = 8 * i;
            ids.insert(
                batch.put(r.remote().slice(at, 8).unwrap(), l.view().slice(at, 8).unwrap()).unwrap().first,
            );
        }
        batch.ring().unwrap();
        fabric.run();
        let order: Vec<u64> = a.poll().iter().map(IbvWc::wr_id).collect();
        assert_eq!((order.iter().copied().collect::<BTreeSet<_>>(), order.len()), (ids, 8));
        assert_eq!(r.to_vec(), [1; 64]);
        orders.insert(order);
    }
    assert!(orders.len() > 15, "{} orders of 20", orders.len());
}

#[test]
fn pieces_arrive_out_of_order_and_the_completion_after_the_last() {
    let mut descending = false;
    for seed in 0..8 {
        let fabric = unordered(seed, 1);
        let [mut a, b] = pair(&fabric);
        let (l, r) = (a.alloc(1, 32), b.alloc(0, 32));
        let _ids = a.qp.put(r.remote(), l.view()).unwrap();
        let mut placed = 0;
        loop {
            let done = a.poll();
            let now = r.to_vec();
            descending |= now.windows(2).any(|w| w == [0, 1]);
            let count = now.iter().filter(|b| **b == 1).count();
            assert!(count >= placed);
            placed = count;
            if !done.is_empty() {
                break;
            }
            assert!(fabric.step(), "nothing left to do, and no completion");
        }
        assert_eq!(placed, 32);
    }
    assert!(descending);
}

/// Whether the announcement of a put, by an immediate of its own or by that of a later request, came
/// while the put's bytes were not all there.
fn announced_early(fabric: &Fabric, own: bool) -> bool {
    let [mut a, mut b] = pair(fabric);
    let (l, r) = (a.alloc(1, 16), b.alloc(0, 16));
    b.qp.post_recv(&[]).unwrap();
    let mut batch = a.qp.batch();
    if own {
        let _ids = batch.put_with_imm(r.remote(), l.view(), 1).unwrap();
    } else {
        let _ids = batch.put(r.remote(), l.view()).unwrap();
        let _ids = batch.put_with_imm(r.remote(), l.view().slice(0, 0).unwrap(), 1).unwrap();
    }
    batch.ring().unwrap();
    while b.poll().is_empty() {
        assert!(fabric.step());
    }
    let early = r.to_vec() != [1; 16];
    fabric.run();
    assert_eq!(r.to_vec(), [1; 16]);
    early
}

#[test]
fn a_later_immediate_may_overtake_the_data_and_ones_own_only_by_a_fault() {
    assert!(!announced_early(&ordered(), false) && !announced_early(&ordered(), true));
    let early = |own| (0..32).filter(|&seed| announced_early(&unordered(seed, 4), own)).count();
    assert!(early(false) > 0);
    assert_eq!(early(true), 0);
    let faulty = unordered(1, 4);
    let _ = faulty.faults().early_immediate();
    assert!(announced_early(&faulty, true));
}

#[test]
fn the_capabilities_say_which_it_is() {
    let caps = domain(&ordered()).caps();
    assert!(caps.completions_in_order && caps.messages_in_order && caps.bytes_in_order);
    let caps = domain(&unordered(0, 8)).caps();
    assert!(!caps.completions_in_order && !caps.messages_in_order && !caps.bytes_in_order);
}

/// A mixed program; what the fabric says it did.
fn program(fabric: &Fabric) -> String {
    let [mut a, mut b] = pair_with(fabric, |_, c| c.psn = Some(1));
    let (l, r) = (a.alloc(1, 64), b.alloc(0, 64));
    let word = [l.view().slice(0, 8).unwrap()];
    for round in 0..6 {
        b.qp.post_recv(&[r.view()]).unwrap();
        let mut batch = a.qp.batch();
        let _ids = batch.put(r.remote(), l.view()).unwrap();
        let _ids = batch.get(l.view(), r.remote()).unwrap();
        let _ids = batch.push(&Request::send_with_imm(&word, round)).unwrap();
        batch.ring().unwrap();
        let _ids = b.qp.put(l.remote(), r.view()).unwrap();
        (0..round).for_each(|_| assert!(fabric.step()));
        if round % 2 == 1 {
            fabric.run();
            a.poll();
            b.poll();
        }
    }
    fabric.trace()
}

#[test]
fn fifty_runs_of_one_seed_are_one_run_and_other_seeds_are_others() {
    let first = program(&unordered(42, 5));
    assert!(first.lines().count() > 100 && first.contains("completes"), "{first}");
    for _ in 0..50 {
        assert_eq!(program(&unordered(42, 5)), first);
    }
    let traces: BTreeSet<String> = (0..10).map(|seed| program(&unordered(seed, 5))).collect();
    assert_eq!(traces.len(), 10);
    assert_eq!(program(&ordered()), program(&ordered()));
}
