//! `cargo xtask test`: runs lanes one after the other, times them, and says at the end which passed,
//! which failed and which could not run. What a lane does is in `lanes.rs`. `cargo xtask full` is run the same way.

use crate::{
    lanes::{For, LANES, Lane, Ran},
    sh::{Result, more_comes, usage},
};
use std::{
    env,
    time::{Duration, Instant},
};

const USAGE: &str = "usage: cargo xtask test [--list] [--lane NAME]...

Runs every lane, or those named. Never asks anything. A lane that can not run here says why; where CI is set
in the environment, that fails for every lane but the maintainers'. IBV_MINUTES is how long all of it may take:
lanes that would begin later fail.";

/// The limit in minutes, where there is one.
const MINUTES: &str = "IBV_MINUTES";

/// Runs the command.
pub(crate) fn run(args: &[String]) -> Result<()> {
    Course { what: "lane", usage: USAGE, lanes: LANES }.run(args)
}

/// Lanes, and what they are called where they are chosen.
pub(crate) struct Course {
    pub(crate) what: &'static str,
    pub(crate) usage: &'static str,
    pub(crate) lanes: &'static [Lane],
}

impl Course {
    /// Runs all of it or what the arguments name.
    pub(crate) fn run(&self, args: &[String]) -> Result<()> {
        let Some(chosen) = self.choose(args)? else { return Ok(()) };
        more_comes();
        let ci = env::var_os("CI").is_some();
        let until = limit()?.map(|limit| Instant::now() + limit);
        let results: Vec<Finished> = chosen.into_iter().map(|lane| Finished::of(lane, ci, until)).collect();
        println!("{}", self.summary(&results));
        if results.iter().any(|r| r.outcome.is_failure()) {
            let what = self.what;
            return Err(format!("a {what} failed; run it alone with --{what} NAME").into());
        }
        Ok(())
    }

    /// The lanes to run; none where the arguments only ask for words.
    fn choose(&self, args: &[String]) -> Result<Option<Vec<&'static Lane>>> {
        let (mut chosen, mut args) = (Vec::new(), args.iter());
        let option = format!("--{}", self.what);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--list" => return Ok(self.list()),
                "--help" | "-h" => {
                    println!("{}", self.usage);
                    return Ok(None);
                }
                arg if arg == option => {
                    let name =
                        args.next().ok_or_else(|| usage(format!("{option} needs a name; see --list")))?;
                    chosen.push(self.named(name)?);
                }
                other => return Err(usage(format!("no argument {other}\n\n{}", self.usage))),
            }
        }
        Ok(Some(if chosen.is_empty() { self.lanes.iter().collect() } else { chosen }))
    }

    fn list(&self) -> Option<Vec<&'static Lane>> {
        for lane in self.lanes {
            let some = self.lanes.iter().any(|l| l.whose == For::Everybody);
            let whose = if some && lane.whose == For::Maintainers { " (maintainers')" } else { "" };
            println!("{:16}{}{whose}", lane.name, lane.about);
        }
        None
    }

    fn named(&self, name: &str) -> Result<&'static Lane> {
        let found = self.lanes.iter().find(|l| l.name == name);
        found.ok_or_else(|| usage(format!("no {} {name}; see --list", self.what)))
    }
}

fn limit() -> Result<Option<Duration>> {
    let Ok(minutes) = env::var(MINUTES) else { return Ok(None) };
    let minutes: u64 = minutes.parse().map_err(|e| format!("{MINUTES}={minutes}: {e}"))?;
    Ok(Some(Duration::from_secs(minutes * 60)))
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
    fn of(lane: &'static Lane, ci: bool, until: Option<Instant>) -> Self {
        println!("── {}: {}", lane.name, lane.about);
        let start = Instant::now();
        let outcome = match until {
            Some(until) if start > until => Outcome::Missing("the time for all lanes is over".into()),
            _ => judge((lane.run)(), lane.whose, ci),
        };
        let took = start.elapsed();
        let ending = match &outcome {
            Outcome::Passed => "passed".into(),
            Outcome::Failed(why) => format!("FAILED: {why}"),
            Outcome::NotRun(why) | Outcome::Missing(why) => format!("NOT RUN: {why}"),
        };
        println!("── {} took {:.1} minutes, {ending}", lane.name, minutes(took));
        Self { lane, took, outcome }
    }
}

