//! `modify_qp` and `query_qp`: attributes checked and kept. Which transitions exist is in [`crate::mlx5::transition`].

use crate::description::{DeviceDescription, Kind, Link, PortDescription};
use crate::fabric::packet::Address;
use crate::host::Host;
use crate::mlx5::port::Port;
use crate::mlx5::qp::{Destination, Qp, QpAttr, async_event};
use crate::mlx5::transition::{QpState, check, mask};
use crate::rules::mtu_bytes;
use crate::uverbs::Errno;
use crate::uverbs::abi::{ModifyQp, QpCap, QpDest, QueryQpResp};
use crate::uverbs::query::{MAX_RD_ATOMIC, PKEYS};

impl Host {
    /// Changes a queue pair.
    pub fn modify_qp(&mut self, context: u32, new: &ModifyQp) -> Result<(), Errno> {
        if self.kind(context)? == Kind::Efa {
            return self.modify_efa_qp(context, new);
        }
        self.see_doorbells(context);
        let (from, port, transport) = {
            let qp = self.qp(context, new.qp_handle)?;
            let port = if new.attr_mask & mask::PORT != 0 { new.port_num } else { qp.attr.port };
            (qp.state, port, qp.transport)
        };
        let to = match new.attr_mask & mask::STATE {
            0 => from,
            _ => QpState::from_code(new.qp_state).ok_or(Errno::INVAL)?,
        };
        let claimed = new.attr_mask & mask::CUR_STATE != 0 && new.cur_qp_state != from as u8;
        if claimed {
            return Err(Errno::INVAL);
        }
        check(transport, from, to, new.attr_mask).map_err(|refused| {
            crate::log::debug(|| format!("queue pair {:#x}: {refused}", new.qp_handle));
            Errno::INVAL
        })?;
        let device = self.device(context)?;
        let local = check_values(device, port, new)?;
        let number = usize::from(port).checked_sub(1);
        let known = number.and_then(|i| device.ports.get(i)).map(Port::of).unwrap_or_default();
        self.qp(context, new.qp_handle)?.port = known;
        self.apply(new, to, local)
    }

    fn apply(&mut self, new: &ModifyQp, to: QpState, local: Option<Address>) -> Result<(), Errno> {
        let shared = &mut self.engine.shared;
        let qp = self.engine.qps.get_mut(&new.qp_handle).ok_or(Errno::INVAL)?;
        let from = qp.state;
        set_attributes(&mut qp.attr, new);
        if let Some(local) = local {
            qp.local = local;
            qp.remote =
                Address { lid: new.dest.dlid, gid: (new.dest.is_global != 0).then_some(new.dest.dgid) };
        }
        if (from, to) == (QpState::Init, QpState::Rtr) {
            qp.responder.start(qp.attr.rq_psn);
        }
        if (from, to) == (QpState::Rtr, QpState::Rts) {
            qp.requester.start(qp.attr.sq_psn);
        }
        if to == QpState::Reset {
            // Also from RESET: libmlx5 has zeroed the records, and so does the device its counters.
            qp.reset();
        }
        qp.set_state(to, shared);
        if to == QpState::Sqd && new.attr_mask & mask::EN_SQD_ASYNC != 0 && new.en_sqd_async_notify != 0 {
            qp.report(async_event::SQ_DRAINED, shared);
        }
        Ok(())
    }

    /// Answers `QUERY_QP`.
    pub fn query_qp(&mut self, context: u32, qpn: u32) -> Result<QueryQpResp, Errno> {
        if self.kind(context)? == Kind::Efa {
            return self.query_efa_qp(context, qpn);
        }
        Ok(describe(self.qp(context, qpn)?))
    }
}

