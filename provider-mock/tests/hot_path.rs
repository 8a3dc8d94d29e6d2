//! Posting, ringing, polling and the fabric's own work allocate nothing, by either dispatch and on either
//! schedule.

#[path = "../../ibv-core/tests/counting/mod.rs"]
mod counting;
use counting::allocated;
use ibv_core::*;
use provider_mock::*;

fn allocations<D: IbvDomainImpl>(
    fabric: &Fabric,
    wrap: impl FnOnce(MockDomain) -> D,
    rounds: usize,
) -> usize {
    let info = IbvDeviceInfo::new("mock0");
    let d = IbvDomain::new(wrap(MockProvider::new(fabric.clone()).open(&info).unwrap()), info);
    let cq = d.create_cq_with_channel(256).unwrap();
    let mut config = IbvConfig::default();
    (config.max_send_sge, config.max_recv_sge, config.max_inline) = (4, 4, 64);
    let mut qp = d.create_queue_pair(config, &cq, &cq).unwrap();
    let me = qp.get_qp_info().unwrap();
    let mut qp = qp.connect(&me).unwrap();
    let (mr, mut poller) = (d.alloc(256).unwrap(), cq.poller().unwrap());
    let word = [mr.view().slice(0, 8).unwrap()];
    let parts = [mr.view().slice(0, 8).unwrap(), mr.view().slice(64, 24).unwrap()];
    let inline = Request::new(Op::Write, mr.remote(), Payload::Inline(&[7; 64]));
    let mut wcs = [IbvWc::default(); 64];
    let mut round = || {
        for _ in 0..4 {
            qp.post_recv(&parts).unwrap();
        }
        let mut batch = qp.batch();
        for _ in 0..4 {
            let _ids = batch.put(mr.remote(), mr.view()).unwrap();
            let _ids = batch.get(mr.view(), mr.remote()).unwrap();
            let _ids = batch.push(&Request::send(&parts)).unwrap();
            let _ids = batch.push(&Request::fetch_add(mr.remote(), &word, 1).fenced()).unwrap();
            let _ids = batch.push(&inline).unwrap();
        }
        batch.ring().unwrap();
        poller.arm(false).unwrap();
        let mut seen = 0;
        while seen < 24 {
            let n = poller.poll(&mut wcs).unwrap();
            assert!(n > 0 && wcs[..n].iter().all(IbvWc::is_valid));
            seen += n;
        }
        assert_eq!(poller.take_events(), Ok(1));
    };
    // The first rounds fill the trace and meet the route.
    (0..2).for_each(|_| round());
    let before = allocated();
    (0..rounds).for_each(|_| round());
    allocated() - before
}

#[test]
fn posting_ringing_working_and_polling_do_not_allocate() {
    for schedule in [Schedule::InOrder, Schedule::Unordered { seed: 9, chunk: 32 }] {
        let fabric = Fabric::new(FabricConfig { schedule, ..FabricConfig::default() });
        assert_eq!(allocations(&fabric, |d| d, 500), 0, "{schedule:?}, static");
        assert_eq!(allocations(&fabric, AnyDomain::new, 500), 0, "{schedule:?}, erased");
    }
}

#[test]
fn the_counter_counts() {
    let before = allocated();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(allocated() - before, 1);
}
