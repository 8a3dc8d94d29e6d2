//! What a measurement amounted to, as data, as a table and as JSON. Plots are `html.rs`'s.

use super::{Settings, pace::Finished};
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use hdrhistogram::Histogram;
use ibv::{IbvDomain, IbvDomainImpl};
use serde::Serialize;
use std::fmt;

/// What a measurement amounted to, seen from one end. Serializes as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Write, read or send.
    pub operation: String,
    /// Which end this is: client, server.
    pub end: &'static str,
    /// The provider's name; empty where the caller opened the domain.
    pub provider: String,
    /// This end's device.
    pub device: String,
    /// The other end's.
    pub peer_device: String,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Work requests in flight on each.
    pub tx_depth: u32,
    /// Receives posted on each, for sends.
    pub rx_depth: u32,
    /// Work requests that one doorbell publishes.
    pub post_list: u32,
    /// Every how many work requests one asks for a completion; `None` where it depends on the size.
    pub cq_mod: Option<u32>,
    /// Largest message inside its work request, bytes; `None` where it depends on what is measured.
    pub inline: Option<u32>,
    /// Whether both ends posted at once.
    pub bidirectional: bool,
    /// Messages or seconds of each row.
    pub extent: String,
    /// Whether the bytes that arrived last were compared with those sent. A measurement that found a
    /// difference is a failure, so there is no report of one.
    pub verified: bool,
    /// Rows that were asked for and not measured, and why.
    pub left_out: Option<String>,
    /// One for each size and measure.
    pub rows: Vec<Row>,
}

/// One size, one measure.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// "bandwidth" or "latency".
    pub measure: &'static str,
    /// Bytes in a message.
    pub bytes: usize,
    /// Messages, of both directions together.
    pub messages: u64,
    /// From the first post to the last completion, the longer one of two directions.
    pub seconds: f64,
    /// Bandwidth rows; both ends know.
    pub bandwidth: Option<Bandwidth>,
    /// Latency rows; the client knows.
    pub latency: Option<Latency>,
    /// Times that this end polled the completion queue in the hot loop.
    pub polls: u64,
    /// Those that found nothing.
    pub empty_polls: u64,
}

/// Payload alone, both directions together.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bandwidth {
    /// 2^20 bytes a second, which perftest calls MB/sec.
    pub mebibytes_per_second: f64,
    /// 10^9 bits a second.
    pub gigabits_per_second: f64,
    /// 10^6 messages a second.
    pub million_messages_per_second: f64,
}

impl Bandwidth {
    /// Its line in a table: bytes, messages, and the three rates.
    pub(super) fn cells(&self, row: &Row) -> Vec<String> {
        vec![
            row.bytes.to_string(),
            row.messages.to_string(),
            format!("{:.2}", self.mebibytes_per_second),
            format!("{:.3}", self.gigabits_per_second),
            format!("{:.6}", self.million_messages_per_second),
        ]
    }
}

/// Microseconds, to three digits.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Shortest.
    pub min: f64,
    /// Half are no longer.
    pub p50: f64,
    /// Nine of ten are no longer.
    pub p90: f64,
    /// 99 of 100 are.
    pub p99: f64,
    /// 999 of 1000 are.
    pub p99_9: f64,
    /// Longest.
    pub max: f64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub stdev: f64,
    /// Every latency that occurred and how often, shortest first.
    pub histogram: Vec<(f64, u64)>,
}

impl Bandwidth {
    pub(super) fn of(parts: &[Finished], size: usize) -> Self {
        let a_second = |part: &Finished| part.messages as f64 / (part.nanos.max(1) as f64 / 1e9);
        let messages: f64 = parts.iter().map(a_second).sum();
        let bytes = messages * size as f64;
        Self {
            mebibytes_per_second: bytes / f64::from(1 << 20),
            gigabits_per_second: bytes * 8.0 / 1e9,
            million_messages_per_second: messages / 1e6,
        }
    }
}

impl Latency {
    /// Of durations in nanoseconds, each of which is `factor` latencies.
    pub(super) fn of(times: &Histogram<u64>, factor: f64) -> Self {
        let micros = |nanos: f64| nanos / factor / 1000.0;
        let at = |quantile: f64| micros(times.value_at_quantile(quantile) as f64);
        let bars = times.iter_recorded();
        Self {
            min: micros(times.min() as f64),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: micros(times.max() as f64),
            mean: micros(times.mean()),
            stdev: micros(times.stdev()),
            histogram: bars
                .map(|bar| (micros(bar.value_iterated_to() as f64), bar.count_since_last_iteration()))
                .collect(),
        }
    }
}

impl Row {
    pub(super) fn new(measure: &'static str, bytes: usize, parts: &[Finished]) -> Self {
        let nanos = parts.iter().map(|part| part.nanos).max().unwrap_or(0);
        Self {
            measure,
            bytes,
            messages: parts.iter().map(|part| part.messages).sum(),
            seconds: nanos as f64 / 1e9,
            bandwidth: None,
            latency: None,
            polls: 0,
            empty_polls: 0,
        }
    }
}

