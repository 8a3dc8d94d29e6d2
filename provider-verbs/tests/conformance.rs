//! The suite on this machine's own devices, by both dispatches. Without any, every case is skipped and
//! says why; `IBV_REQUIRE=verbs` makes that a failure.

use conformance::{Devices, DynFixture, Fixture};
use provider_verbs::VerbsProvider;
use std::process::ExitCode;

fn main() -> ExitCode {
    let devices = || Devices::of(VerbsProvider::default());
    let required =
        std::env::var("IBV_REQUIRE").unwrap_or_default().split(',').any(|name| name.trim() == "verbs");
    if let (true, Err(why)) = (required, devices().pair()) {
        eprintln!("IBV_REQUIRE=verbs: {}", why.reason());
        return ExitCode::FAILURE;
    }
    let fixtures: Vec<Box<dyn DynFixture>> = vec![Box::new(devices()), Box::new(devices().erased())];
    conformance::main(fixtures)
}
