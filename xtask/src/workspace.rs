//! The workspace built one way: every package, one set of features. A package that is built alone gets other
//! features of what it depends on, and all of that is then compiled once more. Nothing is run here.

use crate::sh::{Result, cargo, target};
use std::{
    io,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Everything that needs no vendor library to build.
pub(crate) const FEATURES: &str =
    "ibv/efa,ibv/mlx5,ibv/mock,ibv/recorder,ibv/serde,ibv/tokio,ibv/topology,ibv/tracing,ibv/verbs";

/// `cargo WORDS --workspace --features …`, to which more can be added.
pub(crate) fn cargo_all<const N: usize>(words: [&str; N]) -> Command {
    let mut command = cargo(words);
    command.args(["--workspace", "--features", FEATURES]);
    command
}

/// Builds a program of the workspace, saying nothing unless that fails or takes its time; gives its path.
pub(crate) fn program_of_ours(name: &str) -> Result<PathBuf> {
    built(&["--bin", name], &format!("debug/{name}"))
}

/// Builds the library that is preloaded into programs on software devices; gives its path.
pub(crate) fn softnic_library() -> Result<PathBuf> {
    // Of all libraries, since cargo knows no way to name one without leaving out the others' features; all
    // of them are needed for whatever is run on it.
    built(&["--lib"], "debug/libsoftnic.so")
}

fn built(what: &[&str], file: &str) -> Result<PathBuf> {
    let mut build = cargo_all(["build", "--quiet"]);
    let building = build.args(what).stdout(Stdio::null()).spawn();
    let status =
        building.and_then(|child| patiently(child, file)).map_err(|e| format!("cargo build: {e}"))?;
    let path = target().join(file);
    match (status.success(), path.exists()) {
        (true, true) => Ok(path),
        (true, false) => Err(format!("the build left no {}", path.display()).into()),
        (false, _) => Err(format!("cargo build of {file}: {status}").into()),
    }
}

/// How long a build may be silent.
const SILENCE: Duration = Duration::from_secs(2);

/// Waits for the build of `file`, and says what for if that is not over at once.
fn patiently(mut build: Child, file: &str) -> io::Result<ExitStatus> {
    let said_by = Instant::now() + SILENCE;
    while Instant::now() < said_by {
        if let Some(status) = build.try_wait()? {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(10));
    }
    eprintln!(
        "building {file} first: minutes where nothing is built yet, or while another cargo builds here"
    );
    build.wait()
}
