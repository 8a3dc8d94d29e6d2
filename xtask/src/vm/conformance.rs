//! `cargo xtask vm conformance`: the suite for the provider `verbs` in a guest, and what its report has to
//! say. Known failures of rxe itself are `known_failures.json`'s.

use super::{Lab, ibv};
use crate::sh::{Result, target};
use serde_json::Value;
use std::fs;

/// A suite that skips what it was to show has shown nothing, cases by each dispatch.
const ENOUGH: u64 = 70;
const DISPATCHES: [&str; 2] = ["static", "dyn"];
/// For one wait, seconds: under emulation, on a host that has other things to do.
const PATIENCE: &str = "30";
/// Bytes in a work request when splitting is tested: rxe takes longer ones than can be copied and compared.
const PIECE: u32 = 4096;
/// What names the cases that split; `judge` sees to it that none is left out.
const SPLITTING: [&str; 4] = ["split", "across_chunks", "one_id_for_each_request", "larger_than_the_queue"];

pub(super) fn run_suite(lab: &Lab, args: &[String]) -> Result<()> {
    let json = args.iter().any(|arg| arg == "--json");
    let rest: Vec<String> = args.iter().filter(|arg| *arg != "--json").cloned().collect();
    let ended = lab.run("conformance", &command(&rest)?, false)?;
    let report = merged(&ended.stdout)
        .map_err(|e| format!("the suite ended with {} and printed no report: {e}", ended.code))?;
    if json {
        println!("{report:#}");
    }
    eprint!("{}", summary(&report));
    if !rest.is_empty() {
        return judge(&report, 1);
    }
    judge(&report, ENOUGH)?;
    all_split(&report)
}

/// The suite, and in the same boot those of its cases that split once more, in short pieces; only the suite
/// where `rest` chooses cases.
fn command(rest: &[String]) -> Result<Vec<String>> {
    let expect = target().join("vm/known-failures.json");
    fs::write(&expect, include_str!("known_failures.json"))?;
    let ibv = ibv()?;
    let fixed = ["--provider", "verbs", "--require", "verbs", "--json", "--deadline", PATIENCE, "--expect"];
    let fixed: Vec<String> =
        fixed.map(str::to_owned).into_iter().chain([expect.display().to_string()]).collect();
    let suite = [vec![ibv, "conformance".into()], fixed.clone(), rest.to_vec()].concat();
    if !rest.is_empty() {
        return Ok(suite);
    }
    let pieces = [vec!["--max-msg-size".into(), PIECE.to_string()], fixed, splitting()].concat();
    let script = format!("\"$@\"; \"$1\" conformance {}", pieces.join(" "));
    Ok([["sh", "-c", &script, "sh"].map(str::to_owned).to_vec(), suite].concat())
}

fn splitting() -> Vec<String> {
    SPLITTING.iter().flat_map(|name| ["--case".to_owned(), (*name).to_owned()]).collect()
}

/// One report of those that follow each other; the runs of all but the first say that they were in pieces.
fn merged(text: &str) -> Result<Value> {
    let mut reports = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut all = reports.next().ok_or("nothing at all")??;
    for report in reports {
        for mut run in runs(&report?).cloned() {
            run["max_msg_size"] = PIECE.into();
            all["providers"].as_array_mut().ok_or("no list of providers")?.push(run);
        }
    }
    Ok(all)
}

/// One line for each dispatch and for each case that went wrong.
fn summary(report: &Value) -> String {
    let mut text = String::new();
    for run in runs(report) {
        let (dispatch, device) = (word(run, "dispatch"), word(run, "device"));
        let [passed, failed, skipped] = ["passed", "failed", "skipped"].map(|name| count(run, name));
        let pieces = run["max_msg_size"].as_u64().map(|n| format!(" in pieces of {n} bytes"));
        let pieces = pieces.unwrap_or_default();
        text += &format!(
            "verbs by {dispatch} dispatch on {device}{pieces}: {passed} passed, {failed} failed, {skipped} skipped\n"
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
        let of_it: Vec<&Value> = runs(report).filter(|run| word(run, "dispatch") == dispatch).collect();
        let suite = of_it.first().ok_or_else(|| format!("the suite did not run by {dispatch} dispatch"))?;
        let (passed, failed) = (count(suite, "passed"), of_it.iter().map(|run| count(run, "failed")).max());
        let failed = failed.unwrap_or(u64::MAX);
        if failed != 0 || passed < enough {
            return Err(format!(
                "{dispatch} dispatch: {passed} passed of at least {enough}, {failed} failed"
            )
            .into());
        }
    }
    Ok(())
}

/// Whether what the first run left out, for the length of the device's messages, passed in pieces; a run that
/// did not come to its report has passed nothing.
fn all_split(report: &Value) -> Result<()> {
    for dispatch in DISPATCHES {
        let of_it: Vec<&Value> = runs(report).filter(|run| word(run, "dispatch") == dispatch).collect();
        let cases = || of_it.iter().flat_map(|run| run["cases"].as_array().into_iter().flatten());
        let passed =
            |name: &str| cases().any(|case| word(case, "name") == name && word(case, "outcome") == "passed");
        let mut left_out = cases().filter(|case| word(case, "reason").contains("max_msg_size"));
        if let Some(case) = left_out.find(|case| !passed(word(case, "name"))) {
            let name = word(case, "name");
            return Err(format!("{dispatch} dispatch: {name} passed neither whole nor in pieces").into());
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
    fn a_case_that_splits_has_to_pass_in_pieces() {
        let case =
            |outcome: &str, reason: &str| json!([{ "name": "splits", "outcome": outcome, "reason": reason }]);
        let with = |first: Value, second: Value| {
            let mut whole = report(70, 0);
            let mut pieces = report(1, 0);
            for (report, cases) in [(&mut whole, first), (&mut pieces, second)] {
                report["providers"]
                    .as_array_mut()
                    .unwrap()
                    .iter_mut()
                    .for_each(|run| run["cases"] = cases.clone());
            }
            merged(&format!("{whole}\n{pieces}\n")).unwrap()
        };
        let skipped = || case("skipped", "needs capability max_msg_size of at most 1 MiB");
        assert!(all_split(&with(skipped(), case("passed", ""))).is_ok());
        let refused = |report: &Value| all_split(report).unwrap_err().to_string();
        assert!(refused(&with(skipped(), skipped())).contains("splits passed neither"));
        let mut cut_off = with(skipped(), case("passed", ""));
        cut_off["providers"].as_array_mut().unwrap().truncate(2);
        assert!(refused(&cut_off).contains("static dispatch: splits passed neither"), "no second report");
        let mut failed = with(case("passed", ""), case("failed", "why"));
        failed["providers"][3]["failed"] = 1.into();
        assert!(judge(&failed, ENOUGH).is_err());
        assert!(summary(&failed).contains("on rxe0 in pieces of 4096 bytes: 1 passed, 1 failed"));
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
