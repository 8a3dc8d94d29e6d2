//! The rows of a measurement, in order. Pure.

use super::Settings;
use crate::Failure;

/// Sizes that `--all` ends with, as a power of two.
const LARGEST: u32 = 23;
const BANDWIDTH_SIZE: usize = 65536;
const LATENCY_SIZE: usize = 2;

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Whether it is latency that is measured.
    pub(super) latency: bool,
    /// Bytes in a message.
    pub(super) size: usize,
}

impl Step {
    pub(super) fn name(self) -> &'static str {
        if self.latency { "latency" } else { "bandwidth" }
    }
}

/// Every row, where both ends' devices take messages of `limit` bytes, and deliver them in order or not.
pub(super) fn steps(settings: &Settings, limit: usize, in_order: bool) -> Result<Vec<Step>, Failure> {
    let mut steps = Vec::new();
    let latency = settings.left_out(in_order).is_none();
    for latency in [false, true].into_iter().filter(|l| settings.has(*l) && (latency || !l)) {
        for size in sizes(settings, latency, limit)? {
            steps.push(Step { latency, size });
        }
    }
    Ok(steps)
}

fn sizes(settings: &Settings, latency: bool, limit: usize) -> Result<Vec<usize>, Failure> {
    let largest = limit.min(1 << LARGEST);
    if settings.all {
        return Ok((1..=LARGEST).map(|n| 1 << n).filter(|size| *size <= largest).collect());
    }
    let default = if latency { LATENCY_SIZE } else { BANDWIDTH_SIZE };
    match settings.size {
        Some(0) => Err(Failure::Setting("--size 0: a message of no bytes has no bandwidth".into())),
        Some(size) if size > limit => {
            Err(Failure::Setting(format!("--size {size}: the other end's device takes 1 to {limit}")))
        }
        Some(size) => Ok(vec![size]),
        None => Ok(vec![default.min(limit)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::{Measure, Operation};

    #[test]
    fn all_sizes_are_powers_of_two_up_to_what_both_ends_take() {
        let mut settings = Settings::new(Operation::Send, Measure::All);
        settings.all = true;
        let rows = steps(&settings, 5000, true).unwrap();
        let bandwidth: Vec<_> = rows.iter().filter(|s| !s.latency).map(|s| s.size).collect();
        assert_eq!(bandwidth, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]);
        assert_eq!(rows.len(), 24);
        assert_eq!(steps(&settings, usize::MAX, true).unwrap().last().unwrap().size, 8 << 20);
    }

    #[test]
    fn one_size_is_perftests_or_the_one_that_was_asked_for() {
        let mut settings = Settings::new(Operation::Write, Measure::All);
        let sizes = |s: &Settings| {
            steps(s, 1 << 20, true).map(|rows| rows.iter().map(|r| r.size).collect::<Vec<_>>())
        };
        assert_eq!(sizes(&settings).unwrap(), [65536, 2]);
        assert_eq!(steps(&settings, 1 << 20, false).unwrap(), [Step { latency: false, size: 65536 }]);
        settings.size = Some(7);
        assert_eq!(sizes(&settings).unwrap(), [7, 7]);
        settings.size = Some((1 << 20) + 1);
        assert!(sizes(&settings).unwrap_err().to_string().contains("takes 1 to 1048576"));
        settings.size = Some(0);
        assert!(sizes(&settings).is_err());
    }
}
