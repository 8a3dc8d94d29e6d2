//! The open traits of a provider and its domains; the queue pair's is in `queue_pair.rs`. This is what
//! an out-of-tree provider implements, and all of it.
#![allow(unsafe_code)]
//! # Safety
//! This file declares unsafe functions and calls none.

use crate::{
    caps::Caps,
    config::IbvConfig,
    core::QpCore,
    device::IbvDeviceInfo,
    error::{Error, ErrorKind, PollCompletionError},
    event::EventSource,
    memory::{Access, Registration},
    queue_pair::IbvQueuePair,
    wc::IbvWc,
};
use std::{fmt, os::fd::BorrowedFd, ptr::NonNull};

/// A provider's answer to "is this device yours?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Yes, and why.
    Yes(String),
    /// No, and why not.
    No(String),
}

/// A way to reach devices: a vendor's library, a kernel interface, a mock.
pub trait Provider: fmt::Debug + Send + Sync + 'static {
    /// What it opens devices as.
    type Domain: IbvDomainImpl;

    /// Its name, as people select it: `mlx5`, `efa`, `verbs`, `mock`.
    fn name(&self) -> &'static str;

    /// The devices it can see, its own or not. `Ok` of nothing says "no device here"; `Err` says "could
    /// not look", such as a missing library.
    fn devices(&self) -> Result<Vec<IbvDeviceInfo>, Error>;

    /// Whether `device`, one of those it sees, is its to drive. Asked of each device by itself: a host
    /// may have two kinds.
    fn claim(&self, device: &IbvDeviceInfo) -> Claim {
        Claim::Yes(format!("every device that {} lists is its own", self.name())).filter_listed(self, device)
    }

    /// Opens a device that it claims.
    fn open(&self, device: &IbvDeviceInfo) -> Result<Self::Domain, Error>;
}

impl Claim {
    fn filter_listed<P: Provider + ?Sized>(self, provider: &P, device: &IbvDeviceInfo) -> Self {
        match provider.devices() {
            Ok(list) if list.iter().any(|d| d.name == device.name) => self,
            Ok(_) => Self::No(format!("{} does not see a device of that name", provider.name())),
            Err(e) => Self::No(e.to_string()),
        }
    }
}

/// What a completion queue is created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CqConfig {
    /// Entries; at least 1 and at most `Caps::max_cqe`.
    pub depth: u32,
    /// Whether the queue has a completion channel, so that it can be armed and waited for.
    pub channel: bool,
}

/// A protection domain and what can be made in it. Core keeps it alive until the last queue, queue
/// pair and region is gone.
pub trait IbvDomainImpl: fmt::Debug + Send + Sync + Sized + 'static {
    /// The shared half of a completion queue: what a queue pair needs to report to it.
    type Cq: fmt::Debug + Send + Sync + 'static;
    /// The exclusive half: the consumer index. Core drops it before its `Cq`.
    type Poller: CompletionQueue;
    /// Its queue pairs.
    type QueuePair: IbvQueuePair;
    /// Its registrations.
    type Registration: Registration;

    /// What the domain can do. Constant while it lives, and true: the suite checks it both ways.
    fn caps(&self) -> Caps;

    /// Creates a completion queue. Core has checked `config` against `caps`; a channel is asked for only
    /// where `caps` offers one.
    fn create_cq(&self, config: &CqConfig) -> Result<(Self::Cq, Self::Poller), Error>;

    /// Creates a queue pair in RESET. Core has checked and completed `config`: `psn` and `qkey` are set.
    /// `core` goes into the result as its *last* field (the device object must be gone before it drops);
    /// it keeps both queues and the domain alive.
    ///
    /// # Behavior
    /// - The send queue holds `config.max_send_wr` requests of the largest size `caps` admits.
    /// - Once the queue pair has dropped, no further completion of it is written.
    /// - On `Err` nothing is left behind.
    ///
    /// # Safety
    /// Both queues are of this domain.
    unsafe fn create_queue_pair(
        &self,
        config: &IbvConfig,
        send_cq: &Self::Cq,
        recv_cq: &Self::Cq,
        core: QpCore,
    ) -> Result<Self::QueuePair, Error>;

    /// Registers host memory for `access` (a contradiction was refused by core).
    ///
    /// # Behavior
    /// The keys cover all of `mem` or the call fails: a device that would truncate is an error.
    ///
    /// # Safety
    /// `mem` stays valid, and nobody but the device and its region accesses it, until `deregister`
    /// succeeds. The keys cover `mem` and nothing else (so never an implicit on-demand region).
    unsafe fn register(&self, mem: NonNull<[u8]>, access: Access) -> Result<Self::Registration, Error>;

    /// Registers `len` bytes of a dma-buf from `offset` on, addressed from `iova`.
    ///
    /// # Safety
    /// Nobody forms a reference into the buffer while it is registered.
    unsafe fn register_dmabuf(
        &self,
        _fd: BorrowedFd<'_>,
        _offset: u64,
        _len: usize,
        _iova: u64,
        _access: Access,
    ) -> Result<Self::Registration, Error> {
        Err(Error::new(ErrorKind::Unsupported, "reg_dmabuf_mr", "this provider does not register dma-bufs"))
    }

    /// Subscribes to asynchronous events. Events from before the call may be lost.
    fn events(&self) -> Result<Box<dyn EventSource>, Error> {
        Err(Error::new(ErrorKind::Unsupported, "get_async_event", "this provider reports no events"))
    }
}

