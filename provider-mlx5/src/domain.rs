//! The provider and its domains: which devices are its own, what they can do, regions and queues on them.
#![allow(unsafe_code)]
//! # Safety
//! The unsafe functions are the trait's, and keep its contract by what `ibv-core`'s handles promise.

use crate::{
    completion_queue::{self, Mlx5Cq},
    doorbell::Register,
    dv,
    poller::Mlx5Poller,
    queue_pair::{Ingredients, Mlx5QueuePair},
};
use ibv_core::{
    Access, Caps, Claim, CqConfig, Error, ErrorKind, EventSource, IbvConfig, IbvDeviceInfo, IbvDomainImpl,
    Provider, QpCore,
    verbs::{self, AsyncEvents, Context, ForkPolicy, Mr, Pd, device, limits},
};
use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd},
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// Inline bytes offered: what fits in a WQE beside the longest segments on every supported device.
const MAX_INLINE: u32 = 256;
/// Mellanox, and NVIDIA after it.
const VENDORS: [u32; 2] = [0x15b3, 0x02c9];

/// mlx5 devices, driven directly.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mlx5Provider;

impl Provider for Mlx5Provider {
    type Domain = Mlx5Domain;

    fn name(&self) -> &'static str {
        "mlx5"
    }

    fn devices(&self) -> Result<Vec<IbvDeviceInfo>, Error> {
        device::describe_all(verbs::load()?, ForkPolicy::Leave)
    }

    fn claim(&self, device: &IbvDeviceInfo) -> Claim {
        if device.vendor_id != 0 && !VENDORS.contains(&device.vendor_id) {
            return Claim::No(format!("vendor {:#x} is not NVIDIA (Mellanox)", device.vendor_id));
        }
        match open(&device.name) {
            Ok(_) => Claim::Yes("libmlx5 drives it".into()),
            Err(e) => Claim::No(e.to_string()),
        }
    }

    fn open(&self, device: &IbvDeviceInfo) -> Result<Mlx5Domain, Error> {
        dv::check_environment()?;
        Mlx5Domain::new(&open(&device.name)?)
    }
}

/// Opens the device and asks it whether it is libmlx5's.
fn open(name: &str) -> Result<Arc<Context>, Error> {
    let context = Context::open(verbs::load()?, name)?;
    dv::check_device(&context)?;
    Ok(context)
}

/// How a domain drives its queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mlx5Options {
    /// Copies a WQE that is rung alone into the doorbell register, as far as it fits there, so that the device
    /// need not fetch it: less latency for small requests, more writes to the device. Only where the register
    /// is the queue pair's own and its mapping combines writes.
    pub blue_flame: bool,
    /// Leaves registers to libmlx5, which gives some to many queue pairs, under a lock for each: for
    /// processes with more queue pairs than the device has registers to give away.
    pub shared_registers: bool,
}

/// A protection domain of an mlx5 device.
#[derive(Debug)]
pub struct Mlx5Domain {
    caps: Caps,
    options: Mlx5Options,
    /// Registers that libmlx5 gave to more than one queue pair, by address.
    registers: Mutex<HashMap<usize, Weak<Mutex<Register>>>>,
    pd: Arc<Pd>,
}

impl Mlx5Domain {
    fn new(context: &Arc<Context>) -> Result<Self, Error> {
        let pd = Pd::alloc(context)?;
        let ports = (1..=context.ports()).filter_map(|n| context.query_port(n).ok()).collect::<Vec<_>>();
        let probed = limits::Probed {
            max_inline: MAX_INLINE,
            dmabuf: registers_dmabufs(&pd),
            relaxed_ordering: true,
            channels: true,
        };
        let caps = limits::rc_caps(&context.attr().orig_attr, &ports, &probed);
        Ok(Self { caps, options: Mlx5Options::default(), registers: Mutex::default(), pd })
    }

    /// With other options, for queue pairs that are created from then on.
    pub fn with_options(self, options: Mlx5Options) -> Self {
        Self { options, ..self }
    }

    fn access(&self) -> u32 {
        let mut access = Access::ALL;
        access.set(Access::REMOTE_ATOMIC, self.caps.atomics.present());
        access.bits()
    }

    /// The one lock of the register at that address.
    fn shared_register(&self, register: Register) -> Arc<Mutex<Register>> {
        let mut registers = self.registers.lock().unwrap_or_else(PoisonError::into_inner);
        let at = register.address().as_ptr() as usize;
        if let Some(known) = registers.get(&at).and_then(Weak::upgrade) {
            return known;
        }
        let lock = Arc::new(Mutex::new(register));
        registers.insert(at, Arc::downgrade(&lock));
        lock
    }
}

/// Whether library, kernel and driver know dma-bufs at all: something that is none is refused as such
/// where they do.
fn registers_dmabufs(pd: &Arc<Pd>) -> bool {
    let Ok((reader, _writer)) = std::io::pipe() else { return false };
    // SAFETY: a pipe has no buffer that could be referenced.
    let answer = unsafe { Mr::register_dmabuf(pd, reader.as_fd(), 0, 4096, 0, Access::LOCAL_WRITE) };
    answer.map_or_else(|e| e.kind() != ErrorKind::Unsupported, |_| true)
}

impl IbvDomainImpl for Mlx5Domain {
    type Cq = Mlx5Cq;
    type Poller = Mlx5Poller;
    type QueuePair = Mlx5QueuePair;
    type Registration = Mr;

    fn caps(&self) -> Caps {
        self.caps.clone()
    }

    fn create_cq(&self, config: &CqConfig) -> Result<(Mlx5Cq, Mlx5Poller), Error> {
        completion_queue::create(self.pd.context(), config)
    }

    unsafe fn create_queue_pair(
        &self,
        config: &IbvConfig,
        send_cq: &Mlx5Cq,
        recv_cq: &Mlx5Cq,
        core: QpCore,
    ) -> Result<Mlx5QueuePair, Error> {
        let from = Ingredients {
            pd: &self.pd,
            config,
            queues: [send_cq, recv_cq],
            access: self.access(),
            options: self.options,
            shared_register: &|register| self.shared_register(register),
        };
        Mlx5QueuePair::create(&from, core)
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
