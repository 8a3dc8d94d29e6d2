//! What only sysfs tells about a device: what a GID speaks, which network interface is behind it, and
//! what bus it sits on. Reads files and nothing else; the root is the caller's, so a copied tree will do.

use crate::gid::{Gid, GidType};
use std::{
    fs, io,
    net::Ipv6Addr,
    path::{Path, PathBuf},
};

/// A device's directory, such as `/sys/class/infiniband/mlx5_0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDir(PathBuf);

impl DeviceDir {
    /// The directory at `path`, which need not exist: every answer is then `None`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// One line of a file below it, without the line end.
    fn line(&self, file: &str) -> io::Result<String> {
        fs::read_to_string(self.0.join(file)).map(|text| text.trim().to_owned())
    }

    /// The GID at `index`; `None` where the slot does not exist or can not be read.
    pub fn gid(&self, port: u8, index: u32) -> Option<Gid> {
        let text = self.line(&format!("ports/{port}/gids/{index}")).ok()?;
        text.parse::<Ipv6Addr>().ok().map(Gid::from)
    }

    /// What the GID at `index` speaks. The kernel makes the file of an empty slot unreadable.
    ///
    /// One name stands for two types: on Ethernet `IB/RoCE v1` is RoCE v1, elsewhere InfiniBand.
    pub fn gid_type(&self, port: u8, index: u32) -> Option<GidType> {
        let text = self.line(&format!("ports/{port}/gid_attrs/types/{index}")).ok()?;
        let ethernet = self.line(&format!("ports/{port}/link_layer")).is_ok_and(|l| l == "Ethernet");
        Some(match (&*text, ethernet) {
            ("RoCE v2", _) => GidType::RoceV2,
            ("IB/RoCE v1" | "RoCE v1", true) => GidType::RoceV1,
            ("IB/RoCE v1" | "IB", false) => GidType::Ib,
            _ => GidType::None,
        })
    }

    /// The network interface behind the GID at `index`.
    pub fn netdev(&self, port: u8, index: u32) -> Option<String> {
        self.line(&format!("ports/{port}/gid_attrs/ndevs/{index}")).ok().filter(|n| !n.is_empty())
    }

    /// Whether a bus device, such as a PCI function, is behind it.
    pub fn has_bus_device(&self) -> bool {
        self.0.join("device").exists()
    }

    /// The kernel driver of the bus device: `mlx5_core`, `efa`.
    pub fn driver(&self) -> Option<String> {
        let target = fs::read_link(self.0.join("device/driver")).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// The vendor's name for the board.
    pub fn board_id(&self) -> Option<String> {
        self.line("board_id").ok()
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("ibv-sysfs-{}-{name}", std::process::id()));
            for (file, text) in files {
                let path = root.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_roce_port_has_types_and_interfaces() {
        let tree = Tree::new(
            "roce",
            &[
                ("ports/1/link_layer", "Ethernet\n"),
                ("ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
                ("ports/1/gid_attrs/types/0", "IB/RoCE v1\n"),
                ("ports/1/gid_attrs/types/1", "RoCE v2\n"),
                ("ports/1/gid_attrs/ndevs/1", "ens3\n"),
                ("device/vendor", "0x15b3\n"),
            ],
        );
        let dir = DeviceDir::new(&tree.0);
        assert_eq!((dir.gid_type(1, 0), dir.gid_type(1, 1)), (Some(GidType::RoceV1), Some(GidType::RoceV2)));
        assert_eq!((dir.netdev(1, 1).as_deref(), dir.netdev(1, 0)), (Some("ens3"), None));
        assert_eq!(dir.gid(1, 0).unwrap().to_string(), "fe80:0000:0000:0000:0000:0000:0000:0001");
        assert!(dir.has_bus_device() && dir.driver().is_none());
    }

    #[test]
    fn the_same_name_means_infiniband_on_an_infiniband_port() {
        let tree = Tree::new(
            "ib",
            &[("ports/1/link_layer", "InfiniBand\n"), ("ports/1/gid_attrs/types/0", "IB/RoCE v1\n")],
        );
        assert_eq!(DeviceDir::new(&tree.0).gid_type(1, 0), Some(GidType::Ib));
    }

    #[test]
    fn what_is_missing_or_garbled_is_none() {
        let tree = Tree::new("bad", &[("ports/1/gids/0", "not a gid"), ("ports/1/gid_attrs/types/0", "?")]);
        let dir = DeviceDir::new(&tree.0);
        assert_eq!((dir.gid(1, 0), dir.gid(1, 1), dir.gid_type(1, 1)), (None, None, None));
        assert_eq!(dir.gid_type(1, 0), Some(GidType::None));
        assert!(!DeviceDir::new("/nonexistent").has_bus_device());
    }
}
