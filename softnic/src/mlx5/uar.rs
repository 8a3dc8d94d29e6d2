//! The register (UAR) pages of one context: a file in memory that the program maps, and the slots that it writes. Which
//! queue pair a page belongs to is not known here.
//!
//! A page holds four registers of two halves from byte 0x800 on (`MLX5_BF_OFFSET`), and the arm register of completion
//! queues at 0x20 (`MLX5_CQ_DOORBELL`). A page's number is its offset in the file, so that the program's own `mmap` maps
//! what the device reads: static pages at the offsets of libmlx5's `get_uar_mmap_offset`, dynamic ones above them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::memory::{Mapping, memory_file};
use crate::mlx5::wqe::Control;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Pages that every context with static UARs has.
pub const STATIC_PAGES: usize = 8;
/// First of the pages that a static context's thread domains map (`MLX5_IB_MMAP_ALLOC_WC` in the offset's command field).
pub const STATIC_DYNAMIC_BASE: usize = 6 << 8;
/// How many of those there are.
pub const STATIC_DYNAMIC_PAGES: usize = 128;
/// First page of the UAR objects.
const OBJECT_BASE: usize = 2048;
/// How many UAR objects a context can have.
const OBJECTS: usize = 2048;

const FIRST_REGISTER: usize = 0x800;
const HALF: usize = 0x100;
const HALVES: usize = 8;
const ARM: usize = 0x20;

/// A write to a register: 8 bytes, and what a BlueFlame copy left behind them.
#[derive(Debug, Clone)]
pub struct Doorbell {
    /// The first 64 bytes of the half register; zeros behind the first 8 if there was no copy.
    pub bytes: [u8; 64],
}

impl Doorbell {
    /// The written bytes as the head of a control segment.
    pub fn control(&self) -> Control {
        let mut head = [0; 16];
        head[..8].copy_from_slice(&self.bytes[..8]);
        Control::decode(&head)
    }
}

/// The register pages of a context.
#[derive(Debug)]
pub struct UarPages {
    file: OwnedFd,
    map: Mapping,
    /// Pages with queue pairs or completion queues, and how many.
    users: BTreeMap<usize, u32>,
    /// UAR objects that exist.
    objects: Vec<bool>,
    /// Whether BlueFlame copies are read back, which costs a page access more.
    pub strict: bool,
}

impl UarPages {
    /// Makes the file.
    pub fn new() -> io::Result<Self> {
        let len = (OBJECT_BASE + OBJECTS) * PAGE;
        let file = memory_file("softnic-uar", len as u64)?;
        let map = Mapping::new(&file, 0, len)?;
        Ok(Self { file, map, users: BTreeMap::new(), objects: vec![false; OBJECTS], strict: false })
    }

    /// Another descriptor of the file, for the program.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Makes a UAR object; answers its page.
    pub fn allocate(&mut self) -> Option<usize> {
        let object = self.objects.iter().position(|used| !used)?;
        self.objects[object] = true;
        let page = OBJECT_BASE + object;
        self.map.clear(page * PAGE, PAGE);
        Some(page)
    }

    /// Destroys a UAR object; false if there is none of that number.
    pub fn free(&mut self, page: usize) -> bool {
        match page.checked_sub(OBJECT_BASE).and_then(|o| self.objects.get_mut(o)) {
            Some(used) => std::mem::take(used),
            None => false,
        }
    }

    /// Whether a program may name this page.
    pub fn exists(&self, page: usize) -> bool {
        let object = page.checked_sub(OBJECT_BASE).and_then(|o| self.objects.get(o)).copied();
        let fixed = (STATIC_DYNAMIC_BASE..STATIC_DYNAMIC_BASE + STATIC_DYNAMIC_PAGES).contains(&page);
        object.unwrap_or(page < STATIC_PAGES || fixed)
    }

    /// One more object of the device uses a page.
    pub fn attach(&mut self, page: usize) {
        *self.users.entry(page).or_default() += 1;
    }

    /// One less.
    pub fn detach(&mut self, page: usize) {
        if let Some(n) = self.users.get_mut(&page) {
            *n -= 1;
            if *n == 0 {
                self.users.remove(&page);
            }
        }
    }

    /// The pages to look at.
    pub fn in_use(&self) -> impl Iterator<Item = usize> {
        self.users.keys().copied()
    }

    /// The first page to look at from this one on.
    pub fn in_use_from(&self, page: usize) -> Option<usize> {
        self.users.range(page..).next().map(|(page, _)| *page)
    }

    /// Takes the register writes of a page.
    pub fn take_doorbells(&self, page: usize) -> Vec<Doorbell> {
        let slots = (0..HALVES).map(|half| page * PAGE + FIRST_REGISTER + half * HALF);
        slots.filter_map(|slot| self.take_doorbell(slot)).collect()
    }

    fn take_doorbell(&self, slot: usize) -> Option<Doorbell> {
        let first = self.map.take_u64(slot)?;
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&first.to_ne_bytes());
        if self.strict {
            for (i, chunk) in bytes.chunks_exact_mut(8).enumerate().skip(1) {
                chunk.copy_from_slice(&self.map.take_u64(slot + i * 8).unwrap_or(0).to_ne_bytes());
            }
            self.map.clear(slot + 64, HALF - 64);
        }
        Some(Doorbell { bytes })
    }

    /// Takes a write to the arm register; several completion queues may share it.
    pub fn take_arm(&self, page: usize) -> bool {
        self.map.take_u64(page * PAGE + ARM).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;

    fn put(pages: &UarPages, offset: usize, value: u64) {
        memory::write(pages.map.addr() + offset as u64, &value.to_ne_bytes()).unwrap();
    }

    #[test]
    fn a_write_to_either_half_of_any_register_is_taken_once() {
        let mut pages = UarPages::new().unwrap();
        let page = pages.allocate().unwrap();
        for half in 0..8 {
            put(&pages, page * PAGE + 0x800 + half * 0x100, 7);
            assert_eq!(pages.take_doorbells(page).len(), 1);
            assert!(pages.take_doorbells(page).is_empty());
        }
        put(&pages, page * PAGE + 0x20, 9);
        assert!(pages.take_arm(page) && !pages.take_arm(page));
    }

    #[test]
    fn what_a_copy_left_does_not_taint_the_next_doorbell() {
        let mut pages = UarPages::new().unwrap();
        pages.strict = true;
        let page = pages.allocate().unwrap();
        let slot = page * PAGE + 0x800;
        (0..8).for_each(|i| put(&pages, slot + i * 8, 1 + i as u64));
        assert_eq!(pages.take_doorbells(page)[0].bytes[56], 8);
        put(&pages, slot, 1);
        assert_eq!(pages.take_doorbells(page)[0].bytes[8..], [0; 56]);
    }

    #[test]
    fn pages_are_reused_and_only_existing_ones_are_named() {
        let mut pages = UarPages::new().unwrap();
        let page = pages.allocate().unwrap();
        assert!(pages.exists(page) && !pages.exists(page + 1) && pages.exists(0) && !pages.exists(8));
        assert!(pages.free(page) && !pages.free(page) && !pages.free(0));
        assert_eq!(pages.allocate(), Some(page));
        pages.attach(page);
        pages.attach(page);
        pages.detach(page);
        assert_eq!(pages.in_use().collect::<Vec<_>>(), [page]);
    }
}
