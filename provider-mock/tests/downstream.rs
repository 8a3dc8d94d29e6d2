//! How a crate over `ibv-core` tests itself with the mock: its own code first, then what becomes of it
//! when the network misbehaves. Nothing here is known to the mock.

use ibv_core::*;
use provider_mock::{Drive, Fabric, FabricConfig, MockProvider, Schedule, Verb};
use std::time::Duration;

/// What such a crate might contain: moves a file's worth of bytes to a peer, in requests of `step` bytes,
/// and says how far it got.
struct Mover<D: IbvDomainImpl> {
    qp: Connected<D::QueuePair>,
    poller: Poller<D>,
}

#[derive(Debug, PartialEq)]
enum Moved {
    All,
    Stopped { after: usize, why: WcStatus },
    Refused(PostError),
}

impl<D: IbvDomainImpl> Mover<D> {
    fn put_all(
        &mut self,
        dst: IbvRemoteMemoryRegionView,
        src: IbvMemoryRegionView<'_>,
        step: usize,
    ) -> Moved {
        for at in (0..src.len()).step_by(step) {
            let n = step.min(src.len() - at);
            let (Some(to), Some(from)) = (dst.slice(at, n), src.slice(at, n)) else {
                return Moved::Refused(PostError::OutOfBounds);
            };
            if let Err(e) = self.qp.put(to, from) {
                return Moved::Refused(e);
            }
            let mut wc = [IbvWc::default()];
            while self.poller.poll(&mut wc).unwrap() == 0 {}
            if !wc[0].is_valid() {
                return Moved::Stopped { after: at, why: wc[0].status };
            }
        }
        Moved::All
    }
}

/// Two ends on one fabric, one of them a `Mover`.
struct Bench {
    fabric: Fabric,
    mover: Mover<MockDomain>,
    src: IbvMemoryRegion<MockDomain>,
    dst: IbvMemoryRegion<MockDomain>,
    _peer: Connected<provider_mock::MockQueuePair>,
}

use provider_mock::MockDomain;

fn bench(schedule: Schedule) -> Bench {
    // The default drive: whoever polls, moves. No thread, no sleep, the same run every time.
    let fabric = Fabric::new(FabricConfig { schedule, ..FabricConfig::default() });
    assert_eq!(fabric.config().drive, Drive::OnPoll);
    let provider = MockProvider::new(fabric.clone());
    let ends = provider.devices().unwrap().into_iter().map(|info| {
        let domain = IbvDomain::new(provider.open(&info).unwrap(), info);
        let cq = domain.create_cq(256).unwrap();
        let qp = domain.create_queue_pair(IbvConfig::default(), &cq, &cq).unwrap();
        (domain, cq, qp)
    });
    let [(a, cq, mut qa), (b, _, mut qb)] =
        <[_; 2]>::try_from(ends.collect::<Vec<_>>()).unwrap_or_else(|_| panic!());
    let (ia, ib) = (qa.get_qp_info().unwrap(), qb.get_qp_info().unwrap());
    let (qp, peer) = (qa.connect(&ib).unwrap(), qb.connect(&ia).unwrap());
    let (src, dst) = (a.alloc(1000).unwrap(), b.alloc(1000).unwrap());
    src.write_at(0, &(0..1000).map(|i| i as u8).collect::<Vec<_>>()).unwrap();
    Bench { fabric, mover: Mover { qp, poller: cq.poller().unwrap() }, src, dst, _peer: peer }
}

impl Bench {
    fn run(&mut self) -> Moved {
        self.mover.put_all(self.dst.remote(), self.src.view(), 100)
    }
}

#[test]
fn all_bytes_arrive_however_the_network_orders_them() {
    let seeds = (0..20).map(|seed| Schedule::Unordered { seed, chunk: 7 });
    for schedule in std::iter::once(Schedule::InOrder).chain(seeds) {
        let mut b = bench(schedule);
        assert_eq!(b.run(), Moved::All, "{schedule:?}");
        assert_eq!(b.dst.to_vec(), b.src.to_vec(), "{schedule:?}");
    }
}

#[test]
fn a_lossy_network_costs_retries_and_no_bytes() {
    let mut b = bench(Schedule::InOrder);
    let _ = b.fabric.faults().after(3).drop_requests(4);
    assert_eq!((b.run(), b.dst.to_vec()), (Moved::All, b.src.to_vec()));
    assert_eq!(b.fabric.counters().retries, 4);
}

#[test]
fn it_says_how_far_it_got_when_the_peer_dies() {
    let mut b = bench(Schedule::InOrder);
    let _ = b.fabric.faults().after(4).fail_request(WcStatus::REM_OP_ERR);
    assert_eq!(b.run(), Moved::Stopped { after: 400, why: WcStatus::REM_OP_ERR });
    assert_eq!(b.dst.to_vec()[400..], [0; 600]);
}

#[test]
fn it_passes_a_refusing_device_on() {
    let mut b = bench(Schedule::InOrder);
    let _ = b.fabric.faults().after(2).fail(Verb::PostSend, 5);
    assert_eq!(b.run(), Moved::Refused(PostError::Device(5)));
}

#[test]
fn latency_is_virtual() {
    let mut b = bench(Schedule::InOrder);
    let _ = b.fabric.faults().delay_requests(10, Duration::from_millis(3));
    assert_eq!(b.run(), Moved::All);
    assert!(b.fabric.now() >= Duration::from_millis(30));
}
