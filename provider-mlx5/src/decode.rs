//! The bytes of an mlx5 device's queues as words with names: requests, rings of them, completions. For
//! `ibv decode`, and for tests that say what they found. Pure and total: any bytes give a listing, and what
//! is wrong with them is part of it. Who owns an entry, and how bytes become a dump, is not known here.
//!
//! Names are those of rdma-core `providers/mlx5/mlx5dv.h` and of the Adapters PRM. Written apart from
//! `wqe.rs` and `cqe.rs`, so that one finds the other's mistakes.

mod completion;
mod request;
mod ring;
#[cfg(test)]
mod tests;

pub use completion::{Completion, completion};
pub use request::{Local, Request, receive, request};
pub use ring::{Ring, Slot, ring};

use std::fmt;

/// A field as it lies in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Where it is in the dump, bytes.
    pub at: usize,
    /// What it is part of: `ctrl`, `raddr`, `atomic`, `data`, `inline`, `cqe`.
    pub segment: &'static str,
    /// Its name in the vendor's header.
    pub name: &'static str,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What they say; empty where the bytes say it themselves.
    pub meaning: String,
}

/// An entry, field by field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing<T> {
    /// Where it is in the dump, bytes.
    pub at: usize,
    /// What it is, in one line.
    pub title: String,
    /// Its fields, in order.
    pub fields: Vec<Field>,
    /// What is wrong with it.
    pub faults: Vec<Fault>,
    /// What it says; `None` where it does not say enough.
    pub value: Option<T>,
}

/// What can be wrong with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The dump ends inside it.
    #[error("{need} bytes are needed and the dump ends after {there}")]
    Truncated {
        /// Bytes that the entry says it has, or has to have.
        need: usize,
        /// Bytes that are there.
        there: usize,
    },
    /// `ds` is 0, or more than a work queue entry may have.
    #[error("ds is {0}; an entry has 1 to 63 segments of 16 bytes")]
    Segments(u8),
    /// `ds` ends before the segments that the opcode asks for.
    #[error("ds is {ds}; this opcode needs at least {need}")]
    TooShort {
        /// In the entry.
        ds: u8,
        /// With the opcode's own segments.
        need: u8,
    },
    /// No operation has this number.
    #[error("opcode {0:#04x} is none")]
    Opcode(u8),
    /// The opcode has no modifier, and there is one.
    #[error("opcode modifier {0:#04x}, where there is none: did an index of more than 16 bits leak into it?")]
    Modifier(u8),
    /// A byte that is reserved is not 0.
    #[error("reserved bytes at {at:#x} are not zero")]
    Reserved {
        /// Where, in the dump.
        at: usize,
    },
    /// A flag that has no meaning.
    #[error("fm_ce_se has the bits {0:#04x}, which mean nothing here")]
    Flags(u8),
    /// An immediate without an operation that carries one.
    #[error("an immediate of {0:#x}, and an operation that carries none")]
    Immediate(u32),
    /// A byte count of 0 means 2^31.
    #[error("the byte count at {at:#x} is 0, which means 2^31")]
    ByteCount {
        /// Where, in the dump.
        at: usize,
    },
    /// The key that ends a receive's list, in a request.
    #[error("the local key at {at:#x} is the invalid one, 0x100")]
    LocalKey {
        /// Where, in the dump.
        at: usize,
    },
    /// Inline data reach beyond the entry.
    #[error("{len} inline bytes at {at:#x} reach beyond the entry's end")]
    Inline {
        /// Where, in the dump.
        at: usize,
        /// As their header says.
        len: usize,
    },
    /// Inline data where bytes come back.
    #[error("inline data at {at:#x} in an operation that brings bytes back")]
    InlineAnswer {
        /// Where, in the dump.
        at: usize,
    },
    /// An atomic's answer has 8 bytes.
    #[error("the ranges take {0} bytes; an atomic brings back 8")]
    AtomicLength(u64),
    /// An atomic's target is aligned.
    #[error("the atomic's address {0:#x} is no multiple of 8")]
    Alignment(u64),
    /// The index does not belong to the place.
    #[error("index {index} in slot {slot} of {slots}")]
    Index {
        /// In the entry.
        index: u16,
        /// Where it lies.
        slot: usize,
        /// Slots of the ring.
        slots: usize,
    },
    /// Another queue pair's number than the rest of the ring.
    #[error("queue pair {found:#x}, in a ring of {expected:#x}")]
    QueuePair {
        /// In the entry.
        found: u32,
        /// In the ring's first.
        expected: u32,
    },
    /// No completion has this opcode.
    #[error("completion opcode {0:#x} is none that a queue pair of these operations gets")]
    CompletionOpcode(u8),
    /// A format that queues are created without.
    #[error(
        "format {0}: data scattered into the entry, or a compressed entry, which can not be read by itself"
    )]
    Format(u8),
    /// No error has this syndrome.
    #[error("syndrome {0:#04x} is none")]
    Syndrome(u8),
}

impl<T> fmt::Display for Listing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:#06x}: {}", self.at, self.title)?;
        let mut segment = "";
        for field in &self.fields {
            let shown = if segment == field.segment { "" } else { field.segment };
            segment = field.segment;
            let hex: String = field.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let line = format!("  {:04x}  {shown:8}{hex:34}{:22}{}", field.at, field.name, field.meaning);
            writeln!(f, "{}", line.trim_end())?;
        }
        for fault in &self.faults {
            writeln!(f, "  wrong: {fault}")?;
        }
        Ok(())
    }
}

/// Takes fields off the front of an entry.
struct Reader<'b> {
    bytes: &'b [u8],
    /// Of the entry's first byte, in the dump.
    base: usize,
    next: usize,
    segment: &'static str,
    fields: Vec<Field>,
    faults: Vec<Fault>,
}

impl<'b> Reader<'b> {
    fn new(bytes: &'b [u8], base: usize) -> Self {
        Self { bytes, base, next: 0, segment: "", fields: Vec::new(), faults: Vec::new() }
    }

    /// Where the next field is, in the dump.
    fn at(&self) -> usize {
        self.base + self.next
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.next
    }

    /// The next `len` bytes, as a big-endian number of at most 64 bits; `None` behind the end.
    fn take(&mut self, name: &'static str, len: usize, meaning: impl FnOnce(u64) -> String) -> Option<u64> {
        let bytes = self.bytes.get(self.next..self.next + len)?;
        let value = bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        self.push(name, bytes.to_vec(), meaning(value));
        Some(value)
    }

    /// The same, where it has to be 0.
    fn reserved(&mut self, len: usize) -> Option<()> {
        let (at, value) = (self.at(), self.take("reserved", len, |_| String::new())?);
        if value != 0 {
            self.faults.push(Fault::Reserved { at });
        }
        Some(())
    }

    fn push(&mut self, name: &'static str, bytes: Vec<u8>, meaning: String) {
        let (at, len) = (self.at(), bytes.len());
        self.fields.push(Field { at, segment: self.segment, name, bytes, meaning });
        self.next += len;
    }

    fn finish<T>(self, title: String, value: Option<T>) -> Listing<T> {
        Listing { at: self.base, title, fields: self.fields, faults: self.faults, value }
    }
}

fn hex(value: u64) -> String {
    format!("{value:#x}")
}

fn silent(_: u64) -> String {
    String::new()
}
