//! Where the lines of a trace go: a file or standard error, as JSON for tools or as text for people. What is told is not
//! decided here.
//!
//! Several processes may share a file: each appends whole lines, and each line names its process by the slot in the session.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Event, text};

/// The schema that the lines follow; grows when a field changes its meaning.
pub const SCHEMA: u32 = 1;

/// How many bytes a sink keeps before it writes.
const ROOM: usize = 64 << 10;

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// One place that lines go to.
#[derive(Debug)]
pub struct Sink {
    format: Format,
    slot: u32,
    buffer: Vec<u8>,
    out: Out,
    path: PathBuf,
}

#[derive(Debug)]
enum Out {
    File(File),
    StandardError,
    /// It failed, and has been said to.
    Nowhere,
}

/// The first line of each process.
#[derive(Serialize)]
struct Head<'a> {
    softnic_trace: u32,
    slot: u32,
    devices: &'a [String],
}

#[derive(Serialize)]
struct Line<'a> {
    t: u64,
    slot: u32,
    #[serde(flatten)]
    event: &'a Event,
}

impl Sink {
    /// Opens `path` (`-` is standard error) to append lines of the process in `slot`, and writes the head.
    ///
    /// # Errors
    ///
    /// The file can't be opened.
    pub fn open(path: &Path, format: Format, slot: u32, devices: &[String]) -> std::io::Result<Self> {
        let out = match path.to_str() {
            Some("-") => Out::StandardError,
            _ => Out::File(File::options().create(true).append(true).open(path)?),
        };
        let mut sink = Self { format, slot, buffer: Vec::new(), out, path: path.to_owned() };
        match format {
            Format::Json => sink.json(&Head { softnic_trace: SCHEMA, slot, devices }),
            Format::Text => sink.line(&format!("# process {slot}: {}", devices.join(" "))),
        }
        sink.flush();
        Ok(sink)
    }

    /// Adds an event of time `t`, in nanoseconds of the device's clock.
    pub fn put(&mut self, t: u64, event: &Event) {
        let slot = self.slot;
        match self.format {
            Format::Json => self.json(&Line { t, slot, event }),
            Format::Text => self.line(&text::line(t, slot, event)),
        }
        if self.buffer.len() >= ROOM {
            self.flush();
        }
    }

    fn json(&mut self, value: &impl Serialize) {
        // Plain structures into memory: there is nothing that could fail.
        let _ = serde_json::to_writer(&mut self.buffer, value);
        self.buffer.push(b'\n');
    }

    fn line(&mut self, line: &str) {
        self.buffer.extend_from_slice(line.as_bytes());
        self.buffer.push(b'\n');
    }

    /// Writes what is buffered. A full disk costs the rest of the trace, which is said once, and nothing else: what came later
    /// could only follow half a line.
    pub fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let written = match &mut self.out {
            Out::File(file) => file.write_all(&self.buffer),
            Out::StandardError => std::io::stderr().write_all(&self.buffer),
            Out::Nowhere => Ok(()),
        };
        self.buffer.clear();
        if let Err(e) = written {
            self.out = Out::Nowhere;
            crate::log::warn(&format_args!("trace to {:?}: {e}; its rest is lost", self.path));
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Action, Kind, PacketView, Queue, Trace};
    use super::*;
    use crate::fabric::packet::{Address, Body, Operation, Packet, Request};
    use crate::rules::Psn;
    use ibv_core::WcStatus;

    fn events() -> Vec<Event> {
        let operation = Operation::Write { addr: 0x1000, rkey: 7, imm: Some([0, 0, 1, 2]) };
        let request =
            Request { psn: Psn::new(5), packets: 1, operation, solicited: false, data: vec![0; 64] };
        let (from, to) = (Address::default(), Address::default());
        let packet = Packet { from, to, source: 256, target: 257, body: Body::Request(request) };
        vec![
            Event::Wqe { device: Kind::Mlx5, qpn: 256, queue: Queue::Send, index: 3, bytes: vec![0, 0xab] },
            Event::Packet(PacketView::new(Action::Sent, &packet)),
            Event::Completed {
                device: Kind::Mlx5,
                cqn: 1,
                qpn: 256,
                counter: 3,
                status: WcStatus::WR_FLUSH_ERR,
                bytes: vec![0x10],
            },
        ]
    }

    /// What a sink of this format writes for the events.
    fn written(format: Format, name: &str) -> String {
        let path = std::env::temp_dir().join(format!("softnic-trace-{name}-{}", std::process::id()));
        let mut trace = Trace::default();
        trace.add_sink(Sink::open(&path, format, 2, &["mlx5_0".into()]).unwrap());
        trace.now = 1500;
        events().into_iter().for_each(|e| trace.event(e));
        drop(trace);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        text
    }

    #[test]
    fn json_lines_follow_the_schema() {
        let expected = [
            r#"{"softnic_trace":1,"slot":2,"devices":["mlx5_0"]}"#,
            r#"{"t":1500,"slot":2,"event":"wqe","device":"mlx5","qpn":256,"queue":"send","index":3,"bytes":"00ab"}"#,
            r#"{"t":1500,"slot":2,"event":"packet","action":"sent","source":256,"target":257,"what":"write","psn":5,"packets":1,"len":64,"addr":4096,"rkey":7,"imm":258}"#,
            r#"{"t":1500,"slot":2,"event":"cqe","device":"mlx5","cqn":1,"qpn":256,"counter":3,"status":"WR_FLUSH_ERR","bytes":"10"}"#,
        ];
        assert_eq!(written(Format::Json, "json").lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_trace_that_can_not_be_written_ends() {
        let mut sink = Sink::open(Path::new("/dev/full"), Format::Json, 2, &["mlx5_0".into()]).unwrap();
        assert!(matches!(sink.out, Out::Nowhere), "the head did not arrive");
        events().iter().for_each(|e| sink.put(0, e));
        sink.flush();
        assert!(sink.buffer.is_empty());
    }

    #[test]
    fn text_lines_name_the_same() {
        let text = written(Format::Text, "text");
        for part in ["# process 2: mlx5_0", "wqe", "00ab", "write psn 5", "len 64", "cqe", "WR_FLUSH_ERR"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.lines().count(), 4);
    }
}
