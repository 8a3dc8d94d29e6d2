//! From the two halves to one table.

use super::{Counters, FlightRecord, Operation, Outcome, Polled, PosterLog, poster};
use crate::{
    core::{QpCore, WorkQueue},
    recorder::poster::{Built, Fate},
};
use std::{collections::HashMap, fmt};

impl Counters {
    pub(crate) fn of(log: &PosterLog, queues: [&WorkQueue; 2]) -> Self {
        let mut counters = log.counters();
        queues.into_iter().for_each(|queue| queue.log().count(&mut counters));
        counters
    }
}

impl FlightRecord {
    pub(crate) fn of(log: &PosterLog, core: &QpCore) -> Self {
        let queues = [&core.send, &core.recv];
        let polled: HashMap<u64, Polled> =
            queues.iter().flat_map(|q| q.log().kept()).map(|p| (p.wr_id, p)).collect();
        let outcome = |built: &Built, known: bool| match built.fate {
            Fate::Refused(e) => Outcome::Refused(e),
            Fate::Discarded => Outcome::Discarded,
            Fate::Built if !known => Outcome::Built,
            Fate::Built => match polled.get(&built.wr_id) {
                Some(polled) => (*polled).into(),
                None if core.send.has_retired(built.wr_id) => Outcome::Retired,
                None => Outcome::InFlight,
            },
        };
        let operation = |(built, known): (Built, bool)| Operation {
            wr_id: built.wr_id,
            name: poster::NAMES[usize::from(built.kind & 7)],
            signaled: built.signaled,
            bytes: built.bytes,
            ranges: built.ranges,
            local: built.local,
            remote: built.remote,
            outcome: outcome(&built, known),
        };
        Self {
            operations: log.kept().map(operation).collect(),
            forgotten: log.forgotten(),
            root_cause: core.first_error(),
            counters: Counters::of(log, queues),
        }
    }
}

/// Addresses as `address/key`, `-` where there is none.
fn place((addr, key): (u64, u32)) -> String {
    if (addr, key) == (0, 0) { "-".into() } else { format!("{addr:#x}/{key:#x}") }
}

fn row(f: &mut fmt::Formatter<'_>, mark: &str, cells: [&str; 5], outcome: &str) -> fmt::Result {
    let [id, name, bytes, local, remote] = cells;
    writeln!(f, "{mark:2} {id:>18}  {name:<13} {bytes:>12}  {local:<26} {remote:<26} {outcome}")
}

impl fmt::Display for FlightRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "last {} operations, {} before them", self.operations.len(), self.forgotten)?;
        row(f, "", ["wr_id", "operation", "bytes", "local/lkey", "remote/rkey"], "outcome")?;
        let flushed = |op: &Operation| op.outcome == Outcome::Flushed;
        for run in self.operations.chunk_by(|a, b| flushed(a) && flushed(b)) {
            match run {
                [first, .., last] => {
                    let ids = format!("{:#x}", first.wr_id);
                    let outcome = format!("{} requests flushed, up to {:#x}", run.len(), last.wr_id);
                    row(f, "", [&ids, "...", "", "", ""], &outcome)?;
                }
                one => one.iter().try_for_each(|op| self.one(f, op))?,
            }
        }
        let kept = self.operations.iter().any(|op| matches!(op.outcome, Outcome::Failed(_)));
        if let (Some(cause), false) = (self.root_cause, kept) {
            writeln!(f, ">> root cause, no longer kept: {cause}")?;
        }
        write!(f, "{}", self.counters)
    }
}

impl FlightRecord {
    fn one(&self, f: &mut fmt::Formatter<'_>, op: &Operation) -> fmt::Result {
        let cause = matches!(op.outcome, Outcome::Failed(e) if Some(e) == self.root_cause);
        let id = match op.outcome {
            Outcome::Refused(_) => "-".into(),
            _ => format!("{:#x}", op.wr_id),
        };
        let bytes = op.bytes.to_string();
        let cells = [id.as_str(), op.name, &bytes, &place(op.local), &place(op.remote)];
        let outcome = format!("{}{}", op.outcome, if cause { "  <- root cause" } else { "" });
        row(f, if cause { ">>" } else { "" }, cells, &outcome)
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.operations().into_iter().filter(|(_, c)| c.requests > 0) {
            writeln!(f, "{name}: {} requests, {} bytes", count.requests, count.bytes)?;
        }
        let Self { doorbells, completions, errors, flushed, refused, .. } = self;
        write!(f, "doorbells: {doorbells}; posts refused: {refused}; ")?;
        write!(f, "completions: {completions}, of which failed {errors}, flushed {flushed}")
    }
}
