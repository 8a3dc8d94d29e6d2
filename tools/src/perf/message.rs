//! The one request of a lane in a row. Whether it asks for its completion is the loop's.

use super::{Operation, end::Place};
use crate::{Failure, transfer::out_of_range};
use ibv::{IbvDomainImpl, IbvMemoryRegion, Op, Payload, Request};
use std::slice;

/// What a message is, and where its bytes are.
#[derive(Debug)]
pub(super) struct Message<'r> {
    op: Operation,
    pub(super) place: Place<'r>,
    /// The message itself, where it travels inside the request.
    inline: Option<Vec<u8>>,
}

impl<'r> Message<'r> {
    /// The message at `place`; inside its request up to `inline` bytes.
    pub(super) fn new<I: IbvDomainImpl>(
        op: Operation,
        place: Place<'r>,
        region: &IbvMemoryRegion<I>,
        inline: usize,
    ) -> Result<Self, Failure> {
        let mut bytes = vec![0; place.src.len()];
        region.read_at(place.last[0] + 1 - bytes.len(), &mut bytes).map_err(out_of_range)?;
        let inside = bytes.len() <= inline && op != Operation::Read;
        Ok(Self { op, place, inline: inside.then_some(bytes) })
    }

    /// The bytes that travel inside the request.
    pub(super) fn inline(&mut self) -> Option<&mut [u8]> {
        self.inline.as_deref_mut()
    }

    /// The request for it; made once for a whole row.
    pub(super) fn request(&self) -> Request<'_> {
        let op = match self.op {
            Operation::Read => return Request::get(slice::from_ref(&self.place.dst), self.place.remote),
            Operation::Write => Op::Write,
            Operation::Send => Op::Send,
        };
        let local = match &self.inline {
            Some(bytes) => Payload::Inline(bytes),
            None => Payload::Sges(slice::from_ref(&self.place.src)),
        };
        Request::new(op, self.place.remote, local)
    }
}
