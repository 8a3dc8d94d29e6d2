//! Posting, ringing, dropping and polling do not allocate, by either dispatch.

mod counting;
mod ring;
use counting::allocated;
use ibv_core::*;

const ROUNDS: usize = 1000;

fn config() -> IbvConfig {
    let mut config = ring::depths(64, 32);
    (config.max_send_sge, config.max_recv_sge, config.max_inline) = (4, 4, 32);
    if cfg!(feature = "recorder") {
        config.flight_recorder = 16;
    }
    config
}

/// Runs `round` often and returns how many times it allocated, the first round left out: it meets the
/// queue pair.
fn allocations<D: IbvDomainImpl>(
    imp: D,
    mut round: impl FnMut(&mut Connected<D::QueuePair>, &mut Poller<D>, &IbvMemoryRegion<D>),
) -> usize {
    let d = IbvDomain::new(imp, IbvDeviceInfo::new("ring0"));
    let cq = d.create_cq(128).unwrap();
    let mut qp = ring::looped(&d, &cq, config());
    let (mr, mut poller) = (d.alloc(4096).unwrap(), cq.poller().unwrap());
    round(&mut qp, &mut poller, &mr);
    let before = allocated();
    (0..ROUNDS).for_each(|_| round(&mut qp, &mut poller, &mr));
    allocated() - before
}

/// The same test over both dispatches.
macro_rules! never_allocates {
    ($($name:ident: $round:expr;)*) => { $(
        #[test]
        fn $name() {
            assert_eq!(allocations(ring::RingDomain::default(), $round), 0, "static");
            assert_eq!(allocations(AnyDomain::new(ring::RingDomain::default()), $round), 0, "erased");
        }
    )* };
}

never_allocates! {
    a_batch_of_puts_and_its_completions: |qp, poller, mr| {
        let mut batch = qp.batch();
        for _ in 0..16 {
            let _ids = batch.put(mr.remote(), mr.view()).unwrap();
        }
        batch.ring().unwrap();
        assert_eq!(poller.poll(&mut [IbvWc::default(); 32]), Ok(16));
    };
    a_dropped_batch: |qp, poller, mr| {
        let mut batch = qp.batch();
        for _ in 0..16 {
            let _ids = batch.get(mr.view(), mr.remote()).unwrap();
        }
        drop(batch);
        assert_eq!(poller.poll(&mut [IbvWc::default(); 32]), Ok(0));
    };
    requests_of_several_ranges_inline_unsignaled_and_fenced: |qp, poller, mr| {
        let piece = |i: usize| mr.view().slice(i * 64, 64).unwrap();
        let ranges = [piece(0), piece(1), mr.view().slice(0, 0).unwrap(), piece(2)];
        let mut batch = qp.batch();
        let _ids = batch.push(&Request::put(mr.remote(), &ranges).unsignaled()).unwrap();
        let _ids = batch.push(&Request::get(&ranges[..2], mr.remote().slice(0, 128).unwrap())).unwrap();
        let _ids = batch.push(&Request::new(Op::Write, mr.remote(), Payload::Inline(b"inline"))).unwrap();
        let _ids = batch.push(&Request::put(mr.remote(), &ranges).fenced()).unwrap();
        batch.ring().unwrap();
        assert_eq!(poller.poll(&mut [IbvWc::default(); 32]), Ok(3));
    };
    a_transfer_in_chunks: |qp, poller, _mr| {
        let long = IbvMemoryRegionView::from_raw_parts(0, 5 << 30, 1);
        let remote = IbvRemoteMemoryRegionView { addr: 0, len: 5 << 30, rkey: 1 };
        assert_eq!(qp.put(remote, long).unwrap().count, 5);
        assert_eq!(poller.poll(&mut [IbvWc::default(); 32]), Ok(5));
    };
    receives_and_the_sends_that_consume_them: |qp, poller, mr| {
        let ranges = [mr.view().slice(0, 64).unwrap(), mr.view().slice(0, 0).unwrap()];
        for used in [&ranges[..1], &ranges[..], &[]] {
            qp.post_recv(used).unwrap();
            let _ids = qp.send(ranges[0]).unwrap();
        }
        assert_eq!(poller.poll(&mut [IbvWc::default(); 32]), Ok(6));
    };
    refusals: |qp, _poller, mr| {
        let long = [mr.view(); 5];
        assert_eq!(qp.post(&Request::put(mr.remote(), &long)), Err(PostError::TooManySge));
        assert_eq!(qp.put(mr.remote().slice(0, 1).unwrap(), mr.view()), Err(PostError::OutOfBounds));
        assert_eq!(qp.post_recv(&long), Err(PostError::TooManySge));
        let mut batch = qp.batch();
        for _ in 0..64 {
            let _ids = batch.put(mr.remote(), mr.view()).unwrap();
        }
        assert_eq!(batch.put(mr.remote(), mr.view()), Err(PostError::QueueFull));
    };
}
