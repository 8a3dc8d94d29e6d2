//! The RDMA devices, GPUs and NUMA nodes below a `sys` folder. Distances between them are not known here.

use crate::{
    Topology,
    pci::{PciFunction, Processors, line},
};
use std::{collections::BTreeSet, fs, io, path::Path};

/// NVIDIA and AMD. Others' display functions are, in servers, the management controller's.
const GPU_VENDORS: [u16; 2] = [0x10de, 0x1002];
/// Display controllers, and the accelerators without one.
const GPU_CLASSES: [u8; 2] = [0x03, 0x12];

/// A device of `/sys/class/infiniband`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RdmaDevice {
    /// As verbs list it.
    pub name: String,
    /// Its network interfaces.
    pub netdevs: Vec<String>,
    /// Where it is on the bus; of a software device, where the interface is that it runs over, if anywhere.
    pub pci: Option<PciFunction>,
    /// The NUMA node that it is on.
    pub numa_node: Option<u32>,
}

/// A GPU or another accelerator with memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Gpu {
    /// Where it is on the bus.
    pub pci: PciFunction,
}

/// Processors and memory that are near each other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its processors; a node of memory alone has none.
    pub processors: Processors,
    /// To each node that there is, by number: 10 is itself.
    pub distances: Vec<u32>,
}

pub(crate) fn read(sys: &Path) -> io::Result<Topology> {
    fs::read_dir(sys)?;
    Ok(Topology { devices: devices(sys), gpus: gpus(sys), numa_nodes: numa_nodes(sys) })
}

/// Names of what is in a folder, sorted.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

fn devices(sys: &Path) -> Vec<RdmaDevice> {
    let folder = sys.join("class/infiniband");
    names(&folder).into_iter().map(|name| device(sys, &folder.join(&name), name)).collect()
}

fn device(sys: &Path, dir: &Path, name: String) -> RdmaDevice {
    let bus = dir.join("device");
    let mut netdevs = names(&bus.join("net"));
    // Soft-RoCE has no bus device, and a file that names its interface (drivers/infiniband/sw/rxe).
    netdevs.extend(line(&dir.join("parent")));
    let behind = || {
        let of = |netdev: &String| PciFunction::read(&sys.join("class/net").join(netdev).join("device"));
        netdevs.iter().find_map(of)
    };
    let pci = PciFunction::read(&bus).or_else(behind);
    let numa_node = pci.as_ref().and_then(|f| f.numa_node);
    RdmaDevice { name, netdevs: netdevs.into_iter().collect(), pci, numa_node }
}

fn gpus(sys: &Path) -> Vec<Gpu> {
    let folder = sys.join("bus/pci/devices");
    let is_gpu = |f: &PciFunction| GPU_VENDORS.contains(&f.vendor) && GPU_CLASSES.contains(&f.base_class());
    let all = names(&folder).into_iter().filter_map(|name| PciFunction::read(&folder.join(name)));
    let mut gpus: Vec<Gpu> = all.filter(is_gpu).map(|pci| Gpu { pci }).collect();
    gpus.sort_by_key(|gpu| gpu.pci.address);
    gpus
}

fn numa_nodes(sys: &Path) -> Vec<NumaNode> {
    let folder = sys.join("devices/system/node");
    let node = |name: String| {
        let dir = folder.join(&name);
        let distances = line(&dir.join("distance")).unwrap_or_default();
        Some(NumaNode {
            id: name.strip_prefix("node")?.parse().ok()?,
            processors: Processors::new(line(&dir.join("cpulist")).unwrap_or_default()),
            distances: distances.split_whitespace().filter_map(|n| n.parse().ok()).collect(),
        })
    };
    let mut nodes: Vec<NumaNode> = names(&folder).into_iter().filter_map(node).collect();
    nodes.sort_by_key(|node| node.id);
    nodes
}

impl Gpu {
    /// Who made it: `NVIDIA`, `AMD`.
    pub fn vendor(&self) -> &'static str {
        if self.pci.vendor == GPU_VENDORS[0] { "NVIDIA" } else { "AMD" }
    }

    /// Its kernel driver, which may have lent it to a guest (`vfio-pci`).
    pub fn driver(&self) -> Option<&str> {
        self.pci.driver.as_deref()
    }
}
