//! Access to the memory of the program that a device serves: registered buffers, rings, doorbell records, register pages.
//! What a buffer means (keys, ranges, protection domains) is not known here.
//!
//! # Safety
//!
//! Addresses come from the program and are untrusted. Buffers are reached only through `process_vm_readv` and
//! `process_vm_writev` on this very process: the kernel checks each page, so memory that vanished is an error and never a
//! fault. Rings and records must be quick and ordered, so they are reached by atomic accesses; [`Pinned::new`] checks that
//! they are mapped when the object is created, and the verbs contract keeps them mapped until the destroy command returns,
//! which waits for the device's lock. No `&[u8]` is ever formed over memory that the program can write.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// An address range that is not (or no longer) mapped, or not with the needed protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("access {addr:#x}+{len:#x}: not mapped")]
pub struct Fault {
    /// First byte of the refused access.
    pub addr: u64,
    /// Length of the refused access in bytes.
    pub len: usize,
}

/// Copies `out.len()` bytes at `addr` into `out`.
pub fn read(addr: u64, out: &mut [u8]) -> Result<(), Fault> {
    let len = out.len();
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: len };
    transfer(Direction::Read, local, addr, len)
}

/// Copies `data` to `addr`, the last bytes last: a program that polls the end of a buffer sees the whole of it.
pub fn write(addr: u64, data: &[u8]) -> Result<(), Fault> {
    let tail = data.len().min(8);
    let (body, end) = data.split_at(data.len() - tail);
    write_once(addr, body)?;
    write_once(addr.wrapping_add(body.len() as u64), end)
}

/// Reads a plain little-endian-host `u64` at `addr`.
pub fn read_u64(addr: u64) -> Result<u64, Fault> {
    let mut bytes = [0; 8];
    read(addr, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Reads `len` bytes at `addr`; `limit` bounds what a program can make the device allocate.
pub fn read_vec(addr: u64, len: usize, limit: usize) -> Result<Vec<u8>, Fault> {
    if len > limit {
        return Err(Fault { addr, len });
    }
    let mut bytes = vec![0; len];
    read(addr, &mut bytes)?;
    Ok(bytes)
}

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

fn write_once(addr: u64, data: &[u8]) -> Result<(), Fault> {
    let local = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    transfer(Direction::Write, local, addr, data.len())
}

fn transfer(direction: Direction, local: libc::iovec, addr: u64, len: usize) -> Result<(), Fault> {
    let mut done = 0;
    while done < len {
        match transfer_some(direction, &local, done, addr.wrapping_add(done as u64)) {
            Some(n) if n > 0 => done += n,
            _ => return Err(Fault { addr, len }),
        }
    }
    Ok(())
}

fn transfer_some(direction: Direction, local: &libc::iovec, done: usize, addr: u64) -> Option<usize> {
    let left = local.iov_len - done;
    let base = local.iov_base.wrapping_byte_add(done);
    if !process_vm_is_refused() {
        let local = libc::iovec { iov_base: base, iov_len: left };
        let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: left };
        // SAFETY: `local` is the rest of a live slice of the caller; `remote` is checked by the kernel, page by page.
        let n = unsafe {
            match direction {
                Direction::Read => {
                    libc::process_vm_readv(std::process::id() as i32, &local, 1, &remote, 1, 0)
                }
                Direction::Write => {
                    libc::process_vm_writev(std::process::id() as i32, &local, 1, &remote, 1, 0)
                }
            }
        };
        return usize::try_from(n).ok();
    }
    let file = self_memory()?;
    // SAFETY: as above; `/proc/self/mem` checks the remote side in the same way.
    let n = unsafe {
        use std::os::fd::AsRawFd;
        match direction {
            Direction::Read => libc::pread64(file.as_raw_fd(), base, left, addr as i64),
            Direction::Write => libc::pwrite64(file.as_raw_fd(), base, left, addr as i64),
        }
    };
    usize::try_from(n).ok()
}

/// Containers may refuse `process_vm_*` even on oneself; then `/proc/self/mem` serves (it ignores write protection).
fn process_vm_is_refused() -> bool {
    static REFUSED: OnceLock<bool> = OnceLock::new();
    *REFUSED.get_or_init(|| {
        let (mut to, from) = ([0u8; 1], [1u8; 1]);
        let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: 1 };
        let remote = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: 1 };
        // SAFETY: both vectors name one live byte of this frame.
        unsafe { libc::process_vm_readv(std::process::id() as i32, &local, 1, &remote, 1, 0) != 1 }
    })
}

fn self_memory() -> Option<&'static std::fs::File> {
    static FILE: OnceLock<Option<std::fs::File>> = OnceLock::new();
    FILE.get_or_init(|| std::fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem").ok())
        .as_ref()
}

/// A ring or a record that the program keeps mapped for the life of one device object.
#[derive(Debug)]
pub struct Pinned {
    addr: u64,
    len: usize,
}

