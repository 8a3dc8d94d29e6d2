//! Streams over the toy provider of `ring/`: no wake-up is lost, whenever the completion comes.
mod ring;
use futures_core::Stream;
use ibv_core::{
    stream::{CompletionStream, EventStream},
    *,
};
use ring::{Faults, NONE, RingDomain, RingQueuePair, Shared, depths, domain, looped};
use std::{
    future::{Future, poll_fn},
    io::Write,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

type Completions = CompletionStream<RingDomain>;

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test)
}

/// Passes a wake-up on and remembers it.
struct Woken(AtomicBool, Waker);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
        self.1.wake_by_ref();
    }
}

/// The next item; a minute is not a measurement, it is a lost wake-up. The stream is asked again only
/// when it asked for that: a deadline that looked once more would find what the stream had lost.
async fn next<S: Stream + Unpin>(stream: &mut S, what: &str) -> Option<S::Item> {
    let mut woken: Option<Arc<Woken>> = None;
    let item = poll_fn(|cx| {
        let woken = woken.get_or_insert_with(|| Arc::new(Woken(AtomicBool::new(true), cx.waker().clone())));
        if !woken.0.swap(false, SeqCst) {
            return Poll::Pending;
        }
        let waker = Waker::from(woken.clone());
        Pin::new(&mut *stream).poll_next(&mut Context::from_waker(&waker))
    });
    let Ok(item) = tokio::time::timeout(Duration::from_secs(60), item).await else {
        panic!("waited a minute for {what}")
    };
    item
}

/// Whether the stream has nothing now; it is woken when it has.
async fn is_pending<S: Stream + Unpin>(stream: &mut S) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_next(cx).is_pending())).await
}

struct Setup {
    _domain: IbvDomain<RingDomain>,
    queue: Arc<Shared>,
    qp: Connected<RingQueuePair>,
    cq: Arc<IbvCq<RingDomain>>,
}

impl Setup {
    fn new(faults: Faults) -> Self {
        let d = domain(RingDomain::with(faults));
        let cq = d.create_cq_with_channel(64).unwrap();
        let qp = looped(&d, &cq, depths(64, 0));
        let queue = d.imp().queues.lock().unwrap()[0].clone();
        Self { _domain: d, queue, qp, cq }
    }
    fn stream(&self) -> Completions {
        CompletionStream::new(self.cq.poller().unwrap()).unwrap()
    }
    fn put(&mut self) -> u64 {
        let local = IbvMemoryRegionView::from_raw_parts(0, 8, 1);
        let remote = IbvRemoteMemoryRegionView { addr: 0, len: 8, rkey: 2 };
        self.qp.put(remote, local).unwrap().first
    }
}

#[test]
fn what_was_there_before_needs_no_event() {
    run(async {
        let mut s = Setup::new(NONE);
        let posted: Vec<_> = (0..40).map(|_| s.put()).collect();
        let mut stream = s.stream();
        for id in posted {
            assert_eq!(next(&mut stream, "an old completion").await.unwrap().unwrap().wr_id, id);
        }
        assert!(is_pending(&mut stream).await);
    });
}

#[test]
fn what_comes_while_the_queue_is_being_armed_is_found_by_the_second_poll() {
    run(async {
        let mut s = Setup::new(NONE);
        let mut stream = s.stream();
        s.queue.hold.store(true, SeqCst);
        s.queue.release_on_arm.store(true, SeqCst);
        for _ in 0..3 {
            let id = s.put();
            let wc = next(&mut stream, "a completion that raised no event").await.unwrap().unwrap();
            assert_eq!(wc.wr_id, id);
            // Takes the arm off again, so that the next round arms anew.
            s.queue.hold.store(false, SeqCst);
            let id = s.put();
            assert_eq!(next(&mut stream, "its successor").await.unwrap().unwrap().wr_id, id);
            s.queue.hold.store(true, SeqCst);
        }
    });
}

