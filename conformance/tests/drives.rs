//! The suite on the mock, whoever moves its bytes: the caller's polls, a thread, both dispatches.

use conformance::{Fixture, Options, fixtures::mock::Mock, run};
use provider_mock::{Drive, Schedule};

fn passes<F: Fixture>(fixture: &F, least: usize) {
    let report = run(fixture, &Options::default());
    assert_eq!(report.failed(), 0, "{report}");
    assert!(report.passed() >= least, "{report}");
}

#[test]
fn moved_by_polls() {
    passes(&Mock::new(Schedule::InOrder).driven(Drive::OnPoll), 190);
    passes(&Mock::new(Schedule::InOrder).driven(Drive::OnPoll).erased(), 190);
    passes(&Mock::new(Schedule::Unordered { seed: 9, chunk: 200 }).driven(Drive::OnPoll), 180);
}

#[test]
fn moved_by_a_thread() {
    passes(&Mock::new(Schedule::InOrder).driven(Drive::Thread), 190);
}

#[test]
fn moved_by_a_thread_out_of_order() {
    passes(&Mock::new(Schedule::Unordered { seed: 9, chunk: 200 }).driven(Drive::Thread), 180);
}
