//! The maintainers' lanes over the core and the mock: Miri, AddressSanitizer, ThreadSanitizer, valgrind.
//! Each looks first whether it can run here, and says what is missing.

use crate::{
    lanes::{Ran, done, has_program, nightly_has},
    sh::{Result, cargo, debian_packages, nightly, output, program, run, target},
};
use std::path::{Path, PathBuf};

/// Where unsafe code meets memory and nothing of a vendor's is needed.
pub(crate) const PACKAGES: [&str; 4] = ["--package", "ibv-core", "--package", "provider-mock"];

/// Random tests are a hundred times slower under an interpreter.
const FEW_CASES: (&str, &str) = ("PROPTEST_CASES", "8");

pub(crate) fn miri() -> Result<Ran> {
    if !nightly_has(&["miri", "--version"]) {
        let why = "the nightly toolchain has no miri; rustup +nightly component add miri rust-src";
        return Ok(Ran::Not(why.into()));
    }
    let test = nightly(["miri", "test"])
        .args(PACKAGES)
        .args(["--lib", "--tests"])
        .env("MIRIFLAGS", "-Zmiri-strict-provenance -Zmiri-disable-isolation")
        .env("CARGO_TARGET_DIR", target().join("miri"))
        .env(FEW_CASES.0, FEW_CASES.1)
        .status()?;
    if test.success() { Ok(Ran::Passed) } else { Err(format!("miri: {test}").into()) }
}

/// Leaks are not looked for: tests forget regions, pollers and batches on purpose.
pub(crate) fn asan() -> Result<Ran> {
    instrumented(
        "asan",
        "-Zsanitizer=address",
        &[],
        &[("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1")],
    )
}

/// The standard library has to be instrumented too: else its own synchronisation, the test harness's
/// included, is reported as races.
pub(crate) fn tsan() -> Result<Ran> {
    if !has_rust_src() {
        let why = "the nightly toolchain has no rust-src to instrument the standard library with; rustup +nightly component add rust-src";
        return Ok(Ran::Not(why.into()));
    }
    instrumented("tsan", "-Zsanitizer=thread", &["-Zbuild-std"], &[])
}

fn has_rust_src() -> bool {
    let sysroot = output(&mut program("rustc", ["+nightly", "--print", "sysroot"]));
    sysroot.is_ok_and(|path| Path::new(path.trim()).join("lib/rustlib/src/rust/library").is_dir())
}

fn instrumented(name: &str, flags: &str, build: &[&str], env: &[(&str, &str)]) -> Result<Ran> {
    let Ok(version) = output(&mut nightly(["--version", "--verbose"])) else {
        return Ok(Ran::Not("there is no nightly toolchain; rustup toolchain install nightly".into()));
    };
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    if host != "x86_64-unknown-linux-gnu" && host != "aarch64-unknown-linux-gnu" {
        return Ok(Ran::Not(format!("sanitizers are for Linux with glibc, this host is {host}")));
    }
    // With --target, the flags spare build scripts and procedural macros.
    let mut test = nightly(["test", "--target", host, "--lib", "--tests"]);
    test.args(build).args(PACKAGES).env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", target().join(name));
    done(run(test.envs(env.iter().copied()).env(FEW_CASES.0, FEW_CASES.1)))
}

pub(crate) fn valgrind() -> Result<Ran> {
    if !has_program("valgrind")
        && let Err(why) = debian_packages(&["valgrind"])
    {
        return Ok(Ran::Not(why.to_string()));
    }
    for test in test_programs()? {
        let options = ["--quiet", "--error-exitcode=9", "--leak-check=no", "--fair-sched=yes"];
        let mut command = program("valgrind", options);
        // It runs one thread at a time, so a test of two that wait for each other outlasts its deadline;
        // those are AddressSanitizer's.
        run(command
            .arg(test)
            .args(["--test-threads=1", "--quiet", "--skip", "thread"])
            .env(FEW_CASES.0, FEW_CASES.1))?;
    }
    Ok(Ran::Passed)
}

/// Builds the tests without running them; cargo says as JSON, one message a line, where they are.
fn test_programs() -> Result<Vec<PathBuf>> {
    let build = ["test", "--no-run", "--lib", "--tests", "--quiet", "--message-format=json"];
    let messages = output(cargo(build).args(PACKAGES))?;
    let program = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().filter(|_| message["profile"]["test"] == true).map(PathBuf::from)
    };
    let programs: Vec<_> = messages.lines().filter_map(program).collect();
    if programs.is_empty() { Err("cargo built no test program".into()) } else { Ok(programs) }
}
