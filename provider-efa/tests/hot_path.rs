//! Posting, ringing, polling and arming allocate nothing, by either dispatch, to one peer or to many. Under
//! whichever libefa is loaded.

mod common;
#[path = "../../ibv-core/tests/counting/mod.rs"]
mod counting;

use common::{domain, fresh, nic, shallow, writes};
use counting::allocated;
use ibv_core::{AnyDomain, IbvConfig, IbvDomain, IbvDomainImpl, IbvWc, Op, Payload, Provider, Request};
use provider_efa::{EfaDomain, EfaProvider};

/// Allocations of ten rounds, after one that may.
fn allocations<D: IbvDomainImpl>(wrap: impl FnOnce(EfaDomain) -> D) -> usize {
    let mut nic = nic(1);
    let provider = EfaProvider::default();
    let device = provider.devices().unwrap().remove(0);
    let d = IbvDomain::new(wrap(provider.open(&device).unwrap()), device);
    let cq = d.create_cq_with_channel(256).unwrap();
    let (mut config, caps) = (IbvConfig::default(), d.caps());
    config.max_inline = caps.max_inline.min(16);
    let mut qp = d.create_queue_pair(config, &cq, &cq).unwrap();
    let me = qp.get_qp_info().unwrap();
    let mut qp = qp.connect(&me).map_err(|(_, e)| e).unwrap();
    let (mr, mut poller) = (d.alloc(256).unwrap(), cq.poller().unwrap());
    let view = [mr.view()];
    let put = caps.write.present();
    let plain = Request::send(&view);
    let inline = Request::new(Op::Send, Default::default(), Payload::Inline(&[7; 16]));
    let (mut wcs, mut counted) = ([IbvWc::default(); 64], 0);
    for round in 0..11 {
        let before = allocated();
        (0..8).for_each(|_| assert!(qp.post_recv(&view).is_ok()));
        let mut batch = qp.batch();
        for _ in 0..4 {
            if put {
                let _ids = batch.put(mr.remote(), mr.view()).unwrap();
            }
            let _ids = batch.get(mr.view(), mr.remote()).unwrap();
            let _ids = batch.push(&plain).unwrap();
            let _ids = batch.push(if caps.max_inline > 0 { &inline } else { &plain }).unwrap();
        }
        batch.ring().unwrap();
        poller.arm(false).unwrap();
        let posted = allocated() - before;
        nic.run();
        let before = allocated();
        let mut seen = poller.poll(&mut wcs).unwrap();
        seen += poller.poll(&mut wcs).unwrap();
        let polled = allocated() - before;
        assert_eq!(seen, 4 * (3 + usize::from(put)) + 8);
        counted += if round == 0 { 0 } else { posted + polled };
    }
    counted
}

#[test]
fn the_hot_path_allocates_nothing() {
    assert_eq!(allocations(|d| d), 0);
    assert_eq!(allocations(AnyDomain::new), 0);
}

#[test]
fn nor_do_requests_to_many_peers() {
    let mut nic = nic(1);
    let d = domain(0);
    let (mut qp, cq) = fresh(&d, shallow(64));
    let me = qp.get_qp_info().unwrap();
    let mut qp = qp.connect(&me).map_err(|(_, e)| e).unwrap();
    let (mr, mut poller, put) = (d.alloc(64).unwrap(), cq.poller().unwrap(), writes(&d));
    let peers: Vec<_> = (0..4).map(|_| qp.add_peer(&me).unwrap()).collect();
    let (mut wcs, mut counted) = ([IbvWc::default(); 64], 0);
    for round in 0..5 {
        let before = allocated();
        let mut batch = qp.batch();
        for peer in &peers {
            let ids = if put {
                batch.put_to(*peer, mr.remote(), mr.view())
            } else {
                batch.get_from(*peer, mr.view(), mr.remote())
            };
            assert!(ids.is_ok());
        }
        batch.ring().unwrap();
        let posted = allocated() - before;
        nic.run();
        assert_eq!(poller.poll(&mut wcs).unwrap(), 4);
        counted += if round == 0 { 0 } else { posted };
    }
    assert_eq!(counted, 0);
}
