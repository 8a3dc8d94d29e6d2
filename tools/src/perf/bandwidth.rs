//! Bandwidth: every queue pair's send queue is kept full until its messages are out. The loop allocates
//! nothing. How it waits is `pace.rs`'s.

use super::{
    Extent, Settings,
    end::{End, Parts},
    message::Message,
    pace::{Finished, Pace},
};
use crate::{Failure, wire::Link};
use ibv::{Connected, IbvDomainImpl, IbvQueuePair, IbvWc, PostError, Request, WcOpcode};
use std::time::{Duration, Instant};

/// Completions taken at a time, as perftest takes them.
const POLL: usize = 16;

/// What this end does in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Whether it posts messages.
    pub(super) sends: bool,
    /// Whether the peer's messages take its receives.
    pub(super) receives: bool,
}

/// What is the same for every message of a row.
#[derive(Clone, Copy)]
struct Job {
    post_list: u32,
    cq_mod: u32,
}

/// Runs this end's part of a row of `size` bytes; the messages that it posted and how long they took.
// A function of its own, so that a profile tells what it cost.
#[inline(never)]
pub(super) fn run<I: IbvDomainImpl, L: Link>(
    end: &mut End<I>,
    settings: &Settings,
    size: usize,
    part: Part,
    pace: &mut Pace<'_, L>,
) -> Result<Finished, Failure> {
    let inline = settings.inline(false, &end.caps);
    let job = Job { post_list: settings.post_list, cq_mod: settings.cq_mod(size, &end.caps) };
    let parts = end.parts(settings.operation, size)?;
    let (limit, stop) = match settings.extent {
        Extent::Iterations(n) => (n, None),
        Extent::Duration(time) => (u64::MAX, Some(time)),
    };
    let expected = stop.is_none().then(|| limit.saturating_mul(settings.qps.into()));
    let limit = if part.sends { limit } else { 0 };
    let messages =
        parts.places.iter().map(|place| Message::new(settings.operation, *place, parts.region, inline));
    let messages: Vec<_> = messages.collect::<Result<_, _>>()?;
    let queues = messages.iter().map(|message| Queue::new(message, limit)).collect();
    let loads = Loads { job, part, parts, queues, stop: stop.filter(|_| part.sends), expected, received: 0 };
    loads.run(pace)
}

/// A row at this end.
struct Loads<'e, I: IbvDomainImpl> {
    job: Job,
    part: Part,
    parts: Parts<'e, I>,
    queues: Vec<Queue<'e>>,
    /// When posting ends, where time decides and while it goes on.
    stop: Option<Duration>,
    /// Messages that the peer posts, once that is known.
    expected: Option<u64>,
    received: u64,
}

impl<I: IbvDomainImpl> Loads<'_, I> {
    fn run<L: Link>(mut self, pace: &mut Pace<'_, L>) -> Result<Finished, Failure> {
        let mut wcs = [IbvWc::default(); POLL];
        let start = Instant::now();
        let mut took = None;
        loop {
            let mut posted = 0;
            for (lane, queue) in self.parts.lanes.iter_mut().zip(&mut self.queues) {
                posted += fill(&mut lane.qp, queue, &self.job)?;
            }
            pace.messages += posted;
            let n = self.parts.poller.poll(&mut wcs)?;
            pace.polls += 1;
            pace.empty += u64::from(n == 0);
            self.take(&wcs[..n]).map_err(|e| pace.explain(e))?;
            if took.is_none() && self.is_sent() {
                let time = start.elapsed();
                if self.part.sends {
                    pace.finish(self.sent(), time)?;
                }
                took = Some(time);
            }
            if took.is_some() && self.is_received(pace.finished) {
                break;
            }
            self.watch_the_clock(start);
            if n > 0 || posted > 0 { pace.busy()? } else { pace.idle()? }
        }
        let nanos = took.unwrap_or_default().as_nanos() as u64;
        Ok(Finished { messages: self.sent(), nanos })
    }

    /// Completions: all are good, and each receive makes room for the next.
    #[inline]
    fn take(&mut self, wcs: &[IbvWc]) -> Result<(), Failure> {
        for wc in wcs {
            wc.result()?;
            self.received += u64::from(wc.opcode == WcOpcode::RECV);
        }
        if self.part.receives && !wcs.is_empty() {
            self.parts.fill_receives()?;
        }
        Ok(())
    }

    /// Whether every message of this end has completed.
    #[inline]
    fn is_sent(&self) -> bool {
        self.queues.iter().all(|queue| queue.posted == queue.limit)
            && self.parts.lanes.iter().all(|lane| lane.qp.in_flight() == 0)
    }

    fn is_received(&self, finished: Option<Finished>) -> bool {
        let expected = self.expected.or(finished.map(|f| f.messages));
        !self.part.receives || expected.is_some_and(|expected| self.received >= expected)
    }

    /// Ends posting once its time is over; a request that waits for a signaled one behind it gets that.
    #[inline]
    fn watch_the_clock(&mut self, start: Instant) {
        if self.stop.is_some_and(|stop| start.elapsed() >= stop) {
            self.stop = None;
            for queue in &mut self.queues {
                queue.limit = queue.posted + u64::from(queue.silent > 0);
            }
        }
    }

    fn sent(&self) -> u64 {
        self.queues.iter().map(|queue| queue.posted).sum()
    }
}

/// A lane's messages.
struct Queue<'m> {
    signaled: Request<'m>,
    unsignaled: Request<'m>,
    posted: u64,
    /// Messages in all; without end where time decides.
    limit: u64,
    /// Since the last one that asked for its completion.
    silent: u32,
    /// Messages that fit for sure; looked up anew once it is too little.
    room: u32,
}

impl<'m> Queue<'m> {
    fn new(message: &'m Message<'_>, limit: u64) -> Self {
        let signaled = message.request();
        Self { signaled, unsignaled: signaled.unsignaled(), posted: 0, limit, silent: 0, room: 0 }
    }
}

/// Posts as many lists as there is room for; how many messages.
#[inline]
fn fill<Q: IbvQueuePair>(qp: &mut Connected<Q>, queue: &mut Queue<'_>, job: &Job) -> Result<u64, PostError> {
    let before = queue.posted;
    loop {
        let count = (queue.limit - queue.posted).min(job.post_list.into()) as u32;
        if count > queue.room {
            queue.room = qp.free_slots();
        }
        if count == 0 || count > queue.room {
            return Ok(queue.posted - before);
        }
        post(qp, queue, job, count)?;
    }
}

/// Posts a list of `count` messages with one doorbell.
#[inline]
fn post<Q: IbvQueuePair>(
    qp: &mut Connected<Q>,
    queue: &mut Queue<'_>,
    job: &Job,
    count: u32,
) -> Result<(), PostError> {
    queue.room -= count;
    let mut batch = qp.batch();
    for _ in 0..count {
        queue.posted += 1;
        queue.silent += 1;
        let speaks = queue.silent >= job.cq_mod || queue.posted == queue.limit;
        let request = if speaks { &queue.signaled } else { &queue.unsignaled };
        let _ids = batch.push(request)?;
        if speaks {
            queue.silent = 0;
        }
    }
    batch.ring()
}
