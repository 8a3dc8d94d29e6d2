//! The built command: what it prints where, and its exit code for everything that can be wrong with a
//! file or an argument. Peers are in `sessions.rs`.

use assert_cmd::Command;
use std::{
    fs::{self, File, Permissions},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::Stdio,
};

fn ibv() -> Command {
    Command::cargo_bin("ibv").unwrap()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn file(folder: &Path, bytes: usize) -> std::path::PathBuf {
    let path = folder.join("source.bin");
    let content: Vec<u8> = (0..bytes).map(|i| ((i * 31) >> 3) as u8).collect();
    fs::write(&path, content).unwrap();
    path
}

/// Fails with `code`, says `words` on standard error and nothing on standard output.
fn fails(mut command: Command, code: i32, words: &str) {
    let out = command.output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(code), "{said}");
    assert!(said.starts_with("error: ") && said.contains(words), "{said}");
    assert!(out.stdout.is_empty(), "{:?}", String::from_utf8_lossy(&out.stdout));
}

fn transfer(path: &Path) -> Command {
    let mut command = ibv();
    command.arg("transfer").arg(path);
    command
}

#[test]
fn a_file_goes_there_and_back_with_equal_checksums() {
    let dir = folder();
    let out = transfer(&file(dir.path(), 100_001)).args(["--json", "--chunk", "4K"]).output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["equal"], true);
    assert_eq!(report["bytes"], 100_001);
    for way in ["put", "get"] {
        // 24 whole chunks and a last one, 16 to a doorbell.
        assert_eq!((&report[way]["requests"], &report[way]["bytes"]), (&25.into(), &100_001.into()));
        assert!(report[way]["doorbells"].as_u64().unwrap() >= 2);
        assert!(report[way]["gigabytes_per_second"].as_f64().unwrap() > 0.0);
    }
    let sums = &report["sha256"];
    assert!(sums["source"] == sums["destination"] && sums["source"] == sums["returned"], "{sums}");
    assert_eq!(report["provider"], "mock");
    assert_ne!(report["device"], report["peer_device"]);
}

#[test]
fn the_checksum_is_the_one_that_sha256sum_prints() {
    let dir = folder();
    let path = file(dir.path(), 12_345);
    let out = transfer(&path).arg("--json").output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let theirs = std::process::Command::new("sha256sum").arg(&path).output().unwrap();
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    assert!(theirs.starts_with(report["sha256"]["returned"].as_str().unwrap()), "{theirs} {report}");
}

#[test]
fn a_person_gets_a_table() {
    let dir = folder();
    let out = transfer(&file(dir.path(), 5000)).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && out.stderr.is_empty());
    for word in ["put", "get", "GB/s", "requests", "sha256 of the source", "checksums are equal"] {
        assert!(text.contains(word), "no {word} in {text}");
    }
}

