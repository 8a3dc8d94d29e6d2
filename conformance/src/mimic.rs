//! The suite as a test binary of its own (`harness = false`), which looks and behaves like the built-in
//! one: filters, `--list`, `--test-threads`. What is run is `harness.rs`'s.

use crate::{
    cases,
    cli::{self, DynFixture},
    harness::Options,
    report::Outcome,
};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::{process::ExitCode, sync::Arc};

/// Runs every case on every fixture under libtest's own command line; the whole `main` of a test target
/// with `harness = false`. `--require NAME` makes a missing device of that provider a failure. With
/// `--json` or `--junit FILE` the command line is [`cli::run`](crate::cli::run)'s instead.
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     let (fixed, erased) = (conformance::Devices::of(Mine::default()), conformance::Devices::of(Mine::default()).erased());
///     conformance::main(vec![Box::new(fixed), Box::new(erased)])
/// }
/// # use provider_mock::MockProvider as Mine;
/// ```
pub fn main(fixtures: Vec<Box<dyn DynFixture>>) -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if args.iter().any(|a| a == "--json" || a == "--junit" || a.starts_with("--junit=")) {
        let all: Vec<&dyn DynFixture> = fixtures.iter().map(|f| &**f).collect();
        return cli::run(args, &all);
    }
    let (require, rest) = match split_require(args) {
        Ok(split) => split,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    let options = Arc::new(Options { require, ..Options::default() });
    let trials = fixtures.into_iter().flat_map(|f| trials(f.into(), &options)).collect();
    libtest_mimic::run(&Arguments::from_iter(rest), trials).exit_code()
}

/// Takes `--require NAME` and `--require=NAME` out of the arguments, which libtest does not know.
fn split_require(args: Vec<String>) -> Result<(Vec<String>, Vec<String>), String> {
    let (mut require, mut rest, mut args) = (Vec::new(), Vec::new(), args.into_iter());
    while let Some(arg) = args.next() {
        if arg == "--require" {
            require.push(args.next().ok_or("--require needs the name of a provider")?);
        } else if let Some(name) = arg.strip_prefix("--require=") {
            require.push(name.into());
        } else {
            rest.push(arg);
        }
    }
    Ok((require, rest))
}

fn trials(fixture: Arc<dyn DynFixture>, options: &Arc<Options>) -> Vec<Trial> {
    let schedule = fixture.schedule();
    let comma = if schedule.is_empty() { "" } else { ", " };
    let kind = format!("{}/{}{comma}{schedule}", fixture.provider(), fixture.dispatch());
    let trial = |(name, group): (&'static str, &'static str)| {
        let (fixture, options) = (fixture.clone(), options.clone());
        let body = move || verdict(fixture.run_case(name, &options));
        Trial::ignorable_test(format!("{group}::{name}"), body).with_kind(kind.clone())
    };
    cases::names().into_iter().map(trial).collect()
}

fn verdict(outcome: Outcome) -> Result<Completion, Failed> {
    match outcome {
        Outcome::Passed | Outcome::ExpectedFailure(_) => Ok(Completion::Completed),
        Outcome::Skipped(why) => Ok(Completion::ignored_with(why)),
        Outcome::Failed(why) | Outcome::UnexpectedPass(why) => Err(why.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn require_is_taken_out_wherever_it_stands() {
        let args = ["bin", "--require", "a", "put", "--require=b", "--exact"].map(String::from);
        let (require, rest) = split_require(args.into()).unwrap();
        assert_eq!(
            (require, rest),
            (vec!["a".into(), "b".into()], vec!["bin".into(), "put".into(), "--exact".into()])
        );
        assert!(split_require(vec!["bin".into(), "--require".into()]).is_err());
    }
}