impl Pinned {
    /// Checks that `len` bytes at `addr` are mapped and 4-byte aligned.
    pub fn new(addr: u64, len: usize) -> Result<Self, Fault> {
        let fault = Fault { addr, len };
        if addr == 0 || !addr.is_multiple_of(8) || addr.checked_add(len as u64).is_none() {
            return Err(fault);
        }
        let mut probe = [0; 1];
        for page in (addr..addr + len as u64).step_by(4096) {
            read(page, &mut probe).map_err(|_| fault)?;
        }
        if len > 0 {
            read(addr + len as u64 - 1, &mut probe).map_err(|_| fault)?;
        }
        Ok(Self { addr, len })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the range holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Loads the 32-bit word at byte `offset` (acquire), in memory order.
    pub fn load_u32(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Exchanges the 32-bit word at byte `offset`, in memory order.
    pub fn swap_u32(&self, offset: usize, value: u32) -> u32 {
        self.word(offset).swap(value, Ordering::AcqRel)
    }

    /// Copies bytes out, word by word, from `offset` (a multiple of 8; so is the length).
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) {
        for (i, chunk) in out.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&self.long(offset + i * 8).load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// Copies bytes in, word by word; the last 8 bytes are one release store, so that they publish the others.
    pub fn publish(&self, offset: usize, data: &[u8]) {
        let last = (data.len() / 8).saturating_sub(1);
        for (i, chunk) in data.chunks_exact(8).enumerate() {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(chunk);
            let order = if i == last { Ordering::Release } else { Ordering::Relaxed };
            self.long(offset + i * 8).store(u64::from_ne_bytes(bytes), order);
        }
    }

    /// Copies bytes in, word by word, from the last to the first; the first 8 bytes are one release store, so that they
    /// publish the others.
    pub fn publish_backwards(&self, offset: usize, data: &[u8]) {
        for (i, chunk) in data.chunks_exact(8).enumerate().rev() {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(chunk);
            let order = if i == 0 { Ordering::Release } else { Ordering::Relaxed };
            self.long(offset + i * 8).store(u64::from_ne_bytes(bytes), order);
        }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len, "word {offset} of {} bytes", self.len);
        // SAFETY: inside the range checked by `new`, aligned, alive for as long as the object is (module's contract).
        unsafe { AtomicU32::from_ptr((self.addr as usize + offset) as *mut u32) }
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "word {offset} of {} bytes", self.len);
        // SAFETY: as in `word`; the base is 8-byte aligned.
        unsafe { AtomicU64::from_ptr((self.addr as usize + offset) as *mut u64) }
    }
}

/// A shared mapping of a file, made by the device: its register pages, or a dma-buf that a program registered.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: a `Mapping` is plain shared memory that is only reached by atomic accesses or through the kernel.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset` (a multiple of the page size).
    pub fn new(file: impl AsFd, offset: u64, len: usize) -> std::io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags};
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, offset)?
        };
        Ok(Self { base: base.cast(), len })
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.base as u64
    }

    /// Takes the 8 bytes at `offset`, leaving zeros; `None` if they were zero.
    pub fn take_u64(&self, offset: usize) -> Option<u64> {
        let slot = self.long(offset);
        if slot.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(slot.swap(0, Ordering::AcqRel)).filter(|v| *v != 0)
    }

    /// Clears `len` bytes at `offset`.
    pub fn clear(&self, offset: usize, len: usize) {
        for i in 0..len {
            assert!(offset + i < self.len, "byte {} of {}", offset + i, self.len);
            // SAFETY: inside the mapping, which lives as long as `self`.
            unsafe { AtomicU8::from_ptr(self.base.add(offset + i)) }.store(0, Ordering::Relaxed);
        }
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "word {offset} of {} bytes", self.len);
        // SAFETY: inside the page-aligned mapping, which lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours since `new`, and nobody can reach it after `self`. An error leaves it mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}

/// A file in memory of `len` bytes, to be mapped by the program.
pub fn memory_file(name: &str, len: u64) -> std::io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, len)?;
    Ok(fd)
}

/// The program's open file of this number, which it passed to a command.
///
/// # Errors
///
/// A negative number. One that is not open makes the calls on it fail.
pub fn program_file(fd: RawFd) -> std::io::Result<BorrowedFd<'static>> {
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: used within the present command alone, during which the program keeps the descriptor open. If it doesn't, the
    // calls fail, or act on another file of its own, as the kernel's would.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vanished_page_is_a_fault_and_not_a_crash() {
        let file = memory_file("softnic-test", 4096).unwrap();
        let map = Mapping::new(&file, 0, 4096).unwrap();
        let addr = map.addr();
        write(addr, &[7; 100]).unwrap();
        let mut back = [0; 100];
        read(addr, &mut back).unwrap();
        assert_eq!(back, [7; 100]);
        rustix::fs::ftruncate(&file, 0).unwrap();
        assert_eq!(write(addr, &[7; 100]).unwrap_err().len, 92);
        drop(map);
        assert_eq!(read(addr, &mut back), Err(Fault { addr, len: 100 }));
        assert!(Pinned::new(addr, 64).is_err());
    }

    #[test]
    fn a_write_that_ends_unmapped_reports_the_fault() {
        let file = memory_file("softnic-test", 4096).unwrap();
        let map = Mapping::new(&file, 0, 4096).unwrap();
        let end = map.addr() + 4096;
        assert!(write(end - 4, &[1; 4]).is_ok());
        assert!(write(end - 4, &vec![1; 1 << 20]).is_err());
    }

    #[test]
    fn a_pinned_range_publishes_and_copies_words() {
        let words = [const { AtomicU64::new(0) }; 16];
        let pinned = Pinned::new(words.as_ptr() as u64, 128).unwrap();
        let data: Vec<u8> = (0..64).collect();
        pinned.publish(64, &data);
        let mut out = [0; 64];
        pinned.copy_out(64, &mut out);
        assert_eq!(out[..], data[..]);
        assert_eq!(pinned.swap_u32(0, 5), 0);
        assert_eq!(pinned.load_u32(0), 5);
        assert_eq!(words.len(), 16);
    }
}
