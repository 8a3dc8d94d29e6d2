//! What the environment asks of a preloaded machine: what can't be is said with what can, and ends the program, which would
//! else see a host without devices.

mod programs;

use std::path::{Path, PathBuf};
use std::process::Output;

use programs::*;

/// Runs a program on devices with these variables, whatever comes of it.
fn run(line: &[&str], env: &[(&str, &str)]) -> Output {
    on_device(&RdmaCore { name: "the system's rdma-core".into(), build: None }, line, &session(), env)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder of this test's own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("softnic-environment-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_value_that_can_not_be_is_named_with_those_that_can() {
    let flags = ["SOFTNIC_STRICT", "SOFTNIC_COUNT_DOORBELLS", "SOFTNIC_PRELOAD", "SOFTNIC_DEBUG"];
    let flags = flags.map(|name| (name, "banana", "0 or 1"));
    let others = [
        ("SOFTNIC_COUNT", "foo", "a number from 1 to 64"),
        ("SOFTNIC_COUNT", "0", "a number from 1 to 64"),
        ("SOFTNIC_COUNT", "65", "a number from 1 to 64"),
        ("SOFTNIC_DEVICE", "cx9", "mlx5 or efa"),
        ("SOFTNIC_LINK", "token-ring", "ib or roce"),
        ("SOFTNIC_ABI", "old", "native or invoke or write"),
        (
            "SOFTNIC_DEVICES",
            "/nonexistent",
            "a file that can be read (No such file or directory (os error 2))",
        ),
    ];
    for (name, value, can) in flags.into_iter().chain(others) {
        let output = run(&["true"], &[(name, value)]);
        let expected = format!("softnic: start softnic: {name} is {value:?}, and must be {can}\n");
        assert_eq!((output.status.code(), said(&output)), (Some(1), expected));
    }
}

#[test]
fn zero_and_nothing_are_off() {
    if !has("ibv_devinfo") {
        return;
    }
    let devices = |env: &[(&str, &str)]| {
        let output = run(&["ibv_devinfo"], env);
        (String::from_utf8_lossy(&output.stdout).contains("SOFTNIC_MLX5"), said(&output))
    };
    for value in ["0", ""] {
        let quiet = [("SOFTNIC_STRICT", value), ("SOFTNIC_DEBUG", value), ("SOFTNIC_COUNT", "")];
        assert_eq!(devices(&quiet), (true, String::new()));
        assert!(!devices(&[("SOFTNIC_PRELOAD", value)]).0, "SOFTNIC_PRELOAD={value}");
    }
}

#[test]
fn a_temporary_folder_that_is_not_there_is_named_and_not_made() {
    if !has("ibv_devices") {
        return;
    }
    let folder = Folder::new("tmp");
    let missing = folder.0.join("missing");
    let output = run(&["ibv_devices"], &[("TMPDIR", missing.to_str().unwrap())]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    for part in ["start softnic: ", missing.to_str().unwrap(), "No such file or directory", "TMPDIR"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!missing.exists());
}

#[test]
fn a_start_that_fails_leaves_nothing_behind() {
    if !has("ibv_devices") {
        return;
    }
    let folder = Folder::new("left");
    let (tmp, trace) = (folder.0.to_str().unwrap(), folder.0.join("no/such/trace"));
    let output = run(&["ibv_devices"], &[("TMPDIR", tmp), ("SOFTNIC_TRACE", trace.to_str().unwrap())]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let left: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_description_that_can_not_be_is_named_with_its_file() {
    let folder = Folder::new("devices");
    let file = folder.0.join("d.toml");
    let device = |name: &str, more: &str| format!("[[device]]\nname = {name:?}\nkind = \"efa\"\n{more}\n");
    let twice = device("rdmap0s6", "") + &device("rdmap0s6", "");
    for (text, why) in [
        ("devices".to_owned(), "TOML parse error"),
        (twice, "device 1: name \"rdmap0s6\" is that of device 0 too"),
        (device("a", "efa = { min_sq_wr = 5000 }"), "device a: min_sq_wr 5000 is not 0 to 4096"),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = run(&["true"], &[("SOFTNIC_DEVICES", file.to_str().unwrap())]);
        let told = said(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(&format!("{file:?} (SOFTNIC_DEVICES): ")) && told.contains(why), "{told}");
    }
    // A name is enough.
    std::fs::write(&file, device("rdmap7s6", "")).unwrap();
    assert!(run(&["true"], &[("SOFTNIC_DEVICES", file.to_str().unwrap())]).status.success());
}

#[test]
fn a_trace_that_can_not_be_written_is_said_once() {
    if !has("ibv_devinfo") || !Path::new("/dev/full").exists() {
        return;
    }
    for name in ["SOFTNIC_TRACE", "SOFTNIC_TRACE_TEXT"] {
        let output = run(&["ibv_devinfo"], &[(name, "/dev/full")]);
        let told = said(&output);
        assert!(output.status.success(), "it costs the trace alone: {told}");
        let why = "trace to \"/dev/full\": No space left on device (os error 28); its rest is lost";
        assert_eq!(told.matches(why).count(), 1, "{told}");
    }
}
