//! A program in C that posts and polls through `rdmaxcel.h`, compiled here from `rdmaxcel-sys`' sources, on the system's
//! rdma-core and on a newer one. What it checks is in `rdmaxcel-sys/tests/c/loopback.c`.
//!
//! Without a C compiler or libibverbs' headers, the tests say so and pass; `IBV_REQUIRE=softnic-tools` makes that a failure.

mod programs;

use programs::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program, and its file, which goes with it.
#[derive(Debug)]
struct Program(PathBuf);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Compiled, once for every rdma-core: their interfaces are one. `None` where something is missing, which it says.
fn compiled() -> Option<Program> {
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let headers = ["-E", "-include", "infiniband/mlx5dv.h", "-x", "c", "/dev/null"];
    match Command::new(&cc).args(headers).output() {
        Err(e) => {
            missing(&format!("no C compiler: {cc}: {e}: apt-get install gcc libc6-dev"));
            return None;
        }
        Ok(out) if !out.status.success() => {
            let why = String::from_utf8_lossy(&out.stderr);
            missing(&format!("no headers of libibverbs and libmlx5: apt-get install libibverbs-dev: {why}"));
            return None;
        }
        Ok(_) => {}
    }
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rdmaxcel-sys");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("loopback-{}", session()));
    let mut command = Command::new(&cc);
    command.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-I", "include"]);
    command.args(["tests/c/loopback.c", "tests/c/device.c", "csrc/rdmaxcel.c"]);
    command.args(["-pthread", "-lmlx5", "-libverbs", "-o"]).arg(&out).current_dir(shim);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    Some(Program(out))
}

/// What it prints: a line when a thing was done and all about it was right.
const PRINTED: [&str; 11] = [
    "write: 256 bytes of 2 ranges",
    "read: 256 bytes",
    "inline: 64 bytes",
    "write with immediate: 256 bytes, immediate 0x1020304",
    "send: 256 bytes, immediate 0",
    "send with immediate: 256 bytes, immediate 0xfffefdfc",
    "fetch-add: 0x1223344556677889",
    "compare-swap: 42",
    "batch: a ring of 32 requests, 1 doorbell",
    "wraps: every ring 4 times",
    "error: syndrome 0x13, then 0x5",
];

#[test]
fn a_c_program_posts_and_polls_by_the_header_alone() {
    let Some(program) = compiled() else { return };
    let line = [program.0.to_str().unwrap()];
    let _turn = turn();
    for core in rdma_cores() {
        for link in ["ib", "roce"] {
            let env = [("SOFTNIC_STRICT", "1"), ("SOFTNIC_LINK", link)];
            // Breaches of the hardware's rules would be lines too.
            let printed = run_alone(&core, &line, &env);
            assert_eq!(printed.lines().collect::<Vec<_>>(), PRINTED, "{link}, {}", core.name);
        }
    }
}

/// Entries in a format that it did not ask for, and messages longer than the device takes.
const BROKEN: [(&str, &str, &str); 2] = [
    ("cqe = \"compressed\"", "", "write: the poll says -16: "),
    ("", "max_message = 128", "write: the poll says -17: "),
];

#[test]
fn what_differs_is_named_and_is_a_failure() {
    let Some(program) = compiled() else { return };
    let path = program.0.to_str().unwrap();
    let _turn = turn();
    let core = &rdma_cores()[0];
    for (device, port, said) in BROKEN {
        let file = program.0.with_extension("toml");
        let text = format!(
            "[[device]]\nname = \"mlx5_0\"\n{device}\n[[device.port]]\nlink = \"ib\"\nlid = 1\n{port}\n"
        );
        std::fs::write(&file, text).unwrap();
        failure(core, &[path], &[("SOFTNIC_DEVICES", file.to_str().unwrap())], said);
        std::fs::remove_file(&file).unwrap();
    }
    failure(core, &[path, "mlx5_7"], &[], "start: no mlx5 device mlx5_7 among 1\n");
}

/// It ends with 1, and has said this and nothing good.
fn failure(core: &RdmaCore, line: &[&str], env: &[(&str, &str)], said: &str) {
    let child = Reaped(on_device(core, line, &session(), env).spawn().unwrap());
    let Ended { what, status, late, printed } = ended(child, format!("{line:?} on {}", core.name));
    assert!(!late && status.code() == Some(1), "{what}: {status}: {printed}");
    assert!(printed.starts_with(said), "{what}: {printed}, not {said}");
}
