//! `cargo xtask softnic --scale`: what an operation costs on the software machine with one queue pair and with many. What is
//! run is `softnic/examples/scale.rs`.

use crate::sh::{Result, cargo, debian_packages, output, program, target};

/// Queue pairs, and rounds that are counted: one request of each, all kinds in turn.
const RUNS: [(u32, u32); 3] = [(1, 256), (32, 16), (1024, 4)];
/// Most that an operation may cost, as a multiple of the cheapest.
const SPREAD: f64 = 1.5;

struct Row {
    queue_pairs: u32,
    instructions: f64,
    bytes: f64,
}

/// Counts, prints, and fails if the cost grows.
pub(super) fn run() -> Result<()> {
    debian_packages(&["valgrind", "ibverbs-providers", "libibverbs1"])?;
    let example = ["build", "--quiet", "--release", "--package", "softnic", "--example", "scale"];
    output(&mut cargo(example))?;
    println!("{:>11} {:>22} {:>20}", "queue pairs", "instructions/operation", "bytes/queue pair");
    let mut rows = Vec::new();
    for (queue_pairs, rounds) in RUNS {
        let row = count(queue_pairs, rounds)?;
        println!("{:11} {:22.0} {:20.0}", row.queue_pairs, row.instructions, row.bytes);
        rows.push(row);
    }
    judge(&rows)
}

fn count(queue_pairs: u32, rounds: u32) -> Result<Row> {
    let mut valgrind = program("valgrind", ["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    valgrind.arg("--toggle-collect=*op_rounds*").arg(target().join("release/examples/scale"));
    let done = valgrind.args([queue_pairs, rounds].map(|n| n.to_string())).output()?;
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let value = |text: &str, name: &str| -> Result<f64> {
        let found = text.lines().find_map(|line| line.split_once(name)).map(|(_, n)| n.trim().parse());
        Ok(found.ok_or_else(|| format!("scale {queue_pairs} {rounds}: {}\n{err}", done.status))??)
    };
    let instructions = value(&err, "Collected : ")? / value(&out, "operations ")?;
    Ok(Row { queue_pairs, instructions, bytes: value(&out, "bytes_per_queue_pair ")? })
}

fn judge(rows: &[Row]) -> Result<()> {
    let costs = || rows.iter().map(|r| r.instructions);
    let (least, most) = (costs().fold(f64::INFINITY, f64::min), costs().fold(0.0, f64::max));
    if most <= least * SPREAD {
        return Ok(());
    }
    Err(format!(
        "an operation costs {least:.0} to {most:.0} instructions; {SPREAD} times the least is allowed"
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(costs: [f64; 2]) -> bool {
        let row = |instructions| Row { queue_pairs: 1, instructions, bytes: 0.0 };
        judge(&costs.map(row)).is_ok()
    }

    #[test]
    fn a_cost_that_grows_is_refused_whichever_is_the_dearer() {
        assert!(judged([100.0, 150.0]) && judged([150.0, 100.0]));
        assert!(!judged([100.0, 151.0]) && !judged([151.0, 100.0]));
    }
}
