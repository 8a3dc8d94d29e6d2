//! `cargo xtask bindgen`: writes the generated part of `ibv-sys` from the newest rdma-core headers that Debian
//! packages. Does not compare them with the installed headers: that is `abi`.

#[cfg(feature = "bindgen")]
mod emit;
#[cfg(feature = "bindgen")]
mod files;
#[cfg(feature = "bindgen")]
mod generate;
pub mod headers;
#[cfg(feature = "bindgen")]
mod model;
#[cfg(feature = "bindgen")]
mod symbols;

use std::error::Error;

const USAGE: &str = "usage: cargo xtask bindgen [--check]

Writes ibv-sys/src/generated, ibv-sys/abi/probe.c and ibv-sys/tests/abi/table.rs from the newest rdma-core
headers among Debian's suites, for x86_64 and aarch64. With --check it writes nothing and fails if a committed
file differs. Needs libclang (libclang-dev) here; the crate itself never does.";

/// Runs the command.
pub fn run(args: &[String]) -> Result<(), Box<dyn Error>> {
    match args {
        [] => regenerate(false),
        [flag] if flag == "--check" => regenerate(true),
        [flag] if flag == "--help" || flag == "-h" => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(crate::sh::usage(USAGE)),
    }
}

#[cfg(feature = "bindgen")]
fn regenerate(check: bool) -> Result<(), Box<dyn Error>> {
    emit::regenerate(check)
}

/// Starts this command again from a build that has bindgen in it.
#[cfg(not(feature = "bindgen"))]
fn regenerate(check: bool) -> Result<(), Box<dyn Error>> {
    let again = ["run", "--quiet", "--package", "xtask", "--features", "bindgen", "--", "bindgen"];
    let status = crate::sh::cargo(again).args(check.then_some("--check")).status()?;
    if status.success() { Ok(()) } else { Err(format!("the bindgen build of xtask: {status}").into()) }
}
