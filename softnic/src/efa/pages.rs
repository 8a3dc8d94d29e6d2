//! The memory of one context that a program maps: rings, completion queues and doorbells, as pages of one file. A mapping's
//! key is its offset in the file, so that the program's own `mmap` maps what the device reads. What is in them is not known
//! here.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::memory::{Fault, Mapping, Pinned, memory_file};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes that a context can have at most; pages take room only once they are touched.
const LIMIT: usize = 1 << 30;
/// Bytes of a doorbell; two of them are a queue pair's.
const WORD: usize = 4;
const WORDS: usize = PAGE / WORD;
/// Bytes of a doorbell's tally: how often it was written, and by how much it went on at most. The tallies of a page are
/// behind it, in the order of its words.
pub const TALLY: usize = 8;
/// Bytes of a page of doorbells with its tallies.
pub const COUNTED: usize = PAGE + WORDS * TALLY;

/// The memory of a context.
#[derive(Debug)]
pub struct DeviceMemory {
    file: OwnedFd,
    map: Mapping,
    /// Pages in use: first and how many.
    used: BTreeMap<usize, usize>,
    /// Pages of doorbells, and which words of each are taken.
    doorbells: BTreeMap<usize, Vec<bool>>,
    /// Whether the doorbells' writes are counted. Set before there are any.
    pub counting: bool,
}

/// Some pages.
#[derive(Debug)]
pub struct Block {
    /// Key for `mmap`.
    pub key: u64,
    /// Bytes, a multiple of the page.
    pub len: usize,
    /// Access to them.
    pub memory: Pinned,
}

/// A doorbell: a word of a page that several objects share.
#[derive(Debug)]
pub struct Doorbell {
    /// Key of its page for `mmap`.
    pub key: u64,
    /// Offset in the page.
    pub offset: u32,
    word: Pinned,
    /// What was counted, if it is.
    tally: Option<Pinned>,
    /// What of it was taken as new.
    known: u32,
}

impl Doorbell {
    /// What the program wrote last.
    pub fn load(&self) -> u32 {
        self.word.load_u32((self.offset % 8) as usize)
    }

    /// Sets it.
    pub fn store(&self, value: u32) {
        self.word.swap_u32((self.offset % 8) as usize, value);
    }

    /// How often the program has written it, if that is counted. Modulo 2^32.
    pub fn times(&self) -> Option<u32> {
        self.tally.as_ref().map(|t| t.load_u32(0))
    }

    /// How often it was written since this was last asked.
    pub fn take_new(&mut self) -> u32 {
        let Some(times) = self.times() else { return 0 };
        let new = times.wrapping_sub(self.known);
        self.known = times;
        new
    }

    /// By how much one write raised it at most, modulo 2^16; 0 if writes are not counted.
    pub fn widest(&self) -> u16 {
        self.tally.as_ref().map_or(0, |t| t.load_u32(4) as u16)
    }
}

impl DeviceMemory {
    /// Makes the file.
    pub fn new() -> io::Result<Self> {
        let file = memory_file("softnic-efa", LIMIT as u64)?;
        let map = Mapping::new(&file, 0, LIMIT)?;
        Ok(Self { file, map, used: BTreeMap::new(), doorbells: BTreeMap::new(), counting: false })
    }

    /// Another descriptor of the file, for the program.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Takes zeroed pages for `len` bytes; `None` if there is no room.
    pub fn allocate(&mut self, len: usize) -> Option<Block> {
        let pages = len.div_ceil(PAGE).max(1);
        let mut first = 1;
        for (start, count) in &self.used {
            if start - first >= pages {
                break;
            }
            first = start + count;
        }
        if (first + pages) * PAGE > LIMIT {
            return None;
        }
        let memory = self.pin(first * PAGE, pages * PAGE).ok()?;
        self.used.insert(first, pages);
        Some(Block { key: (first * PAGE) as u64, len: pages * PAGE, memory })
    }

    /// Gives pages back; the next owner finds zeros.
    pub fn free(&mut self, block: &Block) {
        let first = block.key as usize / PAGE;
        if let Some(pages) = self.used.remove(&first) {
            let range = (block.key, (pages * PAGE) as u64);
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            if rustix::fs::fallocate(&self.file, flags, range.0, range.1).is_err() {
                self.map.clear(first * PAGE, pages * PAGE);
            }
        }
    }