/// What [`CompletionQueue::glance`] saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glance {
    /// A completion, which it took.
    Completion,
    /// Likewise, of a kind that comes in no order.
    Unordered,
    /// Likewise, and of whichever kind it is no success.
    Failure,
    /// That the queue is empty.
    Nothing,
    /// Too little: it changed nothing, and `poll` will tell.
    Unclear,
}

/// The consuming end of a completion queue. There is one, and `&mut` keeps it so.
pub trait CompletionQueue: fmt::Debug + Send + 'static {
    /// Fills `out` from the front and returns how many were written; fewer than asked for means the
    /// queue was seen empty. A completion is written after the data it stands for: whoever has polled
    /// it may read them.
    fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError>;

    /// `poll` of one where a glance is enough, for a provider whose device writes completions into memory.
    /// Small, and inlined into callers: whatever is not the common case is [`Glance::Unclear`], and `poll`
    /// is asked.
    #[inline]
    fn glance(&mut self, _wc: &mut IbvWc) -> Glance {
        Glance::Unclear
    }

    /// Whether a glance tells that `poll` would find nothing, not even an error; `false` where it does not.
    #[inline]
    fn is_idle(&self) -> bool {
        false
    }

    /// Asks for one event at the channel when the next completion arrives (with `solicited_only`, the
    /// next solicited one or error). A completion that was already there raises none: poll once more
    /// after arming, then wait.
    fn arm(&mut self, _solicited_only: bool) -> Result<(), PollCompletionError> {
        Err(PollCompletionError::NoChannel)
    }

    /// The channel's descriptor, readable while an event waits; `None` without a channel.
    fn channel(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Takes all waiting events off the channel and returns their number. Never blocks.
    fn take_events(&mut self) -> Result<u32, PollCompletionError> {
        Err(PollCompletionError::NoChannel)
    }
}

impl CompletionQueue for Box<dyn CompletionQueue> {
    #[inline]
    fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        (**self).poll(out)
    }
    #[inline]
    fn glance(&mut self, wc: &mut IbvWc) -> Glance {
        (**self).glance(wc)
    }
    #[inline]
    fn is_idle(&self) -> bool {
        (**self).is_idle()
    }
    fn arm(&mut self, solicited_only: bool) -> Result<(), PollCompletionError> {
        (**self).arm(solicited_only)
    }
    fn channel(&self) -> Option<BorrowedFd<'_>> {
        (**self).channel()
    }
    fn take_events(&mut self) -> Result<u32, PollCompletionError> {
        (**self).take_events()
    }
}
