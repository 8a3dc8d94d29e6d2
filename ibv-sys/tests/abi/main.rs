//! Every bound type, field and constant against what C says of the headers.
//!
//! Headers that are older or newer than the bindings are told apart from headers that disagree: a struct may be
//! shorter or longer, and a name may be missing, but what both have must be at the same place with the same size.
//! `IBV_ABI_HEADERS` names the headers (see `support`), `IBV_ABI_REPORT` a file for one JSON line per version. With
//! `IBV_ABI_TARGET=aarch64`, `CC` a compiler for it and `IBV_ABI_RUNNER` an emulator, the layouts for aarch64 are
//! what is compared.

#[path = "../support/mod.rs"]
mod support;

mod compare;
mod facts;
mod table;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use compare::Report;
use support::{Headers, compile, headers, skip};

#[test]
fn the_bindings_agree_with_the_headers() {
    let headers = match headers() {
        Ok(headers) => headers,
        Err(reason) => return skip(&reason),
    };
    let reports: Vec<Report> = headers.iter().map(report).collect();
    for report in &reports {
        println!("{report}");
        if let Some(path) = std::env::var_os("IBV_ABI_REPORT") {
            let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            writeln!(file, "{}", report.json()).unwrap();
        }
    }
    for report in &reports {
        assert!(
            report.types > 150 && report.fields > 1000 && report.values > 600,
            "too little compared: {report}"
        );
        assert!(report.differences.is_empty(), "{}:\n{}", report.label, report.differences.join("\n"));
    }
}

fn report(headers: &Headers) -> Report {
    let target = std::env::var("IBV_ABI_TARGET").unwrap_or_default();
    let probe = compile(include_str!("../../abi/probe.c"), headers, &format!("probe{target}"), &[]);
    let out = run(&probe.file).output().unwrap();
    assert!(out.status.success(), "the probe ended with {}", out.status);
    let ours = if target == "aarch64" { facts::ours_on_aarch64() } else { facts::ours() };
    compare::compare(&headers.label, &ours, &facts::parse(&String::from_utf8(out.stdout).unwrap()))
}

/// The probe itself, or the emulator that `IBV_ABI_RUNNER` names with it.
fn run(probe: &Path) -> Command {
    let runner = std::env::var("IBV_ABI_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let Some(program) = words.next() else { return Command::new(probe) };
    let mut command = Command::new(program);
    command.args(words).arg(probe);
    command
}

#[test]
fn a_difference_is_found_and_told_from_an_older_or_newer_header() {
    let ours =
        facts::parse("type a 16 8\nfield a x 0 8\nfield a y 8 4\nvalue V 3\ntype b 8 8\nfield b z 0 8\n");
    let told = |theirs: &str| compare::compare("t", &ours, &facts::parse(theirs));

    let older = told("type a 8 8\nfield a x 0 8\n");
    assert_eq!(older.differences, [""; 0]);
    assert_eq!(older.absent, ["a.y", "b", "V"]);
    assert_eq!(older.shorter, ["a: 8 bytes, bound with 16"]);

    let newer = told("type a 24 8\nfield a x 0 8\nfield a y 8 4\nvalue V 3\ntype b 8 8\nfield b z 0 8\n");
    assert_eq!((newer.differences.len(), newer.longer.len()), (0, 1));

    let reserved = facts::parse("type r 16 4\nfield r reserved 15 1\n");
    let used = compare::compare("t", &reserved, &facts::parse("type r 16 4\nfield r reserved 12 4\n"));
    assert_eq!((used.differences.len(), used.reserved.len()), (0, 1));
    let moved = compare::compare("t", &reserved, &facts::parse("type r 16 4\nfield r reserved 8 4\n"));
    assert_eq!((moved.differences.len(), moved.reserved.len()), (1, 0));

    for moved in [
        "type a 16 8\nfield a x 0 8\nfield a y 12 4\nvalue V 3\n",
        "type a 16 8\nfield a x 0 8\nfield a y 8 2\nvalue V 3\n",
        "type a 16 4\nfield a x 0 8\nfield a y 8 4\nvalue V 3\n",
        "type a 16 8\nfield a x 0 8\nfield a y 8 4\nvalue V 4\n",
    ] {
        assert_eq!(told(moved).differences.len(), 1, "{moved}");
    }
}
