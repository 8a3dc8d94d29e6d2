//! `IbvDomain`: the owning, safe face of any `IbvDomainImpl`.
#![allow(unsafe_code)]
//! # Safety
//! The provider's unsafe functions are called here and nowhere else; their contracts are kept by the
//! types that are passed in.

use crate::{
    caps::Caps,
    config::IbvConfig,
    cq::IbvCq,
    device::IbvDeviceInfo,
    error::{Error, ErrorKind},
    event::EventSource,
    handle::QueuePair,
    memory::{Access, HeapMemory, IbvMemoryRegion, RegionMemory},
    provider::{CqConfig, IbvDomainImpl},
    queue_pair::IbvQueuePair,
    trace::step,
};
use std::{os::fd::BorrowedFd, sync::Arc};

/// What everything made from a domain keeps alive.
#[derive(Debug)]
pub(crate) struct DomainShared<I> {
    pub(crate) imp: I,
    pub(crate) info: IbvDeviceInfo,
}

/// A protection domain. Everything made from it keeps the provider's half alive.
#[derive(Debug)]
pub struct IbvDomain<I: IbvDomainImpl> {
    shared: Arc<DomainShared<I>>,
}

impl<I: IbvDomainImpl> IbvDomain<I> {
    /// Wraps a provider's domain.
    pub fn new(imp: I, info: IbvDeviceInfo) -> Self {
        step("open_device", format_args!("{}", info.name), None);
        Self { shared: Arc::new(DomainShared { imp, info }) }
    }

    /// The provider's half and the device, where nothing that was made from the domain is left: to erase a domain
    /// (`AnyDomain::new`) or to open it up.
    ///
    /// # Errors
    /// The domain as it was: a queue, a queue pair or a region still needs it.
    pub fn into_parts(self) -> Result<(I, IbvDeviceInfo), Self> {
        let shared = Arc::try_unwrap(self.shared).map_err(|shared| Self { shared })?;
        Ok((shared.imp, shared.info))
    }

    /// The provider's half, for what only that provider offers.
    pub fn imp(&self) -> &I {
        &self.shared.imp
    }

    /// What the domain can do.
    pub fn caps(&self) -> Caps {
        self.shared.imp.caps()
    }

    /// The device it is on.
    pub fn device_info(&self) -> &IbvDeviceInfo {
        &self.shared.info
    }

    /// A queue for `depth` completions; queue pairs reserve their share of it when created.
    ///
    /// # Errors
    /// `InvalidConfig` with the number and the device's limit; else the device's.
    pub fn create_cq(&self, depth: u32) -> Result<Arc<IbvCq<I>>, Error> {
        self.cq(CqConfig { depth, channel: false })
    }

    /// The same with a completion channel, so that it can be armed and waited for.
    ///
    /// # Errors
    /// `Unsupported` where the device has no channels; else as `create_cq`.
    pub fn create_cq_with_channel(&self, depth: u32) -> Result<Arc<IbvCq<I>>, Error> {
        if !self.caps().cq_channel.present() {
            let detail = "this device has no completion channels; poll the queue";
            return Err(Error::new(ErrorKind::Unsupported, "create_comp_channel", detail));
        }
        self.cq(CqConfig { depth, channel: true })
    }

    fn cq(&self, config: CqConfig) -> Result<Arc<IbvCq<I>>, Error> {
        let cq = self.try_cq(config);
        let object = format_args!("{}, {} entries", self.shared.info.name, config.depth);
        step("create_cq", object, cq.as_ref().err());
        cq
    }

    fn try_cq(&self, config: CqConfig) -> Result<Arc<IbvCq<I>>, Error> {
        let max = self.caps().max_cqe;
        if config.depth == 0 || config.depth > max {
            let detail =
                format!("a completion queue of {} entries; this device takes 1 to {max}", config.depth);
            return Err(Error::new(ErrorKind::InvalidConfig, "create_cq", detail));
        }
        let cq = IbvCq::new(self.shared.clone(), config)?;
        Ok(Arc::new(cq))
    }

