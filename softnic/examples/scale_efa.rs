//! What an operation costs on software EFA devices with many queue pairs, for callgrind: `scale_efa QUEUE_PAIRS ROUNDS`. Says
//! the device's memory for each queue pair. `cargo xtask softnic --scale` runs it and compares.

mod counting;
#[path = "../tests/rig/mod.rs"]
mod rig;
#[path = "../tests/srd/mod.rs"]
mod srd;

use ibv_sys::*;
use rig::{Opened, Rig, poll};
use softnic::Config;
use softnic::description::Description;
use srd::{Op, Shape, Srd};

/// Queue pairs on a device, at most.
const EACH: usize = 16;

/// An end with a handle to its peer.
struct End {
    srd: Srd,
    peer: usize,
    ah: *mut ibv_ah,
}

/// Devices with queue pairs. In this order: what is used goes last.
struct Mesh {
    ends: Vec<End>,
    _opened: Vec<Opened>,
    rig: Rig,
}

impl Mesh {
    /// Each queue pair talks to the one that is half of them further; one alone talks to itself.
    fn new(queue_pairs: usize) -> Option<Self> {
        let devices = queue_pairs.div_ceil(EACH);
        let description = Description::efa(devices as u16);
        let config = Config { description, strict: false, record: false, ..Config::steps(11) };
        let mut rig = Rig::start(config)?;
        srd::efa()?;
        // The rig opens them in the order of their names, in which 10 comes before 2.
        let mut order: Vec<usize> = (0..devices).collect();
        order.sort_by_key(|n| format!("rdmap{n}s6"));
        let device_of = |end: usize| order[end / EACH];
        let shape = Shape { depth: 16, cq_depth: 64, ..Shape::default() };
        let (mut ends, mut opened) = (Vec::new(), Vec::new());
        for device in 0..devices {
            let here = device * EACH..queue_pairs.min((device + 1) * EACH);
            let make = |rig: &mut Rig| {
                let make = |end: usize| {
                    let peer = (end + queue_pairs / 2) % queue_pairs;
                    End { srd: Srd::new(rig, shape), peer, ah: srd::handle(rig, device_of(peer)) }
                };
                here.map(make).collect::<Vec<_>>()
            };
            let (made, device) = rig.on_device(device, make);
            ends.extend(made);
            opened.push(device);
        }
        Some(Self { ends, _opened: opened, rig })
    }

    /// Each end sends to its peer, or reads from it.
    fn round(&mut self, round: u64) {
        let reads = round.is_multiple_of(2);
        for end in &self.ends {
            let peer = &self.ends[end.peer].srd;
            if !reads {
                peer.recv(round, &[(64, 8)]);
            }
            let op = if reads { end.srd.read_of(peer, 8) } else { Op::Send };
            assert_eq!(end.srd.try_post_to(round, op, peer.to(), end.ah), 0);
        }
        self.rig.nic.run();
        for end in &self.ends {
            let done: Vec<ibv_wc> = std::iter::from_fn(|| poll(end.srd.cq)).collect();
            let right = done.iter().all(|wc| wc.status == IBV_WC_SUCCESS && wc.wr_id == round);
            assert!(right && done.len() == if reads { 1 } else { 2 }, "{} completions", done.len());
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.ends.iter().for_each(|end| self.rig.destroy_ah(end.ah));
    }
}

/// What is counted: posts, all that the device does, polls.
#[inline(never)]
fn op_rounds(mesh: &mut Mesh, rounds: std::ops::Range<u64>) {
    rounds.for_each(|round| mesh.round(round));
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let [queue_pairs, rounds] = numbers[..] else { panic!("usage: scale_efa QUEUE_PAIRS ROUNDS") };
    let before = counting::in_use();
    let mut mesh = Mesh::new(queue_pairs).expect("libibverbs and libefa are there");
    // The first rounds grow buffers to their lasting size.
    (0..8).for_each(|round| mesh.round(round));
    let bytes = counting::in_use().saturating_sub(before);
    op_rounds(&mut mesh, 8..8 + rounds as u64);
    println!("operations {}", queue_pairs * rounds);
    println!("bytes_per_queue_pair {}", bytes / queue_pairs);
}
