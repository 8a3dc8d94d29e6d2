//! What the safe handle costs, in instructions, over the toy provider of `tests/ring`.
//!
//! ```text
//! cost floor|static|dyn ROUNDS
//! ```
//!
//! Each round posts a batch of 16 puts, rings once and polls the 16 completions: `floor` through the
//! provider alone, `static` and `dyn` through the safe handle. Count the instructions inside:
//!
//! ```text
//! cargo build --release -p ibv-core --example cost
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='cost::op_post*' cost static 1000
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='cost::op_poll*' cost static 1000
//! ```
//!
//! The `Collected : N` that callgrind prints, less the same N of `floor`, divided by 16 · ROUNDS, is the
//! handle's own share of one request, or of one completion. `examples/cost.sh` does all of it and prints
//! one line a number: `post static 17.1`.
#[path = "../tests/ring/mod.rs"]
mod ring;
use ibv_core::*;
use ring::{NONE, Ring, RingDomain, RingPoller, Shared};
use std::hint::black_box;

const BATCH: usize = 16;

/// The 16 transfers of a round, all different, so that nothing can be computed once for all.
struct Plan<'mr> {
    local: [IbvMemoryRegionView<'mr>; BATCH],
    remote: [IbvRemoteMemoryRegionView; BATCH],
}

impl<'mr> Plan<'mr> {
    fn new(local: IbvMemoryRegionView<'mr>, remote: IbvRemoteMemoryRegionView) -> Self {
        let piece = |i| (local.slice(i * 64, 64).expect("inside"), remote.slice(i * 64, 64).expect("inside"));
        Self { local: std::array::from_fn(|i| piece(i).0), remote: std::array::from_fn(|i| piece(i).1) }
    }
    #[inline]
    fn iter(&self) -> impl Iterator<Item = (&IbvMemoryRegionView<'mr>, &IbvRemoteMemoryRegionView)> {
        self.local.iter().zip(&self.remote)
    }
}

/// The provider's own work, with nothing above it.
#[inline(never)]
fn op_post_floor(ring: &mut Ring, plan: &Plan<'_>) -> Option<()> {
    for (id, (local, remote)) in (0..).zip(plan.iter()) {
        ring.write(id, WcOpcode::RDMA_WRITE, *local, *remote, true).ok()?;
    }
    ring.ring().ok()
}

#[inline(never)]
fn op_post<Q: IbvQueuePair>(qp: &mut Connected<Q>, plan: &Plan<'_>) -> Option<u64> {
    let (mut batch, mut last) = (qp.batch(), 0);
    for (local, remote) in plan.iter() {
        last = batch.put(*remote, *local).ok()?.first;
    }
    batch.ring().ok()?;
    Some(last)
}

#[inline(never)]
fn op_poll<D: IbvDomainImpl>(poller: &mut Poller<D>, out: &mut [IbvWc]) -> Option<usize> {
    poller.poll(out).ok()
}

#[inline(never)]
fn op_poll_floor<P: CompletionQueue>(poller: &mut P, out: &mut [IbvWc]) -> Option<usize> {
    poller.poll(out).ok()
}

fn run<D: IbvDomainImpl>(imp: D, rounds: usize) {
    let d = IbvDomain::new(imp, IbvDeviceInfo::new("ring0"));
    let cq = d.create_cq(128).expect("queue");
    let mut qp = ring::looped(&d, &cq, ring::depths(64, 16));
    let (mr, mut poller) = (d.alloc(64 * BATCH).expect("region"), cq.poller().expect("poller"));
    let plan = Plan::new(mr.view(), mr.remote());
    let mut wcs = [IbvWc::default(); BATCH];
    for _ in 0..rounds {
        let last = op_post(&mut qp, black_box(&plan));
        assert!(last.is_some() && op_poll(&mut poller, &mut wcs) == Some(BATCH));
    }
}

fn floor(rounds: usize) {
    let shared = Shared::new(false).expect("queue");
    let (mut ring, mut poller) = (Ring::new(shared.clone()), RingPoller::new(shared, NONE));
    let remote = IbvRemoteMemoryRegionView { addr: 64, len: 64 * BATCH, rkey: 2 };
    let plan = Plan::new(IbvMemoryRegionView::from_raw_parts(64, 64 * BATCH, 1), remote);
    let mut wcs = [IbvWc::default(); BATCH];
    for _ in 0..rounds {
        assert!(op_post_floor(&mut ring, black_box(&plan)).is_some());
        assert_eq!(op_poll_floor(&mut poller, &mut wcs), Some(BATCH));
    }
    black_box(ring.wqes);
}

fn main() {
    let mut args = std::env::args().skip(1);
    let kind = args.next().unwrap_or_default();
    let rounds = args.next().and_then(|n| n.parse().ok()).unwrap_or(1000);
    match kind.as_str() {
        "floor" => floor(rounds),
        "static" => run(RingDomain::default(), rounds),
        "dyn" => run(AnyDomain::new(RingDomain::default()), rounds),
        _ => {
            eprintln!("usage: cost floor|static|dyn ROUNDS");
            std::process::exit(2);
        }
    }
    println!("{kind} rounds {rounds} batch {BATCH}");
}
