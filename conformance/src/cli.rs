//! A command line over any number of fixtures: for tools that have several providers, and for a third
//! party's own binary. What is run is `harness.rs`'s.

use crate::{
    differential,
    expect::Expectation,
    fixture::{Fixture, Side},
    harness::{self, Options},
    peer,
    report::{Outcome, Report},
    stopped::{
        StopKind::{self, NoAddress, Unreachable},
        Stopped,
    },
};
use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};
use junit::Junit;
use serde_json::json;
use std::{
    fs,
    io::{self, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

mod help;
mod junit;

/// The exit code of a command whose output nobody reads any more: that of a process which SIGPIPE ends.
const NOBODY_READS: u8 = 141;
/// What `--differential` adds to the cases.
const GENERATED: &str = "generated_programs_agree_with_the_model";

/// A [`Fixture`] of whichever domain, so that fixtures fit in one list. Every fixture is one.
pub trait DynFixture: Send + Sync {
    /// The provider's name.
    fn provider(&self) -> &str;
    /// `static` or `dyn`.
    fn dispatch(&self) -> &str;
    /// How a simulated fabric orders things.
    fn schedule(&self) -> String;
    /// See [`run`](crate::run).
    fn run(&self, options: &Options) -> Report;
    /// Runs one case by its exact name.
    fn run_case(&self, case: &str, options: &Options) -> Outcome;
    /// See [`differential::run`].
    fn differential(&self, cases: u32, seed: u64) -> Outcome;
    /// Is end b of one run in two processes, for whoever connects first.
    ///
    /// Whoever connects and is no such end is named on standard error and passed over.
    ///
    /// # Errors
    /// What went wrong on the connection, or why this end can not take part, before anybody is waited for.
    fn serve(&self, listener: &TcpListener) -> Result<(), Stopped>;
    /// Why this could not be end b of a run in two processes.
    ///
    /// # Errors
    /// As [`serve`](Self::serve), at once.
    fn can_serve(&self) -> Result<(), Stopped>;
}

impl<F: Fixture> DynFixture for F {
    fn provider(&self) -> &str {
        Fixture::provider(self)
    }
    fn dispatch(&self) -> &str {
        Fixture::dispatch(self)
    }
    fn schedule(&self) -> String {
        Fixture::schedule(self)
    }
    fn run(&self, options: &Options) -> Report {
        harness::run(self, options)
    }
    fn run_case(&self, case: &str, options: &Options) -> Outcome {
        harness::run_named(self, case, options)
    }
    fn differential(&self, cases: u32, seed: u64) -> Outcome {
        differential::run(self, cases, seed)
    }
    fn serve(&self, listener: &TcpListener) -> Result<(), Stopped> {
        peer::serve(self, listener, |note| eprintln!("conformance: {note}"))
    }
    fn can_serve(&self) -> Result<(), Stopped> {
        self.end(Side::B).map(drop).map_err(|e| Stopped::of(&e, ""))
    }
}

/// The command line.
#[derive(Debug, Parser)]
#[command(about = "Runs the conformance suite on RDMA providers")]
struct Cli {
    /// Provider to test; may be given more than once, and names separated by commas. All of them if none.
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    provider: Vec<String>,
    /// How providers are called: `static`, `dyn` or both.
    #[arg(long, value_name = "HOW")]
    dispatch: Option<Dispatch>,
    /// Runs the cases whose name contains this, or of this group; may be given more than once.
    #[arg(long = "case", value_name = "FILTER")]
    case: Vec<String>,
    /// Prints the report as one JSON object on standard output.
    #[arg(long)]
    json: bool,
    /// Writes the report as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Provider whose missing device is a failure; may be given more than once.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    require: Vec<String>,
    /// Known failures: a JSON list of {"provider", "device", "case", "reason"}.
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// Runs so many generated programs besides, and compares with the mock's model.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["listen", "to"])]
    differential: u32,
    /// Generates other programs.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Longest single wait, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    deadline: u64,
    /// Lists the cases with their groups, and runs none; with --json, as a JSON list.
    #[arg(long)]
    list: bool,
    /// Is end b of a run in two processes: waits there for one run with `--to`.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["to", "case", "json", "junit"])]
    listen: Option<String>,
    /// Is end a of a run in two processes: end b listens there.
    #[arg(long, value_name = "HOST:PORT")]
    to: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dispatch {
    Static,
    Dyn,
}

/// How a command ends that is not carried out, and why.
#[derive(Debug)]
struct Failed {
    code: u8,
    why: String,
}

/// What is wrong with the command line.
fn usage(why: impl Into<String>) -> Failed {
    Failed { code: 2, why: why.into() }
}

impl From<Stopped> for Failed {
    fn from(stopped: Stopped) -> Self {
        Self { code: stopped.kind.code(), why: stopped.why }
    }
}

/// Runs the command line `args`, its first being the program's name, on `fixtures`. Exit code 0: all
/// passed, skipped or failed as expected; 1: a case failed; 2: wrong usage; the others are in its `--help`.
pub fn run(args: impl IntoIterator<Item = String>, fixtures: &[&dyn DynFixture]) -> ExitCode {
    let done = match parse(args.into_iter().collect()) {
        Ok(cli) => carry_out(&cli, fixtures),
        Err(e) if e.use_stderr() => {
            let _ = e.print();
            return ExitCode::from(2);
        }
        // Help and version are errors to clap, and go to standard output.
        Err(e) => print(&e.render().to_string()).map(|()| 0),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(Failed { code: NOBODY_READS, .. }) => ExitCode::from(NOBODY_READS),
        Err(Failed { code, why }) => {
            eprintln!("conformance: {why}");
            ExitCode::from(code)
        }
    }
}

fn parse(args: Vec<String>) -> Result<Cli, clap::Error> {
    let program = args.first().and_then(|path| Path::new(path).file_name());
    let program = program.unwrap_or("conformance".as_ref()).to_string_lossy();
    let mut command = Cli::command().after_long_help(help::after(&program));
    let mut matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|e| e.format(&mut command))
}

/// The exit code.
fn carry_out(cli: &Cli, fixtures: &[&dyn DynFixture]) -> Result<u8, Failed> {
    if cli.list {
        return print(&list(cli.json)).map(|()| 0);
    }
    let chosen = chosen(cli, fixtures)?;
    if let Some(address) = &cli.listen {
        return listen(address, &chosen).map(|()| 0);
    }
    let options = options(cli)?;
    if let Some(none) = cli.case.iter().find(|filter| !names_a_case(filter)) {
        let why = format!("no case has {none} in its name, and no group is called so; see --list");
        return Err(usage(why));
    }
    check_expectations(&options.expectations, fixtures)?;
    // Now, not after the run.
    let junit = cli.junit.as_deref().map(Junit::create).transpose()?;
    let mut report = Report::default();
    for fixture in one_of_each(cli, &chosen) {
        let mut one = fixture.run(&options);
        if cli.differential > 0 && one.providers.iter().all(|p| p.stopped.is_none()) {
            let (at, outcome) = (Instant::now(), fixture.differential(cli.differential, cli.seed));
            one.add(GENERATED, "differential", outcome, at.elapsed());
        }
        report.merge(one);
    }
    deliver(cli, &report, junit)?;
    Ok(code_of(&report))
}

/// 0; 1 where a case failed; else that of what kept cases from being run.
fn code_of(report: &Report) -> u8 {
    let stopped = report.providers.iter().find_map(|p| p.stopped.as_ref());
    let stops = report.providers.iter().filter(|p| p.stopped.is_some()).count();
    match stopped {
        _ if report.failed() > stops => 1,
        Some(stopped) => stopped.kind.code(),
        None => 0,
    }
}

fn list(json: bool) -> String {
    let all = harness::list().into_iter();
    if json {
        let all: Vec<_> = all.map(|(name, group)| json!({ "name": name, "group": group })).collect();
        return format!("{}\n", json!(all));
    }
    all.map(|(name, group)| format!("{group:<14} {name}\n")).collect()
}

/// An expectation of what does not exist would never be found to be out of date.
fn check_expectations(known: &[Expectation], fixtures: &[&dyn DynFixture]) -> Result<(), Failed> {
    for e in known {
        if !fixtures.iter().any(|f| f.provider() == e.provider) {
            return Err(usage(format!("--expect: there is no provider {}", e.provider)));
        }
        let one = |case: &str| e.matches(&e.provider, &e.device, case);
        if !harness::list().iter().any(|(case, _)| one(case)) && !one(GENERATED) {
            return Err(usage(format!("--expect: there is no case {}; see --list", e.case)));
        }
    }
    Ok(())
}

/// The fixtures that the command line names. A name that nobody has is an error, not an empty run.
fn chosen<'f>(cli: &Cli, fixtures: &[&'f dyn DynFixture]) -> Result<Vec<&'f dyn DynFixture>, Failed> {
    let known = || {
        let mut names: Vec<_> = fixtures.iter().map(|f| f.provider()).collect();
        names.dedup();
        names.join(", ")
    };
    for name in cli.provider.iter().chain(&cli.require) {
        if !fixtures.iter().any(|f| f.provider() == name) {
            return Err(usage(format!("no provider {name}; there are: {}", known())));
        }
    }
    let wanted = |f: &&&dyn DynFixture| {
        let named = cli.provider.is_empty() || cli.provider.iter().any(|p| p == f.provider());
        let how = if f.dispatch() == "dyn" { Dispatch::Dyn } else { Dispatch::Static };
        named && cli.dispatch.is_none_or(|d| d == how)
    };
    let chosen: Vec<_> = fixtures.iter().filter(wanted).copied().collect();
    if chosen.is_empty() {
        return Err(usage(format!("nothing to run; there are: {}", known())));
    }
    Ok(chosen)
}

