//! What the fabric did, remembered without formatting and told as text; and the counters. Neither
//! decides anything.

use ibv_core::{Op, QpState, WcStatus};
use std::{collections::VecDeque, fmt::Write, time::Duration};

use crate::model::Denied;

/// Who did something: a device's index and a queue pair's number, 0 for the device itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub device: u16,
    pub qp: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Rung(u32),
    Begins { id: u64, op: Op, len: u64 },
    Piece { id: u64, at: u64, len: u64 },
    Answered { id: u64 },
    Lost { id: u64 },
    NotReady { id: u64, naks: u32 },
    Denied { key: u32, why: Denied },
    Late { key: u32 },
    Completes { id: u64, status: WcStatus },
    Receives { id: u64, status: WcStatus, len: u32 },
    State(QpState),
    Fault(&'static str),
}

/// The last events, in a ring that never grows.
#[derive(Debug)]
pub(crate) struct Trace {
    events: VecDeque<(u64, Who, What)>,
    keep: usize,
    forgotten: u64,
}

impl Trace {
    pub fn new(keep: usize) -> Self {
        Self { events: VecDeque::with_capacity(keep.min(1 << 16)), keep, forgotten: 0 }
    }

    pub fn note(&mut self, now: u64, who: Who, what: What) {
        if self.keep == 0 {
            return;
        }
        if self.events.len() == self.keep {
            self.events.pop_front();
            self.forgotten += 1;
        }
        self.events.push_back((now, who, what));
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        if self.forgotten > 0 {
            let _ = writeln!(out, "({} earlier events forgotten)", self.forgotten);
        }
        for (now, who, what) in &self.events {
            let _ = write!(out, "{:>12} mock{}", format!("{:?}", Duration::from_nanos(*now)), who.device);
            if who.qp != 0 {
                let _ = write!(out, " qp {}", who.qp);
            }
            let _ = writeln!(out, ": {}", words(what));
        }
        out
    }
}

fn words(what: &What) -> String {
    match what {
        What::Rung(n) => format!("rings {n}"),
        What::Begins { id, op, len } => format!("begins {id:#x}, {op:?} of {len} bytes"),
        What::Piece { id, at, len } => format!("moves {len} bytes of {id:#x} at {at}"),
        What::Answered { id } => format!("has the answer to {id:#x}"),
        What::Lost { id } => format!("gets no answer to {id:#x}"),
        What::NotReady { id, naks } => format!("finds no receive for {id:#x}, time {naks}"),
        What::Denied { key, why } => format!("is refused by key {key:#x}: {why:?}"),
        What::Late { key } => format!("refuses a late access through key {key:#x}"),
        What::Completes { id, status } => format!("completes {id:#x}, {status:?}"),
        What::Receives { id, status, len } => format!("receives {len} bytes by {id:#x}, {status:?}"),
        What::State(state) => format!("enters {state}"),
        What::Fault(name) => format!("fault: {name}"),
    }
}

/// What a device did since it was made. Nothing that goes wrong on the fabric is silent: it is counted
/// here even where no completion tells of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Requests rung.
    pub requests: u64,
    /// Receives posted.
    pub receives: u64,
    /// Doorbells: one a ring, more where a batch exceeds `max_batch`.
    pub doorbells: u64,
    /// Bytes that requests of this device moved, in either direction.
    pub bytes: u64,
    /// Completions written to its queues.
    pub completions: u64,
    /// Messages that nobody answered: lost by a fault, or their peer is gone, not connected to this end,
    /// down, or of other attributes.
    pub drops: u64,
    /// Messages that went out again after a time-out.
    pub retries: u64,
    /// Times that a peer had no receive.
    pub rnr_naks: u64,
    /// Accesses refused for their key, domain, right or range.
    pub refused: u64,
    /// Of those, through the key of a region that is gone, or for a request that was cancelled.
    pub late_refused: u64,
    /// Completions that found their queue full.
    pub overruns: u64,
    /// Asynchronous events raised.
    pub events: u64,
    /// Objects that could not be destroyed and stay behind.
    pub leaked: u64,
    /// Objects destroyed while another still needed them; always 0 behind `ibv-core`'s handles.
    pub misuse: u64,
}

impl Counters {
    pub(crate) fn add(&mut self, o: &Self) {
        let pairs = [
            (&mut self.requests, o.requests),
            (&mut self.receives, o.receives),
            (&mut self.doorbells, o.doorbells),
            (&mut self.bytes, o.bytes),
            (&mut self.completions, o.completions),
            (&mut self.drops, o.drops),
            (&mut self.retries, o.retries),
            (&mut self.rnr_naks, o.rnr_naks),
            (&mut self.refused, o.refused),
            (&mut self.late_refused, o.late_refused),
            (&mut self.overruns, o.overruns),
            (&mut self.events, o.events),
            (&mut self.leaked, o.leaked),
            (&mut self.misuse, o.misuse),
        ];
        for (sum, n) in pairs {
            *sum += n;
        }
    }
}
