//! The state block of an mlx5 queue pair and the C functions around it, as `include/rdmaxcel.h` declares
//! them. No policy and no `Drop`: who owns a block is for the crates above.
//!
//! The header is the point of the crate: WQE build, doorbell and CQE poll as inline functions for host and
//! device code alike, which need nothing of rdma-core. [`INCLUDE`] is its folder; pass it
//! to the compiler that builds the code which includes it. With feature `cuda` and an nvcc, `ptx` has the
//! functions as kernels.
//!
//! A queue pair is posted to by one side at a time, and so is a completion queue polled. Whoever drives
//! rings through a block answers for that.
#![cfg_attr(docsrs, feature(doc_cfg))]

use std::{
    ffi::{c_char, c_int, c_void},
    mem::offset_of,
    sync::atomic::AtomicU64,
};

/// The folder of `rdmaxcel.h`.
pub const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");

/// The kernels of `csrc/rdmaxcel.cu` for sm_90, where nvcc was found when this was built.
#[cfg(feature = "cuda")]
#[cfg_attr(docsrs, doc(cfg(feature = "cuda")))]
pub fn ptx() -> Option<&'static str> {
    #[cfg(rdmaxcel_ptx)]
    return Some(include_str!(concat!(env!("OUT_DIR"), "/rdmaxcel.ptx")));
    #[cfg(not(rdmaxcel_ptx))]
    None
}

/// No error.
pub const RDMAXCEL_SUCCESS: c_int = 0;
/// An argument contradicts the queue or the PRM: nothing was written.
pub const RDMAXCEL_INVALID: c_int = -1;
/// No room for it: nothing was written.
pub const RDMAXCEL_QUEUE_FULL: c_int = -14;
/// The completion queue holds what was never asked for.
pub const RDMAXCEL_CQ_POLL_FAILED: c_int = -16;
/// A completion with an error; its details are in the result.
pub const RDMAXCEL_COMPLETION_FAILED: c_int = -17;
/// The operation is none that the header builds.
pub const RDMAXCEL_UNSUPPORTED_OP: c_int = -20;

/// Bits of [`rdmaxcel_wr::flags`].
pub const RDMAXCEL_SOLICITED: u8 = 0x02;
/// See [`RDMAXCEL_SOLICITED`].
pub const RDMAXCEL_SIGNALED: u8 = 0x08;
/// See [`RDMAXCEL_SOLICITED`].
pub const RDMAXCEL_FENCE: u8 = 0x80;

/// The send ring of a queue pair, its doorbell record and its doorbell register.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct rdmaxcel_send_ring {
    /// Basic blocks of 64 bytes.
    pub buf: *mut u64,
    /// Word 0 counts receives, word 1 send blocks.
    pub dbrec: *mut u32,
    /// Two halves of `bf_size` bytes, or one place where that is 0.
    pub bf_reg: *mut u8,
    /// Basic blocks, a power of two.
    pub wqe_cnt: u32,
    /// Bytes of one half.
    pub bf_size: u32,
    /// The half to write next.
    pub bf_offset: u32,
    /// The queue pair.
    pub qp_num: u32,
}

/// The receive ring.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct rdmaxcel_recv_ring {
    /// Receives of `stride` bytes.
    pub buf: *mut u64,
    /// Receives, a power of two, or 0.
    pub wqe_cnt: u32,
    /// Bytes of one.
    pub stride: u32,
}

/// A completion queue's ring.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct rdmaxcel_cq_ring {
    /// Entries.
    pub buf: *mut u64,
    /// Word 0 is the consumer index.
    pub dbrec: *mut u32,
    /// Entries, a power of two.
    pub cqe_cnt: u32,
    /// Bytes of one: 64, or 128.
    pub cqe_size: u32,
}

/// Completions that a poller took for somebody else.
#[repr(C)]
#[derive(Debug)]
#[allow(non_camel_case_types)]
pub struct rdmaxcel_completion_cache {
    _opaque: [u8; 0],
}

