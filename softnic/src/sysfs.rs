//! The sysfs tree that libibverbs discovers devices by, written to a folder that `SYSFS_PATH` names.
//! What the device answers to commands is not here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::description::{Description, DeviceDescription, GidType, Kind, Link, PortDescription};

/// Major and minor number of the first device file, as the kernel's `infiniband_verbs` class has them.
pub const MAJOR: u32 = 231;
/// Minor number of `uverbs0`.
pub const FIRST_MINOR: u32 = 192;

/// The board name under which every software device can be told from hardware.
pub const BOARD_ID: &str = "SOFTNIC_MLX5";
/// That of EFA devices.
pub const EFA_BOARD_ID: &str = "SOFTNIC_EFA";

/// PCI vendor of EFA.
pub const EFA_VENDOR: u32 = 0x1d0f;
/// PCI device of EFA's second generation; perftest knows it to take extended posting.
pub const EFA_PART: u32 = 0xefa1;

/// The modalias that makes libefa claim the device.
const EFA_MODALIAS: &str = "pci:v00001D0Fd0000EFA1sv00001D0Fsd0000EFA1bc02sc00i00\n";

/// The modalias that makes libmlx5 claim the device: a ConnectX-5.
const MODALIAS: &str = "pci:v000015B3d00001017sv000015B3sd00000007bc02sc07i00\n";

/// Replaces the tree under `root` by one that shows `description`.
pub fn write_tree(root: &Path, description: &Description) -> io::Result<()> {
    match fs::remove_dir_all(root) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    put(root.join("class/infiniband_verbs/abi_version"), "6\n")?;
    fs::create_dir_all(root.join("class/infiniband"))?;
    for (index, device) in description.devices.iter().enumerate() {
        write_verbs(&root.join(format!("class/infiniband_verbs/uverbs{index}")), index, device)?;
        let class = root.join("class/infiniband").join(&device.name);
        match device.kind {
            Kind::Mlx5 => write_device(&class, index, device)?,
            Kind::Efa => write_efa(root, &class, index, device)?,
        }
    }
    Ok(())
}

fn write_verbs(dir: &Path, index: usize, device: &DeviceDescription) -> io::Result<()> {
    put(dir.join("ibdev"), format!("{}\n", device.name))?;
    put(dir.join("dev"), format!("{MAJOR}:{}\n", FIRST_MINOR as usize + index))?;
    put(dir.join("abi_version"), "1\n")?;
    put(dir.join("device/modalias"), if device.kind == Kind::Efa { EFA_MODALIAS } else { MODALIAS })
}

/// An EFA device. libfabric follows `device` to a place on the PCI bus, and its `driver`.
fn write_efa(root: &Path, dir: &Path, index: usize, device: &DeviceDescription) -> io::Result<()> {
    let guid = quads(&device.guid.to_be_bytes());
    put(dir.join("node_type"), "7: unspecified\n")?;
    put(dir.join("node_guid"), format!("{guid}\n"))?;
    put(dir.join("sys_image_guid"), format!("{guid}\n"))?;
    put(dir.join("fw_ver"), "0.0.0.0\n")?;
    put(dir.join("board_id"), format!("{EFA_BOARD_ID}\n"))?;
    put(dir.join("hca_type"), "efa\n")?;
    put(dir.join("hw_rev"), "0\n")?;
    let place = root.join(format!("devices/pci0000:00/0000:00:{:02x}.{}", 6 + index / 8, index % 8));
    put(place.join("modalias"), EFA_MODALIAS)?;
    put(place.join("vendor"), format!("{EFA_VENDOR:#06x}\n"))?;
    put(place.join("device"), format!("{EFA_PART:#06x}\n"))?;
    put(place.join("class"), "0x020000\n")?;
    put(place.join("numa_node"), "-1\n")?;
    put(place.join("local_cpulist"), "0\n")?;
    let driver = root.join("bus/pci/drivers/efa");
    fs::create_dir_all(&driver)?;
    std::os::unix::fs::symlink(&driver, place.join("driver"))?;
    std::os::unix::fs::symlink(&place, dir.join("device"))?;
    write_verbs(&place.join(format!("infiniband_verbs/uverbs{index}")), index, device)?;
    device
        .ports
        .iter()
        .enumerate()
        .try_for_each(|(i, port)| write_port(&dir.join(format!("ports/{}", i + 1)), port))
}

fn write_device(dir: &Path, index: usize, device: &DeviceDescription) -> io::Result<()> {
    let guid = quads(&device.guid.to_be_bytes());
    put(dir.join("node_type"), "1: CA\n")?;
    put(dir.join("node_guid"), format!("{guid}\n"))?;
    put(dir.join("sys_image_guid"), format!("{guid}\n"))?;
    put(dir.join("fw_ver"), "16.35.2000\n")?;
    put(dir.join("board_id"), format!("{BOARD_ID}\n"))?;
    put(dir.join("hca_type"), "MT4119\n")?;
    put(dir.join("hw_rev"), "0\n")?;
    put(dir.join("device/modalias"), MODALIAS)?;
    put(dir.join("device/numa_node"), "-1\n")?;
    put(dir.join("device/vendor"), "0x15b3\n")?;
    put(dir.join("device/device"), "0x1017\n")?;
    write_verbs(&dir.join(format!("device/infiniband_verbs/uverbs{index}")), index, device)?;
    for (i, port) in device.ports.iter().enumerate() {
        write_port(&dir.join(format!("ports/{}", i + 1)), port)?;
    }
    Ok(())
}

