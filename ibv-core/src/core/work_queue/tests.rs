use super::*;
use crate::{core::Owner, error::WcStatus, wc::IbvWc};
use proptest::prelude::*;
use std::collections::VecDeque;

/// Everything the real one counts, as lists.
#[derive(Debug)]
struct Naive {
    depth: usize,
    in_order: bool,
    next: u64,
    /// Whether each request ever rung was signaled.
    history: Vec<bool>,
    built: Vec<bool>,
    /// Number and signal of each request that has not been retired.
    posted: VecDeque<(u64, bool)>,
}

impl Naive {
    fn reserve(&self, count: u32, signaled: bool) -> Result<u64, PostError> {
        let waiting: Vec<bool> = self.posted.iter().map(|(_, s)| *s).chain(self.built.clone()).collect();
        if waiting.len() + count as usize > self.depth {
            let silent = !waiting.is_empty() && waiting.iter().all(|signaled| !signaled);
            return Err(if silent { PostError::NeedsSignal } else { PostError::QueueFull });
        }
        if !signaled && !self.in_order {
            return Err(PostError::Unsupported);
        }
        let all = self.history.iter().chain(&self.built);
        let silent = all.rev().take_while(|signaled| !**signaled).count();
        if !signaled && silent + count as usize >= self.depth {
            return Err(PostError::NeedsSignal);
        }
        Ok(self.next + self.built.len() as u64)
    }
    fn ring(&mut self) {
        for signaled in self.built.drain(..) {
            self.posted.push_back((self.next, signaled));
            self.history.push(signaled);
            self.next += 1;
        }
    }
    /// The request that completes, and what it retires.
    fn complete(&mut self, pick: usize) -> Option<u64> {
        let due: Vec<usize> = (0..self.posted.len()).filter(|i| self.posted[*i].1).collect();
        let at = *due.get(pick % due.len().max(1))?;
        let (number, _) = self.posted[at];
        if self.in_order {
            self.posted.drain(..=at);
        } else {
            self.posted.remove(at);
        }
        Some(number)
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Build { count: u32, signaled: bool },
    Ring,
    Forget,
    Complete(usize),
    Invent(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u32..4, prop::bool::weighted(0.6)).prop_map(|(count, signaled)| Step::Build { count, signaled }),
        3 => Just(Step::Ring),
        1 => Just(Step::Forget),
        4 => any::<usize>().prop_map(Step::Complete),
        1 => (0u64..1 << 48).prop_map(Step::Invent),
    ]
}

/// A queue that has carried `at` requests already.
fn aged(slot: u16, route: Arc<Route>, at: u64) -> WorkQueue {
    route.start_at(at);
    let mut queue = WorkQueue::open(slot, route);
    (queue.built, queue.published) = (at, at);
    queue
}

fn wc(slot: u16, number: u64) -> IbvWc {
    IbvWc { wr_id: u64::from(slot) << SEQ_BITS | number & SEQ_MASK, ..IbvWc::default() }
}

proptest! {
    /// Starts close to where the 48 bits of a sequence number wrap, or far from it.
    #[test]
    fn credits_and_ids_are_those_of_the_naive_queue(
        steps in prop::collection::vec(step(), 0..120), depth in 1u32..9, in_order: bool, slot: u16,
        start in prop_oneof![Just(0), (1u64 << 48) - 20..(1 << 48) + 2, (3u64 << 48) - 9..3 << 48],
    ) {
        let route = Arc::new(Route::new(Arc::new(Owner::new(1, 0)), depth, in_order));
        let mut queue = aged(slot, route.clone(), start);
        let mut naive = Naive {
            depth: depth as usize, in_order, next: start,
            history: vec![true], built: vec![], posted: VecDeque::new(),
        };
        for step in steps {
            match step {
                Step::Build { count, signaled } => {
                    let want = naive.reserve(count, signaled);
                    let got = queue.reserve(count, signaled);
                    prop_assert_eq!(got.map(|ids| ids.first), want.map(|n| wc(slot, n).wr_id));
                    if let Ok(ids) = got {
                        for (i, id) in (0..).zip(ids.iter()) {
                            prop_assert_eq!(id, wc(slot, want.unwrap() + i).wr_id);
                        }
                        queue.advance(count, signaled);
                        naive.built.extend((0..count).map(|_| signaled));
                    }
                }
                Step::Ring => {
                    queue.tell();
                    queue.commit();
                    naive.ring();
                }
                Step::Forget => {
                    queue.forget(None);
                    naive.built.clear();
                }
                Step::Complete(pick) => {
                    if let Some(number) = naive.complete(pick) {
                        prop_assert!(route.retire(&wc(slot, number)));
                    }
                }
                Step::Invent(ahead) => {
                    let bogus = start.wrapping_add(ahead);
                    let window = naive.posted.front().map_or(naive.next, |(n, _)| *n)..;
                    let near = bogus.wrapping_sub(window.start) & SEQ_MASK < u64::from(depth);
                    // In order, a number near enough can not be told from a real one.
                    if (in_order && !near) || (!in_order && naive.posted.is_empty()) {
                        prop_assert!(!route.retire(&wc(slot, bogus)));
                    }
                }
            }
            prop_assert_eq!(queue.in_flight() as usize, naive.posted.len());
            prop_assert_eq!(queue.free() as usize, naive.depth - naive.posted.len() - naive.built.len());
            prop_assert_eq!(queue.dirty(), !naive.built.is_empty());
            let silent = naive.history.last() == Some(&false);
            prop_assert_eq!(queue.ends_silent(), silent);
            if let Some(id) = queue.peek() {
                prop_assert_eq!(Ok(id), naive.reserve(1, true).map(|n| wc(slot, n).wr_id));
            }
        }
    }
}

