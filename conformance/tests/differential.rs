//! Generated programs on the mock in all its forms, against its model.

use conformance::{Fixture, Outcome, differential, fixtures::mock::Mock};
use provider_mock::{Drive, Schedule};

fn small<D: ibv_core::IbvDomainImpl>(mock: Mock<D>) -> Mock<D> {
    mock.configured(|c| (c.max_msg_size, c.max_send_size) = (256, 300))
}

fn agrees<F: Fixture>(fixture: &F, cases: u32, seed: u64) {
    let outcome = differential::run(fixture, cases, seed);
    assert_eq!(outcome, Outcome::Passed, "{}", fixture.schedule());
}

#[test]
fn the_ordered_mock_agrees_with_its_model() {
    agrees(&small(Mock::new(Schedule::InOrder)), 50, 1);
    agrees(&small(Mock::new(Schedule::InOrder)).erased(), 25, 2);
    agrees(&small(Mock::new(Schedule::InOrder).driven(Drive::OnPoll)), 25, 3);
}

#[test]
fn the_unordered_mock_agrees_where_it_promises_to() {
    for (seed, chunk) in [(1, 1), (2, 16), (3, 64), (4, 1000)] {
        agrees(&small(Mock::new(Schedule::Unordered { seed, chunk })), 15, seed);
    }
}