fn write_port(dir: &Path, port: &PortDescription) -> io::Result<()> {
    let (state, physical) = if port.active { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
    let link = match port.link {
        Link::Ib => "InfiniBand",
        Link::Roce => "Ethernet",
        Link::Unspecified => "Unknown",
    };
    put(dir.join("state"), format!("{state}\n"))?;
    put(dir.join("phys_state"), format!("{physical}\n"))?;
    put(dir.join("link_layer"), format!("{link}\n"))?;
    put(dir.join("rate"), "100 Gb/sec (4X EDR)\n")?;
    put(dir.join("lid"), format!("{:#x}\n", port.lid))?;
    put(dir.join("sm_lid"), format!("{:#x}\n", u16::from(port.link == Link::Ib)))?;
    write_gids(dir, port)?;
    let pkeys = if port.link == Link::Unspecified { 1 } else { crate::uverbs::query::PKEYS };
    for index in 0..pkeys {
        put(dir.join(format!("pkeys/{index}")), if index == 0 { "0xffff\n" } else { "0x0000\n" })?;
    }
    Ok(())
}

fn write_gids(dir: &Path, port: &PortDescription) -> io::Result<()> {
    fs::create_dir_all(dir.join("gid_attrs/types"))?;
    fs::create_dir_all(dir.join("gid_attrs/ndevs"))?;
    for index in 0..gid_table_len(port) {
        let gid = port.gids.get(index).map_or([0; 16], |e| e.gid);
        put(dir.join(format!("gids/{index}")), format!("{}\n", quads(&gid)))?;
        // The kernel answers EINVAL when a hole's type is read, and libibverbs takes that for version 1. A plain file can't
        // do that, so it says so itself; the zero address is what marks the hole.
        let text = if port.gid_type(index) == Some(GidType::V2) { "RoCE v2\n" } else { "IB/RoCE v1\n" };
        put(dir.join(format!("gid_attrs/types/{index}")), text)?;
        if let Some(netdev) = port.gids.get(index).and_then(|e| e.netdev.as_deref()) {
            put(dir.join(format!("gid_attrs/ndevs/{index}")), format!("{netdev}\n"))?;
        }
    }
    Ok(())
}

/// Length of a port's GID table: what was described, and at least 8 entries; an EFA port's has only its own.
pub fn gid_table_len(port: &PortDescription) -> usize {
    port.gids.len().max(if port.link == Link::Unspecified { 1 } else { 8 })
}

fn quads(bytes: &[u8]) -> String {
    let words: Vec<String> =
        bytes.chunks_exact(2).map(|c| format!("{:04x}", u16::from_be_bytes([c[0], c[1]]))).collect();
    words.join(":")
}

fn put(path: PathBuf, text: impl AsRef<[u8]>) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(path, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_efa_device_has_a_place_on_the_bus_and_a_driver() {
        let root = std::env::temp_dir().join(format!("softnic-sysfs-efa-{}", std::process::id()));
        write_tree(&root, &Description::efa(2)).unwrap();
        let device = root.join("class/infiniband/rdmap1s6");
        let text = |p: &str| fs::read_to_string(device.join(p)).unwrap();
        assert_eq!(text("board_id"), "SOFTNIC_EFA\n");
        assert_eq!(text("device/device"), "0xefa1\n");
        assert_eq!(text("ports/1/gids/0"), "fe80:0000:0000:0000:0efa:0000:00aa:bb01\n");
        assert!(!device.join("ports/1/gids/1").exists());
        assert_eq!(device.join("device").canonicalize().unwrap().file_name().unwrap(), "0000:00:06.1");
        assert_eq!(device.join("device/driver").canonicalize().unwrap().file_name().unwrap(), "efa");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_tree_names_devices_addresses_and_types() {
        let root = std::env::temp_dir().join(format!("softnic-test-sysfs-{}", std::process::id()));
        write_tree(&root, &Description::standard(Link::Roce, 2)).unwrap();
        let text = |p: &str| fs::read_to_string(root.join(p)).unwrap();
        assert_eq!(text("class/infiniband_verbs/uverbs1/ibdev"), "mlx5_1\n");
        assert_eq!(text("class/infiniband_verbs/uverbs1/dev"), "231:193\n");
        let port = "class/infiniband/mlx5_0/ports/1";
        assert_eq!(text(&format!("{port}/gids/3")), "0000:0000:0000:0000:0000:ffff:c000:0201\n");
        assert_eq!(text(&format!("{port}/gid_attrs/types/2")), "IB/RoCE v1\n");
        assert_eq!(text(&format!("{port}/gids/7")), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        assert_eq!(text(&format!("{port}/gid_attrs/types/7")), "IB/RoCE v1\n");
        fs::remove_dir_all(&root).unwrap();
    }
}
