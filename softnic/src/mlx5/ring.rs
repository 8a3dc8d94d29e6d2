//! Rings of work-queue entries in the program's memory. What an entry means, and which is next, is not known here.

use crate::memory::{Fault, Pinned};

/// A ring of fixed entries in the program's memory.
#[derive(Debug)]
pub struct Ring {
    memory: Pinned,
    base: usize,
    entries: u32,
    entry_size: usize,
}

impl Ring {
    /// A ring of `entries` (a power of two) from byte `base` of the buffer at address `buffer`; `None` if it has no entry.
    pub fn new(buffer: u64, base: usize, entries: u32, entry_size: usize) -> Result<Option<Self>, Fault> {
        if entries == 0 {
            return Ok(None);
        }
        let memory = Pinned::new(buffer, base + entries as usize * entry_size)?;
        Ok(Some(Self { memory, base, entries, entry_size }))
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Bytes of an entry.
    pub fn entry_size(&self) -> usize {
        self.entry_size
    }

    /// Copies `len` bytes (a multiple of 8) from entry `index` on, around the end.
    pub fn copy(&self, index: u16, len: usize) -> Vec<u8> {
        let size = self.entries as usize * self.entry_size;
        let start = (u32::from(index) & (self.entries - 1)) as usize * self.entry_size;
        let mut bytes = vec![0; len.min(size)];
        let first = bytes.len().min(size - start);
        self.memory.copy_out(self.base + start, &mut bytes[..first]);
        let rest = bytes.len() - first;
        if rest > 0 {
            self.memory.copy_out(self.base, &mut bytes[first..]);
        }
        bytes
    }
}
