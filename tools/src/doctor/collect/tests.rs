//! Collecting from a made-up tree: what is there is found, and what is missing is no panic.

use super::*;
use crate::doctor::snapshot::{Adapter, Netdev, State};
use ibv::{DeviceKind, GidType, LinkLayer};
use std::os::unix::fs::{PermissionsExt, symlink};

struct Tree(tempfile::TempDir);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        for (file, text) in files {
            let path = tree.root().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        tree
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn facts(&self) -> Snapshot {
        collect(self.root(), &Registry::default)
    }
}

#[test]
fn an_empty_tree_has_no_facts() {
    let facts = Tree::new(&[]).facts();
    assert!(facts.nodes.is_empty() && facts.devices.is_empty() && facts.adapters.is_empty());
    assert_eq!((facts.kernel.release, facts.user.memlock, facts.user.ipc_lock), (None, None, None));
    assert!(facts.kernel.modules.iter().all(|m| m.state == ModuleState::NotLoaded));
    assert_eq!(facts.libraries.len(), 3);
}

#[test]
fn modules_are_loaded_built_in_available_or_absent() {
    let facts = Tree::new(&[
        ("proc/sys/kernel/osrelease", "6.1.0\n"),
        ("proc/modules", "ib_core 1 2 - Live 0x0\nrdma_rxe_not 1 0 - Live 0x0\n"),
        ("sys/module/mlx5_ib/version", "1\n"),
        ("lib/modules/6.1.0/modules.builtin", "kernel/drivers/infiniband/core/ib_uverbs.ko\n"),
        (
            "lib/modules/6.1.0/modules.dep",
            "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/net/a.ko\n",
        ),
    ])
    .facts();
    let state = |name| facts.module(name).unwrap();
    use ModuleState::{Absent, Available, Loaded};
    let states = ["ib_core", "mlx5_ib", "ib_uverbs", "rdma_rxe", "efa"].map(state);
    assert_eq!(states, [Loaded, Loaded, Loaded, Available, Absent]);
}

#[test]
fn a_class_tells_of_a_module_that_is_built_in() {
    let facts = Tree::new(&[("sys/class/infiniband/mlx5_0/fw_ver", "1\n")]).facts();
    let states = ["ib_core", "ib_uverbs"].map(|name| facts.module(name).unwrap());
    assert_eq!(states, [ModuleState::Loaded, ModuleState::NotLoaded]);
}

#[test]
fn limits_and_capabilities_are_the_process_s() {
    let status = "Name:\tx\nUid:\t1000\t1001\t1000\t1000\nGid:\t7\t7\t7\t7\nGroups:\t104 27 \nCapEff:\t0000000000004000\n";
    let limits = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         65536                unlimited            bytes     \n";
    let user = Tree::new(&[("proc/self/status", status), ("proc/self/limits", limits)]).facts().user;
    assert_eq!((user.uid, user.groups, user.ipc_lock), (Some(1001), vec![7, 27, 104], Some(true)));
    assert_eq!(user.memlock, Some(Memlock { soft: Some(65536), hard: None }));
    assert_eq!(memlock("Max locked memory many bytes"), None);
}

#[test]
fn nodes_have_their_device_and_only_harmless_ones_are_opened() {
    let tree = Tree::new(&[
        ("dev/infiniband/uverbs0", ""),
        ("dev/infiniband/issm0", ""),
        ("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n"),
    ]);
    let path = tree.root().join("dev/infiniband/uverbs0");
    fs::set_permissions(path, fs::Permissions::from_mode(0o660)).unwrap();
    let nodes = tree.facts().nodes;
    assert_eq!((&*nodes[0].path, &nodes[0].open), ("/dev/infiniband/issm0", &Opening::NotTried));
    assert_eq!((&*nodes[1].mode, nodes[1].device.as_deref()), ("0660", Some("mlx5_0")));
    assert_eq!(nodes[1].open, Opening::Opened);
}

