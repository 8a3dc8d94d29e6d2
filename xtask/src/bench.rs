//! `cargo xtask bench`: the mock's benches by the clock, and the safe handle's cost by the instruction,
//! which alone is a test because it alone is the same on every machine.

mod efa;
mod mlx5;
mod perf;

use crate::{
    callgrind::Example,
    sh::{Result, cargo, debian_packages, output, program, root, run, usage},
};

const USAGE: &str = "usage: cargo xtask bench [--instructions [--json | --limits] | --perf [--json]]

Runs the benches of provider-mock, then counts the instructions that the safe handle spends on a request and
on a completion, above the provider's own, and what provider-mlx5 and libmlx5 spend on whole operations on the same
software device (needs valgrind, and rdma-core for the latter). --instructions does only the counting; with --json it
prints the whole operations alone, as rows of {\"op\", \"ours\", \"peer\", \"theirs\", \"ratio\"}; with --limits it
counts only what has limits, and fails above them.

--perf compares `ibv perf` with perftest on the same software device and the same settings (needs perftest and
valgrind; minutes): instructions a message at the client, which must be no more than perftest's, and messages a
second of alternating runs, which are only reported.";

/// What the safe handle may spend, in instructions: a request in a batch of 16, a completion in a poll
/// of 16, both by static dispatch.
const LIMITS: [(&str, f64); 2] = [("post static", 18.0), ("poll static", 25.0)];

/// Runs the command.
pub(crate) fn run_bench(args: &[String]) -> Result<()> {
    match args {
        [] => clock()?,
        [flag] if flag == "--instructions" => {}
        [flag, json] if flag == "--instructions" && json == "--json" => {
            debian_packages(&["valgrind"])?;
            return mlx5::count(true);
        }
        [flag, limits] if flag == "--instructions" && limits == "--limits" => {
            debian_packages(&["valgrind"])?;
            return limits_kept();
        }
        [flag] if flag == "--perf" => return perf::compare(false),
        [flag, json] if flag == "--perf" && json == "--json" => return perf::compare(true),
        [flag] if flag == "--help" || flag == "-h" => {
            println!("{USAGE}");
            return Ok(());
        }
        _ => return Err(usage(USAGE)),
    }
    debian_packages(&["valgrind"])?;
    cost()?;
    mlx5::count(false)?;
    efa::count()
}

fn clock() -> Result<()> {
    if !root().join("provider-mock/benches").is_dir() {
        eprintln!("provider-mock has no benches");
        return Ok(());
    }
    run(&mut cargo(["bench", "--package", "provider-mock"]))
}

/// Counts what has limits, the handle's share and whole operations, prints, and fails above them.
pub(crate) fn limits_kept() -> Result<()> {
    cost()?;
    mlx5::check()
}

/// Instructions of one operation of an example that is called `NAME CLIENT OP ROUNDS` and does the operation in
/// functions `op_OP`; each of a batch of 16 by itself.
fn each(example: &Example, client: &str, op: &str, rounds: u32) -> Result<f64> {
    let counted = example.count(&format!("op_{op}"), &[client, op, &rounds.to_string()])?;
    let each = if op.ends_with("16") { 16.0 } else { 1.0 };
    Ok(counted.instructions / f64::from(rounds) / each)
}

/// Counts, prints, and fails above the limits.
fn cost() -> Result<()> {
    let script = root().join("ibv-core/examples/cost.sh");
    let table = output(program("sh", [""; 0]).arg(script))?;
    print!("{table}");
    judge(&table)
}

fn judge(table: &str) -> Result<()> {
    for (name, limit) in LIMITS {
        let line = table.lines().find_map(|line| line.strip_prefix(name));
        let value: f64 = line.ok_or_else(|| format!("no line {name}"))?.trim().parse()?;
        if value > limit {
            return Err(format!("{name}: {value} instructions, {limit} allowed").into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_kept_to_the_tenth() {
        assert!(judge("post floor 30.0\npost static 18.0\npoll static 25.0\n").is_ok());
        assert!(judge("post static 18.1\npoll static 25.0\n").is_err());
        assert!(judge("post static 18.0\n").is_err());
    }
}
