//! A command line over any number of fixtures: for tools that have several providers, and for a third
//! party's own binary. What is run is `harness.rs`'s.

use crate::{
    differential,
    fixture::Fixture,
    harness::{self, Options},
    peer,
    report::{Outcome, Report},
};
use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};
use std::{
    fs,
    io::{self, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

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
    /// # Errors
    /// What went wrong on the connection, or why this end can not take part.
    fn serve(&self, listener: &TcpListener) -> Result<(), String>;
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
    fn serve(&self, listener: &TcpListener) -> Result<(), String> {
        peer::serve(self, listener)
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
    /// Lists the cases with their groups, and runs none.
    #[arg(long)]
    list: bool,
    /// Is end b of a run in two processes: waits on ADDR for one run with `--to`.
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["to", "case", "json", "junit"])]
    listen: Option<String>,
    /// Is end a of a run in two processes: end b listens on ADDR.
    #[arg(long, value_name = "ADDR")]
    to: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dispatch {
    Static,
    Dyn,
}

/// What help ends with, for a program of that name.
fn examples(program: &str) -> String {
    format!(
        "\
Examples:
  {program} --provider mock                   in this process: no hardware needed
  {program} --provider mlx5 --require mlx5    fails where there is no device, rather than skip
  {program} --case write --json               the cases about writes, as one JSON object
  {program} --provider verbs --listen 0.0.0.0:7471
                                            end b, for one run of end a:
  {program} --provider verbs --to server.example:7471 --junit report.xml
  {program} --list                            every case and its group

Exit codes:
    0  every case passed, was skipped, or failed as expected
    1  a case failed
    2  wrong usage, or the suite could not be run; why is printed
  {NOBODY_READS}  nobody reads standard output any more, as after `| head`; nothing is said"
    )
}

/// The exit code where standard output has no reader left: what a program ends with that `SIGPIPE` ends.
const NOBODY_READS: u8 = 141;

/// Why nothing, or not all, was carried out.
enum Stopped {
    NobodyReads,
    Why(String),
}

impl From<String> for Stopped {
    fn from(why: String) -> Self {
        Self::Why(why)
    }
}

/// Runs the command line `args`, its first being the program's name, on `fixtures`. Exit code 0: all
/// passed, skipped or failed as expected; 1: a case failed; 2: the command could not be carried out; 141: nobody
/// reads standard output any more, of which nothing is said.
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
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(Stopped::NobodyReads) => ExitCode::from(NOBODY_READS),
        Err(Stopped::Why(why)) => {
            eprintln!("conformance: {why}");
            ExitCode::from(2)
        }
    }
}

fn parse(args: Vec<String>) -> Result<Cli, clap::Error> {
    let program = args.first().and_then(|path| Path::new(path).file_name());
    let program = program.unwrap_or("conformance".as_ref()).to_string_lossy();
    let mut command = Cli::command().after_long_help(examples(&program));
    let mut matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|e| e.format(&mut command))
}

/// The number of failed cases.
fn carry_out(cli: &Cli, fixtures: &[&dyn DynFixture]) -> Result<usize, Stopped> {
    if cli.list {
        let lines = harness::list().into_iter().map(|(name, group)| format!("{group:<14} {name}\n"));
        return print(&lines.collect::<String>()).map(|()| 0);
    }
    let chosen = chosen(cli, fixtures)?;
    if let Some(address) = &cli.listen {
        listen(address, &chosen)?;
        return Ok(0);
    }
    let options = options(cli)?;
    if let Some(none) = cli.case.iter().find(|filter| !names_a_case(filter)) {
        return Err(format!("no case has {none} in its name, and no group is called so; see --list").into());
    }
    let mut report = Report::default();
    for fixture in one_of_each(cli, &chosen) {
        let mut one = fixture.run(&options);
        if cli.differential > 0 {
            let (at, outcome) = (Instant::now(), fixture.differential(cli.differential, cli.seed));
            one.add("generated_programs_agree_with_the_model", "differential", outcome, at.elapsed());
        }
        report.merge(one);
    }
    deliver(cli, &report)?;
    Ok(report.failed())
}

/// The fixtures that the command line names. A name that nobody has is an error, not an empty run.
fn chosen<'f>(cli: &Cli, fixtures: &[&'f dyn DynFixture]) -> Result<Vec<&'f dyn DynFixture>, String> {
    let known = || {
        let mut names: Vec<_> = fixtures.iter().map(|f| f.provider()).collect();
        names.dedup();
        names.join(", ")
    };
    for name in cli.provider.iter().chain(&cli.require) {
        if !fixtures.iter().any(|f| f.provider() == name) {
            return Err(format!("no provider {name}; there are: {}", known()));
        }
    }
    let wanted = |f: &&&dyn DynFixture| {
        let named = cli.provider.is_empty() || cli.provider.iter().any(|p| p == f.provider());
        let how = if f.dispatch() == "dyn" { Dispatch::Dyn } else { Dispatch::Static };
        named && cli.dispatch.is_none_or(|d| d == how)
    };
    let chosen: Vec<_> = fixtures.iter().filter(wanted).copied().collect();
    if chosen.is_empty() { Err(format!("nothing to run; there are: {}", known())) } else { Ok(chosen) }
}

/// In two processes there is one end b, so one fixture runs.
fn one_of_each<'f, 'c>(cli: &Cli, chosen: &'c [&'f dyn DynFixture]) -> &'c [&'f dyn DynFixture] {
    if cli.to.is_some() { &chosen[..1] } else { chosen }
}

fn options(cli: &Cli) -> Result<Options, String> {
    let mut options = Options {
        filter: cli.case.clone(),
        require: cli.require.clone(),
        progress: true,
        peer: cli.to.clone(),
        deadline: Duration::from_secs(cli.deadline),
        ..Options::default()
    };
    if let Some(path) = &cli.expect {
        let text = fs::read_to_string(path).map_err(|e| format!("read {}: {e}", path.display()))?;
        options.expectations = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(options)
}

fn listen(address: &str, chosen: &[&dyn DynFixture]) -> Result<(), String> {
    let Some(fixture) = chosen.first() else { return Err("nothing to serve".into()) };
    let listener = TcpListener::bind(address).map_err(|e| format!("listen on {address}: {e}"))?;
    let bound = listener.local_addr().map_err(|e| format!("listen on {address}: {e}"))?;
    eprintln!("{}: end b waits on {bound}", fixture.provider());
    fixture.serve(&listener)
}

fn deliver(cli: &Cli, report: &Report) -> Result<(), Stopped> {
    if let Some(path) = &cli.junit {
        fs::write(path, report.to_junit()).map_err(|e| format!("write {}: {e}", path.display()))?;
    }
    print(&if cli.json { report.to_json() + "\n" } else { report.to_string() })
}

fn print(text: &str) -> Result<(), Stopped> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Stopped::NobodyReads),
        Err(e) => Err(format!("standard output: {e}").into()),
        Ok(()) => Ok(()),
    }
}

fn names_a_case(filter: &str) -> bool {
    harness::list().iter().any(|(name, group)| name.contains(filter) || *group == filter)
}
