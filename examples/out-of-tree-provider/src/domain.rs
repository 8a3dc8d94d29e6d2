//! The protection domain: capabilities, completion queues, registrations. Queue pairs are in
//! `queue_pair.rs`.
#![allow(unsafe_code)]
//! # Safety
//! `register` is handed memory that stays valid until `deregister` succeeds. It gives the fabric a
//! pointer to it under a fresh key, and `deregister` takes that key away under the lock that every copy
//! holds: so when it returns, no copy is running and none can start.

use crate::{
    PORT,
    fabric::{Completions, Fabric},
    queue_pair::ShmQueuePair,
};
use ibv_core::{
    Access, Caps, CompletionQueue, CqConfig, Error, ErrorKind, Gid, GidChoice, IbvConfig, IbvDomainImpl,
    IbvWc, PollCompletionError, QpCore, Registration, SharedBytes, Support,
};
use std::ptr::NonNull;

/// A protection domain: its keys are of no use to another domain's queue pairs.
#[derive(Debug)]
pub struct ShmDomain {
    fabric: Fabric,
    id: u32,
}

impl ShmDomain {
    pub(crate) fn new(fabric: &Fabric) -> Self {
        Self { fabric: fabric.clone(), id: fabric.lock().create_domain() }
    }
}

/// What queue pairs report to.
#[derive(Debug)]
pub struct ShmCq(Completions);

/// The consuming end of a [`ShmCq`].
#[derive(Debug)]
pub struct ShmPoller {
    fabric: Fabric,
    completions: Completions,
}

/// A key, until it is deregistered.
#[derive(Debug)]
pub struct ShmRegistration {
    fabric: Fabric,
    key: u32,
    iova: u64,
}

impl IbvDomainImpl for ShmDomain {
    type Cq = ShmCq;
    type Poller = ShmPoller;
    type QueuePair = ShmQueuePair;
    type Registration = ShmRegistration;

    /// Nothing is claimed that the suite can not check. What is not named stays absent: channels,
    /// events, dma-bufs, inline data, more than one range. `bytes_in_order` is false because the copy is made of relaxed atomics, which a
    /// processor may reorder; that it usually does not is no promise.
    fn caps(&self) -> Caps {
        let mut caps = Caps::default();
        caps.write = Support::Native;
        caps.read = Support::Native;
        caps.write_with_imm = Support::Native;
        caps.send = Support::Native;
        caps.send_with_imm = Support::Native;
        caps.atomics = Support::Native;
        caps.fence = Support::Native;
        (caps.completions_in_order, caps.messages_in_order, caps.bytes_in_order) = (true, true, false);
        (caps.loopback, caps.rnr_retry) = (true, true);
        // A copy holds the fabric's lock, so a message is not as long as it could be.
        (caps.max_msg_size, caps.max_send_size) = (1 << 20, 1 << 20);
        (caps.max_send_sge, caps.max_recv_sge) = (1, 1);
        (caps.max_send_wr, caps.max_recv_wr, caps.max_cqe) = (1 << 12, 1 << 12, 1 << 16);
        caps.max_mr_size = isize::MAX as u64;
        // Requests of a queue pair are executed one after another.
        caps.max_rd_atomic = 1;
        caps
    }

    /// Core reserves room in the queue for everything that can be in flight, so it never overflows and
    /// posting never allocates.
    fn create_cq(&self, config: &CqConfig) -> Result<(ShmCq, ShmPoller), Error> {
        let completions = Completions::new(config.depth);
        let poller = ShmPoller { fabric: self.fabric.clone(), completions: completions.clone() };
        Ok((ShmCq(completions), poller))
    }

    unsafe fn create_queue_pair(
        &self,
        config: &IbvConfig,
        send_cq: &ShmCq,
        recv_cq: &ShmCq,
        core: QpCore,
    ) -> Result<ShmQueuePair, Error> {
        check(config, self.fabric.gid())?;
        let (send_cq, recv_cq) = (send_cq.0.clone(), recv_cq.0.clone());
        let qp_num = self.fabric.lock().create_qp(self.id, config, send_cq, recv_cq)?;
        Ok(ShmQueuePair::new(self.fabric.clone(), qp_num, config, core))
    }

    unsafe fn register(&self, mem: NonNull<[u8]>, access: Access) -> Result<ShmRegistration, Error> {
        let iova = mem.cast::<u8>().as_ptr() as u64;
        // SAFETY: `mem` stays valid until `deregister` succeeds, which removes this value and its copies
        // from the fabric; all other access is its region's, through the same type and the same range.
        let bytes = unsafe { SharedBytes::new(mem) };
        let key = self.fabric.lock().register(self.id, iova, bytes, access)?;
        Ok(ShmRegistration { fabric: self.fabric.clone(), key, iova })
    }
}

/// Core has checked ranges; what is in which table of the port, only the provider knows.
fn check(config: &IbvConfig, gid: Gid) -> Result<(), Error> {
    let known = match config.gid {
        GidChoice::Auto | GidChoice::Index(0) => true,
        GidChoice::Exact(wanted) => wanted == gid,
        _ => false,
    };
    if (config.port_num, config.pkey_index, known) == (PORT, 0, true) {
        return Ok(());
    }
    let (port, pkey, choice) = (config.port_num, config.pkey_index, config.gid);
    let detail = format!(
        "port {port}, partition key {pkey} and GID {choice:?}; this device has port {PORT}, key 0 and GID {gid} at 0"
    );
    Err(Error::new(ErrorKind::InvalidConfig, "create_qp", detail))
}

// SAFETY: the fabric copies only under its lock and only through keys that it has. `deregister` removes
// the key under that lock, and no key is given out twice.
unsafe impl Registration for ShmRegistration {
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
        self.fabric.lock().deregister(self.key);
        Ok(())
    }
}

impl CompletionQueue for ShmPoller {
    /// Polling also drives what waits for a peer; everything else was done by the doorbell.
    fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        self.fabric.lock().run_waiting();
        Ok(self.completions.take(out))
    }
}
