//! The builders of an mlx5 extended queue pair, the clock, and access to DEVX fields by bit offset. Holds no WQE
//! segment: `mlx5_segments` does.
//!
//! # Safety
//!
//! See the parent module.

use core::ffi::c_void;

use super::builders;
use crate::*;

builders! {
    mlx5dv_qp_ex;
    /// Sets the peer of a request on a dynamically connected initiator.
    mlx5dv_wr_set_dc_addr(ah: *mut ibv_ah, remote_dctn: u32, remote_dc_key: u64) => wr_set_dc_addr;
    /// As `mlx5dv_wr_set_dc_addr`, on one of the initiator's streams.
    mlx5dv_wr_set_dc_addr_stream(ah: *mut ibv_ah, remote_dctn: u32, remote_dc_key: u64, stream_id: u16)
        => wr_set_dc_addr_stream;
    /// Builds a registration of interleaved memory under an mkey.
    mlx5dv_wr_mr_interleaved(
        mkey: *mut mlx5dv_mkey, access_flags: u32, repeat_count: u32, num_interleaved: u16,
        data: *mut mlx5dv_mr_interleaved
    ) => wr_mr_interleaved;
    /// Builds a registration of a list of pieces under an mkey.
    mlx5dv_wr_mr_list(mkey: *mut mlx5dv_mkey, access_flags: u32, num_sges: u16, sge: *mut ibv_sge) => wr_mr_list;
    /// Builds an mkey configuration that the following setters fill.
    mlx5dv_wr_mkey_configure(mkey: *mut mlx5dv_mkey, num_setters: u8, attr: *mut mlx5dv_mkey_conf_attr)
        => wr_mkey_configure;
    /// Sets the access of the mkey that is being configured.
    mlx5dv_wr_set_mkey_access_flags(access_flags: u32) => wr_set_mkey_access_flags;
    /// Sets the layout of the mkey as a list of pieces.
    mlx5dv_wr_set_mkey_layout_list(num_sges: u16, sge: *const ibv_sge) => wr_set_mkey_layout_list;
    /// Sets the layout of the mkey as interleaved pieces.
    mlx5dv_wr_set_mkey_layout_interleaved(repeat_count: u32, num_interleaved: u16, data: *const mlx5dv_mr_interleaved)
        => wr_set_mkey_layout_interleaved;
    /// Sets the block signature of the mkey.
    mlx5dv_wr_set_mkey_sig_block(attr: *const mlx5dv_sig_block_attr) => wr_set_mkey_sig_block;
    /// Sets the encryption of the mkey.
    mlx5dv_wr_set_mkey_crypto(attr: *const mlx5dv_crypto_attr) => wr_set_mkey_crypto;
    /// Builds a copy of local memory by the device.
    mlx5dv_wr_memcpy(dest_lkey: u32, dest_addr: u64, src_lkey: u32, src_addr: u64, length: usize) => wr_memcpy;
    /// Builds a request from a WQE that the caller wrote.
    mlx5dv_wr_raw_wqe(wqe: *const c_void) => wr_raw_wqe;
}

/// The wall clock, in nanoseconds, at a device timestamp near the one that the clock information was taken at.
#[inline]
pub const fn mlx5dv_ts_to_ns(clock_info: &mlx5dv_clock_info, device_timestamp: u64) -> u64 {
    let forward = device_timestamp.wrapping_sub(clock_info.last_cycles) & clock_info.mask;
    // More than half of the counter ahead is taken for behind.
    if forward > clock_info.mask / 2 {
        let behind = clock_info.last_cycles.wrapping_sub(device_timestamp) & clock_info.mask;
        let scaled = behind.wrapping_mul(clock_info.mult as u64).wrapping_sub(clock_info.frac);
        return clock_info.nsec.wrapping_sub(scaled.wrapping_shr(clock_info.shift));
    }
    let scaled = forward.wrapping_mul(clock_info.mult as u64).wrapping_add(clock_info.frac);
    clock_info.nsec.wrapping_add(scaled.wrapping_shr(clock_info.shift))
}

/// Sets a field of at most 32 bits in a big-endian DEVX command, by its offset in bits; the rest stays.
///
/// # Safety
///
/// `command` is 4-byte aligned, writable and longer than `bit_off + bit_size` bits; the field lies in one 32-bit word.
#[inline]
pub unsafe fn _devx_set(command: *mut c_void, value: u32, bit_off: usize, bit_size: usize) {
    // SAFETY: the caller's promise.
    let word = unsafe { command.cast::<u32>().add(bit_off / 32) };
    let shift = 32 - bit_size - (bit_off & 31);
    let mask = devx_mask(bit_size);
    // SAFETY: the caller's promise.
    unsafe { word.write((u32::from_be(word.read()) & !(mask << shift) | (value & mask) << shift).to_be()) };
}

/// Reads a field of at most 32 bits of a big-endian DEVX command, by its offset in bits.
///
/// # Safety
///
/// As [`_devx_set`], readable.
#[inline]
pub unsafe fn _devx_get(command: *const c_void, bit_off: usize, bit_size: usize) -> u32 {
    // SAFETY: the caller's promise.
    let word = u32::from_be(unsafe { command.cast::<u32>().add(bit_off / 32).read() });
    (word >> (32 - bit_size - (bit_off & 31))) & devx_mask(bit_size)
}

/// Sets an aligned 64-bit field of a big-endian DEVX command.
///
/// # Safety
///
/// `command` is 8-byte aligned, writable and longer than `bit_off + 64` bits; `bit_off` is a multiple of 64.
#[inline]
pub unsafe fn _devx_set64(command: *mut c_void, value: u64, bit_off: usize) {
    // SAFETY: the caller's promise.
    unsafe { command.cast::<u64>().add(bit_off / 64).write(value.to_be()) };
}

/// Reads an aligned 64-bit field of a big-endian DEVX command.
///
/// # Safety
///
/// As [`_devx_set64`], readable.
#[inline]
pub unsafe fn _devx_get64(command: *const c_void, bit_off: usize) -> u64 {
    // SAFETY: the caller's promise.
    u64::from_be(unsafe { command.cast::<u64>().add(bit_off / 64).read() })
}

const fn devx_mask(bit_size: usize) -> u32 {
    ((1u64 << bit_size) - 1) as u32
}
