//! The private structures between libefa and the EFA kernel driver, as `rdma/efa-abi.h` lays them out. No behaviour.
#![allow(missing_docs, reason = "the kernel's own names")]

use crate::uverbs::abi::abi;

abi! {
    AllocUcontext = 8 { supported_caps: u32, reserved: [u8; 4] }
    AllocUcontextResp = 24 {
        comp_mask: u32, cmds_supp_udata_mask: u32, sub_cqs_per_cq: u16, inline_buf_size: u16, max_llq_size: u32,
        max_tx_batch: u16, min_sq_wr: u16, inline_buf_size_ex: u16, reserved: [u8; 2],
    }
    AllocPdResp = 8 { comp_mask: u32, pdn: u16, reserved: [u8; 2] }
    CreateCq = 16 { comp_mask: u32, cq_entry_size: u32, num_sub_cqs: u16, flags: u8, reserved: [u8; 5] }
    CreateCqResp = 40 {
        comp_mask: u32, reserved1: [u8; 4], q_mmap_key: u64, q_mmap_size: u64, cq_idx: u16, reserved2: [u8; 2],
        db_off: u32, db_mmap_key: u64,
    }
    CreateQp = 24 {
        comp_mask: u32, rq_ring_size: u32, sq_ring_size: u32, driver_qp_type: u32, flags: u16, sl: u8,
        reserved: [u8; 5],
    }
    CreateQpResp = 64 {
        comp_mask: u32, rq_db_offset: u32, sq_db_offset: u32, llq_desc_offset: u32, rq_mmap_key: u64,
        rq_mmap_size: u64, rq_db_mmap_key: u64, sq_db_mmap_key: u64, llq_desc_mmap_key: u64, send_sub_cq_idx: u16,
        recv_sub_cq_idx: u16, reserved: [u8; 4],
    }
    CreateAhResp = 8 { comp_mask: u32, efa_address_handle: u16, reserved: [u8; 2] }
    ExQueryDeviceResp = 24 {
        comp_mask: u32, max_sq_wr: u32, max_rq_wr: u32, max_sq_sge: u16, max_rq_sge: u16, max_rdma_size: u32,
        device_caps: u32,
    }
}

/// `EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH`.
pub const UCTX_TX_BATCH: u32 = 1 << 0;
/// `EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_MIN_SQ_WR`.
pub const UCTX_MIN_SQ_WR: u32 = 1 << 1;
/// `EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE` and `_CREATE_AH`.
pub const UDATA_QUERY_DEVICE_AND_AH: u32 = 3;
/// `EFA_CREATE_CQ_RESP_DB_OFF`.
pub const CQ_RESP_DB_OFF: u32 = 1 << 0;

/// `EFA_CREATE_CQ_*`.
pub mod cq_flag {
    pub const COMPLETION_CHANNEL: u8 = 1 << 0;
    pub const SGID: u8 = 1 << 1;
    pub const LONG_REQUEST_ID: u8 = 1 << 2;
}

/// `EFA_CREATE_QP_*`.
pub mod qp_flag {
    pub const UNSOLICITED_WRITE_RECV: u16 = 1 << 0;
    pub const LONG_REQUEST_ID: u16 = 1 << 1;
}

/// `EFA_QUERY_DEVICE_CAPS_*`.
pub mod caps {
    pub const RDMA_READ: u32 = 1 << 0;
    pub const RNR_RETRY: u32 = 1 << 1;
    pub const CQ_NOTIFICATIONS: u32 = 1 << 2;
    pub const CQ_WITH_SGID: u32 = 1 << 3;
    pub const DATA_POLLING_128: u32 = 1 << 4;
    pub const RDMA_WRITE: u32 = 1 << 5;
    pub const UNSOLICITED_WRITE_RECV: u32 = 1 << 6;
    pub const SQ_64_BIT_REQ_ID: u32 = 1 << 9;
}

/// The driver's own method of memory regions: `EFA_IB_METHOD_MR_QUERY` and the first of its answers.
pub mod ioctl {
    pub const METHOD_MR_QUERY: u16 = 0x1000;
    pub const ATTR_QUERY_MR_HANDLE: u16 = 0x1000;
    pub const ATTR_QUERY_MR_VALIDITY: u16 = 0x1001;
}
