//! Scale: 64 devices, 1024 queue pairs, everybody talks to everybody, and every byte and count is right.
//!
//! `SOFTNIC_OPERATIONS` is how many operations (ordinarily 2^14).

mod mesh;
mod rig;

use mesh::{Mesh, machine};
use rig::Shape;
use softnic::Config;
use softnic::description::Description;

const DEVICES: usize = 64;
const EACH: usize = 16;
/// Times that the queue pairs are connected: 8 peers forwards each time, until each device has had all.
const PHASES: usize = 4;

fn operations() -> u64 {
    std::env::var("SOFTNIC_OPERATIONS")
        .map_or(1 << 14, |n| n.parse().expect("SOFTNIC_OPERATIONS is a number"))
}

/// The connections of a phase: queue pair `k` of a device goes to the device `8 · phase + k + 1` further, to its queue pair
/// `8 + k`.
fn pairs(phase: usize) -> Vec<(usize, usize)> {
    let half = EACH / 2;
    let pair = |d: usize, k: usize| {
        let peer = (d + half * phase + k + 1) % DEVICES;
        (d * EACH + k, peer * EACH + half + k)
    };
    (0..DEVICES).flat_map(|d| (0..half).map(move |k| pair(d, k))).collect()
}

#[test]
fn everybody_talks_to_everybody() {
    let Some(mut mesh) = Mesh::new(machine(DEVICES as u16), EACH, Shape::default()) else { return };
    assert_eq!(mesh.ends.len(), 1024);
    let mut met = std::collections::BTreeSet::new();
    let each = operations() / (PHASES * DEVICES * EACH / 2) as u64;
    let mut done = 0;
    for phase in 0..PHASES {
        let pairs = pairs(phase);
        met.extend(pairs.iter().map(|(a, b)| (a / EACH, b / EACH)));
        pairs.iter().for_each(|(a, b)| mesh.connect(*a, *b));
        let before: Vec<u64> = pairs.iter().map(|(_, b)| mesh.counted(*b)).collect();
        let rounds = phase as u64 * each..(phase as u64 + 1) * each;
        for round in rounds.clone() {
            mesh.round(&pairs, round);
            done += pairs.len() as u64;
        }
        pairs.iter().zip(before).for_each(|(pair, n)| mesh.check(*pair, rounds.clone(), n));
    }
    assert_eq!(done, each * (PHASES * DEVICES * EACH / 2) as u64);
    let all = (0..DEVICES).flat_map(|a| (0..DEVICES).map(move |b| (a, b))).filter(|(a, b)| a != b);
    let strangers = all.filter(|(a, b)| !met.contains(&(*a, *b)) && !met.contains(&(*b, *a))).count();
    assert_eq!(strangers, 0, "pairs of devices that never met");
}

/// Four devices; the first is behind a bad wire, and two others can't reach each other for a while.
fn bad_wires() -> Config {
    let mut config = machine(4);
    let wires = r#"
        [[device]]
        name = "x"
        [[device.port]]
        link = "ib"
        lid = 1
        [[wire]]
        between = ["x", "*"]
        loss = 0.2
        delay_ns = 3000
        seed = 5
    "#;
    config.description.wires = Description::parse(wires).unwrap().wires;
    config.description.wires[0].between[0] = "mlx5_0".into();
    let mut down = config.description.wires[0].clone();
    down.between = ["mlx5_1".into(), "mlx5_2".into()];
    (down.loss, down.delay_ns) = (0.0, 0);
    down.down = vec![softnic::fabric::wire::Downtime { from_ns: 0, to_ns: 20_000 }];
    config.description.wires.push(down);
    config
}

#[test]
fn bad_wires_cost_time_and_no_byte() {
    // 4.096 µs · 2^3 for an answer, seven times: the down-time ends before.
    let shape = Shape { timeout: 3, retry: 7, ..Shape::default() };
    let Some(mut mesh) = Mesh::new(bad_wires(), 3, shape) else { return };
    let pairs: Vec<(usize, usize)> = vec![(0, 3), (1, 6), (2, 9), (4, 7), (5, 10), (8, 11)];
    pairs.iter().for_each(|(a, b)| mesh.connect(*a, *b));
    let start = mesh.rig.nic.with(|h| h.engine.shared.now);
    assert_eq!(start, 0);
    (0..64).for_each(|round| mesh.round(&pairs, round));
    pairs.iter().for_each(|pair| mesh.check(*pair, 0..64, 0));
    let now = mesh.rig.nic.with(|h| h.engine.shared.now);
    assert!(now > 64 * 6000, "each answer took the wire twice: {now} ns");
}

#[test]
fn the_same_seed_loses_the_same_messages() {
    let run = || {
        let mut config = bad_wires();
        config.record = true;
        let shape = Shape { timeout: 3, retry: 7, ..Shape::default() };
        let mut mesh = Mesh::new(config, 1, shape)?;
        mesh.connect(0, 1);
        (0..40).for_each(|round| mesh.round(&[(0, 1)], round));
        Some(mesh.rig.nic.take_trace())
    };
    let Some(first) = run() else { return };
    let lost = |e: &&softnic::trace::Event| matches!(e, softnic::trace::Event::Packet(p) if p.action == softnic::trace::Action::Lost);
    assert!(first.iter().filter(lost).count() > 5, "a fifth of 80 messages and more");
    assert!(run().as_ref() == Some(&first));
}
