//! Instructions of whole operations on the software ConnectX: provider-mlx5's and libmlx5's, in one run.
//! What is measured is `provider-mlx5/examples/cost.rs`; here is who is compared with whom.

use super::each;
use crate::{callgrind::Example, sh::Result};

const OPS: [&str; 5] = ["post_one", "post_batch16", "poll_one", "poll_16", "poll_empty"];
/// Most instructions that the safe API may spend, by static dispatch, in the order of `OPS`.
const LIMITS: [f64; 5] = [90.0, 50.0, 55.0, 50.0, 22.0];
/// Rounds that are counted; what happens once in a queue's length is in them.
const ROUNDS: u32 = 512;

struct Row {
    op: String,
    ours: f64,
    peer: &'static str,
    theirs: f64,
}

static COST: Example = Example { package: "provider-mlx5", name: "cost", libraries: None };

/// Counts what has limits, and fails above them.
pub(super) fn check() -> Result<()> {
    COST.build()?;
    let mut rows = Vec::new();
    for (op, limit) in OPS.into_iter().zip(LIMITS) {
        let ours = each(&COST, "static", op, ROUNDS)?;
        println!("{op:18} {ours:7.1}  of {limit}");
        rows.push(Row { op: op.into(), ours, peer: "limit", theirs: limit });
    }
    judge(&rows)
}

/// Counts and prints; as a table it also fails above the limits.
pub(super) fn count(json: bool) -> Result<()> {
    COST.build()?;
    let mut rows = Vec::new();
    for (client, suffix) in [("static", ""), ("dyn", "_dyn")] {
        for op in OPS {
            let ours = each(&COST, client, op, ROUNDS)?;
            for (peer, name) in [("post_send", "ibv_post_send/ibv_poll_cq"), ("wr", "ibv_wr/cq_ex")] {
                let known = rows.iter().find(|r: &&Row| r.op == op && r.peer == name).map(|r| r.theirs);
                let theirs = known.map_or_else(|| each(&COST, peer, op, ROUNDS), Ok)?;
                rows.push(Row { op: format!("{op}{suffix}"), ours, peer: name, theirs });
            }
        }
    }
    if json {
        println!("{}", as_json(&rows));
        return Ok(());
    }
    println!("{:18} {:>7}  {:26} {:>7} {:>6}", "op", "ours", "peer", "theirs", "ratio");
    for Row { op, ours, peer, theirs } in &rows {
        println!("{op:18} {ours:7.1}  {peer:26} {theirs:7.1} {:6.2}", ours / theirs);
    }
    judge(&rows)
}

fn as_json(rows: &[Row]) -> String {
    let row = |Row { op, ours, peer, theirs }: &Row| {
        let ratio = ours / theirs;
        format!(r#"{{"op":"{op}","ours":{ours:.1},"peer":"{peer}","theirs":{theirs:.1},"ratio":{ratio:.3}}}"#)
    };
    format!("[{}]", rows.iter().map(row).collect::<Vec<_>>().join(",\n "))
}

fn judge(rows: &[Row]) -> Result<()> {
    for (op, limit) in OPS.into_iter().zip(LIMITS) {
        let ours = rows.iter().find(|r| r.op == op).map_or(f64::INFINITY, |r| r.ours);
        if ours > limit {
            return Err(format!("{op}: {ours:.1} instructions, {limit} allowed").into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(post_one: f64) -> Vec<Row> {
        let row = |op: &str, ours| Row { op: op.into(), ours, peer: "ibv_wr/cq_ex", theirs: 100.0 };
        OPS.iter().map(|op| row(op, if *op == "post_one" { post_one } else { 10.0 })).collect()
    }

    #[test]
    fn limits_are_kept_and_a_missing_row_is_over_them() {
        assert!(judge(&rows(90.0)).is_ok());
        assert!(judge(&rows(90.1)).is_err());
        assert!(judge(&rows(1.0)[1..]).is_err());
    }

    #[test]
    fn rows_are_json() {
        let text = as_json(&rows(50.0)[..1]);
        assert_eq!(
            text,
            r#"[{"op":"post_one","ours":50.0,"peer":"ibv_wr/cq_ex","theirs":100.0,"ratio":0.500}]"#
        );
    }
}
