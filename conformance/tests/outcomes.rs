//! What a run says: skips are visible, `require` makes them fail, expectations hold both ways, and rules
//! that the mock breaks on purpose are caught.

mod common;
use common::{Absent, Break, Broken, Dead, Panics};
use conformance::{
    Devices, Expectation, Options, Outcome, Report, StopKind, cli, differential, fixtures::mock::Mock, run,
};
use ibv_core::{Support, WcStatus};
use provider_mock::{Fabric, FabricConfig, MockProvider, Schedule, Verb};
use std::{process::ExitCode, time::Duration};

fn options(filter: &[&str]) -> Options {
    let mut options = Options::default();
    options.filter = filter.iter().map(|f| (*f).to_owned()).collect();
    options
}

fn failed(report: &Report) -> Vec<&str> {
    let cases = &report.providers[0].cases;
    cases.iter().filter(|c| c.outcome.is_failure()).map(|c| c.name.as_str()).collect()
}

#[test]
fn the_ordered_mock_skips_only_what_it_names() {
    let report = run(&Mock::new(Schedule::InOrder), &Options::default());
    assert_eq!(report.failed(), 0, "{report}");
    assert!(report.passed() >= 190, "{report}");
    // No datagram transport, so no queue keys.
    assert_eq!(report.skipped(), 1, "{report}");
    assert!(
        report
            .to_string()
            .contains("skipped: wrong_queue_key_reaches_nobody (handshake): mock has no queue keys")
    );
}

#[test]
fn cases_that_need_an_order_are_skipped_with_the_capability_named() {
    let report = run(&Mock::new(Schedule::Unordered { seed: 5, chunk: 100 }), &Options::default());
    assert_eq!(report.failed(), 0, "{report}");
    assert!(report.passed() >= 90, "{report}");
    let skipped = report.providers[0].cases.iter().filter(|c| c.outcome.word() == "skipped");
    for case in skipped {
        let reason = case.reason.as_deref().unwrap_or("");
        let named = ["completions_in_order", "messages_in_order", "bytes_in_order", "no queue keys"];
        assert!(named.iter().any(|n| reason.contains(n)), "{}: {reason}", case.name);
    }
}

#[test]
fn other_seeds_and_smaller_devices_pass_too() {
    let mut fixtures: Vec<_> = (1..6)
        .map(|seed| {
            Mock::new(Schedule::Unordered { seed, chunk: 8 << seed }).configured(|c| c.max_msg_size = 1024)
        })
        .collect();
    fixtures.push(Mock::new(Schedule::InOrder).configured(|c| {
        (c.atomics, c.write_with_imm) = (Support::Absent, Support::Absent);
        (c.max_sge, c.max_inline, c.max_rd_atomic, c.max_batch) = (1, 0, 1, 3);
    }));
    for fixture in fixtures {
        let report = run(&fixture, &Options::default());
        assert_eq!(report.failed(), 0, "{report}");
        assert!(report.passed() >= 140, "{report}");
    }
}

#[test]
fn a_missing_device_skips_and_a_required_one_fails() {
    let report = run(&Absent, &options(&["write"]));
    assert_eq!((report.passed(), report.failed()), (0, 0));
    assert!(
        report.skipped() > 5 && report.to_string().contains("no device: libabsent.so.1 not found"),
        "{report}"
    );
    let mut required = options(&["write"]);
    required.require = vec!["absent".into()];
    let report = run(&Absent, &required);
    assert_eq!((report.passed(), report.skipped()), (0, 0));
    assert!(report.to_string().contains("absent is required and has no device: libabsent.so.1"), "{report}");
}

#[test]
fn one_device_that_does_not_reach_itself_is_said_once() {
    let alone = || {
        let config = FabricConfig { devices: 1, loopback: false, ..FabricConfig::default() };
        Devices::of(MockProvider::new(Fabric::new(config)))
    };
    let report = run(&alone(), &Options::default());
    assert_eq!((report.failed(), report.providers[0].skipped), (0, conformance::list().len()));
    assert_eq!(report.to_string().matches("no loopback").count(), 1, "{report}");
    let mut required = Options::default();
    required.require = vec!["mock".into()];
    let report = run(&alone(), &required);
    assert_eq!((report.failed(), report.providers[0].cases.len()), (1, 0), "{report}");
    let stopped = report.providers[0].stopped.as_ref().unwrap();
    assert_eq!(stopped.kind, StopKind::NoDevice);
    for way_out in ["--listen", "--to", "--count 2"] {
        assert!(stopped.to_string().contains(way_out), "{stopped}");
    }
    let args = ["conformance", "--require", "mock", "--json"].map(str::to_owned);
    assert_eq!(cli::run(args, &[&alone()]), ExitCode::from(3));
}

#[test]
fn an_end_that_was_not_chosen_is_the_first_that_can_be_one() {
    let (here, absent) = (Mock::new(Schedule::InOrder), Absent);
    let shared = Mock::new(Schedule::InOrder).on(Fabric::new(FabricConfig::default()));
    let code = |fixtures: &[&dyn cli::DynFixture]| {
        // Nobody listens there.
        let args = ["conformance", "--to", "127.0.0.1:1"].map(str::to_owned);
        cli::run(args, fixtures)
    };
    assert_eq!(code(&[&here]), ExitCode::from(30));
    assert_eq!(code(&[&here, &absent, &shared]), ExitCode::from(20));
    assert_eq!(code(&[&here, &absent]), ExitCode::from(3), "what lacks a device would do with one");
}

