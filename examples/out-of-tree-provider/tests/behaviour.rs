//! What the suite can not know about this provider: where its fabric ends, and what threads may do on it.

use ibv_core::{Connected, ErrorKind, IbvConfig, IbvDomain, IbvWc, Poller, Provider, Request, WcStatus};
use provider_shm::{ShmDomain, ShmProvider, ShmQueuePair};
use std::{
    thread,
    time::{Duration, Instant},
};

fn open(provider: &ShmProvider, device: usize) -> IbvDomain<ShmDomain> {
    let info = provider.devices().unwrap().swap_remove(device);
    IbvDomain::new(provider.open(&info).unwrap(), info)
}

type End = (Connected<ShmQueuePair>, Poller<ShmDomain>);

fn connect(a: &IbvDomain<ShmDomain>, b: &IbvDomain<ShmDomain>, config: &IbvConfig) -> [End; 2] {
    let [cq_a, cq_b] = [a, b].map(|d| d.create_cq(256).unwrap());
    let mut qa = a.create_queue_pair(config.clone(), &cq_a, &cq_a).unwrap();
    let mut qb = b.create_queue_pair(config.clone(), &cq_b, &cq_b).unwrap();
    let (ia, ib) = (qa.get_qp_info().unwrap(), qb.get_qp_info().unwrap());
    let (qa, qb) = (qa.connect(&ib).unwrap(), qb.connect(&ia).unwrap());
    [(qa, cq_a.poller().unwrap()), (qb, cq_b.poller().unwrap())]
}

fn wait(poller: &mut Poller<ShmDomain>) -> IbvWc {
    let (mut wc, end) = ([IbvWc::default()], Instant::now() + Duration::from_secs(10));
    while poller.poll(&mut wc).unwrap() == 0 {
        assert!(Instant::now() < end, "waited 10 s for a completion");
        thread::yield_now();
    }
    wc[0]
}

#[test]
fn a_peer_on_another_fabric_is_refused_and_both_are_named() {
    let [here, there] = [ShmProvider::default(), ShmProvider::default()].map(|p| open(&p, 0));
    let cqs = [&here, &there].map(|d| d.create_cq(256).unwrap());
    let mut ours = here.create_queue_pair(IbvConfig::default(), &cqs[0], &cqs[0]).unwrap();
    let mut theirs = there.create_queue_pair(IbvConfig::default(), &cqs[1], &cqs[1]).unwrap();
    let [us, them] = [&mut ours, &mut theirs].map(|qp| qp.get_qp_info().unwrap());
    let (_, e) = ours.connect(&them).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Incompatible);
    for end in [us, them] {
        assert!(e.to_string().contains(&end.gid.unwrap().to_string()), "{e}");
    }
}

#[test]
fn additions_of_several_threads_all_count() {
    const EACH: u64 = 200;
    let provider = ShmProvider::default();
    let target = open(&provider, 1);
    let counter = target.alloc(8).unwrap();
    let remote = counter.remote();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let ours = open(&provider, 0);
                let [(mut qp, mut poller), _peer] = connect(&ours, &target, &IbvConfig::default());
                let old = ours.alloc(8).unwrap();
                for _ in 0..EACH {
                    let _ = qp.post(&Request::fetch_add(remote, &[old.view()], 1)).unwrap();
                    assert_eq!(wait(&mut poller).status, WcStatus::SUCCESS);
                }
            });
        }
    });
    assert_eq!(counter.to_vec(), (4 * EACH).to_ne_bytes());
}

#[test]
fn a_send_waits_for_its_receive_in_another_thread() {
    let provider = ShmProvider::default();
    let (a, b) = (open(&provider, 0), open(&provider, 1));
    let mut config = IbvConfig::default();
    config.rnr_retry = 7;
    let [(mut qa, mut pa), (mut qb, mut pb)] = connect(&a, &b, &config);
    let (src, dst) = (a.alloc(5).unwrap(), b.alloc(8).unwrap());
    src.write_at(0, b"hello").unwrap();
    let _ = qa.send(src.view()).unwrap();
    let receiver = thread::spawn(move || {
        qb.post_recv(&[dst.view()]).unwrap();
        let wc = wait(&mut pb);
        (wc.byte_len, dst.to_vec())
    });
    assert_eq!(wait(&mut pa).status, WcStatus::SUCCESS);
    assert_eq!(receiver.join().unwrap(), (5, b"hello\0\0\0".to_vec()));
}

#[test]
fn messages_into_a_region_that_is_dropped_meanwhile_fail_or_arrive() {
    let provider = ShmProvider::default();
    let (a, b) = (open(&provider, 0), open(&provider, 0));
    let src = a.alloc(1 << 16).unwrap();
    for _ in 0..50 {
        let [(mut qp, mut poller), _peer] = connect(&a, &b, &IbvConfig::default());
        let dst = b.alloc(1 << 16).unwrap();
        let remote = dst.remote();
        let dropper = thread::spawn(move || drop(dst));
        let _ = qp.put(remote, src.view()).unwrap();
        let status = wait(&mut poller).status;
        assert!([WcStatus::SUCCESS, WcStatus::REM_ACCESS_ERR].contains(&status), "{status}");
        dropper.join().unwrap();
    }
}
