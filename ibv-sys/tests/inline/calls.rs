//! Which operation each inline function calls, with which arguments and result, in Rust and in C.
//!
//! # Safety
//!
//! Every function of C that is called has the type that it is called by, and no recorder follows a pointer.
#![allow(clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)] // The paragraph above holds for all.

use std::ffi::{c_int, c_uint, c_void};

use ibv_sys::*;

use super::recorder::{Call, Word, take_calls};
use super::with_c;

/// A pointer that nobody follows.
fn p<T>(n: usize) -> *mut T {
    (n * 0x1000) as *mut T
}

/// Each inline function: its type in C and the arguments to give. `$on` is what Rust calls it on, if a table.
///
/// `$each!` gets `name, [on], fn(types) -> result, (arguments)`; pointers to objects are fields of the bench.
macro_rules! inline_functions {
    ($each:ident, $b:ident) => {
        $each! {
            ibv_post_send [] fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int = (&mut *$b.qp, p(1), $b.bad());
            ibv_post_recv [] fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int = (&mut *$b.qp, p(1), $b.bad());
            ibv_post_srq_recv [] fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int = (&mut *$b.srq, p(1), $b.bad());
            ibv_post_wq_recv [] fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int = (&mut *$b.wq, p(1), $b.bad());
            ibv_poll_cq [] fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int = (&mut *$b.cq, 5, p(1));
            ibv_req_notify_cq [] fn(*mut ibv_cq, c_int) -> c_int = (&mut *$b.cq, 1);
            ibv_alloc_mw [] fn(*mut ibv_pd, ibv_mw_type) -> *mut ibv_mw = (&mut *$b.pd, IBV_MW_TYPE_2);
            ibv_dealloc_mw [] fn(*mut ibv_mw) -> c_int = (&mut *$b.mw);
            ibv_bind_mw [] fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int = (&mut *$b.qp, &mut *$b.mw, &mut *$b.mw_bind);
            ibv_wr_start [] fn(*mut ibv_qp_ex) -> () = (&mut *$b.qp_ex);
            ibv_wr_complete [] fn(*mut ibv_qp_ex) -> c_int = (&mut *$b.qp_ex);
            ibv_wr_abort [] fn(*mut ibv_qp_ex) -> () = (&mut *$b.qp_ex);
            ibv_wr_send [] fn(*mut ibv_qp_ex) -> () = (&mut *$b.qp_ex);
            ibv_wr_send_imm [] fn(*mut ibv_qp_ex, u32) -> () = (&mut *$b.qp_ex, 0x0102_0304);
            ibv_wr_send_inv [] fn(*mut ibv_qp_ex, u32) -> () = (&mut *$b.qp_ex, 0x0102_0304);
            ibv_wr_send_tso [] fn(*mut ibv_qp_ex, *mut c_void, u16, u16) -> () = (&mut *$b.qp_ex, p(1), 54, 1460);
            ibv_wr_local_inv [] fn(*mut ibv_qp_ex, u32) -> () = (&mut *$b.qp_ex, 77);
            ibv_wr_rdma_read [] fn(*mut ibv_qp_ex, u32, u64) -> () = (&mut *$b.qp_ex, 7, u64::MAX - 1);
            ibv_wr_rdma_write [] fn(*mut ibv_qp_ex, u32, u64) -> () = (&mut *$b.qp_ex, 7, u64::MAX - 1);
            ibv_wr_rdma_write_imm [] fn(*mut ibv_qp_ex, u32, u64, u32) -> () = (&mut *$b.qp_ex, 7, 8, 9);
            ibv_wr_atomic_cmp_swp [] fn(*mut ibv_qp_ex, u32, u64, u64, u64) -> () = (&mut *$b.qp_ex, 1, 2, 3, 4);
            ibv_wr_atomic_fetch_add [] fn(*mut ibv_qp_ex, u32, u64, u64) -> () = (&mut *$b.qp_ex, 1, 2, 3);
            ibv_wr_atomic_write [] fn(*mut ibv_qp_ex, u32, u64, *const c_void) -> () = (&mut *$b.qp_ex, 1, 2, p(3));
            ibv_wr_bind_mw [] fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info) -> () = (&mut *$b.qp_ex, p(1), 2, p(3));
            ibv_wr_flush [] fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8) -> () = (&mut *$b.qp_ex, 1, 2, 3, 4, 5);
            ibv_wr_set_ud_addr [] fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32) -> () = (&mut *$b.qp_ex, p(1), 2, 3);
            ibv_wr_set_xrc_srqn [] fn(*mut ibv_qp_ex, u32) -> () = (&mut *$b.qp_ex, 3);
            ibv_wr_set_inline_data [] fn(*mut ibv_qp_ex, *mut c_void, usize) -> () = (&mut *$b.qp_ex, p(1), 64);
            ibv_wr_set_inline_data_list [] fn(*mut ibv_qp_ex, usize, *const ibv_data_buf) -> () = (&mut *$b.qp_ex, 2, p(1));
            ibv_wr_set_sge [] fn(*mut ibv_qp_ex, u32, u64, u32) -> () = (&mut *$b.qp_ex, 1, 2, u32::MAX);
            ibv_wr_set_sge_list [] fn(*mut ibv_qp_ex, usize, *const ibv_sge) -> () = (&mut *$b.qp_ex, 3, p(1));
            ibv_cq_ex_to_cq [] fn(*mut ibv_cq_ex) -> *mut ibv_cq = (p(9));
            ibv_start_poll [] fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int = (&mut *$b.cq_ex, p(1));
            ibv_next_poll [] fn(*mut ibv_cq_ex) -> c_int = (&mut *$b.cq_ex);
            ibv_end_poll [] fn(*mut ibv_cq_ex) -> () = (&mut *$b.cq_ex);
            ibv_wc_read_opcode [] fn(*mut ibv_cq_ex) -> ibv_wc_opcode = (&mut *$b.cq_ex);
            ibv_wc_read_vendor_err [] fn(*mut ibv_cq_ex) -> u32 = (&mut *$b.cq_ex);
            ibv_wc_read_byte_len [] fn(*mut ibv_cq_ex) -> u32 = (&mut *$b.cq_ex);
            ibv_wc_read_imm_data [] fn(*mut ibv_cq_ex) -> u32 = (&mut *$b.cq_ex);
            ibv_wc_read_invalidated_rkey [] fn(*mut ibv_cq_ex) -> u32 = (&mut *$b.cq_ex);
            ibv_wc_read_qp_num [] fn(*mut ibv_cq_ex) -> u32 = (&mut *$b.cq_ex);
            ibv_wc_read_src_qp [] fn(*mut ibv_cq_ex) -> u32 = (&mut *$b.cq_ex);
            ibv_wc_read_wc_flags [] fn(*mut ibv_cq_ex) -> c_uint = (&mut *$b.cq_ex);
            ibv_wc_read_slid [] fn(*mut ibv_cq_ex) -> u32 = (&mut *$b.cq_ex);
            ibv_wc_read_sl [] fn(*mut ibv_cq_ex) -> u8 = (&mut *$b.cq_ex);
            ibv_wc_read_dlid_path_bits [] fn(*mut ibv_cq_ex) -> u8 = (&mut *$b.cq_ex);
            ibv_wc_read_completion_ts [] fn(*mut ibv_cq_ex) -> u64 = (&mut *$b.cq_ex);
            ibv_wc_read_completion_wallclock_ns [] fn(*mut ibv_cq_ex) -> u64 = (&mut *$b.cq_ex);
            ibv_wc_read_cvlan [] fn(*mut ibv_cq_ex) -> u16 = (&mut *$b.cq_ex);
            ibv_wc_read_flow_tag [] fn(*mut ibv_cq_ex) -> u32 = (&mut *$b.cq_ex);
            ibv_wc_read_tm_info [] fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info) -> () = (&mut *$b.cq_ex, p(1));
            ibv_query_port [verbs] fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int = ($b.context(), 1, p(1));
            ibv_query_gid_ex [verbs] fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32) -> c_int = ($b.context(), 1, 2, p(1), 0);
            ibv_query_gid_table [verbs] fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32) -> isize = ($b.context(), p(1), 16, 0);
            ibv_query_comp_cntr_caps [verbs] fn(*mut ibv_context, *mut ibv_comp_cntr_caps) -> c_int = ($b.context(), p(1));
            ibv_query_device_ex [verbs] fn(*mut ibv_context, *const ibv_query_device_ex_input, *mut ibv_device_attr_ex) -> c_int = ($b.context(), std::ptr::null(), p(1));
            ibv_create_flow [] fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow = (&mut *$b.qp, p(1));
            ibv_destroy_flow [] fn(*mut ibv_flow) -> c_int = (&mut *$b.flow);
            ibv_create_flow_action_esp [] fn(*mut ibv_context, *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action = ($b.context(), p(1));
            ibv_modify_flow_action_esp [] fn(*mut ibv_flow_action, *mut ibv_flow_action_esp_attr) -> c_int = (&mut *$b.action, p(1));
            ibv_destroy_flow_action [] fn(*mut ibv_flow_action) -> c_int = (&mut *$b.action);
            ibv_open_xrcd [] fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd = ($b.context(), p(1));
            ibv_close_xrcd [] fn(*mut ibv_xrcd) -> c_int = (&mut *$b.xrcd);
            ibv_advise_mr [] fn(*mut ibv_pd, u32, u32, *mut ibv_sge, u32) -> c_int = (&mut *$b.pd, 1, 2, p(1), 3);
            ibv_alloc_dm [] fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm = ($b.context(), p(1));
            ibv_free_dm [] fn(*mut ibv_dm) -> c_int = (&mut *$b.dm);
            ibv_memcpy_to_dm [] fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int = (&mut *$b.dm, 1, p(2), 3);
            ibv_memcpy_from_dm [] fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int = (p(1), &mut *$b.dm, 2, 3);
            ibv_alloc_null_mr [] fn(*mut ibv_pd) -> *mut ibv_mr = (&mut *$b.pd);
            ibv_reg_dm_mr [] fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr = (&mut *$b.pd, p(1), 2, 3, 4);
            ibv_create_cq_ex [] fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex = ($b.context(), p(1));
            ibv_modify_cq [] fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int = (&mut *$b.cq, p(1));
            ibv_get_srq_num [] fn(*mut ibv_srq, *mut u32) -> c_int = (&mut *$b.srq, p(1));
            ibv_post_srq_ops [] fn(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int = (&mut *$b.srq, p(1), $b.bad());
            ibv_alloc_td [] fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td = ($b.context(), p(1));
            ibv_dealloc_td [] fn(*mut ibv_td) -> c_int = (&mut *$b.td);
            ibv_alloc_parent_domain [] fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd = ($b.context(), p(1));
            ibv_query_rt_values_ex [] fn(*mut ibv_context, *mut ibv_values_ex) -> c_int = ($b.context(), p(1));
            ibv_open_qp [] fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp = ($b.context(), p(1));
            ibv_modify_qp_rate_limit [] fn(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int = (&mut *$b.qp, p(1));
            ibv_modify_wq [] fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int = (&mut *$b.wq, p(1));
            ibv_destroy_wq [] fn(*mut ibv_wq) -> c_int = (&mut *$b.wq);
            ibv_create_rwq_ind_table [] fn(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table = ($b.context(), p(1));
            ibv_destroy_rwq_ind_table [] fn(*mut ibv_rwq_ind_table) -> c_int = (&mut *$b.rwq);
            ibv_create_counters [] fn(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters = ($b.context(), p(1));
            ibv_destroy_counters [] fn(*mut ibv_counters) -> c_int = (&mut *$b.counters);
            ibv_attach_counters_point_flow [] fn(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> c_int = (&mut *$b.counters, p(1), p(2));
            ibv_read_counters [] fn(*mut ibv_counters, *mut u64, u32, u32) -> c_int = (&mut *$b.counters, p(1), 2, 3);
            mlx5dv_wr_set_dc_addr [] fn(*mut mlx5dv_qp_ex, *mut ibv_ah, u32, u64) -> () = (&mut *$b.mlx5_qp, p(1), 2, 3);
            mlx5dv_wr_set_dc_addr_stream [] fn(*mut mlx5dv_qp_ex, *mut ibv_ah, u32, u64, u16) -> () = (&mut *$b.mlx5_qp, p(1), 2, 3, 4);
            mlx5dv_wr_mr_interleaved [] fn(*mut mlx5dv_qp_ex, *mut mlx5dv_mkey, u32, u32, u16, *mut mlx5dv_mr_interleaved) -> () = (&mut *$b.mlx5_qp, p(1), 2, 3, 4, p(5));
            mlx5dv_wr_mr_list [] fn(*mut mlx5dv_qp_ex, *mut mlx5dv_mkey, u32, u16, *mut ibv_sge) -> () = (&mut *$b.mlx5_qp, p(1), 2, 3, p(4));
            mlx5dv_wr_mkey_configure [] fn(*mut mlx5dv_qp_ex, *mut mlx5dv_mkey, u8, *mut mlx5dv_mkey_conf_attr) -> () = (&mut *$b.mlx5_qp, p(1), 2, p(3));
            mlx5dv_wr_set_mkey_access_flags [] fn(*mut mlx5dv_qp_ex, u32) -> () = (&mut *$b.mlx5_qp, 2);
            mlx5dv_wr_set_mkey_layout_list [] fn(*mut mlx5dv_qp_ex, u16, *const ibv_sge) -> () = (&mut *$b.mlx5_qp, 2, p(1));
            mlx5dv_wr_set_mkey_layout_interleaved [] fn(*mut mlx5dv_qp_ex, u32, u16, *const mlx5dv_mr_interleaved) -> () = (&mut *$b.mlx5_qp, 1, 2, p(3));
            mlx5dv_wr_set_mkey_sig_block [] fn(*mut mlx5dv_qp_ex, *const mlx5dv_sig_block_attr) -> () = (&mut *$b.mlx5_qp, p(1));
            mlx5dv_wr_set_mkey_crypto [] fn(*mut mlx5dv_qp_ex, *const mlx5dv_crypto_attr) -> () = (&mut *$b.mlx5_qp, p(1));
            mlx5dv_wr_memcpy [] fn(*mut mlx5dv_qp_ex, u32, u64, u32, u64, usize) -> () = (&mut *$b.mlx5_qp, 1, 2, 3, 4, 5);
            mlx5dv_wr_raw_wqe [] fn(*mut mlx5dv_qp_ex, *const c_void) -> () = (&mut *$b.mlx5_qp, p(1));
            mlx5dv_mkey_check [mlx5dv] fn(*mut mlx5dv_mkey, *mut mlx5dv_mkey_err) -> c_int = (p(1), p(2));
            mlx5dv_query_port [mlx5dv] fn(*mut ibv_context, u32, *mut mlx5dv_port) -> c_int = (p(1), 2, p(3));
            mlx5dv_create_flow [mlx5dv] fn(*mut mlx5dv_flow_matcher, *mut mlx5dv_flow_match_parameters, usize, *mut mlx5dv_flow_action_attr) -> *mut ibv_flow = (p(1), p(2), 3, p(4));
            mlx5dv_get_export_sizes [mlx5dv] fn(*mut mlx5dv_export_sizes) -> () = (p(1));
            efadv_wr_set_processing_hints [] fn(*mut efadv_qp, u32) -> () = (&mut *$b.efa_qp, 1);
            efadv_wc_read_sgid [] fn(*mut efadv_cq, *mut ibv_gid) -> c_int = (&mut *$b.efa_cq, p(1));
            efadv_wc_is_unsolicited [] fn(*mut efadv_cq) -> bool = (&mut *$b.efa_cq);
        }
    };
}
pub(crate) use inline_functions;

/// Functions that pass the length of a struct as their last argument, which older headers have a smaller one of.
const PASS_A_LENGTH: [&str; 2] = ["ibv_query_port", "mlx5dv_create_flow"];

#[test]
fn every_function_calls_what_c_calls() {
    with_c(|headers, bench, c| {
        let mut compared = 0;
        let mut failed = Vec::new();
        macro_rules! compare {
            ($($name:ident [$($on:ident)?] fn($($ty:ty),*) -> $ret:ty = ($($arg:expr),*);)*) => {
                $(if let Some(function) = c.function(stringify!($name)) {
                    let theirs = unsafe {
                        let function: unsafe extern "C" fn($($ty),*) -> $ret = std::mem::transmute(function);
                        function($($arg),*).word()
                    };
                    let their_calls = take_calls();
                    #[allow(unused_unsafe)] // One of them is a cast, and safe.
                    let ours = unsafe { compare!(@call [$($on)?] bench $name($($arg),*)) }.word();
                    if !same((ours, take_calls()), (theirs, their_calls.clone()), stringify!($name)) {
                        failed.push(format!("{}: C gave {theirs:#x} after {their_calls:x?}", stringify!($name)));
                    }
                    compared += 1;
                })*
            };
            (@call [] $bench:ident $name:ident($($arg:expr),*)) => { $name($($arg),*) };
            (@call [$on:ident] $bench:ident $name:ident($($arg:expr),*)) => {{
                let table = $bench.$on;
                table.$name($($arg),*)
            }};
        }
        inline_functions!(compare, bench);
        assert!(failed.is_empty(), "{}:\n{}", headers.label, failed.join("\n"));
        assert!(compared > 95, "{}: only {compared} functions compared", headers.label);
        println!("{}: {compared} functions call what C calls", headers.label);
    });
}

type Seen = (u64, Vec<Call>);

/// The same result and calls, but for a length that is smaller in older headers.
fn same(mut ours: Seen, mut theirs: Seen, name: &str) -> bool {
    if PASS_A_LENGTH.contains(&name) {
        let length =
            |seen: &mut Seen| seen.1.iter_mut().filter_map(|(_, arguments)| arguments.pop()).next_back();
        let (our_length, their_length) = (length(&mut ours), length(&mut theirs));
        return ours == theirs && their_length <= our_length;
    }
    ours == theirs && !(ours.1.is_empty() && name != "ibv_cq_ex_to_cq")
}
