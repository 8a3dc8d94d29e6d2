//! What a device did, as values: the trace that makes runs comparable, and the reports of strict mode. Nothing here decides.

use ibv_core::WcStatus;

use crate::mlx5::transition::QpState;

/// One thing that a device did.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// A queue pair's doorbell was seen; its send record says so many basic blocks.
    Doorbell {
        /// Queue pair.
        qpn: u32,
        /// The record.
        record: u16,
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
    /// A packet was delivered.
    Delivered {
        /// From this queue pair.
        source: u32,
        /// To this one.
        target: u32,
    },
    /// A completion was written.
    Completed {
        /// Completion queue.
        cqn: u32,
        /// Queue pair.
        qpn: u32,
        /// Counter of the request.
        counter: u16,
        /// How it ended.
        status: WcStatus,
    },
    /// A queue pair changed its state.
    State {
        /// Queue pair.
        qpn: u32,
        /// To this.
        state: QpState,
    },
    /// A timer ran out.
    Timer {
        /// Queue pair.
        qpn: u32,
    },
}

/// A breach of the hardware's rules that real devices would punish without a word.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// The send record moved, but the register was not written.
    #[error("queue pair {qpn:#x}: send record {record} published without a doorbell (last rung: {rung})")]
    NoDoorbell {
        /// Queue pair.
        qpn: u32,
        /// The record.
        record: u16,
        /// The record at the last doorbell.
        rung: u16,
    },
    /// The doorbell's queue-pair number is not one of the page's.
    #[error("doorbell names queue pair {qpn:#x}, which has no register on that page")]
    DoorbellQueuePair {
        /// As written.
        qpn: u32,
    },
    /// The doorbell's index is not that of the last request.
    #[error("queue pair {qpn:#x}: doorbell names request {index}, but the record says {record}")]
    DoorbellIndex {
        /// Queue pair.
        qpn: u32,
        /// As written.
        index: u16,
        /// The record.
        record: u16,
    },
    /// The bytes copied into the register are not those in the ring.
    #[error("queue pair {qpn:#x}: BlueFlame copy of request {index} differs from the ring")]
    BlueFlame {
        /// Queue pair.
        qpn: u32,
        /// Request.
        index: u16,
    },
    /// A request was changed after its doorbell.
    #[error("queue pair {qpn:#x}: request {index} changed after its doorbell")]
    Changed {
        /// Queue pair.
        qpn: u32,
        /// Request.
        index: u16,
    },
    /// More was posted than the ring holds.
    #[error("queue pair {qpn:#x}: record {record} is more than {depth} entries ahead of {done}")]
    Overfull {
        /// Queue pair.
        qpn: u32,
        /// The record.
        record: u16,
        /// What the device has finished.
        done: u16,
        /// The ring's length.
        depth: u32,
    },
    /// A completion queue's consumer record is ahead of the device.
    #[error("completion queue {cqn}: consumer record {consumer} runs ahead of producer {producer}")]
    ConsumerAhead {
        /// Completion queue.
        cqn: u32,
        /// As written (24 bits).
        consumer: u32,
        /// The device's (24 bits).
        producer: u32,
    },
}

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
    events: Vec<Event>,
    breaches: Vec<Breach>,
}

impl Trace {
    /// Keeps an event.
    pub fn event(&mut self, event: Event) {
        if self.recording {
            self.events.push(event);
        }
    }

    /// Keeps a breach, once.
    pub fn breach(&mut self, breach: Breach) {
        if self.strict && !self.breaches.contains(&breach) {
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
}
