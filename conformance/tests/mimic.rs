//! The suite on the mock as a test binary of its own, as a third party would have it.

use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::main(conformance::fixtures::mock::all())
}