/// In two processes there is one end b, so one fixture runs.
fn one_of_each<'f>(cli: &Cli, chosen: &[&'f dyn DynFixture]) -> Vec<&'f dyn DynFixture> {
    if cli.to.is_some() { joining(chosen).into_iter().collect() } else { chosen.to_vec() }
}

/// The first that can be an end in a process of its own; else the first that only lacks a device, to say so.
fn joining<'f>(chosen: &[&'f dyn DynFixture]) -> Option<&'f dyn DynFixture> {
    let refusals: Vec<_> = chosen.iter().map(|f| f.can_serve().err().map(|why| why.kind)).collect();
    let first = |fits: fn(&Option<StopKind>) -> bool| refusals.iter().position(fits);
    let found =
        first(Option::is_none).or(first(|kind| *kind != Some(StopKind::OneProcess))).or(first(|_| true));
    found.map(|at| chosen[at])
}

fn options(cli: &Cli) -> Result<Options, Failed> {
    let mut options = Options {
        filter: cli.case.clone(),
        require: cli.require.clone(),
        progress: true,
        peer: cli.to.clone(),
        deadline: Duration::from_secs(cli.deadline),
        ..Options::default()
    };
    if let Some(path) = &cli.expect {
        let wrong = |e: &dyn std::fmt::Display| usage(format!("--expect {}: {e}", path.display()));
        let text = fs::read_to_string(path).map_err(|e| wrong(&e))?;
        options.expectations = serde_json::from_str(&text).map_err(|e| wrong(&e))?;
    }
    Ok(options)
}