#[test]
fn sysfs_alone_describes_a_device() {
    let dir = "sys/class/infiniband/mlx5_0";
    let tree = Tree::new(&[
        (&format!("{dir}/fw_ver"), "28.39.1002\n"),
        (&format!("{dir}/ports/1/state"), "4: ACTIVE\n"),
        (&format!("{dir}/ports/1/link_layer"), "Ethernet\n"),
        (&format!("{dir}/ports/1/lid"), "0x1f\n"),
        (&format!("{dir}/ports/1/gids/0"), "0000:0000:0000:0000:0000:0000:0000:0000\n"),
        (&format!("{dir}/ports/1/gids/3"), "0000:0000:0000:0000:0000:ffff:c0a8:0a01\n"),
        (&format!("{dir}/ports/1/gid_attrs/types/3"), "RoCE v2\n"),
        (&format!("{dir}/ports/1/gid_attrs/ndevs/3"), "ens1f0\n"),
        ("sys/class/net/ens1f0/mtu", "9000\n"),
        ("sys/class/net/ens1f0/operstate", "up\n"),
    ]);
    let bus = tree.root().join("sys/class/infiniband/mlx5_0/device");
    fs::create_dir(&bus).unwrap();
    symlink("/drivers/mlx5_core", bus.join("driver")).unwrap();
    let facts = tree.facts();
    let device = &facts.devices[0];
    assert_eq!((device.kind, device.driver.as_deref()), (DeviceKind::Hardware, Some("mlx5_core")));
    let port = &device.ports[0];
    assert_eq!((port.state, port.link_layer, port.lid), (State::Active, LinkLayer::Ethernet, 31));
    assert_eq!((port.gids.len(), port.gids[0].index, port.gids[0].gid_type), (1, 3, GidType::RoceV2));
    let up = Netdev { name: "ens1f0".into(), mtu: Some(9000), operstate: Some("up".into()) };
    assert_eq!(facts.netdevs, [up]);
}

#[test]
fn adapters_are_network_functions_of_the_two_vendors() {
    let function = |at: &str, vendor: &str, device: &str, class: &str| {
        let file = |name: &str, text: &str| (format!("sys/bus/pci/devices/{at}/{name}"), text.to_owned());
        [file("vendor", vendor), file("device", device), file("class", class)]
    };
    let files = [
        function("0000:3b:00.0", "0x15b3", "0x1021", "0x020000"),
        function("0000:3b:00.1", "0x15b3", "0xc2d5", "0x080100"),
        function("0000:00:05.0", "0x1d0f", "0xec20", "0x020000"),
        function("0000:00:06.0", "0x1d0f", "0xefa1", "0x020000"),
        function("0000:00:07.0", "0x8086", "0x1592", "0x020000"),
    ]
    .concat();
    let files: Vec<_> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
    let adapters = Tree::new(&files).facts().adapters;
    let found: Vec<_> = adapters.iter().map(|a: &Adapter| (&*a.address, &*a.device)).collect();
    assert_eq!(found, [("0000:00:06.0", "0xefa1"), ("0000:3b:00.0", "0x1021")]);
}

#[test]
fn copies_of_the_libraries_are_read_from_the_process_s_map() {
    let maps = "7f00-7f01 r-xp 0 08:01 5    /usr/lib/libmlx5.so.1.24.44.0\n7f01-7f02 r--p 0 08:01 5    /usr/lib/libmlx5.so.1.24.44.0\n7f02-7f03 r-xp 0 08:01 9    /opt/libmlx5.so.1.25.58.0\n7f03-7f04 rw-p 0 00:00 0 [heap]\n7f04-7f05 r-xp 0 08:01 4    /usr/lib/libc.so.6\n";
    let mapped = Tree::new(&[("proc/self/maps", maps)]).facts().mapped;
    assert_eq!(mapped, ["/opt/libmlx5.so.1.25.58.0", "/usr/lib/libmlx5.so.1.24.44.0"]);
}

#[test]
fn a_provider_s_devices_come_with_its_claims() {
    let tree = Tree::new(&[]);
    let registry = || Registry::default().with(ibv::mock::MockProvider::default());
    let facts = collect(tree.root(), &registry);
    assert!(facts.devices.len() >= 2 && facts.real_devices().next().is_none());
    let device = &facts.devices[0];
    assert_eq!((device.kind, device.in_sysfs), (DeviceKind::Mock, false));
    assert!(device.claims[0].claimed && device.claims[0].open_error.is_none());
    assert!(device.ports[0].active_mtu.is_some());
}
