//! Objects whose every operation is a recorder, and the C side of the same functions. Compares nothing.
//!
//! # Safety
//!
//! The objects live as long as the bench, whose boxes do not move; no recorder looks into them.

use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr;

use ibv_sys::*;

use super::recorder::{Recorder, address, id};

/// Sets operations of an object to recorders named after them.
macro_rules! record {
    ($object:expr; $($op:ident),* $(,)?) => {
        $($object.$op = Some(Recorder::recorder::<{ id(stringify!($op)) }>());)*
    };
}

/// One of every object that the inline functions take, all of one extended context.
pub struct Bench {
    pub extended: Box<verbs_context>,
    pub verbs: Verbs,
    pub mlx5dv: Mlx5dv,
    pub qp: Box<ibv_qp>,
    pub cq: Box<ibv_cq>,
    pub srq: Box<ibv_srq>,
    pub pd: Box<ibv_pd>,
    pub mw: Box<ibv_mw>,
    pub wq: Box<ibv_wq>,
    pub dm: Box<ibv_dm>,
    pub td: Box<ibv_td>,
    pub xrcd: Box<ibv_xrcd>,
    pub flow: Box<ibv_flow>,
    pub action: Box<ibv_flow_action>,
    pub counters: Box<ibv_counters>,
    pub rwq: Box<ibv_rwq_ind_table>,
    pub qp_ex: Box<ibv_qp_ex>,
    pub cq_ex: Box<ibv_cq_ex>,
    pub mlx5_qp: Box<mlx5dv_qp_ex>,
    pub efa_qp: Box<efadv_qp>,
    pub efa_cq: Box<efadv_cq>,
    pub mw_bind: Box<ibv_mw_bind>,
    pub wq_init: Box<ibv_wq_init_attr>,
    pub bad: Box<*mut c_void>,
}

impl Bench {
    /// Every operation is there.
    pub fn new() -> Self {
        let mut bench = Self::without_operations();
        bench.record_context();
        bench.record_objects();
        bench.record_tables();
        bench
    }

    /// No operation is there, and the exported functions answer EOPNOTSUPP.
    pub fn without_operations() -> Self {
        let mut extended = Box::<verbs_context>::default();
        extended.sz = size_of::<verbs_context>();
        extended.context.abi_compat = usize::MAX as *mut c_void;
        let context = &raw mut extended.context;
        macro_rules! of_context {
            ($ty:ty) => {{
                let mut object = Box::<$ty>::default();
                object.context = context;
                object
            }};
        }
        let mut mw = of_context!(ibv_mw);
        mw.type_ = IBV_MW_TYPE_1;
        Self {
            qp: of_context!(ibv_qp),
            cq: of_context!(ibv_cq),
            srq: of_context!(ibv_srq),
            pd: of_context!(ibv_pd),
            mw,
            wq: of_context!(ibv_wq),
            dm: of_context!(ibv_dm),
            td: of_context!(ibv_td),
            xrcd: of_context!(ibv_xrcd),
            flow: of_context!(ibv_flow),
            action: of_context!(ibv_flow_action),
            counters: of_context!(ibv_counters),
            rwq: of_context!(ibv_rwq_ind_table),
            qp_ex: Box::default(),
            cq_ex: of_context!(ibv_cq_ex),
            mlx5_qp: Box::default(),
            efa_qp: Box::default(),
            efa_cq: Box::default(),
            mw_bind: Box::default(),
            wq_init: Box::default(),
            bad: Box::new(ptr::null_mut()),
            verbs: Verbs::unsupported(),
            mlx5dv: Mlx5dv::unsupported(),
            extended,
        }
    }

    /// Where a post says which request it refused.
    pub fn bad<T>(&mut self) -> *mut *mut T {
        (&raw mut *self.bad).cast()
    }

    pub fn context(&mut self) -> *mut ibv_context {
        &raw mut self.extended.context
    }

    /// As a library that makes no extended context.
    pub fn forget_extension(&mut self) {
        self.extended.context.abi_compat = ptr::null_mut();
    }

    fn record_context(&mut self) {
        record!(self.extended.context.ops; post_send, post_recv, post_srq_recv, poll_cq, req_notify_cq, alloc_mw,
            dealloc_mw, bind_mw);
        record!(self.extended; query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow,
            create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp,
            destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain, dealloc_td,
            alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table, destroy_wq, modify_wq,
            query_rt_values, create_cq_ex, query_device_ex, ibv_destroy_flow, ibv_create_flow, open_qp, create_qp_ex,
            get_srq_num, create_srq_ex, open_xrcd, close_xrcd);
    }

