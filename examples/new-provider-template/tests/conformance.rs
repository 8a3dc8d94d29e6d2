//! Certifies the provider in `cargo test`, by static and by run-time dispatch. Cases that need what `Caps`
//! does not offer are ignored, each with its reason; `-- --require {{name}}` makes a missing device fail.

use conformance::Devices;
use provider_{{snake}}::{{Camel}}Provider;
use std::process::ExitCode;

fn main() -> ExitCode {
    let by_static_dispatch = Devices::of({{Camel}}Provider);
    let by_dyn_dispatch = Devices::of({{Camel}}Provider).erased();
    conformance::main(vec![Box::new(by_static_dispatch), Box::new(by_dyn_dispatch)])
}
