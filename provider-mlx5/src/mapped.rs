//! Ring memory that libmlx5 allocated and the device reads or writes, as slices of atomics. Nothing is
//! interpreted here.
#![allow(unsafe_code)]
//! # Safety
//! Atomics are the one view of memory that another agent changes which Rust allows as a reference, and a
//! software device may well be a thread of this process. Whoever makes a value proves that the memory
//! stays mapped; every queue keeps the verbs object that owns it in a field behind its rings.

use std::{ffi::c_void, ptr::NonNull};

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
