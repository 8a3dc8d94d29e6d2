//! `cargo xtask vm conformance`: the suite for the provider `verbs` in a guest, and what its report has to
//! say. Known failures of rxe itself are `known_failures.json`'s.

use super::Lab;
use crate::sh::{Result, cargo, run, target};
use serde_json::Value;
use std::fs;

/// A suite that skips what it was to show has shown nothing, cases by each dispatch.
const ENOUGH: u64 = 70;
const DISPATCHES: [&str; 2] = ["static", "dyn"];
/// For one wait, seconds: under emulation, on a host that has other things to do.
const PATIENCE: &str = "30";

pub(super) fn run_suite(lab: &Lab, args: &[String]) -> Result<()> {
    run(&mut cargo(["build", "--quiet", "--package", "ibv-tools"]))?;
    let json = args.iter().any(|arg| arg == "--json");
    let rest: Vec<&String> = args.iter().filter(|arg| *arg != "--json").collect();
    let ibv = target().join("debug/ibv").display().to_string();
    let expect = target().join("vm/known-failures.json");
    fs::write(&expect, include_str!("known_failures.json"))?;
    let expect = expect.display().to_string();
    let fixed = [&ibv, "conformance", "--provider", "verbs", "--require", "verbs", "--json"];
    let more = ["--deadline", PATIENCE, "--expect", &expect];
    let command = fixed.into_iter().chain(more).chain(rest.iter().map(|arg| arg.as_str()));
    let command: Vec<String> = command.map(str::to_owned).collect();
    let ended = lab.run("conformance", &command, false)?;
    if json {
        print!("{}", ended.stdout);
    }
    let report: Value = serde_json::from_str(&ended.stdout)
        .map_err(|e| format!("the suite ended with {} and printed no report: {e}", ended.code))?;
    eprint!("{}", summary(&report));
    judge(&report, if rest.is_empty() { ENOUGH } else { 1 })
}

/// One line for each dispatch and for each case that went wrong.
fn summary(report: &Value) -> String {
    let mut text = String::new();
    for run in runs(report) {
        let (dispatch, device) = (word(run, "dispatch"), word(run, "device"));
        let [passed, failed, skipped] = ["passed", "failed", "skipped"].map(|name| count(run, name));
        text += &format!(
            "verbs by {dispatch} dispatch on {device}: {passed} passed, {failed} failed, {skipped} skipped\n"
        );
        for case in run["cases"].as_array().into_iter().flatten() {
            if !["passed", "skipped"].contains(&word(case, "outcome")) {
                let [name, outcome, reason] = ["name", "outcome", "reason"].map(|field| word(case, field));
                text += &format!("  {name}: {outcome}: {reason}\n");
            }
        }
    }
    text
}

fn judge(report: &Value, enough: u64) -> Result<()> {
    for dispatch in DISPATCHES {
        let run = runs(report).find(|run| word(run, "dispatch") == dispatch);
        let run = run.ok_or_else(|| format!("the suite did not run by {dispatch} dispatch"))?;
        let (passed, failed) = (count(run, "passed"), count(run, "failed"));
        if failed != 0 || passed < enough {
            return Err(format!(
                "{dispatch} dispatch: {passed} passed of at least {enough}, {failed} failed"
            )
            .into());
        }
    }
    Ok(())
}

fn runs(report: &Value) -> impl Iterator<Item = &Value> {
    report["providers"].as_array().into_iter().flatten()
}

fn word<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// A count that is not there is none that is good.
fn count(run: &Value, field: &str) -> u64 {
    run[field].as_u64().unwrap_or(if field == "failed" { u64::MAX } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report(passed: u64, failed: u64) -> Value {
        let run = |dispatch| {
            let cases = json!([{ "name": "puts", "outcome": "failed", "reason": "why" }]);
            json!({ "dispatch": dispatch, "device": "rxe0", "passed": passed, "failed": failed, "skipped": 2, "cases": cases })
        };
        json!({ "providers": [run("static"), run("dyn")] })
    }

    #[test]
    fn a_report_needs_both_dispatches_enough_passes_and_no_failure() {
        assert!(judge(&report(70, 0), ENOUGH).is_ok());
        assert!(judge(&report(69, 0), ENOUGH).unwrap_err().to_string().contains("69 passed of at least 70"));
        assert!(judge(&report(200, 1), ENOUGH).unwrap_err().to_string().contains("1 failed"));
        let mut one = report(70, 0);
        one["providers"].as_array_mut().unwrap().pop();
        assert!(judge(&one, ENOUGH).unwrap_err().to_string().contains("dyn"));
        assert!(judge(&json!({}), 0).is_err());
    }

    #[test]
    fn the_summary_names_what_went_wrong() {
        let text = summary(&report(9, 1));
        assert!(text.contains("verbs by static dispatch on rxe0: 9 passed, 1 failed, 2 skipped\n"), "{text}");
        assert!(text.contains("  puts: failed: why\n"), "{text}");
    }

    #[test]
    fn known_failures_speak_of_this_provider_on_rxe_and_say_why() {
        let list: Value = serde_json::from_str(include_str!("known_failures.json")).unwrap();
        for one in list.as_array().unwrap() {
            assert_eq!((word(one, "provider"), word(one, "device")), ("verbs", "rxe*"), "{one}");
            assert!(!word(one, "case").is_empty() && word(one, "reason").len() > 20, "{one}");
        }
    }
}
