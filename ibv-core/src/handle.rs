//! The safe handle: unconnected, connected, closing. One batch at a time. Checks are `post.rs`'s,
//! closing is `handle/closing.rs`'s.

use crate::{
    config::IbvConfig,
    endpoint::IbvQpInfo,
    error::{Error, PostError, WorkRequestError},
    memory::{IbvMemoryRegionView, IbvRemoteMemoryRegionView},
    post::{self, One},
    queue_pair::{IbvQueuePair, QpAttributes, QpState},
    wr::{Request, WrIds, trim},
};
use std::{mem::ManuallyDrop, slice};

mod closing;
mod peers;
#[cfg(feature = "recorder")]
mod record;
pub use closing::{Closed, Closing};
pub use peers::Peer;

/// A queue pair that has not met its peer. It can take receives and be connected.
#[derive(Debug)]
pub struct QueuePair<Q: IbvQueuePair>(pub(crate) Q);

/// A connected queue pair. The device may still move it to the error state at any time, which
/// completions report; the type records only what the caller controls.
#[derive(Debug)]
pub struct Connected<Q: IbvQueuePair>(Q);

impl<Q: IbvQueuePair> QueuePair<Q> {
    /// What a peer needs in order to connect.
    ///
    /// # Errors
    /// The device's.
    pub fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error> {
        self.0.get_qp_info()
    }

    /// Asks the device for the state.
    ///
    /// # Errors
    /// The device's.
    pub fn state(&mut self) -> Result<QpState, Error> {
        self.0.state()
    }

    /// The configuration in force.
    pub fn config(&self) -> &IbvConfig {
        self.0.core().config()
    }

    /// Posts one receive; its id. It counts from the moment the queue pair is connected.
    ///
    /// # Errors
    /// `TooManySge`, `QueueFull`, or the device's; nothing was posted.
    pub fn post_recv(&mut self, dst: &[IbvMemoryRegionView<'_>]) -> Result<u64, PostError> {
        post::recv(&mut self.0, dst)
    }

    /// Connects to `peer`. Both ends have to; receives that a peer may need at once are posted before.
    ///
    /// # Errors
    /// See [`IbvQueuePair::connect`]. The queue pair comes back, so the caller can inspect it, or retry
    /// with another endpoint after `Incompatible`.
    pub fn connect(mut self, peer: &IbvQpInfo) -> Result<Connected<Q>, (Self, Error)> {
        match self.0.connect(peer) {
            Ok(()) => Ok(Connected(self.0)),
            Err(e) => Err((self, e)),
        }
    }

    /// The queue pair itself, for code that is generic over the trait.
    pub fn queue_pair(&mut self) -> &mut Q {
        &mut self.0
    }
}

impl<Q: IbvQueuePair> Connected<Q> {
    /// Asks the device for the state.
    ///
    /// # Errors
    /// The device's.
    pub fn state(&mut self) -> Result<QpState, Error> {
        self.0.state()
    }

    /// Asks the device for everything it knows about the queue pair.
    ///
    /// # Errors
    /// `Unsupported` where the provider reports the state only; else the device's.
    pub fn attributes(&mut self) -> Result<QpAttributes, Error> {
        self.0.attributes()
    }

    /// The configuration in force, as negotiated.
    pub fn config(&self) -> &IbvConfig {
        self.0.core().config()
    }

    /// Largest transfer issued as one work request, bytes; anything larger is split.
    pub fn max_msg_size(&self) -> usize {
        self.0.max_msg_size()
    }

    /// Work requests that can be posted before a completion must be polled.
    pub fn free_slots(&self) -> u32 {
        self.0.core().send.free()
    }

    /// Receives that can be posted before a completion must be polled.
    pub fn free_recv_slots(&self) -> u32 {
        self.0.core().recv.free()
    }

    /// Work requests whose completion has not been polled, unsignaled ones included.
    pub fn in_flight(&self) -> u32 {
        self.0.core().send.in_flight()
    }

    /// The first failure that was not a mere flush: the root cause of all later ones.
    pub fn first_error(&self) -> Option<WorkRequestError> {
        self.0.core().first_error()
    }

    /// Opens a batch: build any number of requests, then ring once. Starts from nothing even if an
    /// earlier batch was leaked rather than dropped.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, Q> {
        post::discard(&mut self.0);
        Batch(&mut self.0)
    }

    /// Posts any request, now.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted.
    pub fn post(&mut self, req: &Request<'_>) -> Result<WrIds, PostError> {
        self.at_once(|batch| batch.push(req))
    }

