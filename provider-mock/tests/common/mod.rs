//! What every test of the mock starts from.
#![allow(dead_code)]

use ibv_core::*;
use provider_mock::*;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub type Domain = IbvDomain<MockDomain>;
pub type Cq = Arc<IbvCq<MockDomain>>;
pub type Qp = Connected<MockQueuePair>;
pub type Region = IbvMemoryRegion<MockDomain>;

pub fn manual(schedule: Schedule) -> Fabric {
    Fabric::new(FabricConfig { schedule, drive: Drive::Manual, ..FabricConfig::default() })
}

/// An ordered fabric that only moves when told to.
pub fn ordered() -> Fabric {
    manual(Schedule::InOrder)
}

pub fn unordered(seed: u64, chunk: usize) -> Fabric {
    manual(Schedule::Unordered { seed, chunk })
}

pub fn open(fabric: &Fabric, index: usize) -> Domain {
    let p = MockProvider::new(fabric.clone());
    let d = p.devices().unwrap().remove(index);
    IbvDomain::new(p.open(&d).unwrap(), d)
}

pub fn domain(fabric: &Fabric) -> Domain {
    open(fabric, 0)
}

pub fn config(max_send_wr: u32, max_recv_wr: u32) -> IbvConfig {
    let mut c = IbvConfig::default();
    (c.max_send_wr, c.max_recv_wr, c.max_send_sge, c.max_recv_sge) = (max_send_wr, max_recv_wr, 4, 4);
    c.max_inline = 64;
    c
}

/// A queue pair without receives, connected to itself, reporting to `cq`.
pub fn looped(d: &Domain, cq: &Cq, depth: u32) -> Qp {
    let mut qp = d.create_queue_pair(config(depth, 0), cq, cq).unwrap();
    let me = qp.get_qp_info().unwrap();
    qp.connect(&me).unwrap()
}

/// One end of a connection: a queue pair with its own queue.
pub struct End {
    pub d: Domain,
    pub cq: Cq,
    pub poller: Poller<MockDomain>,
    pub qp: Qp,
}

impl End {
    pub fn poll(&mut self) -> Vec<IbvWc> {
        drain(&mut self.poller)
    }

    pub fn alloc(&self, fill: u8, len: usize) -> Region {
        let mr = self.d.alloc(len).unwrap();
        mr.write_at(0, &vec![fill; len]).unwrap();
        mr
    }
}

/// Two ends on two devices, connected.
pub fn pair_with(fabric: &Fabric, change: impl Fn(usize, &mut IbvConfig)) -> [End; 2] {
    let made = [0, 1].map(|i| {
        let d = open(fabric, i);
        let mut c = config(16, 16);
        change(i, &mut c);
        let cq = d.create_cq_with_channel(c.max_send_wr + c.max_recv_wr).unwrap();
        let qp = d.create_queue_pair(c, &cq, &cq).unwrap();
        (d, cq, qp)
    });
    let [mut a, mut b] = made;
    let (ia, ib) = (a.2.get_qp_info().unwrap(), b.2.get_qp_info().unwrap());
    let end = |(d, cq, qp): (Domain, Cq, QueuePair<MockQueuePair>), peer: &IbvQpInfo| {
        let qp = qp.connect(peer).map_err(|(_, e)| e).unwrap();
        End { poller: cq.poller().unwrap(), d, cq, qp }
    };
    [end(a, &ib), end(b, &ia)]
}

pub fn pair(fabric: &Fabric) -> [End; 2] {
    pair_with(fabric, |_, _| {})
}

pub fn drain(p: &mut Poller<MockDomain>) -> Vec<IbvWc> {
    let (mut wcs, mut all) = ([IbvWc::default(); 4], Vec::new());
    loop {
        let n = p.poll(&mut wcs).unwrap();
        all.extend_from_slice(&wcs[..n]);
        if n < wcs.len() {
            return all;
        }
    }
}

pub fn statuses(wcs: &[IbvWc]) -> Vec<WcStatus> {
    wcs.iter().map(|wc| wc.status).collect()
}

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}
