//! Destroying in every order, in every state, with every destroy verb failing: nothing panics, nothing
//! is destroyed while something else needs it, and what can not be destroyed stays behind.
mod common;
use common::*;
use ibv_core::*;
use provider_mock::*;
use std::time::{Duration, Instant};

/// Everything one end holds.
#[derive(Default)]
struct Held {
    domain: Option<Domain>,
    cq: Option<Cq>,
    poller: Option<Poller<MockDomain>>,
    region: Option<Region>,
    qp: Option<Qp>,
    unconnected: Option<QueuePair<MockQueuePair>>,
    events: Option<Box<dyn EventSource>>,
}

impl Held {
    fn drop_nth(&mut self, n: usize) {
        match n {
            0 => drop(self.domain.take()),
            1 => drop(self.cq.take()),
            2 => drop((self.poller.take(), self.events.take())),
            3 => drop(self.region.take()),
            4 => drop(self.qp.take()),
            _ => drop(self.unconnected.take()),
        }
    }
}

const PARTS: usize = 6;

/// What the queue pair was doing last.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Nothing,
    InFlight,
    Failed,
    Built,
}

fn held(fabric: &Fabric, doing: Doing) -> Held {
    let d = domain(fabric);
    let cq = d.create_cq_with_channel(32).unwrap();
    let mut qp = looped(&d, &cq, 8);
    let region = d.alloc(8).unwrap();
    let unconnected = d.create_queue_pair(config(4, 4), &cq, &cq).unwrap();
    match doing {
        Doing::Nothing => {}
        Doing::InFlight => drop(qp.put(region.remote(), region.view()).unwrap()),
        Doing::Failed => {
            let _ids = qp.put(region.remote(), region.view()).unwrap();
            qp.queue_pair().enter_error().unwrap();
        }
        Doing::Built => {
            let mut batch = qp.batch();
            let _ids = batch.put(region.remote(), region.view()).unwrap();
            std::mem::forget(batch);
        }
    }
    let mut poller = cq.poller().unwrap();
    poller.arm(false).unwrap();
    let (events, domain) = (d.events().ok(), Some(d));
    Held {
        domain,
        cq: Some(cq),
        poller: Some(poller),
        region: Some(region),
        qp: Some(qp),
        unconnected: Some(unconnected),
        events,
    }
}

/// Every order of the parts, by Heap's algorithm.
fn orders(visit: &mut impl FnMut(&[usize; PARTS])) {
    let (mut a, mut c, mut i) = (std::array::from_fn(|i| i), [0; PARTS], 0);
    visit(&a);
    while i < PARTS {
        if c[i] < i {
            a.swap(if i % 2 == 0 { 0 } else { c[i] }, i);
            visit(&a);
            (c[i], i) = (c[i] + 1, 0);
        } else {
            (c[i], i) = (0, i + 1);
        }
    }
}

#[test]
fn every_order_of_destruction_is_sound() {
    for doing in [Doing::Nothing, Doing::InFlight, Doing::Failed, Doing::Built] {
        for schedule in [Schedule::InOrder, Schedule::Unordered { seed: 1, chunk: 4 }] {
            let fabric = Fabric::new(FabricConfig {
                schedule,
                drive: Drive::Manual,
                trace: 0,
                ..FabricConfig::default()
            });
            let mut n = 0;
            orders(&mut |order| {
                let mut held = held(&fabric, doing);
                for part in order {
                    held.drop_nth(*part);
                    fabric.run();
                }
                n += 1;
            });
            let c = fabric.counters();
            assert_eq!((n, c.misuse, c.leaked), (720, 0, 0), "{doing:?} {schedule:?}");
        }
    }
}

#[test]
fn every_order_of_destruction_is_sound_where_destroying_fails_too() {
    for verb in [Verb::DestroyCq, Verb::DestroyQp, Verb::DeallocPd, Verb::DeregMr] {
        let fabric = ordered();
        orders(&mut |order| {
            let mut held = held(&fabric, Doing::InFlight);
            let _ = fabric.faults().fail(verb, 16);
            for part in order {
                held.drop_nth(*part);
                fabric.run();
            }
        });
        let c = fabric.counters();
        let leaked = if verb == Verb::DeregMr { 0 } else { 720 };
        assert_eq!((c.misuse, c.leaked, c.overruns), (0, leaked, 0), "{verb:?}");
    }
}

