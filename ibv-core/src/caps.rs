//! What a domain can do, as data: the conformance suite chooses its cases by it, tools print it, core
//! checks requests against it. How a provider finds out is the provider's.

use std::fmt;

/// How a device does an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Support {
    /// The device does it.
    Native,
    /// Software above the device does it, with what that costs.
    Emulated,
    /// Nobody does: the request is refused with `Unsupported`.
    #[default]
    Absent,
}

impl Support {
    /// Whether the operation can be used at all.
    #[inline]
    pub const fn present(self) -> bool {
        !matches!(self, Self::Absent)
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Emulated => "emulated",
            Self::Absent => "absent",
        })
    }
}

/// What a domain can do. A provider starts from `Caps::default()` (nothing) and sets what is true.
///
/// Three ordering facts are kept apart, because devices differ in each. All are about one queue pair:
/// - `completions_in_order`: requests complete in posting order, so a completion stands for all earlier
///   ones and requests may be unsignaled;
/// - `messages_in_order`: the effects of a request are visible to the peer no later than those of the
///   requests posted after it (a put, then an immediate that announces it);
/// - `bytes_in_order`: the bytes of one message become visible in ascending order (so the last byte may
///   be polled).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Caps {
    /// `put`: RDMA write.
    pub write: Support,
    /// `get`: RDMA read.
    pub read: Support,
    /// `put_with_imm`: RDMA write with immediate.
    pub write_with_imm: Support,
    /// Two-sided send and receive.
    pub send: Support,
    /// Send with immediate.
    pub send_with_imm: Support,
    /// Fetch-and-add and compare-and-swap, on 8 aligned bytes in the host's byte order.
    pub atomics: Support,
    /// `fence`: a request waits until all earlier gets and atomics of its queue pair are done.
    pub fence: Support,
    /// Registration of a dma-buf.
    pub dmabuf: Support,
    /// Completion channels: a queue can be armed and waited for.
    pub cq_channel: Support,
    /// A queue can be armed for solicited completions only, and a request can raise one; without it both
    /// are refused with `Unsupported`.
    pub solicited: bool,
    /// Asynchronous events of device, port and queue pair.
    pub events: Support,
    /// Relaxed ordering of a region's writes, where asked for.
    pub relaxed_ordering: Support,
    /// See above.
    pub completions_in_order: bool,
    /// See above.
    pub messages_in_order: bool,
    /// See above.
    pub bytes_in_order: bool,
    /// A queue pair can reach one of the same device.
    pub loopback: bool,
    /// `IbvConfig::rnr_retry` is honoured: a peer without a receive ends in an error, not in silence.
    pub rnr_retry: bool,
    /// Largest put, get or atomic in one work request, bytes; anything larger is split.
    pub max_msg_size: usize,
    /// Largest send, bytes; sends are never split.
    pub max_send_size: usize,
    /// Ranges in one put, get or send.
    pub max_send_sge: u32,
    /// Ranges in one receive.
    pub max_recv_sge: u32,
    /// Bytes that can travel inside a work request.
    pub max_inline: u32,
    /// Work requests in one send queue.
    pub max_send_wr: u32,
    /// Work requests in one receive queue.
    pub max_recv_wr: u32,
    /// Entries in one completion queue.
    pub max_cqe: u32,
    /// Work requests between two doorbells; a longer batch rings more than once. 0 is no limit.
    pub max_batch: u32,
    /// Largest region, bytes.
    pub max_mr_size: u64,
    /// Gets and atomics that one queue pair may have outstanding at its peer; more of them wait.
    pub max_rd_atomic: u8,
}

impl Caps {
    /// Every capability as a name and its value in words, in a fixed order; for tables.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let yes = |b: bool| if b { "yes" } else { "no" }.to_owned();
        vec![
            ("write", self.write.to_string()),
            ("read", self.read.to_string()),
            ("write_with_imm", self.write_with_imm.to_string()),
            ("send", self.send.to_string()),
            ("send_with_imm", self.send_with_imm.to_string()),
            ("atomics", self.atomics.to_string()),
            ("fence", self.fence.to_string()),
            ("dmabuf", self.dmabuf.to_string()),
            ("cq_channel", self.cq_channel.to_string()),
            ("solicited", yes(self.solicited)),
            ("events", self.events.to_string()),
            ("relaxed_ordering", self.relaxed_ordering.to_string()),
            ("completions_in_order", yes(self.completions_in_order)),
            ("messages_in_order", yes(self.messages_in_order)),
            ("bytes_in_order", yes(self.bytes_in_order)),
            ("loopback", yes(self.loopback)),
            ("rnr_retry", yes(self.rnr_retry)),
            ("max_msg_size", self.max_msg_size.to_string()),
            ("max_send_size", self.max_send_size.to_string()),
            ("max_send_sge", self.max_send_sge.to_string()),
            ("max_recv_sge", self.max_recv_sge.to_string()),
            ("max_inline", self.max_inline.to_string()),
            ("max_send_wr", self.max_send_wr.to_string()),
            ("max_recv_wr", self.max_recv_wr.to_string()),
            ("max_cqe", self.max_cqe.to_string()),
            ("max_batch", self.max_batch.to_string()),
            ("max_mr_size", self.max_mr_size.to_string()),
            ("max_rd_atomic", self.max_rd_atomic.to_string()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_name_every_field_once() {
        let rows = Caps::default().rows();
        let debug = format!("{:#?}", Caps::default());
        let fields = debug.lines().filter(|l| l.contains(": ")).count();
        assert_eq!(rows.len(), fields, "a field of Caps is missing from rows()");
        for (name, _) in &rows {
            assert!(debug.contains(&format!("    {name}: ")), "{name}");
        }
    }
}
