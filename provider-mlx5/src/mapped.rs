//! Ring memory that libmlx5 allocated and the device reads or writes, as atomics, and the tables beside it.
//! Nothing is interpreted here.
#![allow(unsafe_code)]
//! # Safety
//! Atomics are the one view of memory that another agent changes which Rust allows as a reference, and a
//! software device may well be a thread of this process. Whoever makes a value proves that the memory
//! stays mapped; every queue keeps the verbs object that owns it in a field behind its rings.
//!
//! A [`Dense`] is indexed without a comparison: a masked counter does not lead outside. Nor does a [`Walk`],
//! which steps from the last item to the first.

use std::{ffi::c_void, marker::PhantomData, mem, ptr, ptr::NonNull};

/// `len` items of ring memory. `T` is an array of `AtomicU64`.
#[derive(Debug)]
pub struct Mapped<T>(NonNull<[T]>);

// SAFETY: a shared slice of atomics, which any thread may use.
unsafe impl<T: Sync> Send for Mapped<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Sync> Sync for Mapped<T> {}

impl<T> Mapped<T> {
    /// # Safety
    /// `memory` is aligned for `T`, holds `len` of them, and stays mapped while the value is used; this
    /// process touches it by atomics of 8 bytes only.
    pub unsafe fn new(memory: NonNull<c_void>, len: usize) -> Self {
        Self(NonNull::slice_from_raw_parts(memory.cast(), len))
    }

    /// The items.
    #[inline]
    pub fn items(&self) -> &[T] {
        // SAFETY: mapped and initialised by `new`.
        unsafe { self.0.as_ref() }
    }
}

/// A walk round a power of two of items that lie `stride` bytes apart.
#[derive(Debug)]
pub struct Walk<T> {
    /// The item of number `index`, of which only the low bits count.
    here: NonNull<T>,
    index: usize,
    first: NonNull<T>,
    last: NonNull<T>,
    mask: usize,
    stride: usize,
}

// SAFETY: shared items, as in `Mapped`.
unsafe impl<T: Sync> Send for Walk<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Sync> Sync for Walk<T> {}

impl<T> Walk<T> {
    /// At the first of them; `None` where `count` is no power of two.
    ///
    /// # Safety
    /// As for [`Mapped::new`], for `count` items, the first at `first` and each `stride` bytes behind the last.
    pub unsafe fn new(first: NonNull<T>, count: usize, stride: usize) -> Option<Self> {
        if !count.is_power_of_two() {
            return None;
        }
        // SAFETY: the last item is one of those.
        let last = unsafe { first.byte_add((count - 1) * stride) };
        Some(Self { here: first, index: 0, first, last, mask: count - 1, stride })
    }

    /// Round one item.
    pub fn round(item: &'static T) -> Self {
        let first = NonNull::from(item);
        Self { here: first, index: 0, first, last: first, mask: 0, stride: 0 }
    }

    /// The item that is next.
    #[inline]
    pub fn here(&self) -> &T {
        // SAFETY: an item, as all that `step` and `run` lead to, and those are mapped and initialised by `new`.
        unsafe { self.here.as_ref() }
    }

    /// Items passed so far.
    #[inline]
    pub fn index(&self) -> usize {
        self.index
    }

    /// All of them, from the first on, wherever the walk is.
    pub fn items(&self) -> impl Iterator<Item = &T> {
        // SAFETY: the items' numbers.
        (0..self.len()).map(|n| unsafe { self.first.byte_add(n * self.stride).as_ref() })
    }

    #[inline]
    fn len(&self) -> usize {
        self.mask + 1
    }

    /// Passes one item; whether a round is complete.
    #[inline]
    pub fn step(&mut self) -> bool {
        self.index = self.index.wrapping_add(1);
        let complete = self.here == self.last;
        // SAFETY: if it is not the last, another is behind it.
        self.here = if complete { self.restart() } else { unsafe { self.here.byte_add(self.stride) } };
        complete
    }

    /// Not what mostly happens.
    #[cold]
    #[inline(always)]
    fn restart(&self) -> NonNull<T> {
        self.first
    }

    /// Shows `see` item after item, each with one of `out`, and passes those to which it says yes, up to its
    /// first no or the end of the round or of `out`. How many, and whether the round is complete.
    #[inline(always)]
    pub fn run<U>(&mut self, out: &mut [U], see: impl Fn(&T, &mut U) -> bool) -> (usize, bool) {
        let start = self.index & self.mask;
        let most = out.len().min(self.len() - start);
        let (here, mut passed) = (self.here, 0);
        for slot in &mut out[..most] {
            // SAFETY: the item of number `start + passed`, which is below `len`.
            if !see(unsafe { here.byte_add(passed * self.stride).as_ref() }, slot) {
                break;
            }
            passed += 1;
        }
        self.index = self.index.wrapping_add(passed);
        let complete = passed > 0 && self.index & self.mask == 0;
        self.here = if complete {
            self.first
        } else {
            // SAFETY: the item of number `start + passed`, which is below `len`: the round is not complete.
            unsafe { here.byte_add(passed * self.stride) }
        };
        (passed, complete)
    }
}

