//! Posting, ringing, polling and arming allocate nothing, by either dispatch.

mod common;
#[path = "../../ibv-core/tests/counting/mod.rs"]
mod counting;

use common::{domain_as, nic};
use counting::allocated;
use ibv_core::{AnyDomain, IbvConfig, IbvDomainImpl, IbvWc, Op, Payload, Request};
use provider_mlx5::Mlx5Domain;

/// Allocations of ten rounds, after one that may.
fn allocations<D: IbvDomainImpl>(wrap: impl FnOnce(Mlx5Domain) -> D) -> usize {
    let mut nic = nic();
    let d = domain_as(wrap);
    let cq = d.create_cq_with_channel(256).unwrap();
    let mut config = IbvConfig::default();
    (config.max_send_sge, config.max_inline) = (4, 64);
    let mut qp = d.create_queue_pair(config, &cq, &cq).unwrap();
    let me = qp.get_qp_info().unwrap();
    let mut qp = qp.connect(&me).map_err(|(_, e)| e).unwrap();
    let (mr, mut poller) = (d.alloc(256).unwrap(), cq.poller().unwrap());
    let parts = [mr.view().slice(0, 8).unwrap(), mr.view().slice(64, 24).unwrap()];
    let inline = Request::new(Op::Write, mr.remote(), Payload::Inline(&[7; 64]));
    let (mut wcs, mut counted) = ([IbvWc::default(); 64], 0);
    for round in 0..11 {
        let before = allocated();
        (0..4).for_each(|_| assert!(qp.post_recv(&[mr.view()]).is_ok()));
        let mut batch = qp.batch();
        for _ in 0..4 {
            let _ids = batch.put(mr.remote(), mr.view()).unwrap();
            let _ids = batch.get(mr.view(), mr.remote()).unwrap();
            let _ids = batch.push(&Request::send(&parts)).unwrap();
            let _ids = batch.push(&inline).unwrap();
        }
        batch.ring().unwrap();
        poller.arm(false).unwrap();
        let posted = allocated() - before;
        nic.run();
        let before = allocated();
        let mut seen = poller.poll(&mut wcs).unwrap();
        seen += poller.poll(&mut wcs).unwrap();
        let polled = allocated() - before;
        assert_eq!(seen, 20);
        counted += if round == 0 { 0 } else { posted + polled };
    }
    counted
}

#[test]
fn the_hot_path_allocates_nothing() {
    assert_eq!(allocations(|d| d), 0);
    assert_eq!(allocations(AnyDomain::new), 0);
}
