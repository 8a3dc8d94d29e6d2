//! Runs cases: opens a pair for each, catches panics, weighs the outcome against what is expected. What
//! cases check is in `cases/`.

use crate::{
    case::Case,
    cases,
    ctx::Ctx,
    expect::Expectation,
    fixture::{End, Fixture, Pair, Side, Unavailable},
    peer::{Agent, Peer, PeerEnd, TcpPeer},
    report::{CaseReport, Outcome, ProviderReport, Report},
    stopped::Stopped,
    transfer::common,
    wait::Waiter,
};
use ibv_core::{IbvDomain, IbvDomainImpl};
use std::{
    any::Any,
    io::{IsTerminal, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

/// Longest single wait of a case that is known to fail.
const KNOWN_TO_FAIL: Duration = Duration::from_secs(3);

/// How to run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Runs the cases whose name or group contains one of these; all of them if empty.
    pub filter: Vec<String>,
    /// Longest single wait. Default 10 s.
    pub deadline: Duration,
    /// Known failures.
    pub expectations: Vec<Expectation>,
    /// Providers whose missing device is a failure rather than a skip.
    pub require: Vec<String>,
    /// Shows the running case on standard error, where that is a terminal.
    pub progress: bool,
    /// Address of the process that has end b, where that is another one.
    pub peer: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            filter: Vec::new(),
            deadline: Duration::from_secs(10),
            expectations: Vec::new(),
            require: Vec::new(),
            progress: false,
            peer: None,
        }
    }
}

impl Options {
    fn wants(&self, name: &str, group: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|f| name.contains(f.as_str()) || group == f)
    }

    fn requires(&self, provider: &str) -> bool {
        self.require.iter().any(|r| r == provider)
    }

    /// The same, with little patience for a case that is known to fail: waiting longer could only find that it
    /// passes late.
    fn patient_with(&self, provider: &str, device: &str, case: &str) -> Self {
        let known = self.expectations.iter().any(|e| e.matches(provider, device, case));
        let deadline = if known { self.deadline.min(KNOWN_TO_FAIL) } else { self.deadline };
        Self { deadline, ..self.clone() }
    }
}

/// The names of all cases with their groups, in running order.
pub fn list() -> Vec<(&'static str, &'static str)> {
    cases::names()
}

/// Runs the suite on `fixture`.
pub fn run<F: Fixture + ?Sized>(fixture: &F, options: &Options) -> Report {
    let begun = Instant::now();
    // A provider that panics here panics in every case, where it is caught and reported.
    let mut report = catch_unwind(AssertUnwindSafe(|| header(fixture))).unwrap_or_else(|_| unopened(fixture));
    let mut remote = match ready(fixture, options) {
        Ok(remote) => remote,
        Err(why) => {
            report.stopped = Some(why);
            report.count();
            return Report { providers: vec![report] };
        }
    };
    report.peer_versions = remote.as_ref().map(|peer| peer.versions.clone());
    for case in cases::all::<F::Domain>().into_iter().filter(|c| options.wants(c.name, c.group)) {
        show(options, &report, case.name);
        let at = Instant::now();
        let options = &options.patient_with(fixture.provider(), &report.device, case.name);
        let found = match &mut remote {
            None => in_one_process(fixture, &case, options),
            Some(peer) => in_two_processes(fixture, &case, options, peer),
        };
        if let Some(why) = remote.as_mut().and_then(|peer| peer.lost.take()) {
            // Not the provider's failure, nor that of the cases behind.
            report.stopped = Some(why.during(case.name));
            break;
        }
        let outcome = weigh(found, fixture.provider(), &report.device, case.name, &options.expectations);
        report.cases.push(CaseReport::new(case.name, case.group, outcome, at.elapsed().as_secs_f64()));
    }
    if let Some(peer) = remote.filter(|_| report.stopped.is_none()) {
        let _ = peer.bye();
    }
    show(options, &report, "");
    report.seconds = begun.elapsed().as_secs_f64();
    report.count();
    Report { providers: vec![report] }
}

