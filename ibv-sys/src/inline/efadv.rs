//! The inline functions of efadv.h, through the operation tables of an EFA queue pair and completion queue.
//! Holds no conversion from plain objects to those: libefa exports them.
//!
//! # Safety
//!
//! See the parent module. Both structs begin with a `comp_mask` that says nothing of how long the library made
//! them: their operations past the first size exist only where the queue was created with the flag that asks for them.

use core::ffi::c_int;

use super::builders;
use crate::*;

builders! {
    efadv_qp;
    /// Hints how the work requests that follow are to be processed (mask of `efadv_wr_processing_hint`).
    efadv_wr_set_processing_hints(hints: u32) => wr_set_processing_hints;
}

/// Reads the source GID of the current completion; 0, or a negative number if it has none.
///
/// Gives −EOPNOTSUPP if the queue was created without `EFADV_WC_EX_WITH_SGID`.
///
/// # Safety
///
/// The queue is alive and has a current entry; `sgid` is writable.
#[inline]
#[must_use = "only 0 says that the GID was read"]
pub unsafe fn efadv_wc_read_sgid(cq: *mut efadv_cq, sgid: *mut ibv_gid) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { (*cq).wc_read_sgid } {
        // SAFETY: as above.
        Some(op) => unsafe { op(cq, sgid) },
        None => -libc::EOPNOTSUPP,
    }
}

/// True if the current completion is of a write with immediate that took no receive.
///
/// # Errors
///
/// EOPNOTSUPP if the queue was created without `EFADV_WC_EX_WITH_IS_UNSOLICITED`.
///
/// # Safety
///
/// The queue is alive, was created with that flag (an older library's struct ends before this operation), and has a
/// current entry.
#[inline]
pub unsafe fn efadv_wc_is_unsolicited(cq: *mut efadv_cq) -> Result<bool, c_int> {
    // SAFETY: the caller's promise.
    match unsafe { (*cq).wc_is_unsolicited } {
        // SAFETY: as above.
        Some(op) => Ok(unsafe { op(cq) }),
        None => Err(libc::EOPNOTSUPP),
    }
}
