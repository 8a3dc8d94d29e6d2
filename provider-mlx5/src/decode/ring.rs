//! A whole send queue: its entries in order of place, with those that wrap around, and where the newest ends.

use super::{
    Fault, Listing, Request,
    request::{Control, request},
};
use std::fmt;

/// Bytes of a basic block.
const BLOCK: usize = 64;

/// A ring, entry by entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Basic blocks.
    pub blocks: usize,
    /// What is where, in order.
    pub slots: Vec<Slot>,
    /// Bytes behind the last whole block.
    pub trailing: usize,
}

/// What one or more basic blocks hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// So many blocks of zeroes, from this one on.
    Empty {
        /// The first.
        block: usize,
        /// How many.
        count: usize,
    },
    /// An entry.
    Entry(Listing<Request>),
    /// Indices fall here by about the ring's length: what follows is older. Where the next entry will go.
    Producer {
        /// The block.
        block: usize,
    },
}

/// The ring in `bytes`: all of a send queue, from its first basic block on.
pub fn ring(bytes: &[u8]) -> Ring {
    let blocks = bytes.len() / BLOCK;
    let mut walk = Walk { bytes: &bytes[..blocks * BLOCK], blocks, slots: Vec::new(), last: None, qpn: None };
    let mut block = 0;
    while block < blocks {
        block += walk.step(block);
    }
    Ring { blocks, slots: walk.slots, trailing: bytes.len() % BLOCK }
}

struct Walk<'b> {
    bytes: &'b [u8],
    blocks: usize,
    slots: Vec<Slot>,
    /// The index that should follow the last entry.
    last: Option<u16>,
    /// The first entry's queue pair.
    qpn: Option<u32>,
}

impl Walk<'_> {
    /// Reads what begins at `block`; how many blocks it takes.
    fn step(&mut self, block: usize) -> usize {
        let at = block * BLOCK;
        if self.bytes[at..at + BLOCK].iter().all(|byte| *byte == 0) {
            match self.slots.last_mut() {
                Some(Slot::Empty { count, .. }) => *count += 1,
                _ => self.slots.push(Slot::Empty { block, count: 1 }),
            }
            return 1;
        }
        let Some(control) = Control::read(&self.bytes[at..]) else { return 1 };
        let fits = self.place(control.index) == block;
        // A whole entry at its place; anything else is read alone, and the next block anew.
        let taken = if fits { control.blocks().min(self.blocks) } else { 1 };
        let entry: Vec<u8> = self.bytes.iter().cycle().skip(at).take(taken * BLOCK).copied().collect();
        let mut listing = request(&entry, at);
        self.judge(&mut listing, &control, block, fits);
        self.slots.push(Slot::Entry(listing));
        self.last = fits.then(|| control.index.wrapping_add(taken as u16));
        taken.min(self.blocks - block)
    }

    fn judge(&mut self, listing: &mut Listing<Request>, control: &Control, block: usize, fits: bool) {
        let index = control.index;
        if !fits {
            listing.faults.push(Fault::Index { index, slot: block, slots: self.blocks });
        }
        if self.last.is_some_and(|last| fits && last != index) {
            self.slots.push(Slot::Producer { block });
        }
        let expected = *self.qpn.get_or_insert(control.qpn);
        if control.qpn != expected {
            listing.faults.push(Fault::QueuePair { found: control.qpn, expected });
        }
    }

    fn place(&self, index: u16) -> usize {
        usize::from(index) % self.blocks
    }
}

impl Ring {
    /// Everything that is wrong with its entries.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.entries().flat_map(|entry| &entry.faults)
    }

    /// Its entries, in order of place.
    pub fn entries(&self) -> impl Iterator<Item = &Listing<Request>> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Entry(listing) => Some(listing),
            _ => None,
        })
    }
}

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "send queue of {} basic blocks", self.blocks)?;
        for slot in &self.slots {
            match slot {
                Slot::Empty { block, count } => {
                    writeln!(f, "{:#06x}: {count} empty blocks from slot {block} on", block * BLOCK)?;
                }
                Slot::Entry(listing) => write!(f, "{listing}")?,
                Slot::Producer { block } => {
                    writeln!(
                        f,
                        "{:#06x}: the next entry goes to slot {block}; older ones follow",
                        block * BLOCK
                    )?;
                }
            }
        }
        match self.trailing {
            0 => Ok(()),
            trailing => writeln!(f, "{trailing} bytes behind the last whole block"),
        }
    }
}