#[test]
fn what_comes_while_it_sleeps_wakes_it_every_time() {
    run(async {
        let mut s = Setup::new(NONE);
        let mut stream = s.stream();
        for _ in 0..100 {
            assert!(is_pending(&mut stream).await, "armed and asleep");
            let (a, b) = (s.put(), s.put());
            for id in [a, b] {
                assert_eq!(next(&mut stream, "the event").await.unwrap().unwrap().wr_id, id);
            }
        }
    });
}

#[test]
fn a_poster_on_another_thread_and_a_stream_neither_lose_nor_invent_a_completion() {
    const N: usize = 20_000;
    run(async {
        let mut s = Setup::new(NONE);
        let mut stream = s.stream();
        let posting = thread::spawn(move || {
            let local = IbvMemoryRegionView::from_raw_parts(0, 8, 1);
            let remote = IbvRemoteMemoryRegionView { addr: 0, len: 8, rkey: 2 };
            let mut posted = 0;
            while posted < N {
                match s.qp.put(remote, local) {
                    Ok(_) => posted += 1,
                    Err(PostError::QueueFull) => thread::yield_now(),
                    Err(e) => panic!("{e}"),
                }
            }
            s
        });
        for seq in 0..N as u64 {
            let wc = next(&mut stream, "one of many").await.unwrap().unwrap();
            assert_eq!(wc.wr_id & ((1 << 48) - 1), seq);
        }
        let s = posting.join().unwrap();
        assert!(is_pending(&mut stream).await);
        assert_eq!(s.qp.free_slots(), 64);
    });
}

#[test]
fn a_stream_fails_once_and_ends() {
    run(async {
        let mut s = Setup::new(Faults { wr_id: 1 << 60, ..NONE });
        s.put();
        let mut stream = s.stream();
        let first = next(&mut stream, "the failure").await.unwrap();
        assert!(matches!(first, Err(PollCompletionError::Corrupt(_))));
        assert!(next(&mut stream, "the end").await.is_none());
    });
}

#[test]
fn the_poller_comes_back_with_what_was_not_taken() {
    run(async {
        let mut s = Setup::new(NONE);
        let mut stream = s.stream();
        assert!(s.cq.poller().is_err(), "the stream has it");
        let ids: Vec<_> = (0..3).map(|_| s.put()).collect();
        assert_eq!(next(&mut stream, "the first").await.unwrap().unwrap().wr_id, ids[0]);
        let (poller, rest) = stream.into_poller();
        assert_eq!(rest.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), ids[1..]);
        drop(poller);
        drop(s.stream());
        assert!(s.cq.poller().is_ok());
    });
}

#[test]
fn a_queue_without_a_channel_and_a_thread_without_a_runtime_are_refused() {
    let d = domain(RingDomain::default());
    let cq = d.create_cq(8).unwrap();
    let e = run(async { CompletionStream::new(cq.poller().unwrap()).unwrap_err() });
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("create_cq_with_channel"), "{e}");
    let cq = d.create_cq_with_channel(8).unwrap();
    let e = CompletionStream::new(cq.poller().unwrap()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidState);
    assert!(cq.poller().is_ok(), "it went back");
    assert_eq!(EventStream::new(d.events().unwrap()).unwrap_err().kind(), ErrorKind::InvalidState);
}

#[test]
fn events_stream_in_order_and_wake_a_sleeper() {
    run(async {
        let d = domain(RingDomain::default());
        let mut events = EventStream::new(d.events().unwrap()).unwrap();
        let raise = |kind: EventType| {
            let mut end = &d.imp().event_ends.lock().unwrap()[0];
            end.write_all(&kind.0.to_be_bytes()).unwrap();
        };
        for _ in 0..3 {
            assert!(is_pending(&mut events).await);
            raise(EventType::PORT_ERR);
            raise(EventType::PORT_ACTIVE);
            for kind in [EventType::PORT_ERR, EventType::PORT_ACTIVE] {
                let event = next(&mut events, "an event").await.unwrap().unwrap();
                assert_eq!((event.kind, event.object), (kind, EventObject::Device));
            }
        }
        d.imp().event_ends.lock().unwrap().clear();
        assert!(next(&mut events, "the broken channel").await.unwrap().is_err());
        assert!(next(&mut events, "the end").await.is_none());
    });
}