    /// Publishes what `build` has built, if it could.
    #[inline]
    fn at_once(
        &mut self,
        build: impl FnOnce(&mut Batch<'_, Q>) -> Result<WrIds, PostError>,
    ) -> Result<WrIds, PostError> {
        let mut batch = self.batch();
        let ids = build(&mut batch)?;
        batch.ring().map(|()| ids)
    }

    /// Writes all of `src` to the front of `dst`, now.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted.
    // A small request is spared a call and a result in memory.
    #[inline(always)]
    pub fn put(
        &mut self,
        dst: IbvRemoteMemoryRegionView,
        src: IbvMemoryRegionView<'_>,
    ) -> Result<WrIds, PostError> {
        post::post_one(&mut self.0, One::Write, src, dst)
    }

    /// Reads all of `src` into the front of `dst`, now.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted.
    // A small request is spared a call and a result in memory.
    #[inline(always)]
    pub fn get(
        &mut self,
        dst: IbvMemoryRegionView<'_>,
        src: IbvRemoteMemoryRegionView,
    ) -> Result<WrIds, PostError> {
        post::post_one(&mut self.0, One::Read, trim(dst, src.len)?, src)
    }

    /// `put`, and an immediate that consumes one receive of the peer.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted.
    // A small request is spared a call and a result in memory.
    #[inline(always)]
    pub fn put_with_imm(
        &mut self,
        dst: IbvRemoteMemoryRegionView,
        src: IbvMemoryRegionView<'_>,
        imm: u32,
    ) -> Result<WrIds, PostError> {
        post::post_one(&mut self.0, One::WriteWithImm(imm), src, dst)
    }

    /// Sends all of `src` into one receive of the peer, now.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted.
    pub fn send(&mut self, src: IbvMemoryRegionView<'_>) -> Result<WrIds, PostError> {
        self.post(&Request::send(slice::from_ref(&src)))
    }

    /// Posts one receive; its id. `dst` may be empty where only an immediate is expected.
    ///
    /// # Errors
    /// `TooManySge`, `QueueFull`, or the device's; nothing was posted.
    pub fn post_recv(&mut self, dst: &[IbvMemoryRegionView<'_>]) -> Result<u64, PostError> {
        post::recv(&mut self.0, dst)
    }

    #[cfg(feature = "recorder")]
    fn qp(&self) -> &Q {
        &self.0
    }

    /// The queue pair itself, for code that is generic over the trait: `put` and `get` with ids in a
    /// `Vec`, `poll_completion`.
    pub fn queue_pair(&mut self) -> &mut Q {
        &mut self.0
    }
}

/// Requests built but not yet visible to the device. Dropping it un-builds them.
///
/// A queue pair has one batch at a time, and none before it is connected:
/// ```compile_fail,E0499
/// fn two<Q: ibv_core::IbvQueuePair>(qp: &mut ibv_core::Connected<Q>) {
///     let (a, b) = (qp.batch(), qp.batch());
///     a.ring();
/// }
/// ```
/// ```compile_fail,E0599
/// fn early<Q: ibv_core::IbvQueuePair>(qp: &mut ibv_core::QueuePair<Q>) {
///     qp.batch();
/// }
/// ```
/// Nor can safe code ring or discard behind its back:
/// ```compile_fail,E0423
/// fn behind<Q: ibv_core::IbvQueuePair>(qp: &mut ibv_core::Connected<Q>) {
///     qp.queue_pair().discard(ibv_core::FromCore(()));
/// }
/// ```
#[derive(Debug)]
#[must_use = "nothing is posted until `ring`"]
pub struct Batch<'q, Q: IbvQueuePair>(&'q mut Q);

impl<Q: IbvQueuePair> Batch<'_, Q> {
    /// Builds any request. All or nothing: on `Err` the batch is as it was, or `ring` will fail.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn push(&mut self, req: &Request<'_>) -> Result<WrIds, PostError> {
        post::enqueue(self.0, req)
    }

    /// Writes all of `src` to the front of `dst`.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn put(
        &mut self,
        dst: IbvRemoteMemoryRegionView,
        src: IbvMemoryRegionView<'_>,
    ) -> Result<WrIds, PostError> {
        post::enqueue_one(self.0, One::Write, src, dst)
    }

    /// Reads all of `src` into the front of `dst`.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn get(
        &mut self,
        dst: IbvMemoryRegionView<'_>,
        src: IbvRemoteMemoryRegionView,
    ) -> Result<WrIds, PostError> {
        post::enqueue_one(self.0, One::Read, trim(dst, src.len)?, src)
    }

    /// `put`, and an immediate that consumes one receive of the peer.
    ///
    /// # Errors
    /// See [`PostError`].
    #[inline]
    pub fn put_with_imm(
        &mut self,
        dst: IbvRemoteMemoryRegionView,
        src: IbvMemoryRegionView<'_>,
        imm: u32,
    ) -> Result<WrIds, PostError> {
        post::enqueue_one(self.0, One::WriteWithImm(imm), src, dst)
    }

    /// Publishes the batch with one doorbell (the fewest the device allows).
    ///
    /// # Errors
    /// The device's, or that of a split transfer which it refused in part. Nothing was published then,
    /// and everything in the batch is forgotten.
    #[inline]
    pub fn ring(self) -> Result<(), PostError> {
        let mut this = ManuallyDrop::new(self);
        post::ring(this.0)
    }
}

impl<Q: IbvQueuePair> Drop for Batch<'_, Q> {
    fn drop(&mut self) {
        post::discard(self.0);
    }
}
