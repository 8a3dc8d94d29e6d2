//! What an operation costs on a machine with many queue pairs, for callgrind: `scale QUEUE_PAIRS ROUNDS`. Says the device's
//! memory for each queue pair. `cargo xtask softnic --scale` runs it and compares.

mod counting;
#[path = "../tests/mesh/mod.rs"]
mod mesh;
#[path = "../tests/rig/mod.rs"]
mod rig;

use mesh::{Mesh, machine};

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
    let before = counting::in_use();
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
    let bytes = counting::in_use().saturating_sub(before);
    op_rounds(&mut mesh, &pairs, 8..8 + rounds as u64);
    println!("operations {}", pairs.len() * rounds);
    println!("bytes_per_queue_pair {}", bytes / queue_pairs);
}
