//! What no query tells: whether libefa builds inline puts, how long a batch may be, and whether the device has
//! completion channels and dma-bufs. Each is tried once when a device is opened, and nothing of it is left.
#![allow(unsafe_code)]
//! # Safety
//! The queue pair that is asked about is alive; what is registered is a byte of this file's own, or a pipe, which
//! has no memory.

use crate::{
    create::{Shape, create},
    limits::Found,
};
use ibv_core::{
    Access, Error, ErrorKind, HeapMemory, RegionMemory, Registration,
    verbs::{Cq, Mr, Pd, Qp},
};
use ibv_sys::{EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE, Efadv, efadv_device_attr, efadv_wq_attr};
use std::{os::fd::AsFd, sync::Arc};

/// Tries.
///
/// # Errors
/// The device's, where it makes no queue pair at all.
pub(crate) fn probe(efadv: &Efadv, pd: &Arc<Pd>, attr: &efadv_device_attr) -> Result<Found, Error> {
    let cq = Cq::create(pd.context(), 2, false)?;
    let plain = Shape::smallest(attr);
    let qp = create(efadv, pd, &plain, &cq, &cq)?.qp;
    let inline = Shape { inline_write: true, ..plain };
    let write = attr.device_caps & EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE != 0;
    Ok(Found {
        inline_write: write && create(efadv, pd, &inline, &cq, &cq).is_ok(),
        max_batch: max_batch(efadv, &qp),
        dmabuf: registers_dmabufs(pd),
        channels: pd.context().comp_vectors() > 0 && Cq::create(pd.context(), 1, true).is_ok(),
    })
}

/// The rights of peers that the device gives at all: one without RDMA write refuses a region that asks for it
/// (`efa_reg_mr`, drivers/infiniband/hw/efa/efa_verbs.c), whatever libefa knows of writes.
///
/// # Errors
/// `OutOfResources` where there is no byte to try it on.
pub(crate) fn grants(pd: &Arc<Pd>) -> Result<Access, Error> {
    let memory = HeapMemory::zeroed(1)?;
    let takes = |right: Access| {
        // SAFETY: the memory is this function's own, and outlives the region, which is gone at once; where it
        // can not be revoked, the memory is never freed.
        let region = unsafe { Mr::register(pd, memory.as_raw(), Access::LOCAL_WRITE | right) };
        region.map(|mut mr| mr.deregister())
    };
    let (mut grants, mut stuck) = (Access::ALL - Access::REMOTE_READ - Access::REMOTE_WRITE, false);
    for right in [Access::REMOTE_READ, Access::REMOTE_WRITE] {
        let taken = takes(right);
        grants.set(right, taken.is_ok());
        stuck |= matches!(taken, Ok(Err(_)));
    }
    if stuck {
        std::mem::forget(memory);
    }
    Ok(grants)
}

/// 0 where libefa does not say, and where it says that there is no limit.
fn max_batch(efadv: &Efadv, qp: &Qp) -> u32 {
    let (mut sq, mut rq) = (efadv_wq_attr::default(), efadv_wq_attr::default());
    let len = size_of::<efadv_wq_attr>() as u32;
    // SAFETY: the queue pair is alive, both structs are writable and of that length.
    let code = unsafe { efadv.efadv_query_qp_wqs(qp.as_ptr(), &mut sq, &mut rq, len) };
    if code == 0 && sq.max_batch < u32::from(u16::MAX) { sq.max_batch } else { 0 }
}

/// Whether library, kernel and driver know dma-bufs at all: something that is none is refused as such
/// where they do.
fn registers_dmabufs(pd: &Arc<Pd>) -> bool {
    let Ok((reader, _writer)) = std::io::pipe() else { return false };
    // SAFETY: a pipe has no buffer that could be referenced.
    let answer = unsafe { Mr::register_dmabuf(pd, reader.as_fd(), 0, 4096, 0, Access::LOCAL_WRITE) };
    answer.map_or_else(|e| e.kind() != ErrorKind::Unsupported, |_| true)
}
