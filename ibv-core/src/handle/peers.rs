//! More peers than one: what a connected datagram queue pair adds to the handle. Checks, credits and ids are
//! the same as for one peer, and so is the batch.

use super::{Batch, Connected};
use crate::{
    core::FromCore,
    endpoint::{IbvQpInfo, negotiate},
    error::{Error, PostError},
    memory::{IbvMemoryRegionView, IbvRemoteMemoryRegionView},
    post::{self, One},
    queue_pair::IbvDatagram,
    trace::step,
    wr::{Request, WrIds, trim},
};
use std::slice;

/// A peer of one datagram queue pair, as [`Connected::add_peer`] returned it. Plain data: it keeps nothing
/// alive, and means nothing to another queue pair, which refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    number: u32,
    owner: u64,
}

impl<Q: IbvDatagram> Connected<Q> {
    /// Makes another peer reachable. That one has to do the same, or `connect`, with this end's endpoint:
    /// devices answer only to whom they know.
    ///
    /// # Errors
    /// `Incompatible` with both ends' values where they can not agree; else the device's.
    pub fn add_peer(&mut self, info: &IbvQpInfo) -> Result<Peer, Error> {
        let added = self.try_add(info);
        step("add_peer", format_args!("queue pair {:#x}", info.qp_num), added.as_ref().err());
        added
    }

    fn try_add(&mut self, info: &IbvQpInfo) -> Result<Peer, Error> {
        let path = negotiate(&self.0.get_qp_info()?, info)?;
        let number = self.0.reach(&path, FromCore(()))?;
        Ok(Peer { number, owner: self.0.core().send.owner() })
    }

    /// Posts any request to `peer`, now.
    ///
    /// # Errors
    /// `NotConnected` for another queue pair's peer; else see [`PostError`]. Nothing was posted.
    pub fn post_to(&mut self, peer: Peer, req: &Request<'_>) -> Result<WrIds, PostError> {
        self.at_once(|batch| batch.push_to(peer, req))
    }

    /// Writes all of `src` to the front of `dst`, which is `peer`'s, now.
    ///
    /// # Errors
    /// As [`post_to`](Self::post_to).
    pub fn put_to(
        &mut self,
        peer: Peer,
        dst: IbvRemoteMemoryRegionView,
        src: IbvMemoryRegionView<'_>,
    ) -> Result<WrIds, PostError> {
        self.at_once(|batch| batch.put_to(peer, dst, src))
    }

    /// Reads all of `src`, which is `peer`'s, into the front of `dst`, now.
    ///
    /// # Errors
    /// As [`post_to`](Self::post_to).
    pub fn get_from(
        &mut self,
        peer: Peer,
        dst: IbvMemoryRegionView<'_>,
        src: IbvRemoteMemoryRegionView,
    ) -> Result<WrIds, PostError> {
        self.at_once(|batch| batch.get_from(peer, dst, src))
    }

    /// Sends all of `src` into one receive of `peer`, now.
    ///
    /// # Errors
    /// As [`post_to`](Self::post_to).
    pub fn send_to(&mut self, peer: Peer, src: IbvMemoryRegionView<'_>) -> Result<WrIds, PostError> {
        self.post_to(peer, &Request::send(slice::from_ref(&src)))
    }
}

impl<Q: IbvDatagram> Batch<'_, Q> {
    /// Builds any request to `peer`.
    ///
    /// # Errors
    /// As [`Connected::post_to`].
    pub fn push_to(&mut self, peer: Peer, req: &Request<'_>) -> Result<WrIds, PostError> {
        self.aimed(peer, |qp| post::enqueue(qp, req))
    }

    /// Writes all of `src` to the front of `dst`, which is `peer`'s.
    ///
    /// # Errors
    /// As [`Connected::post_to`].
    #[inline]
    pub fn put_to(
        &mut self,
        peer: Peer,
        dst: IbvRemoteMemoryRegionView,
        src: IbvMemoryRegionView<'_>,
    ) -> Result<WrIds, PostError> {
        self.aimed(peer, |qp| post::enqueue_one(qp, One::Write, src, dst))
    }

    /// Reads all of `src`, which is `peer`'s, into the front of `dst`.
    ///
    /// # Errors
    /// As [`Connected::post_to`].
    #[inline]
    pub fn get_from(
        &mut self,
        peer: Peer,
        dst: IbvMemoryRegionView<'_>,
        src: IbvRemoteMemoryRegionView,
    ) -> Result<WrIds, PostError> {
        let dst = trim(dst, src.len)?;
        self.aimed(peer, |qp| post::enqueue_one(qp, One::Read, dst, src))
    }

    /// Requests without a peer go to the first one, so the aim does not outlive the call.
    #[inline]
    fn aimed(
        &mut self,
        peer: Peer,
        build: impl FnOnce(&mut Q) -> Result<WrIds, PostError>,
    ) -> Result<WrIds, PostError> {
        if peer.owner != self.0.core().send.owner() {
            return Err(PostError::NotConnected);
        }
        self.0.aim(peer.number, FromCore(()));
        let built = build(self.0);
        self.0.aim(0, FromCore(()));
        built
    }
}