#[test]
fn a_closed_queue_says_so_whatever_is_asked_and_an_opened_one_goes_on() {
    let route = Arc::new(Route::new(Arc::new(Owner::new(1, 0)), 4, true));
    let mut queue = WorkQueue::new(3, route);
    assert_eq!((queue.reserve(1, true), queue.peek()), (Err(PostError::NotConnected), None));
    queue.admit();
    assert_eq!(queue.reserve(1, true).unwrap().first, 3 << SEQ_BITS);
    queue.advance(1, true);
    queue.refuse();
    assert_eq!((queue.reserve(1, false), queue.peek()), (Err(PostError::NotConnected), None));
}

#[test]
fn ids_wrap_inside_their_route() {
    let route = Arc::new(Route::new(Arc::new(Owner::new(1, 0)), 8, true));
    let mut queue = aged(5, route, SEQ_MASK - 1);
    let ids = queue.reserve(4, true).unwrap();
    let base = 5 << SEQ_BITS;
    assert_eq!(Vec::from(ids), [base | (SEQ_MASK - 1), base | SEQ_MASK, base, base | 1]);
    queue.advance(4, true);
    assert_eq!(queue.reserve(1, true).unwrap().first, base | 2);
    // Going back to before the wrap goes back to the ids of before.
    queue.forget(None);
    assert_eq!(queue.reserve(1, true).unwrap().first, base | (SEQ_MASK - 1));
}

#[test]
fn a_void_transfer_fails_the_next_ring_only() {
    let route = Arc::new(Route::new(Arc::new(Owner::new(1, 0)), 4, true));
    let mut queue = WorkQueue::open(0, route);
    queue.forget(Some(PostError::Device(5)));
    assert!(queue.dirty());
    assert_eq!((queue.void(), queue.posted()), (Some(PostError::Device(5)), 0));
    // Built meanwhile, it is void like the rest.
    let _ids = queue.reserve(2, true).unwrap();
    queue.advance(2, true);
    assert_eq!((queue.void(), queue.posted()), (Some(PostError::Device(5)), 0));
    queue.forget(None);
    assert!(!queue.dirty() && queue.void().is_none());
    queue.advance(1, true);
    assert!(queue.dirty() && queue.void().is_none());
}

proptest! {
    /// A run is what its completions are one by one, up to the first that is odd: a failure, an id out of turn.
    /// In the neighbour's slot nobody has ids.
    #[test]
    fn a_run_retires_what_one_by_one_would(
        what in prop::collection::vec((prop::bool::weighted(0.9), 0u64..3, prop::bool::weighted(0.05)), 0..24),
        start in prop_oneof![Just(0), (1u64 << 48) - 20..1 << 48],
    ) {
        let owner = || Arc::new(Owner::new(1, 0));
        let [one, run] = [(); 2].map(|()| Arc::new(Route::new(owner(), 8, true)));
        let queues = [&one, &run].map(|route| aged(6, route.clone(), start));
        let mut number = start;
        let wcs: Vec<_> = what.iter().map(|(good, ahead, foreign)| {
            number += ahead;
            let slot = if *foreign { 9 } else { 6 };
            let status = if *good { WcStatus::SUCCESS } else { WcStatus::WR_FLUSH_ERR };
            number += 1;
            IbvWc { status, ..wc(slot, number - 1) }
        }).collect();
        let wanted = wcs.iter().take_while(|wc| wc.wr_id >> SEQ_BITS == 6 && wc.is_valid()).count();
        let mut taken = 0;
        // Where the number wraps, a run may end early, but not for good.
        while let Some(rest) = wcs.get(taken..wanted).filter(|rest| !rest.is_empty()) {
            taken += match run.retire_run(&wcs[taken..]) {
                0 => { prop_assert!(run.retire(&rest[0])); 1 }
                n => n,
            };
        }
        prop_assert_eq!(run.retire_run(&wcs[taken..]), 0);
        prop_assert!(wcs[..wanted].iter().all(|wc| one.retire(wc)));
        prop_assert_eq!(one.retired(), run.retired());
        prop_assert_eq!(queues[0].free(), queues[1].free());
    }
}

#[test]
fn a_run_is_the_successes_in_front_of_the_first_failure() {
    let route = Arc::new(Route::new(Arc::new(Owner::new(1, 0)), 8, true));
    let _queue = aged(6, route.clone(), 0);
    let failed = |n| IbvWc { status: WcStatus::WR_FLUSH_ERR, ..wc(6, n) };
    let wcs = [wc(6, 0), wc(6, 1), wc(6, 2), failed(3), failed(4)];
    assert_eq!((route.retire_run(&wcs), route.retired()), (3, 3));
    assert_eq!((route.retire_run(&wcs[3..]), route.retired()), (0, 3));
}
