//! What an EFA device says about itself. Pure functions of the description.

use crate::description::{DeviceDescription, PortDescription};
use crate::efa::abi::{
    AllocUcontextResp, ExQueryDeviceResp, UCTX_MIN_SQ_WR, UCTX_TX_BATCH, UDATA_QUERY_DEVICE_AND_AH,
};
use crate::efa::message::INDICES;
use crate::sysfs::{EFA_PART, EFA_VENDOR, gid_table_len};
use crate::uverbs::Errno;
use crate::uverbs::abi::{QueryDeviceResp, QueryPortResp};

/// Most completion entries of a queue.
pub const MAX_CQE: u32 = 32768;
/// Most memory regions: a key has 24 bits, of which 8 are a tag.
pub const MAX_MR: u32 = 1 << 16;

/// Answers `QUERY_DEVICE`.
pub fn device(description: &DeviceDescription) -> QueryDeviceResp {
    let limits = &description.efa;
    QueryDeviceResp {
        node_guid: description.guid.to_be(),
        sys_image_guid: description.guid.to_be(),
        max_mr_size: 1 << 40,
        page_size_cap: 0xffff_f000,
        vendor_id: EFA_VENDOR,
        vendor_part_id: EFA_PART,
        hw_ver: EFA_PART,
        max_qp: u32::from(INDICES),
        max_qp_wr: limits.max_sq_wr.min(limits.max_rq_wr),
        max_sge: u32::from(limits.max_sq_sge.min(limits.max_rq_sge)),
        max_sge_rd: 1,
        max_cq: 1 << 16,
        max_cqe: MAX_CQE,
        max_mr: MAX_MR,
        max_pd: 1 << 16,
        max_ah: 0xfff0,
        max_pkeys: 1,
        phys_port_cnt: 1,
        ..Default::default()
    }
}

/// The driver's part of the extended `QUERY_DEVICE`.
pub fn device_ex(description: &DeviceDescription) -> ExQueryDeviceResp {
    let limits = &description.efa;
    ExQueryDeviceResp {
        comp_mask: 0,
        max_sq_wr: limits.max_sq_wr,
        max_rq_wr: limits.max_rq_wr,
        max_sq_sge: limits.max_sq_sge,
        max_rq_sge: limits.max_rq_sge,
        max_rdma_size: if limits.read || limits.write { limits.max_rdma_size } else { 0 },
        device_caps: limits.caps(),
    }
}

/// The driver's part of opening, for a library that knows these limits (`EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_*`).
pub fn ucontext(description: &DeviceDescription, known: u32) -> Result<AllocUcontextResp, Errno> {
    let limits = &description.efa;
    let needed = [(limits.max_tx_batch, UCTX_TX_BATCH), (limits.min_sq_wr, UCTX_MIN_SQ_WR)];
    if needed.iter().any(|(limit, bit)| *limit != 0 && known & bit == 0) {
        // A library that does not know the limit would break it.
        return Err(Errno::OPNOTSUPP);
    }
    let (inline, inline_wide) = limits.inline();
    Ok(AllocUcontextResp {
        cmds_supp_udata_mask: UDATA_QUERY_DEVICE_AND_AH,
        sub_cqs_per_cq: limits.sub_cqs,
        inline_buf_size: inline,
        max_llq_size: limits.max_llq_size(),
        max_tx_batch: limits.max_tx_batch,
        min_sq_wr: limits.min_sq_wr,
        inline_buf_size_ex: inline_wide,
        ..Default::default()
    })
}

/// Answers `QUERY_PORT`.
pub fn port(port: &PortDescription) -> QueryPortResp {
    QueryPortResp {
        max_msg_sz: port.max_message,
        gid_tbl_len: gid_table_len(port) as u32,
        pkey_tbl_len: 1,
        state: if port.active { 4 } else { 1 },
        max_mtu: 5,
        active_mtu: port.mtu_code(),
        lmc: 1,
        max_vl_num: 1,
        active_width: 2,
        active_speed: 32,
        phys_state: if port.active { 5 } else { 3 },
        link_layer: 0,
        ..Default::default()
    }
}
