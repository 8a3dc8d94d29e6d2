//! `mmap` and `munmap` in front of the C library's: for doorbells whose writes are counted. All else is the bare system call,
//! for allocators call these functions, and what looks up the C library's may allocate.
//!
//! # Safety
//!
//! As for [`crate::preload`]: each function keeps the contract of the C function of its name.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use libc::size_t;

use super::{is_ours, on_host};
use crate::trap;

/// Maps a file, or a device.
///
/// # Safety
///
/// As `mmap(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let counted = || on_host(|host| Ok(host.is_counted(fd, offset as u64))).unwrap_or(false);
    // SAFETY: the caller's contract; the device says that the page is one of counted doorbells.
    unsafe {
        match prot & libc::PROT_WRITE != 0 && is_ours(fd) && counted() {
            true => trap::map(addr, len, flags, fd, offset),
            false => trap::bare_mmap(addr, len, prot, flags, fd, offset),
        }
    }
}

/// Maps a file, or a device.
///
/// # Safety
///
/// As `mmap64(2)`. On 64-bit machines that is `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off64_t,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

/// Unmaps memory.
///
/// # Safety
///
/// As `munmap(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { trap::unmap(addr, len) }
}
