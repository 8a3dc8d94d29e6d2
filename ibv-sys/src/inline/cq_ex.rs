//! Polling an extended completion queue and reading the fields of its current entry. Holds no conversion of
//! what is read.
//!
//! # Safety
//!
//! See the parent module.

use core::ffi::{c_int, c_uint};

use super::void_op;
use crate::*;

/// Defines one reader per field: its value, or EOPNOTSUPP if the queue was created without it.
macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident => $op:ident -> $ty:ty;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            ///
            /// EOPNOTSUPP if the queue was created without this field.
            ///
            /// # Safety
            ///
            /// The queue is alive and has a current entry: the last start or next gave 0.
            #[inline]
            pub unsafe fn $name(cq: *mut ibv_cq_ex) -> Result<$ty, c_int> {
                // SAFETY: the caller's promise.
                match unsafe { (*cq).$op } {
                    // SAFETY: as above.
                    Some(op) => Ok(unsafe { op(cq) }),
                    None => Err(libc::EOPNOTSUPP),
                }
            }
        )*
    };
}

readers! {
    /// What kind of request completed; valid only if the status is success.
    ibv_wc_read_opcode => read_opcode -> ibv_wc_opcode;
    /// The vendor's own error code.
    ibv_wc_read_vendor_err => read_vendor_err -> u32;
    /// Bytes that were received or read.
    ibv_wc_read_byte_len => read_byte_len -> u32;
    /// Immediate data, in network order.
    ibv_wc_read_imm_data => read_imm_data -> __be32;
    /// Local queue pair number.
    ibv_wc_read_qp_num => read_qp_num -> u32;
    /// The datagram sender's queue pair number.
    ibv_wc_read_src_qp => read_src_qp -> u32;
    /// Mask of `ibv_wc_flags`.
    ibv_wc_read_wc_flags => read_wc_flags -> c_uint;
    /// The sender's LID.
    ibv_wc_read_slid => read_slid -> u32;
    /// Service level.
    ibv_wc_read_sl => read_sl -> u8;
    /// Path bits of the destination LID.
    ibv_wc_read_dlid_path_bits => read_dlid_path_bits -> u8;
    /// The device's clock at completion, in its own cycles.
    ibv_wc_read_completion_ts => read_completion_ts -> u64;
    /// Wall clock at completion, in nanoseconds.
    ibv_wc_read_completion_wallclock_ns => read_completion_wallclock_ns -> u64;
    /// The VLAN tag that was stripped.
    ibv_wc_read_cvlan => read_cvlan -> u16;
    /// The tag of the matching flow.
    ibv_wc_read_flow_tag => read_flow_tag -> u32;
}

/// The remote key that the received message invalidated.
///
/// # Errors
///
/// EOPNOTSUPP if the queue was created without immediate data.
///
/// # Safety
///
/// As [`ibv_wc_read_imm_data`].
#[inline]
pub unsafe fn ibv_wc_read_invalidated_rkey(cq: *mut ibv_cq_ex) -> Result<u32, c_int> {
    // One field holds both, and the key comes in host order in it.
    // SAFETY: the caller's promise.
    unsafe { ibv_wc_read_imm_data(cq) }
}

/// Reads the tag-matching part of the current entry; 0 or EOPNOTSUPP.
///
/// # Safety
///
/// As [`ibv_wc_read_opcode`]; `tm_info` is writable.
#[inline]
#[must_use = "EOPNOTSUPP says that nothing was read"]
pub unsafe fn ibv_wc_read_tm_info(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info) -> c_int {
    void_op!(cq.read_tm_info(tm_info))
}

/// The plain queue inside an extended one: the same object.
#[inline]
pub const fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

/// Begins a poll at the first entry: 0, ENOENT if there is none (then do not end), or an error number.
///
/// # Safety
///
/// The queue is alive and no other poll of it is under way.
#[inline]
#[must_use = "only 0 gives a current entry"]
pub unsafe fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { (*cq).start_poll } {
        // SAFETY: as above.
        Some(op) => unsafe { op(cq, attr) },
        None => libc::EOPNOTSUPP,
    }
}

/// Goes to the next entry: 0, ENOENT if there is none, or an error number.
///
/// # Safety
///
/// A poll of this queue was begun and not ended.
#[inline]
#[must_use = "only 0 gives a current entry"]
pub unsafe fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { (*cq).next_poll } {
        // SAFETY: as above.
        Some(op) => unsafe { op(cq) },
        None => libc::EOPNOTSUPP,
    }
}

/// Ends a poll and gives the entries back to the device; 0 or EOPNOTSUPP.
///
/// # Safety
///
/// A poll of this queue was begun (its start gave 0) and not ended.
#[inline]
pub unsafe fn ibv_end_poll(cq: *mut ibv_cq_ex) -> c_int {
    void_op!(cq.end_poll())
}
