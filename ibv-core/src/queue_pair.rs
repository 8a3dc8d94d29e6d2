//! The open trait of a queue pair: the provider's tier, and on top of it the seeds' tier, provided once
//! for all. The safe handle that most callers want is in `handle.rs`.
#![allow(unsafe_code)]
//! # Safety
//! `new` is unsafe by contract and checks that contract itself before it relies on it.

use crate::{
    config::IbvConfig,
    core::{FromCore, QpCore},
    cq::IbvCq,
    domain::IbvDomain,
    endpoint::{IbvPath, IbvQpInfo, negotiate},
    error::{Error, ErrorKind, PollCompletionError, PostError, WorkRequestError},
    memory::{IbvMemoryRegionView, IbvRemoteMemoryRegionView},
    post,
    provider::IbvDomainImpl,
    trace::step,
    wc::{IbvWc, PollTarget},
    wr::{RecvRequest, Request, WorkRequest},
};
use std::{any::Any, fmt, slice, sync::Arc};

/// `enum ibv_qp_state` (libibverbs/verbs.h), as the device numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(transparent)]
pub struct QpState(pub u32);

impl QpState {
    /// Created.
    pub const RESET: Self = Self(0);
    /// Takes receives.
    pub const INIT: Self = Self(1);
    /// Ready to receive.
    pub const RTR: Self = Self(2);
    /// Ready to send.
    pub const RTS: Self = Self(3);
    /// Send queue draining.
    pub const SQD: Self = Self(4);
    /// Send queue error; the receive side lives.
    pub const SQE: Self = Self(5);
    /// Failed or closing: everything flushes.
    pub const ERR: Self = Self(6);

    /// The field's name for it.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
        NAMES.get(self.0 as usize).copied().unwrap_or("unknown")
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

/// What the device says about a queue pair: `ibv_query_qp`. Every attribute of the configuration that
/// the device was given can be read back here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttributes {
    /// Its state.
    pub state: QpState,
    /// The configuration in force.
    pub config: IbvConfig,
    /// The peer's queue pair, once connected.
    pub dest_qp_num: Option<u32>,
    /// The peer's first packet sequence number, once connected.
    pub rq_psn: Option<u32>,
}

impl QpAttributes {
    /// For providers.
    pub fn new(state: QpState, config: IbvConfig) -> Self {
        Self { state, config, dest_qp_num: None, rq_psn: None }
    }
}

/// A queue pair. `Box<dyn IbvQueuePair>` is one too, `new` included.
///
/// The required methods are the provider's tier, driven by [`Batch`](crate::handle::Batch). Those that
/// could upset ids and credits take a [`FromCore`] or a [`WorkRequest`], which only core can make: so a
/// provider need check nothing twice, and a queue pair in the hands of safe code does no harm. The
/// provided methods are the seeds' tier and need no batch.
pub trait IbvQueuePair: Any + fmt::Debug + Send {
    /// Creates a queue pair in RESET that reports to `send_cq` and `recv_cq`, and keeps both alive.
    ///
    /// # Errors
    /// `InvalidConfig` with the field and both numbers, `ForeignHandle` for a queue of another domain,
    /// `OutOfResources` where a completion queue has no room left for this one's depth.
    ///
    /// # Safety
    /// Both queues were created on `domain`. (This default checks it; one that overrides it need not.)
    unsafe fn new<I: IbvDomainImpl<QueuePair = Self>>(
        domain: &IbvDomain<I>,
        config: IbvConfig,
        send_cq: Arc<IbvCq<I>>,
        recv_cq: Arc<IbvCq<I>>,
    ) -> Result<Self, Error>
    where
        Self: Sized,
    {
        let core = QpCore::new(domain, config, &send_cq, &recv_cq)?;
        let config = core.config().clone();
        // SAFETY: `QpCore::new` checked the domain of both queues.
        unsafe { domain.imp().create_queue_pair(&config, send_cq.imp(), recv_cq.imp(), core) }
    }

    /// Core's share of the queue pair.
    fn core(&self) -> &QpCore;

    /// The same, to change.
    fn core_mut(&mut self, by: FromCore) -> &mut QpCore;

    /// What a peer needs in order to connect. Callable in every state, and stable.
    fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error>;