/// Whether there is anything to run cases on: what would fail each of them alike is said once.
fn ready<F: Fixture + ?Sized>(fixture: &F, options: &Options) -> Result<Option<TcpPeer>, Stopped> {
    if let Some(address) = &options.peer {
        return TcpPeer::connect(fixture, address).map(Some);
    }
    // A provider that panics here panics in every case, where it is caught and reported.
    match catch_unwind(AssertUnwindSafe(|| fixture.pair().map(drop))) {
        Ok(Err(Unavailable::Skip(_))) if !options.requires(fixture.provider()) => Ok(None),
        Ok(Err(e @ Unavailable::Skip(_))) => Err(Stopped::of(&e, &required(fixture.provider()))),
        Ok(Err(e)) => Err(Stopped::of(&e, "")),
        Ok(Ok(())) | Err(_) => Ok(None),
    }
}

/// Runs one case of [`suite!`](crate::suite) and panics if it failed. A skip prints its reason; where
/// the environment's `IBV_REQUIRE` (names, separated by commas) has the provider, a missing device is a
/// failure.
///
/// # Panics
/// If the case fails, or there is none of that name.
pub fn check<F: Fixture + ?Sized>(fixture: &F, name: &str) {
    let require = std::env::var("IBV_REQUIRE").unwrap_or_default();
    let require = require.split(',').map(|s| s.trim().to_owned()).collect();
    let options = Options { require, ..Options::default() };
    match run_named(fixture, name, &options) {
        Outcome::Passed | Outcome::ExpectedFailure(_) => {}
        Outcome::Skipped(why) => eprintln!("skipped: {name}: {why}"),
        Outcome::Failed(why) | Outcome::UnexpectedPass(why) => panic!("{name}: {why}"),
    }
}

/// Runs one case by its exact name.
pub(crate) fn run_named<F: Fixture + ?Sized>(fixture: &F, name: &str, options: &Options) -> Outcome {
    let Some(case) = cases::all::<F::Domain>().into_iter().find(|c| c.name == name) else {
        return Outcome::Failed(format!("there is no case {name}"));
    };
    let device = if options.expectations.is_empty() { String::new() } else { header(fixture).device };
    let found = in_one_process(fixture, &case, &options.patient_with(fixture.provider(), &device, name));
    weigh(found, fixture.provider(), &device, name, &options.expectations)
}

fn header<F: Fixture + ?Sized>(fixture: &F) -> ProviderReport {
    let (device, versions) = match fixture.end(Side::A).or_else(|_| fixture.pair().map(Pair::into_a)) {
        Ok(End { domain, .. }) => {
            let info = domain.device_info();
            (info.name.clone(), fixture.versions().complete(info))
        }
        Err(_) => (String::new(), fixture.versions()),
    };
    ProviderReport::new(fixture.provider(), fixture.dispatch(), device, fixture.schedule(), versions)
}

fn unopened<F: Fixture + ?Sized>(fixture: &F) -> ProviderReport {
    let versions = fixture.versions();
    ProviderReport::new(fixture.provider(), fixture.dispatch(), String::new(), fixture.schedule(), versions)
}

/// What `found` means where some failures are expected.
fn weigh(found: Outcome, provider: &str, device: &str, case: &str, known: &[Expectation]) -> Outcome {
    let Some(known) = known.iter().find(|e| e.matches(provider, device, case)) else { return found };
    match found {
        Outcome::Failed(why) => Outcome::ExpectedFailure(format!("{}: {why}", known.reason)),
        Outcome::Passed => Outcome::UnexpectedPass(format!("expected to fail: {}", known.reason)),
        other => other,
    }
}

/// What stands before the reason why a required provider has no device.
fn required(provider: &str) -> String {
    format!("{provider} is required and has no device: ")
}

fn unavailable<F: Fixture + ?Sized>(fixture: &F, e: &Unavailable, options: &Options) -> Outcome {
    match e {
        Unavailable::Fail(why) | Unavailable::OneProcess(why) => Outcome::Failed(why.clone()),
        Unavailable::Skip(why) if options.requires(fixture.provider()) => {
            Outcome::Failed(required(fixture.provider()) + why)
        }
        Unavailable::Skip(why) => Outcome::Skipped(format!("no device: {why}")),
    }
}

