//! `cargo xtask softnic --scale`: what an operation costs on the software machine with one queue pair and with many. What is
//! run is `softnic/examples/scale.rs`, and `scale_efa.rs` beside it.

use crate::{
    callgrind::Example,
    sh::{Result, debian_packages},
};

/// Queue pairs, and rounds that are counted: one request of each, all kinds in turn.
type Runs = [(u32, u32); 3];

/// The examples. A process has 1023 queue pairs of EFA at most: 60 devices with 16 each.
/// And the most that an operation may cost, as a multiple of the cheapest: EFA's numbers of queue pairs are searched for.
const EXAMPLES: [(&str, Runs, f64); 2] =
    [("scale", [(1, 256), (32, 16), (1024, 4)], 1.5), ("scale_efa", [(1, 256), (32, 16), (960, 4)], 2.0)];

struct Row {
    queue_pairs: u32,
    instructions: f64,
    bytes: f64,
}

/// Counts, prints, and fails if the cost grows.
pub(super) fn run() -> Result<()> {
    debian_packages(&["valgrind", "ibverbs-providers", "libibverbs1"])?;
    println!("{:9} {:>11} {:>22} {:>20}", "", "queue pairs", "instructions/operation", "bytes/queue pair");
    for (name, runs, spread) in EXAMPLES {
        let example = Example { package: "softnic", name, libraries: None };
        example.build()?;
        let mut rows = Vec::new();
        for (queue_pairs, rounds) in runs {
            let row = count(&example, queue_pairs, rounds)?;
            println!("{name:9} {:11} {:22.0} {:20.0}", row.queue_pairs, row.instructions, row.bytes);
            rows.push(row);
        }
        judge(&rows, spread)?;
    }
    Ok(())
}

fn count(example: &Example, queue_pairs: u32, rounds: u32) -> Result<Row> {
    let args = [queue_pairs, rounds].map(|n| n.to_string());
    let counted = example.count("op_rounds", &args.each_ref().map(String::as_str))?;
    let value = |name: &str| -> Result<f64> {
        let found = counted.out.lines().find_map(|line| line.split_once(name));
        Ok(found
            .ok_or_else(|| format!("{} says no {name}: {}", example.name, counted.out))?
            .1
            .trim()
            .parse()?)
    };
    let instructions = counted.instructions / value("operations ")?;
    Ok(Row { queue_pairs, instructions, bytes: value("bytes_per_queue_pair ")? })
}

fn judge(rows: &[Row], spread: f64) -> Result<()> {
    let costs = || rows.iter().map(|r| r.instructions);
    let (least, most) = (costs().fold(f64::INFINITY, f64::min), costs().fold(0.0, f64::max));
    if most <= least * spread {
        return Ok(());
    }
    Err(format!(
        "an operation costs {least:.0} to {most:.0} instructions; {spread} times the least is allowed"
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(costs: [f64; 2]) -> bool {
        let row = |instructions| Row { queue_pairs: 1, instructions, bytes: 0.0 };
        judge(&costs.map(row), 1.5).is_ok()
    }

    #[test]
    fn a_cost_that_grows_is_refused_whichever_is_the_dearer() {
        assert!(judged([100.0, 150.0]) && judged([150.0, 100.0]));
        assert!(!judged([100.0, 151.0]) && !judged([151.0, 100.0]));
    }
}
