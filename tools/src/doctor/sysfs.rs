//! What sysfs tells of RDMA devices, adapters and their network interfaces, without any library. Reads files
//! below a root and nothing else.

use super::snapshot::{Adapter, Device, GidRow, Netdev, Port, State};
use ibv::{DeviceKind, Gid, GidType, LinkLayer};
use std::{collections::BTreeSet, fs, net::Ipv6Addr, path::Path};

/// The highest index that an address vector can name: `sgid_index` is one byte.
const LAST_GID: u32 = 255;
/// PCI vendors of RDMA adapters: Mellanox, Amazon.
const VENDORS: [&str; 2] = ["0x15b3", "0x1d0f"];

/// The file's text without the line end; `None` where it is empty or can not be read.
pub(super) fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

/// Names of what is in a folder, sorted.
pub(super) fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names: BTreeSet<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.into_iter().collect()
}

fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}

/// The devices of `/sys/class/infiniband`.
pub(super) fn devices(root: &Path) -> Vec<Device> {
    let folder = root.join("sys/class/infiniband");
    files(&folder).into_iter().map(|name| device(&folder.join(&name), name)).collect()
}

/// A device that a provider sees and sysfs does not list.
pub(super) fn unlisted(name: &str) -> Device {
    Device {
        name: name.into(),
        kind: DeviceKind::Unknown,
        driver: None,
        fw_ver: String::new(),
        in_sysfs: false,
        netdevs: Vec::new(),
        ports: Vec::new(),
        claims: Vec::new(),
    }
}

fn device(dir: &Path, name: String) -> Device {
    let driver = link_name(&dir.join("device/driver"));
    let numbers = files(&dir.join("ports")).into_iter().filter_map(|n| n.parse::<u8>().ok());
    let ports: Vec<Port> = numbers.map(|n| port(&dir.join("ports").join(n.to_string()), n)).collect();
    let mut netdevs: BTreeSet<String> = files(&dir.join("device/net")).into_iter().collect();
    // Soft-RoCE has no bus device, and a file that names its interface (drivers/infiniband/sw/rxe).
    netdevs.extend(line(&dir.join("parent")));
    netdevs.extend(ports.iter().flat_map(|p| &p.gids).filter_map(|g| g.netdev.clone()));
    let kind = match (&driver, dir.join("parent").exists()) {
        (Some(_), _) => DeviceKind::Hardware,
        (None, true) => DeviceKind::SoftwareKernel,
        (None, false) => DeviceKind::Unknown,
    };
    let fw_ver = line(&dir.join("fw_ver")).unwrap_or_default();
    Device {
        kind,
        driver,
        fw_ver,
        in_sysfs: true,
        netdevs: netdevs.into_iter().collect(),
        ports,
        ..unlisted(&name)
    }
}

fn port(dir: &Path, port: u8) -> Port {
    let link_layer = match line(&dir.join("link_layer")).as_deref() {
        Some("Ethernet") => LinkLayer::Ethernet,
        Some("InfiniBand") => LinkLayer::InfiniBand,
        _ => LinkLayer::Unspecified,
    };
    let mut slots: Vec<u32> = files(&dir.join("gids"))
        .into_iter()
        .filter_map(|n| n.parse().ok())
        .filter(|n| *n <= LAST_GID)
        .collect();
    slots.sort_unstable();
    let lid = line(&dir.join("lid")).and_then(|l| u16::from_str_radix(l.trim_start_matches("0x"), 16).ok());
    Port {
        port,
        state: state(line(&dir.join("state")).as_deref()),
        link_layer,
        active_mtu: None,
        lid: lid.unwrap_or(0),
        gids: slots.into_iter().filter_map(|index| gid(dir, index, link_layer)).collect(),
    }
}

/// `4: ACTIVE` (drivers/infiniband/core/sysfs.c).
fn state(text: Option<&str>) -> State {
    match text.and_then(|t| t.split(':').next()) {
        Some("1") => State::Down,
        Some("2") => State::Init,
        Some("3") => State::Armed,
        Some("4") => State::Active,
        _ => State::Unknown,
    }
}

fn gid(dir: &Path, index: u32, link: LinkLayer) -> Option<GidRow> {
    let attr = |what: &str| line(&dir.join("gid_attrs").join(what).join(index.to_string()));
    let gid = Gid::from(line(&dir.join("gids").join(index.to_string()))?.parse::<Ipv6Addr>().ok()?);
    if gid.is_zero() {
        return None;
    }
    // One name stands for two types, told apart by the link.
    let gid_type = match (attr("types").as_deref(), link) {
        (Some("RoCE v2"), _) => GidType::RoceV2,
        (Some("IB/RoCE v1" | "RoCE v1"), LinkLayer::Ethernet) => GidType::RoceV1,
        (Some("IB/RoCE v1" | "IB"), _) => GidType::Ib,
        _ => GidType::None,
    };
    Some(GidRow { index, gid, gid_type, netdev: attr("ndevs") })
}

/// Adapters on the PCI bus that could have an RDMA device: Mellanox network functions, and EFA.
pub(super) fn adapters(root: &Path) -> Vec<Adapter> {
    let folder = root.join("sys/bus/pci/devices");
    let look = |address: String| {
        let dir = folder.join(&address);
        let (vendor, device, class) =
            (line(&dir.join("vendor"))?, line(&dir.join("device"))?, line(&dir.join("class"))?);
        // Base class 2 is a network controller; EFA functions are numbered 0xefaN in rdma-core's list.
        let rdma = match vendor.as_str() {
            "0x15b3" => class.starts_with("0x02"),
            _ => device.starts_with("0xefa"),
        };
        let (driver, rdma_devices) = (link_name(&dir.join("driver")), files(&dir.join("infiniband")));
        (VENDORS.contains(&&*vendor) && rdma).then_some(Adapter {
            address,
            vendor,
            device,
            driver,
            rdma: rdma_devices,
        })
    };
    files(&folder).into_iter().filter_map(look).collect()
}

/// The network interfaces of these devices.
pub(super) fn netdevs(root: &Path, devices: &[Device]) -> Vec<Netdev> {
    let names: BTreeSet<&String> = devices.iter().flat_map(|d| &d.netdevs).collect();
    let look = |name: &String| {
        let dir = root.join("sys/class/net").join(name);
        let mtu = line(&dir.join("mtu")).and_then(|m| m.parse().ok());
        Netdev { name: name.clone(), mtu, operstate: line(&dir.join("operstate")) }
    };
    names.into_iter().map(look).collect()
}
