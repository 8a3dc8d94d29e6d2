//! Publishing what was built: one session of the extended interface, or one list of the plain one.
#![allow(unsafe_code)]
//! # Safety
//! The queue pair is alive and, by `&mut`, nobody else posts to it. A session is completed or aborted
//! before its function returns; between start and end nothing is called but builders, which do not yield.

use crate::work::SendList;
use ibv_core::verbs::Qp;
use ibv_sys::{
    IBV_SEND_INLINE, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_post_send,
    ibv_qp_ex, ibv_send_wr, ibv_sge, ibv_wr_abort, ibv_wr_atomic_cmp_swp, ibv_wr_atomic_fetch_add,
    ibv_wr_complete, ibv_wr_rdma_read, ibv_wr_rdma_write, ibv_wr_rdma_write_imm, ibv_wr_send,
    ibv_wr_send_imm, ibv_wr_set_inline_data, ibv_wr_set_sge, ibv_wr_set_sge_list, ibv_wr_start,
};
use std::{
    ffi::c_int,
    ptr::{self, NonNull},
};

/// Publishes the whole list in one session: all of it, or on `Err` none.
///
/// # Errors
/// The library's number.
///
/// # Safety
/// `ex` is the extended part of a queue pair that is alive and that nobody else posts to.
pub(crate) unsafe fn publish_session(ex: NonNull<ibv_qp_ex>, list: &SendList) -> Result<(), c_int> {
    let qp = ex.as_ptr();
    // SAFETY: the caller's promise; ended below, whatever happens.
    let mut code = unsafe { ibv_wr_start(qp) };
    if code != 0 {
        return Err(code);
    }
    for (wr, sges) in list.iter() {
        // SAFETY: inside the session.
        code = unsafe { build(qp, wr, sges) };
        if code != 0 {
            // SAFETY: inside the session, which this ends; its own answer would change nothing.
            let _ = unsafe { ibv_wr_abort(qp) };
            return Err(code);
        }
    }
    // SAFETY: inside the session, which this ends.
    match unsafe { ibv_wr_complete(qp) } {
        0 => Ok(()),
        code => Err(code),
    }
}

/// Builds one request: first what it does, then its local side (`ibv_wr_post(3)`).
///
/// # Safety
/// Between start and complete.
#[inline]
unsafe fn build(qp: *mut ibv_qp_ex, wr: &ibv_send_wr, sges: &[ibv_sge]) -> c_int {
    // SAFETY: the queue pair is alive, and the session is ours.
    unsafe {
        (*qp).wr_id = wr.wr_id;
        (*qp).wr_flags = wr.send_flags & !IBV_SEND_INLINE;
    }
    // SAFETY: as above.
    let code = unsafe { operation(qp, wr) };
    if code != 0 {
        return code;
    }
    // SAFETY: as above; the ranges and inline bytes are the list's, and live through the session.
    unsafe {
        match sges {
            [one] if wr.send_flags & IBV_SEND_INLINE != 0 => {
                ibv_wr_set_inline_data(qp, one.addr as *mut _, one.length as usize)
            }
            [one] => ibv_wr_set_sge(qp, one.lkey, one.addr, one.length),
            sges => ibv_wr_set_sge_list(qp, sges.len(), sges.as_ptr()),
        }
    }
}

/// # Safety
/// Between start and complete.
#[inline]
unsafe fn operation(qp: *mut ibv_qp_ex, wr: &ibv_send_wr) -> c_int {
    // SAFETY: `SendList::push` wrote the member of each union that the opcode says; all are integers.
    let (rdma, atomic, imm) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.__bindgen_anon_1.imm_data) };
    // SAFETY: the caller's promise.
    unsafe {
        match wr.opcode {
            IBV_WR_RDMA_WRITE => ibv_wr_rdma_write(qp, rdma.rkey, rdma.remote_addr),
            IBV_WR_RDMA_WRITE_WITH_IMM => ibv_wr_rdma_write_imm(qp, rdma.rkey, rdma.remote_addr, imm),
            IBV_WR_RDMA_READ => ibv_wr_rdma_read(qp, rdma.rkey, rdma.remote_addr),
            IBV_WR_SEND => ibv_wr_send(qp),
            IBV_WR_SEND_WITH_IMM => ibv_wr_send_imm(qp, imm),
            IBV_WR_ATOMIC_CMP_AND_SWP => {
                ibv_wr_atomic_cmp_swp(qp, atomic.rkey, atomic.remote_addr, atomic.compare_add, atomic.swap)
            }
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                ibv_wr_atomic_fetch_add(qp, atomic.rkey, atomic.remote_addr, atomic.compare_add)
            }
            _ => libc::EOPNOTSUPP,
        }
    }
}

/// Posts the list from `from` on. `Err` has the library's number and the position of the first request
/// that it did not take: those before it are published and can not be taken back.
pub(crate) fn publish_list(qp: &mut Qp, list: &mut SendList, from: usize) -> Result<(), (c_int, usize)> {
    let (mut code, mut bad) = (0, ptr::null_mut());
    list.as_list(from, |first| {
        bad = first.as_ptr();
        // SAFETY: the queue pair is alive and exclusively borrowed; the list is well formed, and every
        // request was made by core from views whose memory a key guards.
        code = unsafe { ibv_post_send(qp.as_ptr(), first.as_ptr(), &mut bad) };
    });
    if code == 0 {
        return Ok(());
    }
    // A library that does not say which took none.
    Err((code, list.position(bad).unwrap_or(from).max(from)))
}