    /// RESET → INIT → RTR → RTS along a negotiated path. Core calls it at most once with success, and again
    /// after [`to_reset`](Self::to_reset).
    ///
    /// # Errors
    /// Names the transition that failed. The queue pair may be used no further then, but dropped.
    fn establish(&mut self, path: &IbvPath, by: FromCore) -> Result<(), Error>;

    /// Asks the device for the state.
    fn state(&mut self) -> Result<QpState, Error>;

    /// Asks the device for everything it knows about the queue pair.
    fn attributes(&mut self) -> Result<QpAttributes, Error> {
        Err(Error::new(ErrorKind::Unsupported, "query_qp", "this provider reports the state only"))
    }

    /// Moves to ERR: what is in flight flushes, and everything posted later does too.
    fn enter_error(&mut self) -> Result<(), Error>;

    /// Whether [`to_reset`](Self::to_reset) works.
    fn can_reset(&self) -> bool {
        false
    }

    /// ERR → RESET, as after creation: to be established again. Core calls it when nothing is in flight, and
    /// no completion of the queue pair is left in its queues.
    ///
    /// # Errors
    /// `Unsupported` where [`can_reset`](Self::can_reset) says so; else the device's.
    fn to_reset(&mut self, _by: FromCore) -> Result<(), Error> {
        Err(Error::new(ErrorKind::Unsupported, "modify_qp", "this provider does not reset queue pairs"))
    }

