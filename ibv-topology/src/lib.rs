//! How far each RDMA device of a machine is from each GPU and each NUMA node, as sysfs tells it: which
//! device should serve a GPU, and on which processors its threads should run. It opens no device, needs no
//! library and no provider, and starts nothing; what moves the bytes is other crates' business.
//!
//! ```no_run
//! use ibv_topology::{Place, Topology};
//!
//! let topology = Topology::of_this_machine()?;
//! let gpu: Place = "gpu:0".parse()?;
//! for near in topology.nearest(gpu)? {
//!     println!("{}: {} ({})", near.device.name, near.distance, near.distance.meaning());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where the distances come from
//!
//! The kernel's path of a PCI function names every bridge between it and its host bridge. Two functions are
//! compared by where their paths part. Nothing is guessed from names or numbers that look alike, and
//! everything is read below one root, so a made-up or a copied tree will do.
//!
//! In a virtual machine the paths are the hypervisor's invention. Where it shows a flat bus, devices that
//! share a switch in hardware look no nearer than those that share a host bridge.
#![forbid(unsafe_code)]

mod distance;
mod machine;
mod pci;
mod place;

pub use distance::{Distance, distance};
pub use machine::{Gpu, NumaNode, RdmaDevice};
pub use pci::{NotAnAddress, PciAddress, PciFunction, PciLink, Processors};
pub use place::{NotAPlace, Place};

use std::{io, path::Path};

/// The RDMA devices, GPUs and NUMA nodes of one machine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Topology {
    /// By name.
    pub devices: Vec<RdmaDevice>,
    /// By PCI address, the order of `nvidia-smi`. CUDA's own numbers follow it only where
    /// `CUDA_DEVICE_ORDER=PCI_BUS_ID` is set.
    pub gpus: Vec<Gpu>,
    /// By number; empty where the kernel knows none.
    pub numa_nodes: Vec<NumaNode>,
}

/// One RDMA device and how far it is from the place that was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Near<'t> {
    /// The device.
    pub device: &'t RdmaDevice,
    /// From the place to the device.
    pub distance: Distance,
}

/// The machine has no such place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this machine has no {place}; it has {there_are}")]
pub struct NoSuchPlace {
    place: Place,
    there_are: String,
}

impl Topology {
    /// What `/sys` says now.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn of_this_machine() -> io::Result<Self> {
        Self::read(Path::new("/"))
    }

    /// What `sys` below `root` says. A machine without PCI or without RDMA is no error.
    ///
    /// # Errors
    /// `NotFound` where there is no `sys` below `root`; else the file system's.
    pub fn read(root: &Path) -> io::Result<Self> {
        machine::read(&root.join("sys"))
    }

    /// The RDMA device of that name, as verbs list it.
    pub fn device(&self, name: &str) -> Option<&RdmaDevice> {
        self.devices.iter().find(|d| d.name == name)
    }

    /// Every RDMA device, the nearest to `place` first; those of equal distance by how far the kernel says
    /// that their NUMA nodes are, and then by name.
    ///
    /// # Errors
    /// `NoSuchPlace` with the places that there are.
    pub fn nearest(&self, place: Place) -> Result<Vec<Near<'_>>, NoSuchPlace> {
        let from = self.spot(place)?;
        let look = |device| {
            let distance = from.distance(device);
            Near { device, distance }
        };
        let mut all: Vec<Near<'_>> = self.devices.iter().map(look).collect();
        all.sort_by_key(|near| (near.distance, self.numa_distance(from.numa_node(), near.device.numa_node)));
        Ok(all)
    }

    fn spot(&self, place: Place) -> Result<Spot<'_>, NoSuchPlace> {
        let found = match place {
            Place::Gpu(n) => self.gpus.get(n).map(|gpu| Spot::Function(&gpu.pci)),
            Place::Numa(n) => self.numa_nodes.iter().find(|node| node.id == n).map(|_| Spot::Numa(n)),
            Place::Pci(address) => self.function(address).map(Spot::Function),
        };
        found.ok_or_else(|| NoSuchPlace { place, there_are: self.places() })
    }

    /// Of a GPU or an RDMA device: of other functions nothing is kept.
    fn function(&self, address: PciAddress) -> Option<&PciFunction> {
        let devices = self.devices.iter().filter_map(|d| d.pci.as_ref());
        self.gpus.iter().map(|g| &g.pci).chain(devices).find(|f| f.address == address)
    }

    fn places(&self) -> String {
        let list = |places: Vec<Place>| places.iter().map(Place::to_string).collect::<Vec<_>>().join(", ");
        let gpus = list((0..self.gpus.len()).map(Place::Gpu).collect());
        let nodes = list(self.numa_nodes.iter().map(|n| Place::Numa(n.id)).collect());
        match (gpus.is_empty(), nodes.is_empty()) {
            (false, false) => format!("GPU {gpus} and NUMA node {nodes}"),
            (false, true) => format!("GPU {gpus}, and no NUMA node"),
            (true, false) => format!("NUMA node {nodes}, and no GPU"),
            (true, true) => "neither GPU nor NUMA node".into(),
        }
    }

    /// The kernel's number (10 is local), or the largest where it gives none.
    fn numa_distance(&self, from: Option<u32>, to: Option<u32>) -> u32 {
        let row = |from| self.numa_nodes.iter().find(|n| n.id == from);
        let column = |to| self.numa_nodes.iter().position(|n| n.id == to);
        let number = || row(from?)?.distances.get(column(to?)?).copied();
        number().unwrap_or(u32::MAX)
    }
}

/// A place of this machine.
#[derive(Clone, Copy, Debug)]
enum Spot<'t> {
    Function(&'t PciFunction),
    Numa(u32),
}

impl Spot<'_> {
    fn numa_node(&self) -> Option<u32> {
        match self {
            Self::Function(function) => function.numa_node,
            Self::Numa(node) => Some(*node),
        }
    }

    fn distance(&self, device: &RdmaDevice) -> Distance {
        match (self, &device.pci) {
            (Self::Function(from), Some(to)) => distance(from, to),
            // Without a bus of its own, a device is in the processors' memory.
            _ => match (self.numa_node(), device.numa_node) {
                (Some(a), Some(b)) if a == b => Distance::Node,
                _ => Distance::System,
            },
        }
    }
}
