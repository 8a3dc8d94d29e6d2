//! Models of everything that two threads share: credits, the hand-over of a poller, routes that come and
//! go under one. Each runs every interleaving with at most three preemptions. The "device" is the
//! smallest that can be had: it completes what was rung, at once.
#![allow(unsafe_code)]
//! # Safety
//! Loom's cells check each access themselves; that is what they are here for.

use crate::{
    core::{Owner, Route, WorkQueue},
    sync::{AtomicU64, Ordering::*},
    *,
};
use loom::{cell::UnsafeCell, thread};
use std::{ptr::NonNull, sync::Arc};

const SLOTS: usize = 8;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Completion entries as a device writes them: plain memory behind an index. Loom fails the model where
/// an entry is written while it may still be read.
#[derive(Debug)]
struct Shared {
    rung: AtomicU64,
    ids: [UnsafeCell<u64>; SLOTS],
    /// Entries in use before they are written again.
    depth: u64,
}

// SAFETY: the cells are shared, which is what loom checks.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(depth: u64) -> Arc<Self> {
        let ids = std::array::from_fn(|_| UnsafeCell::new(0));
        Arc::new(Self { rung: AtomicU64::new(0), ids, depth })
    }
    fn complete(&self, id: u64) {
        let at = self.rung.load(Relaxed);
        // SAFETY: loom checks it.
        self.ids[(at % self.depth) as usize].with_mut(|p| unsafe { *p = id });
        self.rung.store(at + 1, Release);
    }
    fn read(&self, at: u64) -> Option<u64> {
        // SAFETY: loom checks it.
        (at < self.rung.load(Acquire)).then(|| self.ids[(at % self.depth) as usize].with(|p| unsafe { *p }))
    }
}

#[derive(Debug)]
struct Device(u64);
#[derive(Debug)]
struct Exclusive(Arc<Shared>, u64);
#[derive(Debug)]
struct Registered;
#[derive(Debug)]
struct Pair {
    cq: Arc<Shared>,
    built: Vec<u64>,
    core: QpCore,
}

impl CompletionQueue for Exclusive {
    fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        let mut n = 0;
        while n < out.len()
            && let Some(wr_id) = self.0.read(self.1)
        {
            out[n] = IbvWc { wr_id, ..IbvWc::default() };
            (n, self.1) = (n + 1, self.1 + 1);
        }
        Ok(n)
    }
}

