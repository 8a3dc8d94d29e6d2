//! Who may touch which bytes: keys, protection domains, ranges, rights.

use ibv_core::{Access, WcStatus};

/// One registration, as a device remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The key its owner's requests carry.
    pub lkey: u32,
    /// The key a peer's requests carry.
    pub rkey: u32,
    /// Its protection domain.
    pub pd: u32,
    /// Device address of its first byte.
    pub base: u64,
    /// Length in bytes; `base + len` may be 2^64 but not more.
    pub len: u64,
    /// What it was registered for.
    pub access: Access,
}

/// A byte range that a request names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Device address of its first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The local or remote key it comes with.
    pub key: u32,
}

/// What a request wants to do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// The requester gathers its own bytes: put, send.
    LocalRead,
    /// Bytes arrive in the owner's memory: get, atomic, receive.
    LocalWrite,
    /// A peer gets.
    RemoteRead,
    /// A peer puts.
    RemoteWrite,
    /// A peer updates 8 aligned bytes.
    RemoteAtomic,
}

impl Want {
    /// Whether the range comes from a peer and carries a remote key.
    pub const fn remote(self) -> bool {
        matches!(self, Self::RemoteRead | Self::RemoteWrite | Self::RemoteAtomic)
    }

    /// The right a region needs (10.6: local reads are always allowed).
    pub const fn right(self) -> Access {
        match self {
            Self::LocalRead => Access::empty(),
            Self::LocalWrite => Access::LOCAL_WRITE,
            Self::RemoteRead => Access::REMOTE_READ,
            Self::RemoteWrite => Access::REMOTE_WRITE,
            Self::RemoteAtomic => Access::REMOTE_ATOMIC,
        }
    }
}

/// Why an access was refused; the first rule broken, in the order they are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Denied {
    /// No live region has that key: never given out, of an earlier generation, or the other kind of key.
    Key,
    /// The region is of another protection domain than the queue pair.
    Domain,
    /// The region was not registered for that.
    Right,
    /// Some of the bytes are outside the region.
    Bounds,
    /// An atomic's operand is not 8 aligned bytes.
    Alignment,
}

/// Whether `range` may be used as `want` by a queue pair of protection domain `pd`; the offset of its
/// first byte in the region. `region` is what the key table holds for the key, if anything.
///
/// An empty range is granted whatever its key: zero-length requests carry keys that nobody validates
/// (9.7.4.1).
///
/// # Errors
/// The first rule broken. All bytes are checked before any moves.
pub fn check(region: Option<&Region>, pd: u32, range: &Range, want: Want) -> Result<u64, Denied> {
    if range.len == 0 {
        return Ok(0);
    }
    let region =
        region.filter(|r| range.key == if want.remote() { r.rkey } else { r.lkey }).ok_or(Denied::Key)?;
    if region.pd != pd {
        return Err(Denied::Domain);
    }
    if !region.access.contains(want.right()) {
        return Err(Denied::Right);
    }
    let at = range.addr.checked_sub(region.base).ok_or(Denied::Bounds)?;
    if at.checked_add(range.len).is_none_or(|end| end > region.len) {
        return Err(Denied::Bounds);
    }
    if want == Want::RemoteAtomic && (range.len != 8 || !range.addr.is_multiple_of(8)) {
        return Err(Denied::Alignment);
    }
    Ok(at)
}

/// What the requester's completion says about a refusal (11.6.2): its own ranges are a local protection
/// error, the peer's a remote access error, and a misaligned atomic is an invalid request (9.7.4.1).
pub const fn denied_status(denied: Denied, want: Want) -> WcStatus {
    match (want.remote(), denied) {
        (false, _) => WcStatus::LOC_PROT_ERR,
        (true, Denied::Alignment) => WcStatus::REM_INV_REQ_ERR,
        (true, _) => WcStatus::REM_ACCESS_ERR,
    }
}

/// A key: 24 bits of index into a key table and 8 bits of tag, which changes with every registration so
/// that an old key does not open what took its place (10.6).
pub const fn key(index: u32, tag: u8) -> u32 {
    index << 8 | tag as u32
}