/// A queue pair's state, shared by Rust, C and device code.
#[repr(C)]
#[derive(Debug)]
#[allow(non_camel_case_types)]
pub struct rdmaxcel_qp {
    /// `struct ibv_qp *`.
    pub ibv_qp: *mut c_void,
    /// `struct ibv_cq *`.
    pub send_cq: *mut c_void,
    /// `struct ibv_cq *`.
    pub recv_cq: *mut c_void,
    /// The send ring.
    pub sq: rdmaxcel_send_ring,
    /// The receive ring.
    pub rq: rdmaxcel_recv_ring,
    /// The ring of `send_cq`.
    pub send_ring: rdmaxcel_cq_ring,
    /// The ring of `recv_cq`.
    pub recv_ring: rdmaxcel_cq_ring,
    /// Basic blocks built.
    pub send_wqe_idx: AtomicU64,
    /// Of those, rung.
    pub send_db_idx: AtomicU64,
    /// Completions taken off `send_ring`.
    pub send_cq_idx: AtomicU64,
    /// Receives built.
    pub recv_wqe_idx: AtomicU64,
    /// Of those, published.
    pub recv_db_idx: AtomicU64,
    /// Completions taken off `recv_ring`.
    pub recv_cq_idx: AtomicU64,
    /// First block of the last WQE built.
    pub send_last_idx: AtomicU64,
    /// Basic blocks whose requests are known to be finished.
    pub send_done_idx: AtomicU64,
    /// The monotonic clock at RTS, nanoseconds; `u64::MAX` before.
    pub rts_timestamp: AtomicU64,
    /// See [`rdmaxcel_cache_put`].
    pub send_cache: *mut rdmaxcel_completion_cache,
    /// See [`rdmaxcel_cache_put`].
    pub recv_cache: *mut rdmaxcel_completion_cache,
}

/// A registered local range.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub struct rdmaxcel_sge {
    /// Device address.
    pub addr: u64,
    /// Bytes, 1 to 2^31 - 1.
    pub length: u32,
    /// Its key.
    pub lkey: u32,
}

/// A send-queue request: ranges, or inline bytes, or neither.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct rdmaxcel_wr {
    /// The peer's address.
    pub raddr: u64,
    /// Fetch-add: what is added; compare-swap: the new value.
    pub operand: u64,
    /// Compare-swap only.
    pub compare: u64,
    /// `num_sge` ranges.
    pub sges: *const rdmaxcel_sge,
    /// `inline_len` bytes.
    pub inline_data: *const u8,
    /// The peer's key.
    pub rkey: u32,
    /// In the host's byte order.
    pub imm: u32,
    /// Ranges.
    pub num_sge: u32,
    /// Bytes.
    pub inline_len: u32,
    /// `MLX5_OPCODE_*`.
    pub opcode: u8,
    /// `RDMAXCEL_SIGNALED` and so on.
    pub flags: u8,
    /// Zeroes.
    pub reserved: [u8; 6],
}

/// A completion.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub struct rdmaxcel_wc {
    /// The queue pair.
    pub qp_num: u32,
    /// Of reads, atomics and receives.
    pub byte_len: u32,
    /// In the host's byte order.
    pub imm: u32,
    /// The WQE's first basic block, or the receive.
    pub wqe_counter: u16,
    /// `MLX5_CQE_*`.
    pub cqe_opcode: u8,
    /// Of a requester's completion: `MLX5_OPCODE_*`.
    pub send_opcode: u8,
    /// Of a failed one: `MLX5_CQE_SYNDROME_*`.
    pub syndrome: u8,
    /// Of a failed one: the vendor's detail.
    pub vendor_err: u8,
    /// Zeroes.
    pub reserved: [u8; 2],
}

// The header asserts the same of its structs.
const _: () = {
    assert!(size_of::<rdmaxcel_send_ring>() == 40 && size_of::<rdmaxcel_recv_ring>() == 16);
    assert!(size_of::<rdmaxcel_cq_ring>() == 24 && size_of::<rdmaxcel_sge>() == 16);
    assert!(size_of::<rdmaxcel_wr>() == 64 && offset_of!(rdmaxcel_wr, opcode) == 56);
    assert!(size_of::<rdmaxcel_wc>() == 20 && offset_of!(rdmaxcel_wc, syndrome) == 16);
    assert!(offset_of!(rdmaxcel_qp, sq) == 24 && offset_of!(rdmaxcel_qp, send_wqe_idx) == 128);
    assert!(offset_of!(rdmaxcel_qp, rts_timestamp) == 192 && size_of::<rdmaxcel_qp>() == 216);
};