    /// Builds one work request; the device can not see it until [`Self::ring_doorbell`]. On `Err`
    /// nothing was built.
    fn enqueue(&mut self, wr: &WorkRequest<'_>) -> Result<(), PostError>;

    /// Publishes everything enqueued, with the fewest device writes the provider allows. On `Err`
    /// nothing was published.
    fn ring_doorbell(&mut self, by: FromCore) -> Result<(), PostError>;

    /// `enqueue` and `ring_doorbell` of one request, with nothing enqueued before it: for a provider that has a
    /// shorter way. On `Err` nothing was published, and nothing is left enqueued.
    #[inline(always)]
    fn post_single(&mut self, wr: &WorkRequest<'_>, by: FromCore) -> Result<(), PostError> {
        self.enqueue(wr)?;
        let done = self.ring_doorbell(by);
        if done.is_err() {
            self.discard(FromCore(()));
        }
        done
    }

    /// Forgets everything enqueued since the last ring.
    fn discard(&mut self, by: FromCore);

    /// Posts one receive, visible to the device on return; before the queue pair is connected, from
    /// then on.
    fn enqueue_recv(&mut self, _wr: &RecvRequest<'_>) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    /// Connects to `info`: RESET → INIT → RTR → RTS.
    ///
    /// # Errors
    /// `Incompatible` with both ends' values where they can not agree, and the queue pair is still in
    /// RESET; `InvalidState` where it is connected already; else the transition that failed.
    fn connect(&mut self, info: &IbvQpInfo) -> Result<(), Error> {
        let done = try_connect(self, info);
        step("connect", format_args!("to queue pair {:#x}", info.qp_num), done.as_ref().err());
        done
    }

    /// Largest transfer issued as one work request, bytes; `put` and `get` split anything larger into
    /// that many.
    fn max_msg_size(&self) -> usize {
        self.core().limits().max_msg_size
    }

    /// Writes all of `local_src` to the front of `remote_dst`, now. One id for each work request, at
    /// least one: zero bytes are one request.
    ///
    /// # Errors
    /// `Post`, with both sizes or the queue's numbers. Nothing was posted.
    fn put(
        &mut self,
        remote_dst: IbvRemoteMemoryRegionView,
        local_src: IbvMemoryRegionView<'_>,
    ) -> Result<Vec<u64>, Error> {
        post::now(self, "put", &Request::put(remote_dst, slice::from_ref(&local_src)))
    }

    /// Reads all of `remote_src` into the front of `local_dst`, now.
    ///
    /// # Errors
    /// As `put`.
    fn get(
        &mut self,
        local_dst: IbvMemoryRegionView<'_>,
        remote_src: IbvRemoteMemoryRegionView,
    ) -> Result<Vec<u64>, Error> {
        post::now(self, "get", &Request::get(slice::from_ref(&local_dst), remote_src))
    }

    /// Takes one completion from `target`'s queue. The first call claims the queue's poller, which
    /// fails where another queue pair reports there or somebody else polls it.
    ///
    /// # Errors
    /// The outer error says that the queue can not be polled; the inner one that a request failed.
    fn poll_completion(
        &mut self,
        target: PollTarget,
    ) -> Result<Option<Result<IbvWc, WorkRequestError>>, PollCompletionError> {
        let mut wc = [IbvWc::default()];
        let n = self.core_mut(FromCore(())).sole_poller(target)?.poll(&mut wc)?;
        Ok((n == 1).then(|| wc[0].result().copied()))
    }
}

/// A queue pair that reaches more peers than the one it connected to: each request says whom. Requests
/// that say nothing go to the peer of `connect`.
///
/// Callers use [`Connected::add_peer`](crate::Connected::add_peer) and what goes with it.
pub trait IbvDatagram: IbvQueuePair {
    /// Makes the peer at the end of a negotiated path reachable; its number. The peer of `connect` is 0. It
    /// stays reachable as long as the queue pair lives.
    ///
    /// # Errors
    /// The device's; nothing changed.
    fn reach(&mut self, path: &IbvPath, by: FromCore) -> Result<u32, Error>;

    /// Requests enqueued from now on go to this peer, until the next call; `discard` leads back to peer 0.
    fn aim(&mut self, peer: u32, by: FromCore);
}

fn try_connect<Q: IbvQueuePair + ?Sized>(qp: &mut Q, info: &IbvQpInfo) -> Result<(), Error> {
    qp.core().check_unconnected()?;
    let path = negotiate(&qp.get_qp_info()?, info)?;
    qp.establish(&path, FromCore(()))?;
    qp.core_mut(FromCore(())).connected(&path);
    Ok(())
}

impl IbvQueuePair for Box<dyn IbvQueuePair> {
    #[inline]
    fn core(&self) -> &QpCore {
        (**self).core()
    }
    #[inline]
    fn core_mut(&mut self, by: FromCore) -> &mut QpCore {
        (**self).core_mut(by)
    }
    fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error> {
        (**self).get_qp_info()
    }
    fn establish(&mut self, path: &IbvPath, by: FromCore) -> Result<(), Error> {
        (**self).establish(path, by)
    }
    fn state(&mut self) -> Result<QpState, Error> {
        (**self).state()
    }
    fn attributes(&mut self) -> Result<QpAttributes, Error> {
        (**self).attributes()
    }
    fn enter_error(&mut self) -> Result<(), Error> {
        (**self).enter_error()
    }
    fn can_reset(&self) -> bool {
        (**self).can_reset()
    }
    fn to_reset(&mut self, by: FromCore) -> Result<(), Error> {
        (**self).to_reset(by)
    }
    #[inline]
    fn enqueue(&mut self, wr: &WorkRequest<'_>) -> Result<(), PostError> {
        (**self).enqueue(wr)
    }
    #[inline]
    fn ring_doorbell(&mut self, by: FromCore) -> Result<(), PostError> {
        (**self).ring_doorbell(by)
    }
    #[inline]
    fn post_single(&mut self, wr: &WorkRequest<'_>, by: FromCore) -> Result<(), PostError> {
        (**self).post_single(wr, by)
    }
    fn discard(&mut self, by: FromCore) {
        (**self).discard(by);
    }
    fn enqueue_recv(&mut self, wr: &RecvRequest<'_>) -> Result<(), PostError> {
        (**self).enqueue_recv(wr)
    }
    fn connect(&mut self, info: &IbvQpInfo) -> Result<(), Error> {
        (**self).connect(info)
    }
    fn max_msg_size(&self) -> usize {
        (**self).max_msg_size()
    }
    fn put(
        &mut self,
        remote_dst: IbvRemoteMemoryRegionView,
        local_src: IbvMemoryRegionView<'_>,
    ) -> Result<Vec<u64>, Error> {
        (**self).put(remote_dst, local_src)
    }
    fn get(
        &mut self,
        local_dst: IbvMemoryRegionView<'_>,
        remote_src: IbvRemoteMemoryRegionView,
    ) -> Result<Vec<u64>, Error> {
        (**self).get(local_dst, remote_src)
    }
    fn poll_completion(
        &mut self,
        target: PollTarget,
    ) -> Result<Option<Result<IbvWc, WorkRequestError>>, PollCompletionError> {
        (**self).poll_completion(target)
    }
}
