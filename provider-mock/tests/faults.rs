//! Each fault on purpose, what it looks like from outside, and what it leaves working.
mod common;
use common::*;
use ibv_core::*;
use provider_mock::*;
use std::{os::fd::AsRawFd, time::Duration};

/// Puts 8 bytes from one end to the other, in regions that stay; the request's id.
fn put(a: &mut End, b: &End) -> u64 {
    let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
    let ids = a.qp.put(r.remote(), l.view()).unwrap();
    std::mem::forget((l, r));
    ids.first
}

#[test]
fn every_control_verb_fails_on_its_nth_call_and_works_again() {
    let fabric = ordered();
    let p = MockProvider::new(fabric.clone());
    let ctx = |e: Error, verb: &str| {
        assert_eq!((e.errno(), e.kind(), e.verb()), (Some(12), ErrorKind::OutOfResources, verb));
        assert!(e.to_string().contains("a fault on mock0"), "{e}");
    };
    let _ = fabric.faults().after(1).fail(Verb::Devices, 12);
    let info = p.devices().unwrap().remove(0);
    ctx(p.devices().unwrap_err(), "get_device_list");
    let _ = fabric.faults().fail(Verb::Open, 12);
    ctx(p.open(&info).unwrap_err(), "open_device");
    let d = domain(&fabric);
    let _ = fabric.faults().fail(Verb::CreateCq, 12);
    ctx(d.create_cq(4).unwrap_err(), "create_cq");
    let cq = d.create_cq(8).unwrap();
    let _ = fabric.faults().fail(Verb::CreateQp, 12);
    ctx(d.create_queue_pair(config(4, 0), &cq, &cq).unwrap_err(), "create_qp");
    let mut q = d.create_queue_pair(config(4, 0), &cq, &cq).unwrap();
    let _ = fabric.faults().fail(Verb::QueryQp, 12);
    ctx(q.state().unwrap_err(), "query_qp");
    assert_eq!(q.state().unwrap(), QpState::RESET);
    let me = q.get_qp_info().unwrap();
    let _ = fabric.faults().fail(Verb::ModifyQp, 12);
    let (q, e) = q.connect(&me).unwrap_err();
    ctx(e, "modify_qp");
    let q = q.connect(&me).map_err(|(_, e)| e).unwrap();
    let _ = fabric.faults().fail(Verb::RegMr, 12);
    ctx(d.alloc(8).unwrap_err(), "reg_mr");
    let mr = d.alloc(8).unwrap();
    let _ = fabric.faults().fail(Verb::DeregMr, 12);
    let (mr, e) = mr.deregister().unwrap_err();
    ctx(e, "dereg_mr");
    mr.deregister().map_err(|(_, e)| e).unwrap();
    let _ = fabric.faults().fail(Verb::ModifyQp, 12);
    let (q, e) = q.start_close().unwrap_err();
    ctx(e, "modify_qp");
    drop(q);
}

#[test]
fn the_hot_verbs_fail_and_nothing_of_the_request_is_left() {
    let fabric = ordered();
    let [mut a, mut b] = pair(&fabric);
    let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
    let _ = fabric.faults().fail(Verb::PostSend, 5).fail(Verb::PostRecv, 6).fail(Verb::PollCq, 7);
    assert_eq!(a.qp.put(r.remote(), l.view()), Err(PostError::Device(5)));
    assert_eq!(b.qp.post_recv(&[]), Err(PostError::Device(6)));
    assert_eq!(a.poller.poll(&mut [IbvWc::default()]), Err(PollCompletionError::Device(7)));
    let _ = fabric.faults().after(1).queue_full(1).fail(Verb::ReqNotify, 8);
    let mut batch = a.qp.batch();
    let first = batch.put(r.remote(), l.view()).unwrap();
    assert_eq!(batch.put(r.remote(), l.view()), Err(PostError::QueueFull));
    batch.ring().unwrap();
    assert_eq!((a.qp.in_flight(), fabric.counters().requests), (1, 1));
    fabric.run();
    assert_eq!(a.poll()[0].wr_id(), first.first);
    let _ = fabric.faults().clear();
    a.poller.arm(false).unwrap();
}