#[test]
fn a_device_that_does_not_open_and_a_panic_are_failures() {
    let report = run(&Dead, &options(&["put_copies"]));
    assert_eq!((report.failed(), report.skipped()), (1, 0), "{report}");
    let report = run(&Panics, &options(&["nothing_by_this_name"]));
    assert_eq!(report.providers[0].cases.len(), 0);
}

#[test]
fn a_panic_in_a_case_is_its_failure_and_the_run_goes_on() {
    let report = run(&Panics, &options(&["put_copies", "put_takes_inline"]));
    assert_eq!(report.failed(), 2, "{report}");
    assert!(report.to_string().contains("panicked: no pair today"), "{report}");
}

#[test]
fn expected_failures_do_not_fail_and_unexpected_passes_do() {
    let expect = |case: &str| Expectation {
        provider: "broken".into(),
        device: "mock*".into(),
        case: case.into(),
        reason: "it loses a completion".into(),
    };
    let broken = Broken::ordered(|f| f.lose_completions(1));
    let mut options = options(&["put_writes_exactly", "endpoint_bytes_round_trip", "endpoint_is_readable"]);
    options.expectations = vec![expect("put_writes_*"), expect("endpoint_is_readable*")];
    let report = run(&broken, &options);
    let word = |name: &str| {
        let cases = &report.providers[0].cases;
        cases.iter().find(|c| c.name.starts_with(name)).map(|c| c.outcome.word())
    };
    assert_eq!(word("put_writes_exactly"), Some("expected_failure"), "{report}");
    assert_eq!(word("endpoint_is_readable"), Some("unexpected_pass"), "{report}");
    assert_eq!(word("endpoint_bytes_round_trip"), Some("failed"), "{report}");
    assert_eq!(report.failed(), 2, "{report}");
}

#[test]
fn a_wait_says_what_it_waited_for() {
    let report = run(&Broken::ordered(|f| f.lose_completions(1)), &options(&["put_writes_exactly"]));
    let text = report.to_string();
    assert!(
        text.contains("waited for 1 completions until the fabric had nothing left to do; 0 came"),
        "{text}"
    );
}

#[test]
fn rules_broken_on_purpose_are_caught() {
    let broken: [(&str, Break); 8] = [
        ("loses a completion", |f| f.lose_completions(1)),
        ("repeats a completion", |f| f.after(1).repeat_completions(1)),
        ("writes garbage completions", |f| f.poison_completions(1)),
        ("applies requests twice", |f| f.repeat_requests(1000)),
        ("fails a request", |f| f.fail_request(WcStatus::GENERAL_ERR)),
        ("swallows a request", |f| f.swallow_requests(1)),
        ("is full too early", |f| f.after(1).queue_full(1)),
        ("does not register", |f| f.after(1).fail(Verb::RegMr, 12)),
    ];
    let mut options = options(&["batch", "atomics", "immediate"]);
    options.deadline = Duration::from_secs(2);
    for (what, faults) in broken {
        let report = run(&Broken::ordered(faults), &options);
        assert!(!failed(&report).is_empty(), "a mock that {what} passed");
    }
    let early =
        Broken { schedule: Schedule::Unordered { seed: 1, chunk: 16 }, faults: |f| f.early_immediate() };
    let report = run(&early, &self::options(&["immediate"]));
    assert!(failed(&report).contains(&"bytes_are_there_when_their_own_immediate_is"), "{report}");
}

#[test]
fn differential_runs_catch_broken_rules_and_shrink_the_program() {
    let broken: [Break; 3] = [
        |f| f.after(3).fail_request(WcStatus::REM_OP_ERR),
        |f| f.after(2).repeat_completions(1),
        |f| f.repeat_requests(1000),
    ];
    for faults in broken {
        let outcome = differential::run(&Broken::ordered(faults), 60, 4);
        let Outcome::Failed(why) = outcome else { panic!("{outcome:?}") };
        assert!(why.contains("program, seed 4") && why.matches("Post {").count() <= 8, "{why}");
    }
    assert!(matches!(differential::run(&Absent, 1, 1), Outcome::Skipped(why) if why.contains("libabsent")));
}

/// Passes as a skip; [`the_environment_can_require_a_device`] runs it with the device required.
#[test]
fn an_absent_device_skips_a_test_of_the_suite() {
    conformance::check(&Absent, "put_writes_exactly_the_bytes_named");
}

#[test]
fn the_environment_can_require_a_device() {
    let run = |require: &str| {
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "an_absent_device_skips_a_test_of_the_suite", "--nocapture"]);
        test.env("IBV_REQUIRE", require).output().unwrap()
    };
    let skipped = run("other");
    assert!(skipped.status.success());
    let said = String::from_utf8_lossy(&skipped.stderr).into_owned();
    assert!(
        said.contains("skipped: put_writes_exactly_the_bytes_named: no device: libabsent.so.1"),
        "{said}"
    );
    let required = run("other, absent");
    let said = String::from_utf8_lossy(&required.stderr).into_owned();
    assert!(!required.status.success() && said.contains("absent is required and has no device"), "{said}");
}