fn listen(address: &str, chosen: &[&dyn DynFixture]) -> Result<(), Failed> {
    let Some(fixture) = joining(chosen) else { return Err(usage("nothing to serve")) };
    let failed = |e: io::Error| {
        let kind = if e.kind() == io::ErrorKind::InvalidInput { NoAddress } else { Unreachable };
        Failed::from(kind.because(format!("listen on {address}: {e}")))
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    fixture.can_serve()?;
    eprintln!("{}: end b waits on {bound}", fixture.provider());
    Ok(fixture.serve(&listener)?)
}

fn deliver(cli: &Cli, report: &Report, junit: Option<Junit<'_>>) -> Result<(), Failed> {
    if let Some(junit) = junit {
        junit.write(&report.to_junit())?;
    }
    let nothing_ran = report.providers.iter().all(|p| p.stopped.is_some() && p.cases.is_empty());
    if cli.json || nothing_ran {
        let mut reasons: Vec<_> = report.providers.iter().filter_map(|p| p.stopped.as_ref()).collect();
        reasons.dedup();
        reasons.into_iter().for_each(|why| eprintln!("conformance: {why}"));
    }
    match cli.json {
        true => print(&(report.to_json() + "\n")),
        false if nothing_ran => Ok(()),
        false => print(&report.to_string()),
    }
}

fn print(text: &str) -> Result<(), Failed> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| Failed {
        code: if e.kind() == io::ErrorKind::BrokenPipe { NOBODY_READS } else { 1 },
        why: format!("standard output: {e}"),
    })
}

fn names_a_case(filter: &str) -> bool {
    harness::list().iter().any(|(name, group)| name.contains(filter) || *group == filter)
}