#[test]
fn faults_can_be_limited_to_a_device() {
    let fabric = ordered();
    let _ = fabric.faults().on(1).fail_always(Verb::RegMr, 12);
    assert!(open(&fabric, 0).alloc(8).is_ok());
    assert!(open(&fabric, 1).alloc(8).is_err());
    let _ = fabric.faults().clear();
    assert!(open(&fabric, 1).alloc(8).is_ok());
}

#[test]
fn a_lost_message_is_sent_again_and_counted() {
    for fabric in [ordered(), unordered(7, 2)] {
        let [mut a, b] = pair(&fabric);
        let _ = fabric.faults().drop_requests(3);
        put(&mut a, &b);
        fabric.run();
        assert_eq!(statuses(&a.poll()), [WcStatus::SUCCESS]);
        let c = fabric.device_counters(0).unwrap();
        assert_eq!((c.drops, c.retries), (3, 3));
        assert_eq!(fabric.now(), 3 * Duration::from_nanos(4096 << 14));
        let _ = fabric.faults().drop_requests(8);
        put(&mut a, &b);
        fabric.run();
        assert_eq!(statuses(&a.poll()), [WcStatus::RETRY_EXC_ERR]);
    }
}

#[test]
fn a_swallowed_request_never_reports_and_shows_in_the_counters() {
    for fabric in [ordered(), unordered(7, 2)] {
        let [mut a, b] = pair(&fabric);
        let _ = fabric.faults().swallow_requests(1);
        put(&mut a, &b);
        fabric.run();
        assert_eq!((a.poll().len(), a.qp.in_flight(), fabric.counters().drops), (0, 1, 1));
        a.qp.queue_pair().enter_error().unwrap();
        assert_eq!(statuses(&a.poll()), [WcStatus::WR_FLUSH_ERR]);
    }
}

#[test]
fn delays_are_virtual() {
    for fabric in [ordered(), unordered(7, 2)] {
        let [mut a, b] = pair(&fabric);
        let hour = Duration::from_secs(3600);
        let _ = fabric.faults().delay_requests(1, hour).delay_completions(1, hour);
        put(&mut a, &b);
        fabric.advance(hour - Duration::from_nanos(1));
        assert_eq!((a.poll().len(), fabric.counters().bytes), (0, 0));
        fabric.advance(Duration::from_nanos(1));
        assert_eq!((a.poll().len(), fabric.counters().bytes), (0, 8));
        fabric.run();
        assert_eq!((statuses(&a.poll()), fabric.now()), (vec![WcStatus::SUCCESS], 2 * hour));
    }
}

#[test]
fn a_delayed_completion_of_a_destroyed_queue_pair_is_never_written() {
    let fabric = ordered();
    let [mut a, b] = pair(&fabric);
    let _ = fabric.faults().delay_completions(1, Duration::from_secs(1));
    put(&mut a, &b);
    fabric.run();
    put(&mut a, &b);
    let _ = fabric.faults().delay_completions(1, Duration::from_secs(1));
    fabric.step();
    let written = fabric.counters().completions;
    drop(a.qp);
    fabric.run();
    assert_eq!(fabric.counters().completions, written);
}

#[test]
fn not_ready_on_purpose_retries_and_then_gives_up() {
    for fabric in [ordered(), unordered(7, 2)] {
        let [mut a, mut b] = pair(&fabric);
        let l = a.alloc(1, 8);
        b.qp.post_recv(&[b.alloc(0, 8).view()]).unwrap();
        let r = b.alloc(0, 8);
        b.qp.post_recv(&[r.view()]).unwrap();
        let _ = fabric.faults().not_ready(7);
        put(&mut a, &b);
        fabric.run();
        assert_eq!(statuses(&a.poll()), [WcStatus::SUCCESS], "a put needs no receive");
        let _ids = a.qp.send(l.view()).unwrap();
        fabric.run();
        assert_eq!(statuses(&a.poll()), [WcStatus::RNR_RETRY_EXC_ERR]);
        assert_eq!(fabric.counters().rnr_naks, 7);
    }
}