/// Checks values against the device; answers the port's own address if the request sets the path.
fn check_values(device: &DeviceDescription, port: u8, new: &ModifyQp) -> Result<Option<Address>, Errno> {
    let has = |bit| new.attr_mask & bit != 0;
    let number = if has(mask::AV) && new.dest.port_num != 0 { new.dest.port_num } else { port };
    let wrong = has(mask::PKEY_INDEX) && new.pkey_index >= PKEYS
        || has(mask::PATH_MTU) && mtu_bytes(new.path_mtu).is_none()
        || has(mask::MAX_RD_ATOMIC) && new.max_rd_atomic > MAX_RD_ATOMIC
        || has(mask::MAX_DEST_RD_ATOMIC) && new.max_dest_rd_atomic > MAX_RD_ATOMIC
        || has(mask::DEST_QPN) && new.dest_qp_num > 0xff_ffff
        || has(mask::RETRY_CNT) && new.retry_cnt > 7
        || has(mask::RNR_RETRY) && new.rnr_retry > 7
        || has(mask::TIMEOUT) && new.timeout > 31
        || has(mask::MIN_RNR_TIMER) && new.min_rnr_timer > 31;
    if wrong {
        return Err(Errno::INVAL);
    }
    if !has(mask::PORT | mask::AV) {
        return Ok(None);
    }
    let port = usize::from(number).checked_sub(1).and_then(|i| device.ports.get(i)).ok_or(Errno::INVAL)?;
    if has(mask::PATH_MTU) && new.path_mtu > port.mtu_code() {
        return Err(Errno::INVAL);
    }
    if has(mask::AV) { own_address(port, &new.dest).map(Some) } else { Ok(None) }
}

/// The address from which a path starts. RoCE always has a global route.
fn own_address(port: &PortDescription, dest: &QpDest) -> Result<Address, Errno> {
    let global = dest.is_global != 0;
    if port.link == Link::Roce && !global {
        return Err(Errno::INVAL);
    }
    if !global {
        return Ok(Address { lid: port.lid, gid: None });
    }
    let index = usize::from(dest.sgid_index);
    port.gid_type(index).ok_or(Errno::INVAL)?;
    Ok(Address { lid: port.lid, gid: Some(port.gids[index].gid) })
}

fn set_attributes(attr: &mut QpAttr, new: &ModifyQp) {
    macro_rules! take {
        ($($bit:ident: $field:ident = $value:expr;)*) => {
            $(if new.attr_mask & mask::$bit != 0 { attr.$field = $value; })*
        };
    }
    take! {
        ACCESS: access = new.qp_access_flags;
        PKEY_INDEX: pkey_index = new.pkey_index;
        PORT: port = new.port_num;
        QKEY: qkey = new.qkey;
        AV: dest = destination(&new.dest);
        PATH_MTU: path_mtu = new.path_mtu;
        DEST_QPN: dest_qpn = new.dest_qp_num;
        RQ_PSN: rq_psn = new.rq_psn & 0xff_ffff;
        SQ_PSN: sq_psn = new.sq_psn & 0xff_ffff;
        TIMEOUT: timeout = new.timeout;
        RETRY_CNT: retry_cnt = new.retry_cnt;
        RNR_RETRY: rnr_retry = new.rnr_retry;
        MIN_RNR_TIMER: min_rnr_timer = new.min_rnr_timer;
        MAX_RD_ATOMIC: max_rd_atomic = new.max_rd_atomic;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic = new.max_dest_rd_atomic;
        PATH_MIG: path_mig_state = new.path_mig_state;
    }
}

fn destination(dest: &QpDest) -> Destination {
    Destination {
        dgid: dest.dgid,
        flow_label: dest.flow_label,
        dlid: dest.dlid,
        sgid_index: dest.sgid_index,
        hop_limit: dest.hop_limit,
        traffic_class: dest.traffic_class,
        sl: dest.sl,
        src_path_bits: dest.src_path_bits,
        static_rate: dest.static_rate,
        is_global: dest.is_global != 0,
        port: dest.port_num,
    }
}

fn describe(qp: &Qp) -> QueryQpResp {
    let (attr, d) = (&qp.attr, &qp.attr.dest);
    let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data] = qp.caps;
    QueryQpResp {
        dest: QpDest {
            dgid: d.dgid,
            flow_label: d.flow_label,
            dlid: d.dlid,
            reserved: 0,
            sgid_index: d.sgid_index,
            hop_limit: d.hop_limit,
            traffic_class: d.traffic_class,
            sl: d.sl,
            src_path_bits: d.src_path_bits,
            static_rate: d.static_rate,
            is_global: u8::from(d.is_global),
            port_num: d.port,
        },
        cap: QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data },
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qpn,
        qp_access_flags: attr.access,
        pkey_index: attr.pkey_index,
        qp_state: qp.state as u8,
        cur_qp_state: qp.state as u8,
        path_mtu: attr.path_mtu,
        path_mig_state: attr.path_mig_state,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        sq_sig_all: u8::from(qp.all_signalled),
        ..Default::default()
    }
}
