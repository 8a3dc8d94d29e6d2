//! The suite catches every mutant, and nothing but mutants.

use conformance::{DynFixture, Options, Outcome};
use mutants::{Mutant, MutantFixture, controls, judge, judge_all, mutants, of_gets_alone};
use std::{collections::HashSet, panic};

#[test]
fn the_wrapper_without_a_mutation_passes_every_case() {
    for control in controls() {
        let verdict = judge(&control, true);
        assert!(verdict.caught.is_empty(), "{} fails: {:#?}", control.name, verdict.caught);
    }
}

#[test]
fn every_mutant_fails_a_case() {
    panic::set_hook(Box::new(|_| {}));
    let tally = judge_all(&mutants(), false);
    let _ = panic::take_hook();
    assert!(tally.0.len() >= 30, "{} mutants", tally.0.len());
    assert_eq!(tally.survivors(), [""; 0], "no case catches these");
}

/// The cases about what a client may conclude, on clients that conclude too much; every other wrapper over a
/// device that shuffles passes them.
#[test]
fn clients_that_assume_an_order_fail_the_cases_about_it() {
    let fails = |mutant: &Mutant, case: &str| {
        let outcome = MutantFixture::new(mutant).run_case(case, &Options::default());
        matches!(outcome, Outcome::Failed(_))
    };
    let announced = "put_is_there_when_announced_after_its_completion";
    let (source, get) =
        ("source_is_free_once_its_own_put_completes", "each_of_many_gets_is_there_once_it_completes");
    for (client, cases) in [
        ("client_waits_for_no_completion", [announced, source]),
        ("client_polls_the_last_byte", [announced, announced]),
        ("client_counts_completions", [source, get]),
    ] {
        let all = mutants();
        let mutant = all.iter().find(|m| m.name == client && m.device().is_empty()).unwrap();
        for case in cases {
            assert!(fails(mutant, case), "{client} passes {case}");
        }
    }
    for control in controls() {
        for case in [announced, source, get] {
            assert!(!fails(&control, case), "{} fails {case}", control.name);
        }
    }
}

#[test]
fn mutants_have_names_of_their_own() {
    let names: HashSet<_> = mutants().iter().map(|m| (m.name, m.device())).collect();
    assert_eq!(names.len(), mutants().len());
}

#[test]
fn the_guide_for_providers_names_cases_that_there_are() {
    let guide = include_str!("../../docs/writing-a-provider.md");
    let rows =
        guide.lines().skip_while(|l| !l.starts_with("| mistake")).skip(2).take_while(|l| l.starts_with('|'));
    let cases: HashSet<_> = conformance::list().into_iter().flat_map(|(case, group)| [case, group]).collect();
    let cell = |row: &'static str| row.split('|').nth(2).unwrap_or("");
    let named: Vec<_> = rows.flat_map(|row| cell(row).split('`').skip(1).step_by(2)).collect();
    assert!(named.len() > 30, "{} cases named", named.len());
    let unknown: Vec<_> = named.into_iter().filter(|name| !cases.contains(name)).collect();
    assert_eq!(unknown, [""; 0], "the guide names cases that are not");
}

/// Either way: a mutant that shows without puts has to be caught there, and the list of the others must not rot.
#[test]
fn what_shows_without_puts_is_judged_without_them() {
    panic::set_hook(Box::new(|_| {}));
    let all = mutants();
    let unseen: Vec<_> = all.iter().filter(|m| m.is_about_puts()).map(|m| m.without_puts()).collect();
    let tally = judge_all(&unseen, false);
    let seen: Vec<_> = tally.0.iter().filter(|v| !v.caught.is_empty()).map(|v| v.mutant.name).collect();
    assert_eq!(seen, [""; 0], "these show without puts, so they are not about puts alone");
    let full: Vec<_> = of_gets_alone().iter().map(|m| m.with_puts()).collect();
    let tally = judge_all(&full, false);
    let _ = panic::take_hook();
    assert_eq!(tally.killed(), 0, "a run with puts notices one of these, too: {tally}");
}