#[test]
fn a_request_fails_with_the_status_asked_for() {
    for fabric in [ordered(), unordered(7, 2)] {
        let [mut a, b] = pair(&fabric);
        let _ = fabric.faults().after(1).fail_request(WcStatus::REM_OP_ERR);
        put(&mut a, &b);
        fabric.run();
        assert_eq!(statuses(&a.poll()), [WcStatus::SUCCESS]);
        let bad = put(&mut a, &b);
        fabric.run();
        assert_eq!(statuses(&a.poll()), [WcStatus::REM_OP_ERR]);
        assert_eq!(a.qp.first_error().unwrap().wr_id, bad);
    }
}

#[test]
fn a_repeated_request_takes_effect_twice_and_reports_once() {
    for fabric in [ordered(), unordered(7, 2)] {
        let [mut a, mut b] = pair(&fabric);
        let (l, r) = (a.alloc(1, 8), b.alloc(0, 8));
        for _ in 0..3 {
            b.qp.post_recv(&[r.view()]).unwrap();
        }
        let _ = fabric.faults().repeat_requests(1);
        let _ids = a.qp.send(l.view()).unwrap();
        fabric.run();
        assert_eq!(
            (statuses(&a.poll()), statuses(&b.poll())),
            (vec![WcStatus::SUCCESS], vec![WcStatus::SUCCESS; 2])
        );
    }
}

#[test]
fn completions_are_lost_repeated_and_poisoned() {
    let fabric = ordered();
    let [mut a, b] = pair(&fabric);
    let _ = fabric.faults().lose_completions(1);
    put(&mut a, &b);
    fabric.run();
    assert_eq!((a.poll().len(), a.qp.in_flight()), (0, 1));
    put(&mut a, &b);
    fabric.run();
    assert_eq!((a.poll().len(), a.qp.in_flight()), (1, 0), "in order, the next stands for the lost one");

    let _ = fabric.faults().repeat_completions(1);
    let twice = put(&mut a, &b);
    fabric.run();
    let e = a.poller.poll(&mut [IbvWc::default(); 4]).unwrap_err();
    assert_eq!(e, PollCompletionError::Corrupt(twice));

    let [mut a, b] = pair(&fabric);
    let _ = fabric.faults().poison_completions(1);
    put(&mut a, &b);
    fabric.run();
    let e = a.poller.poll(&mut [IbvWc::default(); 4]).unwrap_err();
    assert_eq!(e, PollCompletionError::Corrupt(u64::MAX));
}

#[test]
fn an_overrun_queue_is_an_error_and_takes_its_queue_pairs_with_it() {
    for fabric in [ordered(), unordered(7, 2)] {
        let [mut a, mut b] = pair(&fabric);
        let mut events = a.d.events().unwrap();
        a.poller.arm(false).unwrap();
        let _ = fabric.faults().after(1).overrun();
        put(&mut a, &b);
        put(&mut a, &b);
        fabric.run();
        assert_eq!(a.poller.take_events().unwrap(), 1);
        let mut wcs = [IbvWc::default(); 4];
        assert_eq!(a.poller.poll(&mut wcs), Ok(1), "what fitted is still there");
        assert_eq!(a.poller.poll(&mut wcs), Err(PollCompletionError::Device(75)));
        assert_eq!((a.qp.state().unwrap(), b.qp.state().unwrap()), (QpState::ERR, QpState::RTS));
        let kinds: Vec<_> = std::iter::from_fn(|| events.next_event().unwrap()).map(|e| e.kind).collect();
        assert_eq!(kinds, [EventType::CQ_ERR, EventType::QP_FATAL]);
        assert!(fabric.counters().overruns > 0);
    }
}

