//! `ibv conformance`: the suite over the providers of this build. Cases, reports and options are crate
//! `conformance`'s; here is only the list of what can be tested.

use conformance::{cli, fixtures::mock::Mock};
use ibv::mock::Schedule;
use std::process::ExitCode;

/// Bytes in a piece of the mock's unordered schedule: less than most messages, and no power of two.
const PIECE: usize = 24;

/// Runs the suite's command line, whose exit codes these are: 0, 1 where a case failed, 2.
pub(crate) fn run(args: Vec<String>) -> ExitCode {
    let unordered = Schedule::Unordered { seed: 1, chunk: PIECE };
    let (in_order, in_order_dyn) = (Mock::new(Schedule::InOrder), Mock::new(Schedule::InOrder).erased());
    let (shuffled, shuffled_dyn) = (Mock::new(unordered), Mock::new(unordered).erased());
    let name = "ibv conformance".to_owned();
    cli::run([name].into_iter().chain(args), &[&in_order, &in_order_dyn, &shuffled, &shuffled_dyn])
}
