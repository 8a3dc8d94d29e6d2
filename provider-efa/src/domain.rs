//! A protection domain on a device, with the capabilities it was found to have.
#![allow(unsafe_code)]
//! # Safety
//! The contracts of `IbvDomainImpl` are forwarded to the handles as they are. The domain's own region is freed
//! only once its keys are revoked.

use crate::{
    create::{Shape, check_sizes, create},
    limits::srd_caps,
    peers::AddressBook,
    poller::{EfaCq, EfaPoller},
    probe::{grants, probe},
    queue_pair::{EfaQueuePair, Ingredients},
    version,
};
use ibv_core::{
    Access, Caps, CqConfig, Error, EventSource, HeapMemory, IbvConfig, IbvDomainImpl, IbvMemoryRegionView,
    QpCore, RegionMemory, Registration,
    verbs::{AsyncEvents, Context, Cq, LocalEndpoint, Mr, Pd, VerbsLibrary, limits::narrowed, missing},
};
use ibv_sys::{Efadv, efadv_device_attr, extend};
use std::{
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::{Arc, Mutex},
};

/// The domain of [`EfaProvider`](crate::EfaProvider).
#[derive(Debug)]
pub struct EfaDomain {
    caps: Caps,
    lacks: String,
    /// Rights that a region may give to peers. The others nobody could use, so they are left out.
    grants: Access,
    nothing: Nothing,
    peers: Arc<AddressBook>,
    /// Held while a queue pair is made or destroyed; see `poller.rs`.
    births: Arc<Mutex<()>>,
    efadv: &'static Efadv,
    pd: Arc<Pd>,
}

/// Opens a device and asks libefa whether it is one of its own, and what it can do.
///
/// # Errors
/// `LibraryMissing` where there is no libefa; `Unsupported` for another vendor's device; else the device's.
pub(crate) fn query(library: VerbsLibrary, name: &str) -> Result<(Arc<Context>, efadv_device_attr), Error> {
    let context = Context::open(library, name)?;
    let efadv = efadv()?;
    // SAFETY: the device is open and the struct writable to the length that goes with it.
    let call = |attr, len| unsafe { efadv.efadv_query_device(context.as_ptr(), attr, len as u32) };
    let attr = extend::query(call).map_err(|code| {
        Error::from_errno("efadv_query_device", code).context(format!("{name} is not a device of libefa's"))
    })?;
    Ok((context, attr))
}

fn efadv() -> Result<&'static Efadv, Error> {
    ibv_sys::efadv().map(|library| &**library).map_err(missing)
}

impl EfaDomain {
    /// Opens the device of that name, and tries what no query tells.
    ///
    /// # Errors
    /// As [`query`]; else the device's.
    pub(crate) fn open(library: VerbsLibrary, name: &str, max_msg_size: Option<u32>) -> Result<Self, Error> {
        let (context, attr) = query(library, name)?;
        let (efadv, pd) = (efadv()?, Pd::alloc(&context)?);
        let found = probe(efadv, &pd, &attr)
            .map_err(|e| e.context(format!("{name} makes no scalable reliable datagram queue pair")))?;
        let caps = srd_caps(&context.attr().orig_attr, &attr, &context.query_ports()?, &found);
        Ok(Self {
            caps: narrowed(caps, max_msg_size),
            lacks: version::lacks(&attr),
            grants: grants(&pd)?,
            nothing: Nothing::register(&pd)?,
            peers: Arc::new(AddressBook::new(pd.clone())),
            births: Arc::default(),
            efadv,
            pd,
        })
    }

    /// The protection domain, for what only verbs offer.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// What SRD has and this domain has not, and whose the lack is: the device's, or an old libefa's.
    pub fn lacks(&self) -> Option<&str> {
        self.lacks.strip_prefix("; ")
    }
}

impl IbvDomainImpl for EfaDomain {
    type Cq = Arc<EfaCq>;
    type Poller = EfaPoller;
    type QueuePair = EfaQueuePair;
    type Registration = Mr;

    fn caps(&self) -> Caps {
        self.caps.clone()
    }

    fn create_cq(&self, config: &CqConfig) -> Result<(Arc<EfaCq>, EfaPoller), Error> {
        let cq = Cq::create(self.pd.context(), config.depth, config.channel)?;
        let shared = Arc::new(EfaCq::new(cq));
        Ok((shared.clone(), EfaPoller::new(shared)))
    }

    unsafe fn create_queue_pair(
        &self,
        config: &IbvConfig,
        send_cq: &Arc<EfaCq>,
        recv_cq: &Arc<EfaCq>,
        core: QpCore,
    ) -> Result<EfaQueuePair, Error> {
        let end = LocalEndpoint::discover(self.pd.context(), config)?;
        let shape = Shape::of(config, &self.caps);
        check_sizes(self.efadv, &self.pd, &shape, &self.caps)?;
        let made = {
            let _held = self.births.lock();
            create(self.efadv, &self.pd, &shape, send_cq.cq(), recv_cq.cq())?
        };
        let from = Ingredients {
            made,
            end,
            queues: [send_cq, recv_cq],
            births: &self.births,
            book: &self.peers,
            nothing: self.nothing.view(),
            rnr_retry: self.caps.rnr_retry,
        };
        EfaQueuePair::new(from, core)
    }

    unsafe fn register(&self, mem: NonNull<[u8]>, access: Access) -> Result<Mr, Error> {
        // SAFETY: forwarded contract.
        unsafe { Mr::register(&self.pd, mem, access & self.grants) }
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
        unsafe { Mr::register_dmabuf(&self.pd, fd, offset, len, iova, access & self.grants) }
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Error> {
        Ok(Box::new(AsyncEvents::subscribe(self.pd.context())?))
    }
}

/// A byte that requests name which have none: libefa writes no descriptor for a receive without a range, and
/// the immediate that it was posted for would find none.
#[derive(Debug)]
struct Nothing {
    mr: Mr,
    /// `None` only inside `drop`.
    memory: Option<HeapMemory>,
}

impl Nothing {
    fn register(pd: &Arc<Pd>) -> Result<Self, Error> {
        let memory = HeapMemory::zeroed(1)?;
        // SAFETY: the memory is this value's, which nobody else reaches and which frees it after the region.
        let mr = unsafe { Mr::register(pd, memory.as_raw(), Access::LOCAL_WRITE) }?;
        Ok(Self { mr, memory: Some(memory) })
    }

    fn view(&self) -> IbvMemoryRegionView<'static> {
        IbvMemoryRegionView::from_raw_parts(self.mr.iova(), 1, self.mr.lkey())
    }
}

impl Drop for Nothing {
    fn drop(&mut self) {
        if self.mr.deregister().is_err() {
            std::mem::forget(self.memory.take());
        }
    }
}
