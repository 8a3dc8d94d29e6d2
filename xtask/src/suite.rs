//! `cargo xtask conformance` and `cargo xtask mutants`: two programs of the workspace, found by name.
//! What they print is theirs; nothing else goes to standard output.

use crate::sh::{Result, cargo};

/// Runs the suite over the providers that the command line has: see `--help`.
pub(crate) fn conformance(args: &[String]) -> Result<()> {
    passed("conformance", cargo(["run", "--quiet", "--package", "ibv-tools", "--", "conformance"]).args(args))
}

/// Runs the suite over deliberately broken providers.
pub(crate) fn mutants(args: &[String]) -> Result<()> {
    passed("mutants", cargo(["run", "--quiet", "--package", "mutants", "--"]).args(args))
}

fn passed(what: &str, command: &mut std::process::Command) -> Result<()> {
    let status = command.status().map_err(|e| format!("{what}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what}: {status}").into()) }
}
