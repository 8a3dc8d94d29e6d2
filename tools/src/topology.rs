//! `ibv devices --topology` and `--near`: which device is how far from which GPU, as tables and as data. The
//! distances are `ibv::topology`'s.

use crate::Failure;
use comfy_table::{ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use ibv::{
    Error, ErrorKind,
    topology::{Distance, Gpu, Near, Place, RdmaDevice, Topology},
};
use serde::Serialize;
use std::{fmt, path::Path};

/// Columns that a table takes before it wraps: eight GPUs fit.
const WIDTH: u16 = 140;

/// Every device against every GPU. Serializes as `--json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct Matrix {
    #[serde(flatten)]
    topology: Topology,
    distances: Vec<Cell>,
}

#[derive(Debug, Serialize)]
struct Cell {
    gpu: String,
    device: String,
    distance: Distance,
}

/// Every device, the nearest first. Serializes as `--json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct Ranking {
    place: String,
    devices: Vec<Ranked>,
}

#[derive(Debug, Serialize)]
struct Ranked {
    distance: Distance,
    meaning: &'static str,
    #[serde(flatten)]
    device: RdmaDevice,
}

/// The machine whose `sys` folder is below `root`.
///
/// # Errors
/// `Unreadable` where there is none.
pub(crate) fn read(root: &Path) -> Result<Topology, Failure> {
    Topology::read(root).map_err(|source| Failure::Unreadable { path: root.join("sys"), source })
}

impl Matrix {
    pub(crate) fn of(topology: Topology) -> Self {
        let mut distances = Vec::new();
        for n in 0..topology.gpus.len() {
            for Near { device, distance, .. } in topology.nearest(Place::Gpu(n)).unwrap_or_default() {
                let (gpu, device) = (Place::Gpu(n).to_string(), device.name.clone());
                distances.push(Cell { gpu, device, distance });
            }
        }
        Self { topology, distances }
    }

    fn distance(&self, gpu: usize, device: &RdmaDevice) -> &'static str {
        let gpu = Place::Gpu(gpu).to_string();
        let cell = self.distances.iter().find(|cell| cell.gpu == gpu && cell.device == device.name);
        cell.map_or("", |cell| cell.distance.name())
    }

    fn table(&self) -> Table {
        let gpus = self.topology.gpus.len();
        let head = (0..gpus).map(|n| Place::Gpu(n).to_string());
        let head = std::iter::once("device".to_owned()).chain(head);
        let rows = self.topology.devices.iter().map(|device| {
            let cells = (0..gpus).map(|n| self.distance(n, device).to_owned());
            std::iter::once(device.name.clone()).chain(cells).chain(about(device)).collect()
        });
        table(head.chain(ABOUT.map(str::to_owned)).collect(), rows)
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, gpu) in self.topology.gpus.iter().enumerate() {
            writeln!(f, "{}: {}", Place::Gpu(n), describe(gpu))?;
        }
        for node in &self.topology.numa_nodes {
            writeln!(f, "{}: processors {}", Place::Numa(node.id), node.processors)?;
        }
        if self.topology.devices.is_empty() {
            return write!(f, "no RDMA device");
        }
        write!(f, "{}", self.table())?;
        if self.topology.gpus.is_empty() {
            return write!(f, "\nno GPU");
        }
        legend(f)
    }
}

fn legend(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    Distance::ALL.into_iter().skip(1).try_for_each(|d| write!(f, "\n{d:<4}  {}", d.meaning()))
}

fn describe(gpu: &Gpu) -> String {
    let pci = &gpu.pci;
    let driver = gpu.driver().unwrap_or("none");
    let node = pci.numa_node.map_or("unknown".into(), |n| n.to_string());
    let link = pci.link.as_ref().map(|link| format!(", link {link}")).unwrap_or_default();
    let (vendor, part, address) = (gpu.vendor(), pci.device, pci.address);
    format!("{vendor} {part:#06x} at {address}, driver {driver}, NUMA node {node}{link}")
}

const ABOUT: [&str; 5] = ["PCI", "NUMA", "processors", "link", "interfaces"];

/// What is known of a device, under the heads of [`ABOUT`].
fn about(device: &RdmaDevice) -> [String; ABOUT.len()] {
    let pci = device.pci.as_ref();
    [
        pci.map_or("none".into(), |f| f.address.to_string()),
        device.numa_node.map_or("unknown".into(), |n| n.to_string()),
        pci.map(|f| f.processors.to_string()).unwrap_or_default(),
        pci.and_then(|f| f.link.as_ref()).map(ToString::to_string).unwrap_or_default(),
        device.netdevs.join(", "),
    ]
}

fn table(head: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_header(head);
    rows.for_each(|row| {
        table.add_row(row);
    });
    table
}

impl Ranking {
    /// Every device of the machine by its distance from `place`.
    ///
    /// # Errors
    /// `NoDevice` where the machine has no such place, with those that it has, or no RDMA device.
    pub(crate) fn of(topology: &Topology, place: Place) -> Result<Self, Failure> {
        let none = |why: String| Error::new(ErrorKind::NoDevice, "near", why);
        let near = topology.nearest(place).map_err(|e| none(e.to_string()))?;
        if near.is_empty() {
            return Err(none(format!("no RDMA device is near {place}, nor anywhere else here")).into());
        }
        let ranked = |Near { device, distance, .. }: Near<'_>| Ranked {
            distance,
            meaning: distance.meaning(),
            device: device.clone(),
        };
        Ok(Self { place: place.to_string(), devices: near.into_iter().map(ranked).collect() })
    }
}

impl fmt::Display for Ranking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = std::iter::once(format!("near {}", self.place)).chain(["distance".into()]);
        let rows = self.devices.iter().map(|Ranked { distance, device, .. }| {
            let own = [device.name.clone(), distance.to_string()];
            own.into_iter().chain(about(device)).collect()
        });
        write!(f, "{}", table(head.chain(ABOUT.map(str::to_owned)).collect(), rows))?;
        legend(f)
    }
}
