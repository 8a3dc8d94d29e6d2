//! What is between two PCI functions, in the five classes of `nvidia-smi topo`. Where functions are is
//! `pci.rs`'s to read.

use crate::pci::PciFunction;
use std::fmt;

/// What a transfer between two devices has to cross. Orders from near to far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Distance {
    /// Nothing: it is the same function.
    #[cfg_attr(feature = "serde", serde(rename = "X"))]
    Same,
    /// At most one PCIe switch.
    #[cfg_attr(feature = "serde", serde(rename = "PIX"))]
    Switch,
    /// Several PCIe switches, and no host bridge.
    #[cfg_attr(feature = "serde", serde(rename = "PXB"))]
    Switches,
    /// A PCIe host bridge, which is part of a processor.
    #[cfg_attr(feature = "serde", serde(rename = "PHB"))]
    HostBridge,
    /// What joins the host bridges of one NUMA node.
    #[cfg_attr(feature = "serde", serde(rename = "NODE"))]
    Node,
    /// What joins NUMA nodes; or it is not known.
    #[cfg_attr(feature = "serde", serde(rename = "SYS"))]
    System,
}

impl Distance {
    /// From near to far.
    pub const ALL: [Self; 6] =
        [Self::Same, Self::Switch, Self::Switches, Self::HostBridge, Self::Node, Self::System];

    /// The word that `nvidia-smi topo` has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "X",
            Self::Switch => "PIX",
            Self::Switches => "PXB",
            Self::HostBridge => "PHB",
            Self::Node => "NODE",
            Self::System => "SYS",
        }
    }

    /// The word explained.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Same => "the same device",
            Self::Switch => "at most one PCIe switch between them",
            Self::Switches => "several PCIe switches between them, and no host bridge",
            Self::HostBridge => "through the host bridge of a processor",
            Self::Node => "through processors' interconnect within one NUMA node",
            Self::System => "through the interconnect between NUMA nodes, or unknown",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What is between two functions of one machine.
///
/// A switch shows as one bridge upstream and one for each of its ports downstream; so below the last bridge
/// that two paths share, one more bridge on either side belongs to the same switch, and a second one to
/// another.
pub fn distance(a: &PciFunction, b: &PciFunction) -> Distance {
    if a.address == b.address {
        return Distance::Same;
    }
    if a.host_bridge != b.host_bridge {
        return match (a.numa_node, b.numa_node) {
            (Some(a), Some(b)) if a == b => Distance::Node,
            _ => Distance::System,
        };
    }
    let shared = a.bridges.iter().zip(&b.bridges).take_while(|(a, b)| a == b).count();
    let below = a.bridges.len().max(b.bridges.len()) - shared;
    match (shared, below) {
        (0, _) => Distance::HostBridge,
        (_, 0 | 1) => Distance::Switch,
        _ => Distance::Switches,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(path: &str, numa_node: Option<u32>) -> PciFunction {
        PciFunction { numa_node, ..PciFunction::at_path(path).unwrap() }
    }

    #[test]
    fn paths_that_part_at_one_switch_are_near_and_at_two_farther() {
        let switch = "pci0000:15/0000:15:01.0/0000:16:00.0";
        let gpu = at(&format!("{switch}/0000:17:00.0/0000:18:00.0"), Some(0));
        let nic = at(&format!("{switch}/0000:17:01.0/0000:19:00.0"), Some(0));
        let cascaded = format!("{switch}/0000:17:02.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0");
        assert_eq!(distance(&gpu, &gpu), Distance::Same);
        assert_eq!(distance(&gpu, &nic), Distance::Switch);
        assert_eq!(distance(&gpu, &at(&cascaded, Some(0))), Distance::Switches);
    }

    #[test]
    fn functions_of_one_card_are_near() {
        let port = "pci0000:3a/0000:3a:00.0";
        let (a, b) = (at(&format!("{port}/0000:3b:00.0"), None), at(&format!("{port}/0000:3b:00.1"), None));
        assert_eq!(distance(&a, &b), Distance::Switch);
    }

    #[test]
    fn other_root_ports_and_other_host_bridges_are_farther_in_that_order() {
        let gpu = at("pci0000:3a/0000:3a:00.0/0000:3b:00.0", Some(0));
        let port = at("pci0000:3a/0000:3a:01.0/0000:3c:00.0", Some(0));
        let integrated = at("pci0000:3a/0000:3a:02.0", Some(0));
        let node = at("pci0000:5d/0000:5d:00.0/0000:5e:00.0", Some(0));
        let far = at("pci0000:ae/0000:ae:00.0/0000:af:00.0", Some(1));
        let classes = [&port, &integrated, &node, &far].map(|to| distance(&gpu, to));
        assert_eq!(classes, [Distance::HostBridge, Distance::HostBridge, Distance::Node, Distance::System]);
    }

    #[test]
    fn without_numa_nodes_another_host_bridge_is_as_far_as_can_be() {
        let (a, b) = (at("pci0000:00/0000:00:01.0", None), at("pci0000:40/0000:40:01.0", None));
        assert_eq!(distance(&a, &b), Distance::System);
    }

    #[test]
    fn near_orders_before_far() {
        assert!(Distance::ALL.is_sorted());
        assert_eq!(Distance::ALL.map(|d| d.name()).join(" "), "X PIX PXB PHB NODE SYS");
    }

    fn function() -> impl Strategy<Value = PciFunction> {
        let path = prop::collection::vec(0..3u8, 1..6);
        (0..2u8, path, prop::option::of(0..2u32)).prop_map(|(bridge, path, numa)| {
            let steps = path.iter().enumerate().map(|(depth, n)| format!("/0000:{depth:02x}:0{n}.0"));
            at(&format!("pci0000:{bridge:02x}{}", steps.collect::<String>()), numa)
        })
    }

    proptest! {
        #[test]
        fn there_and_back_is_as_far(a in function(), b in function()) {
            prop_assert_eq!(distance(&a, &b), distance(&b, &a));
            prop_assert_eq!(distance(&a, &a), Distance::Same);
        }
    }
}
