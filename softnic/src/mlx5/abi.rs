//! The private structures between libmlx5 and the mlx5 kernel driver, as `rdma/mlx5-abi.h` lays them out. No behaviour.
#![allow(missing_docs, reason = "the kernel's own names")]

use crate::uverbs::abi::abi;

abi! {
    AllocUcontextReqV2 = 32 {
        total_num_bfregs: u32, num_low_latency_bfregs: u32, flags: u32, comp_mask: u32, max_cqe_version: u8,
        reserved0: u8, reserved1: u16, reserved2: u32, lib_caps: u64,
    }
    AllocUcontextResp = 72 {
        qp_tab_size: u32, bf_reg_size: u32, tot_bfregs: u32, cache_line_size: u32, max_sq_desc_sz: u16,
        max_rq_desc_sz: u16, max_send_wqebb: u32, max_recv_wr: u32, max_srq_recv_wr: u32, num_ports: u16,
        flow_action_flags: u16, comp_mask: u32, response_length: u32, cqe_version: u8, cmds_supp_uhw: u8,
        eth_min_inline: u8, clock_info_versions: u8, hca_core_clock_offset: u64, log_uar_size: u32,
        num_uars_per_page: u32, num_dyn_bfregs: u32, dump_fill_mkey: u32,
    }
    AllocPdResp = 4 { pdn: u32 }
    CreateCq = 32 {
        buf_addr: u64, db_addr: u64, cqe_size: u32, cqe_comp_en: u8, cqe_comp_res_format: u8, flags: u16,
        uar_page_index: u16, reserved0: u16, reserved1: u32,
    }
    CreateCqResp = 8 { cqn: u32, reserved: u32 }
    ResizeCq = 16 { buf_addr: u64, cqe_size: u16, reserved0: u16, reserved1: u32 }
    CreateSrq = 32 { buf_addr: u64, db_addr: u64, flags: u32, reserved0: u32, uidx: u32, reserved1: u32 }
    CreateSrqResp = 8 { srqn: u32, reserved: u32 }
    CreateQp = 56 {
        buf_addr: u64, db_addr: u64, sq_wqe_count: u32, rq_wqe_count: u32, rq_wqe_shift: u32, flags: u32, uidx: u32,
        bfreg_index: u32, sq_buf_addr: u64, ece_options: u32, dci_streams: u16, reserved: u16,
    }
    CreateQpResp = 40 {
        bfreg_index: u32, ece_options: u32, comp_mask: u32, tirn: u32, tisn: u32, rqn: u32, sqn: u32, reserved1: u32,
        tir_icm_addr: u64,
    }
    CreateAhResp = 16 { response_length: u32, dmac: [u8; 6], reserved: [u8; 6] }
    ModifyQpResp = 16 { response_length: u32, dctn: u32, ece_options: u32, reserved: u32 }
}

/// `MLX5_IB_ALLOC_UCTX_DEVX`.
pub const UCTX_DEVX: u32 = 1;
/// `MLX5_LIB_CAP_DYN_UAR`.
pub const LIB_CAP_DYN_UAR: u64 = 2;
/// `MLX5_USER_INLINE_MODE_NONE`.
pub const INLINE_MODE_NONE: u8 = 1;

/// `MLX5_QP_FLAG_*`.
pub mod qp_flag {
    pub const SIGNATURE: u32 = 1 << 0;
    pub const SCATTER_CQE: u32 = 1 << 1;
    pub const BFREG_INDEX: u32 = 1 << 3;
    pub const ALLOW_SCATTER_CQE: u32 = 1 << 8;
    pub const UAR_PAGE_INDEX: u32 = 1 << 10;
}

/// `MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX`.
pub const CQ_UAR_PAGE_INDEX: u16 = 1 << 1;

/// Numbers of the driver's own ioctl objects and methods (`rdma/mlx5_user_ioctl_cmds.h`).
pub mod ioctl {
    pub const OBJECT_UAR: u16 = 0x1008;
    pub const METHOD_UAR_ALLOC: u16 = 0x1000;
    pub const METHOD_UAR_DESTROY: u16 = 0x1001;
    pub const METHOD_PD_QUERY: u16 = 0x1000;
    pub const ATTR_UAR_HANDLE: u16 = 0x1000;
    pub const ATTR_UAR_OFFSET: u16 = 0x1002;
    pub const ATTR_UAR_LENGTH: u16 = 0x1003;
    pub const ATTR_UAR_PAGE_ID: u16 = 0x1004;
    pub const ATTR_QUERY_PD_HANDLE: u16 = 0x1000;
    pub const ATTR_QUERY_PD_PDN: u16 = 0x1001;
    pub const METHOD_QUERY_CONTEXT_UCTX: u16 = 0x1000;
}
