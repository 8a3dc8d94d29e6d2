//! Many queue pairs, many operations: threads, registers, reused numbers, and every completion once.

mod common;

use common::{domain, domain_as, nic, seed_domain};
use ibv_core::{
    Connected, IbvConfig, IbvCq, IbvDomain, IbvMemoryRegion, IbvWc, Op, Payload, Poller, PostError, Request,
};
use provider_mlx5::{Mlx5Domain, Mlx5Options, Mlx5QueuePair, SeedDomain};
use softnic::{Config, Softnic};
use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

fn looped(
    d: &IbvDomain<Mlx5Domain>,
    cq: &Arc<IbvCq<Mlx5Domain>>,
    config: IbvConfig,
) -> Connected<Mlx5QueuePair> {
    let mut qp = d.create_queue_pair(config, cq, cq).unwrap();
    let me = qp.get_qp_info().unwrap();
    qp.connect(&me).map_err(|(_, e)| e).unwrap()
}

/// One thread's share: ten queue pairs on one queue, `puts` on each.
fn share(d: &IbvDomain<Mlx5Domain>, puts: u64) -> usize {
    let cq = d.create_cq(10 * 16).unwrap();
    let mut config = IbvConfig::default();
    (config.max_send_wr, config.max_recv_wr) = (16, 0);
    let mut qps: Vec<_> = (0..10).map(|_| looped(d, &cq, config.clone())).collect();
    let region = d.alloc(64).unwrap();
    let (mut poller, mut wcs) = (cq.poller().unwrap(), [IbvWc::default(); 16]);
    let (mut left, mut seen) = (vec![puts; 10], HashSet::new());
    let deadline = Instant::now() + Duration::from_secs(60);
    while seen.len() < 10 * puts as usize {
        for (qp, left) in qps.iter_mut().zip(&mut left) {
            while *left > 0 {
                match qp.put(region.remote(), region.view()) {
                    Ok(_) => *left -= 1,
                    Err(PostError::QueueFull) => break,
                    Err(e) => panic!("{e}"),
                }
            }
        }
        let n = poller.poll(&mut wcs).unwrap();
        for wc in &wcs[..n] {
            assert!(wc.is_valid() && seen.insert(wc.wr_id), "{wc:?}");
        }
        if n == 0 {
            thread::yield_now();
        }
        assert!(Instant::now() < deadline, "{} of {} completions", seen.len(), 10 * puts);
    }
    seen.len()
}

#[test]
fn twenty_queue_pairs_on_two_threads_lose_nothing() {
    let _nic = Softnic::start(Config::thread()).unwrap();
    let d = domain();
    let totals = thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| share(&d, 100)));
        both.map(|t| t.join().unwrap())
    });
    assert_eq!(totals, [1000, 1000]);
}

/// Registers that libmlx5 gave to several queue pairs are rung under one lock each.
#[test]
fn queue_pairs_that_share_registers_lose_nothing() {
    let nic = Softnic::start(Config::thread()).unwrap();
    let mut options = Mlx5Options::default();
    options.shared_registers = true;
    let d = domain_as(|d| d.with_options(options));
    let totals = thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| share(&d, 100)));
        both.map(|t| t.join().unwrap())
    });
    assert_eq!(totals, [1000, 1000]);
    drop(nic);
    let _nic = common::nic();
    let d = domain_as(|d| SeedDomain(d.with_options(options)));
    let cq = d.create_cq(2000).unwrap();
    let mut config = IbvConfig::default();
    (config.max_send_wr, config.max_recv_wr) = (16, 0);
    let mut qps: Vec<_> = (0..24).map(|_| d.create_queue_pair(config.clone(), &cq, &cq).unwrap()).collect();
    let registers: HashSet<_> = qps.iter_mut().map(|qp| common::dv_qp(qp.queue_pair()).bf.reg).collect();
    assert!(registers.len() < 24, "libmlx5 gave each of 24 a register of its own");
    assert!(qps.iter_mut().all(|qp| !qp.queue_pair().has_own_register()));
}

