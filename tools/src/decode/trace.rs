//! The trace of software devices: one JSON object a line, whose schema is in `softnic/README.md`. Entries in
//! it are decoded; other events are told in one line.

use super::{Entry, hex_of, traced};
use serde_json::{Map, Value};

/// The schema's version that is known here.
const SCHEMA: u64 = 1;

/// Where an entry was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Send,
    Receive,
    Completion,
}

/// The lines of a trace; `None` where `content` is something else.
pub(super) fn lines(content: &[u8]) -> Option<impl Iterator<Item = &str>> {
    let text = std::str::from_utf8(content).ok()?;
    let is_trace = text.trim_start().starts_with('{');
    is_trace.then(|| text.lines())
}

/// Every line; or what is wrong with the first that is none.
pub(super) fn entries<'t>(lines: impl Iterator<Item = &'t str>) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    for (number, line) in (1..).zip(lines).filter(|(_, line)| !line.trim().is_empty()) {
        let object: Map<String, Value> =
            serde_json::from_str(line).map_err(|e| format!("line {number} is no JSON object: {e}"))?;
        entries.push(entry(number, object).map_err(|why| format!("line {number}: {why}"))?);
    }
    Ok(entries)
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

    fn of(text: &str) -> Result<Vec<Entry>, String> {
        entries(lines(text.as_bytes()).unwrap())
    }

    #[test]
    fn other_events_and_later_fields_are_told_and_other_schemas_refused() {
        let found = of(concat!(
            "{\"softnic_trace\":1,\"slot\":0,\"devices\":[\"mlx5_0\"]}\n\n",
            "{\"t\":1500000007,\"slot\":0,\"event\":\"packet\",\"action\":\"lost\",\"source\":256,\"later\":[1]}\n",
        ));
        let found = found.unwrap();
        assert!(found[0].title.contains("mlx5_0"));
        assert_eq!(found[1].title, "1.500000007 packet action lost later [1] slot 0 source 0x100");
        assert_eq!(found[1].at, 3);
        for (text, why) in [
            ("{\"softnic_trace\":2}", "schema 2"),
            ("{\"t\":1}", "no event"),
            ("{\"event\":\"wqe\"}", "no time"),
            ("{\"t\":1,\"event\":\"wqe\",\"bytes\":\"0x\"}", "no hexadecimal"),
            ("{broken", "no JSON object"),
        ] {
            assert!(of(text).unwrap_err().contains(why), "{text}");
        }
        assert!(lines(b"00 11").is_none() && lines(&[0xff, 0]).is_none());
    }

    proptest! {
        #[test]
        fn any_text_is_a_trace_or_is_not(text in "[{}\":,a-z0-9 \n]{0,80}") {
            if let Some(lines) = lines(text.as_bytes()) {
                let _ = entries(lines);
            }
        }

        #[test]
        fn any_bytes_of_an_entry_are_told(bytes in "([0-9a-f]{2}){0,80}", device in "mlx5|efa|other", queue in "send|receive|shared") {
            for event in ["wqe", "cqe"] {
                let line = format!(
                    "{{\"t\":1,\"event\":\"{event}\",\"device\":\"{device}\",\"queue\":\"{queue}\",\"bytes\":\"{bytes}\"}}"
                );
                prop_assert_eq!(of(&line).unwrap().len(), 1);
            }
        }
    }
}
