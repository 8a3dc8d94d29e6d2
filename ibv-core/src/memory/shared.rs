//! Bytes that host and device touch at the same time: the one copy routine of host access and of
//! software devices. No keys, no owners.
#![allow(unsafe_code)]
//! # Safety
//! A device writes registered memory whenever it likes, so no `&[u8]` may exist over it, and a mock
//! device on another thread makes plain and volatile accesses data races. Every access here is a relaxed
//! atomic, and of one size a byte: a range is cut once, by its own bounds, into single bytes up to the
//! first aligned word, whole words, and single bytes behind the last. Everybody who touches the same
//! range cuts it alike, so atomics of different sizes never overlap. Part of a word is a
//! read-modify-write of the whole.

use std::{
    ptr::NonNull,
    slice,
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
};
use thiserror::Error;

const WORD: usize = size_of::<u64>();

/// An access beyond the end of a region. Nothing was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("bytes {at}..{at}+{len} of a region of {size} bytes")]
pub struct OutOfRange {
    /// First byte of the access.
    pub at: usize,
    /// Its length, bytes.
    pub len: usize,
    /// The region's length, bytes.
    pub size: usize,
}

/// A byte range under concurrent access. `Copy`: it is a pointer and a length, and owns nothing.
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: all access is atomic, and validity is promised for every copy by the caller of `new`.
unsafe impl Send for SharedBytes {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedBytes {}

/// How an access `at..at+len` meets the cut of its range; the five parts follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Single bytes in front of the first word.
    head: usize,
    /// Bytes of a word entered in its middle, and where.
    first: (usize, usize),
    words: usize,
    /// Bytes of a word left in its middle.
    last: usize,
    /// Single bytes behind the last word.
    tail: usize,
}

/// `lead` and `words` describe the range: bytes in front of its first aligned word, number of its words.
fn cut(lead: usize, words: usize, at: usize, len: usize) -> Cut {
    let end = lead + words * WORD;
    let head = lead.saturating_sub(at).min(len);
    let (mut pos, mut left) = (at + head, len - head);
    let mut take = |n: usize| {
        (pos, left) = (pos + n, left - n);
        (pos, left)
    };
    let (at, have) = take(0);
    let offset = if at < end { at.wrapping_sub(lead) % WORD } else { 0 };
    let first = if offset == 0 { 0 } else { (WORD - offset).min(have) };
    let (at, have) = take(first);
    let words = (end.saturating_sub(at) / WORD).min(have / WORD);
    let (at, have) = take(words * WORD);
    let last = if at < end { have.min(WORD) } else { 0 };
    let (_, tail) = take(last);
    Cut { head, first: (offset, first), words, last, tail }
}

impl SharedBytes {
    /// # Safety
    /// `range` is valid for reads and writes as long as this value or a copy of it is used, and every
    /// other access to it goes through a `SharedBytes` of exactly this range, or is a device's.
    pub unsafe fn new(range: NonNull<[u8]>) -> Self {
        Self { base: range.cast(), len: range.len() }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies out, ascending.
    ///
    /// # Errors
    /// [`OutOfRange`]; nothing was copied.
    pub fn read(&self, at: usize, out: &mut [u8]) -> Result<(), OutOfRange> {
        let c = self.cut(at, out.len())?;
        let (head, out) = out.split_at_mut(c.head);
        let (first, out) = out.split_at_mut(c.first.1);
        let (words, out) = out.split_at_mut(c.words * WORD);
        let (last, tail) = out.split_at_mut(c.last);
        let mut pos = self.bytes_out(at, head);
        pos = self.part_out(pos, c.first.0, first);
        for chunk in words.chunks_exact_mut(WORD) {
            chunk.copy_from_slice(&self.word(pos).load(Relaxed).to_ne_bytes());
            pos += WORD;
        }
        pos = self.part_out(pos, 0, last);
        self.bytes_out(pos, tail);
        Ok(())
    }

    /// Copies in, ascending.
    ///
    /// # Errors
    /// [`OutOfRange`]; nothing was copied.
    pub fn write(&self, at: usize, src: &[u8]) -> Result<(), OutOfRange> {
        let c = self.cut(at, src.len())?;
        let (head, src) = src.split_at(c.head);
        let (first, src) = src.split_at(c.first.1);
        let (words, src) = src.split_at(c.words * WORD);
        let (last, tail) = src.split_at(c.last);
        let mut pos = self.bytes_in(at, head);
        pos = self.part_in(pos, c.first.0, first);
        for chunk in words.chunks_exact(WORD) {
            let mut word = [0; WORD];
            word.copy_from_slice(chunk);
            self.word(pos).store(u64::from_ne_bytes(word), Relaxed);
            pos += WORD;
        }
        pos = self.part_in(pos, 0, last);
        self.bytes_in(pos, tail);
        Ok(())
    }

    /// Copies `len` bytes from `src` at `src_at`, ascending.
    ///
    /// # Errors
    /// [`OutOfRange`] of whichever side is too short; nothing was copied.
    pub fn copy_from(&self, at: usize, src: &Self, src_at: usize, len: usize) -> Result<(), OutOfRange> {
        self.check(at, len)?;
        src.check(src_at, len)?;
        let (mut done, mut buf) = (0, [0; 512]);
        let aligned = |s: &Self, at: usize| (s.base.as_ptr() as usize).wrapping_add(at) % WORD;
        if aligned(self, at) == aligned(src, src_at) {
            let lead = ((WORD - aligned(self, at)) % WORD).min(len);
            self.through(&mut buf[..lead], at, src, src_at)?;
            done = lead + self.copy_words(at + lead, src, src_at + lead, len - lead);
        }
        while done < len {
            let n = (len - done).min(buf.len());
            self.through(&mut buf[..n], at + done, src, src_at + done)?;
            done += n;
        }
        Ok(())
    }

    /// Replaces the 8 aligned bytes at `at` by `f` of them, in one atomic step; returns what they were.
    ///
    /// # Errors
    /// [`OutOfRange`] where they are not inside the range or not aligned; nothing changed.
    pub fn update_u64(&self, at: usize, mut f: impl FnMut(u64) -> u64) -> Result<u64, OutOfRange> {
        self.check(at, WORD)?;
        if !(self.base.as_ptr() as usize).wrapping_add(at).is_multiple_of(WORD) {
            return Err(OutOfRange { at, len: WORD, size: self.len });
        }
        let word = self.word(at);
        let mut old = word.load(Relaxed);
        while let Err(now) = word.compare_exchange_weak(old, f(old), Relaxed, Relaxed) {
            old = now;
        }
        Ok(old)
    }

    fn check(&self, at: usize, len: usize) -> Result<(), OutOfRange> {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len);
        if fits { Ok(()) } else { Err(OutOfRange { at, len, size: self.len }) }
    }

