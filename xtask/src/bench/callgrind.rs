//! Instructions of one operation of an example, counted by callgrind inside the function that is the operation.
//! Which operations there are, and what they may cost, is the callers'.

use crate::sh::{Result, cargo, output, program, target};
use std::path::PathBuf;

/// An example that is called `NAME CLIENT OP ROUNDS` and does the operation in functions `op_OP`.
pub(super) struct Example {
    pub(super) package: &'static str,
    pub(super) name: &'static str,
    /// Rounds that are counted.
    pub(super) rounds: u32,
    /// Where its libraries are, if not the system's.
    pub(super) libraries: Option<PathBuf>,
}

impl Example {
    /// Builds it as users would.
    pub(super) fn build(&self) -> Result<()> {
        let example = ["--package", self.package, "--example", self.name];
        output(cargo(["build", "--quiet", "--release"]).args(example)).map(drop)
    }

    /// Instructions of one operation, each of a batch of 16 by itself.
    pub(super) fn instructions(&self, client: &str, op: &str) -> Result<f64> {
        let mut valgrind = program("valgrind", ["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        valgrind.arg(format!("--toggle-collect=*op_{op}*"));
        valgrind.arg(target().join("release/examples").join(self.name));
        valgrind.args([client, op, &self.rounds.to_string()]);
        valgrind.envs(self.libraries.iter().map(|at| ("LD_LIBRARY_PATH", at)));
        let done = valgrind.output().map_err(|e| format!("valgrind: {e}"))?;
        let text = String::from_utf8_lossy(&done.stderr);
        let total = text.lines().find_map(|line| line.split_once("Collected : "));
        let total: f64 = match total.map(|(_, n)| n.trim().parse()) {
            Some(n) if done.status.success() => n?,
            _ => return Err(format!("{} {client} {op}: {}\n{text}", self.name, done.status).into()),
        };
        let each = if op.ends_with("16") { 16.0 } else { 1.0 };
        Ok(total / f64::from(self.rounds) / each)
    }
}
