//! The trace of software devices: one JSON object a line, whose schema is in `softnic/README.md`. Entries in
//! it are decoded; other events are told in one line. A line that is none ends nothing: whoever was killed, or
//! had no room on its disk, left one, and what comes before and behind it is what people are after.

use super::{Entry, Show, hex_of, traced};
use crate::failure::Failure;
use serde_json::{Map, Value};
use std::{io::BufRead, path::Path};

/// The schema's version that is known here.
const SCHEMA: u64 = 1;

/// Where an entry was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Send,
    Receive,
    Completion,
}

/// A trace of which the first line that is not empty has been read.
pub(super) struct Input {
    pub(super) input: Box<dyn BufRead>,
    pub(super) line: Vec<u8>,
    /// The line's number, from 1.
    pub(super) number: usize,
}

/// Whether what has this first line is a trace, or would be.
pub(super) fn begins(line: &[u8]) -> bool {
    line.trim_ascii_start().starts_with(b"{") && !line.contains(&0) && std::str::from_utf8(line).is_ok()
}

/// Lines that could not be read.
#[derive(Default)]
struct Unread {
    lines: usize,
    first: Option<(usize, String)>,
}

/// Shows every line.
pub(super) fn run(trace: Input, name: &Path, show: Show<'_>) -> Result<(), Failure> {
    let Input { mut input, mut line, mut number } = trace;
    let (mut faults, mut unread, mut good) = (0, Unread::default(), 0);
    while !line.is_empty() {
        match parse(number, &line) {
            Ok(None) => {}
            Ok(Some(entry)) => {
                (good, faults) = (good + 1, faults + entry.faults.len());
                show(&entry)?;
            }
            Err(why) if good == 0 => {
                return Err(Failure::NotADump { path: name.into(), why: format!("line {number}: {why}") });
            }
            Err(why) => {
                show(&unreadable(number, &why))?;
                unread.lines += 1;
                unread.first.get_or_insert((number, why));
            }
        }
        line.clear();
        let failed = |source| Failure::Unreadable { path: name.into(), source };
        input.read_until(b'\n', &mut line).map_err(failed)?;
        number += 1;
    }
    match unread.first {
        _ if faults > 0 => Err(Failure::Malformed(faults)),
        Some((first, why)) => Err(Failure::Unread { path: name.into(), lines: unread.lines, first, why }),
        None => Ok(()),
    }
}

/// A line's entry, none for an empty one; or why it is no line of a trace.
fn parse(number: usize, line: &[u8]) -> Result<Option<Entry>, String> {
    let text = std::str::from_utf8(line).map_err(|_| "is no text")?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    match serde_json::from_str(text) {
        Ok(object) => entry(number, object).map(Some),
        Err(e) if e.is_eof() && !text.ends_with('\n') => {
            Err("ends in its middle: whoever wrote it was stopped, or had no room for more".into())
        }
        Err(e) => {
            let why = e.to_string();
            // There is one line to it, and this one has a number already.
            let why = why.split(" at line ").next().unwrap_or_default();
            Err(format!("is no JSON object: {why}, column {}", e.column()))
        }
    }
}

fn unreadable(number: usize, why: &str) -> Entry {
    let title = format!("line {number} can not be read");
    Entry {
        at: number,
        text: format!("{title}: {why}\n"),
        title,
        fields: Vec::new(),
        faults: vec![why.to_owned()],
    }
}

fn entry(number: usize, mut object: Map<String, Value>) -> Result<Entry, String> {
    if let Some(version) = object.get("softnic_trace") {
        return match version.as_u64() {
            Some(SCHEMA) => Ok(remark(number, format!("process {}", told(&object)))),
            _ => Err(format!("a trace of schema {version}, and this release reads {SCHEMA}")),
        };
    }
    let Some(Value::String(event)) = object.remove("event") else {
        return Err("no event; is this a trace of softnic?".into());
    };
    let time = object.remove("t").and_then(|t| t.as_u64()).ok_or("no time `t`")?;
    let bytes = match object.remove("bytes") {
        Some(Value::String(hex)) => {
            Some(unhex(&hex).ok_or_else(|| format!("bytes {hex} are no hexadecimal"))?)
        }
        _ => None,
    };
    let when = format!("{}.{:09}", time / 1_000_000_000, time % 1_000_000_000);
    let mut entry = remark(number, format!("{when} {event} {}", told(&object)));
    if let Some(bytes) = bytes {
        decode(&mut entry, &event, &object, &bytes);
    }
    Ok(entry)
}

/// Puts the decoded entry behind the line's own words.
fn decode(entry: &mut Entry, event: &str, object: &Map<String, Value>, bytes: &[u8]) {
    let queue = match (event, object.get("queue").and_then(Value::as_str)) {
        ("cqe", _) => Queue::Completion,
        (_, Some("receive" | "shared")) => Queue::Receive,
        _ => Queue::Send,
    };
    let device = object.get("device").and_then(Value::as_str).unwrap_or_default();
    match traced(device, queue, bytes) {
        Some(found) => {
            entry.text += &found.text;
            entry.title = format!("{}; {}", entry.title, found.title);
            (entry.fields, entry.faults) = (found.fields, found.faults);
        }
        None => entry.text += &format!("  bytes {}, which this build can not read\n", hex_of(bytes)),
    }
}

