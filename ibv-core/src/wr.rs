//! Work requests: what callers ask for, and what providers build. Completions are in `wc.rs`, the checks
//! between the two in `post.rs`.

use crate::{
    error::PostError,
    memory::{IbvMemoryRegionView, IbvRemoteMemoryRegionView},
};

/// What a send-queue request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Put: local to remote.
    Write,
    /// Put, and hand the peer this immediate in one of its receives.
    WriteWithImm(u32),
    /// Get: remote to local.
    Read,
    /// Into one of the peer's receives.
    Send,
    /// Into one of the peer's receives, with this immediate.
    SendWithImm(u32),
    /// If the 8 remote bytes equal `compare`, replace them by `swap`; their old value comes back.
    CompareSwap {
        /// Expected value, in the host's byte order.
        compare: u64,
        /// Replacement, likewise.
        swap: u64,
    },
    /// Add to the 8 remote bytes, wrapping; their old value comes back.
    FetchAdd(u64),
}

impl Op {
    /// Whether bytes come back into local memory.
    #[inline]
    pub const fn fills_local(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap { .. } | Self::FetchAdd(_))
    }

    /// The immediate it carries.
    #[inline]
    pub const fn imm(self) -> Option<u32> {
        match self {
            Self::WriteWithImm(imm) | Self::SendWithImm(imm) => Some(imm),
            _ => None,
        }
    }
}

/// The local side: registered ranges, or bytes that are copied into the work queue when the request is
/// built and may change afterwards.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered ranges, gathered or scattered in order.
    Sges(&'a [IbvMemoryRegionView<'a>]),
    /// At most `IbvConfig::max_inline` bytes; for puts and sends.
    Inline(&'a [u8]),
}

/// What a caller asks for; a long put or get becomes several work requests.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until pushed into a batch"]
pub struct Request<'a> {
    pub(crate) op: Op,
    pub(crate) local: Payload<'a>,
    pub(crate) remote: IbvRemoteMemoryRegionView,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    pub(crate) solicited: bool,
}

impl<'a> Request<'a> {
    /// Any operation; the shorthands below cover the common ones. A send ignores `remote`.
    #[inline]
    pub const fn new(op: Op, remote: IbvRemoteMemoryRegionView, local: Payload<'a>) -> Self {
        Self { op, local, remote, signaled: true, fence: false, solicited: false }
    }

    /// Writes all of `src` to the front of `dst`.
    #[inline]
    pub const fn put(dst: IbvRemoteMemoryRegionView, src: &'a [IbvMemoryRegionView<'a>]) -> Self {
        Self::new(Op::Write, dst, Payload::Sges(src))
    }

    /// `put`, and an immediate that consumes one receive of the peer.
    #[inline]
    pub const fn put_with_imm(
        dst: IbvRemoteMemoryRegionView,
        src: &'a [IbvMemoryRegionView<'a>],
        imm: u32,
    ) -> Self {
        Self::new(Op::WriteWithImm(imm), dst, Payload::Sges(src))
    }

    /// Reads all of `src` into the front of `dst`.
    #[inline]
    pub const fn get(dst: &'a [IbvMemoryRegionView<'a>], src: IbvRemoteMemoryRegionView) -> Self {
        Self::new(Op::Read, src, Payload::Sges(dst))
    }

    /// Sends all of `src` into one receive of the peer.
    #[inline]
    pub const fn send(src: &'a [IbvMemoryRegionView<'a>]) -> Self {
        Self::new(Op::Send, IbvRemoteMemoryRegionView::NONE, Payload::Sges(src))
    }

    /// `send`, with an immediate.
    #[inline]
    pub const fn send_with_imm(src: &'a [IbvMemoryRegionView<'a>], imm: u32) -> Self {
        Self::new(Op::SendWithImm(imm), IbvRemoteMemoryRegionView::NONE, Payload::Sges(src))
    }

    /// Adds to the 8 aligned bytes at `target`; their old value goes to the 8 bytes of `old`.
    #[inline]
    pub const fn fetch_add(
        target: IbvRemoteMemoryRegionView,
        old: &'a [IbvMemoryRegionView<'a>],
        add: u64,
    ) -> Self {
        Self::new(Op::FetchAdd(add), target, Payload::Sges(old))
    }

    /// Replaces the 8 aligned bytes at `target` by `swap` if they equal `compare`; their old value goes
    /// to the 8 bytes of `old`.
    #[inline]
    pub const fn compare_swap(
        target: IbvRemoteMemoryRegionView,
        old: &'a [IbvMemoryRegionView<'a>],
        compare: u64,
        swap: u64,
    ) -> Self {
        Self::new(Op::CompareSwap { compare, swap }, target, Payload::Sges(old))
    }

    /// Asks for no completion on success. Its credit returns with the next signaled request's.
    #[inline]
    pub const fn unsignaled(self) -> Self {
        Self { signaled: false, ..self }
    }

    /// Waits, on the device, until all earlier gets and atomics of this queue pair are done.
    ///
    /// A put or send of bytes that an earlier get fetches is wrong without it: nothing else orders the
    /// get's arrival before the put's departure (IB specification vol. 1, 10.8.3.3).
    #[inline]
    pub const fn fenced(self) -> Self {
        Self { fence: true, ..self }
    }

    /// Raises a solicited event at the peer, if its queue is armed for those only. For sends and puts
    /// with immediate, where `Caps::solicited` is offered.
    #[inline]
    pub const fn solicited(self) -> Self {
        Self { solicited: true, ..self }
    }
}