/// Copies into the register are the WQEs, which the strict device compares, and batches are rung as ever.
#[test]
fn blue_flame_copies_single_requests_and_moves_the_same_bytes() {
    let mut nic = nic();
    let mut options = Mlx5Options::default();
    options.blue_flame = true;
    let d = domain_as(|d| d.with_options(options));
    let cq = d.create_cq(256).unwrap();
    let mut config = IbvConfig::default();
    (config.max_send_wr, config.max_recv_wr, config.max_inline) = (32, 0, 256);
    let mut qp = looped(&d, &cq, config);
    let (src, dst) = (d.alloc(64).unwrap(), d.alloc(64).unwrap());
    let (mut poller, mut wcs) = (cq.poller().unwrap(), [IbvWc::default(); 32]);
    for round in 0..40u8 {
        src.write_at(0, &[round; 64]).unwrap();
        let inline = [round ^ 0xff; 200];
        let put = Request::new(Op::Write, dst.remote(), Payload::Inline(&inline[..usize::from(round)]));
        let mut want = match round % 3 {
            0 => Vec::from(qp.put(dst.remote(), src.view()).unwrap()),
            1 => Vec::from(qp.post(&put).unwrap()),
            _ => Vec::new(),
        };
        if want.is_empty() {
            let mut batch = qp.batch();
            want.extend((0..3).flat_map(|_| Vec::from(batch.put(dst.remote(), src.view()).unwrap())));
            batch.ring().unwrap();
        }
        nic.run();
        let n = poller.poll(&mut wcs).unwrap();
        assert!(wcs[..n].iter().all(IbvWc::is_valid));
        assert_eq!(wcs[..n].iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), want, "round {round}");
        let (mut seen, len) = ([0; 64], if round % 3 == 1 { usize::from(round) } else { 64 });
        dst.read_at(0, &mut seen).unwrap();
        let byte = if round % 3 == 1 { round ^ 0xff } else { round };
        assert!(seen[..len].iter().all(|b| *b == byte), "round {round}: {seen:?}");
    }
    assert_eq!(nic.take_breaches(), []);
}

#[test]
fn twenty_live_queue_pairs_have_registers_of_their_own_or_say_so() {
    let _nic = nic();
    let d = seed_domain();
    let cq = d.create_cq(2000).unwrap();
    let mut config = IbvConfig::default();
    (config.max_send_wr, config.max_recv_wr) = (16, 0);
    let mut qps: Vec<_> = (0..20).map(|_| d.create_queue_pair(config.clone(), &cq, &cq).unwrap()).collect();
    let mut registers = HashSet::new();
    for qp in &mut qps {
        let qp = qp.queue_pair();
        assert!(!qp.has_own_register() || registers.insert(common::dv_qp(qp).bf.reg));
    }
    assert_eq!(registers.len(), 20, "each has a thread domain on this device");
}

/// A queue pair dies with completions queued, its number is free for another, and nothing is confused.
#[test]
fn a_reused_number_never_meets_entries_of_its_last_owner() {
    let mut nic = nic();
    let d = domain();
    let cq = d.create_cq(256).unwrap();
    let region = d.alloc(8).unwrap();
    let (mut poller, mut wcs) = (cq.poller().unwrap(), [IbvWc::default(); 32]);
    let mut numbers = HashSet::new();
    for round in 0..20 {
        let mut config = IbvConfig::default();
        (config.max_send_wr, config.max_recv_wr) = (8, 0);
        let mut old = looped(&d, &cq, config.clone());
        let stale: Vec<_> = (0..4).map(|_| old.put(region.remote(), region.view()).unwrap().first).collect();
        nic.run();
        let number = old.queue_pair().qp_num();
        drop(old);
        let mut new = looped(&d, &cq, config);
        let fresh = new.put(region.remote(), region.view()).unwrap().first;
        nic.run();
        let n = poller.poll(&mut wcs).unwrap();
        let ids: Vec<_> = wcs[..n].iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, [&stale[..], &[fresh]].concat(), "round {round}");
        assert_ne!(new.queue_pair().qp_num(), number, "not while entries of it were queued");
        assert!(wcs[..n].iter().all(IbvWc::is_valid));
        drop(new);
        assert_eq!(poller.poll(&mut wcs).unwrap(), 0);
        numbers.insert(number);
    }
    assert!(numbers.len() < 20, "numbers come back: {numbers:?}");
}