/// The index in a key.
pub const fn key_index(key: u32) -> u32 {
    key >> 8
}

/// The tag of the next registration in the same place. Tags are even for local keys and one more for
/// remote ones, so that neither passes for the other; 0 is skipped, so that no key is ever 0.
pub const fn next_tag(tag: u8) -> u8 {
    match tag.wrapping_add(2) & !1 {
        0 => 2,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANY: [Want; 5] =
        [Want::LocalRead, Want::LocalWrite, Want::RemoteRead, Want::RemoteWrite, Want::RemoteAtomic];

    fn region(base: u64, len: u64, access: Access) -> Region {
        Region { lkey: key(3, 4), rkey: key(3, 5), pd: 1, base, len, access }
    }

    fn range(r: &Region, addr: u64, len: u64, want: Want) -> Range {
        Range { addr, len, key: if want.remote() { r.rkey } else { r.lkey } }
    }

    proptest! {
        /// Against 128-bit arithmetic, where nothing wraps.
        #[test]
        fn a_range_is_granted_exactly_if_all_its_bytes_are_inside(
            base: u64, len: u64, addr: u64, n in 1u64.., near in -3i64..4, at_end: bool, want in 0usize..4,
        ) {
            let base = base.min(u64::MAX - len);
            let addr = if at_end { base.wrapping_add(len).wrapping_add_signed(near) } else { addr };
            let (r, want) = (region(base, len, Access::ALL), ANY[want]);
            let (first, end) = (u128::from(addr), u128::from(addr) + u128::from(n));
            let inside = first >= u128::from(base) && end <= u128::from(base) + u128::from(len);
            let got = check(Some(&r), 1, &range(&r, addr, n, want), want);
            prop_assert_eq!(got, if inside { Ok(addr - base) } else { Err(Denied::Bounds) });
        }

        #[test]
        fn each_missing_right_is_refused_and_no_other(bits in 0u32..16, want in 0usize..5) {
            let (r, want) = (region(64, 64, Access::from_bits_truncate(bits)), ANY[want]);
            let got = check(Some(&r), 1, &range(&r, 64, 8, want), want);
            prop_assert_eq!(got.is_ok(), r.access.contains(want.right()));
        }

        #[test]
        fn an_old_key_opens_nothing(index in 0u32..1 << 24, tag: u8, steps in 1usize..127) {
            let mut now = next_tag(tag);
            let old = now;
            for _ in 0..steps {
                now = next_tag(now);
            }
            prop_assert_ne!(key(index, old), key(index, now));
            prop_assert_eq!(key_index(key(index, now)), index);
            prop_assert!(now != 0 && now.is_multiple_of(2));
        }
    }

    #[test]
    fn the_two_keys_of_a_region_do_not_stand_in_for_each_other() {
        let r = region(0, 64, Access::ALL);
        for want in ANY {
            let wrong = Range { addr: 0, len: 8, key: if want.remote() { r.lkey } else { r.rkey } };
            assert_eq!(check(Some(&r), 1, &wrong, want), Err(Denied::Key));
        }
    }

    #[test]
    fn another_domain_is_refused_before_the_range_is_looked_at() {
        let r = region(0, 64, Access::ALL);
        let past = range(&r, 60, 8, Want::RemoteRead);
        assert_eq!(check(Some(&r), 2, &past, Want::RemoteRead), Err(Denied::Domain));
        assert_eq!(check(None, 1, &past, Want::RemoteRead), Err(Denied::Key));
    }

    #[test]
    fn an_empty_range_needs_no_key_and_an_atomic_needs_alignment() {
        assert_eq!(check(None, 1, &Range { addr: 7, len: 0, key: 9 }, Want::RemoteWrite), Ok(0));
        let r = region(64, 64, Access::ALL);
        let odd = range(&r, 68, 8, Want::RemoteAtomic);
        assert_eq!(check(Some(&r), 1, &odd, Want::RemoteAtomic), Err(Denied::Alignment));
        assert_eq!(denied_status(Denied::Alignment, Want::RemoteAtomic), WcStatus::REM_INV_REQ_ERR);
    }
}
