//! What a run found, as data, as text, as JSON and as JUnit XML. Nothing here runs a case.

use crate::{fixture::Versions, stopped::Stopped};
use serde::{Serialize, Serializer};
use std::{fmt, time::Duration};

mod junit;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As it should.
    Passed,
    /// Not as it should, and what was seen.
    Failed(String),
    /// Not run, and why.
    Skipped(String),
    /// Failed as an [`Expectation`](crate::Expectation) says; its reason and what was seen.
    ExpectedFailure(String),
    /// Passed although an expectation says otherwise; counts as failed.
    UnexpectedPass(String),
}

impl Outcome {
    /// The word for it in reports.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "failed",
            Self::Skipped(_) => "skipped",
            Self::ExpectedFailure(_) => "expected_failure",
            Self::UnexpectedPass(_) => "unexpected_pass",
        }
    }

    /// Why, unless it simply passed.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Passed => None,
            Self::Failed(why)
            | Self::Skipped(why)
            | Self::ExpectedFailure(why)
            | Self::UnexpectedPass(why) => Some(why),
        }
    }

    /// Whether the run has failed because of it.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::UnexpectedPass(_))
    }
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.word())
    }
}

/// One case's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CaseReport {
    /// Its name.
    pub name: String,
    /// Its group.
    pub group: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, unless it simply passed.
    pub reason: Option<String>,
    /// How long it took, seconds.
    pub seconds: f64,
}

/// One fixture's results.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ProviderReport {
    /// The provider.
    pub name: String,
    /// `static` or `dyn`.
    pub dispatch: String,
    /// The device of end a; empty where none could be opened.
    pub device: String,
    /// How a simulated fabric ordered things; empty for hardware.
    pub schedule: String,
    /// What took part.
    pub versions: Versions,
    /// The same at end b, where that was another process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_versions: Option<Versions>,
    /// Why no case was run, or no more than there are; it counts as one failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stopped>,
    /// Cases that passed.
    pub passed: usize,
    /// Cases that failed, unexpected passes included.
    pub failed: usize,
    /// Cases that were skipped.
    pub skipped: usize,
    /// Cases that failed as expected.
    pub expected_failures: usize,
    /// How long it took, seconds.
    pub seconds: f64,
    /// Each case.
    pub cases: Vec<CaseReport>,
}

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// One entry for each fixture.
    pub providers: Vec<ProviderReport>,
}

impl CaseReport {
    pub(crate) fn new(name: &str, group: &str, outcome: Outcome, seconds: f64) -> Self {
        let reason = outcome.reason().map(str::to_owned);
        Self { name: name.into(), group: group.into(), outcome, reason, seconds }
    }
}

impl ProviderReport {
    pub(crate) fn new(
        name: &str,
        dispatch: &str,
        device: String,
        schedule: String,
        versions: Versions,
    ) -> Self {
        Self {
            name: name.into(),
            dispatch: dispatch.into(),
            device,
            schedule,
            versions,
            peer_versions: None,
            stopped: None,
            passed: 0,
            failed: 0,
            skipped: 0,
            expected_failures: 0,
            seconds: 0.0,
            cases: Vec::new(),
        }
    }

    pub(crate) fn count(&mut self) {
        let of = |word: &str| self.cases.iter().filter(|c| c.outcome.word() == word).count();
        let (passed, skipped, expected) = (of("passed"), of("skipped"), of("expected_failure"));
        (self.passed, self.skipped, self.expected_failures) = (passed, skipped, expected);
        let stopped = usize::from(self.stopped.is_some());
        self.failed = stopped + self.cases.iter().filter(|c| c.outcome.is_failure()).count();
    }

    /// The one reason for which every case was skipped.
    fn nothing_but(&self) -> Option<&str> {
        let mut reasons = self.cases.iter().map(|c| match &c.outcome {
            Outcome::Skipped(why) => Some(why.as_str()),
            _ => None,
        });
        let first = reasons.next().flatten()?;
        (self.cases.len() > 1 && reasons.all(|why| why == Some(first))).then_some(first)
    }

    /// The fixture in words.
    pub fn title(&self) -> String {
        let parts = [&self.name, &self.dispatch, &self.device, &self.schedule];
        parts.into_iter().filter(|p| !p.is_empty()).cloned().collect::<Vec<_>>().join(" · ")
    }
}

impl Report {
    /// Both reports' fixtures.
    pub fn merge(&mut self, other: Self) {
        self.providers.extend(other.providers);
    }

    /// Adds a result to the last fixture's.
    pub(crate) fn add(&mut self, name: &str, group: &str, outcome: Outcome, took: Duration) {
        if let Some(p) = self.providers.last_mut() {
            p.cases.push(CaseReport::new(name, group, outcome, took.as_secs_f64()));
            p.seconds += took.as_secs_f64();
            p.count();
        }
    }

