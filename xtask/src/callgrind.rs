//! Instructions of an example, counted by callgrind inside the functions that are measured. Which those are, and what
//! they may cost, is the callers'.

use crate::sh::{Result, cargo, output, program, target};
use std::path::PathBuf;

/// An example of the workspace.
pub(crate) struct Example {
    pub(crate) package: &'static str,
    pub(crate) name: &'static str,
    /// Where its libraries are, if not the system's.
    pub(crate) libraries: Option<PathBuf>,
}

/// What a run counted, and what it printed.
pub(crate) struct Counted {
    pub(crate) instructions: f64,
    pub(crate) out: String,
}

impl Example {
    /// Builds it as users would.
    pub(crate) fn build(&self) -> Result<()> {
        let example = ["--package", self.package, "--example", self.name];
        output(cargo(["build", "--quiet", "--release"]).args(example)).map(drop)
    }

    /// Runs it with `args` and counts inside functions that have `function` in their names.
    pub(crate) fn count(&self, function: &str, args: &[&str]) -> Result<Counted> {
        let mut valgrind = program("valgrind", ["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        valgrind.arg(format!("--toggle-collect=*{function}*"));
        valgrind.arg(target().join("release/examples").join(self.name)).args(args);
        valgrind.envs(self.libraries.iter().map(|at| ("LD_LIBRARY_PATH", at)));
        let done = valgrind.output().map_err(|e| format!("valgrind: {e}"))?;
        let text = String::from_utf8_lossy(&done.stderr);
        let total = text.lines().find_map(|line| line.split_once("Collected : "));
        match total.map(|(_, n)| n.trim().parse()) {
            Some(n) if done.status.success() => {
                Ok(Counted { instructions: n?, out: String::from_utf8_lossy(&done.stdout).into_owned() })
            }
            _ => Err(format!("{} {}: {}\n{text}", self.name, args.join(" "), done.status).into()),
        }
    }
}
