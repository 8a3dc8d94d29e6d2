//! The kernel's uverbs structures, as `rdma/ib_user_verbs.h` and `rdma/ib_user_ioctl_verbs.h` lay them out. No behaviour.
#![allow(missing_docs, reason = "the kernel's own names")]

use bytemuck::Pod;

/// Reads a structure from the front of `bytes`; what is missing is zero, as programs of older headers expect.
pub fn decode<T: Pod>(bytes: &[u8]) -> T {
    let mut value = T::zeroed();
    let n = bytes.len().min(size_of::<T>());
    bytemuck::bytes_of_mut(&mut value)[..n].copy_from_slice(&bytes[..n]);
    value
}

/// Structures that programs and the kernel share: `Name = bytes { field: type, … }`. That they are of this size, without
/// padding, is checked.
macro_rules! abi {
    ($($(#[$meta:meta])* $name:ident = $size:literal { $($field:ident: $ty:ty),* $(,)? })*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
            #[repr(C)]
            pub struct $name { $(pub $field: $ty),* }
            const _: () = assert!(size_of::<$name>() == $size);
            impl Default for $name {
                fn default() -> Self { bytemuck::Zeroable::zeroed() }
            }
        )*
    };
}
pub(crate) use abi;

abi! {
    AsyncEvent = 16 { element: u64, event_type: u32, reserved: u32 }
    CmdHdr = 8 { command: u32, in_words: u16, out_words: u16 }
    ExCmdHdr = 16 { response: u64, provider_in_words: u16, provider_out_words: u16, reserved: u32 }
    IoctlHdr = 24 {
        length: u16, object_id: u16, method_id: u16, num_attrs: u16, reserved1: u64, driver_id: u32, reserved2: u32,
    }
    IoctlAttr = 16 { attr_id: u16, len: u16, flags: u16, attr_data: u16, data: u64 }
    GetContextResp = 8 { async_fd: u32, num_comp_vectors: u32 }
    QueryDeviceResp = 176 {
        fw_ver: u64, node_guid: u64, sys_image_guid: u64, max_mr_size: u64, page_size_cap: u64, vendor_id: u32,
        vendor_part_id: u32, hw_ver: u32, max_qp: u32, max_qp_wr: u32, device_cap_flags: u32, max_sge: u32,
        max_sge_rd: u32, max_cq: u32, max_cqe: u32, max_mr: u32, max_pd: u32, max_qp_rd_atom: u32,
        max_ee_rd_atom: u32, max_res_rd_atom: u32, max_qp_init_rd_atom: u32, max_ee_init_rd_atom: u32,
        atomic_cap: u32, max_ee: u32, max_rdd: u32, max_mw: u32, max_raw_ipv6_qp: u32, max_raw_ethy_qp: u32,
        max_mcast_grp: u32, max_mcast_qp_attach: u32, max_total_mcast_qp_attach: u32, max_ah: u32, max_fmr: u32,
        max_map_per_fmr: u32, max_srq: u32, max_srq_wr: u32, max_srq_sge: u32, max_pkeys: u16,
        local_ca_ack_delay: u8, phys_port_cnt: u8, reserved: [u8; 4],
    }
    OdpCaps = 24 { general_caps: u64, rc: u32, uc: u32, ud: u32, reserved: u32 }
    RssCaps = 16 { supported_qpts: u32, max_tables: u32, max_table_size: u32, reserved: u32 }
    TmCaps = 24 { max_rndv_hdr_size: u32, max_num_tags: u32, flags: u32, max_ops: u32, max_sge: u32, reserved: u32 }
    ExQueryDeviceResp = 304 {
        base: QueryDeviceResp, comp_mask: u32, response_length: u32, odp_caps: OdpCaps, timestamp_mask: u64,
        hca_core_clock: u64, device_cap_flags_ex: u64, rss_caps: RssCaps, max_wq_type_rq: u32, raw_packet_caps: u32,
        tm_caps: TmCaps, max_cq_moderation_count: u16, max_cq_moderation_period: u16, cq_moderation_reserved: u32,
        max_dm_size: u64, xrc_odp_caps: u32, reserved: u32,
    }
    QueryPort = 16 { response: u64, port_num: u8, reserved: [u8; 7] }
    QueryPortResp = 40 {
        port_cap_flags: u32, max_msg_sz: u32, bad_pkey_cntr: u32, qkey_viol_cntr: u32, gid_tbl_len: u32,
        pkey_tbl_len: u16, lid: u16, sm_lid: u16, state: u8, max_mtu: u8, active_mtu: u8, lmc: u8, max_vl_num: u8,
        sm_sl: u8, subnet_timeout: u8, init_type_reply: u8, active_width: u8, active_speed: u8, phys_state: u8,
        link_layer: u8, flags: u8, reserved: u8,
    }
    QueryPortRespEx = 48 { legacy: QueryPortResp, port_cap_flags2: u16, reserved: [u8; 6] }
    GidEntry = 32 { gid: [u8; 16], gid_index: u32, port_num: u32, gid_type: u32, netdev_ifindex: u32 }
    AllocPdResp = 4 { pd_handle: u32 }
    DeallocPd = 4 { pd_handle: u32 }
    RegMr = 40 { response: u64, start: u64, length: u64, hca_va: u64, pd_handle: u32, access_flags: u32 }
    RegMrResp = 12 { mr_handle: u32, lkey: u32, rkey: u32 }
    DeregMr = 4 { mr_handle: u32 }
    CreateCompChannelResp = 4 { fd: u32 }
    CreateCq = 32 { response: u64, user_handle: u64, cqe: u32, comp_vector: u32, comp_channel: i32, reserved: u32 }
    ExCreateCq = 32 {
        user_handle: u64, cqe: u32, comp_vector: u32, comp_channel: i32, comp_mask: u32, flags: u32, reserved: u32,
    }
    CreateCqResp = 8 { cq_handle: u32, cqe: u32 }
    ExCreateCqResp = 16 { base: CreateCqResp, comp_mask: u32, response_length: u32 }
    DestroyCq = 16 { response: u64, cq_handle: u32, reserved: u32 }
    DestroyCqResp = 8 { comp_events_reported: u32, async_events_reported: u32 }
    QpCap = 20 { max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32 }
    CreateQp = 56 {
        response: u64, user_handle: u64, pd_handle: u32, send_cq_handle: u32, recv_cq_handle: u32, srq_handle: u32,
        cap: QpCap, sq_sig_all: u8, qp_type: u8, is_srq: u8, reserved: u8,
    }
    ExCreateQp = 64 {
        user_handle: u64, pd_handle: u32, send_cq_handle: u32, recv_cq_handle: u32, srq_handle: u32, cap: QpCap,
        sq_sig_all: u8, qp_type: u8, is_srq: u8, reserved: u8, comp_mask: u32, create_flags: u32,
        rwq_ind_tbl_handle: u32, source_qpn: u32,
    }
    CreateQpResp = 32 { qp_handle: u32, qpn: u32, cap: QpCap, reserved: u32 }
    ExCreateQpResp = 40 { base: CreateQpResp, comp_mask: u32, response_length: u32 }
    QpDest = 32 {
        dgid: [u8; 16], flow_label: u32, dlid: u16, reserved: u16, sgid_index: u8, hop_limit: u8, traffic_class: u8,
        sl: u8, src_path_bits: u8, static_rate: u8, is_global: u8, port_num: u8,
    }
    QueryQp = 16 { response: u64, qp_handle: u32, attr_mask: u32 }
    QueryQpResp = 128 {
        dest: QpDest, alt_dest: QpDest, cap: QpCap, qkey: u32, rq_psn: u32, sq_psn: u32, dest_qp_num: u32,
        qp_access_flags: u32, pkey_index: u16, alt_pkey_index: u16, qp_state: u8, cur_qp_state: u8, path_mtu: u8,
        path_mig_state: u8, sq_draining: u8, max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8,
        port_num: u8, timeout: u8, retry_cnt: u8, rnr_retry: u8, alt_port_num: u8, alt_timeout: u8, sq_sig_all: u8,
        reserved: [u8; 5],
    }
    ModifyQp = 112 {
        dest: QpDest, alt_dest: QpDest, qp_handle: u32, attr_mask: u32, qkey: u32, rq_psn: u32, sq_psn: u32,
        dest_qp_num: u32, qp_access_flags: u32, pkey_index: u16, alt_pkey_index: u16, qp_state: u8, cur_qp_state: u8,
        path_mtu: u8, path_mig_state: u8, en_sqd_async_notify: u8, max_rd_atomic: u8, max_dest_rd_atomic: u8,
        min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8, rnr_retry: u8, alt_port_num: u8, alt_timeout: u8,
        reserved: [u8; 2],
    }
    ExModifyQpResp = 8 { comp_mask: u32, response_length: u32 }
    CreateSrq = 32 {
        response: u64, user_handle: u64, pd_handle: u32, max_wr: u32, max_sge: u32, srq_limit: u32,
    }
    CreateSrqResp = 16 { srq_handle: u32, max_wr: u32, max_sge: u32, srqn: u32 }
    ModifySrq = 16 { srq_handle: u32, attr_mask: u32, max_wr: u32, srq_limit: u32 }
    QuerySrq = 16 { response: u64, srq_handle: u32, reserved: u32 }
    QuerySrqResp = 16 { max_wr: u32, max_sge: u32, srq_limit: u32, reserved: u32 }
    DestroySrq = 16 { response: u64, srq_handle: u32, reserved: u32 }
    DestroySrqResp = 4 { events_reported: u32 }
    ResizeCq = 16 { response: u64, cq_handle: u32, cqe: u32 }
    ResizeCqResp = 8 { cqe: u32, reserved: u32 }
    ExModifyCq = 16 { cq_handle: u32, attr_mask: u32, count: u16, period: u16, reserved: u32 }
    ReregMr = 48 {
        response: u64, mr_handle: u32, flags: u32, start: u64, length: u64, hca_va: u64, pd_handle: u32,
        access_flags: u32,
    }
    AllocMw = 16 { response: u64, pd_handle: u32, mw_type: u8, reserved: [u8; 3] }
    AllocMwResp = 8 { mw_handle: u32, rkey: u32 }
    DeallocMw = 4 { mw_handle: u32 }
    ReregMrResp = 8 { lkey: u32, rkey: u32 }
    DestroyQp = 16 { response: u64, qp_handle: u32, reserved: u32 }
    DestroyQpResp = 4 { events_reported: u32 }
    CreateAh = 56 {
        response: u64, user_handle: u64, pd_handle: u32, reserved: u32, dgid: [u8; 16], flow_label: u32,
        sgid_index: u8, hop_limit: u8, traffic_class: u8, grh_reserved: u8, dlid: u16, sl: u8, src_path_bits: u8,
        static_rate: u8, is_global: u8, port_num: u8, attr_reserved: u8,
    }
    CreateAhResp = 4 { ah_handle: u32 }
    DestroyAh = 4 { ah_handle: u32 }
}

/// Command numbers of the `write` interface (`enum ib_uverbs_write_cmds`).
pub mod cmd {
    pub const GET_CONTEXT: u32 = 0;
    pub const QUERY_DEVICE: u32 = 1;
    pub const QUERY_PORT: u32 = 2;
    pub const ALLOC_PD: u32 = 3;
    pub const DEALLOC_PD: u32 = 4;
    pub const CREATE_AH: u32 = 5;
    pub const DESTROY_AH: u32 = 8;
    pub const REG_MR: u32 = 9;
    pub const REREG_MR: u32 = 11;
    pub const DEREG_MR: u32 = 13;
    pub const ALLOC_MW: u32 = 14;
    pub const DEALLOC_MW: u32 = 16;
    pub const CREATE_COMP_CHANNEL: u32 = 17;
    pub const CREATE_CQ: u32 = 18;
    pub const RESIZE_CQ: u32 = 19;
    pub const DESTROY_CQ: u32 = 20;
    pub const CREATE_QP: u32 = 24;
    pub const QUERY_QP: u32 = 25;
    pub const MODIFY_QP: u32 = 26;
    pub const DESTROY_QP: u32 = 27;
    pub const CREATE_SRQ: u32 = 32;
    pub const MODIFY_SRQ: u32 = 33;
    pub const QUERY_SRQ: u32 = 34;
    pub const DESTROY_SRQ: u32 = 35;
    /// Extended alone (`IB_USER_VERBS_EX_CMD_MODIFY_CQ`).
    pub const EX_MODIFY_CQ: u32 = 57 | EXTENDED;
    /// Set in the command word of the extended commands.
    pub const EXTENDED: u32 = 0x8000_0000;
}

/// Object, method and attribute numbers of the ioctl interface (`rdma/ib_user_ioctl_cmds.h`).
pub mod ioctl {
    pub const OBJECT_DEVICE: u16 = 0;
    pub const OBJECT_PD: u16 = 1;
    pub const OBJECT_CQ: u16 = 3;
    pub const OBJECT_QP: u16 = 4;
    pub const OBJECT_SRQ: u16 = 5;
    pub const OBJECT_AH: u16 = 6;
    pub const OBJECT_MR: u16 = 7;
    pub const OBJECT_MW: u16 = 8;
    pub const OBJECT_ASYNC_EVENT: u16 = 16;
    /// `UVERBS_ATTR_UHW_IN`: the driver's own input.
    pub const UHW_IN: u16 = 0x1000;
    /// `UVERBS_ATTR_UHW_OUT`.
    pub const UHW_OUT: u16 = 0x1001;
    /// `UVERBS_ATTR_F_MANDATORY`.
    pub const MANDATORY: u16 = 1;
    /// `UVERBS_ATTR_F_VALID_OUTPUT`.
    pub const VALID_OUTPUT: u16 = 2;
}
