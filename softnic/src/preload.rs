//! The C functions that this crate puts in front of the C library's: calls on device files come here, all others pass.
//! What the calls mean is in [`crate::uverbs`].
//!
//! # Safety
//!
//! Each function keeps the contract of the C function of its name: pointers are passed on as they came, or read only as
//! that function may read them. The functions run in any thread, early and late in a process, inside allocators and under
//! locks: what is not ours goes straight on without a lock, an allocation or a panic.
#![allow(unsafe_code)]

pub mod mapping;

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{mode_t, size_t, ssize_t, stat as Stat, stat64 as Stat64};

use crate::drive;
use crate::environment::is_on;
use crate::host::Host;
use crate::sysfs::{FIRST_MINOR, MAJOR};
use crate::uverbs::Errno;

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`.
const RDMA_VERBS_IOCTL: c_ulong = 0xc018_1b01;
/// `NETLINK_RDMA`: refused, so that libibverbs looks into sysfs and not at the kernel's devices.
const NETLINK_RDMA: c_int = 20;

const PREFIX: &[u8] = b"/dev/infiniband/uverbs";

/// Device descriptors as a bit set, so that every `close` and `write` of the process is checked without a lock.
static DESCRIPTORS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

fn mark(fd: RawFd, ours: bool) -> bool {
    let Some(word) = usize::try_from(fd).ok().and_then(|n| DESCRIPTORS.get(n / 64)) else { return false };
    let bit = 1 << (fd % 64);
    let before =
        if ours { word.fetch_or(bit, Ordering::AcqRel) } else { word.fetch_and(!bit, Ordering::AcqRel) };
    before & bit != 0
}

fn is_ours(fd: RawFd) -> bool {
    let word = usize::try_from(fd).ok().and_then(|n| DESCRIPTORS.get(n / 64));
    word.is_some_and(|w| w.load(Ordering::Acquire) >> (fd % 64) & 1 == 1)
}

/// The next definition of a function: the C library's, or another interposer's.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    fn get(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a C string; RTLD_NEXT looks behind the object that holds this code.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        assert!(!found.is_null(), "the C library has every function that is interposed");
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Functions that answer the C library's function of a name.
macro_rules! next {
    ($($function:ident: $name:literal as $type:ty;)*) => {
        $(fn $function() -> $type {
            static NEXT: Next = Next::new($name);
            // SAFETY: the C library's function of this name has this type.
            unsafe { std::mem::transmute::<*mut c_void, $type>(NEXT.get()) }
        })*
    };
}

next! {
    next_open: c"open" as unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int;
    next_access: c"access" as unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    next_opendir: c"opendir" as unsafe extern "C" fn(*const c_char) -> *mut libc::DIR;
    next_open64: c"open64" as unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int;
    next_stat: c"stat" as unsafe extern "C" fn(*const c_char, *mut Stat) -> c_int;
    next_fstat: c"fstat" as unsafe extern "C" fn(c_int, *mut Stat) -> c_int;
    next_ioctl: c"ioctl" as unsafe extern "C" fn(c_int, c_ulong, ...) -> c_int;
    next_close: c"close" as unsafe extern "C" fn(c_int) -> c_int;
    next_write: c"write" as unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t;
    next_socket: c"socket" as unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
}

/// Sets errno and answers -1.
fn fail(errno: Errno) -> c_int {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno.0 };
    -1
}

/// The process that opened devices.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Whether this is the process that the devices belong to. A child of `vfork` is not, though it shares all memory.
fn owns_devices() -> bool {
    let me = std::process::id();
    let owner = OWNER.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed);
    owner.is_ok() || owner == Err(me)
}

/// Runs a command on the machine; a panic becomes an I/O error.
fn on_host<T>(command: impl FnOnce(&mut Host) -> Result<T, Errno>) -> Result<T, Errno> {
    if !owns_devices() {
        return Err(Errno::IO);
    }
    let run = AssertUnwindSafe(|| drive::command().as_mut().map_or(Err(Errno::IO), command));
    catch_unwind(run).unwrap_or_else(|_| {
        crate::log::warn(&"a command panicked; answered with EIO");
        Err(Errno::IO)
    })
}

fn on_context(fd: RawFd, command: impl FnOnce(&mut Host, u32) -> Result<(), Errno>) -> Result<(), Errno> {
    on_host(|host| {
        let context = host.context_of(fd).ok_or(Errno::IO)?;
        command(host, context)
    })
}

/// The number behind `/dev/infiniband/uverbs`.
fn device_of_path(path: *const c_char) -> Option<usize> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller passes a C string, as to the C function.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let digits = path.strip_prefix(PREFIX)?;
    let number: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    start_if_preloaded();
    let known = drive::lock().as_ref().is_some_and(|h| number < h.description.devices.len());
    known.then_some(number)
}

fn open_device(device: usize) -> c_int {
    let opened = on_host(|host| host.open(device).map_err(Errno::from));
    match opened {
        Ok(fd) if usize::try_from(fd).is_ok_and(|n| n < DESCRIPTORS.len() * 64) => {
            mark(fd, true);
            fd
        }
        Ok(fd) => {
            let _ = on_host(|host| {
                host.close(fd);
                Ok(())
            });
            // SAFETY: the descriptor was just made and nobody knows it.
            unsafe { libc::syscall(libc::SYS_close, fd) };
            fail(Errno(libc::EMFILE))
        }
        Err(errno) => fail(errno),
    }
}

/// Opens a file, or a device.
///
/// # Safety
///
/// As `open(2)`. `mode` is read by the C library only if `flags` ask for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    match device_of_path(path) {
        Some(device) => open_device(device),
        // SAFETY: the caller's contract.
        None => unsafe { next_open()(path, flags, mode) },
    }
}

/// Opens a file, or a device.
///
/// # Safety
///
/// As `open64(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    match device_of_path(path) {
        Some(device) => open_device(device),
        // SAFETY: the caller's contract.
        None => unsafe { next_open64()(path, flags, mode) },
    }
}

