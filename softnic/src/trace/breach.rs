//! What strict mode reports. Who looks for it is in the devices.

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
    /// A doorbell covered more than the device takes at once (EFA, where doorbells are counted).
    #[error("queue pair {qpn:#x}: a doorbell for {requests} requests; the device takes {most} at once")]
    Batch {
        /// Queue pair.
        qpn: u32,
        /// What it covered.
        requests: u16,
        /// What it may cover.
        most: u32,
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
