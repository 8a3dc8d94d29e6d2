//! The suite on devices that can not put: what is about the transport runs with gets, or with messages; what is
//! skipped says why.

use conformance::{Fixture, Report, fixtures::mock::Mock, run};
use provider_mock::{Drive, Schedule};

const UNORDERED: Schedule = Schedule::Unordered { seed: 1, chunk: 64 };

fn passes<F: Fixture>(fixture: &F, least: usize) -> Report {
    let report = run(fixture, &Default::default());
    assert_eq!(report.failed(), 0, "{report}");
    assert!(report.passed() >= least, "{report}");
    report
}

/// The reasons of what was skipped; each must begin with one of `known`.
fn skips_only(report: &Report, known: &[&str]) {
    for case in report.providers[0].cases.iter().filter(|c| c.outcome.word() == "skipped") {
        let reason = case.reason.as_deref().unwrap_or("");
        assert!(known.iter().any(|k| reason.starts_with(k)), "{}: {reason}", case.name);
    }
}

#[test]
fn gets_take_the_place_of_puts() {
    let report = passes(&Mock::new(Schedule::InOrder).read_only(), 160);
    skips_only(
        &report,
        &[
            "needs capability write (",
            "needs capability write_with_imm",
            "needs capability atomics",
            "mock has",
        ],
    );
    passes(&Mock::new(Schedule::InOrder).read_only().erased(), 160);
    passes(&Mock::new(Schedule::InOrder).read_only().driven(Drive::OnPoll), 160);
    let report = passes(&Mock::new(UNORDERED).read_only(), 140);
    assert!(report.to_string().contains("without puts"), "{report}");
}

#[test]
fn messages_take_the_place_of_both() {
    let report = passes(&Mock::new(Schedule::InOrder).send_only(), 100);
    let known = ["write (", "read (", "write_with_imm", "atomics", "write or read (end a)"];
    let known: Vec<_> = known.iter().map(|k| format!("needs capability {k}")).collect();
    let known: Vec<_> = known.iter().map(String::as_str).chain(["mock has no queue keys"]).collect();
    skips_only(&report, &known);
    passes(&Mock::new(Schedule::InOrder).send_only().driven(Drive::Thread), 100);
    passes(&Mock::new(UNORDERED).send_only().erased(), 80);
}

/// A device with puts alone is tested with those.
#[test]
fn gets_are_not_needed_where_there_are_puts() {
    let put_only = Mock::new(Schedule::InOrder).configured(|c| c.read = ibv_core::Support::Absent);
    let report = passes(&put_only, 160);
    skips_only(&report, &["needs capability read", "mock has"]);
}