/// Asks whether a file, or a device, may be opened. UCX does before it opens one.
///
/// # Safety
///
/// As `access(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    match device_of_path(path) {
        Some(_) => 0,
        // SAFETY: the caller's contract.
        None => unsafe { next_access()(path, mode) },
    }
}

/// The file's mode and number, for a character device of the verbs class.
fn fill_stat(out: &mut Stat, device: usize) {
    out.st_mode = libc::S_IFCHR | 0o666;
    out.st_rdev = libc::makedev(MAJOR, FIRST_MINOR + device as c_uint);
    out.st_nlink = 1;
}

/// # Safety
///
/// `out` is valid for writes.
unsafe fn put_stat(out: *mut Stat, device: usize) -> c_int {
    // SAFETY: the caller's contract; all-zero is a valid `stat`.
    unsafe {
        out.write(std::mem::zeroed());
        fill_stat(&mut *out, device);
    }
    0
}

/// Describes a file, or a device.
///
/// # Safety
///
/// As `stat(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, out: *mut Stat) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        match device_of_path(path) {
            Some(device) => put_stat(out, device),
            None => next_stat()(path, out),
        }
    }
}

/// Describes a file, or a device.
///
/// # Safety
///
/// As `stat64(2)`. On 64-bit machines `stat64` is `stat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat64(path: *const c_char, out: *mut Stat64) -> c_int {
    // SAFETY: the caller's contract; the two structures are one on 64-bit machines, asserted below.
    unsafe { stat(path, out.cast()) }
}

const _: () = assert!(size_of::<Stat>() == size_of::<Stat64>(), "softnic supports 64-bit machines only");

/// Describes an open file, or a device.
///
/// # Safety
///
/// As `fstat(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat(fd: c_int, out: *mut Stat) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if is_ours(fd) {
            let device = on_host(|host| host.device_of(fd).ok_or(Errno::IO));
            return device.map_or_else(fail, |device| put_stat(out, device));
        }
        next_fstat()(fd, out)
    }
}

/// Describes an open file, or a device.
///
/// # Safety
///
/// As `fstat64(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat64(fd: c_int, out: *mut Stat64) -> c_int {
    // SAFETY: as for `stat64`.
    unsafe { fstat(fd, out.cast()) }
}

/// Controls a file, or a device.
///
/// # Safety
///
/// As `ioctl(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { next_ioctl()(fd, request, argument) };
    }
    // The request travels as an int in some C libraries: only its 32 bits count.
    let result = match request as u32 == RDMA_VERBS_IOCTL as u32 {
        true => on_context(fd, |host, context| host.ioctl(context, argument as u64)),
        false => Err(Errno::NOTTY),
    };
    result.map_or_else(fail, |()| 0)
}

/// Closes a file, or a device.
///
/// # Safety
///
/// As `close(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_ours(fd) && owns_devices() && mark(fd, false) {
        let _ = on_host(|host| {
            host.close(fd);
            Ok(())
        });
    }
    // SAFETY: the caller's contract.
    unsafe { next_close()(fd) }
}

