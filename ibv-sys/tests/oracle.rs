//! Layouts against rdma-sys, whose own bindgen read the installed headers: an oracle that shares no code with ours.
#![cfg(feature = "rdma-sys")]

use ibv_sys::{Extensible, ToIbvSys, ToRdmaSys, each_extensible, extend::Visitor};

/// Compares size, alignment and offsets of types by name, and gives how many fields were compared.
macro_rules! compare {
    ($($ty:ident { $($field:ident),* $(,)? })*) => {{
        let mut fields = 0;
        $(
            let (ours, theirs) = (size_of::<ibv_sys::$ty>(), size_of::<rdma_sys::$ty>());
            assert!(is_size_of(stringify!($ty), ours, theirs), "{}: {ours} here, {theirs} there", stringify!($ty));
            assert_eq!(align_of::<ibv_sys::$ty>(), align_of::<rdma_sys::$ty>(), "alignment of {}", stringify!($ty));
            $(
                let ours = std::mem::offset_of!(ibv_sys::$ty, $field);
                let theirs = std::mem::offset_of!(rdma_sys::$ty, $field);
                assert_eq!(ours, theirs, "offset of {}.{}", stringify!($ty), stringify!($field));
                fields += 1;
            )*
        )*
        fields
    }};
}

/// True if a size is ours, or one that an older rdma-core had.
fn is_size_of(name: &str, ours: usize, theirs: usize) -> bool {
    struct Find<'a>(&'a str, usize, bool);
    impl Visitor for Find<'_> {
        fn visit<T: Extensible>(&mut self) {
            self.2 |= T::NAME == self.0 && T::SIZES.iter().any(|(_, size)| *size == self.1);
        }
    }
    let mut find = Find(name, theirs, ours == theirs);
    each_extensible(&mut find);
    find.2
}

#[test]
fn layouts_are_those_of_rdma_sys() {
    let fields = compare! {
        ibv_gid { raw }
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_context_ops { alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        ibv_device_attr { fw_ver, node_guid, max_mr_size, vendor_id, max_qp, max_cqe, max_qp_rd_atom, phys_port_cnt }
        ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, lid, link_layer, flags, port_cap_flags2 }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_init_attr_ex { qp_type, comp_mask, pd, xrcd, create_flags, rwq_ind_tbl, source_qpn, send_ops_flags }
        ibv_qp_attr { qp_state, path_mtu, qkey, rq_psn, sq_psn, dest_qp_num, cap, ah_attr, pkey_index, rate_limit }
        ibv_qp { context, pd, send_cq, recv_cq, handle, qp_num, state, qp_type, mutex, cond, events_completed }
        ibv_qp_ex { qp_base, comp_mask, wr_id, wr_flags, wr_rdma_read, wr_rdma_write, wr_set_sge, wr_start, wr_complete }
        ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed }
        ibv_cq_ex { status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_byte_len, read_qp_num }
        ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain }
        ibv_comp_channel { context, fd, refcnt }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_sge { addr, length, lkey }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags, slid, sl, dlid_path_bits }
        ibv_async_event { element, event_type }
        ibv_td_init_attr { comp_mask }
        ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
    };
    assert!(fields > 150, "only {fields} fields compared");
    println!("{fields} fields agree with rdma-sys");
}

#[test]
fn values_are_those_of_rdma_sys() {
    macro_rules! values {
        ($($ours:expr, $theirs:expr;)*) => { $(assert_eq!($ours as u64, $theirs as u64, stringify!($ours));)* };
    }
    values! {
        ibv_sys::IBV_QPS_RTS.0, rdma_sys::ibv_qp_state::IBV_QPS_RTS;
        ibv_sys::IBV_QPT_RC.0, rdma_sys::ibv_qp_type::IBV_QPT_RC;
        ibv_sys::IBV_WR_RDMA_READ.0, rdma_sys::ibv_wr_opcode::IBV_WR_RDMA_READ;
        ibv_sys::IBV_WC_WR_FLUSH_ERR.0, rdma_sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        ibv_sys::IBV_MTU_4096.0, rdma_sys::ibv_mtu::IBV_MTU_4096;
    }
}

#[test]
fn a_pointer_goes_over_and_comes_back_the_same() {
    let qp = 0x1000 as *mut ibv_sys::ibv_qp;
    let over: *mut rdma_sys::ibv_qp = qp.to_rdma_sys();
    assert_eq!(over as usize, 0x1000);
    assert_eq!(over.to_ibv_sys(), qp);
}