// SAFETY: nothing is registered.
unsafe impl Registration for Registered {
    fn lkey(&self) -> u32 {
        1
    }
    fn rkey(&self) -> u32 {
        1
    }
    fn iova(&self) -> u64 {
        0
    }
    fn deregister(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

impl IbvDomainImpl for Device {
    type Cq = Arc<Shared>;
    type Poller = Exclusive;
    type QueuePair = Pair;
    type Registration = Registered;

    fn caps(&self) -> Caps {
        let mut caps = Caps { write: Support::Native, completions_in_order: true, ..Caps::default() };
        (caps.max_msg_size, caps.max_send_wr, caps.max_send_sge, caps.max_cqe) = (64, 8, 1, SLOTS as u32);
        caps
    }
    fn create_cq(&self, _: &CqConfig) -> Result<(Self::Cq, Self::Poller), Error> {
        let shared = Shared::new(self.0);
        Ok((shared.clone(), Exclusive(shared, 0)))
    }
    unsafe fn create_queue_pair(
        &self,
        _: &IbvConfig,
        send_cq: &Self::Cq,
        _: &Self::Cq,
        core: QpCore,
    ) -> Result<Pair, Error> {
        Ok(Pair { cq: send_cq.clone(), built: Vec::new(), core })
    }
    unsafe fn register(&self, _: NonNull<[u8]>, _: Access) -> Result<Registered, Error> {
        Ok(Registered)
    }
}

impl IbvQueuePair for Pair {
    fn core(&self) -> &QpCore {
        &self.core
    }
    fn core_mut(&mut self, _: FromCore) -> &mut QpCore {
        &mut self.core
    }
    fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error> {
        Ok(IbvQpInfo::new(Transport::PRIVATE, 1))
    }
    fn establish(&mut self, _: &IbvPath, _: FromCore) -> Result<(), Error> {
        Ok(())
    }
    fn state(&mut self) -> Result<QpState, Error> {
        Ok(QpState::RTS)
    }
    fn enter_error(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn enqueue(&mut self, wr: &WorkRequest<'_>) -> Result<(), PostError> {
        self.built.push(wr.id);
        Ok(())
    }
    fn ring_doorbell(&mut self, _: FromCore) -> Result<(), PostError> {
        self.built.drain(..).for_each(|id| self.cq.complete(id));
        Ok(())
    }
    fn discard(&mut self, _: FromCore) {
        self.built.clear();
    }
}

fn domain(depth: u32) -> (IbvDomain<Device>, Arc<IbvCq<Device>>) {
    let d = IbvDomain::new(Device(depth.into()), IbvDeviceInfo::new("loom0"));
    let cq = d.create_cq(depth).unwrap();
    (d, cq)
}

fn pair(d: &IbvDomain<Device>, cq: &Arc<IbvCq<Device>>, depth: u32) -> Result<Connected<Pair>, Error> {
    let config = IbvConfig { max_send_wr: depth, max_recv_wr: 0, ..IbvConfig::default() };
    let mut qp = d.create_queue_pair(config, cq, cq)?;
    let me = qp.get_qp_info()?;
    qp.connect(&me).map_err(|(_, e)| e)
}

fn put(qp: &mut Connected<Pair>) -> Result<WrIds, PostError> {
    qp.put(
        IbvRemoteMemoryRegionView { addr: 0, len: 8, rkey: 1 },
        IbvMemoryRegionView::from_raw_parts(0, 8, 1),
    )
}

fn drain(poller: &mut Poller<Device>) -> Vec<u64> {
    let (mut out, mut all) = ([IbvWc::default(); 2], Vec::new());
    loop {
        let n = poller.poll(&mut out).unwrap();
        all.extend(out[..n].iter().map(|wc| wc.wr_id));
        if n < out.len() {
            return all;
        }
    }
}

/// One poster, one poller, a queue of two. A slot is written again only after its credit came back,
/// and credits are neither lost nor invented.
#[test]
fn credits_between_a_poster_and_a_poller() {
    for in_order in [true, false] {
        check(move || {
            let route = Arc::new(Route::new(Arc::new(Owner::new(1, 0)), 2, in_order));
            let (mut queue, device) = (WorkQueue::open(0, route.clone()), Shared::new(2));
            let poller = thread::spawn({
                let device = device.clone();
                move || {
                    let mut at = 0;
                    for _ in 0..3 {
                        if let Some(wr_id) = device.read(at) {
                            assert!(route.retire(&IbvWc { wr_id, ..IbvWc::default() }));
                            at += 1;
                        }
                        thread::yield_now();
                    }
                    (route, at)
                }
            });
            let mut posted = 0;
            for _ in 0..4 {
                if let Ok(ids) = queue.reserve(1, true) {
                    queue.advance(1, true);
                    queue.tell();
                    device.complete(ids.first);
                    queue.commit();
                    posted += 1;
                }
            }
            let (route, mut at) = poller.join().unwrap();
            assert_eq!(queue.free(), 2 - (posted - at) as u32);
            while let Some(wr_id) = device.read(at) {
                assert!(route.retire(&IbvWc { wr_id, ..IbvWc::default() }));
                at += 1;
            }
            assert!(at == posted && posted >= 2);
            assert_eq!((queue.free(), queue.in_flight()), (2, 0));
        });
    }
}

/// Two threads claim, poll and give back; the consumer index goes with the claim.
#[test]
fn a_poller_changes_hands() {
    check(|| {
        let (d, cq) = domain(4);
        let mut qp = pair(&d, &cq, 4).unwrap();
        for _ in 0..2 {
            let _ids = put(&mut qp).unwrap();
        }
        let one = |cq: Arc<IbvCq<Device>>| {
            let Ok(mut poller) = cq.poller() else { return 0 };
            poller.poll(&mut [IbvWc::default()]).unwrap()
        };
        let other = thread::spawn({
            let cq = cq.clone();
            move || one(cq)
        });
        let mine = one(cq.clone());
        let seen = mine + other.join().unwrap();
        assert!(seen >= 1, "at least one of them got the poller");
        assert_eq!(seen + drain(&mut cq.poller().unwrap()).len(), 2);
        assert_eq!(qp.free_slots(), 4);
    });
}

/// One thread polls while another destroys a queue pair with completions still queued, then makes its
/// successor in the room that is left. Every completion is seen once, none is taken for another's.
#[test]
fn a_queue_pair_is_destroyed_while_another_thread_polls_its_queue() {
    check(|| {
        let (d, cq) = domain(4);
        let mut poller = cq.poller().unwrap();
        let polling = thread::spawn(move || {
            let mut seen = Vec::new();
            let mut out = [IbvWc::default()];
            for _ in 0..2 {
                let n = poller.poll(&mut out).unwrap();
                seen.extend(out[..n].iter().map(|wc| wc.wr_id));
            }
            (poller, seen)
        });
        let mut posted = Vec::new();
        let mut first = pair(&d, &cq, 2).unwrap();
        posted.push(put(&mut first).unwrap().first);
        posted.push(put(&mut first).unwrap().first);
        drop(first);
        let mut second = pair(&d, &cq, 2).unwrap();
        posted.push(put(&mut second).unwrap().first);
        let (mut poller, mut seen) = polling.join().unwrap();
        seen.extend(drain(&mut poller));
        assert_eq!(seen, posted);
        assert_eq!(second.free_slots(), 2);
    });
}

/// Routes are freed by the poll that proves them unnamed, and by no other: the room of a dead queue pair
/// is there for its successor once the queue was seen empty, and its slot is never reused before.
#[test]
fn routes_are_attached_closed_and_reaped_under_a_poller() {
    check(|| {
        let (d, cq) = domain(2);
        let mut poller = cq.poller().unwrap();
        let mut first = pair(&d, &cq, 2).unwrap();
        let dead = put(&mut first).unwrap().first;
        let polling = thread::spawn(move || {
            let seen = drain(&mut poller);
            (poller, seen)
        });
        drop(first);
        // Refused until the queue was seen empty after the drop.
        let early = pair(&d, &cq, 2);
        let (mut poller, mut seen) = polling.join().unwrap();
        seen.extend(drain(&mut poller));
        assert_eq!(seen, [dead]);
        let mut second = match early {
            Ok(second) => second,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::OutOfResources);
                pair(&d, &cq, 2).unwrap()
            }
        };
        let alive = put(&mut second).unwrap().first;
        assert_eq!((drain(&mut poller), second.free_slots()), (vec![alive], 2));
    });
}

/// A poll that found the queue empty frees what had closed before it, and not what closed since.
#[test]
fn a_route_that_closes_between_an_empty_poll_and_its_reaping_stays() {
    check(|| {
        let (d, cq) = domain(4);
        let mut poller = cq.poller().unwrap();
        drop(pair(&d, &cq, 2).unwrap());
        let mut late = pair(&d, &cq, 2).unwrap();
        let polling = thread::spawn(move || {
            let seen = drain(&mut poller);
            (poller, seen)
        });
        let posted = put(&mut late).unwrap().first;
        drop(late);
        let (mut poller, mut seen) = polling.join().unwrap();
        seen.extend(drain(&mut poller));
        assert_eq!(seen, [posted]);
    });
}

/// A provider's table from slots to ids, which poster and poller share: relaxed, and ordered by nothing but the
/// device's completion one way and the credit the other. No slot is written anew before it was read.
#[test]
fn slots_that_poster_and_poller_share() {
    check(|| {
        let route = Arc::new(Route::new(Arc::new(Owner::new(1, 0)), 2, true));
        let (mut queue, rung) = (WorkQueue::open(3, route.clone()), Arc::new(AtomicU64::new(0)));
        let slots: Arc<[AtomicU64; 2]> = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let poller = thread::spawn({
            let (slots, rung) = (slots.clone(), rung.clone());
            move || {
                let mut seen = Vec::new();
                for _ in 0..3 {
                    // The device: a completion for what was rung, by number of its slot.
                    if (seen.len() as u64) < rung.load(Acquire) {
                        let wr_id = slots[seen.len() % 2].load(Relaxed);
                        seen.push(wr_id);
                        assert!(route.retire_plain(&IbvWc { wr_id, ..IbvWc::default() }), "{seen:x?}");
                    }
                    thread::yield_now();
                }
                seen
            }
        });
        let mut posted = Vec::new();
        for _ in 0..4 {
            if let Ok(ids) = queue.reserve(1, true) {
                slots[posted.len() % 2].store(ids.first, Relaxed);
                posted.push(ids.first);
                queue.advance(1, true);
                queue.tell();
                rung.store(posted.len() as u64, Release);
                queue.commit();
            }
        }
        let seen = poller.join().unwrap();
        assert_eq!(seen, posted[..seen.len()]);
    });
}