fn minutes(time: Duration) -> f64 {
    time.as_secs_f64() / 60.0
}

fn judge(ran: Result<Ran>, whose: For, ci: bool) -> Outcome {
    match ran {
        Ok(Ran::Passed) => Outcome::Passed,
        Ok(Ran::Not(why)) if ci && whose == For::Everybody => Outcome::Missing(why),
        Ok(Ran::Not(why)) => Outcome::NotRun(why),
        Err(why) => Outcome::Failed(why.to_string()),
    }
}

impl Course {
    fn summary(&self, results: &[Finished]) -> String {
        let what = self.what;
        let mut text = format!("\n{what:16} minutes  result\n");
        for Finished { lane, took, outcome } in results {
            let result = match outcome {
                Outcome::Passed => "passed".into(),
                Outcome::Failed(why) => format!("FAILED: {}", first_line(why)),
                Outcome::NotRun(why) => format!("NOT RUN: {}", first_line(why)),
                Outcome::Missing(why) => format!("FAILED, must run and did not: {}", first_line(why)),
            };
            text += &format!("{:16} {:7.1}  {result}\n", lane.name, minutes(*took));
        }
        let count = |want: fn(&Outcome) -> bool| results.iter().filter(|r| want(&r.outcome)).count();
        let (passed, failed) = (count(|o| *o == Outcome::Passed), count(Outcome::is_failure));
        let all = minutes(results.iter().map(|r| r.took).sum());
        let not_run = results.len() - passed - failed;
        text + &format!("{passed} {what}s passed, {failed} failed, {not_run} not run, in {all:.1} minutes")
    }
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
        let text = TEST.summary(&[
            ran(Outcome::Passed),
            ran(Outcome::Failed("a\nb".into())),
            ran(Outcome::NotRun("c".into())),
        ]);
        assert!(text.ends_with("1 lanes passed, 1 failed, 1 not run, in 4.5 minutes"), "{text}");
        assert!(text.contains("1.5  FAILED: a\n") && text.contains("1.5  NOT RUN: c\n"), "{text}");
    }

    #[test]
    fn a_lane_that_would_begin_too_late_fails() {
        static NEVER: Lane =
            Lane { name: "never", about: "", whose: For::Maintainers, run: || panic!("it was run") };
        let past = Instant::now() - Duration::from_secs(1);
        assert!(Finished::of(&NEVER, false, Some(past)).outcome.is_failure());
    }

    const TEST: Course = Course { what: "lane", usage: USAGE, lanes: LANES };

    #[test]
    fn lanes_and_steps_have_names_of_their_own() {
        let mut names: Vec<_> = LANES.iter().chain(crate::full::STEPS).map(|l| l.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), LANES.len() + crate::full::STEPS.len());
        assert!(TEST.named("fmt").is_ok() && TEST.named("none").is_err());
    }

    #[test]
    fn lanes_are_chosen_by_name() {
        let args = ["--lane", "tidy", "--lane", "fmt"].map(String::from);
        let chosen = TEST.choose(&args).unwrap().unwrap();
        assert_eq!(chosen.iter().map(|l| l.name).collect::<Vec<_>>(), ["tidy", "fmt"]);
        assert!(TEST.choose(&["--lane".into()]).is_err() && TEST.choose(&["tidy".into()]).is_err());
        assert!(TEST.choose(&["--step".into(), "fmt".into()]).is_err());
        assert_eq!(TEST.choose(&[]).unwrap().unwrap().len(), LANES.len());
    }
}
