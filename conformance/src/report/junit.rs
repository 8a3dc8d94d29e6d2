//! JUnit XML, as test dashboards read it. Nothing else.

use super::{Outcome, Report};
use std::fmt::Write;

pub(super) fn render(report: &Report) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for p in &report.providers {
        let (title, n) = (escape(&p.title()), p.cases.len() + usize::from(p.stopped.is_some()));
        let _ = writeln!(
            out,
            "<testsuite name=\"{title}\" tests=\"{n}\" failures=\"{}\" skipped=\"{}\" time=\"{:.3}\">",
            p.failed,
            p.skipped + p.expected_failures,
            p.seconds
        );
        if let Some(why) = &p.stopped {
            let class = escape(&format!("{}.{}", p.name, p.dispatch));
            let _ = write!(out, "<testcase classname=\"{class}\" name=\"run\" time=\"0\"");
            out.push_str(&element(&Outcome::Failed(why.to_string())));
        }
        for c in &p.cases {
            let class = escape(&format!("{}.{}.{}", p.name, p.dispatch, c.group));
            let _ = write!(
                out,
                "<testcase classname=\"{class}\" name=\"{}\" time=\"{:.3}\"",
                escape(&c.name),
                c.seconds
            );
            out.push_str(&element(&c.outcome));
        }
        out.push_str("</testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

/// The rest of a `testcase`.
fn element(outcome: &Outcome) -> String {
    let why = escape(outcome.reason().unwrap_or(""));
    match outcome {
        Outcome::Passed => "/>\n".into(),
        Outcome::Failed(_) => format!("><failure message=\"{why}\"/></testcase>\n"),
        Outcome::UnexpectedPass(_) => format!("><failure message=\"unexpected pass: {why}\"/></testcase>\n"),
        Outcome::Skipped(_) => format!("><skipped message=\"{why}\"/></testcase>\n"),
        Outcome::ExpectedFailure(_) => {
            format!("><skipped message=\"failed as expected: {why}\"/></testcase>\n")
        }
    }
}

/// XML's five, and no character that XML 1.0 has not.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\n' | '\t' => out.push(' '),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn markup_in_reasons_is_escaped() {
        let xml = crate::report::tests::sample().to_junit();
        assert!(xml.contains("<failure message=\"x &lt; &quot;y&quot; &amp; z\u{fffd}\"/>"), "{xml}");
        assert!(xml.contains("tests=\"5\" failures=\"2\" skipped=\"2\""), "{xml}");
    }
}