    /// Takes a doorbell, which reads 0.
    pub fn allocate_doorbell(&mut self) -> Option<Doorbell> {
        let free =
            self.doorbells.iter().find_map(|(page, words)| Some((*page, words.iter().position(|w| !w)?)));
        let (page, word) = match free {
            Some(found) => found,
            None => {
                let page = self.allocate(if self.counting { COUNTED } else { PAGE })?.key as usize;
                self.doorbells.insert(page, vec![false; WORDS]);
                (page, 0)
            }
        };
        let offset = word * WORD;
        let pinned = self.pin(page + (offset & !7), 8).ok()?;
        let tally = match self.counting {
            true => Some(self.pin(page + PAGE + word * TALLY, TALLY).ok()?),
            false => None,
        };
        self.doorbells.get_mut(&page)?[word] = true;
        let doorbell = Doorbell { key: page as u64, offset: offset as u32, word: pinned, tally, known: 0 };
        doorbell.store(0);
        doorbell.tally.iter().for_each(|t| t.publish(0, &[0; TALLY]));
        Some(doorbell)
    }

    /// Whether the page at this offset of the file has doorbells whose writes are counted.
    pub fn is_counted(&self, key: u64) -> bool {
        self.counting && usize::try_from(key).is_ok_and(|page| self.doorbells.contains_key(&page))
    }

    /// Gives a doorbell back.
    pub fn free_doorbell(&mut self, doorbell: &Doorbell) {
        if let Some(words) = self.doorbells.get_mut(&(doorbell.key as usize)) {
            words[doorbell.offset as usize / WORD] = false;
        }
    }

    fn pin(&self, offset: usize, len: usize) -> Result<Pinned, Fault> {
        Pinned::new(self.map.addr() + offset as u64, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_reused_and_zeroed() {
        let mut memory = DeviceMemory::new().unwrap();
        let a = memory.allocate(5000).unwrap();
        let b = memory.allocate(1).unwrap();
        assert_eq!((a.len, b.len), (8192, 4096));
        assert_ne!(a.key, b.key);
        a.memory.swap_u32(8188, 7);
        memory.free(&a);
        let c = memory.allocate(8192).unwrap();
        assert_eq!((c.key, c.memory.load_u32(8188)), (a.key, 0));
        assert!(memory.allocate(LIMIT).is_none());
    }

    #[test]
    fn doorbells_share_pages_and_start_at_zero() {
        let mut memory = DeviceMemory::new().unwrap();
        let all: Vec<Doorbell> = (0..WORDS + 1).map(|_| memory.allocate_doorbell().unwrap()).collect();
        assert!(all[..WORDS].iter().all(|d| d.key == all[0].key));
        assert_ne!(all[WORDS].key, all[0].key);
        all[3].store(9);
        assert_eq!((all[2].load(), all[3].load()), (0, 9));
        assert_eq!((all[3].times(), memory.is_counted(all[3].key)), (None, false));
        memory.free_doorbell(&all[3]);
        let again = memory.allocate_doorbell().unwrap();
        assert_eq!((again.key, again.offset, again.load()), (all[3].key, all[3].offset, 0));
    }

    #[test]
    fn counted_doorbells_have_tallies_of_their_own_that_start_at_zero() {
        let mut memory = DeviceMemory::new().unwrap();
        memory.counting = true;
        let block = memory.allocate(1).unwrap();
        let all: Vec<Doorbell> = (0..WORDS).map(|_| memory.allocate_doorbell().unwrap()).collect();
        assert!(memory.is_counted(all[0].key) && !memory.is_counted(block.key));
        for (n, doorbell) in all.iter().enumerate() {
            doorbell.tally.as_ref().unwrap().publish(0, &(n as u64 | 5 << 32).to_ne_bytes());
        }
        assert!(all.iter().enumerate().all(|(n, d)| d.times() == Some(n as u32) && d.widest() == 5));
        assert!(all.iter().all(|d| d.load() == 0));
        memory.free_doorbell(&all[7]);
        assert_eq!(memory.allocate_doorbell().unwrap().times(), Some(0));
        let next = memory.allocate(1).unwrap();
        assert!(next.key >= all[0].key + COUNTED as u64, "the tallies' pages are taken");
    }
}