#[test]
fn a_destroy_that_fails_leaves_its_object_behind_and_nothing_else() {
    for verb in [Verb::DestroyCq, Verb::DestroyQp, Verb::DeallocPd, Verb::DeregMr] {
        let fabric = ordered();
        let _ = fabric.faults().fail_always(verb, 16);
        drop(held(&fabric, Doing::InFlight));
        fabric.run();
        let c = fabric.counters();
        let leaked = match verb {
            Verb::DestroyQp => 2,
            // Its region says so to its owner instead.
            Verb::DeregMr => 0,
            _ => 1,
        };
        assert_eq!((c.leaked, c.misuse), (leaked, 0), "{verb:?}");
        let _ = fabric.faults().clear();
        let [mut a, b] = pair(&fabric);
        let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
        let _ids = a.qp.put(r.remote(), l.view()).unwrap();
        fabric.run();
        assert_eq!((statuses(&a.poll()), r.to_vec()), (vec![WcStatus::SUCCESS], vec![1; 8]), "{verb:?}");
    }
}

#[test]
fn numbers_are_reused_at_once_unless_the_old_one_stays_behind() {
    let fabric = ordered();
    let d = domain(&fabric);
    let cq = d.create_cq(64).unwrap();
    let num = |q: &mut Qp| q.queue_pair().get_qp_info().unwrap().qp_num;
    let (mut a, mut b) = (looped(&d, &cq, 4), looped(&d, &cq, 4));
    assert_eq!((num(&mut a), num(&mut b)), (1, 2));
    drop(a);
    let mut c = looped(&d, &cq, 4);
    assert_eq!(num(&mut c), 1);
    let _ = fabric.faults().fail(Verb::DestroyQp, 16);
    drop(c);
    assert_eq!(num(&mut looped(&d, &cq, 4)), 3);
}

#[test]
fn a_request_never_reaches_the_successor_of_its_peer() {
    for fabric in [ordered(), unordered(3, 2)] {
        let [mut a, b] = pair(&fabric);
        let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
        let End { d, cq, poller, qp } = b;
        drop(qp);
        // Takes the number, and is connected to somebody else.
        let other = d.create_cq(4).unwrap();
        let successor = looped(&d, &other, 4);
        let _ids = a.qp.put(r.remote(), l.view()).unwrap();
        fabric.run();
        assert_eq!((statuses(&a.poll()), r.to_vec()), (vec![WcStatus::RETRY_EXC_ERR], vec![0; 8]));
        drop((successor, poller, cq));
    }
}

/// A reset polls by itself where nobody else does, as a close does, but the queue pair lives on and its queue is
/// for everybody as before.
#[test]
fn a_reset_gives_back_the_poller_that_it_took() {
    let fabric = ordered();
    let d = domain(&fabric);
    let (cq, region) = (d.create_cq(32).unwrap(), d.alloc(8).unwrap());
    let deadline = || Instant::now() + Duration::from_secs(20);
    let mut qp = looped(&d, &cq, 8);
    let _ids = qp.put(region.remote(), region.view()).unwrap();
    let mut qp = qp.reset(deadline()).unwrap();
    drop(cq.poller().expect("the queue is nobody's after the reset"));
    drop(d.create_queue_pair(config(4, 4), &cq, &cq).expect("and takes other queue pairs"));
    // One that polled before keeps what it had.
    let own = qp.get_qp_info().unwrap();
    let mut qp = qp.connect(&own).unwrap();
    assert!(qp.queue_pair().poll_completion(PollTarget::Send).unwrap().is_none());
    let qp = qp.reset(deadline()).unwrap();
    assert_eq!(cq.poller().unwrap_err().kind(), ErrorKind::InUse);
    drop(qp);
    assert!(cq.poller().is_ok());
}
