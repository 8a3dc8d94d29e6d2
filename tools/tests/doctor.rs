//! `ibv doctor` on facts that were broken on purpose, each of which must be named; on a healthy machine's,
//! which must be left in peace; on files that are no facts; and on whatever machine the tests run.

use assert_cmd::Command;
use serde_json::Value;
use std::{fs, path::PathBuf};

fn doctor() -> Command {
    let mut command = Command::cargo_bin("ibv").unwrap();
    command.arg("doctor");
    for variable in ["MLX5_QP_SIGNATURE", "MLX5_SINGLE_THREADED", "IBV_LIBIBVERBS", "IBV_LIBMLX5"] {
        command.env_remove(variable);
    }
    command
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/snapshots/{name}.json"))
}

/// The findings of a fixture, and whether the exit code says that something can be used.
fn findings(name: &str) -> (Vec<Value>, bool) {
    let out = doctor().arg("--json").arg("--from").arg(fixture(name)).output().unwrap();
    let code = out.status.code().unwrap();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["usable"], code == 0, "{name}: {report}");
    assert!(matches!(code, 0 | 5), "{name}: {code}");
    assert_eq!(out.stderr.is_empty(), code == 0, "{}", String::from_utf8_lossy(&out.stderr));
    let facts: Value = serde_json::from_slice(&fs::read(fixture(name)).unwrap()).unwrap();
    assert_eq!(report["snapshot"], facts, "{name}: the fixture is not in the form that is written");
    (report["findings"].as_array().unwrap().clone(), code == 0)
}

/// The fixture has this one cause and no other; returns the first finding of it.
fn only(name: &str, severity: &str, cause: &str) -> Value {
    let (found, usable) = findings(name);
    assert_eq!(usable, severity != "error", "{found:?}");
    let causes: Vec<_> = found.iter().map(|f| (f["severity"].as_str(), f["cause"].as_str())).collect();
    assert!(!causes.is_empty() && causes.iter().all(|c| *c == (Some(severity), Some(cause))), "{causes:?}");
    found[0].clone()
}

fn says(finding: &Value, field: &str, words: &[&str]) {
    let text = finding[field].as_str().unwrap();
    for word in words {
        assert!(text.contains(word), "no {word} in {field}: {text}");
    }
}

#[test]
fn a_healthy_machine_has_no_findings() {
    assert_eq!(findings("healthy"), (vec![], true));
}

#[test]
fn no_library_names_every_path_and_the_package() {
    let (found, usable) = findings("no-library");
    assert!(!usable);
    let missing: Vec<_> = found.iter().filter(|f| f["cause"] == "library_missing").collect();
    let names: Vec<_> = missing.iter().map(|f| f["about"].as_str().unwrap()).collect();
    assert_eq!(names, ["libibverbs.so.1", "libmlx5.so.1"], "libefa has no device here");
    says(missing[0], "found", &["tried libibverbs.so.1 (", "/usr/lib64/libibverbs.so.1"]);
    says(missing[0], "action", &["libibverbs1", "IBV_LIBIBVERBS"]);
    assert_eq!(found.len(), 2, "that no provider sees the device follows from it: {found:?}");
}

#[test]
fn roce_v1_alone_is_named() {
    let finding = only("roce-v1-only", "warning", "roce_v1_only");
    says(&finding, "about", &["mlx5_0 port 1"]);
    says(&finding, "found", &["2 GID(s), all RoCE v1"]);
    says(&finding, "action", &["RoCE v2"]);
}

#[test]
fn a_small_limit_on_locked_memory_is_named_with_both_limits() {
    let finding = only("memlock-64k", "error", "memlock_too_low");
    says(&finding, "found", &["64 KiB", "hard limit 64 KiB", "no CAP_IPC_LOCK"]);
    says(&finding, "action", &["limits.conf", "LimitMEMLOCK", "--ulimit memlock"]);
}

#[test]
fn a_port_that_is_down_is_named_with_its_interface() {
    let finding = only("port-down", "error", "port_down");
    says(&finding, "about", &["mlx5_0 port 1"]);
    says(&finding, "found", &["state down", "ens1f0 is down"]);
    says(&finding, "action", &["ip link set ens1f0 up"]);
}

#[test]
fn beside_a_device_that_works_a_port_that_is_down_is_a_warning() {
    says(&only("one-port-of-two-down", "warning", "port_down"), "about", &["mlx5_1 port 1"]);
}

#[test]
fn different_mtus_of_two_ports_are_named() {
    let finding = only("mtu-between-ports", "warning", "mtu_between_ports");
    says(&finding, "about", &["mlx5_1 port 1", "mlx5_0 port 1"]);
    says(&finding, "found", &["1024", "4096"]);
}