impl Report {
    pub(super) fn new<I: IbvDomainImpl>(
        domain: &IbvDomain<I>,
        settings: &Settings,
        client: bool,
        peer_device: String,
    ) -> Self {
        Self {
            operation: settings.operation.to_string(),
            end: if client { "client" } else { "server" },
            provider: String::new(),
            device: domain.device_info().name.clone(),
            peer_device,
            queue_pairs: settings.qps,
            tx_depth: settings.tx_depth,
            rx_depth: settings.rx_depth,
            post_list: settings.post_list,
            cq_mod: settings.cq_mod,
            inline: settings.inline,
            bidirectional: settings.bidirectional,
            extent: settings.extent.to_string(),
            verified: settings.verify,
            left_out: None,
            rows: Vec::new(),
        }
    }

    /// A page of its own with settings, tables and plots, for a browser.
    pub fn html(&self) -> String {
        super::html::page(self)
    }

    /// What was set, in words.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let or = |value: Option<u32>, otherwise: &str| value.map_or(otherwise.into(), |n| n.to_string());
        let mut facts = vec![
            ("operation", self.operation.clone()),
            ("provider", self.provider.clone()),
            ("devices", format!("{} here, {} there", self.device, self.peer_device)),
            ("each row", self.extent.clone()),
            ("queue pairs", self.queue_pairs.to_string()),
            ("send queue", format!("{} work requests, {} a doorbell", self.tx_depth, self.post_list)),
            ("completions", format!("every {}", or(self.cq_mod, "100 up to 8192 bytes, else each"))),
            ("inline", or(self.inline, "as perftest")),
            ("direction", if self.bidirectional { "both at once" } else { "one" }.into()),
            ("bytes verified", if self.verified { "yes, equal" } else { "no" }.into()),
        ];
        if self.cq_mod.is_none() && self.post_list > 1 {
            facts[6].1 = format!("every {}", self.post_list);
        }
        if self.operation == "send" {
            facts.insert(6, ("receive queue", format!("{} receives", self.rx_depth)));
        }
        facts.extend(self.left_out.as_ref().map(|why| ("left out", why.clone())));
        facts
    }

    /// What the latencies are.
    pub(super) fn latency_note(&self) -> &'static str {
        match self.operation.as_str() {
            "read" => "latency of whole operations, from post to completion",
            _ => "latency is half of a round trip, as perftest has it",
        }
    }

    fn bandwidths(&self) -> Option<Table> {
        let rows: Vec<_> = self.rows.iter().filter_map(|row| Some((row, row.bandwidth?))).collect();
        let header = ["bytes", "iterations", "BW average [MiB/s]", "[Gb/s]", "msg rate [M/s]"];
        table(&header, rows.iter().map(|(row, bandwidth)| bandwidth.cells(row)).collect())
    }

    fn latencies(&self) -> Option<Table> {
        let rows: Vec<_> = self.rows.iter().filter_map(|row| Some((row, row.latency.as_ref()?))).collect();
        let header =
            ["bytes", "iterations", "min [µs]", "p50", "p90", "p99", "p99.9", "max", "mean", "stdev"];
        let line = |(row, l): &(&Row, &Latency)| {
            let micros = [l.min, l.p50, l.p90, l.p99, l.p99_9, l.max, l.mean, l.stdev];
            let micros = micros.map(|value| format!("{value:.2}"));
            [row.bytes.to_string(), row.messages.to_string()].into_iter().chain(micros).collect()
        };
        table(&header, rows.iter().map(line).collect())
    }
}

fn table(header: &[&str], rows: Vec<Vec<String>>) -> Option<Table> {
    if rows.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(header.to_vec());
    table.add_rows(rows);
    table.column_iter_mut().for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    Some(table)
}

/// The tables a person reads.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.facts() {
            writeln!(f, "{name:15} {value}")?;
        }
        if let Some(table) = self.bandwidths() {
            write!(f, "{table}")?;
        }
        if let Some(table) = self.latencies() {
            let above = if self.rows.iter().any(|row| row.bandwidth.is_some()) { "\n" } else { "" };
            write!(f, "{above}{table}\n{}", self.latency_note())?;
        } else if self.rows.iter().any(|row| row.measure == "latency") {
            write!(f, "latency was measured by the client")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_adds_the_two_directions_and_counts_payload_alone() {
        let part = Finished { messages: 1 << 20, nanos: 1_000_000_000 };
        let one = Bandwidth::of(&[part], 4);
        assert_eq!(one.mebibytes_per_second, 4.0);
        assert!((one.gigabits_per_second - f64::from(32 << 20) / 1e9).abs() < 1e-9);
        let both = Bandwidth::of(&[part, Finished { nanos: 2_000_000_000, ..part }], 4);
        assert!((both.million_messages_per_second - 1.048_576 * 1.5).abs() < 1e-9);
    }

    #[test]
    fn percentiles_are_of_latencies_not_of_round_trips() {
        let mut times = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        (1..=1000).for_each(|i| times.saturating_record(i * 2));
        let l = Latency::of(&times, 2.0);
        let near = |value: f64, nanos: f64| (value * 1000.0 - nanos).abs() <= nanos / 500.0 + 0.6;
        assert!(
            near(l.p50, 500.0) && near(l.p90, 900.0) && near(l.p99, 990.0) && near(l.p99_9, 999.0),
            "{l:?}"
        );
        assert!(near(l.min, 1.0) && near(l.max, 1000.0) && near(l.mean, 500.5), "{l:?}");
        assert_eq!(l.histogram.iter().map(|(_, count)| count).sum::<u64>(), 1000);
    }
}
