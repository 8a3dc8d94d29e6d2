//! The system's allocator, counting each thread's allocations: for every test that the hot path makes none.
//! The providers' tests take it by path.
#![allow(unsafe_code)]
//! # Safety
//! Every call is forwarded to the system's allocator, unchanged. Counting touches a thread-local that needs
//! no destructor, so it works at any time in a thread's life.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

struct Counting;
thread_local!(static COUNT: Cell<usize> = const { Cell::new(0) });

/// Allocations of this thread so far.
pub fn allocated() -> usize {
    COUNT.get()
}

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: forwarded contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: forwarded contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
