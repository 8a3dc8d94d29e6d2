//! The control path leaves events, a failed step one that says why; posts and polls leave none.
mod ring;
use ibv_core::*;
use ring::{RingDomain, depths, domain, drain, looped};
use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex},
};
use tracing::{Event, Metadata, Subscriber, field::Field, field::Visit, span};

/// Keeps each event as its level and its fields.
#[derive(Clone, Default)]
struct Collect(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Collect {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Collect {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn collected(test: impl FnOnce(&Collect)) {
    let collect = Collect::default();
    tracing::subscriber::with_default(collect.clone(), || test(&collect));
}

/// One event, of this level, with all of these words.
#[track_caller]
fn one(events: Vec<String>, level: &str, words: &[&str]) {
    let [event] = &events[..] else { panic!("one event was expected: {events:#?}") };
    assert!(event.starts_with(level), "{event}");
    for word in words {
        assert!(event.contains(word), "{event} does not say {word}");
    }
}

#[test]
fn a_failed_connect_says_why() {
    collected(|c| {
        let d = domain(RingDomain::default());
        let cq = d.create_cq(8).unwrap();
        let q = d.create_queue_pair(depths(4, 4), &cq, &cq).unwrap();
        c.take();
        let (q, _) = q.connect(&IbvQpInfo::new(Transport::RC, 77)).unwrap_err();
        one(c.take(), "WARN", &["verb=\"connect\"", "Incompatible", "ours transport 0xc0", "theirs RC"]);
        drop(q);
    });
}

#[test]
fn each_step_of_the_control_path_leaves_one_event() {
    collected(|c| {
        let d = domain(RingDomain::default());
        one(c.take(), "DEBUG", &["verb=\"open_device\"", "ring0"]);
        let cq = d.create_cq(8).unwrap();
        one(c.take(), "DEBUG", &["verb=\"create_cq\"", "ring0", "8 entries"]);
        assert!(d.create_cq(0).is_err());
        one(c.take(), "WARN", &["verb=\"create_cq\"", "InvalidConfig"]);
        let mut q = d.create_queue_pair(depths(4, 4), &cq, &cq).unwrap();
        one(c.take(), "DEBUG", &["verb=\"create_qp\"", "ring0"]);
        let me = q.get_qp_info().unwrap();
        let q = q.connect(&me).unwrap();
        one(c.take(), "DEBUG", &["verb=\"connect\"", &format!("{:#x}", me.qp_num)]);
        let mr = d.alloc(64).unwrap();
        one(c.take(), "DEBUG", &["verb=\"reg_mr\"", "64 bytes"]);
        assert!(mr.deregister().is_ok());
        one(c.take(), "DEBUG", &["verb=\"dereg_mr\""]);
        let closing = q.start_close().unwrap();
        one(c.take(), "DEBUG", &["verb=\"modify_qp\"", "ERR"]);
        assert_eq!(closing.finish(), Closed::Drained);
        one(c.take(), "DEBUG", &["verb=\"destroy_qp\"", "Drained"]);
    });
}

#[test]
fn a_region_that_the_device_does_not_let_go_says_that_it_leaks() {
    collected(|c| {
        let d = domain(RingDomain { fail_deregister: true, ..RingDomain::default() });
        let mr = d.alloc(64).unwrap();
        c.take();
        drop(mr);
        one(c.take(), "WARN", &["verb=\"dereg_mr\"", "leaks", "never lets go"]);
    });
}

#[test]
fn a_device_that_nobody_claims_says_each_reason() {
    collected(|c| {
        assert!(Registry::default().open("mlx5_9").is_err());
        one(c.take(), "WARN", &["verb=\"open_device\"", "mlx5_9", "no provider was registered"]);
    });
}

#[test]
fn posts_and_polls_are_silent() {
    collected(|c| {
        let d = domain(RingDomain::default());
        let cq = d.create_cq(16).unwrap();
        let mut q = looped(&d, &cq, depths(4, 4));
        let (mr, mut poller) = (d.alloc(64).unwrap(), cq.poller().unwrap());
        c.take();
        for _ in 0..4 {
            let _ids = q.put(mr.remote(), mr.view()).unwrap();
        }
        assert_eq!(q.put(mr.remote(), mr.view()), Err(PostError::QueueFull));
        assert!(q.queue_pair().put(mr.remote(), mr.view()).is_err());
        q.post_recv(&[mr.view()]).unwrap();
        drop(q.batch());
        assert_eq!(drain(&mut poller).len(), 4);
        assert_eq!(c.take(), [""; 0]);
    });
}
