//! `cargo xtask conformance` and `cargo xtask mutants`: two programs of the workspace, found by name.
//! What they print is theirs; nothing else goes to standard output.

use crate::{
    sh::{Result, cargo, target},
    softnic,
};

/// Runs the suite over the providers that the command line has: see `--help`. With `--softnic`, which is
/// taken out here, on software ConnectX devices under the system's own libibverbs.
pub(crate) fn conformance(args: &[String]) -> Result<()> {
    let (here, rest): (Vec<_>, Vec<_>) = args.iter().cloned().partition(|arg| arg == "--softnic");
    if here.is_empty() {
        let mut ibv = cargo(["run", "--quiet", "--package", "ibv-tools", "--", "conformance"]);
        return passed("conformance", ibv.args(rest));
    }
    passed("build", &mut cargo(["build", "--quiet", "--package", "ibv-tools"]))?;
    let ibv = target().join("debug/ibv").display().to_string();
    let session = format!("xtask-conformance-{}", std::process::id());
    let front = ["--session", &session, "--", &ibv, "conformance"].map(String::from);
    softnic::run(&[&front, rest.as_slice()].concat())
}

/// Runs the suite over deliberately broken providers.
pub(crate) fn mutants(args: &[String]) -> Result<()> {
    passed("mutants", cargo(["run", "--quiet", "--package", "mutants", "--"]).args(args))
}

fn passed(what: &str, command: &mut std::process::Command) -> Result<()> {
    let status = command.status().map_err(|e| format!("{what}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what}: {status}").into()) }
}
