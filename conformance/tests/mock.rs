//! The suite on the mock: both dispatches, both schedules, every drive.

use conformance::fixtures::mock::Mock;
use provider_mock::Schedule;

mod by_static_dispatch {
    use super::*;
    conformance::suite!(Mock::new(Schedule::InOrder));
}
mod by_dyn_dispatch {
    use super::*;
    conformance::suite!(Mock::new(Schedule::InOrder).erased());
}
mod unordered {
    use super::*;
    conformance::suite!(Mock::new(Schedule::Unordered { seed: 1, chunk: 64 }));
}
