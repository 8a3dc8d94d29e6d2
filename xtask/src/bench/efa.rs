//! Instructions of whole operations on the software EFA: provider-efa's and libefa's, in one run, on the newest
//! rdma-core, for the system's libefa may have no RDMA write. What is measured is
//! `provider-efa/examples/efa_cost.rs`; here is who is compared with whom.

use super::each;
use crate::{callgrind::Example, rdma_core, sh::Result};

/// Operation, whom to compare with, and most instructions that the safe API may spend beyond that, by static
/// dispatch: 40 for a post and 20 for a poll. `docs/performance.md` says where they go.
const OPS: [(&str, &str, f64); 5] = [
    ("post_one", "poll_cq", 40.0),
    ("post_batch16", "poll_cq", 40.0),
    ("poll_one", "poll_cq", 20.0),
    ("poll_16", "poll_cq", 20.0),
    ("poll_empty", "poll_cq", 20.0),
];
/// Rounds that are counted.
const ROUNDS: u32 = 256;

struct Row {
    op: &'static str,
    ours: f64,
    theirs: f64,
    limit: f64,
}

/// Counts, prints, and fails above the limits.
pub(super) fn count() -> Result<()> {
    let libraries = match rdma_core::build(None) {
        Ok(build) => Some(build.join("lib")),
        Err(why) => {
            eprintln!("no instructions of EFA: no newer rdma-core to be had: {why}");
            return Ok(());
        }
    };
    let cost = Example { package: "provider-efa", name: "efa_cost", libraries };
    cost.build()?;
    let mut rows = Vec::new();
    for (op, peer, limit) in OPS {
        let count = |client| each(&cost, client, op, ROUNDS);
        let (ours, theirs) = (count("static")?, count(peer)?);
        rows.push(Row { op, ours, theirs, limit });
    }
    println!("{:18} {:>7}  {:26} {:>7} {:>6}", "op (efa)", "ours", "peer", "theirs", "more");
    for Row { op, ours, theirs, .. } in &rows {
        println!("{op:18} {ours:7.1}  {:26} {theirs:7.1} {:6.1}", "ibv_wr/ibv_poll_cq", ours - theirs);
    }
    judge(&rows)
}

/// Below the tenth that is printed there is what a first call does once.
fn judge(rows: &[Row]) -> Result<()> {
    match rows.iter().find(|r| ((r.ours - r.theirs) * 10.0).round() > r.limit * 10.0) {
        None => Ok(()),
        Some(Row { op, ours, theirs, limit }) => {
            let more = ours - theirs;
            Err(format!("{op} on EFA: {more:.1} instructions more than libefa, {limit} allowed").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_than_libefas_is_what_counts() {
        let row = |ours| [Row { op: "post_one", ours, theirs: 300.0, limit: 40.0 }];
        assert!(judge(&row(340.0)).is_ok());
        let e = judge(&row(341.0)).unwrap_err().to_string();
        assert!(e.contains("post_one") && e.contains("41.0") && e.contains("40 allowed"), "{e}");
    }
}
