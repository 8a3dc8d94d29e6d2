//! Strict mode: what real devices would punish without a word is reported, and clean use is not.

mod rig;

use ibv_sys::*;
use rig::raw::Raw;
use rig::*;
use softnic::Config;
use softnic::trace::Breach;

/// Runs a breach by hand; the report must be exactly this.
fn reports(play: impl FnOnce(&mut Rig, &End, &End, &mut Raw) -> Breach) {
    let Some(mut rig) = Rig::start(Config::steps(5)) else { return };
    let (a, b) = rig.pair(Shape { cq_depth: 16, ..Shape::default() });
    let mut raw = Raw::of(&a);
    let expected = play(&mut rig, &a, &b, &mut raw);
    rig.nic.run();
    assert_eq!(rig.nic.take_breaches(), [expected]);
}

#[test]
fn clean_use_by_hand_reports_nothing() {
    let Some(mut rig) = Rig::start(Config::steps(5)) else { return };
    let (a, b) = rig.pair(Shape { cq_depth: 16, ..Shape::default() });
    let mut raw = Raw::of(&a);
    for i in 0..300u16 {
        let wqe = raw.write(&a, &b, i);
        raw.put(i, &wqe);
        raw.publish(i.wrapping_add(1));
        if i % 2 == 0 {
            raw.doorbell(&wqe)
        } else {
            raw.blue_flame(&wqe)
        }
        let cqe = rig.until("a completion", |_| raw.take());
        assert_eq!((cqe[63] >> 4, u16::from_be_bytes([cqe[60], cqe[61]])), (0, i));
    }
    assert_eq!(rig.nic.take_breaches(), []);
}

#[test]
fn a_forgotten_doorbell_is_not_executed_and_reported() {
    reports(|rig, a, b, raw| {
        raw.put(0, &raw.write(a, b, 0));
        raw.publish(1);
        rig.nic.run();
        assert!(raw.take().is_none(), "nothing ran");
        Breach::NoDoorbell { qpn: a.qpn(), record: 1, rung: 0 }
    });
}

#[test]
fn a_doorbell_with_another_queue_pairs_number_is_reported() {
    reports(|_, a, b, raw| {
        let wqe = raw.write(a, b, 0);
        raw.put(0, &wqe);
        raw.publish(1);
        let mut wrong = wqe;
        wrong[5] ^= 0x40;
        raw.doorbell(&wrong);
        Breach::DoorbellQueuePair { qpn: a.qpn() ^ 0x4000 }
    });
}

#[test]
fn a_doorbell_with_a_stale_index_is_reported() {
    reports(|_, a, b, raw| {
        let (first, second) = (raw.write(a, b, 0), raw.write(a, b, 1));
        raw.put(0, &first);
        raw.put(1, &second);
        raw.publish(2);
        raw.doorbell(&first);
        Breach::DoorbellIndex { qpn: a.qpn(), index: 0, record: 2 }
    });
}

#[test]
fn a_blue_flame_copy_that_differs_is_reported_and_the_ring_wins() {
    reports(|rig, a, b, raw| {
        a.memory.put(0, &[7; 8]);
        let wqe = raw.write(a, b, 0);
        raw.put(0, &wqe);
        raw.publish(1);
        let mut copy = wqe;
        copy[23] ^= 8;
        raw.blue_flame(&copy);
        rig.until("a completion", |_| raw.take());
        assert_eq!(b.memory.get(0, 8), [7; 8]);
        Breach::BlueFlame { qpn: a.qpn(), index: 0 }
    });
}

#[test]
fn a_request_changed_after_its_doorbell_is_reported() {
    reports(|rig, a, b, raw| {
        let wqe = raw.write(a, b, 0);
        raw.put(0, &wqe);
        raw.publish(1);
        raw.doorbell(&wqe);
        rig.work();
        let mut changed = wqe;
        changed[35] = 4;
        raw.put(0, &changed);
        rig.until("a completion", |_| raw.take());
        Breach::Changed { qpn: a.qpn(), index: 0 }
    });
}

#[test]
fn more_than_the_ring_holds_is_reported() {
    reports(|_, a, b, raw| {
        let record = raw.sq_blocks as u16 + 1;
        for i in 0..record {
            raw.put(i, &raw.write(a, b, i));
        }
        raw.publish(record);
        raw.doorbell(&raw.write(a, b, record - 1));
        raw.set_consumer(0);
        Breach::Overfull { qpn: a.qpn(), record, done: 0, depth: raw.sq_blocks }
    });
}

#[test]
fn a_consumer_that_runs_ahead_is_reported() {
    reports(|rig, _, _, raw| {
        raw.set_consumer(3);
        rig.nic.run();
        Breach::ConsumerAhead { cqn: 1, consumer: 3, producer: 0 }
    });
}

#[test]
fn a_queue_pair_that_goes_right_after_its_doorbell_broke_no_rule() {
    let Some(mut rig) = Rig::start(Config::thread()) else { return };
    for i in 0..100 {
        let (mut a, b) = rig.pair(Shape::default());
        (0..4).for_each(|id| a.post(&a.request(id, IBV_WR_RDMA_WRITE, 0, 8, &b, 0)));
        if i % 2 == 0 {
            assert_eq!(a.modify(&mut attr(IBV_QPS_RESET), IBV_QP_STATE), 0);
            a.to_init(Shape::default());
        } else {
            a.destroy_qp();
        }
    }
    rig.settle();
    assert_eq!(rig.nic.take_breaches(), []);
}

#[test]
fn a_warning_that_nobody_hears_hurts_nobody() {
    const ROLE: &str = "SOFTNIC_TEST_UNHEARD";
    if std::env::var_os(ROLE).is_some() {
        return softnic::log::warn(&"unheard");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "a_warning_that_nobody_hears_hurts_nobody", "--nocapture"]).env(ROLE, "1");
    let out = again.stderr(writer).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}