    fn cut(&self, at: usize, len: usize) -> Result<Cut, OutOfRange> {
        self.check(at, len)?;
        let lead = ((self.base.as_ptr() as usize).wrapping_neg() % WORD).min(self.len);
        Ok(cut(lead, (self.len - lead) / WORD, at, len))
    }

    fn through(&self, buf: &mut [u8], at: usize, src: &Self, src_at: usize) -> Result<(), OutOfRange> {
        src.read(src_at, buf)?;
        self.write(at, buf)
    }

    /// Copies as many whole words as both sides have from two aligned places on; returns bytes. Eight at a
    /// time: the loads of a run need not wait for the stores of the last.
    fn copy_words(&self, at: usize, src: &Self, src_at: usize, len: usize) -> usize {
        let (to, from) = (self.words(at, len / WORD), src.words(src_at, len / WORD));
        let (to_runs, to_rest) = to.as_chunks::<8>();
        let (from_runs, from_rest) = from.as_chunks::<8>();
        for (to, from) in to_runs.iter().zip(from_runs) {
            let run = from.each_ref().map(|word| word.load(Relaxed));
            to.iter().zip(run).for_each(|(word, value)| word.store(value, Relaxed));
        }
        to_rest.iter().zip(from_rest).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        len / WORD * WORD
    }

    /// `n` words from `at` on, which are inside the range and aligned, so they are words of the range.
    fn words(&self, at: usize, n: usize) -> &[AtomicU64] {
        if n == 0 {
            return &[];
        }
        debug_assert!(at + n * WORD <= self.len && (self.base.as_ptr() as usize + at).is_multiple_of(WORD));
        // SAFETY: in bounds and aligned as just said, valid by `new`; `AtomicU64` has the same layout, and
        // everybody else's access to these bytes is an atomic of this size.
        unsafe { slice::from_raw_parts(self.base.as_ptr().add(at).cast(), n) }
    }

