//! Runs the suite on a mutant, case by case, and says which case caught it.

use crate::{fixture::MutantFixture, mutations::Mutant};
use conformance::{Options, Outcome, cli::DynFixture};
use std::{
    fmt,
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

/// Longest single wait. A fabric that has nothing left to do ends a wait before, so only cases in which
/// another thread acts ever get here; a mutant must not be caught by a slow machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// A case that failed on a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caught {
    /// The case.
    pub case: &'static str,
    /// What it saw.
    pub reason: String,
}

/// What the suite found on one mutant.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The mutant.
    pub mutant: Mutant,
    /// The cases that failed: the first one, or all of them.
    pub caught: Vec<Caught>,
}

/// Runs the suite on `mutant`: up to the first case that fails, or all of it where `every` is set.
pub fn judge(mutant: &Mutant, every: bool) -> Verdict {
    let fixture = MutantFixture::new(mutant);
    let failing = conformance::list().into_iter().filter_map(|(case, _)| fails(&fixture, case));
    let caught = if every { failing.collect() } else { { failing }.take(1).collect() };
    Verdict { mutant: *mutant, caught }
}

/// What the case saw, if it failed.
fn fails(fixture: &MutantFixture, case: &'static str) -> Option<Caught> {
    let mut options = Options::default();
    options.deadline = DEADLINE;
    match fixture.run_case(case, &options) {
        Outcome::Failed(reason) => Some(Caught { case, reason }),
        _ => None,
    }
}

/// Judges all of `mutants`, on all processors; the verdicts come in their order.
pub fn judge_all(mutants: &[Mutant], every: bool) -> Tally {
    let (next, verdicts) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let i = next.fetch_add(1, Relaxed);
            let Some(mutant) = mutants.get(i) else { return };
            let verdict = judge(mutant, every);
            verdicts.lock().unwrap_or_else(PoisonError::into_inner).push((i, verdict));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(work);
        }
    });
    let mut verdicts = verdicts.into_inner().unwrap_or_else(PoisonError::into_inner);
    verdicts.sort_by_key(|(i, _)| *i);
    Tally(verdicts.into_iter().map(|(_, verdict)| verdict).collect())
}

/// The verdicts on a number of mutants.
#[derive(Clone, Debug)]
pub struct Tally(pub Vec<Verdict>);

impl Tally {
    /// Mutants that a case caught.
    pub fn killed(&self) -> usize {
        self.0.len() - self.survivors().len()
    }

    /// The names of the others.
    pub fn survivors(&self) -> Vec<&'static str> {
        self.0.iter().filter(|v| v.caught.is_empty()).map(|v| v.mutant.name).collect()
    }

    /// `{"mutants":N,"killed":N,"survivors":[…],"table":[{"name","device","does","caught_by":[…]}]}`, on one line.
    pub fn to_json(&self) -> String {
        let row = |v: &Verdict| {
            let cases: Vec<_> = v.caught.iter().map(|c| c.case).collect();
            let device = if v.mutant.device().is_empty() { "all" } else { "without puts" };
            serde_json::json!({ "name": v.mutant.name, "device": device, "does": v.mutant.does, "caught_by": cases })
        };
        serde_json::json!({
            "mutants": self.0.len(),
            "killed": self.killed(),
            "survivors": self.survivors(),
            "table": self.0.iter().map(row).collect::<Vec<_>>(),
        })
        .to_string()
    }
}

/// A table: each mutant, what it does, and what caught it.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Verdict { mutant, caught } in &self.0 {
            writeln!(f, "{}{}: {}", mutant.name, mutant.device(), mutant.does)?;
            if caught.is_empty() {
                writeln!(f, "    SURVIVED: no case failed")?;
            }
            for Caught { case, reason } in caught {
                writeln!(f, "    {case}: {reason}")?;
            }
        }
        writeln!(f, "{} mutants, {} killed", self.0.len(), self.killed())
    }
}