    /// Cases that failed, unexpected passes included.
    pub fn failed(&self) -> usize {
        self.providers.iter().map(|p| p.failed).sum()
    }

    /// Cases that passed.
    pub fn passed(&self) -> usize {
        self.providers.iter().map(|p| p.passed).sum()
    }

    /// Cases that were skipped.
    pub fn skipped(&self) -> usize {
        self.providers.iter().map(|p| p.skipped).sum()
    }

    /// One JSON object, on one line:
    /// `{"providers":[{"name","dispatch","device","passed","failed","skipped","cases":[{"name","outcome","reason"}]}]}`
    /// and more keys.
    pub fn to_json(&self) -> String {
        // Plain data with string keys: there is nothing that could fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// JUnit XML, one test suite for each fixture.
    pub fn to_junit(&self) -> String {
        junit::render(self)
    }
}

/// A table: what did not simply pass, group by group, and the sums.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for p in &self.providers {
            writeln!(f, "{}", p.title())?;
            match &p.stopped {
                Some(why) if p.cases.is_empty() => {
                    writeln!(f, "  not run: {why}\n")?;
                    continue;
                }
                Some(why) => writeln!(f, "  ended after {} cases: {why}", p.cases.len())?,
                None => {}
            }
            if let Some(why) = p.nothing_but() {
                writeln!(f, "  skipped, all {} cases: {why}\n", p.cases.len())?;
                continue;
            }
            for (group, passed, total) in groups(p) {
                writeln!(f, "  {group:<14} {passed:>3} of {total:>3} passed")?;
            }
            for c in p.cases.iter().filter(|c| c.outcome != Outcome::Passed) {
                let mark = c.outcome.word().replace('_', " ");
                writeln!(f, "  {mark}: {} ({}): {}", c.name, c.group, c.reason.as_deref().unwrap_or(""))?;
            }
            let ProviderReport { passed, failed, skipped, expected_failures, seconds, .. } = p;
            writeln!(
                f,
                "  {passed} passed, {failed} failed, {skipped} skipped, {expected_failures} failed as expected; {seconds:.2} s\n"
            )?;
        }
        Ok(())
    }
}

/// Each group with its passed cases and all of them, in order of appearance.
fn groups(p: &ProviderReport) -> Vec<(&str, usize, usize)> {
    let mut rows: Vec<(&str, usize, usize)> = Vec::new();
    for c in &p.cases {
        let passed = usize::from(c.outcome == Outcome::Passed);
        match rows.iter_mut().find(|r| r.0 == c.group) {
            Some(row) => (row.1, row.2) = (row.1 + passed, row.2 + 1),
            None => rows.push((&c.group, passed, 1)),
        }
    }
    rows
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Report {
        let case = |name: &str, outcome| CaseReport::new(name, "write", outcome, 0.5);
        let mut p =
            ProviderReport::new("mock", "static", "mock0".into(), "in order".into(), Versions::default());
        p.cases = vec![
            case("a", Outcome::Passed),
            case("b", Outcome::Failed("x < \"y\" & z\u{1}".into())),
            case("c", Outcome::Skipped("needs capability atomics".into())),
            case("d", Outcome::ExpectedFailure("firmware".into())),
            case("e", Outcome::UnexpectedPass("firmware".into())),
        ];
        p.count();
        Report { providers: vec![p] }
    }

    #[test]
    fn an_unexpected_pass_counts_as_failed() {
        let r = sample();
        assert_eq!((r.passed(), r.failed(), r.skipped()), (1, 2, 1));
        assert_eq!(r.providers[0].expected_failures, 1);
    }

    #[test]
    fn json_has_the_promised_shape() {
        let v: serde_json::Value = serde_json::from_str(&sample().to_json()).unwrap();
        let p = &v["providers"][0];
        for (key, want) in [("name", "mock"), ("dispatch", "static"), ("device", "mock0")] {
            assert_eq!(p[key], want);
        }
        assert_eq!((&p["passed"], &p["failed"], &p["skipped"]), (&1.into(), &2.into(), &1.into()));
        assert_eq!(
            (&p["cases"][0]["outcome"], &p["cases"][0]["reason"]),
            (&"passed".into(), &serde_json::Value::Null)
        );
        assert_eq!(p["cases"][2]["reason"], "needs capability atomics");
    }

    #[test]
    fn the_table_shows_what_was_skipped_and_why() {
        let text = sample().to_string();
        assert!(text.contains("skipped: c (write): needs capability atomics"), "{text}");
        assert!(text.contains("1 passed, 2 failed, 1 skipped, 1 failed as expected"), "{text}");
    }
}
