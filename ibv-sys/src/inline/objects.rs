//! Making, changing and destroying objects through the extended operations of a device context. Those that fall
//! back on an exported function are in `tables`.
//!
//! # Safety
//!
//! See the parent module.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;

use super::context::context_op;
use crate::*;

/// Defines functions that call one extended operation, or answer EOPNOTSUPP: by code, or null and `errno`.
macro_rules! context_verbs {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty, $context:expr => $op:ident, $absent:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            #[doc = concat!("As for `", stringify!($name), "` in C: objects are alive, attributes point to valid structs.")]
            #[inline]
            #[allow(unused_unsafe)] // The context itself needs no dereference.
            pub unsafe fn $name($($arg: $ty),*) -> $ret {
                // SAFETY: the caller's promise: the object that leads to the context is alive.
                let context = unsafe { $context };
                match context_op!(context, $op) {
                    // SAFETY: the caller's promise; the arguments are the operation's own.
                    Some(op) => unsafe { op($($arg),*) },
                    None => $absent,
                }
            }
        )*
    };
}

/// Null, with `errno` saying EOPNOTSUPP.
pub(super) fn absent<T>() -> *mut T {
    table::set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}

context_verbs! {
    /// Attaches a flow rule to a queue pair; null with `errno` on failure.
    ibv_create_flow(qp: *mut ibv_qp, flow: *mut ibv_flow_attr) -> *mut ibv_flow,
        (*qp).context => ibv_create_flow, absent();
    /// Detaches a flow rule; 0 or the error number.
    ibv_destroy_flow(flow_id: *mut ibv_flow) -> c_int, (*flow_id).context => ibv_destroy_flow, libc::EOPNOTSUPP;
    /// Creates an ESP flow action; null with `errno` on failure.
    ibv_create_flow_action_esp(context: *mut ibv_context, esp: *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action,
        context => create_flow_action_esp, absent();
    /// Changes an ESP flow action; 0 or the error number.
    ibv_modify_flow_action_esp(action: *mut ibv_flow_action, esp: *mut ibv_flow_action_esp_attr) -> c_int,
        (*action).context => modify_flow_action_esp, libc::EOPNOTSUPP;
    /// Destroys a flow action; 0 or the error number.
    ibv_destroy_flow_action(action: *mut ibv_flow_action) -> c_int,
        (*action).context => destroy_flow_action, libc::EOPNOTSUPP;
    /// Opens an XRC domain; null with `errno` on failure.
    ibv_open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd,
        context => open_xrcd, absent();
    /// Closes an XRC domain; 0 or the error number.
    ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int, (*xrcd).context => close_xrcd, libc::EOPNOTSUPP;
    /// Gives advice on registered memory; 0 or the error number.
    ibv_advise_mr(pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge, num_sge: u32) -> c_int,
        (*pd).context => advise_mr, libc::EOPNOTSUPP;
    /// Allocates device memory; null with `errno` on failure.
    ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm, context => alloc_dm, absent();
    /// Frees device memory; 0 or the error number.
    ibv_free_dm(dm: *mut ibv_dm) -> c_int, (*dm).context => free_dm, libc::EOPNOTSUPP;
    /// Registers a region that reads as zeros and swallows writes; null with `errno` on failure.
    ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr, (*pd).context => alloc_null_mr, absent();
    /// Registers device memory; null with `errno` on failure.
    ibv_reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: c_uint) -> *mut ibv_mr,
        (*pd).context => reg_dm_mr, absent();
    /// Creates an extended completion queue; null with `errno` on failure.
    ibv_create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex,
        context => create_cq_ex, absent();
    /// Changes a completion queue's moderation; 0 or the error number.
    ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int,
        (*cq).context => modify_cq, libc::EOPNOTSUPP;
    /// Reads the number by which an XRC peer names a shared receive queue; 0 or the error number.
    ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int,
        (*srq).context => get_srq_num, libc::EOPNOTSUPP;
    /// Posts tag-matching operations; 0 or the error number.
    ibv_post_srq_ops(srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad_op: *mut *mut ibv_ops_wr) -> c_int,
        (*srq).context => post_srq_ops, libc::EOPNOTSUPP;
    /// Allocates a thread domain; null with `errno` on failure.
    ibv_alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td, context => alloc_td, absent();
    /// Frees a thread domain; 0 or the error number.
    ibv_dealloc_td(td: *mut ibv_td) -> c_int, (*td).context => dealloc_td, libc::EOPNOTSUPP;
    /// Allocates a parent domain; null with `errno` on failure.
    ibv_alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd,
        context => alloc_parent_domain, absent();
    /// Reads values that change at run time, such as the clock; 0 or the error number.
    ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int,
        context => query_rt_values, libc::EOPNOTSUPP;
    /// Opens a shareable queue pair; null with `errno` on failure.
    ibv_open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp, context => open_qp, absent();
    /// Limits a queue pair's rate; 0 or the error number.
    ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int,
        (*qp).context => modify_qp_rate_limit, libc::EOPNOTSUPP;
    /// Changes a work queue; 0 or the error number.
    ibv_modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int,
        (*wq).context => modify_wq, libc::EOPNOTSUPP;
    /// Destroys a work queue; 0 or the error number.
    ibv_destroy_wq(wq: *mut ibv_wq) -> c_int, (*wq).context => destroy_wq, libc::EOPNOTSUPP;
    /// Creates a table of receive queues; null with `errno` on failure.
    ibv_create_rwq_ind_table(context: *mut ibv_context, attr: *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table,
        context => create_rwq_ind_table, absent();
    /// Destroys a table of receive queues; 0 or the error number.
    ibv_destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int,
        (*table).context => destroy_rwq_ind_table, libc::EOPNOTSUPP;
    /// Creates a set of counters; null with `errno` on failure.
    ibv_create_counters(context: *mut ibv_context, attr: *mut ibv_counters_init_attr) -> *mut ibv_counters,
        context => create_counters, absent();
    /// Destroys a set of counters; 0 or the error number.
    ibv_destroy_counters(counters: *mut ibv_counters) -> c_int,
        (*counters).context => destroy_counters, libc::EOPNOTSUPP;
    /// Counts a flow with a set of counters; 0 or the error number.
    ibv_attach_counters_point_flow(counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow) -> c_int,
        (*counters).context => attach_counters_point_flow, libc::EOPNOTSUPP;
    /// Reads a set of counters; 0 or the error number.
    ibv_read_counters(counters: *mut ibv_counters, values: *mut u64, ncounters: u32, flags: u32) -> c_int,
        (*counters).context => read_counters, libc::EOPNOTSUPP;
}

/// Creates a work queue; null with `errno` on failure.
///
/// # Safety
///
/// As for `ibv_create_wq` in C.
#[inline]
pub unsafe fn ibv_create_wq(context: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    let Some(op) = context_op!(context, create_wq) else { return absent() };
    // SAFETY: the caller's promise.
    let wq = unsafe { op(context, attr) };
    if !wq.is_null() {
        // The provider leaves the part that libibverbs keeps for events to whoever called it.
        // SAFETY: a new work queue is nobody else's yet.
        unsafe {
            (*wq).wq_context = (*attr).wq_context;
            (*wq).events_completed = 0;
            libc::pthread_mutex_init(&raw mut (*wq).mutex, ptr::null());
            libc::pthread_cond_init(&raw mut (*wq).cond, ptr::null());
        }
    }
    wq
}

/// Copies host memory into device memory; 0 or the error number.
///
/// # Safety
///
/// As for `ibv_memcpy_to_dm`: `length` bytes are readable at `host_addr`.
#[inline]
pub unsafe fn ibv_memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { (*dm).memcpy_to_dm } {
        // SAFETY: as above.
        Some(op) => unsafe { op(dm, dm_offset, host_addr, length) },
        None => libc::EOPNOTSUPP,
    }
}

/// Copies device memory into host memory; 0 or the error number.
///
/// # Safety
///
/// As for `ibv_memcpy_from_dm`: `length` bytes are writable at `host_addr`.
#[inline]
pub unsafe fn ibv_memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { (*dm).memcpy_from_dm } {
        // SAFETY: as above.
        Some(op) => unsafe { op(host_addr, dm, dm_offset, length) },
        None => libc::EOPNOTSUPP,
    }
}
