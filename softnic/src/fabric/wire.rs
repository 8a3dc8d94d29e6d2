//! What lies between two ports: loss, delay and down-time, by the description. Without a wire of their own, ports are joined
//! by one that carries everything at once. Where a packet goes is not decided here.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::packet::Address;
use crate::drive::Choices;

/// A wire between devices, both ways.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireDescription {
    /// The devices at its ends; `*` is any. The first wire of the list that fits carries the packet.
    pub between: [String; 2],
    /// How probable it is that a message is lost: 0 to 1.
    #[serde(default)]
    pub loss: f64,
    /// How late a message is, in nanoseconds of the device's clock.
    #[serde(default)]
    pub delay_ns: u64,
    /// Times of the device's clock at which it carries nothing.
    #[serde(default)]
    pub down: Vec<Downtime>,
    /// After how many nanoseconds the down-times repeat; by default never.
    #[serde(default)]
    pub period_ns: Option<u64>,
    /// What loss is chosen by: the same seed loses the same messages.
    #[serde(default)]
    pub seed: u64,
}

/// From when to when nothing is carried, in nanoseconds of the device's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Downtime {
    /// First nanosecond.
    pub from_ns: u64,
    /// First nanosecond after it.
    pub to_ns: u64,
}

impl WireDescription {
    /// What is wrong with it, if anything; `known` says whether a device has that name.
    pub fn check(&self, known: impl Fn(&str) -> bool) -> Result<(), String> {
        let [a, b] = &self.between;
        if let Some(name) = self.between.iter().find(|n| *n != "*" && !known(n)) {
            return Err(format!("wire between {a} and {b}: no device {name:?}"));
        }
        if !(0.0..=1.0).contains(&self.loss) {
            return Err(format!("wire between {a} and {b}: loss {} is not 0 to 1", self.loss));
        }
        if let Some(down) = self.down.iter().find(|d| d.from_ns >= d.to_ns) {
            let Downtime { from_ns, to_ns } = down;
            return Err(format!("wire between {a} and {b}: down from {from_ns} to {to_ns} is no time"));
        }
        if self.period_ns == Some(0) {
            return Err(format!("wire between {a} and {b}: period_ns 0"));
        }
        Ok(())
    }

    fn fits(&self, from: &str, to: &str) -> bool {
        let [a, b] = &self.between;
        let one = |end: &str, name: &str| end == "*" || end == name;
        one(a, from) && one(b, to) || one(a, to) && one(b, from)
    }

    fn is_down(&self, now: u64) -> bool {
        let now = self.period_ns.map_or(now, |period| now % period);
        self.down.iter().any(|d| (d.from_ns..d.to_ns).contains(&now))
    }
}

/// All wires of a machine.
#[derive(Debug, Default)]
pub struct Wires {
    list: Vec<(WireDescription, Choices)>,
    names: Vec<String>,
    /// Which device has an address: local identifiers and global ones.
    lids: BTreeMap<u16, usize>,
    gids: BTreeMap<[u8; 16], usize>,
    /// Which wire joins two devices, as far as that was looked up.
    joins: BTreeMap<(usize, usize), Option<usize>>,
}

impl Wires {
    /// The wires of a description, and the devices' names and addresses.
    pub fn new(wires: &[WireDescription], devices: impl Iterator<Item = (String, Vec<Address>)>) -> Self {
        let list = wires.iter().map(|w| (w.clone(), Choices::new(w.seed))).collect();
        let mut all = Self { list, ..Self::default() };
        for (device, (name, addresses)) in devices.enumerate() {
            all.names.push(name);
            for address in addresses {
                if address.lid != 0 {
                    all.lids.insert(address.lid, device);
                }
                if let Some(gid) = address.gid {
                    all.gids.insert(gid, device);
                }
            }
        }
        all
    }