    fn record_objects(&mut self) {
        record!(self.wq; post_recv);
        record!(self.dm; memcpy_to_dm, memcpy_from_dm);
        record!(self.qp_ex; wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv, wr_rdma_read,
            wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr,
            wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start,
            wr_complete, wr_abort, wr_atomic_write, wr_flush);
        record!(self.cq_ex; start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len,
            read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits,
            read_completion_ts, read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns);
        record!(self.mlx5_qp; wr_set_dc_addr, wr_mr_interleaved, wr_mr_list, wr_mkey_configure,
            wr_set_mkey_access_flags, wr_set_mkey_layout_list, wr_set_mkey_layout_interleaved,
            wr_set_mkey_sig_block, wr_raw_wqe, wr_set_dc_addr_stream, wr_memcpy, wr_set_mkey_crypto);
        record!(self.efa_qp; wr_set_processing_hints);
        record!(self.efa_cq; wc_read_sgid, wc_is_unsolicited);
    }

    fn record_tables(&mut self) {
        macro_rules! exported {
            ($table:expr; $($field:ident),* $(,)?) => {
                $($table.$field = Recorder::recorder::<{ id(stringify!($field)) }>();)*
            };
        }
        exported!(self.verbs; compat_ibv_query_port, ibv_query_device, _ibv_query_gid_ex, _ibv_query_gid_table,
            _ibv_query_comp_cntr_caps, ibv_reg_mr, ibv_reg_mr_iova, ibv_reg_mr_iova2, ibv_create_srq, ibv_create_qp);
        exported!(self.mlx5dv; _mlx5dv_mkey_check, _mlx5dv_query_port, __mlx5dv_create_flow, _mlx5dv_get_export_sizes);
    }
}

/// The C functions, compiled from the headers.
pub struct C {
    handle: *mut c_void,
}

impl C {
    /// Opens the shared object and lets its calls into the libraries go to the bench's recorders.
    pub fn open(file: &Path, bench: &Bench) -> Self {
        let name = CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: the file was compiled just now and has no initialisers.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} does not load", file.display());
        let c = Self { handle };
        let (verbs, mlx5dv) = (&bench.verbs, &bench.mlx5dv);
        macro_rules! hooks {
            ($($table:ident.$field:ident $name:literal),* $(,)?) => { $(c.hook($name, address($table.$field));)* };
        }
        hooks!(
            verbs.compat_ibv_query_port "ibv_query_port", verbs.ibv_query_device "ibv_query_device",
            verbs._ibv_query_gid_ex "_ibv_query_gid_ex", verbs._ibv_query_gid_table "_ibv_query_gid_table",
            verbs._ibv_query_comp_cntr_caps "_ibv_query_comp_cntr_caps", verbs.ibv_reg_mr "ibv_reg_mr",
            verbs.ibv_reg_mr_iova "ibv_reg_mr_iova", verbs.ibv_reg_mr_iova2 "ibv_reg_mr_iova2",
            verbs.ibv_create_srq "ibv_create_srq", verbs.ibv_create_qp "ibv_create_qp",
            mlx5dv._mlx5dv_mkey_check "_mlx5dv_mkey_check", mlx5dv._mlx5dv_query_port "_mlx5dv_query_port",
            mlx5dv.__mlx5dv_create_flow "__mlx5dv_create_flow",
            mlx5dv._mlx5dv_get_export_sizes "_mlx5dv_get_export_sizes",
        );
        c
    }

    fn hook(&self, name: &str, recorder: *mut c_void) {
        let hook = self.variable(&format!("hook_{name}"));
        if !hook.is_null() {
            // SAFETY: the shared object's variable of that name is one pointer, and nobody else is using it.
            unsafe { hook.write(recorder) };
        }
    }

    /// The address of a function, or `None` if the headers do not have it.
    pub fn function(&self, name: &str) -> Option<*mut c_void> {
        let variable = self.variable(&format!("c_{name}"));
        // SAFETY: as in `hook`.
        (!variable.is_null()).then(|| unsafe { variable.read() })
    }

    fn variable(&self, name: &str) -> *mut *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: an open handle and a C string.
        unsafe { libc::dlsym(self.handle, name.as_ptr()) }.cast()
    }
}
