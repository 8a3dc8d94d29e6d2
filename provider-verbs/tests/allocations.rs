//! The hot path allocates nothing: building, ringing, posting receives and polling, through the real
//! library over the software device. Without the library it is skipped, and says so.

#[path = "../../ibv-core/tests/counting/mod.rs"]
mod counting;
use counting::allocated;
use ibv_core::{Connected, Error, IbvConfig, IbvDomain, IbvWc, Op, Payload, Provider, Request};
use provider_verbs::{VerbsProvider, VerbsQueuePair};
use softnic::{Config, Softnic};
use std::time::{Duration, Instant};

#[test]
fn posting_and_polling_allocate_nothing() {
    let nic = Softnic::start(Config::thread()).unwrap();
    let provider = VerbsProvider::default();
    let device = match provider.devices() {
        Ok(mut list) => list.remove(0),
        Err(e) => return println!("skipped: {e}"),
    };
    let domain = IbvDomain::new(provider.open(&device).unwrap(), device);
    let (cq, mut config) = (domain.create_cq(256).unwrap(), IbvConfig::default());
    config.max_inline = 16;
    let mut qp = domain.create_queue_pair(config, &cq, &cq).unwrap();
    let info = qp.get_qp_info().unwrap();
    let mut qp = qp.connect(&info).map_err(|(_, e): (_, Error)| e).unwrap();
    let mut poller = cq.poller().unwrap();
    let region = domain.alloc(4096).unwrap();
    let round = |qp: &mut Connected<VerbsQueuePair>| {
        let before = allocated();
        qp.post_recv(&[region.view()]).unwrap();
        let mut batch = qp.batch();
        for _ in 0..8 {
            let _ids = batch.put(region.remote(), region.view().slice(0, 8).unwrap()).unwrap();
            let _ids =
                batch.get(region.view().slice(8, 8).unwrap(), region.remote().slice(8, 8).unwrap()).unwrap();
        }
        let _ids = batch.push(&Request::new(Op::Write, region.remote(), Payload::Inline(b"inline"))).unwrap();
        batch.ring().unwrap();
        let _ids = qp.put_with_imm(region.remote(), region.view(), 7).unwrap();
        allocated() - before
    };
    let mut drain = |n: usize| {
        let (before, mut got, give_up) = (allocated(), 0, Instant::now() + Duration::from_secs(20));
        let mut wcs = [IbvWc::default(); 8];
        while got < n {
            let polled = poller.poll(&mut wcs).unwrap();
            assert!(wcs[..polled].iter().all(IbvWc::is_valid), "{wcs:?}");
            got += polled;
            assert!(Instant::now() < give_up, "waited for {n} completions, {got} came");
            std::thread::yield_now();
        }
        allocated() - before
    };
    // The first round meets the queue pair's route and whatever the library sets up lazily.
    round(&mut qp);
    drain(19);
    let (posted, polled) = (round(&mut qp), drain(19));
    assert_eq!((posted, polled), (0, 0), "allocations in posting 19 requests and in polling them");
    drop((qp, region, domain, nic));
}
