//! What an operation costs on a machine with many queue pairs, for callgrind: `scale QUEUE_PAIRS ROUNDS`. Says the device's
//! memory for each queue pair. `cargo xtask softnic --scale` runs it and compares.
//!
//! # Safety
//!
//! The allocator forwards every call to the system's, and counts.
#![allow(unsafe_code)]

#[path = "../tests/mesh/mod.rs"]
mod mesh;
#[path = "../tests/rig/mod.rs"]
mod rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use mesh::{Mesh, machine};

/// The system's allocator, counting what is in use. What libibverbs and libmlx5 allocate does not come here.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Queue pairs on so many devices.
fn shape(queue_pairs: usize) -> (u16, usize) {
    let devices = queue_pairs.div_ceil(16);
    (devices as u16, queue_pairs / devices)
}

/// What is counted: posts, all that the device does, polls.
#[inline(never)]
fn op_rounds(mesh: &mut Mesh, pairs: &[(usize, usize)], rounds: std::ops::Range<u64>) {
    rounds.for_each(|round| mesh.round(pairs, round));
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let [queue_pairs, rounds] = numbers[..] else { panic!("usage: scale QUEUE_PAIRS ROUNDS") };
    let (devices, each) = shape(queue_pairs);
    let before = IN_USE.load(Ordering::Relaxed);
    let mut mesh = Mesh::new(machine(devices), each, rig::Shape::default()).expect("libibverbs is there");
    // Each to the one half of them further; one alone to itself. Both sides post.
    let half = queue_pairs / 2;
    let pairs: Vec<(usize, usize)> = match half {
        0 => vec![(0, 0)],
        _ => (0..half).flat_map(|i| [(i, half + i), (half + i, i)]).collect(),
    };
    pairs.iter().step_by(2).for_each(|(a, b)| mesh.connect(*a, *b));
    // The first rounds grow buffers to their lasting size.
    (0..8).for_each(|round| mesh.round(&pairs, round));
    let bytes = IN_USE.load(Ordering::Relaxed).saturating_sub(before);
    op_rounds(&mut mesh, &pairs, 8..8 + rounds as u64);
    println!("operations {}", pairs.len() * rounds);
    println!("bytes_per_queue_pair {}", bytes / queue_pairs);
}
