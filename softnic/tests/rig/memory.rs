//! Memory that tests register: zeroed, page-aligned, and at the same addresses in every run, so that requests, which hold
//! addresses, are the same bytes.
//!
//! # Safety
//!
//! One mapping for the life of the process. A [`Memory`] owns its slots until it is dropped, and tests reach them only by
//! the device's checked copies.

use std::sync::{Mutex, OnceLock, PoisonError};

/// An address that no program uses of its own accord.
const BASE: usize = 0x6d00_0000_0000;
const SLOT: usize = 4096;
/// The pages behind it cost nothing until they are touched.
const SLOTS: usize = 1 << 19;

/// A piece of the arena.
#[derive(Debug, Default)]
pub struct Memory {
    first: usize,
    slots: usize,
}

fn arena() -> &'static Mutex<Vec<bool>> {
    static ARENA: OnceLock<Mutex<Vec<bool>>> = OnceLock::new();
    ARENA.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping, which replaces none.
        let at = unsafe { libc::mmap(BASE as *mut _, SLOT * SLOTS, prot, flags, -1, 0) };
        assert_eq!(at as usize, BASE, "{}", std::io::Error::last_os_error());
        Mutex::new(vec![false; SLOTS])
    })
}

impl Memory {
    /// The lowest free memory of `len` bytes.
    pub fn new(len: usize) -> Self {
        let slots = len.div_ceil(SLOT).max(1);
        let mut used = arena().lock().unwrap_or_else(PoisonError::into_inner);
        let mut first = 0;
        while let Some(taken) = used[first..first + slots].iter().rposition(|u| *u) {
            first += taken + 1;
        }
        used[first..first + slots].fill(true);
        Self { first, slots }
    }

    pub fn addr(&self) -> u64 {
        (BASE + self.first * SLOT) as u64
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        softnic::memory::write(self.addr() + at as u64, bytes).unwrap();
    }

    pub fn get(&self, at: usize, len: usize) -> Vec<u8> {
        softnic::memory::read_vec(self.addr() + at as u64, len, SLOT * SLOTS).unwrap()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.slots == 0 {
            return;
        }
        let mut used = arena().lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the slots are this object's own, and nobody looks at them any more.
        unsafe { libc::madvise(self.addr() as *mut _, self.slots * SLOT, libc::MADV_DONTNEED) };
        used[self.first..self.first + self.slots].fill(false);
    }
}