#[test]
fn an_mtu_that_the_interface_can_not_carry_is_named() {
    let finding = only("mtu-against-netdev", "error", "mtu_against_netdev");
    says(&finding, "found", &["active MTU 4096", "ens1f0 has MTU 1500", "1024 fits"]);
    says(&finding, "wanted", &["4192"]);
}

#[test]
fn a_node_that_the_user_may_not_open_is_named_with_its_mode() {
    let finding = only("no-permission", "error", "node_permission");
    says(&finding, "about", &["/dev/infiniband/uverbs0 of mlx5_0"]);
    says(&finding, "found", &["user 1000", "Permission denied", "mode 0660", "owner 0:104"]);
    says(&finding, "action", &["add the user to group 104"]);
}

#[test]
fn missing_nodes_are_named() {
    let finding = only("no-node", "error", "node_missing");
    says(&finding, "found", &["no uverbs node for mlx5_0"]);
    says(&finding, "action", &["--device /dev/infiniband"]);
}

#[test]
fn missing_modules_are_named_with_the_command_that_loads_them() {
    let (found, usable) = findings("no-modules");
    assert!(!usable);
    let modules: Vec<_> = found.iter().filter(|f| f["cause"] == "module_missing").collect();
    let names: Vec<_> = modules.iter().map(|f| f["about"].as_str().unwrap()).collect();
    assert_eq!(names, ["kernel module ib_core", "kernel module ib_uverbs", "kernel module mlx5_ib"]);
    says(modules[2], "found", &["6.1.0-18-amd64", "not loaded"]);
    says(modules[2], "action", &["modprobe mlx5_ib"]);
    let adapter = found.iter().find(|f| f["cause"] == "adapter_without_driver").unwrap();
    says(adapter, "about", &["0000:3b:00.0", "0x15b3:0x1021"]);
}

#[test]
fn an_empty_gid_table_is_named() {
    let finding = only("no-gid", "error", "no_gid");
    says(&finding, "action", &["ip addr add", "ens1f0"]);
}

#[test]
fn link_local_gids_alone_are_named() {
    let finding = only("link-local-gid", "warning", "link_local_gid_only");
    says(&finding, "found", &["2 GID(s), link-local only"]);
}

#[test]
fn two_copies_of_libmlx5_are_named_with_both_paths() {
    let finding = only("two-libmlx5", "error", "two_copies");
    says(&finding, "found", &["/opt/rdma-core/lib/libmlx5.so.1.25.58.0", "/libibverbs/libmlx5-rdmav34.so"]);
    says(&finding, "action", &["IBV_LIBMLX5"]);
}

#[test]
fn a_variable_that_providers_refuse_is_named_and_one_that_they_measure_is_not() {
    let finding = only("qp-signature", "error", "ring_variable");
    says(&finding, "found", &["MLX5_QP_SIGNATURE=1", "signature byte"]);
    says(&finding, "action", &["unset MLX5_QP_SIGNATURE"]);
}

#[test]
fn a_device_that_nobody_claims_is_named_with_every_reason() {
    let finding = only("claimed-by-nobody", "error", "not_claimed");
    says(&finding, "about", &["rdmap0s6", "efa"]);
    says(
        &finding,
        "found",
        &["mlx5: rdmap0s6 is no mlx5 device", "verbs: rdmap0s6 has a transport of its own"],
    );
}

#[test]
fn a_libefa_without_write_is_named_with_the_one_that_has_it() {
    let finding = only("efa-old-library", "warning", "no_one_sided");
    says(&finding, "about", &["rdmap0s6"]);
    says(
        &finding,
        "found",
        &["no RDMA write by provider efa", "libefa of rdma-core 44", "gets and sends only"],
    );
    says(&finding, "wanted", &["rdma-core 46 or newer"]);
}

#[test]
fn an_efa_device_without_rdma_is_told_from_an_old_library() {
    let finding = only("efa-no-rdma", "warning", "no_one_sided");
    says(&finding, "found", &["neither RDMA write nor RDMA read", "sends only"]);
    says(&finding, "action", &["update the kernel driver", "instance type"]);
}

#[test]
fn an_efa_adapter_on_a_kernel_without_its_module_is_named() {
    let (found, usable) = findings("efa-no-module");
    assert!(!usable);
    let module = found.iter().find(|f| f["cause"] == "module_missing").unwrap();
    says(module, "about", &["kernel module efa"]);
    says(module, "found", &["6.1.0-18-amd64 is installed without it"]);
    let adapter = found.iter().find(|f| f["cause"] == "adapter_without_driver").unwrap();
    says(adapter, "about", &["0000:00:06.0", "0x1d0f:0xefa2"]);
}