#[test]
fn a_dead_device_fails_its_oldest_request_flushes_the_rest_and_says_so() {
    for fabric in [ordered(), unordered(7, 2)] {
        let [mut a, b] = pair(&fabric);
        let mut events = a.d.events().unwrap();
        let first = put(&mut a, &b);
        put(&mut a, &b);
        a.qp.post_recv(&[]).unwrap();
        let _ = fabric.faults().device_fatal(0);
        let wcs = a.poll();
        assert_eq!(statuses(&wcs), [WcStatus::FATAL_ERR, WcStatus::WR_FLUSH_ERR, WcStatus::WR_FLUSH_ERR]);
        assert_eq!((wcs[0].wr_id(), a.qp.state().unwrap()), (first, QpState::ERR));
        let e = events.next_event().unwrap().unwrap();
        assert_eq!((e.kind, e.object), (EventType::DEVICE_FATAL, EventObject::Device));
        assert_eq!(a.d.alloc(8).unwrap_err().errno(), Some(5));
        assert_eq!(a.d.create_cq(8).unwrap_err().errno(), Some(5));
        assert_eq!(a.qp.post_recv(&[]), Err(PostError::Device(5)));
        assert!(b.d.alloc(8).is_ok(), "the other device lives");
    }
}

#[test]
fn ports_go_down_and_come_back_within_the_retries() {
    for fabric in [ordered(), unordered(7, 2)] {
        let [mut a, b] = pair(&fabric);
        let mut events = b.d.events().unwrap();
        let _ = fabric.faults().port_down(1).port_down(1);
        let listed = MockProvider::new(fabric.clone()).devices().unwrap();
        assert_eq!(
            (listed[0].ports[0].state, listed[1].ports[0].state),
            (PortState::ACTIVE, PortState::DOWN)
        );
        put(&mut a, &b);
        fabric.advance(Duration::from_millis(100));
        assert_eq!(a.poll().len(), 0);
        let _ = fabric.faults().port_up(1);
        fabric.run();
        assert_eq!(statuses(&a.poll()), [WcStatus::SUCCESS]);
        let kinds: Vec<_> = std::iter::from_fn(|| events.next_event().unwrap()).map(|e| e.kind).collect();
        assert_eq!(kinds, [EventType::PORT_ERR, EventType::PORT_ACTIVE]);
    }
}

#[test]
fn a_changed_gid_strands_who_used_the_old_one_and_not_who_comes_later() {
    let fabric = ordered();
    let [mut a, b] = pair(&fabric);
    let mut events = b.d.events().unwrap();
    let old = b.d.device_info().ports[0].gids[0].gid;
    let _ = fabric.faults().change_gid(1);
    assert_eq!(events.next_event().unwrap().unwrap().kind, EventType::GID_CHANGE);
    put(&mut a, &b);
    fabric.run();
    assert_eq!(statuses(&a.poll()), [WcStatus::RETRY_EXC_ERR]);
    let mut stale = config(1, 0);
    stale.gid = GidChoice::Exact(old);
    let cq = b.d.create_cq(1).unwrap();
    let e = b.d.create_queue_pair(stale, &cq, &cq).unwrap_err();
    assert!(e.to_string().contains(&old.to_string()), "{e}");
    let [mut a, b] = pair(&fabric);
    put(&mut a, &b);
    fabric.run();
    assert_eq!(statuses(&a.poll()), [WcStatus::SUCCESS]);
}

#[test]
fn a_peer_that_is_gone_and_comes_back_in_time_costs_retries_only() {
    for fabric in [ordered(), unordered(7, 2)] {
        let [mut a, b] = pair(&fabric);
        put(&mut a, &b);
        fabric.step();
        fabric.step();
        let _ = fabric.faults().peer_gone(1);
        put(&mut a, &b);
        fabric.advance(Duration::from_millis(200));
        let _ = fabric.faults().peer_back(1);
        fabric.run();
        assert_eq!(statuses(&a.poll()), [WcStatus::SUCCESS; 2]);
        assert!(fabric.counters().retries > 0);
    }
}

