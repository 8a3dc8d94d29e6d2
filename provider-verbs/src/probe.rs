//! What no query tells: the inline limit, and whether the driver registers dma-bufs. Each is tried once
//! when a device is opened, and nothing of it is left.
#![allow(unsafe_code)]
//! # Safety
//! The one raw call registers nothing: its descriptor is not open.

use crate::create::{Shape, create};
use ibv_core::{
    DeviceKind, Error,
    verbs::{Cq, Pd, device, limits::Probed},
};
use ibv_sys::{IBV_ACCESS_LOCAL_WRITE, Verbs, ibv_qp_cap};
use std::{io, ptr, sync::Arc};

/// Inline sizes to try, largest first. A device rounds up, so these are steps, not results.
const INLINE: [u32; 7] = [1024, 512, 256, 128, 64, 32, 0];

/// Tries.
///
/// # Errors
/// The device's, where it makes no reliable connection at all.
pub(crate) fn probe(pd: &Arc<Pd>, atomics: bool) -> Result<Probed, Error> {
    let context = pd.context();
    Ok(Probed {
        max_inline: inline(pd, atomics)?,
        dmabuf: dmabuf(pd),
        relaxed_ordering: relaxed_ordering(pd),
        channels: context.comp_vectors() > 0,
    })
}

/// The largest inline size at which a queue pair can be made.
fn inline(pd: &Arc<Pd>, atomics: bool) -> Result<u32, Error> {
    let cq = Cq::create(pd.context(), 2, false)?;
    let mut last = None;
    for max_inline_data in INLINE {
        let cap =
            ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data };
        match create(pd, Shape { cap, atomics }, &cq, &cq) {
            Ok(made) => return Ok(made.cap.max_inline_data.min(most_inline(max_inline_data))),
            Err(e) => last = Some(e),
        }
    }
    Err(last.unwrap_or_else(|| Error::from_errno("create_qp", libc::EINVAL)))
}

/// What is claimed for a size that worked: not more than the next larger one that did not.
fn most_inline(worked: u32) -> u32 {
    let larger = INLINE.into_iter().rev().find(|size| *size > worked);
    larger.map_or(worked, |size| size - 1)
}

/// A driver without dma-buf support says so before it looks at the descriptor; one that has it finds that
/// the descriptor is not open (ib_uverbs, UVERBS_METHOD_REG_DMABUF_MR).
fn dmabuf(pd: &Pd) -> bool {
    let verbs = pd.context().verbs();
    // SAFETY: the domain is alive; nothing is registered through a descriptor that is not open.
    let mr = unsafe { verbs.ibv_reg_dmabuf_mr(pd.as_ptr(), 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE as i32) };
    if mr.is_null() {
        return io::Error::last_os_error().raw_os_error() == Some(libc::EBADF);
    }
    // SAFETY: just created, against all expectation; destroyed once.
    unsafe { verbs.ibv_dereg_mr(mr) };
    true
}

/// Software devices move bytes with the processor, which has nothing to relax; and a library without
/// `ibv_reg_mr_iova2` leaves the flag out.
fn relaxed_ordering(pd: &Pd) -> bool {
    let context = pd.context();
    let known = !ptr::fn_addr_eq(context.verbs().ibv_reg_mr_iova2, Verbs::unsupported().ibv_reg_mr_iova2);
    known && device::describe(context).kind == DeviceKind::Hardware
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_claimed_than_was_tried() {
        assert_eq!((most_inline(1024), most_inline(512), most_inline(0)), (1024, 1023, 31));
    }
}
