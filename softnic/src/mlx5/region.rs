//! Registered memory: keys, and the way from a key and an address to the program's memory. The rules are the shared rule-book's.

use std::collections::BTreeMap;

use provider_mock::model::{self, Denied, Range, Want};

use crate::memory::{self, Fault, Mapping};
use crate::mlx5::window::Window;
use crate::mlx5::wqe::DataSegment;

/// A registered region.
#[derive(Debug)]
pub struct Region {
    /// The context it belongs to.
    pub context: u32,
    /// What decides an access. Its two keys are one: mlx5 tells local and remote keys apart by use alone.
    pub facts: model::Region,
    /// Address in this process of its first byte.
    pub base: u64,
    /// The device's own mapping, if a dma-buf was registered.
    pub mapping: Option<Mapping>,
    /// If it is a memory window: what is bound to it.
    pub window: Option<Window>,
}

/// A span of memory that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Address in this process.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
}

/// All regions of the process, by key.
#[derive(Debug, Default)]
pub struct Regions {
    pub(crate) slots: BTreeMap<u32, (u8, Region)>,
    /// The tag of the last region in each slot: the next one there gets another.
    pub(crate) tags: BTreeMap<u32, u8>,
}

impl Regions {
    /// Adds a region; answers its key (24 bits of slot, 8 of tag). Slots are reused at once, with the next tag.
    pub fn insert(&mut self, mut region: Region) -> u32 {
        // Slot 0 and key 0x100 (`MLX5_INVALID_LKEY`, slot 1) are never given.
        let slot = (2..).find(|s| !self.slots.contains_key(s)).expect("fewer than 2^32 regions");
        let tag = self.tags.get(&slot).map_or(slot as u8, |t| t.wrapping_add(1));
        let key = model::key(slot, tag);
        (region.facts.lkey, region.facts.rkey) = (key, key);
        self.tags.insert(slot, tag);
        self.slots.insert(slot, (tag, region));
        key
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The region of a key.
    pub fn get(&self, key: u32) -> Option<&Region> {
        self.slots.get(&model::key_index(key)).filter(|(tag, _)| *tag == key as u8).map(|(_, region)| region)
    }

    /// The region of a key, to change it.
    pub fn get_mut(&mut self, key: u32) -> Option<&mut Region> {
        let slot = self.slots.get_mut(&model::key_index(key)).filter(|(tag, _)| *tag == key as u8);
        slot.map(|(_, region)| region)
    }

    /// Puts another region under a key; `None` if there was none.
    pub fn replace(&mut self, key: u32, mut region: Region) -> Option<()> {
        (region.facts.lkey, region.facts.rkey) = (key, key);
        *self.get_mut(key)? = region;
        Some(())
    }

    /// Removes the region of a key.
    pub fn remove(&mut self, key: u32) -> Option<Region> {
        self.get(key)?;
        self.slots.remove(&model::key_index(key)).map(|(_, region)| region)
    }

    /// Removes all regions of a context.
    pub fn remove_context(&mut self, context: u32) {
        self.slots.retain(|_, (_, r)| r.context != context);
    }

    /// Whether a protection domain has regions.
    pub fn uses_domain(&self, pd: u32) -> bool {
        self.slots.values().any(|(_, r)| r.facts.pd == pd)
    }

    /// Checks an access of `len` bytes at `addr`.
    pub fn span(&self, key: u32, pd: u32, want: Want, addr: u64, len: u64) -> Result<Span, Denied> {
        let region = self.get(key).filter(|r| r.window.is_none() || want.remote());
        let offset = model::check(region.map(|r| &r.facts), pd, &Range { addr, len, key }, want)?;
        let base = region.map_or(0, |r| r.base);
        Ok(Span { addr: base.wrapping_add(offset), len })
    }

    /// Checks a list of local pieces, up to `len` bytes in total.
    pub fn spans(&self, list: &[DataSegment], pd: u32, want: Want, len: u64) -> Result<Vec<Span>, Denied> {
        let mut left = len;
        let mut spans = Vec::new();
        for piece in list {
            let n = u64::from(piece.len).min(left);
            if n == 0 {
                break;
            }
            spans.push(self.span(piece.lkey, pd, want, piece.addr, n)?);
            left -= n;
        }
        Ok(spans)
    }
}

impl Span {
    /// Reads it onto the end of `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<(), Fault> {
        let at = out.len();
        out.resize(at + self.len as usize, 0);
        memory::read(self.addr, &mut out[at..])
    }
}

/// What is left of `spans` behind their first `n` bytes.
pub fn behind(spans: &[Span], n: u64) -> Vec<Span> {
    let mut left = n;
    let mut rest = Vec::new();
    for span in spans {
        let cut = left.min(span.len);
        left -= cut;
        if cut < span.len {
            rest.push(Span { addr: span.addr.wrapping_add(cut), len: span.len - cut });
        }
    }
    rest
}

/// Writes `data` over `spans`, in order.
pub fn scatter(spans: &[Span], data: &[u8]) -> Result<(), Fault> {
    let mut rest = data;
    for span in spans {
        let (now, later) = rest.split_at(rest.len().min(span.len as usize));
        memory::write(span.addr, now)?;
        rest = later;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(pd: u32, base: u64, len: u64) -> Region {
        let access = ibv_core::Access::from_bits_retain(7);
        let facts = model::Region { lkey: 0, rkey: 0, pd, base, len, access };
        Region { context: 1, facts, base, mapping: None, window: None }
    }

    #[test]
    fn a_slot_is_reused_with_another_tag_and_the_old_key_is_dead() {
        let mut regions = Regions::default();
        let first = regions.insert(region(1, 0x1000, 16));
        assert!(regions.remove(first).is_some());
        let second = regions.insert(region(1, 0x1000, 16));
        assert_eq!(first >> 8, second >> 8);
        assert_ne!(first, second);
        assert_eq!(regions.span(first, 1, Want::LocalWrite, 0x1000, 8), Err(Denied::Key));
        assert_eq!(regions.span(second, 1, Want::LocalWrite, 0x1000, 8), Ok(Span { addr: 0x1000, len: 8 }));
        assert!(regions.remove(first).is_none());
    }

    #[test]
    fn a_list_is_cut_to_the_messages_length() {
        let mut regions = Regions::default();
        let lkey = regions.insert(region(1, 0x1000, 100));
        let piece = |addr, len| DataSegment { len, lkey, addr };
        let list = [piece(0x1000, 10), piece(0x1020, 10), piece(0x9000, 10)];
        let spans = regions.spans(&list, 1, Want::LocalWrite, 15).unwrap();
        assert_eq!(spans, [Span { addr: 0x1000, len: 10 }, Span { addr: 0x1020, len: 5 }]);
        assert_eq!(regions.spans(&list, 1, Want::LocalWrite, 21), Err(Denied::Bounds));
    }

    #[test]
    fn the_rest_of_a_list_starts_behind_its_first_bytes() {
        let list = [Span { addr: 100, len: 10 }, Span { addr: 200, len: 50 }];
        assert_eq!(behind(&list, 0), list);
        assert_eq!(behind(&list, 10), list[1..]);
        assert_eq!(behind(&list, 40), [Span { addr: 230, len: 20 }]);
        assert_eq!(behind(&list, 60), []);
    }
}