#[test]
fn late_accesses_are_tried_refused_and_counted() {
    for fabric in [ordered(), unordered(7, 2)] {
        let _ = fabric.faults().late_access();
        let [mut a, b] = pair(&fabric);
        let r = b.alloc(0, 8);
        let l = a.alloc(1, 8);
        let _ids = a.qp.put(r.remote(), l.view()).unwrap();
        a.qp.queue_pair().enter_error().unwrap();
        assert_eq!(fabric.counters().late_refused, 1, "the flushed request");
        drop(l);
        assert_eq!(fabric.counters().late_refused, 2, "the region");
        fabric.run();
        assert_eq!(r.to_vec(), [0; 8]);
        assert!(fabric.trace().contains("refuses a late access"));
    }
}

#[test]
fn a_queue_pair_fails_by_itself_and_its_event_names_it() {
    let fabric = ordered();
    let [mut a, mut b] = pair(&fabric);
    let num = b.qp.queue_pair().get_qp_info().unwrap().qp_num;
    let mut events = b.d.events().unwrap();
    let _ = fabric.faults().queue_pair_fatal(1, num).queue_pair_fatal(1, 999).device_fatal(99).port_down(99);
    let e = events.next_event().unwrap().unwrap();
    assert_eq!((e.kind, e.object), (EventType::QP_FATAL, EventObject::QueuePair(num)));
    assert_eq!(events.next_event().unwrap(), None);
    put(&mut a, &b);
    fabric.run();
    assert_eq!(statuses(&a.poll()), [WcStatus::RETRY_EXC_ERR]);
    assert!(events.as_fd().as_raw_fd() >= 0);
}

/// Turns the third request into a put of something else, drops the fourth, delays the fifth, and lies
/// about one completion.
#[derive(Debug, Default)]
struct Meddler {
    requests: u32,
    completions: u32,
}

impl Tap for Meddler {
    fn request(&mut self, r: &mut TapRequest<'_>) -> Verdict {
        self.requests += 1;
        match self.requests {
            3 => {
                r.local[0].len -= 1;
                Verdict::Keep
            }
            4 => Verdict::Drop,
            5 => Verdict::Delay(Duration::from_secs(9)),
            _ => Verdict::Keep,
        }
    }
    fn completion(&mut self, device: u16, wc: &mut IbvWc) -> Verdict {
        assert_eq!(device, 0);
        self.completions += 1;
        if self.completions == 2 {
            wc.byte_len = 1234;
        }
        Verdict::Keep
    }
}

#[test]
fn a_tap_sees_changes_drops_and_delays() {
    for fabric in [ordered(), unordered(7, 4)] {
        let [mut a, b] = pair(&fabric);
        let (l, r) = (a.alloc(1, 8), b.alloc(0, 48));
        fabric.set_tap(Meddler::default());
        let mut completions = Vec::new();
        for i in 0..6 {
            let _ids = a.qp.put(r.remote().slice(8 * i, 8).unwrap(), l.view()).unwrap();
            while fabric.now() == Duration::ZERO && fabric.step() {}
            completions.extend(a.poll());
        }
        fabric.run();
        completions.extend(a.poll());
        assert_eq!((completions.len(), completions[1].byte_len), (5, 1234));
        let mut want = [1; 48];
        want[23..32].fill(0);
        assert_eq!(r.to_vec(), want);
        assert_eq!(fabric.now(), Duration::from_secs(9));
        fabric.clear_tap();
        put(&mut a, &b);
        fabric.run();
        assert_eq!(a.poll()[0].byte_len, 0);
    }
}

/// Asks the fabric when it goes, as a tap does that owns regions or queue pairs.
#[derive(Debug)]
struct Owner(Fabric, std::sync::mpsc::Sender<Duration>);

impl Tap for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.1.send(self.0.now());
    }
}

#[test]
fn a_tap_that_takes_the_fabric_s_lock_as_it_goes_can_be_replaced_and_taken_off() {
    let fabric = ordered();
    let (gone, dropped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let tap = || Owner(fabric.clone(), gone.clone());
        fabric.set_tap(tap());
        fabric.set_tap(tap());
        fabric.clear_tap();
    });
    for which in ["the replaced one", "the one taken off"] {
        let went = dropped.recv_timeout(Duration::from_secs(20));
        assert!(went.is_ok(), "waited 20 s for {which} to go: it waits for a lock that its own drop holds");
    }
}