    /// A queue pair in RESET, behind the safe handle.
    ///
    /// # Errors
    /// See [`IbvQueuePair::new`].
    pub fn create_queue_pair(
        &self,
        config: IbvConfig,
        send_cq: &Arc<IbvCq<I>>,
        recv_cq: &Arc<IbvCq<I>>,
    ) -> Result<QueuePair<I::QueuePair>, Error> {
        // SAFETY: `QpCore::new`, which the provided `new` calls first, refuses queues of another domain;
        // a provider that overrides `new` states this same contract.
        let qp = unsafe { I::QueuePair::new(self, config, send_cq.clone(), recv_cq.clone()) };
        step("create_qp", format_args!("{}", self.shared.info.name), qp.as_ref().err());
        qp.map(QueuePair)
    }

    /// Registers `mem` for everything that the device offers.
    ///
    /// # Errors
    /// `OutOfResources` with the locked-memory limit in mind, `InvalidConfig` beyond the device's
    /// largest region; else the device's. `mem` is dropped.
    pub fn register<M: RegionMemory>(&self, mem: M) -> Result<IbvMemoryRegion<I, M>, Error> {
        let mut access = Access::ALL;
        access.set(Access::REMOTE_ATOMIC, self.caps().atomics.present());
        self.register_with(mem, access)
    }

    /// Registers `mem` for `access`.
    ///
    /// # Errors
    /// As `register`, and `InvalidConfig` for remote writes without local ones and for bits without a name.
    pub fn register_with<M: RegionMemory>(
        &self,
        mem: M,
        access: Access,
    ) -> Result<IbvMemoryRegion<I, M>, Error> {
        let len = mem.as_raw().len();
        let mr = self.try_register(mem, access);
        let object = format_args!("{}, {len} bytes for {access:?}", self.shared.info.name);
        step("reg_mr", object, mr.as_ref().err());
        mr
    }

    fn try_register<M: RegionMemory>(&self, mem: M, access: Access) -> Result<IbvMemoryRegion<I, M>, Error> {
        access.check()?;
        let raw = mem.as_raw();
        let max = self.caps().max_mr_size;
        if raw.len() as u64 > max {
            let detail = format!("a region of {} bytes; this device takes at most {max}", raw.len());
            return Err(Error::new(ErrorKind::InvalidConfig, "reg_mr", detail));
        }
        // SAFETY: `RegionMemory` keeps the range valid and untouched by others while `mem` lives, and
        // the region frees `mem` only after `deregister` succeeded.
        let reg = unsafe { self.imp().register(raw, access) }?;
        Ok(IbvMemoryRegion::new(reg, mem, raw.len(), access, self.shared.clone()))
    }

    /// `len` zero bytes, registered for everything that the device offers.
    ///
    /// # Errors
    /// As `register`, and `OutOfResources` where there is not that much memory.
    pub fn alloc(&self, len: usize) -> Result<IbvMemoryRegion<I>, Error> {
        self.register(HeapMemory::zeroed(len)?)
    }

    /// A region over `len` bytes of a dma-buf from `offset` on, addressed from `iova`: it has views, but
    /// no host bytes.
    ///
    /// # Errors
    /// `Unsupported` where the device or the kernel can not; else the device's.
    ///
    /// # Safety
    /// Nobody forms a reference into the buffer while it is registered.
    pub unsafe fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<IbvMemoryRegion<I, ()>, Error> {
        access.check()?;
        // SAFETY: forwarded contract; the kernel holds the buffer, so there is no memory to own.
        let reg = unsafe { self.imp().register_dmabuf(fd, offset, len, iova, access) };
        let object = format_args!("{}, {len} bytes for {access:?}", self.shared.info.name);
        step("reg_dmabuf_mr", object, reg.as_ref().err());
        Ok(IbvMemoryRegion::new(reg?, (), len, access, self.shared.clone()))
    }

    /// Subscribes to asynchronous events of the device, its ports and its queue pairs.
    ///
    /// # Errors
    /// `Unsupported` where the provider reports none; else the device's.
    pub fn events(&self) -> Result<Box<dyn EventSource>, Error> {
        self.imp().events()
    }
}
