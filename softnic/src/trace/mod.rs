//! What a device did, as values: the trace that makes runs comparable, and the reports of strict mode. Nothing here decides.
//! How events become lines of a file is in [`lines`].

mod breach;
pub mod lines;
mod text;
mod view;

use ibv_core::WcStatus;
use serde::{Serialize, Serializer};

use crate::fabric::packet::Packet;
use crate::mlx5::transition::QpState;

pub use breach::Breach;
pub use lines::{Format, Sink};
pub use view::PacketView;

/// Whose formats the bytes of an event are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// ConnectX.
    Mlx5,
    /// EFA.
    Efa,
}

/// Which queue a work-queue entry was in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Queue {
    /// A queue pair's send queue.
    Send,
    /// A queue pair's receive queue.
    Receive,
    /// A shared receive queue.
    Shared,
    /// A completion queue.
    Completion,
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It left.
    Sent,
    /// It left, and a link or a fault holds it back.
    Delayed,
    /// It was lost on its way.
    Lost,
    /// It arrived at its queue pair.
    Delivered,
}

/// One thing that a device did. Serialized, it is a line of the trace: the `README.md` has the schema.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// A queue pair's doorbell was seen; its send record says so many basic blocks (mlx5), or requests (efa).
    Doorbell {
        /// Queue pair.
        qpn: u32,
        /// The record.
        record: u16,
    },
    /// A queue's doorbell was written so often since it was last told: where doorbells are counted.
    Rung {
        /// Whose.
        queue: Queue,
        /// Number of the queue pair, or of the completion queue.
        number: u32,
        /// Writes.
        times: u32,
    },
    /// The device took a work-queue entry.
    Wqe {
        /// Whose format.
        device: Kind,
        /// Queue pair.
        qpn: u32,
        /// Which of its queues.
        queue: Queue,
        /// Its index, as completions name it.
        index: u16,
        /// The entry, as the program wrote it.
        #[serde(serialize_with = "hex")]
        bytes: Vec<u8>,
    },
    /// A request left (again).
    Sent {
        /// Queue pair.
        qpn: u32,
        /// Index of the request.
        index: u16,
        /// Sequence number of its first packet.
        psn: u32,
    },
    /// Something happened to a packet.
    Packet(PacketView),
    /// A completion was written.
    #[serde(rename = "cqe")]
    Completed {
        /// Whose format.
        device: Kind,
        /// Completion queue.
        cqn: u32,
        /// Queue pair.
        qpn: u32,
        /// Counter of the request.
        counter: u16,
        /// How it ended.
        #[serde(serialize_with = "name")]
        status: WcStatus,
        /// The entry, as the device wrote it.
        #[serde(serialize_with = "hex")]
        bytes: Vec<u8>,
    },
    /// A queue pair changed its state.
    State {
        /// Queue pair.
        qpn: u32,
        /// To this.
        #[serde(serialize_with = "name")]
        state: QpState,
    },
    /// A timer ran out.
    Timer {
        /// Queue pair.
        qpn: u32,
    },
}

/// Lower-case hexadecimal digits, two a byte.
fn hex<S: Serializer>(bytes: &[u8], out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&hex_text(bytes))
}

fn hex_text(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, b| {
        // A string takes everything.
        let _ = write!(text, "{b:02x}");
        text
    })
}

/// The specification's name, as `Debug` has it.
fn name<S: Serializer>(value: &impl std::fmt::Debug, out: S) -> Result<S::Ok, S::Error> {
    out.collect_str(&format_args!("{value:?}"))
}

/// How many breaches are told.
const MOST_BREACHES: usize = 1000;

/// Collected events and breaches.
#[derive(Debug, Default)]
pub struct Trace {
    /// Whether events are kept.
    pub recording: bool,
    /// Whether breaches are looked for.
    pub strict: bool,
    /// Whether the program stands still while the device looks, as it does under steps: then a doorbell must name the last
    /// request, and a BlueFlame copy is whole.
    pub exact: bool,
    /// The device's clock in nanoseconds, for the lines.
    pub now: u64,
    events: Vec<Event>,
    breaches: Vec<Breach>,
    sinks: Vec<Sink>,
}

impl Trace {
    /// Writes every event to `sink` too.
    pub fn add_sink(&mut self, sink: Sink) {
        self.sinks.push(sink);
    }

    /// Whether anybody wants events: else making them is wasted.
    pub fn is_on(&self) -> bool {
        self.recording || !self.sinks.is_empty()
    }

    /// Keeps an event.
    pub fn event(&mut self, event: Event) {
        for sink in &mut self.sinks {
            sink.put(self.now, &event);
        }
        if self.recording {
            self.events.push(event);
        }
    }

    /// Keeps what became of a packet.
    pub fn packet(&mut self, action: Action, packet: &Packet) {
        if self.is_on() {
            self.event(Event::Packet(PacketView::new(action, packet)));
        }
    }

    /// Keeps a work-queue entry that the device took. `bytes` is called only if somebody wants it.
    pub fn wqe(&mut self, device: Kind, qpn: u32, queue: Queue, index: u16, bytes: impl FnOnce() -> Vec<u8>) {
        if self.is_on() {
            self.event(Event::Wqe { device, qpn, queue, index, bytes: bytes() });
        }
    }

    /// Keeps a breach, once; and of a program that does nothing else, the first ones.
    pub fn breach(&mut self, breach: Breach) {
        if self.strict && self.breaches.len() < MOST_BREACHES && !self.breaches.contains(&breach) {
            crate::log::warn(&breach);
            self.breaches.push(breach);
        }
    }

    /// Takes the events.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Takes the breaches.
    pub fn take_breaches(&mut self) -> Vec<Breach> {
        std::mem::take(&mut self.breaches)
    }

    /// Brings what is buffered to the files.
    pub fn flush(&mut self) {
        self.sinks.iter_mut().for_each(Sink::flush);
    }
}
