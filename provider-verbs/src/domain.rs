//! A protection domain on a device, with the capabilities it was found to have.
#![allow(unsafe_code)]
//! # Safety
//! The contracts of `IbvDomainImpl` are forwarded to the handles as they are.

use crate::{
    create::{Shape, create},
    probe::probe,
    queue_pair::VerbsQueuePair,
};
use ibv_core::{
    Access, Caps, CqConfig, Error, EventSource, IbvConfig, IbvDomainImpl, QpCore,
    verbs::{
        AsyncEvents, Context, Cq, CqPoller, LocalEndpoint, Mr, Pd, VerbsLibrary,
        limits::{narrowed, rc_caps},
    },
};
use ibv_sys::IBV_ATOMIC_NONE;
use std::{os::fd::BorrowedFd, ptr::NonNull, sync::Arc};

/// The domain of [`VerbsProvider`](crate::VerbsProvider).
#[derive(Debug)]
pub struct VerbsDomain {
    pd: Arc<Pd>,
    caps: Caps,
}

impl VerbsDomain {
    /// Opens the device of that name, and tries what no query tells.
    ///
    /// # Errors
    /// As [`Context::open`]; else the device's.
    pub(crate) fn open(library: VerbsLibrary, name: &str, max_msg_size: Option<u32>) -> Result<Self, Error> {
        let context = Context::open(library, name)?;
        let pd = Pd::alloc(&context)?;
        let device = context.attr().orig_attr;
        let probed = probe(&pd, device.atomic_cap != IBV_ATOMIC_NONE)
            .map_err(|e| e.context(format!("{name} makes no reliable connection")))?;
        let caps = narrowed(rc_caps(&device, &context.query_ports()?, &probed), max_msg_size);
        Ok(Self { caps, pd })
    }

    /// The protection domain, for what only verbs offer.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl IbvDomainImpl for VerbsDomain {
    type Cq = Arc<Cq>;
    type Poller = CqPoller;
    type QueuePair = VerbsQueuePair;
    type Registration = Mr;

    fn caps(&self) -> Caps {
        self.caps.clone()
    }

    fn create_cq(&self, config: &CqConfig) -> Result<(Arc<Cq>, CqPoller), Error> {
        let cq = Cq::create(self.pd.context(), config.depth, config.channel)?;
        Ok((cq.clone(), CqPoller::new(cq)))
    }

    unsafe fn create_queue_pair(
        &self,
        config: &IbvConfig,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        core: QpCore,
    ) -> Result<VerbsQueuePair, Error> {
        let end = LocalEndpoint::discover(self.pd.context(), config)?;
        let made = create(&self.pd, Shape::of(config, &self.caps), send_cq, recv_cq)?;
        Ok(VerbsQueuePair::new(made, end, &self.caps, core))
    }

    unsafe fn register(&self, mem: NonNull<[u8]>, access: Access) -> Result<Mr, Error> {
        // SAFETY: forwarded contract.
        unsafe { Mr::register(&self.pd, mem, access) }
    }

    unsafe fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr, Error> {
        // SAFETY: forwarded contract.
        unsafe { Mr::register_dmabuf(&self.pd, fd, offset, len, iova, access) }
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Error> {
        Ok(Box::new(AsyncEvents::subscribe(self.pd.context())?))
    }
}
