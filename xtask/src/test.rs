//! `cargo xtask test`: runs lanes one after the other, times them, and says at the end which passed,
//! which failed and which could not run. What a lane does is in `lanes.rs`.

use crate::{
    lanes::{For, LANES, Lane, Ran},
    sh::Result,
};
use std::{
    env,
    time::{Duration, Instant},
};

const USAGE: &str = "usage: cargo xtask test [--list] [--lane NAME]...

Runs every lane, or those named. Never asks anything. A lane that can not run here says why; where CI is set
in the environment, that fails for every lane but the maintainers'.";

/// Runs the command.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let Some(chosen) = choose(args)? else { return Ok(()) };
    let ci = env::var_os("CI").is_some();
    let results: Vec<Finished> = chosen.into_iter().map(|lane| Finished::of(lane, ci)).collect();
    println!("{}", summary(&results));
    if results.iter().any(|r| r.outcome.is_failure()) {
        return Err("a lane failed; run it alone with --lane NAME".into());
    }
    Ok(())
}

/// The lanes to run; none where the arguments only ask for words.
fn choose(args: &[String]) -> Result<Option<Vec<&'static Lane>>> {
    let (mut chosen, mut args) = (Vec::new(), args.iter());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => return Ok(list()),
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(None);
            }
            "--lane" => chosen.push(named(args.next().ok_or("--lane needs a name; see --list")?)?),
            other => return Err(format!("unknown argument {other}\n{USAGE}").into()),
        }
    }
    Ok(Some(if chosen.is_empty() { LANES.iter().collect() } else { chosen }))
}

fn list() -> Option<Vec<&'static Lane>> {
    for lane in LANES {
        let whose = if lane.whose == For::Maintainers { " (maintainers')" } else { "" };
        println!("{:14}{}{whose}", lane.name, lane.about);
    }
    None
}

fn named(name: &str) -> Result<&'static Lane> {
    LANES.iter().find(|l| l.name == name).ok_or_else(|| format!("no lane {name}; see --list").into())
}

struct Finished {
    lane: &'static Lane,
    took: Duration,
    outcome: Outcome,
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    /// It could not run, and nobody minds.
    NotRun(String),
    /// It could not run, and had to.
    Missing(String),
}

impl Outcome {
    fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Missing(_))
    }
}

impl Finished {
    fn of(lane: &'static Lane, ci: bool) -> Self {
        println!("── {}: {}", lane.name, lane.about);
        let start = Instant::now();
        let outcome = judge((lane.run)(), lane.whose, ci);
        match &outcome {
            Outcome::Passed => {}
            Outcome::Failed(why) => println!("── {} FAILED: {why}", lane.name),
            Outcome::NotRun(why) | Outcome::Missing(why) => println!("── {} NOT RUN: {why}", lane.name),
        }
        Self { lane, took: start.elapsed(), outcome }
    }
}

fn judge(ran: Result<Ran>, whose: For, ci: bool) -> Outcome {
    match ran {
        Ok(Ran::Passed) => Outcome::Passed,
        Ok(Ran::Not(why)) if ci && whose == For::Everybody => Outcome::Missing(why),
        Ok(Ran::Not(why)) => Outcome::NotRun(why),
        Err(why) => Outcome::Failed(why.to_string()),
    }
}

fn summary(results: &[Finished]) -> String {
    let mut text = String::from("\nlane           minutes  result\n");
    for Finished { lane, took, outcome } in results {
        let result = match outcome {
            Outcome::Passed => "passed".into(),
            Outcome::Failed(why) => format!("FAILED: {}", first_line(why)),
            Outcome::NotRun(why) => format!("NOT RUN: {}", first_line(why)),
            Outcome::Missing(why) => format!("FAILED, must run in CI and did not: {}", first_line(why)),
        };
        text += &format!("{:14} {:7.1}  {result}\n", lane.name, took.as_secs_f64() / 60.0);
    }
    let count = |want: fn(&Outcome) -> bool| results.iter().filter(|r| want(&r.outcome)).count();
    let (passed, failed) = (count(|o| *o == Outcome::Passed), count(Outcome::is_failure));
    let minutes = results.iter().map(|r| r.took).sum::<Duration>().as_secs_f64() / 60.0;
    let not_run = results.len() - passed - failed;
    text + &format!("{passed} lanes passed, {failed} failed, {not_run} not run, in {minutes:.1} minutes")
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_run() -> Result<Ran> {
        Ok(Ran::Not("no such tool".into()))
    }

    #[test]
    fn only_a_maintainers_lane_may_stay_out_in_ci() {
        assert_eq!(judge(not_run(), For::Everybody, false), Outcome::NotRun("no such tool".into()));
        assert_eq!(judge(not_run(), For::Maintainers, true), Outcome::NotRun("no such tool".into()));
        assert!(judge(not_run(), For::Everybody, true).is_failure());
        assert!(judge(Err("x".into()), For::Maintainers, false).is_failure());
    }

    #[test]
    fn the_summary_counts_and_names_each_lane() {
        let ran = |outcome| Finished { lane: &LANES[0], took: Duration::from_secs(90), outcome };
        let text = summary(&[
            ran(Outcome::Passed),
            ran(Outcome::Failed("a\nb".into())),
            ran(Outcome::NotRun("c".into())),
        ]);
        assert!(text.ends_with("1 lanes passed, 1 failed, 1 not run, in 4.5 minutes"), "{text}");
        assert!(text.contains("1.5  FAILED: a\n") && text.contains("1.5  NOT RUN: c\n"), "{text}");
    }

    #[test]
    fn lanes_have_names_of_their_own() {
        let mut names: Vec<_> = LANES.iter().map(|l| l.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), LANES.len());
        assert!(named("fmt").is_ok() && named("none").is_err());
    }

    #[test]
    fn lanes_are_chosen_by_name() {
        let args = ["--lane", "tidy", "--lane", "fmt"].map(String::from);
        let chosen = choose(&args).unwrap().unwrap();
        assert_eq!(chosen.iter().map(|l| l.name).collect::<Vec<_>>(), ["tidy", "fmt"]);
        assert!(choose(&["--lane".into()]).is_err() && choose(&["tidy".into()]).is_err());
        assert_eq!(choose(&[]).unwrap().unwrap().len(), LANES.len());
    }
}
