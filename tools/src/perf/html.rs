//! A report as one page for a browser: no script, no font, nothing fetched. The drawing is `plot.rs`'s.

use super::{
    Latency, Report, Row,
    plot::{Axis, Scale, Series, bars, lines},
};
use std::fmt::{Display, Write};

/// Bars of a distribution.
const BARS: usize = 60;

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--grid:#d9dee5;--back:#fff;--c0:#0b62b8;--c1:#c2470a;--c2:#1a7f4b;--c3:#8a3ea8;--c4:#7a6a00}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa6b5;--grid:#333b47;--back:#14181e;--c0:#6ab0f5;--c1:#f5935a;--c2:#62c98f;--c3:#cf97e6;--c4:#d3c24f}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2rem .7rem;border-bottom:1px solid var(--grid);text-align:right}
.facts td,.facts th{text-align:left}th{color:var(--soft);font-weight:600}
.wide{overflow-x:auto}svg{width:100%;height:auto}svg text{font-size:12px;fill:var(--soft)}
.x{text-anchor:middle}.y{text-anchor:end}.g{stroke:var(--grid);fill:none}.l{fill:none;stroke-width:2}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}.s4{stroke:var(--c4)}
.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}.f4{fill:var(--c4)}
summary{cursor:pointer;color:var(--soft)}p{color:var(--soft)}
";

/// The page.
pub(super) fn page(report: &Report) -> String {
    let title = format!("ibv perf: {} over {}", report.operation, escape(&report.provider));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    );
    facts(&mut page, report);
    bandwidth(&mut page, report);
    latency(&mut page, report);
    page + "</body></html>\n"
}

fn facts(page: &mut String, report: &Report) {
    *page += "<table class=\"facts\">\n";
    for (name, value) in report.facts() {
        let _ = writeln!(page, "<tr><th>{name}</th><td>{}</td></tr>", escape(&value));
    }
    *page += "</table>\n";
}

fn bytes_axis() -> Axis {
    Axis { label: "bytes in a message", scale: Scale::Log(2.0), text: bytes }
}

fn bandwidth(page: &mut String, report: &Report) {
    let rows: Vec<_> = report.rows.iter().filter_map(|row| Some((row, row.bandwidth?))).collect();
    if rows.is_empty() {
        return;
    }
    *page += "<h2>Bandwidth by message size</h2>\n";
    let of = |value: fn(&super::Bandwidth) -> f64| {
        rows.iter().map(|(row, bw)| (row.bytes as f64, value(bw))).collect()
    };
    let rate = Axis { label: "MiB/s", scale: Scale::Linear, text: plain };
    *page +=
        &lines(bytes_axis(), rate, &[Series { name: "average", points: of(|bw| bw.mebibytes_per_second) }]);
    *page += "<h2>Message rate by message size</h2>\n";
    let rate = Axis { label: "million messages a second", scale: Scale::Linear, text: plain };
    *page += &lines(
        bytes_axis(),
        rate,
        &[Series { name: "average", points: of(|bw| bw.million_messages_per_second) }],
    );
    let cells = rows.iter().map(|(row, bandwidth)| bandwidth.cells(row));
    table(page, &["bytes", "messages", "MiB/s", "Gb/s", "million messages/s"], cells);
}

fn latency(page: &mut String, report: &Report) {
    let rows: Vec<_> = report.rows.iter().filter_map(|row| Some((row, row.latency.as_ref()?))).collect();
    if rows.is_empty() {
        return;
    }
    *page += "<h2>Latency percentiles by message size</h2>\n";
    let _ = writeln!(page, "<p>{}.</p>", report.latency_note());
    let of = |name, value: fn(&Latency) -> f64| Series {
        name,
        points: rows.iter().map(|(row, l)| (row.bytes as f64, value(l))).collect(),
    };
    let series = [
        of("p50", |l| l.p50),
        of("p90", |l| l.p90),
        of("p99", |l| l.p99),
        of("p99.9", |l| l.p99_9),
        of("max", |l| l.max),
    ];
    *page += &lines(bytes_axis(), micros_axis(Scale::Log(10.0)), &series);
    let cells = rows.iter().map(|(row, l)| {
        let micros = [l.min, l.p50, l.p90, l.p99, l.p99_9, l.max, l.mean, l.stdev];
        let micros = micros.map(|value| format!("{value:.2}"));
        [row.bytes.to_string(), row.messages.to_string()].into_iter().chain(micros).collect()
    });
    let header =
        ["bytes", "messages", "min µs", "p50", "p90", "p99", "p99.9", "max", "mean", "standard deviation"];
    table(page, &header, cells);
    *page += "<h2>Distribution</h2>\n";
    for (i, (row, latency)) in rows.iter().enumerate() {
        distribution(page, row, latency, i == 0);
    }
}

fn micros_axis(scale: Scale) -> Axis {
    Axis { label: "microseconds", scale, text: plain }
}

