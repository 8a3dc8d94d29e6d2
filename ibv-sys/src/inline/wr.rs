//! The builders of an extended queue pair (`ibv_wr_*`). Holds no ordering rule: the manual page of
//! `ibv_wr_post(3)` has them.
//!
//! # Safety
//!
//! See the parent module.

use core::ffi::{c_int, c_void};

use super::builders;
use crate::*;

builders! {
    ibv_qp_ex;
    /// Begins a batch of work requests; nothing may yield until it is completed or aborted.
    ibv_wr_start() => wr_start;
    /// Builds an atomic compare and swap of 8 bytes.
    ibv_wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) => wr_atomic_cmp_swp;
    /// Builds an atomic fetch and add of 8 bytes.
    ibv_wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) => wr_atomic_fetch_add;
    /// Builds an atomic write of 8 bytes.
    ibv_wr_atomic_write(rkey: u32, remote_addr: u64, atomic_wr: *const c_void) => wr_atomic_write;
    /// Builds a bind of a type 2 window.
    ibv_wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info) => wr_bind_mw;
    /// Builds a flush of remote memory. Only on a queue pair that was created with `IBV_QP_EX_WITH_FLUSH`: that of
    /// an rdma-core before 45 ends before this operation.
    ibv_wr_flush(rkey: u32, remote_addr: u64, len: usize, flush_type: u8, level: u8) => wr_flush;
    /// Builds an invalidation of a local key.
    ibv_wr_local_inv(invalidate_rkey: u32) => wr_local_inv;
    /// Builds a read of remote memory.
    ibv_wr_rdma_read(rkey: u32, remote_addr: u64) => wr_rdma_read;
    /// Builds a write to remote memory.
    ibv_wr_rdma_write(rkey: u32, remote_addr: u64) => wr_rdma_write;
    /// Builds a write to remote memory that the peer sees complete, with immediate data in network order.
    ibv_wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: __be32) => wr_rdma_write_imm;
    /// Builds a send.
    ibv_wr_send() => wr_send;
    /// Builds a send with immediate data in network order.
    ibv_wr_send_imm(imm_data: __be32) => wr_send_imm;
    /// Builds a send that invalidates a key of the peer.
    ibv_wr_send_inv(invalidate_rkey: u32) => wr_send_inv;
    /// Builds a send that the device cuts into TCP segments of `mss` bytes.
    ibv_wr_send_tso(hdr: *mut c_void, hdr_sz: u16, mss: u16) => wr_send_tso;
    /// Sets the datagram peer of the request that was built last.
    ibv_wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) => wr_set_ud_addr;
    /// Sets the remote shared receive queue of the request that was built last.
    ibv_wr_set_xrc_srqn(remote_srqn: u32) => wr_set_xrc_srqn;
    /// Copies the request's payload into it, now.
    ibv_wr_set_inline_data(addr: *mut c_void, length: usize) => wr_set_inline_data;
    /// Copies the request's payload into it from several pieces, now.
    ibv_wr_set_inline_data_list(num_buf: usize, buf_list: *const ibv_data_buf) => wr_set_inline_data_list;
    /// Sets the request's one local piece.
    ibv_wr_set_sge(lkey: u32, addr: u64, length: u32) => wr_set_sge;
    /// Sets the request's local pieces.
    ibv_wr_set_sge_list(num_sge: usize, sg_list: *const ibv_sge) => wr_set_sge_list;
    /// Throws the batch away; the device has seen none of it.
    ibv_wr_abort() => wr_abort;
}

/// Ends a batch and rings the doorbell; 0, or the error number and nothing of the batch was posted.
///
/// # Safety
///
/// The queue pair is alive and a batch was started.
#[inline]
#[must_use = "an error means that nothing was posted"]
pub unsafe fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { (*qp).wr_complete } {
        // SAFETY: as above.
        Some(op) => unsafe { op(qp) },
        None => libc::EOPNOTSUPP,
    }
}