/// A power of two of items side by side, which a counter that never stops names by its low bits.
#[derive(Debug)]
pub struct Dense<T> {
    first: NonNull<T>,
    mask: usize,
}

// SAFETY: shared items, as in `Mapped`.
unsafe impl<T: Sync> Send for Dense<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Sync> Sync for Dense<T> {}

impl<T> Dense<T> {
    /// `None` where `count` is no power of two.
    ///
    /// # Safety
    /// As for [`Mapped::new`], for `count` items.
    pub unsafe fn new(first: NonNull<T>, count: usize) -> Option<Self> {
        count.is_power_of_two().then(|| Self { first, mask: count - 1 })
    }

    /// The item that `counter` names.
    #[inline]
    pub fn at(&self, counter: usize) -> &T {
        // SAFETY: the masked counter is an item's number, and the items are mapped and initialised by `new`.
        unsafe { self.first.add(counter & self.mask).as_ref() }
    }
}

/// A copy of it, for registers.
#[derive(Debug)]
pub struct View<'a, T>(Dense<T>, PhantomData<&'a T>);

impl<T> View<'_, T> {
    /// The item that `counter` names.
    #[inline]
    pub fn at(&self, counter: usize) -> &T {
        self.0.at(counter)
    }
}

/// The same in memory of its own.
#[derive(Debug)]
pub struct Table<T>(Dense<T>);

impl<T: Default> Table<T> {
    /// At least `count` items.
    pub fn new(count: usize) -> Self {
        let items: Box<[T]> = (0..count.next_power_of_two()).map(|_| T::default()).collect();
        let (mask, items) = (items.len() - 1, Box::leak(items));
        Self(Dense { first: NonNull::from(items).cast(), mask })
    }
}

impl<T> Table<T> {
    /// The item that `counter` names.
    #[inline]
    pub fn at(&self, counter: usize) -> &T {
        self.0.at(counter)
    }

    /// For a loop.
    #[inline]
    pub fn view(&self) -> View<'_, T> {
        let Dense { first, mask } = self.0;
        View(Dense { first, mask }, PhantomData)
    }

    /// Items.
    pub fn len(&self) -> usize {
        self.0.mask + 1
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        let items = ptr::slice_from_raw_parts_mut(self.0.first.as_ptr(), self.len());
        // SAFETY: leaked by `new` as a box of this length, and given back once.
        mem::drop(unsafe { Box::from_raw(items) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[test]
    fn every_counter_names_an_item_and_the_right_one() {
        let table = Table::<AtomicU64>::new(5);
        assert_eq!(table.len(), 8);
        (0..8).for_each(|i| table.at(i).store(i as u64, Relaxed));
        for counter in [0, 7, 8, 13, usize::MAX, usize::MAX - 7] {
            assert_eq!(table.at(counter).load(Relaxed), counter as u64 % 8);
        }
    }

    #[test]
    fn a_walk_goes_round_whatever_its_steps() {
        let items: [AtomicU64; 8] = std::array::from_fn(|i| AtomicU64::new(i as u64));
        let first = NonNull::from(&items).cast::<AtomicU64>();
        // SAFETY: eight items are four of 16 bytes each, and outlive the value.
        let mut walk = unsafe { Walk::new(first, 4, 16) }.unwrap();
        let (mut seen, mut rounds) = (Vec::new(), 0);
        for lengths in [1, 0, 3, 2, 4, 9, 1].map(|n| vec![0; n]) {
            let mut out = lengths;
            let (n, complete) = walk.run(&mut out, |item, slot| {
                *slot = item.load(Relaxed);
                *slot < 6 || seen.len() % 2 == 0
            });
            seen.extend(&out[..n]);
            seen.push(walk.here().load(Relaxed));
            rounds += usize::from(complete) + usize::from(walk.step());
            assert_eq!(walk.index(), seen.len());
        }
        assert!((0..seen.len()).all(|i| seen[i] == i as u64 % 4 * 2), "{seen:?}");
        assert_eq!(rounds, seen.len() / 4);
        assert!(walk.items().map(|item| item.load(Relaxed)).eq([0, 2, 4, 6]));
        // SAFETY: nothing is made.
        assert!(unsafe { Walk::new(first, 3, 16) }.is_none() && unsafe { Dense::new(first, 3) }.is_none());
    }
}
