//! Setters of mlx5 WQE segments and getters of a completion entry's ownership byte, byte for byte as mlx5dv.h
//! writes them. Pure: no device memory, no ordering.

use crate::*;

/// The owner bit of a completion entry.
#[inline]
pub const fn mlx5dv_get_cqe_owner(cqe: &mlx5_cqe64) -> u8 {
    cqe.op_own & 1
}

/// Sets the owner bit of a completion entry.
#[inline]
pub const fn mlx5dv_set_cqe_owner(cqe: &mut mlx5_cqe64, owner: u8) {
    cqe.op_own = (owner & 1) | (cqe.op_own & !1);
}

/// The solicited-event bit of a completion entry.
#[inline]
pub const fn mlx5dv_get_cqe_se(cqe: &mlx5_cqe64) -> u8 {
    (cqe.op_own >> 1) & 1
}

/// The two format bits of a completion entry; 3 is a compressed one.
#[inline]
pub const fn mlx5dv_get_cqe_format(cqe: &mlx5_cqe64) -> u8 {
    (cqe.op_own >> 2) & 3
}

/// The opcode of a completion entry.
#[inline]
pub const fn mlx5dv_get_cqe_opcode(cqe: &mlx5_cqe64) -> u8 {
    cqe.op_own >> 4
}

/// Fills a control segment, but for its stream channel.
///
/// `pi` is the number of the WQE's first 64-byte basic block, `ds` its length in 16-byte units, and `imm` goes in
/// as it is: immediate data and keys are big-endian already.
#[inline]
#[allow(clippy::too_many_arguments)]
pub const fn mlx5dv_set_ctrl_seg(
    seg: &mut mlx5_wqe_ctrl_seg,
    pi: u16,
    opcode: u8,
    opmod: u8,
    qp_num: u32,
    fm_ce_se: u8,
    ds: u8,
    signature: u8,
    imm: u32,
) {
    seg.opmod_idx_opcode = ((opmod as u32) << 24 | (pi as u32) << 8 | opcode as u32).to_be();
    seg.qpn_ds = (qp_num << 8 | ds as u32).to_be();
    seg.fm_ce_se = fm_ce_se;
    seg.signature = signature;
    seg.imm = imm;
}

/// Fills a data segment: length in bytes, local key and address.
#[inline]
pub const fn mlx5dv_set_data_seg(seg: &mut mlx5_wqe_data_seg, length: u32, lkey: u32, address: usize) {
    seg.byte_count = length.to_be();
    seg.lkey = lkey.to_be();
    seg.addr = (address as u64).to_be();
}

/// Fills a datagram segment. `ext` 1 says that the address vector is the long one.
#[inline]
#[allow(clippy::too_many_arguments)]
pub const fn mlx5dv_set_dgram_seg(
    seg: &mut mlx5_wqe_datagram_seg,
    key: u64,
    dqp_dct: u32,
    ext: u8,
    stat_rate_sl: u8,
    fl_mlid: u8,
    rlid: u16,
    rmac: &[u8; ETHERNET_LL_SIZE as usize],
    tclass: u8,
    hop_limit: u8,
    grh_gid_fl: u32,
    rgid: &[u8; 16],
) {
    let av = &mut seg.av;
    // All 64 bits, also for a Q_Key: its other half is reserved and zero.
    av.key.dc_key = key.to_be();
    av.dqp_dct = ((ext as u32) << 31 | dqp_dct).to_be();
    av.stat_rate_sl = stat_rate_sl;
    av.fl_mlid = fl_mlid;
    av.rlid = rlid.to_be();
    av.rmac = *rmac;
    av.tclass = tclass;
    av.hop_limit = hop_limit;
    av.grh_gid_fl = grh_gid_fl.to_be();
    av.rgid = *rgid;
}

/// Fills an Ethernet segment with checksum flags, segment size and inline packet headers.
///
/// The headers' first two bytes lie in `inline_hdr_start` and run on into `inline_hdr`; gives false, and changes
/// nothing, if they are longer than the 18 bytes of both, where C would write past the segment.
#[inline]
pub fn mlx5dv_set_eth_seg(seg: &mut mlx5_wqe_eth_seg, cs_flags: u8, mss: u16, inline_hdr: &[u8]) -> bool {
    let start = seg.inline_hdr_start.len();
    if inline_hdr.len() > start + seg.inline_hdr.len() {
        return false;
    }
    seg.cs_flags = cs_flags;
    seg.mss = mss.to_be();
    seg.inline_hdr_sz = (inline_hdr.len() as u16).to_be();
    let (first, rest) = inline_hdr.split_at(inline_hdr.len().min(start));
    seg.inline_hdr_start[..first.len()].copy_from_slice(first);
    seg.inline_hdr[..rest.len()].copy_from_slice(rest);
    true
}
