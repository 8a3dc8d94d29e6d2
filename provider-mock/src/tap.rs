//! A hook on the wire: sees every request before it starts and every completion before it is written,
//! and may keep, change, drop, repeat or delay it. Where the faults' vocabulary ends, a tap begins.

use crate::model::Range;
use ibv_core::{IbvRemoteMemoryRegionView, IbvWc, Op};
use std::{fmt, time::Duration};

/// What becomes of what a tap has seen, and perhaps changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It goes on.
    #[default]
    Keep,
    /// It vanishes: a request has no effect and no completion, and those behind it go on.
    Drop,
    /// It happens twice: a request takes effect again (gets aside) but reports once; a completion is
    /// written twice.
    Repeat,
    /// It happens so much later on the fabric's clock.
    Delay(Duration),
}

/// A request about to start. What a tap writes into it is what happens.
#[derive(Debug)]
#[non_exhaustive]
pub struct TapRequest<'a> {
    /// The requester's device, `mock{device}`.
    pub device: u16,
    /// The requester's queue pair.
    pub qp_num: u32,
    /// What its completion will carry.
    pub id: u64,
    /// What it does.
    pub op: Op,
    /// Whether success is reported.
    pub signaled: bool,
    /// Whether it waited for earlier gets and atomics; changing it is too late.
    pub fence: bool,
    /// Whether it raises a solicited event at the peer.
    pub solicited: bool,
    /// The remote side; its length follows the local one.
    pub remote: IbvRemoteMemoryRegionView,
    /// The local side, range by range.
    pub local: &'a mut [Range],
    /// The inline bytes, of a request that has them instead.
    pub inline: &'a mut [u8],
}

/// An observer on a fabric, set by [`Fabric::set_tap`](crate::Fabric::set_tap).
///
/// It is called with the fabric locked: it must not call the fabric, nor anything made on it. On an
/// ordered fabric it sees each queue pair's requests in posting order.
pub trait Tap: fmt::Debug + Send {
    /// Once for every request, before its first try.
    fn request(&mut self, _request: &mut TapRequest<'_>) -> Verdict {
        Verdict::Keep
    }

    /// Once for every completion, flushes and receives included; on the device `mock{device}`.
    fn completion(&mut self, _device: u16, _wc: &mut IbvWc) -> Verdict {
        Verdict::Keep
    }
}