unsafe extern "C" {
    /// A new state block over the rings of `from`, counters at 0; null where a ring can not be one.
    pub fn rdmaxcel_qp_create(from: *const rdmaxcel_qp) -> *mut rdmaxcel_qp;
    /// Frees the block; the completions that were left in its caches.
    pub fn rdmaxcel_qp_destroy(qp: *mut rdmaxcel_qp) -> u32;
    /// `struct ibv_qp *`.
    pub fn rdmaxcel_qp_get_ibv_qp(qp: *const rdmaxcel_qp) -> *mut c_void;
    /// The old value; each of these.
    pub fn rdmaxcel_qp_fetch_add_send_wqe_idx(qp: *mut rdmaxcel_qp) -> u64;
    /// The old value.
    pub fn rdmaxcel_qp_fetch_add_send_db_idx(qp: *mut rdmaxcel_qp) -> u64;
    /// The old value.
    pub fn rdmaxcel_qp_fetch_add_send_cq_idx(qp: *mut rdmaxcel_qp) -> u64;
    /// The old value.
    pub fn rdmaxcel_qp_fetch_add_recv_wqe_idx(qp: *mut rdmaxcel_qp) -> u64;
    /// The old value.
    pub fn rdmaxcel_qp_fetch_add_recv_db_idx(qp: *mut rdmaxcel_qp) -> u64;
    /// The old value.
    pub fn rdmaxcel_qp_fetch_add_recv_cq_idx(qp: *mut rdmaxcel_qp) -> u64;
    /// 0 for null; each of these.
    pub fn rdmaxcel_qp_load_send_wqe_idx(qp: *const rdmaxcel_qp) -> u64;
    /// 0 for null.
    pub fn rdmaxcel_qp_load_send_db_idx(qp: *const rdmaxcel_qp) -> u64;
    /// 0 for null.
    pub fn rdmaxcel_qp_load_send_cq_idx(qp: *const rdmaxcel_qp) -> u64;
    /// 0 for null.
    pub fn rdmaxcel_qp_load_recv_wqe_idx(qp: *const rdmaxcel_qp) -> u64;
    /// 0 for null.
    pub fn rdmaxcel_qp_load_recv_cq_idx(qp: *const rdmaxcel_qp) -> u64;
    /// `u64::MAX` for null and before RTS.
    pub fn rdmaxcel_qp_load_rts_timestamp(qp: *const rdmaxcel_qp) -> u64;
    /// Stores it.
    pub fn rdmaxcel_qp_store_send_db_idx(qp: *mut rdmaxcel_qp, value: u64);
    /// Stores it.
    pub fn rdmaxcel_qp_store_rts_timestamp(qp: *mut rdmaxcel_qp, value: u64);
    /// Stores the time of the monotonic clock as the moment of RTS.
    pub fn rdmaxcel_qp_reached_rts(qp: *mut rdmaxcel_qp);
    /// The cache of the send queue's completions.
    pub fn rdmaxcel_qp_get_send_cache(qp: *const rdmaxcel_qp) -> *mut rdmaxcel_completion_cache;
    /// The cache of the receive queue's completions.
    pub fn rdmaxcel_qp_get_recv_cache(qp: *const rdmaxcel_qp) -> *mut rdmaxcel_completion_cache;
    /// `RDMAXCEL_QUEUE_FULL` where 128 wait already.
    pub fn rdmaxcel_cache_put(
        cache: *mut rdmaxcel_completion_cache,
        wr_id: u64,
        wc: *const rdmaxcel_wc,
    ) -> c_int;
    /// 1 and the oldest one of that request and queue pair, or 0.
    pub fn rdmaxcel_cache_take(
        cache: *mut rdmaxcel_completion_cache,
        wr_id: u64,
        qp_num: u32,
        out: *mut rdmaxcel_wc,
    ) -> c_int;
    /// The header's `rdmaxcel_wqe_build`: blocks taken, or an error.
    pub fn rdmaxcel_host_wqe_build(
        sq: *const rdmaxcel_send_ring,
        index: u64,
        wr: *const rdmaxcel_wr,
    ) -> c_int;
    /// The header's `rdmaxcel_ring`.
    pub fn rdmaxcel_host_ring(sq: *mut rdmaxcel_send_ring, next: u64, last: u64);
    /// The header's `rdmaxcel_recv_build`.
    pub fn rdmaxcel_host_recv_build(
        rq: *const rdmaxcel_recv_ring,
        index: u64,
        sges: *const rdmaxcel_sge,
        num_sge: u32,
    ) -> c_int;
    /// The header's `rdmaxcel_cqe_poll`.
    pub fn rdmaxcel_host_cqe_poll(cq: *const rdmaxcel_cq_ring, index: u64, out: *mut rdmaxcel_wc) -> c_int;
    /// The header's `rdmaxcel_enqueue`.
    pub fn rdmaxcel_host_enqueue(qp: *mut rdmaxcel_qp, wr: *const rdmaxcel_wr) -> c_int;
    /// The header's `rdmaxcel_ring_all`.
    pub fn rdmaxcel_host_ring_all(qp: *mut rdmaxcel_qp);
    /// The header's `rdmaxcel_poll_send`.
    pub fn rdmaxcel_host_poll_send(qp: *mut rdmaxcel_qp, out: *mut rdmaxcel_wc) -> c_int;
    /// What an error means, in words.
    pub fn rdmaxcel_error_string(error: c_int) -> *const c_char;
}
