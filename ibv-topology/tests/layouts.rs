//! Distances on whole machines, laid out below a folder as sysfs would show them.

use ibv_topology::{Distance, Place, Topology};
use std::{fs, path::Path};

mod listing;

fn machine(name: &str) -> Topology {
    let root = tempfile::tempdir().unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/layouts/{name}.txt"));
    listing::lay_out(&fs::read_to_string(file).unwrap(), root.path());
    Topology::read(root.path()).unwrap()
}

fn server() -> Topology {
    machine("two-sockets-eight-gpus")
}

fn virtual_machine() -> Topology {
    machine("virtual-machine")
}

fn nearest(topology: &Topology, place: &str) -> Vec<(String, &'static str)> {
    let near = topology.nearest(place.parse().unwrap()).unwrap();
    near.into_iter().map(|n| (n.device.name.clone(), n.distance.name())).collect()
}

fn first(topology: &Topology, place: &str, count: usize) -> Vec<(String, &'static str)> {
    nearest(topology, place).into_iter().take(count).collect()
}

fn pairs(of: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
    of.iter().map(|(name, distance)| ((*name).into(), *distance)).collect()
}

#[test]
fn everything_of_the_server_is_found_in_order() {
    let server = server();
    assert_eq!((server.devices.len(), server.gpus.len(), server.numa_nodes.len()), (11, 8, 2));
    assert!(server.gpus.iter().all(|gpu| gpu.vendor() == "NVIDIA" && gpu.driver() == Some("nvidia")));
    assert!(server.gpus.is_sorted_by_key(|gpu| gpu.pci.address));
    let nic = server.device("mlx5_10").unwrap();
    assert_eq!((nic.netdevs.as_slice(), nic.numa_node), (&["ens9f1np1".to_owned()][..], Some(0)));
    let pci = nic.pci.as_ref().unwrap();
    assert_eq!((pci.vendor, pci.device, pci.base_class()), (0x15b3, 0x1021, 2));
    assert_eq!(pci.processors.numbers().count(), 112);
}

#[test]
fn a_gpu_s_own_switch_comes_first_and_the_other_socket_last() {
    let server = server();
    let expected = [("mlx5_0", "PIX"), ("mlx5_1", "PIX"), ("mlx5_8", "PHB"), ("mlx5_10", "NODE")];
    assert_eq!(first(&server, "gpu:0", 4), pairs(&expected));
    let all = nearest(&server, "gpu:0");
    assert_eq!(all.len(), 11);
    assert!(all[7..].iter().all(|(_, distance)| *distance == "SYS"), "{all:?}");
    let last = nearest(&server, "gpu:7");
    assert_eq!(last[..2], pairs(&[("mlx5_6", "PIX"), ("mlx5_7", "PIX")]));
}

#[test]
fn a_second_switch_is_told_from_the_first() {
    assert_eq!(first(&server(), "gpu:1", 2), pairs(&[("mlx5_0", "PXB"), ("mlx5_1", "PXB")]));
}

#[test]
fn a_numa_node_s_own_devices_come_before_the_others() {
    let all = nearest(&server(), "numa:1");
    let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..4], ["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"]);
    assert!(all[..4].iter().all(|(_, d)| *d == "NODE") && all[4..].iter().all(|(_, d)| *d == "SYS"));
}

#[test]
fn a_device_asked_for_by_address_is_its_own_nearest() {
    assert_eq!(first(&server(), "2a:00.0", 2), pairs(&[("mlx5_9", "X"), ("mlx5_10", "PIX")]));
}

#[test]
fn a_place_that_is_not_there_is_answered_with_those_that_are() {
    let e = server().nearest(Place::Gpu(8)).unwrap_err().to_string();
    assert!(
        e.starts_with("this machine has no gpu:8; it has GPU gpu:0, gpu:1") && e.contains("numa:1"),
        "{e}"
    );
    assert!(server().nearest("0000:02:00.0".parse().unwrap()).is_err(), "a management controller's display");
    assert!(
        Topology::default().nearest(Place::Numa(0)).unwrap_err().to_string().contains("neither GPU nor NUMA")
    );
}

#[test]
fn a_link_with_half_its_lanes_is_told() {
    let server = server();
    let link = |name| server.device(name).unwrap().pci.as_ref().unwrap().link.clone().unwrap();
    assert_eq!(link("mlx5_8").to_string(), "32.0 GT/s x8 of 32.0 GT/s x16");
    assert!(link("mlx5_8").is_degraded() && !link("mlx5_0").is_degraded());
}

#[test]
fn a_flat_bus_tells_no_more_than_the_host_bridge() {
    let guest = virtual_machine();
    let expected = [("rdmap16s16", "PHB"), ("rdmap16s17", "PHB")];
    assert_eq!(first(&guest, "gpu:0", 2), pairs(&expected));
    assert!(nearest(&guest, "gpu:0")[2..].iter().all(|(_, distance)| *distance == "SYS"));
    assert_eq!(first(&guest, "gpu:7", 1)[0].0, "rdmap32s16");
}

#[test]
fn a_software_device_is_where_its_interface_is_if_anywhere() {
    let guest = virtual_machine();
    let rxe0 = guest.device("rxe0").unwrap();
    assert_eq!(
        (rxe0.pci.as_ref().unwrap().address.to_string().as_str(), rxe0.numa_node),
        ("0000:00:05.0", None)
    );
    assert_eq!(guest.device("rxe1").unwrap().pci, None);
    assert_eq!(nearest(&guest, "numa:0").last().unwrap(), &("rxe1".to_owned(), Distance::System.name()));
}

#[test]
fn an_empty_machine_is_no_error_and_no_machine_is() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(Topology::read(root.path()).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    fs::create_dir(root.path().join("sys")).unwrap();
    assert_eq!(Topology::read(root.path()).unwrap(), Topology::default());
}

#[test]
fn this_machine_can_be_read() {
    let here = Topology::of_this_machine().unwrap();
    for node in &here.numa_nodes {
        assert!(here.nearest(Place::Numa(node.id)).unwrap().len() == here.devices.len());
    }
}
