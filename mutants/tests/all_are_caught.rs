//! The suite catches every mutant, and nothing but mutants.

use mutants::{controls, judge, judge_all, mutants};
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

#[test]
fn mutants_have_names_of_their_own() {
    let names: HashSet<_> = mutants().iter().map(|m| m.name).collect();
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
