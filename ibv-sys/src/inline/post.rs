//! Posting, polling and arming through the operations of a device context. Holds no builder of the extended
//! queue pair: `wr` does.
//!
//! # Safety
//!
//! See the parent module.

use core::ffi::c_int;

use crate::*;

/// Calls an operation of the context's plain table, or gives `$absent` if it is null.
macro_rules! plain_op {
    ($object:ident, $op:ident($($arg:expr),*), $absent:expr) => {{
        // SAFETY: the caller's promise: the object and its context are alive.
        match unsafe { (*(*$object).context).ops.$op } {
            // SAFETY: as above; the arguments are the operation's own.
            Some(op) => unsafe { op($($arg),*) },
            None => $absent,
        }
    }};
}

/// EOPNOTSUPP, with the first request as the refused one.
fn refuse<T>(wr: *mut T, bad_wr: *mut *mut T) -> c_int {
    if !bad_wr.is_null() {
        // SAFETY: the caller of the verb promises that it is writable.
        unsafe { bad_wr.write(wr) };
    }
    libc::EOPNOTSUPP
}

/// Posts a list of send work requests; gives 0 or the error number, with the first refused one in `bad_wr`.
///
/// # Safety
///
/// As for `ibv_post_send`: the queue pair is alive, the list is well formed, and the memory that it names stays
/// registered and untouched until the completion.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    plain_op!(qp, post_send(qp, wr, bad_wr), refuse(wr, bad_wr))
}

/// Posts a list of receive work requests; gives 0 or the error number, with the first refused one in `bad_wr`.
///
/// # Safety
///
/// As [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    plain_op!(qp, post_recv(qp, wr, bad_wr), refuse(wr, bad_wr))
}

/// Posts a list of receive work requests to a shared receive queue.
///
/// # Safety
///
/// As [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    plain_op!(srq, post_srq_recv(srq, recv_wr, bad_recv_wr), refuse(recv_wr, bad_recv_wr))
}

/// Posts a list of receive work requests to a work queue; gives 0 or the error number.
///
/// # Safety
///
/// As [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_wq_recv(
    wq: *mut ibv_wq,
    recv_wr: *mut ibv_recv_wr,
    bad_recv_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's promise: the work queue is alive.
    match unsafe { (*wq).post_recv } {
        // SAFETY: as above; the arguments are the operation's own.
        Some(op) => unsafe { op(wq, recv_wr, bad_recv_wr) },
        None => refuse(recv_wr, bad_recv_wr),
    }
}

/// Takes up to `num_entries` completions; gives how many, or a negative number (−EOPNOTSUPP for a missing
/// operation).
///
/// # Safety
///
/// As for `ibv_poll_cq`: the queue is alive and `wc` has room for `num_entries`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    plain_op!(cq, poll_cq(cq, num_entries, wc), -libc::EOPNOTSUPP)
}

/// Asks for one event at the next completion (`solicited_only` 0) or solicited completion; 0 or the error number.
///
/// # Safety
///
/// The queue is alive and has a completion channel.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    plain_op!(cq, req_notify_cq(cq, solicited_only), libc::EOPNOTSUPP)
}

/// Allocates a memory window; null with `errno` set on failure.
///
/// # Safety
///
/// The protection domain is alive.
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> *mut ibv_mw {
    plain_op!(pd, alloc_mw(pd, mw_type), {
        table::set_errno(libc::EOPNOTSUPP);
        core::ptr::null_mut()
    })
}

/// Frees a memory window; 0 or the error number.
///
/// # Safety
///
/// The window is alive, and is not used after success.
#[inline]
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    plain_op!(mw, dealloc_mw(mw), libc::EOPNOTSUPP)
}

/// Posts a bind of a type 1 window; 0 or the error number (EINVAL and EPERM before anything is posted).
///
/// # Safety
///
/// As for `ibv_bind_mw`: queue pair, window and `mw_bind` with its region are alive.
#[inline]
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller's promise.
    let (window, bind) = unsafe { (&*mw, &(*mw_bind).bind_info) };
    if window.type_ != IBV_MW_TYPE_1 || (bind.mr.is_null() && (bind.addr != 0 || bind.length != 0)) {
        return libc::EINVAL;
    }
    // SAFETY: the caller's promise for a region that is named.
    if !bind.mr.is_null() && unsafe { (*bind.mr).pd } != window.pd {
        return libc::EPERM;
    }
    plain_op!(mw, bind_mw(qp, mw, mw_bind), libc::EOPNOTSUPP)
}

/// The rkey with its low 8 bits, the consumer's own, counted up by one.
#[inline]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

/// True if a capability mask has a queue pair type's bit.
#[inline]
pub const fn ibv_is_qpt_supported(caps: u32, qpt: ibv_qp_type) -> bool {
    // A type that no mask has room for (IBV_QPT_DRIVER) shifts out.
    matches!(1u32.checked_shl(qpt.0), Some(bit) if caps & bit != 0)
}

/// The UDP source port, in RoCE's range, that spreads a flow label over the network's paths.
#[inline]
pub const fn ibv_flow_label_to_udp_sport(flow_label: u32) -> u16 {
    let folded = (flow_label & 0x3fff) ^ ((flow_label & 0xf_c000) >> 14);
    folded as u16 | IB_ROCE_UDP_ENCAP_VALID_PORT_MIN as u16
}
