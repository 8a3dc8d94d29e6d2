//! The protection domain: capabilities, completion queues, registrations. Queue pairs are in
//! `queue_pair.rs`.
#![allow(unsafe_code)]
//! # Safety
//! `register` is handed memory that stays valid until `deregister` succeeds. Nothing here keeps a pointer
//! to it: there is no data path yet, so no key reaches any memory.

use crate::queue_pair::{{Camel}}QueuePair;
use ibv_core::{
    Access, Caps, CompletionQueue, CqConfig, Error, ErrorKind, IbvConfig, IbvDomainImpl, IbvWc,
    PollCompletionError, QpCore, Registration,
};
use std::{
    collections::VecDeque,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A protection domain.
#[derive(Debug)]
pub struct {{Camel}}Domain {
    last_key: AtomicU32,
}

impl {{Camel}}Domain {
    pub(crate) fn new() -> Self {
        Self { last_key: AtomicU32::new(0) }
    }
}

/// What queue pairs report to: the completions themselves, for want of a device that writes them.
#[derive(Clone, Debug)]
pub struct {{Camel}}Cq(Arc<Mutex<VecDeque<IbvWc>>>);

impl {{Camel}}Cq {
    pub(crate) fn lock(&self) -> MutexGuard<'_, VecDeque<IbvWc>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The consuming end of a completion queue.
#[derive(Debug)]
pub struct {{Camel}}Poller({{Camel}}Cq);

/// The keys of a region.
#[derive(Debug)]
pub struct {{Camel}}Registration {
    key: u32,
    iova: u64,
}

impl IbvDomainImpl for {{Camel}}Domain {
    type Cq = {{Camel}}Cq;
    type Poller = {{Camel}}Poller;
    type QueuePair = {{Camel}}QueuePair;
    type Registration = {{Camel}}Registration;

    /// What is true today. Claim an operation here in the commit that implements it: the suite then stops
    /// skipping its cases. The ordering facts are about operations, so there are none to state yet.
    fn caps(&self) -> Caps {
        let mut caps = Caps::default();
        (caps.max_send_wr, caps.max_recv_wr, caps.max_cqe) = (1 << 10, 1 << 10, 1 << 14);
        (caps.max_send_sge, caps.max_recv_sge) = (1, 1);
        caps.max_mr_size = isize::MAX as u64;
        caps.loopback = true;
        caps
    }

    /// Core reserves room in the queue for everything that can be in flight, so it is never overrun.
    fn create_cq(&self, config: &CqConfig) -> Result<({{Camel}}Cq, {{Camel}}Poller), Error> {
        let cq = {{Camel}}Cq(Arc::new(Mutex::new(VecDeque::with_capacity(config.depth as usize))));
        Ok((cq.clone(), {{Camel}}Poller(cq)))
    }

    unsafe fn create_queue_pair(
        &self,
        config: &IbvConfig,
        _send_cq: &{{Camel}}Cq,
        recv_cq: &{{Camel}}Cq,
        core: QpCore,
    ) -> Result<{{Camel}}QueuePair, Error> {
        Ok({{Camel}}QueuePair::new(config, recv_cq.clone(), core))
    }

    /// The keys must cover all of `mem`, and be refused for anything outside it.
    unsafe fn register(&self, mem: NonNull<[u8]>, _access: Access) -> Result<{{Camel}}Registration, Error> {
        let key = self.last_key.fetch_add(1, Relaxed).checked_add(1);
        let full = || Error::new(ErrorKind::OutOfResources, "reg_mr", "every key of this domain is taken");
        let iova = mem.cast::<u8>().as_ptr() as u64;
        Ok({{Camel}}Registration { key: key.ok_or_else(full)?, iova })
    }
}

// SAFETY: nothing accesses memory through these keys, so nothing does once `deregister` has returned. With
// a device, this is the place to say why that still holds: core frees the memory next.
unsafe impl Registration for {{Camel}}Registration {
    fn lkey(&self) -> u32 {
        self.key
    }
    fn rkey(&self) -> u32 {
        self.key
    }
    fn iova(&self) -> u64 {
        self.iova
    }
    fn deregister(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

impl CompletionQueue for {{Camel}}Poller {
    /// A completion is to be written after the data it stands for; fewer than asked for means empty.
    fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        let mut queue = self.0.lock();
        let n = out.len().min(queue.len());
        out.iter_mut().zip(queue.drain(..n)).for_each(|(slot, wc)| *slot = wc);
        Ok(n)
    }
}
