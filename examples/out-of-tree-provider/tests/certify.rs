//! The same as a program with options of its own: `cargo test --test certify -- --require shm --json`.

use conformance::{Devices, Versions};
use provider_shm::ShmProvider;
use std::process::ExitCode;

fn main() -> ExitCode {
    let versions = Versions { provider: env!("CARGO_PKG_VERSION").into(), ..Versions::default() };
    let devices = || Devices::of(ShmProvider::default()).with_versions(versions.clone());
    conformance::main(vec![Box::new(devices()), Box::new(devices().erased())])
}