/// Histogram and cumulative distribution of one row.
fn distribution(page: &mut String, row: &Row, latency: &Latency, open: bool) {
    let (open, size) = (if open { " open" } else { "" }, bytes(row.bytes as f64));
    let _ = writeln!(page, "<details{open}><summary>{size}, {} messages</summary>", row.messages);
    let (start, bins, beyond) = bins(latency);
    let count = Axis { label: "messages", scale: Scale::Linear, text: plain };
    *page += &bars(micros_axis(Scale::Linear), count, start, Series { name: "messages", points: bins });
    if beyond > 0 {
        let _ = writeln!(page, "<p>{beyond} messages took longer than the axis shows.</p>");
    }
    let total: u64 = latency.histogram.iter().map(|(_, count)| count).sum();
    let mut sum = 0;
    let cumulative = latency.histogram.iter().map(|(micros, count)| {
        sum += count;
        (*micros, 100.0 * sum as f64 / total as f64)
    });
    let points = thinned(cumulative.collect());
    let percent =
        Axis { label: "% of messages that took at most so long", scale: Scale::Linear, text: plain };
    *page += &lines(micros_axis(Scale::Log(10.0)), percent, &[Series { name: "share", points }]);
    *page += "</details>\n";
}

/// Bars of equal width up to the 99.9th percentile: where they start, each one's end and messages, and the
/// messages beyond.
fn bins(latency: &Latency) -> (f64, Vec<(f64, f64)>, u64) {
    let (start, end) = (latency.min * 0.98, latency.p99_9.max(latency.min) * 1.02 + 1e-3);
    let width = (end - start) / BARS as f64;
    let mut bins: Vec<_> = (1..=BARS).map(|i| (start + width * i as f64, 0.0)).collect();
    let mut beyond = 0;
    for (micros, count) in &latency.histogram {
        match bins.get_mut(((micros - start) / width) as usize) {
            Some(bin) => bin.1 += *count as f64,
            None => beyond += count,
        }
    }
    (start, bins, beyond)
}

/// At most about two hundred points, the first and the last among them.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let (every, last) = (points.len() / 200 + 1, points.len().saturating_sub(1));
    let kept = points.into_iter().enumerate().filter(|(i, _)| i % every == 0 || *i == last);
    kept.map(|(_, point)| point).collect()
}

fn table(page: &mut String, header: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = &dyn Display>| {
        cells.map(|cell| format!("<{tag}>{cell}</{tag}>")).collect::<String>()
    };
    *page += "<div class=\"wide\"><table>\n";
    let _ = writeln!(page, "<tr>{}</tr>", cells("th", &mut header.iter().map(|c| c as &dyn Display)));
    for row in rows {
        let _ = writeln!(page, "<tr>{}</tr>", cells("td", &mut row.iter().map(|c| c as &dyn Display)));
    }
    *page += "</table></div>\n";
}

/// Names of devices and providers are not ours.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn bytes(value: f64) -> String {
    match value {
        v if v >= f64::from(1 << 20) => format!("{} MiB", plain(v / f64::from(1 << 20))),
        v if v >= 1024.0 => format!("{} KiB", plain(v / 1024.0)),
        v => format!("{} B", plain(v)),
    }
}

/// Three digits, no zeroes behind them.
fn plain(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 || v == v.trunc() => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_people_write_them() {
        for (value, text) in [(0.0, "0"), (0.25, "0.25"), (1.5, "1.5"), (12.34, "12.3"), (1234.5, "1234")] {
            assert_eq!(plain(value), text);
        }
        assert_eq!([2.0, 65536.0, 8_388_608.0].map(bytes), ["2 B", "64 KiB", "8 MiB"]);
        assert_eq!(escape("<a href=\"&\">"), "&lt;a href=&quot;&amp;&quot;&gt;");
    }

    #[test]
    fn a_distribution_shows_every_message_or_says_how_many_it_does_not() {
        let histogram = vec![(1.0, 900), (1.5, 99), (400.0, 1)];
        let latency = Latency {
            min: 1.0,
            p50: 1.0,
            p90: 1.0,
            p99: 1.5,
            p99_9: 1.5,
            max: 400.0,
            mean: 1.4,
            stdev: 12.0,
            histogram,
        };
        let (start, bins, beyond) = bins(&latency);
        assert!(start < 1.0 && bins.len() == BARS && beyond == 1);
        assert_eq!(bins.iter().map(|bin| bin.1).sum::<f64>(), 999.0);
    }

    #[test]
    fn thinning_keeps_the_ends() {
        let points: Vec<_> = (0..1000).map(|i| (f64::from(i), 0.0)).collect();
        let thin = thinned(points);
        assert!(thin.len() <= 202 && thin[0].0 == 0.0 && thin.last().unwrap().0 == 999.0);
        assert_eq!(thinned(vec![]), []);
    }
}