#[test]
fn a_missing_libefa_is_an_error_where_an_efa_device_is() {
    let (found, usable) = findings("efa-no-library");
    assert!(!usable);
    let library = found.iter().find(|f| f["cause"] == "library_missing").unwrap();
    says(library, "about", &["libefa.so.1"]);
    says(library, "action", &["ibverbs-providers", "IBV_LIBEFA"]);
    assert_eq!(found.len(), 1, "that nobody claims the device follows from it: {found:?}");
}

#[test]
fn a_person_reads_facts_findings_and_a_verdict() {
    let out = doctor().arg("--from").arg(fixture("port-down")).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let words = ["6.1.0-18-amd64", "libmlx5.so.1", "error: mlx5_0 port 1", "found:", "wanted:", "do:"];
    for word in words.into_iter().chain(["RDMA can not be used: 1 error(s), 0 warning(s)"]) {
        assert!(text.contains(word), "no {word} in {text}");
    }
    assert_eq!(out.status.code(), Some(5));
    let out = doctor().arg("--from").arg(fixture("healthy")).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && text.contains("RDMA can be used: 0 error(s), 0 warning(s)"), "{text}");
}

#[test]
fn files_that_are_no_facts_each_have_an_exit_code_and_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("facts.json");
    let deep = "[".repeat(100_000);
    let large = format!("\"{}\"", "a".repeat(5 << 20));
    let healthy = fs::read_to_string(fixture("healthy")).unwrap();
    for (text, code, words) in [
        ("", 50, "EOF"),
        ("no json", 50, "expected"),
        (&*deep, 50, "recursion limit"),
        (&*large, 50, "larger than"),
        ("{}", 50, "no version"),
        ("{\"version\": -1}", 50, "no version"),
        ("{\"version\": 1}", 50, "missing field"),
        ("{\"version\": 2, \"anything\": []}", 51, "version 2"),
        (&healthy.replace("\"active\"", "\"act\\u001b[31mive\""), 50, "unknown variant"),
        (&healthy.replace("0000:0000:0000:0000:0000:ffff", "zzzz"), 50, "gid zzzz"),
        (&healthy.replace("\"mtu\": 9000", "\"mtu\": 99999999999"), 50, "invalid value"),
    ] {
        fs::write(&path, text).unwrap();
        let out = doctor().arg("--from").arg(&path).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(code), "{words}: {said}");
        assert!(said.starts_with("error: ") && said.contains(words), "{words}: {said}");
        assert!(!said.contains('\u{1b}') && said.trim_end().lines().count() == 1, "{said:?}");
        assert!(out.stdout.is_empty());
    }
    for (path, code) in [(dir.path().join("none"), 10), (dir.path().to_owned(), 11)] {
        assert_eq!(doctor().arg("--from").arg(path).output().unwrap().status.code(), Some(code));
    }
    let nowhere = doctor().arg("--snapshot").arg(dir.path().join("none/facts.json")).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(52));
}

#[test]
fn a_snapshot_of_this_machine_is_judged_elsewhere_as_it_is_here() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("facts.json");
    let here = doctor().arg("--json").arg("--snapshot").arg(&path).output().unwrap();
    let there = doctor().arg("--json").arg("--from").arg(&path).output().unwrap();
    assert_eq!(here.stdout, there.stdout);
    assert_eq!(here.status, there.status);
    assert!(serde_json::from_slice::<Value>(&here.stdout).unwrap()["snapshot"]["kernel"].is_object());
}

/// What keeps this machine from using RDMA, where something does, is named.
#[test]
fn on_this_machine_the_verdict_fits_its_devices() {
    let out = doctor().arg("--json").output().unwrap();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let devices = report["snapshot"]["devices"].as_array().unwrap();
    let real = devices.iter().any(|d| d["kind"] != "mock");
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(!real, findings.iter().any(|f| f["cause"] == "no_device"), "{report}");
    assert!(real || out.status.code() == Some(5), "{report}");
    assert!(
        findings
            .iter()
            .all(|f| ["found", "wanted", "action"].iter().all(|k| !f[k].as_str().unwrap().is_empty()))
    );
}

#[test]
fn a_library_that_is_not_there_and_a_variable_that_is_set_are_found_live() {
    let out = doctor().arg("--json").env("IBV_LIBIBVERBS", "/nonexistent/libibverbs.so.1").output().unwrap();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let missing = findings.iter().find(|f| f["cause"] == "library_missing").unwrap();
    says(missing, "found", &["/nonexistent/libibverbs.so.1"]);
    assert_eq!(out.status.code(), Some(5));
    let out = doctor().arg("--json").env("MLX5_QP_SIGNATURE", "1").output().unwrap();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let set = report["findings"].as_array().unwrap().iter().find(|f| f["cause"] == "ring_variable").unwrap();
    says(set, "found", &["MLX5_QP_SIGNATURE=1"]);
}
