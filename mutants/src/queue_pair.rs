//! A queue pair that forwards to another one, but for what its hooks change.
#![allow(unsafe_code)]
//! # Safety
//! The one unsafe block drops the inner queue pair, where this one drops.

use crate::world::{End, Qp, Shared, lock};
use ibv_core::{
    Error, FromCore, IbvPath, IbvQpInfo, IbvQueuePair, PostError, QpAttributes, QpCore, QpState, RecvRequest,
    WorkRequest,
};
use std::{mem::ManuallyDrop, sync::Arc};

/// A broken queue pair.
#[derive(Debug)]
pub struct MutantQueuePair {
    /// Core's share is inside, and last there.
    pub(crate) inner: ManuallyDrop<Box<dyn IbvQueuePair>>,
    pub(crate) shared: Arc<Shared>,
    /// Its end and its number there.
    pub(crate) name: Qp,
    /// Its peer's, once connected.
    pub(crate) peer: Option<Qp>,
    /// What `state` answered first after it was connected.
    pub(crate) seen: Option<QpState>,
    /// Requests built since the last ring, and ever.
    pub(crate) built: [u32; 2],
    /// Slots that it will never use again.
    pub(crate) leaked: u32,
    /// How often its endpoint was asked for.
    asked: u32,
    /// The last inline payload.
    pub(crate) inline: Vec<u8>,
}

impl MutantQueuePair {
    pub(crate) fn new(
        mut inner: Box<dyn IbvQueuePair>,
        end: End,
        shared: &Arc<Shared>,
    ) -> Result<Self, Error> {
        let name = (end, inner.get_qp_info()?.qp_num);
        let (inner, shared) = (ManuallyDrop::new(inner), shared.clone());
        Ok(Self {
            inner,
            shared,
            name,
            peer: None,
            seen: None,
            built: [0; 2],
            leaked: 0,
            asked: 0,
            inline: Vec::new(),
        })
    }
}

impl MutantQueuePair {
    pub(crate) fn ask(&mut self) -> u32 {
        self.asked += 1;
        self.asked
    }
}

impl Drop for MutantQueuePair {
    fn drop(&mut self) {
        lock(&self.shared.world).rooms.remove(&self.name);
        if !self.shared.hooks.outlives_drop {
            // SAFETY: `self` is being dropped, so nobody uses the inner queue pair again.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

impl IbvQueuePair for MutantQueuePair {
    fn core(&self) -> &QpCore {
        self.inner.core()
    }
    fn core_mut(&mut self, by: FromCore) -> &mut QpCore {
        self.inner.core_mut(by)
    }
    fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error> {
        let info = self.inner.get_qp_info()?;
        Ok((self.shared.hooks.info)(self, info))
    }
    fn establish(&mut self, path: &IbvPath, by: FromCore) -> Result<(), Error> {
        self.inner.establish(path, by)
    }
    fn connect(&mut self, info: &IbvQpInfo) -> Result<(), Error> {
        (self.shared.hooks.connect)(self, info)?;
        self.peer = Some((self.name.0.other(), info.qp_num));
        Ok(())
    }
    fn state(&mut self) -> Result<QpState, Error> {
        let state = self.inner.state()?;
        Ok((self.shared.hooks.state)(self, state))
    }
    fn attributes(&mut self) -> Result<QpAttributes, Error> {
        self.inner.attributes().map(self.shared.hooks.attributes)
    }
    fn enter_error(&mut self) -> Result<(), Error> {
        (self.shared.hooks.enter_error)(self)
    }
    fn max_msg_size(&self) -> usize {
        (self.shared.hooks.max_msg_size)(self.inner.max_msg_size())
    }
    fn enqueue(&mut self, wr: &WorkRequest<'_>) -> Result<(), PostError> {
        self.built = self.built.map(|n| n.wrapping_add(1));
        (self.shared.hooks.enqueue)(self, wr)
    }
    fn enqueue_recv(&mut self, wr: &RecvRequest<'_>) -> Result<(), PostError> {
        let room = wr.local.iter().map(|v| v.len()).sum();
        lock(&self.shared.world).rooms.entry(self.name).or_default().push_back(room);
        (self.shared.hooks.recv)(self, wr)
    }
    fn ring_doorbell(&mut self, by: FromCore) -> Result<(), PostError> {
        self.built[0] = 0;
        (self.shared.hooks.ring)(self, by)
    }
    fn discard(&mut self, by: FromCore) {
        self.built[0] = 0;
        (self.shared.hooks.discard)(self, by);
    }
}
