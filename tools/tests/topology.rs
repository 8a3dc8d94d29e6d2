//! `ibv devices --near` and `--topology` on machines that are laid out below a folder.

use assert_cmd::Command;
use serde_json::Value;
use std::{fs, path::Path};

#[path = "../../ibv-topology/tests/listing/mod.rs"]
mod listing;

fn machine(name: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let layouts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ibv-topology/tests/layouts");
    listing::lay_out(&fs::read_to_string(layouts.join(format!("{name}.txt"))).unwrap(), root.path());
    root
}

fn devices(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("ibv").unwrap();
    command.arg("devices").arg("--root").arg(root).args(args);
    command
}

fn text(mut command: Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn json(command: Command) -> Value {
    serde_json::from_str(&text(command)).unwrap()
}

#[test]
fn the_nearest_device_of_a_gpu_is_the_first_row() {
    let root = machine("two-sockets-eight-gpus");
    let table = text(devices(root.path(), &["--near", "gpu:0"]));
    let rows: Vec<&str> = table.lines().filter(|line| line.contains("mlx5_")).collect();
    assert_eq!(rows.len(), 11, "{table}");
    for word in ["mlx5_0 ", "PIX", "0000:18:00.0", "0-55,112-167", "32.0 GT/s x16", "ens0np0"] {
        assert!(rows[0].contains(word), "no {word} in {table}");
    }
    assert!(
        table.contains("32.0 GT/s x8 of 32.0 GT/s x16") && table.contains("PHB   through the host bridge")
    );
    let data = json(devices(root.path(), &["--near", "gpu:0", "--json"]));
    assert_eq!((&data["place"], &data["devices"][0]["name"]), (&"gpu:0".into(), &"mlx5_0".into()));
    assert_eq!(data["devices"][0]["distance"], "PIX");
    assert_eq!(data["devices"][0]["pci"]["address"], "0000:18:00.0");
}

#[test]
fn the_matrix_has_a_row_for_each_device_and_a_column_for_each_gpu() {
    let root = machine("virtual-machine");
    let table = text(devices(root.path(), &["--topology"]));
    let row = table.lines().find(|line| line.contains("rdmap32s17")).unwrap();
    assert_eq!((row.matches("PHB").count(), row.matches("SYS").count()), (4, 4), "{table}");
    assert!(table.contains("gpu:7: NVIDIA 0x20b0 at 0000:20:1d.0, driver nvidia, NUMA node 1"), "{table}");
    let data = json(devices(root.path(), &["--topology", "--json"]));
    assert_eq!(data["distances"].as_array().unwrap().len(), 8 * 6);
    let again: ibv::topology::Topology = serde_json::from_value(data).unwrap();
    assert_eq!(again, ibv::topology::Topology::read(root.path()).unwrap());
}

#[test]
fn a_place_or_a_device_that_is_not_there_is_code_3_and_nonsense_is_code_2() {
    let root = machine("virtual-machine");
    let empty = tempfile::tempdir().unwrap();
    fs::create_dir_all(empty.path().join("sys/devices/system/node/node0")).unwrap();
    for (root, place, code, words) in [
        (root.path(), "gpu:9", 3, "this machine has no gpu:9; it has GPU gpu:0"),
        (empty.path(), "numa:0", 3, "no RDMA device is near numa:0"),
        (empty.path(), "gpu:0", 3, "this machine has no gpu:0; it has NUMA node numa:0, and no GPU"),
        (root.path(), "cpu:0", 2, "gpu:N, numa:N"),
        (&root.path().join("none"), "gpu:0", 11, "none/sys: can not be read"),
    ] {
        let out = devices(root, &["--near", place]).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(code), "{said}");
        assert!(said.contains(words) && out.stdout.is_empty(), "{said}");
    }
    assert_eq!(text(devices(empty.path(), &["--topology"])), "numa:0: processors \nno RDMA device\n");
}