/// Writes to a file, or a command to a device.
///
/// # Safety
///
/// As `write(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { next_write()(fd, buffer, len) };
    }
    let result = on_context(fd, |host, context| host.write(context, buffer as u64, len));
    result.map_or_else(|errno| fail(errno) as ssize_t, |()| len as ssize_t)
}

/// Makes a socket, but not to the kernel's RDMA subsystem.
///
/// # Safety
///
/// As `socket(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        start_if_preloaded();
        // A binary that links the crate and never starts a machine keeps the host's own devices.
        if SHOWN.load(Ordering::Acquire) {
            return fail(Errno::PROTONOSUPPORT);
        }
    }
    // SAFETY: the caller's contract.
    unsafe { next_socket()(domain, kind, protocol) }
}

/// Opens a folder. libibverbs without netlink support looks into sysfs at once.
///
/// # Safety
///
/// As `opendir(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    if !path.is_null() {
        // SAFETY: the caller passes a C string, as to the C function.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        if path.ends_with(b"/class/infiniband_verbs") {
            start_if_preloaded();
        }
    }
    // SAFETY: the caller's contract.
    unsafe { next_opendir()(path) }
}

/// Under `LD_PRELOAD` nobody calls [`crate::Softnic::start`]: the first sign of libibverbs does.
fn start_if_preloaded() {
    if !is_on(PRELOADED) {
        return;
    }
    let mut started = gate();
    if *started != std::process::id() {
        *started = std::process::id();
        crate::machine::start_from_environment();
    }
}

/// The process whose machine was started by the environment; whoever needs it waits until it is there.
pub(crate) fn gate() -> MutexGuard<'static, u32> {
    static STARTED: Mutex<u32> = Mutex::new(0);
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A forked child begins without devices; descriptors that it inherited stay known, and answer `EIO`.
pub(crate) fn disown() {
    OWNER.store(0, Ordering::Relaxed);
    drive::forget_commands();
}

/// Says that the library is preloaded: a program that only links it starts its machine by itself.
const PRELOADED: &str = "SOFTNIC_PRELOAD";

/// libibverbs reads `SYSFS_PATH` before anything that we see, so a preloaded library sets it before the program starts.
/// The tree itself is written when the machine starts.
extern "C" fn point_to_tree() {
    // One that says neither yes nor no is an error too.
    if std::env::var_os(PRELOADED).is_some_and(|v| !v.is_empty() && v != "0") {
        if let Err(why) = crate::machine::Config::from_environment() {
            give_up(&why);
        }
        set_sysfs_path(&crate::tree::sysfs_root());
    }
}

/// Ends a process that asked for devices and can't have them: going on would only show it a host without any.
pub(crate) fn give_up(why: &crate::machine::StartError) {
    crate::log::warn(why);
    // What ends so has no end of its own to do it at.
    crate::tree::release();
    // SAFETY: ends the process at once; its own handlers expect a `main` that has begun.
    unsafe { libc::_exit(1) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = point_to_tree;

/// The end of a process that ends by itself. One that is killed leaves its folder to the next.
extern "C" fn leave() {
    let _ = catch_unwind(|| {
        if let Some(host) = drive::lock().as_mut() {
            host.engine.shared.trace.flush();
        }
        crate::tree::release();
    });
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = leave;

/// Whether libibverbs was pointed to our tree.
static SHOWN: AtomicBool = AtomicBool::new(false);

/// Points libibverbs to our tree. It reads the variable once per process.
pub(crate) fn set_sysfs_path(root: &Path) {
    SHOWN.store(true, Ordering::Release);
    // SAFETY: called before `main`, or from the first start of a machine, which the caller makes before other threads
    // use the environment (documented there).
    unsafe { std::env::set_var("SYSFS_PATH", root) };
}

/// Whether calls from shared libraries of this process come here; else the name of one that doesn't.
pub(crate) fn check_interposed() -> Result<(), &'static str> {
    let ours: [(&'static str, &CStr, *const c_void); 7] = [
        ("open", c"open", open as *const c_void),
        ("ioctl", c"ioctl", ioctl as *const c_void),
        ("close", c"close", close as *const c_void),
        ("fstat", c"fstat", fstat as *const c_void),
        ("stat", c"stat", stat as *const c_void),
        ("mmap", c"mmap", mapping::mmap as *const c_void),
        ("munmap", c"munmap", mapping::munmap as *const c_void),
    ];
    for (name, symbol, address) in ours {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) };
        if found.cast_const() != address {
            return Err(name);
        }
    }
    Ok(())
}