/// One send-queue work request. Only core makes one, so what a provider may rely on is in the types
/// and here: at most `max_msg_size` (sends: `max_send_size`) bytes, `max_send_sge` ranges or
/// `max_inline` bytes, no empty range (a zero-byte request has none), remote at least as long as local,
/// only operations and flags that `Caps` offers, and a free slot in the queue. A provider that wraps
/// another may copy and change it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WorkRequest<'a> {
    /// To be reported in the completion.
    pub id: u64,
    /// What to do.
    pub op: Op,
    /// Whether success is reported; failure always is.
    pub signaled: bool,
    /// Whether to wait for earlier gets and atomics.
    pub fence: bool,
    /// Whether to raise a solicited event at the peer.
    pub solicited: bool,
    /// The local side.
    pub local: Payload<'a>,
    /// The remote side; meaningless for sends.
    pub remote: IbvRemoteMemoryRegionView,
}

/// One receive; the same promises.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RecvRequest<'a> {
    /// To be reported in the completion.
    pub id: u64,
    /// Where the bytes go; may be empty where only an immediate is expected.
    pub local: &'a [IbvMemoryRegionView<'a>],
}

/// Bits of a `wr_id` that count within one work queue; the bits above name the queue's route.
pub(crate) const SEQ_BITS: u32 = 48;
pub(crate) const SEQ_MASK: u64 = (1 << SEQ_BITS) - 1;

/// A run of consecutive work-request ids: the seeds' `Vec<u64>` without the allocation, into which it
/// turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "each id yields one completion"]
pub struct WrIds {
    /// The first id.
    pub first: u64,
    /// How many; at least 1.
    pub count: u32,
}

impl WrIds {
    /// The ids, in posting order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = u64> {
        (0..self.count).map(move |i| self.nth(i))
    }

    /// The id of the last request, whose completion stands for all where completions come in order.
    pub fn last(self) -> u64 {
        self.nth(self.count.saturating_sub(1))
    }

    /// The count wraps inside its own bits; 2^48 requests are a month at 100 million a second.
    fn nth(self, i: u32) -> u64 {
        self.first & !SEQ_MASK | self.first.wrapping_add(u64::from(i)) & SEQ_MASK
    }
}

impl From<WrIds> for Vec<u64> {
    fn from(ids: WrIds) -> Self {
        ids.iter().collect()
    }
}

/// Trims one range to a transfer; used where the local side of a `get` is longer than the remote.
#[inline]
pub(crate) fn trim(view: IbvMemoryRegionView<'_>, len: usize) -> Result<IbvMemoryRegionView<'_>, PostError> {
    view.slice(0, len).ok_or(PostError::OutOfBounds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_are_consecutive_and_never_leave_their_route(route in 0u64..1 << 16, seq in SEQ_MASK - 40..=SEQ_MASK, count in 1u32..100) {
            let ids = WrIds { first: route << SEQ_BITS | seq, count };
            let all = Vec::from(ids);
            prop_assert_eq!(all.len(), count as usize);
            prop_assert_eq!(*all.last().unwrap(), ids.last());
            for (i, id) in (0u64..).zip(&all) {
                prop_assert_eq!(id >> SEQ_BITS, route);
                prop_assert_eq!(id & SEQ_MASK, (seq + i) & SEQ_MASK);
            }
        }
    }
}