fn remark(at: usize, title: String) -> Entry {
    let text = format!("{title}\n");
    Entry { at, title, fields: Vec::new(), faults: Vec::new(), text }
}

/// All fields but those that were taken out. Queue pairs and keys are numbers that people know as
/// hexadecimal.
fn told(object: &Map<String, Value>) -> String {
    let told = object.iter().map(|(name, value)| match (name.as_str(), value) {
        ("qpn" | "source" | "target" | "addr" | "rkey" | "imm", Value::Number(n)) => {
            format!("{name} {:#x}", n.as_u64().unwrap_or_default())
        }
        (_, Value::String(text)) => format!("{name} {text}"),
        (_, value) => format!("{name} {value}"),
    });
    told.collect::<Vec<_>>().join(" ")
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    super::dump::digits(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What is shown of a trace, and how it ends.
    fn shown(text: &[u8]) -> (Vec<(usize, String)>, Result<(), Failure>) {
        let mut input: Box<dyn BufRead> = Box::new(std::io::Cursor::new(text.to_vec()));
        let (mut line, mut shown) = (Vec::new(), Vec::new());
        input.read_until(b'\n', &mut line).unwrap();
        let ended = run(Input { input, line, number: 1 }, Path::new("t"), &mut |entry| {
            shown.push((entry.at, entry.title.clone()));
            Ok(())
        });
        (shown, ended)
    }

    #[test]
    fn other_events_and_later_fields_are_told_and_other_schemas_refused() {
        let (found, ended) = shown(
            concat!(
                "{\"softnic_trace\":1,\"slot\":0,\"devices\":[\"mlx5_0\"]}\n\n",
                "{\"t\":1500000007,\"slot\":0,\"event\":\"packet\",\"action\":\"lost\",\"source\":256,\"later\":[1]}\n",
            )
            .as_bytes(),
        );
        ended.unwrap();
        assert!(found[0].1.contains("mlx5_0"));
        assert_eq!(found[1], (3, "1.500000007 packet action lost later [1] slot 0 source 0x100".into()));
        for (text, why) in [
            ("{\"softnic_trace\":2}", "schema 2"),
            ("{\"t\":1}", "no event"),
            ("{\"event\":\"wqe\"}", "no time"),
            ("{\"t\":1,\"event\":\"wqe\",\"bytes\":\"0x\"}", "no hexadecimal"),
            ("{broken", "no JSON object: key must be a string, column 2"),
            ("{\"t\":1,", "ends in its middle"),
        ] {
            let (shown, ended) = shown(text.as_bytes());
            let said = ended.unwrap_err().to_string();
            assert!(said.contains(why) && said.contains("line 1: ") && shown.is_empty(), "{text}: {said}");
        }
        assert!(!begins(b"00 11") && !begins(&[b'{', 0xff]) && !begins(b"{\0") && begins(b" {\"t\""));
    }

    /// A process that was killed, one whose disk was full and one that began behind them, all in one file.
    #[test]
    fn lines_that_can_not_be_read_hide_no_others() {
        let good = "{\"t\":1,\"event\":\"doorbell\",\"qpn\":1}\n";
        let text =
            [good.as_bytes(), b"{\"t\":2,\"ev{\"softnic_trace\":1}\n\xff\n", good.as_bytes(), b"{\"t\":3"];
        let (shown, ended) = shown(&text.concat());
        let lines: Vec<_> = shown.iter().map(|(at, _)| *at).collect();
        assert_eq!(lines, [1, 2, 3, 4, 5]);
        assert!([1, 2, 4].iter().all(|i| shown[*i].1.ends_with("can not be read")), "{shown:?}");
        match ended.unwrap_err() {
            Failure::Unread { lines: 3, first: 2, why, .. } => {
                assert!(why.contains("no JSON object"), "{why}")
            }
            other => panic!("{other}"),
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_trace_or_is_not(text in "[{}\":,a-z0-9 \n]{0,80}") {
            let (shown, ended) = shown(text.as_bytes());
            let refused = matches!(ended, Err(Failure::NotADump { .. }));
            prop_assert!(ended.is_ok() || refused || !shown.is_empty());
        }

        #[test]
        fn any_bytes_of_an_entry_are_told(bytes in "([0-9a-f]{2}){0,80}", device in "mlx5|efa|other", queue in "send|receive|shared") {
            for event in ["wqe", "cqe"] {
                let line = format!(
                    "{{\"t\":1,\"event\":\"{event}\",\"device\":\"{device}\",\"queue\":\"{queue}\",\"bytes\":\"{bytes}\"}}"
                );
                prop_assert_eq!(shown(line.as_bytes()).0.len(), 1);
            }
        }
    }
}