#[test]
fn every_size_around_a_chunk_arrives() {
    let dir = folder();
    for bytes in [1, 4095, 4096, 4097, 8192, 1 << 20, (1 << 20) + 7] {
        let out =
            transfer(&file(dir.path(), bytes)).args(["--chunk", "4096", "--depth", "3"]).output().unwrap();
        assert!(out.status.success(), "{bytes}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn a_missing_file_is_code_10() {
    fails(transfer(Path::new("/nonexistent/file")), 10, "/nonexistent/file: no such file");
}

#[test]
fn an_unreadable_file_is_code_11() {
    let dir = folder();
    let path = file(dir.path(), 10);
    fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
    // Root may read everything, so the command runs as nobody, from where nobody may go.
    let program = dir.path().join("ibv");
    fs::copy(assert_cmd::cargo::cargo_bin("ibv"), &program).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let mut command = std::process::Command::new(program);
    command.arg("transfer").arg(&path);
    if fs::read(&path).is_ok() {
        command.uid(65534);
    }
    fails(Command::from_std(command), 11, "can not be read");
}

#[test]
fn a_directory_and_a_device_are_code_12() {
    let dir = folder();
    fails(transfer(dir.path()), 12, "is a directory");
    fails(transfer(Path::new("/dev/null")), 12, "is a device");
}

#[test]
fn an_empty_file_is_code_13() {
    let dir = folder();
    fails(transfer(&file(dir.path(), 0)), 13, "is empty");
}

#[test]
fn a_file_larger_than_memory_is_code_14_and_nothing_is_allocated() {
    let dir = folder();
    let path = dir.path().join("sparse");
    File::create(&path).unwrap().set_len(8 << 40).unwrap();
    fails(transfer(&path), 14, "bytes of registered memory are needed and");
}

#[test]
fn the_mock_does_not_join_two_processes_and_says_why() {
    let dir = folder();
    let path = file(dir.path(), 10);
    for end in [["--to", "127.0.0.1:9"], ["--listen", "127.0.0.1:0"]] {
        let mut command = transfer(&path);
        command.args(end);
        fails(command, 30, "its fabric lives inside one");
    }
    let mut named = transfer(&path);
    named.args(["--to", "127.0.0.1:9", "--provider", "mock"]);
    fails(named, 30, "provider mock can not join two processes");
}

#[test]
fn an_unknown_provider_or_device_is_code_3_and_says_which_there_are() {
    let dir = folder();
    let path = file(dir.path(), 10);
    let mut provider = transfer(&path);
    provider.args(["--provider", "nosuch"]);
    fails(provider, 3, "this build has: ");
    let mut device = transfer(&path);
    device.args(["--device", "nosuch0"]);
    fails(device, 3, "no provider claims nosuch0");
    let mut peer = transfer(&path);
    peer.args(["--peer-device", "nosuch1"]);
    fails(peer, 3, "nosuch1");
}

#[test]
fn a_depth_beyond_the_device_is_an_error_with_both_numbers() {
    let dir = folder();
    let mut command = transfer(&file(dir.path(), 10));
    command.args(["--depth", "4000000000"]);
    fails(command, 2, "--depth 4000000000: mock0 takes 1 to ");
}

#[test]
fn wrong_usage_is_code_2_and_names_option_and_value() {
    for (line, words) in [
        ("transfer", "<FILE>"),
        ("nonsense", "nonsense"),
        ("transfer f --chunk 0", "'--chunk <BYTES>': no bytes"),
        ("transfer f --chunk 1Q", "1Q is not a size"),
        ("transfer f --chunk -1", "'-1' for '--chunk <BYTES>': -1 is not a size"),
        ("transfer f --chunk 99999999999999999999", "is more than memory has addresses"),
        ("transfer f --chunk 99999999T", "is more than memory has addresses"),
        ("transfer f --depth -1", "'-1' for '--depth <N>'"),
        ("transfer f --listen a:1 --to b:1", "--to"),
        ("transfer f --listen a:1 --chunk 4K", "--chunk"),
        ("transfer f --listen a:1 --batch 4", "--batch"),
        ("transfer f --wait 1", "--listen"),
        ("devices --root elsewhere", "--near <PLACE>|--topology"),
        ("devices --near gpu:0 --topology", "--topology"),
        ("doctor --from f --snapshot f", "--snapshot"),
    ] {
        let out = ibv().args(line.split(' ')).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{line}: {said}");
        assert!(
            out.stdout.is_empty() && said.starts_with("error: ") && said.contains(words),
            "{line}: {said}"
        );
    }
}

#[test]
fn a_chunk_may_have_any_unit() {
    let dir = folder();
    let mut command = transfer(&file(dir.path(), 5000));
    let out = command.args(["--json", "--chunk", "1T"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(report["chunk"].as_u64() > Some(5000) && report["chunk"].as_u64() < Some(1 << 40), "{report}");
}

/// The commands that the help of `ibv` lists.
fn commands() -> Vec<String> {
    let help = String::from_utf8(ibv().arg("--help").output().unwrap().stdout).unwrap();
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| line.starts_with("  ")).filter(|line| !line.starts_with("   "));
    names
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .filter(|name| name != "help")
        .collect()
}

#[test]
fn the_help_of_every_command_has_examples_and_exit_codes() {
    let all = commands();
    assert!(
        ["devices", "doctor", "transfer", "perf", "decode", "conformance"]
            .iter()
            .all(|name| all.iter().any(|c| c == name))
    );
    for command in all.iter().map(|name| vec![&**name, "--help"]).chain([vec!["--help"]]) {
        let out = ibv().args(&command).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success() && out.stderr.is_empty(), "{command:?}");
        for words in ["Examples:", "Exit codes:"] {
            assert!(text.contains(words), "{command:?}: no {words} in {text}");
        }
        let named = format!("ibv {}", if command.len() == 2 { command[0] } else { "" });
        assert!(text[text.find("Examples:").unwrap()..].contains(&named), "{command:?}: {text}");
    }
}

#[test]
fn help_lists_every_exit_code() {
    let out = ibv().args(["transfer", "--help"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success());
    for (code, meaning) in ibv_tools::Failure::CODES {
        assert!(text.contains(&format!("{code:>3}  {meaning}")), "{code} is not in {text}");
    }
}

/// The exit code and what is said where standard output goes to `out`.
fn into(out: impl Into<std::process::Stdio>, args: &[&str]) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("ibv"));
    let ended = command.args(args).stdout(out).output().unwrap();
    (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
}

#[test]
fn a_reader_that_went_away_is_code_141_of_every_command_and_nothing_is_said() {
    let dir = folder();
    let source = file(dir.path(), 64).display().to_string();
    for args in [
        &["--help"][..],
        &["doctor", "--help"],
        &["devices"],
        &["devices", "--json"],
        &["devices", "--topology"],
        &["doctor"],
        &["doctor", "--json"],
        &["transfer", &source],
        &["transfer", &source, "--json"],
        &["perf", "write", "bw", "--loopback", "--provider", "mock", "-n", "5"],
        &["decode", &source],
        &["decode", &source, "--json"],
        &["conformance", "--help"],
        &["conformance", "--list"],
        &["conformance", "--provider", "mock", "--case", "put_of_no_bytes"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(into(writer, args), (Some(141), String::new()), "{args:?}");
    }
}

#[test]
fn output_that_can_not_be_written_is_code_1() {
    for args in [&["--help"][..], &["--version"], &["devices"], &["devices", "--json"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (code, said) = into(full, args);
        assert_eq!(code, Some(1), "{args:?}");
        assert!(said.starts_with("error: standard output: "), "{args:?}: {said}");
    }
}

#[test]
fn a_snapshot_that_can_not_be_written_is_code_52() {
    let out = ibv().args(["doctor", "--snapshot", "/dev/full"]).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.code() == Some(52) && said.contains("/dev/full: the snapshot can not be"), "{said}");
}

#[test]
fn devices_lists_ports_gids_and_capabilities() {
    let out = ibv().args(["devices", "--json"]).output().unwrap();
    let listing: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let providers = listing["providers"].as_array().unwrap();
    let provider = providers.iter().find(|p| p["name"] == "mock").unwrap();
    assert!(provider["error"].is_null());
    // Hardware's providers list devices or say why they can not look: none is left out.
    assert!(providers.iter().all(|p| p["devices"].is_array() && p.get("error").is_some()));
    let device = &provider["devices"][0];
    assert_eq!(
        (&device["name"], &device["kind"], &device["claimed"]),
        (&"mock0".into(), &"mock".into(), &true.into())
    );
    assert_eq!(device["caps"]["write"], "native");
    assert!(!device["ports"].as_array().unwrap().is_empty());
    let text = String::from_utf8(ibv().arg("devices").output().unwrap().stdout).unwrap();
    for word in
        ["provider mock", "mock0 (mock, in this process), claimed", "capability", "max_msg_size", "native"]
    {
        assert!(text.contains(word), "no {word} in {text}");
    }
}

#[test]
fn conformance_passes_arguments_on_and_prints_json_alone() {
    let out =
        ibv().args(["conformance", "--provider", "mock", "--case", "lifecycle", "--json"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let providers = report["providers"].as_array().unwrap();
    assert_eq!(providers.len(), 4, "two dispatches on two schedules");
    assert!(providers.iter().all(|p| p["failed"] == 0 && p["passed"].as_u64() > Some(0)), "{report}");
    let help = ibv().args(["conformance", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(["--junit", "Examples:", "Exit codes:"].iter().all(|part| help.contains(part)), "{help}");
    let unknown = ibv().args(["conformance", "--provider", "nosuch"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
}

#[test]
fn a_suite_of_no_case_or_with_nowhere_to_report_is_no_success() {
    let suite = |args: &[&str]| {
        let mut command = ibv();
        command.args(["conformance", "--provider", "mock"]).args(args);
        command
    };
    let typo = suite(&["--case", "no_such_case"]).output().unwrap();
    assert_eq!(typo.status.code(), Some(2));
    assert!(String::from_utf8(typo.stderr).unwrap().contains("no_such_case"));
    suite(&["--deadline", "18446744073709551615"]).assert().code(2);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("ibv"));
    command.args(["conformance", "--provider", "mock", "--case", "put_of_no_bytes", "--json"]);
    assert_eq!(command.stdout(full).status().unwrap().code(), Some(1));
    suite(&["--case", "put_of_no_bytes", "--junit", "/dev/full"]).assert().code(53);
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("ibv"));
    let mut listing =
        command.args(["conformance", "--list", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(listing.stdout.take());
    assert_eq!(listing.wait().unwrap().code(), Some(141));
}

#[test]
fn what_keeps_the_suite_from_running_is_said_once() {
    let suite =
        |args: &[&str]| ibv().args(["conformance", "--provider", "mock"]).args(args).output().unwrap();
    for (args, code) in [
        (&["--listen", "127.0.0.1:0"][..], 30),
        (&["--to", "127.0.0.1:1"], 30),
        (&["--to", "127.0.0.1"], 2),
        (&["--listen", "192.0.2.1:7471"], 20),
    ] {
        let out = suite(args);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!((out.status.code(), said.lines().count(), out.stdout.len()), (Some(code), 1, 0), "{said}");
    }
    let listed = suite(&["--list", "--json"]);
    let cases: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert!(cases.as_array().unwrap().iter().all(|c| c["name"].is_string() && c["group"].is_string()));
}