    /// `at..at + 8` is inside the range and aligned, so it is one of the range's words.
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at + WORD <= self.len && (self.base.as_ptr() as usize + at).is_multiple_of(WORD));
        // SAFETY: in bounds and aligned as just said, valid by `new`; `AtomicU64` has the same layout,
        // and everybody else's access to these bytes is an atomic of this size.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// `at` is in bounds and in no word of the range.
    #[inline]
    fn byte(&self, at: usize) -> &AtomicU8 {
        debug_assert!(at < self.len);
        // SAFETY: in bounds, valid by `new`; everybody else's access is an atomic of this size.
        unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(at)) }
    }

    fn bytes_out(&self, at: usize, out: &mut [u8]) -> usize {
        for (i, b) in out.iter_mut().enumerate() {
            *b = self.byte(at + i).load(Relaxed);
        }
        at + out.len()
    }

    fn bytes_in(&self, at: usize, src: &[u8]) -> usize {
        for (i, b) in src.iter().enumerate() {
            self.byte(at + i).store(*b, Relaxed);
        }
        at + src.len()
    }

    fn part_out(&self, at: usize, offset: usize, out: &mut [u8]) -> usize {
        if !out.is_empty() {
            let word = self.word(at - offset).load(Relaxed).to_ne_bytes();
            out.copy_from_slice(&word[offset..offset + out.len()]);
        }
        at + out.len()
    }

    fn part_in(&self, at: usize, offset: usize, src: &[u8]) -> usize {
        if !src.is_empty() {
            let merge = |old: u64| {
                let mut word = old.to_ne_bytes();
                word[offset..offset + src.len()].copy_from_slice(src);
                Some(u64::from_ne_bytes(word))
            };
            let _ = self.word(at - offset).fetch_update(Relaxed, Relaxed, merge);
        }
        at + src.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A range that starts `skew` bytes behind an aligned word, with guard bytes around it.
    struct Guarded(Vec<u64>, usize, usize);

    impl Guarded {
        fn new(skew: usize, len: usize) -> Self {
            Self(vec![0x5a5a_5a5a_5a5a_5a5a; len / 8 + 4], skew, len)
        }
        fn shared(&mut self) -> SharedBytes {
            let base = self.0.as_mut_ptr().cast::<u8>();
            // SAFETY: inside the vector, which outlives the value in these tests and is not touched
            // meanwhile.
            unsafe {
                SharedBytes::new(NonNull::slice_from_raw_parts(
                    NonNull::new(base.add(8 + self.1)).unwrap(),
                    self.2,
                ))
            }
        }
        fn all(&self) -> Vec<u8> {
            self.0.iter().flat_map(|w| w.to_ne_bytes()).collect()
        }
    }

    proptest! {
        #[test]
        fn a_cut_covers_the_access_once(lead in 0usize..8, words in 0usize..6, tail in 0usize..8, a in 0usize..80, n in 0usize..80) {
            let size = lead + words * 8 + tail;
            let (at, len) = (a.min(size), n.min(size - a.min(size)));
            let c = cut(lead, words, at, len);
            prop_assert_eq!(c.head + c.first.1 + c.words * 8 + c.last + c.tail, len);
            prop_assert!(c.first.0 + c.first.1 <= 8 && c.last < 8);
            // Single bytes never lie in a word, and words never outside them.
            prop_assert!(c.head == 0 || at + c.head <= lead);
            prop_assert!(c.tail == 0 || at + len - c.tail >= lead + words * 8);
            let start = at + c.head + c.first.1;
            prop_assert!(c.words == 0 || (start >= lead && (start - lead).is_multiple_of(8) && start + c.words * 8 <= lead + words * 8));
        }

        #[test]
        fn copies_move_exactly_their_bytes(
            (s1, s2) in (0usize..8, 0usize..8), (l1, l2) in (0usize..700, 0usize..700),
            (a1, a2, n) in (0usize..700, 0usize..700, 0usize..700),
        ) {
            let (mut src, mut dst) = (Guarded::new(s1, l1), Guarded::new(s2, l2));
            let (s, d) = (src.shared(), dst.shared());
            let fill: Vec<u8> = (0..l1).map(|i| (i * 7 + 1) as u8).collect();
            s.write(0, &fill).unwrap();
            let (a1, a2) = (a1.min(l1), a2.min(l2));
            let n = n.min(l1 - a1).min(l2 - a2);
            d.copy_from(a2, &s, a1, n).unwrap();
            let mut back = vec![0; n];
            d.read(a2, &mut back).unwrap();
            prop_assert_eq!(&back, &fill[a1..a1 + n]);
            let mut want = Guarded::new(s2, l2).all();
            want[8 + s2 + a2..8 + s2 + a2 + n].copy_from_slice(&fill[a1..a1 + n]);
            prop_assert_eq!(dst.all(), want);
        }

        #[test]
        fn an_access_past_the_end_copies_nothing(len in 0usize..40, at in 0usize..60, n in 0usize..60) {
            prop_assume!(at + n > len);
            let (mut g, mut out) = (Guarded::new(3, len), vec![9; n]);
            let s = g.shared();
            let e = Err(OutOfRange { at, len: n, size: len });
            prop_assert_eq!(s.write(at, &vec![1; n]), e);
            prop_assert_eq!(s.read(at, &mut out), e);
            prop_assert_eq!(out, vec![9; n]);
            prop_assert_eq!(g.all(), Guarded::new(3, len).all());
        }
    }

    #[test]
    fn lengths_that_wrap_are_out_of_range() {
        let mut g = Guarded::new(0, 16);
        let s = g.shared();
        assert!(s.read(usize::MAX, &mut [0]).is_err());
        assert!(s.copy_from(8, &s, usize::MAX - 3, 8).is_err());
    }

    #[test]
    fn updates_are_aligned_words_only() {
        let mut g = Guarded::new(4, 24);
        let s = g.shared();
        s.write(4, &7u64.to_ne_bytes()).unwrap();
        assert_eq!(s.update_u64(4, |v| v + 1), Ok(7));
        assert_eq!(s.update_u64(4, |v| v), Ok(8));
        assert!(s.update_u64(0, |v| v).is_err() && s.update_u64(20, |v| v).is_err());
    }
}
