//! The company of a hot loop: it yields when nothing happens, gives up when nothing has happened for too
//! long, and every few thousand rounds listens to the peer, says that this end lives and tells the watch.

use super::{Watch, wire::Message};
use crate::{
    Failure,
    wire::{Channel, Link, Protocol},
};
use std::{
    hint, thread,
    time::{Duration, Instant},
};

/// Empty rounds before a loop yields: about what an answer takes over a wire.
const SPINS: u32 = 128;
/// Rounds between two looks at the clock and at the peer; a power of two.
const LOOK: u32 = 4096;
/// The same while nothing happens and every round yields.
const IDLE_LOOK: u32 = 64;

/// What the peer says at the end of its share of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) messages: u64,
    pub(super) nanos: u64,
}

/// See the module.
pub(super) struct Pace<'c, L> {
    channel: &'c mut Channel<L, Message>,
    watch: &'c mut dyn Watch,
    during: &'static str,
    start: Instant,
    /// Whether the row is measured by time, so that progress is milliseconds.
    timed: bool,
    rounds: u32,
    idle: u32,
    idle_since: Option<Instant>,
    /// Messages so far, for the watch.
    pub(super) messages: u64,
    /// Polls of the completion queue, and those that found nothing.
    pub(super) polls: u64,
    pub(super) empty: u64,
    /// The peer's last word, if it came while this end was busy.
    pub(super) finished: Option<Finished>,
}

impl<'c, L: Link> Pace<'c, L> {
    pub(super) fn new(
        channel: &'c mut Channel<L, Message>,
        watch: &'c mut dyn Watch,
        during: &'static str,
        timed: bool,
    ) -> Self {
        Self {
            channel,
            watch,
            during,
            start: Instant::now(),
            timed,
            rounds: 0,
            idle: 0,
            idle_since: None,
            messages: 0,
            polls: 0,
            empty: 0,
            finished: None,
        }
    }

    /// A round in which something happened.
    #[inline]
    pub(super) fn busy(&mut self) -> Result<(), Failure> {
        self.idle = 0;
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds & (LOOK - 1) == 0 { self.look() } else { Ok(()) }
    }

    /// A round in which nothing did.
    #[inline]
    pub(super) fn idle(&mut self) -> Result<(), Failure> {
        self.idle += 1;
        if self.idle < SPINS {
            hint::spin_loop();
            return Ok(());
        }
        self.wait()
    }

    #[cold]
    #[inline(never)]
    fn wait(&mut self) -> Result<(), Failure> {
        if self.idle == SPINS {
            self.idle_since = None;
        }
        thread::yield_now();
        if !self.idle.is_multiple_of(IDLE_LOOK) {
            return Ok(());
        }
        // Stays above the threshold however long this takes.
        self.idle = SPINS + IDLE_LOOK;
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        let limit = self.channel.timeout();
        if since.elapsed() >= limit {
            return Err(Failure::Silent { during: self.during, limit, option: "--timeout" });
        }
        self.look()
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self) -> Result<(), Failure> {
        self.channel.beat()?;
        let elapsed = self.start.elapsed();
        self.watch.done(if self.timed { elapsed.as_millis() as u64 } else { self.messages });
        while self.finished.is_none() && self.channel.ready(self.during)? {
            match self.channel.one(self.during)? {
                None => {}
                Some(Message::Finished { messages, nanos }) => {
                    self.finished = Some(Finished { messages, nanos });
                }
                Some(other) => return Err(other.instead_of("the end of the row")),
            }
        }
        Ok(())
    }

    /// Waits for the peer's last word, unless it has come.
    pub(super) fn peer_finished(&mut self) -> Result<Finished, Failure> {
        if let Some(finished) = self.finished.take() {
            return Ok(finished);
        }
        match self.channel.receive(self.during)? {
            Message::Finished { messages, nanos } => Ok(Finished { messages, nanos }),
            other => Err(other.instead_of("the end of the row")),
        }
    }

    /// Says this end's.
    pub(super) fn finish(&mut self, messages: u64, took: Duration) -> Result<(), Failure> {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.channel.send(&Message::Finished { messages, nanos })
    }

    /// Why a request failed, where the peer's going is the reason and the peer's own word is better.
    pub(super) fn explain(&mut self, failure: Failure) -> Failure {
        match failure {
            Failure::WorkRequest(_) => self.channel.explain(failure),
            failure => failure,
        }
    }
}