    /// What happens to a packet on its way: `None` if it is lost, else by how many nanoseconds it is late.
    pub fn carry(&mut self, from: &Address, to: &Address, now: u64) -> Option<u64> {
        let Some((wire, choices)) = self.between(from, to).and_then(|i| self.list.get_mut(i)) else {
            return Some(0);
        };
        // The choice is made for every message, so that down-time does not shift what is lost later.
        let lost = wire.loss > 0.0 && choices.fraction() < wire.loss;
        if lost || wire.is_down(now) { None } else { Some(wire.delay_ns) }
    }

    fn between(&mut self, from: &Address, to: &Address) -> Option<usize> {
        if self.list.is_empty() {
            return None;
        }
        let (from, to) = (self.device(from)?, self.device(to)?);
        let (list, names) = (&self.list, &self.names);
        *self
            .joins
            .entry((from, to))
            .or_insert_with(|| list.iter().position(|(w, _)| w.fits(&names[from], &names[to])))
    }

    fn device(&self, address: &Address) -> Option<usize> {
        let by_gid = address.gid.and_then(|gid| self.gids.get(&gid));
        by_gid.or_else(|| self.lids.get(&address.lid)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(lid: u16) -> Address {
        Address { lid, gid: None }
    }

    fn wires(list: Vec<WireDescription>) -> Wires {
        let device = |lid| (format!("mlx5_{}", lid - 1), vec![address(lid)]);
        Wires::new(&list, (1..=3).map(device))
    }

    fn wire(a: &str, b: &str) -> WireDescription {
        let between = [a.to_owned(), b.to_owned()];
        WireDescription { between, loss: 0.0, delay_ns: 0, down: vec![], period_ns: None, seed: 3 }
    }

    #[test]
    fn the_first_wire_that_fits_carries_both_ways_and_others_are_perfect() {
        let slow = WireDescription { delay_ns: 5, ..wire("mlx5_0", "mlx5_1") };
        let slower = WireDescription { delay_ns: 9, ..wire("mlx5_1", "*") };
        let mut wires = wires(vec![slow, slower]);
        let mut late = |a, b| wires.carry(&address(a), &address(b), 0);
        let got = [late(1, 2), late(2, 1), late(2, 3), late(3, 2), late(1, 3), late(2, 2)];
        assert_eq!(got, [5, 5, 9, 9, 0, 9].map(Some));
    }

    #[test]
    fn loss_is_as_frequent_as_described_and_the_same_for_a_seed() {
        let run = |loss, seed| {
            let mut wires = wires(vec![WireDescription { loss, seed, ..wire("*", "*") }]);
            (0..10_000).map(|_| wires.carry(&address(1), &address(2), 0).is_none()).collect::<Vec<_>>()
        };
        let lost = run(0.1, 1).iter().filter(|l| **l).count();
        assert!((800..1200).contains(&lost), "{lost} of 10000");
        assert!(run(0.1, 1) == run(0.1, 1) && run(0.1, 1) != run(0.1, 2));
        assert!(run(0.0, 1).iter().all(|l| !l) && run(1.0, 1).iter().all(|l| *l));
    }

    #[test]
    fn down_times_repeat() {
        let down = vec![Downtime { from_ns: 10, to_ns: 20 }];
        let mut wires = wires(vec![WireDescription { down, period_ns: Some(100), ..wire("*", "*") }]);
        let lost: Vec<u64> =
            (0..200).filter(|now| wires.carry(&address(1), &address(2), *now).is_none()).collect();
        assert_eq!(lost, (10..20).chain(110..120).collect::<Vec<_>>());
    }

    #[test]
    fn bad_values_are_named() {
        let known = |name: &str| name == "mlx5_0";
        for (wire, want) in [
            (wire("mlx5_0", "mlx5_7"), "mlx5_7"),
            (WireDescription { loss: 1.5, ..wire("mlx5_0", "*") }, "1.5"),
            (WireDescription { down: vec![Downtime { from_ns: 9, to_ns: 9 }], ..wire("*", "*") }, "from 9"),
            (WireDescription { period_ns: Some(0), ..wire("*", "*") }, "period_ns"),
        ] {
            let error = wire.check(known).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
