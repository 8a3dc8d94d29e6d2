//! Doorbells that are counted: the program gets their page without the right to write, and each write that it attempts is
//! carried out, and counted, by a handler of `SIGSEGV`. Which pages those are, and what the numbers mean, is in
//! [`crate::efa::pages`].
//!
//! The page is never writable for the program, not for one instruction either: the handler decodes the store that failed,
//! stores to another mapping of the same page, and lets the program go on behind it. So no write of any thread is missed,
//! whatever the others do meanwhile, and there is no state of a thread. x86-64 only, because of the decoding.
//!
//! # Safety
//!
//! The handler runs in the middle of anything. It takes no lock, allocates nothing, never panics, calls nothing of the C
//! library but `sigaction` and the bare system call `write`, and touches: this file's atomics; the instruction that failed,
//! byte by byte and not beyond its end, which the processor has just read; the registers that the kernel saved; and a second
//! mapping of the doorbell's page, which lives from before the program gets its own until after the program gave that up
//! ([`map`], [`unmap`]). A program that rings while another thread unmaps would have crashed without us. A fault anywhere
//! else, by anything but a store of 32 bits, goes to the handler that was there before, or ends the process as it would have.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::efa::pages::{COUNTED, PAGE, TALLY};

/// Whether this machine's instructions can be decoded.
pub const AVAILABLE: bool = cfg!(target_arch = "x86_64");

/// Counted pages of a process at once: a queue pair has two, a completion queue with a channel one.
const ROOM: usize = 8192;

/// A page of doorbells as the program has it, and where its writes are carried out.
struct Page {
    /// Its address; 0 is a free place, 1 one that is being filled.
    seen: AtomicUsize,
    /// The writable mapping: the page, and behind it the tallies.
    alias: AtomicUsize,
}

const FREE: usize = 0;
const FILLING: usize = 1;

static PAGES: [Page; ROOM] =
    [const { Page { seen: AtomicUsize::new(FREE), alias: AtomicUsize::new(0) } }; ROOM];
/// No page is at this place or behind it.
static END: AtomicUsize = AtomicUsize::new(0);

fn pages() -> &'static [Page] {
    &PAGES[..END.load(Ordering::Acquire).min(ROOM)]
}

fn place(seen: usize) -> Option<&'static Page> {
    pages().iter().find(|p| p.seen.load(Ordering::Acquire) == seen)
}

/// Notes a page; false if there is no room.
fn note(seen: usize, alias: usize) -> bool {
    for (at, page) in PAGES.iter().enumerate() {
        if page.seen.compare_exchange(FREE, FILLING, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            page.alias.store(alias, Ordering::Relaxed);
            page.seen.store(seen, Ordering::Release);
            END.fetch_max(at + 1, Ordering::AcqRel);
            return true;
        }
    }
    false
}

/// The bare system call: the C library's `mmap` of this process is ours.
///
/// # Safety
///
/// As `mmap(2)`.
pub(crate) unsafe fn bare_mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's contract; sets errno as the C function does.
    let at = unsafe { libc::syscall(libc::SYS_mmap, addr, len, prot, flags, fd, offset) };
    at as usize as *mut c_void
}

/// The bare system call.
///
/// # Safety
///
/// As `munmap(2)`.
pub(crate) unsafe fn bare_munmap(addr: *mut c_void, len: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_munmap, addr, len) as c_int }
}

/// Maps a page of doorbells whose writes are counted, as `mmap(2)` would without the right to write.
///
/// # Safety
///
/// As `mmap(2)`. `offset` is that of a counted page, with its tallies behind it.
pub(crate) unsafe fn map(addr: *mut c_void, len: usize, flags: c_int, fd: c_int, offset: i64) -> *mut c_void {
    if len.div_ceil(PAGE) != 1 || flags & libc::MAP_SHARED == 0 {
        return refuse(libc::EINVAL);
    }
    if let Err(errno) = watch() {
        return refuse(errno);
    }
    let (shared, writable) = (libc::MAP_SHARED, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing; the other one is the caller's affair.
    unsafe {
        let alias = bare_mmap(std::ptr::null_mut(), COUNTED, writable, shared, fd, offset);
        if alias == libc::MAP_FAILED {
            return alias;
        }
        let seen = bare_mmap(addr, len, libc::PROT_READ, flags, fd, offset);
        if seen != libc::MAP_FAILED && note(seen as usize, alias as usize) {
            return seen;
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM);
        bare_munmap(alias, COUNTED);
        if seen == libc::MAP_FAILED {
            return refuse(errno);
        }
        bare_munmap(seen, len);
    }
    crate::log::warn(&format_args!("more than {ROOM} pages of counted doorbells"));
    refuse(libc::ENOMEM)
}

fn refuse(errno: c_int) -> *mut c_void {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    libc::MAP_FAILED
}

/// Unmaps as `munmap(2)`, and forgets the counted pages among them.
///
/// # Safety
///
/// As `munmap(2)`.
pub(crate) unsafe fn unmap(addr: *mut c_void, len: usize) -> c_int {
    // The marks of places are no addresses: libraries unmap at 0 what they never mapped.
    let range = (addr as usize).max(PAGE)..(addr as usize).saturating_add(len);
    for page in pages().iter().filter(|p| range.contains(&p.seen.load(Ordering::Acquire))) {
        let alias = page.alias.load(Ordering::Relaxed);
        page.seen.store(FREE, Ordering::Release);
        // SAFETY: made by `map`, and nobody finds it any more.
        unsafe { bare_munmap(alias as *mut c_void, COUNTED) };
    }
    // SAFETY: the caller's contract.
    unsafe { bare_munmap(addr, len) }
}

/// What handled the signal before.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Puts the handler in front of the present one, once. It stays: a handler that is set later is expected to pass on what it
/// does not know, as this one does.
fn watch() -> Result<(), c_int> {
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*done {
        // SAFETY: all-zero is a valid structure; the old one is kept for good before the new handler can read it.
        unsafe {
            let mut before = Box::new(std::mem::zeroed::<libc::sigaction>());
            succeed(libc::sigaction(libc::SIGSEGV, std::ptr::null(), &mut *before))?;
            BEFORE.store(Box::into_raw(before), Ordering::Release);
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = on_fault as *const () as usize;
            // On the other stack, for the handler behind may be there for a stack that has overflown.
            new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            succeed(libc::sigaction(libc::SIGSEGV, &new, std::ptr::null_mut()))?;
        }
        *done = true;
    }
    Ok(())
}

fn succeed(code: c_int) -> Result<(), c_int> {
    match code {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
    }
}

/// `SEGV_ACCERR`: the page is there, and may not be accessed so.
const ACCESS: c_int = 2;

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid structures to a handler with SA_SIGINFO.
    unsafe {
        let at = (*info).si_addr() as usize;
        let page = if (*info).si_code == ACCESS { place(at & !(PAGE - 1)) } else { None };
        match page {
            Some(page) if carry_out(page, at % PAGE, context) => {}
            Some(_) => {
                say(b"softnic: a doorbell was accessed by an instruction that can't be counted (known: 32-bit mov, movnti, xchg)\n");
                pass_on(signal, info, context);
            }
            None => pass_on(signal, info, context),
        }
    }
}