fn in_one_process<F: Fixture + ?Sized>(fixture: &F, case: &Case<F::Domain>, options: &Options) -> Outcome {
    caught(|| match fixture.pair() {
        Err(e) => unavailable(fixture, &e, options),
        Ok(Pair { a, b, progress }) => {
            let b = Arc::new(b);
            let mut agent = Agent::new(b.clone());
            let wait = Waiter { progress, deadline: options.deadline };
            on_pair(fixture, case, &a, Some(&b), &mut agent, wait)
        }
    })
}

fn in_two_processes<F: Fixture + ?Sized>(
    fixture: &F,
    case: &Case<F::Domain>,
    options: &Options,
    peer: &mut TcpPeer,
) -> Outcome {
    if case.one_process {
        return Outcome::Skipped("needs both ends in one process".into());
    }
    caught(|| match fixture.end(Side::A) {
        Err(e) => unavailable(fixture, &e, options),
        Ok(End { domain, progress }) => {
            let wait = Waiter { progress, deadline: options.deadline };
            on_pair(fixture, case, &domain, None, peer, wait)
        }
    })
}

fn on_pair<F: Fixture + ?Sized>(
    fixture: &F,
    case: &Case<F::Domain>,
    a: &IbvDomain<F::Domain>,
    here: Option<&IbvDomain<F::Domain>>,
    peer: &mut dyn Peer,
    wait: Waiter,
) -> Outcome {
    let b = match PeerEnd::new(peer, wait.clone()) {
        Ok(b) => b,
        Err(why) => return Outcome::Failed(why),
    };
    let (ours, both) = (a.caps(), common(&a.caps(), &b.caps));
    for (at, caps) in [("end a", &ours), ("end b", &b.caps), ("both ends", &both)] {
        if let Err(missing) = (case.needs)(caps) {
            return Outcome::Skipped(format!("{missing} ({at})"));
        }
    }
    let open = || fixture.pair();
    let mut ctx = Ctx { a, b, here, wait, base: fixture.config(), open: &open, skipped: None };
    match ((case.body)(&mut ctx), ctx.skipped.take()) {
        (_, Some(why)) => Outcome::Skipped(why),
        (Ok(()), None) => Outcome::Passed,
        (Err(why), None) => Outcome::Failed(why),
    }
}

/// A panic of the provider is its failure, not the run's end.
fn caught(body: impl FnOnce() -> Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Outcome::Failed(panic_text(&*payload)))
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text =
        payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("with something that is no text"))
}

/// The line that says what is running; cleared by an empty name.
fn show(options: &Options, report: &ProviderReport, case: &str) {
    let mut err = std::io::stderr();
    if options.progress && err.is_terminal() {
        let n = report.cases.len() + 1;
        let line = if case.is_empty() { String::new() } else { format!("{} {n}: {case}", report.title()) };
        let _ = write!(err, "\r\x1b[K{line}").and_then(|()| err.flush());
    }
}

impl<D: IbvDomainImpl> Pair<D> {
    fn into_a(self) -> End<D> {
        End { domain: self.a, progress: self.progress }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_to_fail_is_not_waited_for() {
        let known = r#"[{"provider": "verbs", "device": "rxe*", "case": "sleeps", "reason": "it does"}]"#;
        let options = Options { expectations: serde_json::from_str(known).unwrap(), ..Options::default() };
        let patience = |provider, device, case| options.patient_with(provider, device, case).deadline;
        assert_eq!(patience("verbs", "rxe0", "sleeps"), KNOWN_TO_FAIL);
        for (provider, device, case) in
            [("mlx5", "rxe0", "sleeps"), ("verbs", "mlx5_0", "sleeps"), ("verbs", "rxe0", "wakes")]
        {
            assert_eq!(patience(provider, device, case), options.deadline);
        }
    }
}
