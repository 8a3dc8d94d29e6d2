//! `cargo xtask abi --bare`: the crates that must build with a Rust toolchain and a linker alone do, and without
//! libraries the answer is a typed error. What is hidden and how is `scripts/bare.sh`'s.

use crate::sh::{self, Result};

/// What needs no C compiler beyond the linker.
const PACKAGES: [&str; 3] = ["ibv-core", "ibv-sys", "provider-mock"];

/// What a program says where there is no libibverbs.
const NOT_FOUND: &str = "libibverbs.so.1 not found; tried libibverbs.so.1 (";

pub fn run() -> Result<()> {
    let target = sh::target().join("bare").display().to_string();
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut build = vec![cargo.as_str(), "build", "--target-dir", &target];
    build.extend(PACKAGES.iter().flat_map(|package| ["--package", package]));
    sh::run(&mut bare(&build))?;
    let example =
        [cargo.as_str(), "build", "--target-dir", &target, "--package", "ibv-sys", "--example", "devices"];
    sh::run(&mut bare(&example))?;
    let out = bare(&[&format!("{target}/debug/examples/devices")]).output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    println!("{}", said.trim());
    if out.status.success() || !said.starts_with(NOT_FOUND) {
        return Err(format!("the answer is not {NOT_FOUND:?}…: {said}").into());
    }
    println!("{} build with a Rust toolchain and a linker alone", PACKAGES.join(", "));
    Ok(())
}

/// A command in the environment with nothing of RDMA in it.
fn bare(command: &[&str]) -> std::process::Command {
    let script = sh::root().join("xtask/scripts/bare.sh").display().to_string();
    sh::program("bash", std::iter::once(script.as_str()).chain(command.iter().copied()))
}