fn say(text: &[u8]) {
    // SAFETY: a live slice. Nothing can be done about an error.
    unsafe { libc::syscall(libc::SYS_write, 2, text.as_ptr(), text.len()) };
}

/// Does what the handler before would have done.
///
/// # Safety
///
/// Called by a handler, with its own arguments.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: `watch` stored a structure for good, before this could be called; its function has the type that its flags
    // say.
    unsafe {
        let sent = (*info).si_code <= 0;
        match ((*before).sa_sigaction, (*before).sa_flags & libc::SA_SIGINFO != 0) {
            (libc::SIG_IGN, _) if sent => {}
            (libc::SIG_DFL | libc::SIG_IGN, _) => {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &default, std::ptr::null_mut());
                // A fault comes again at once; a signal that was sent does not.
                if sent {
                    libc::raise(signal);
                }
            }
            (function, true) => {
                type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                std::mem::transmute::<usize, Handler>(function)(signal, info, context);
            }
            (function, false) => {
                std::mem::transmute::<usize, extern "C" fn(c_int)>(function)(signal);
            }
        }
    }
}

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no store is known there"))]
/// Rings: stores, counts, and notes by how much the doorbell went on at most.
///
/// # Safety
///
/// `alias` is that of a counted page; `offset`, in bytes, is a multiple of 4 within the page.
unsafe fn ring(alias: usize, offset: usize, value: u32) -> u32 {
    let tally = alias + PAGE + offset / 4 * TALLY;
    // SAFETY: the caller's promise: all three are aligned words of the mapping, which the device reads atomically too.
    unsafe {
        // Counted before it can be seen: who sees the doorbell finds it in the tally.
        AtomicU32::from_ptr(tally as *mut u32).fetch_add(1, Ordering::Relaxed);
        let word = AtomicU32::from_ptr((alias + offset) as *mut u32);
        let step = value.wrapping_sub(word.load(Ordering::Relaxed)) & 0xffff;
        AtomicU32::from_ptr((tally + 4) as *mut u32).fetch_max(step, Ordering::Relaxed);
        word.swap(value, Ordering::AcqRel)
    }
}

#[cfg(target_arch = "x86_64")]
/// Carries the failed store out; false if it is none that is known.
///
/// # Safety
///
/// `context` is what the kernel gave a handler of an access fault at `offset` of `page`.
unsafe fn carry_out(page: &Page, offset: usize, context: *mut c_void) -> bool {
    use crate::store::{Source, decode};
    /// The kernel's order of the registers, by their numbers in instructions.
    const REGISTERS: [c_int; 16] = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    /// The bit of a page fault's code that says that it was a write.
    const WRITE: i64 = 2;
    // SAFETY: the kernel's structure; nobody else has it while the handler runs.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let start = registers[libc::REG_RIP as usize] as usize;
    // SAFETY: bytes of the instruction that the processor was at.
    let found = decode(|n| unsafe { ((start + n) as *const u8).read_volatile() });
    let Some(store) =
        found.filter(|_| registers[libc::REG_ERR as usize] & WRITE != 0 && offset.is_multiple_of(4))
    else {
        return false;
    };
    let register = |n: u8| REGISTERS[usize::from(n & 15)] as usize;
    let value = match store.source {
        Source::Register(n) => registers[register(n)] as u32,
        Source::Immediate(value) => value,
    };
    // SAFETY: the page's own alias, and an aligned offset in it.
    let before = unsafe { ring(page.alias.load(Ordering::Relaxed), offset, value) };
    if let (true, Source::Register(n)) = (store.exchanges, store.source) {
        registers[register(n)] = i64::from(before);
    }
    registers[libc::REG_RIP as usize] += store.len as i64;
    true
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn carry_out(_: &Page, _: usize, _: *mut c_void) -> bool {
    false
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