/// A request that was posted: its id, and whether it reports.
struct Posted {
    id: u64,
    signaled: bool,
}

struct Many {
    qp: Connected<Mlx5QueuePair>,
    poller: Poller<Mlx5Domain>,
    regions: [IbvMemoryRegion<Mlx5Domain>; 2],
    posted: VecDeque<Posted>,
    done: u64,
}

impl Many {
    fn poll(&mut self) {
        let mut wcs = [IbvWc::default(); 64];
        loop {
            let n = self.poller.poll(&mut wcs).unwrap();
            for wc in &wcs[..n] {
                // Everything before it that is silent is done with it, and nothing that reports is skipped.
                let next = loop {
                    let next = self.posted.pop_front().expect("a completion of nothing");
                    self.done += 1;
                    if next.signaled {
                        break next;
                    }
                };
                assert_eq!((next.id, wc.is_valid()), (wc.wr_id, true));
            }
            if n < wcs.len() {
                return;
            }
        }
    }
}

/// 2^17 operations over depths and batch sizes, or what `IBV_OPERATIONS` says (2^20 takes minutes).
#[test]
fn every_completion_comes_once_in_order_and_the_bytes_are_right() {
    let total: u64 = std::env::var("IBV_OPERATIONS").ok().map_or(1 << 17, |n| n.parse().unwrap());
    let mut nic = nic();
    let d = domain();
    let mut state = 7u64;
    // Xorshift: the same numbers on each run.
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for (depth, share) in [(1u32, 32), (3, 16), (64, 4), (256, 2), (1000, 4)] {
        let cq = d.create_cq(depth + 1).unwrap();
        let mut config = IbvConfig::default();
        (config.max_send_wr, config.max_recv_wr) = (depth, 0);
        (config.max_send_sge, config.max_inline) = (3, 48);
        let regions = [d.alloc(256).unwrap(), d.alloc(256).unwrap()];
        regions[0].write_at(0, &(0..=255).collect::<Vec<u8>>()).unwrap();
        let (qp, poller) = (looped(&d, &cq, config), cq.poller().unwrap());
        let mut many = Many { qp, poller, regions, posted: VecDeque::new(), done: 0 };
        let mut left = total / share;
        while left > 0 {
            let batch = (1 + random(16)).min(left).min(many.qp.free_slots().into());
            let expected = post(&mut many, batch, &mut random);
            left -= batch;
            nic.run();
            nic.take_trace();
            many.poll();
            assert_eq!(many.regions[1].to_vec(), expected, "depth {depth}, {left} left");
        }
        assert_eq!((many.done, many.posted.len()), (total / share, 0), "depth {depth}");
    }
    assert_eq!(nic.take_breaches(), []);
}

fn post(many: &mut Many, n: u64, random: &mut impl FnMut(u64) -> u64) -> Vec<u8> {
    let [from, to] = &many.regions;
    let mut expected = to.to_vec();
    let mut batch = many.qp.batch();
    for i in 0..n {
        let at = random(64) as usize;
        let lens = [1 + random(20), 1 + random(20), 1 + random(20)].map(|n| n as usize);
        let starts = [random(200), random(200), random(200)].map(|n| n as usize);
        let ranges: Vec<_> =
            (0..1 + random(3) as usize).map(|k| from.view().slice(starts[k], lens[k]).unwrap()).collect();
        let bytes: Vec<u8> = (0..random(49)).map(|_| random(256) as u8).collect();
        let inline = random(3) == 0;
        let written: Vec<u8> = if inline {
            bytes.clone()
        } else {
            (0..ranges.len()).flat_map(|k| (starts[k]..starts[k] + lens[k]).map(|b| b as u8)).collect()
        };
        let local = if inline { Payload::Inline(&bytes) } else { Payload::Sges(&ranges) };
        let mut request = Request::new(Op::Write, to.remote().slice(at, written.len()).unwrap(), local);
        let signaled = i + 1 == n || random(2) == 0;
        if !signaled {
            request = request.unsignaled();
        }
        let id = batch.push(&request).unwrap().first;
        expected[at..at + written.len()].copy_from_slice(&written);
        many.posted.push_back(Posted { id, signaled });
    }
    batch.ring().unwrap();
    expected
}
