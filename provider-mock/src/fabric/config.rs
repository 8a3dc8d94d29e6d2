//! What a fabric is made with.

use crate::schedule::Schedule;
use ibv_core::{Caps, Support};
use std::time::Duration;

/// The longest message of any transport here, bytes (IB specification vol. 1, 9.7).
const LARGEST: usize = 1 << 31;

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Drive {
    /// Only [`Fabric::step`](crate::Fabric::step) and [`Fabric::run`](crate::Fabric::run), and the clock
    /// moves only with them and [`Fabric::advance`](crate::Fabric::advance).
    Manual,
    /// Each poll, before it looks; and each ring while a queue is armed, so that a sleeper wakes. A poll
    /// that finds nothing moves the clock by `FabricConfig::poll_tick`, so that whoever polls and waits
    /// sees time-outs; whoever sleeps for one needs [`Thread`](Self::Thread).
    #[default]
    OnPoll,
    /// A thread of the fabric's own, which sleeps while there is nothing to do. The clock is the host's.
    Thread,
}

/// How a fabric behaves and what its devices offer. `Default` is an ordered fabric of two devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// In which order requests take effect and complete.
    pub schedule: Schedule,
    /// Who moves the bytes.
    pub drive: Drive,
    /// Devices: `mock0`, `mock1`, … At least 1, at most 256. Default 2.
    pub devices: u32,
    /// Largest put or get in one work request, bytes; at most 2^31, as the specification has it. Default
    /// 1 MiB.
    pub max_msg_size: usize,
    /// Largest send, bytes; at most 2^31. Default 64 KiB.
    pub max_send_size: usize,
    /// Ranges in one request or receive. Default 4.
    pub max_sge: u32,
    /// Inline bytes in one request. Default 64.
    pub max_inline: u32,
    /// Requests in one work queue. Default 4096.
    pub max_wr: u32,
    /// Entries in one completion queue. Default 65536.
    pub max_cqe: u32,
    /// Requests behind one doorbell; a longer batch rings more often. 0 is no limit. Default 0.
    pub max_batch: u32,
    /// Largest region, bytes. Default 2^40.
    pub max_mr_size: u64,
    /// Gets and atomics outstanding between two queue pairs. Default 16.
    pub max_rd_atomic: u8,
    /// Whether a device reaches itself. Where not, such messages are lost, as they are on hardware that
    /// can not: counted as drops, retried, and failed. Default true.
    pub loopback: bool,
    /// Whether there are atomics. Default native.
    pub atomics: Support,
    /// Whether there are puts. Default native.
    pub write: Support,
    /// Whether there are gets. Default native.
    pub read: Support,
    /// Whether there are messages, with immediates or without. Default native.
    pub send: Support,
    /// Whether puts carry immediates, where there are puts. Default native.
    pub write_with_imm: Support,
    /// Virtual time that an empty poll takes with [`Drive::OnPoll`]. Default 1 µs.
    pub poll_tick: Duration,
    /// Events that [`Fabric::trace`](crate::Fabric::trace) remembers; the oldest go first. Default 4096.
    pub trace: usize,
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self {
            schedule: Schedule::InOrder,
            drive: Drive::OnPoll,
            devices: 2,
            max_msg_size: 1 << 20,
            max_send_size: 64 << 10,
            max_sge: 4,
            max_inline: 64,
            max_wr: 4096,
            max_cqe: 1 << 16,
            max_batch: 0,
            max_mr_size: 1 << 40,
            max_rd_atomic: 16,
            loopback: true,
            atomics: Support::Native,
            write: Support::Native,
            read: Support::Native,
            send: Support::Native,
            write_with_imm: Support::Native,
            poll_tick: Duration::from_micros(1),
            trace: 4096,
        }
    }
}

impl FabricConfig {
    pub(crate) fn ordered(&self) -> bool {
        self.schedule == Schedule::InOrder
    }

    pub(crate) fn caps(&self) -> Caps {
        let (native, ordered) = (Support::Native, self.ordered());
        let mut caps = Caps::default();
        (caps.write, caps.read, caps.send, caps.send_with_imm) =
            (self.write, self.read, self.send, self.send);
        let with_imm = if self.write.present() { self.write_with_imm } else { Support::Absent };
        (caps.write_with_imm, caps.atomics, caps.fence) = (with_imm, self.atomics, native);
        (caps.cq_channel, caps.solicited, caps.events) = (native, true, native);
        caps.completions_in_order = ordered;
        caps.messages_in_order = ordered;
        caps.bytes_in_order = ordered;
        (caps.loopback, caps.rnr_retry) = (self.loopback, true);
        (caps.max_msg_size, caps.max_send_size) =
            (self.max_msg_size.min(LARGEST), self.max_send_size.min(LARGEST));
        (caps.max_send_sge, caps.max_recv_sge) = (self.max_sge, self.max_sge);
        caps.max_inline = self.max_inline;
        (caps.max_send_wr, caps.max_recv_wr, caps.max_cqe) = (self.max_wr, self.max_wr, self.max_cqe);
        (caps.max_batch, caps.max_mr_size) = (self.max_batch, self.max_mr_size);
        caps.max_rd_atomic = self.max_rd_atomic;
        caps
    }
}
