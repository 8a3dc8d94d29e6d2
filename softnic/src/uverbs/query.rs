//! What a device says about itself: capabilities, ports, addresses. Pure functions of the description.

use crate::description::{DeviceDescription, GidType, Kind, Link, PortDescription};
use crate::efa::query as efa;
use crate::sysfs::gid_table_len;
use crate::uverbs::abi::{ExQueryDeviceResp, GidEntry, QueryDeviceResp, QueryPortResp, QueryPortRespEx};

/// Most completion entries of a queue.
pub const MAX_CQE: u32 = (1 << 22) - 1;
/// Most basic blocks of a send queue, and most receives.
pub const MAX_QP_WR: u32 = 32768;
/// Most pieces of a shared receive: a slot of 512 bytes less its link.
pub const MAX_SRQ_SGE: u32 = 31;
/// Most microseconds that an event may wait for further completions.
pub const MAX_PERIOD_US: u16 = 0xfff;
/// Most READs and atomics under way on a queue pair.
pub const MAX_RD_ATOMIC: u8 = 16;
/// Entries of a port's partition-key table.
pub const PKEYS: u16 = 128;

/// Changing the current state, port-active events, system image GUID, RNR NAK generation, memory windows of types 1 and 2B.
const CAP_FLAGS: u32 = 1 << 7 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 17 | 1 << 24;

/// Answers `QUERY_DEVICE`.
pub fn device(description: &DeviceDescription) -> QueryDeviceResp {
    if description.kind == Kind::Efa {
        return efa::device(description);
    }
    QueryDeviceResp {
        fw_ver: 16 << 32 | 35 << 16 | 2000,
        node_guid: description.guid.to_be(),
        sys_image_guid: description.guid.to_be(),
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_ffff_ffff_f000,
        vendor_id: 0x2c9,
        vendor_part_id: 4119,
        max_qp: 1 << 16,
        max_qp_wr: MAX_QP_WR,
        device_cap_flags: CAP_FLAGS,
        max_sge: 30,
        max_sge_rd: 30,
        max_cq: 1 << 24,
        max_cqe: MAX_CQE,
        max_mr: 1 << 24,
        max_pd: 1 << 24,
        max_qp_rd_atom: u32::from(MAX_RD_ATOMIC),
        max_res_rd_atom: u32::from(MAX_RD_ATOMIC) << 16,
        max_qp_init_rd_atom: u32::from(MAX_RD_ATOMIC),
        atomic_cap: 1,
        max_ah: i32::MAX as u32,
        max_mw: 1 << 24,
        max_srq: 1 << 16,
        max_srq_wr: MAX_QP_WR - 1,
        max_srq_sge: MAX_SRQ_SGE,
        max_pkeys: PKEYS,
        local_ca_ack_delay: 16,
        phys_port_cnt: description.ports.len() as u8,
        ..Default::default()
    }
}

/// Answers the extended `QUERY_DEVICE`.
pub fn device_ex(description: &DeviceDescription) -> ExQueryDeviceResp {
    let base = device(description);
    let response_length = size_of::<ExQueryDeviceResp>() as u32;
    if description.kind == Kind::Efa {
        return ExQueryDeviceResp { base, response_length, ..Default::default() };
    }
    ExQueryDeviceResp {
        base,
        response_length,
        timestamp_mask: u64::MAX,
        // Completion timestamps count nanoseconds; the unit here is kHz.
        hca_core_clock: 1_000_000,
        device_cap_flags_ex: u64::from(CAP_FLAGS),
        max_cq_moderation_count: u16::MAX,
        max_cq_moderation_period: MAX_PERIOD_US,
        ..Default::default()
    }
}

/// Answers `QUERY_PORT`.
pub fn port(port: &PortDescription) -> QueryPortResp {
    if port.link == Link::Unspecified {
        return efa::port(port);
    }
    let ib = port.link == Link::Ib;
    QueryPortResp {
        // Traps, automatic migration, SL mapping, system image GUID, extended speeds, CM; or CM and IP-based GIDs.
        port_cap_flags: if ib { 0x2651_e848 } else { 0x0401_0000 },
        max_msg_sz: port.max_message,
        gid_tbl_len: gid_table_len(port) as u32,
        pkey_tbl_len: PKEYS,
        lid: port.lid,
        sm_lid: u16::from(ib),
        state: if port.active { 4 } else { 1 },
        max_mtu: 5,
        active_mtu: port.mtu_code(),
        max_vl_num: if ib { 4 } else { 0 },
        active_width: 2,
        active_speed: 32,
        phys_state: if port.active { 5 } else { 3 },
        link_layer: if ib { 1 } else { 2 },
        // GRH required, as mlx5 says of RoCE ports.
        flags: u8::from(!ib),
        ..Default::default()
    }
}

/// Answers the ioctl `QUERY_PORT`.
pub fn port_ex(description: &PortDescription) -> QueryPortRespEx {
    QueryPortRespEx { legacy: port(description), ..Default::default() }
}

/// One entry of the GID table; `None` for a hole, or past the end.
pub fn gid(port: &PortDescription, number: u32, index: usize) -> Option<GidEntry> {
    let kind = port.gid_type(index)?;
    let entry = &port.gids[index];
    Some(GidEntry {
        gid: entry.gid,
        gid_index: index as u32,
        port_num: number,
        gid_type: match kind {
            GidType::Ib => 0,
            GidType::V1 => 1,
            GidType::V2 => 2,
        },
        netdev_ifindex: entry.netdev.as_deref().map_or(0, interface_index),
    })
}

/// All entries of all ports that are not holes.
pub fn gid_table(description: &DeviceDescription) -> Vec<GidEntry> {
    let ports = description.ports.iter().enumerate();
    let entries = |(i, port): (usize, &PortDescription)| {
        (0..port.gids.len()).filter_map(|index| gid(port, i as u32 + 1, index)).collect::<Vec<_>>()
    };
    ports.flat_map(entries).collect()
}

/// The kernel's number of a network interface, or 0 if this machine has none of that name.
fn interface_index(name: &str) -> u32 {
    if name.contains('/') {
        return 0;
    }
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"));
    text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::Description;

    #[test]
    fn the_gid_table_skips_holes_and_keeps_indices() {
        let text = "[[device]]\nname='a'\n[[device.port]]\nlink='roce'\ngids=[{gid='fe80::1',type='v1'},{},{gid='::2'}]\n\
                    [[device.port]]\nlink='ib'\nlid=7\ngids=[{gid='fe80::3'}]";
        let d = Description::parse(text).unwrap();
        let table = gid_table(&d.devices[0]);
        let got: Vec<_> = table.iter().map(|e| (e.port_num, e.gid_index, e.gid_type, e.gid[15])).collect();
        assert_eq!(got, [(1, 0, 1, 1), (1, 2, 2, 2), (2, 0, 0, 3)]);
    }

    #[test]
    fn ports_report_their_link_state_and_mtu() {
        let text = "[[device]]\nname='a'\n[[device.port]]\nlink='roce'\nmtu=1024\nactive=false";
        let d = Description::parse(text).unwrap();
        let p = port(&d.devices[0].ports[0]);
        assert_eq!((p.link_layer, p.state, p.active_mtu, p.lid, p.gid_tbl_len), (2, 1, 3, 0, 8));
    }
}
