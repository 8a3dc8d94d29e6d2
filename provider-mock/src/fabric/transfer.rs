//! Registered memory as the device sees it: the key table, and the moves between ranges. Bytes go from
//! region to region through [`SharedBytes`], never through a buffer.

use crate::model::{self, Denied, Range, Region, Want};
use ibv_core::{Access, SharedBytes};

/// The key table.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    tag: u8,
    live: Option<(Region, SharedBytes)>,
}

/// Where bytes come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    Ranges(Side<'a>),
    Inline(&'a [u8]),
}

/// Ranges of one protection domain, and what is done to them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side<'a> {
    pub pd: u32,
    pub ranges: &'a [Range],
    pub want: Want,
}

/// A refusal, and which kind of access it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub denied: Denied,
    pub want: Want,
    pub key: u32,
}

impl Regions {
    pub fn insert(&mut self, pd: u32, base: u64, bytes: SharedBytes, access: Access) -> Region {
        let index = self.free.pop().unwrap_or_else(|| {
            // Index 0 stays empty, so that keys which nobody ever wrote open nothing.
            self.slots.resize_with(self.slots.len().max(1) + 1, Slot::default);
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.tag = model::next_tag(slot.tag);
        let (lkey, rkey) = (model::key(index, slot.tag), model::key(index, slot.tag | 1));
        let region = Region { lkey, rkey, pd, base, len: bytes.len() as u64, access };
        slot.live = Some((region, bytes));
        region
    }

    /// Kills a region's keys. The caller holds the fabric's lock, under which alone bytes move: no access
    /// is under way.
    pub fn remove(&mut self, lkey: u32) -> Option<Region> {
        let index = model::key_index(lkey);
        let slot = self.slots.get_mut(index as usize)?;
        slot.live.filter(|(r, _)| r.lkey == lkey)?;
        self.free.push(index);
        slot.live.take().map(|(r, _)| r)
    }

    fn find(&self, key: u32) -> Option<&(Region, SharedBytes)> {
        self.slots.get(model::key_index(key) as usize)?.live.as_ref()
    }

    /// Whether `key` was given out once and is dead.
    pub fn is_dead(&self, key: u32) -> bool {
        let slot = self.slots.get(model::key_index(key) as usize);
        slot.is_some_and(|s| {
            let live = s.live.is_some_and(|(r, _)| r.lkey == key || r.rkey == key);
            !live && s.tag != 0 && key != 0
        })
    }

    fn resolve(&self, pd: u32, range: &Range, want: Want) -> Result<(SharedBytes, usize), Refusal> {
        let refusal = |denied| Refusal { denied, want, key: range.key };
        let found = self.find(range.key);
        let at = model::check(found.map(|(r, _)| r), pd, range, want).map_err(refusal)?;
        let (_, bytes) = found.ok_or(refusal(Denied::Key))?;
        Ok((*bytes, at as usize))
    }

    /// Checks all of a side's ranges.
    pub fn validate(&self, side: Side<'_>) -> Result<(), Refusal> {
        side.ranges
            .iter()
            .filter(|r| r.len > 0)
            .try_for_each(|r| self.resolve(side.pd, r, side.want).map(|_| ()))
    }

    /// Moves bytes `from..from + len` of the message that `src` is to the same place in `dst`.
    pub fn copy(&self, dst: Side<'_>, src: Source<'_>, from: u64, len: u64) -> Result<(), Refusal> {
        let mut to = Cursor::new(dst.ranges, from);
        match src {
            Source::Inline(bytes) => {
                let mut rest = &bytes[(from as usize).min(bytes.len())..];
                rest = &rest[..(len as usize).min(rest.len())];
                while !rest.is_empty()
                    && let Some(d) = to.take(rest.len() as u64)
                {
                    let (now, later) = rest.split_at(d.len as usize);
                    let (bytes, at) = self.resolve(dst.pd, &d, dst.want)?;
                    bytes.write(at, now).map_err(|_| bounds(&d, dst.want))?;
                    rest = later;
                }
                Ok(())
            }
            Source::Ranges(src) => self.between(dst, &mut to, src, Cursor::new(src.ranges, from), len),
        }
    }

    fn between(
        &self,
        dst: Side<'_>,
        to: &mut Cursor<'_>,
        src: Side<'_>,
        mut of: Cursor<'_>,
        mut len: u64,
    ) -> Result<(), Refusal> {
        while len > 0 {
            let most = len.min(to.left()).min(of.left());
            let (Some(d), Some(s)) = (to.take(most), of.take(most)) else { return Ok(()) };
            let (d_bytes, d_at) = self.resolve(dst.pd, &d, dst.want)?;
            let (s_bytes, s_at) = self.resolve(src.pd, &s, src.want)?;
            d_bytes.copy_from(d_at, &s_bytes, s_at, most as usize).map_err(|_| bounds(&d, dst.want))?;
            len -= most;
        }
        Ok(())
    }

    /// Updates the 8 bytes of `range`; what they were.
    pub fn update(&self, pd: u32, range: &Range, op: ibv_core::Op) -> Result<u64, Refusal> {
        let (bytes, at) = self.resolve(pd, range, Want::RemoteAtomic)?;
        bytes.update_u64(at, |old| model::update(op, old)).map_err(|_| bounds(range, Want::RemoteAtomic))
    }
}

/// What the region's own bounds check would say; `resolve` has said it before.
fn bounds(range: &Range, want: Want) -> Refusal {
    Refusal { denied: Denied::Bounds, want, key: range.key }
}

/// A place in a list of ranges.
#[derive(Clone, Debug)]
struct Cursor<'a> {
    ranges: &'a [Range],
    at: u64,
}

impl<'a> Cursor<'a> {
    fn new(mut ranges: &'a [Range], mut skip: u64) -> Self {
        while let Some((first, rest)) = ranges.split_first()
            && skip >= first.len
        {
            (ranges, skip) = (rest, skip - first.len);
        }
        Self { ranges, at: skip }
    }

    /// Bytes to the end of the current range.
    fn left(&self) -> u64 {
        self.ranges.first().map_or(0, |r| r.len - self.at)
    }

    /// The next bytes, at most `most` and of one range; `None` at the end.
    fn take(&mut self, most: u64) -> Option<Range> {
        let first = self.ranges.first()?;
        let len = most.min(first.len - self.at);
        let part = Range { addr: first.addr.wrapping_add(self.at), len, key: first.key };
        *self = Self::new(self.ranges, self.at + len);
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cursor_walks_every_byte_once(lens in prop::collection::vec(0u64..20, 0..6), skip in 0u64..60, step in 1u64..9) {
            let ranges: Vec<_> = lens.iter().map(|&len| Range { addr: 1000, len, key: 1 }).collect();
            let total: u64 = lens.iter().sum();
            let (mut c, mut seen) = (Cursor::new(&ranges, skip), 0);
            while let Some(part) = c.take(step) {
                prop_assert!(part.len > 0 && part.len <= step);
                seen += part.len;
            }
            prop_assert_eq!(seen, total.saturating_sub(skip));
        }
    }
}
