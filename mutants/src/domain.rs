//! A domain that forwards to another one, but for what its hooks change.
#![allow(unsafe_code)]
//! # Safety
//! Every unsafe function is its namesake's, forwarded with the same arguments or with less memory. What
//! mutants copy by themselves goes through `World::live`, from which a region is taken, under the
//! world's lock, before its deregistration returns.

use crate::{
    queue_pair::MutantQueuePair,
    world::{End, Region, Shared, lock},
};
use ibv_core::{
    Access, AnyDomain, Caps, CompletionQueue, CqConfig, Error, EventSource, IbvConfig, IbvDomainImpl, IbvWc,
    PollCompletionError, QpCore, Registration, SharedBytes, any::AnyCq,
};
use std::{collections::VecDeque, os::fd::BorrowedFd, ptr::NonNull, sync::Arc};

/// A broken domain.
#[derive(Debug)]
pub struct MutantDomain {
    inner: AnyDomain,
    end: End,
    shared: Arc<Shared>,
}

impl MutantDomain {
    pub(crate) fn new(inner: AnyDomain, end: End, shared: &Arc<Shared>) -> Self {
        Self { inner, end, shared: shared.clone() }
    }
}

/// The consuming end of its completion queues.
#[derive(Debug)]
pub struct MutantPoller {
    inner: Box<dyn CompletionQueue>,
    end: End,
    /// What a hook made of earlier polls and there was no room for.
    backlog: VecDeque<IbvWc>,
    shared: Arc<Shared>,
}

/// A registration of its.
#[derive(Debug)]
pub struct MutantRegistration {
    pub(crate) inner: Box<dyn Registration>,
    end: End,
    pub(crate) shared: Arc<Shared>,
}

impl IbvDomainImpl for MutantDomain {
    type Cq = AnyCq;
    type Poller = MutantPoller;
    type QueuePair = MutantQueuePair;
    type Registration = MutantRegistration;

    fn caps(&self) -> Caps {
        let mut caps = self.inner.caps();
        (self.shared.hooks.caps)(&mut lock(&self.shared.world), &mut caps);
        caps
    }

    fn create_cq(&self, config: &CqConfig) -> Result<(AnyCq, MutantPoller), Error> {
        let (cq, inner) = self.inner.create_cq(config)?;
        Ok((cq, MutantPoller { inner, end: self.end, backlog: VecDeque::new(), shared: self.shared.clone() }))
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Error> {
        self.inner.events()
    }

    unsafe fn create_queue_pair(
        &self,
        config: &IbvConfig,
        send_cq: &AnyCq,
        recv_cq: &AnyCq,
        core: QpCore,
    ) -> Result<MutantQueuePair, Error> {
        let mut config = config.clone();
        (self.shared.hooks.config)(&mut config);
        let [send_cq, recv_cq] =
            if self.shared.hooks.cqs_swapped { [recv_cq, send_cq] } else { [send_cq, recv_cq] };
        // SAFETY: forwarded contract.
        let inner = unsafe { self.inner.create_queue_pair(&config, send_cq, recv_cq, core) }?;
        MutantQueuePair::new(inner, self.end, &self.shared)
    }

    unsafe fn register(&self, mem: NonNull<[u8]>, access: Access) -> Result<MutantRegistration, Error> {
        let (len, access) = (self.shared.hooks.register)(mem.len(), access);
        let part = NonNull::slice_from_raw_parts(mem.cast::<u8>(), len.min(mem.len()));
        // SAFETY: forwarded contract, for the memory or the front of it.
        let inner = unsafe { self.inner.register(part, access) }?;
        // SAFETY: `mem` is valid until `deregister` succeeds, which forgets this value first; the range is
        // that of the region's own accesses.
        let bytes = unsafe { SharedBytes::new(mem) };
        let (lkey, rkey, base) = (inner.lkey(), inner.rkey(), inner.iova());
        let region = Region { end: self.end, lkey, rkey, base, bytes };
        lock(&self.shared.world).live.push(region);
        Ok(MutantRegistration { inner, end: self.end, shared: self.shared.clone() })
    }

    unsafe fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MutantRegistration, Error> {
        // SAFETY: forwarded contract.
        let inner = unsafe { self.inner.register_dmabuf(fd, offset, len, iova, access) }?;
        Ok(MutantRegistration { inner, end: self.end, shared: self.shared.clone() })
    }
}

// SAFETY: `deregister` is the inner one's or fails, whatever the hook (see `mutations/memory.rs`), and the
// mutant's own knowledge of the memory ends before it.
unsafe impl Registration for MutantRegistration {
    fn lkey(&self) -> u32 {
        self.inner.lkey()
    }
    fn rkey(&self) -> u32 {
        self.inner.rkey()
    }
    fn iova(&self) -> u64 {
        self.inner.iova()
    }
    fn deregister(&mut self) -> Result<(), Error> {
        let name = (self.end, self.inner.rkey());
        let mut world = lock(&self.shared.world);
        world.live.retain(|r| (r.end, r.rkey) != name);
        world.dead.push(name);
        drop(world);
        (self.shared.hooks.deregister)(self)
    }
}

impl MutantPoller {
    /// Polls as often as it takes to know what the hook makes of it.
    fn refill(&mut self, want: usize) -> Result<(), PollCompletionError> {
        let mut found = vec![IbvWc::default(); want];
        let n = self.inner.poll(&mut found)?;
        found.truncate(n);
        let mut world = lock(&self.shared.world);
        world.polling = self.end;
        (self.shared.hooks.polled)(&mut world, &mut found);
        drop(world);
        self.backlog.extend(found);
        Ok(())
    }
}

impl CompletionQueue for MutantPoller {
    fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        if self.backlog.len() < out.len() {
            self.refill(out.len() - self.backlog.len())?;
        }
        let n = out.len().min(self.backlog.len());
        out.iter_mut().zip(self.backlog.drain(..n)).for_each(|(slot, wc)| *slot = wc);
        Ok(n)
    }
    fn arm(&mut self, solicited_only: bool) -> Result<(), PollCompletionError> {
        if self.shared.hooks.arms { self.inner.arm(solicited_only) } else { Ok(()) }
    }
    fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.inner.channel()
    }
    fn take_events(&mut self) -> Result<u32, PollCompletionError> {
        self.inner.take_events()
    }
}
