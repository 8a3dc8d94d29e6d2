//! Latency: one message at a time. The client's write or send is answered by one of the server's, a read by
//! itself. The loops allocate nothing. How they wait is `pace.rs`'s.

use super::{
    Extent, Operation, Settings,
    end::{End, Parts},
    message::Message,
    pace::{Finished, Pace},
};
use crate::{Failure, transfer::out_of_range, wire::Link};
use hdrhistogram::Histogram;
use ibv::{IbvDomainImpl, IbvWc, WcOpcode};
use std::time::{Duration, Instant};

/// Longest latency that is told from longer ones, nanoseconds: a minute.
const LONGEST: u64 = 60_000_000_000;
/// Decimal digits that are kept of each.
const DIGITS: u8 = 3;

/// Runs this end's part of a row of `size` bytes; at the client, every operation's duration in nanoseconds:
/// each is `rtt_factor` latencies.
pub(super) fn run<I: IbvDomainImpl, L: Link>(
    end: &mut End<I>,
    settings: &Settings,
    size: usize,
    client: bool,
    pace: &mut Pace<'_, L>,
) -> Result<(Finished, Histogram<u64>), Failure> {
    let times = Histogram::new_with_bounds(1, LONGEST, DIGITS);
    let mut times = times.map_err(|e| Failure::Refused(format!("no room for a histogram: {e}")))?;
    let inline = settings.inline(true, &end.caps);
    let parts = end.parts(settings.operation, size)?;
    let message = Message::new(settings.operation, parts.places[0], parts.region, inline)?;
    let (iterations, stop) = match settings.extent {
        Extent::Iterations(n) => (n, None),
        Extent::Duration(time) => (u64::MAX, Some(time)),
    };
    let mut one = One { op: settings.operation, message, parts, arrived: 0, completed: 0 };
    let done =
        if client { one.ask(iterations, stop, &mut times, pace)? } else { one.answer(iterations, pace)? };
    Ok((done, times))
}

/// How many latencies a measured duration is: a round trip is two, as in perftest.
pub(super) fn rtt_factor(op: Operation) -> f64 {
    if op == Operation::Read { 1.0 } else { 2.0 }
}

/// One message in flight each way.
struct One<'e, I: IbvDomainImpl> {
    op: Operation,
    message: Message<'e>,
    parts: Parts<'e, I>,
    /// Receives that completed.
    arrived: u64,
    /// Requests that did.
    completed: u64,
}

impl<I: IbvDomainImpl> One<'_, I> {
    /// The client's side.
    fn ask<L: Link>(
        &mut self,
        iterations: u64,
        stop: Option<Duration>,
        times: &mut Histogram<u64>,
        pace: &mut Pace<'_, L>,
    ) -> Result<Finished, Failure> {
        let start = Instant::now();
        let (mut last, mut i) = (start, 0);
        while i < iterations && stop.is_none_or(|stop| last - start < stop) {
            i += 1;
            self.post(i)?;
            self.completion(i, pace)?;
            self.arrival(i, pace)?;
            let now = Instant::now();
            times.saturating_record((now - last).as_nanos() as u64);
            last = now;
            pace.messages = i;
            pace.busy()?;
        }
        pace.finish(i, last - start)?;
        Ok(Finished { messages: i, nanos: (last - start).as_nanos() as u64 })
    }

    /// The server's: each arrival is answered, until there were as many as the client says.
    fn answer<L: Link>(&mut self, iterations: u64, pace: &mut Pace<'_, L>) -> Result<Finished, Failure> {
        let mut i = 0;
        while self.op != Operation::Read && i < iterations {
            i += 1;
            if !self.arrival(i, pace)? {
                break;
            }
            self.post(i)?;
            self.completion(i, pace)?;
            pace.messages = i;
            pace.busy()?;
        }
        pace.peer_finished()
    }

    /// Posts message `i`, whose last byte counts where arrival is told by it.
    #[inline]
    fn post(&mut self, i: u64) -> Result<(), Failure> {
        if self.op == Operation::Write {
            match self.message.inline().and_then(<[u8]>::last_mut) {
                Some(last) => *last = i as u8,
                None => self
                    .parts
                    .region
                    .write_at(self.message.place.last[0], &[i as u8])
                    .map_err(out_of_range)?,
            }
        }
        let _ids = self.parts.lanes[0].qp.post(&self.message.request())?;
        Ok(())
    }

    /// Waits until request `i` has completed.
    #[inline]
    fn completion<L: Link>(&mut self, i: u64, pace: &mut Pace<'_, L>) -> Result<(), Failure> {
        while self.completed < i {
            self.poll(pace)?;
        }
        Ok(())
    }

    /// Waits until message `i` of the peer is there, or the peer says that there is none: whether it is.
    #[inline]
    fn arrival<L: Link>(&mut self, i: u64, pace: &mut Pace<'_, L>) -> Result<bool, Failure> {
        match self.op {
            Operation::Read => {}
            Operation::Write => {
                let mut last = [0];
                loop {
                    self.parts.region.read_at(self.message.place.last[1], &mut last).map_err(out_of_range)?;
                    if last[0] == i as u8 {
                        break;
                    }
                    if pace.finished.is_some() {
                        return Ok(false);
                    }
                    pace.idle()?;
                }
            }
            Operation::Send => {
                while self.arrived < i {
                    if pace.finished.is_some_and(|finished| finished.messages < i) {
                        return Ok(false);
                    }
                    self.poll(pace)?;
                }
            }
        }
        Ok(true)
    }

    #[inline]
    fn poll<L: Link>(&mut self, pace: &mut Pace<'_, L>) -> Result<(), Failure> {
        let mut wcs = [IbvWc::default(); 2];
        let n = self.parts.poller.poll(&mut wcs)?;
        pace.polls += 1;
        pace.empty += u64::from(n == 0);
        for wc in &wcs[..n] {
            wc.result().map_err(|e| pace.explain(e.into()))?;
            match wc.opcode {
                WcOpcode::RECV => {
                    self.arrived += 1;
                    let receive = self.message.place.receive;
                    self.parts.lanes[0].qp.post_recv(&[receive])?;
                }
                _ => self.completed += 1,
            }
        }
        if n == 0 { pace.idle() } else { Ok(()) }
    }
}
