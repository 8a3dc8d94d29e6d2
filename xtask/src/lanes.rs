//! The lanes of `cargo xtask test`: what is checked, one function each. How they are chosen, timed and
//! summed up is `test.rs`'s.

use crate::{
    new_provider, pair, rdma_core, sanitizers,
    sh::{Result, cargo, debian_packages, nightly, program, root, run, succeeds, target},
    softnic, suite, tidy, vm,
    workspace::{FEATURES, cargo_all},
};

use std::{env, fs, path::Path};

/// Whose lane it is, which decides what "can not run here" means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// Everybody: in CI it must run.
    Everybody,
    /// Maintainers: needs something that not every machine can have, so it may stay out, visibly.
    Maintainers,
}

/// How a lane ended, when nothing failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    Passed,
    /// It can not run here, and why.
    Not(String),
}

pub(crate) struct Lane {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) whose: For,
    pub(crate) run: fn() -> Result<Ran>,
}

const fn everybody(name: &'static str, about: &'static str, run: fn() -> Result<Ran>) -> Lane {
    Lane { name, about, whose: For::Everybody, run }
}

const fn maintainers(name: &'static str, about: &'static str, run: fn() -> Result<Ran>) -> Lane {
    Lane { name, about, whose: For::Maintainers, run }
}

/// In the order they run: cheap and telling ones first.
pub(crate) const LANES: &[Lane] = &[
    everybody("fmt", "rustfmt agrees", fmt),
    everybody("tidy", "dependency arrows, unsafe files, sizes, words", || done(tidy::run(&[]))),
    everybody("clippy", "no lint, in any target", clippy),
    maintainers(
        "rdma-core",
        "builds a newer rdma-core than the system's, for the tests that run unmodified tools on both",
        newer_rdma_core,
    ),
    everybody("test", "unit and integration tests, all features", test),
    everybody("doctest", "examples in documentation and README", doctest),
    everybody(
        "bare",
        "builds with no C compiler, and with nothing of RDMA installed; asks for devices there",
        bare,
    ),
    everybody("abi", "bindings and inline functions against C, for each rdma-core in Debian", abi),
    everybody("doc", "documentation builds without a warning", doc),
    everybody("conformance", "the suite over every provider built in", conformance),
    everybody("mutants", "the suite catches every broken provider", mutants),
    everybody("devices", "`ibv devices` and `ibv doctor` on software devices of each kind", softnic::lane),
    everybody("two-processes", "a file crosses between processes on software ConnectX devices", pair::lane),
    everybody(
        "out-of-tree",
        "providers of somebody else's, the example and a new one, certified in their own workspaces",
        out_of_tree,
    ),
    everybody("loom", "every interleaving of credits and completion queues", loom),
    maintainers("bindgen", "the committed bindings are what the newest headers give", bindgen),
    maintainers("miri", "no undefined behaviour in the core and the mock", sanitizers::miri),
    maintainers("asan", "no bad access in the core and the mock, AddressSanitizer", sanitizers::asan),
    maintainers("tsan", "no data race in the core and the mock, ThreadSanitizer", sanitizers::tsan),
    maintainers(
        "valgrind",
        "no bad access in the core's and the mock's tests, memcheck",
        sanitizers::valgrind,
    ),
    maintainers("cost", "instructions a request and a completion cost", cost),
    maintainers(
        "vm",
        "the suite, and a file between two hosts, on a real kernel's Soft-RoCE in QEMU",
        vm::lane,
    ),
];

pub(crate) fn done(result: Result<()>) -> Result<Ran> {
    result.map(|()| Ran::Passed)
}

fn fmt() -> Result<Ran> {
    done(run(&mut cargo(["fmt", "--all", "--check"])))
}

fn clippy() -> Result<Ran> {
    let words = ["clippy", "--keep-going", "--all-targets"];
    done(run(cargo_all(words).args(["--", "-D", "warnings"])))
}

fn doc() -> Result<Ran> {
    done(run(cargo_all(["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings")))
}

/// Has nextest, which stops a test that hangs; cargo's own runner does not.
fn nextest() -> bool {
    succeeds(&mut cargo(["nextest", "--version"]))
}

/// Tests that are the suite on one provider, hundreds of cases each: a process for each case, as nextest has
/// it, takes longer than the case. Cases have deadlines of their own.
const SUITES: [&str; 4] = ["conformance", "mimic", "mock", "softnic"];
/// How long all of those may take, seconds.
const SUITES_LIMIT: &str = "600";

/// What tests compare with or run unmodified: the C compiler and headers, the vendor libraries, the tools.
const TESTS_NEED: [&str; 8] = [
    "gcc",
    "ibverbs-providers",
    "ibverbs-utils",
    "libc6-dev",
    "libfabric-bin",
    "libibverbs-dev",
    "perftest",
    "ucx-utils",
];

fn test() -> Result<Ran> {
    match debian_packages(&TESTS_NEED) {
        Err(why) if env::var_os("CI").is_some() => return Err(why),
        // Each test that misses something says so.
        Err(why) => eprintln!("going on without: {why}"),
        Ok(()) => {}
    }
    if !nextest() {
        return done(run(&mut cargo_all(["test", "--no-fail-fast", "--tests", "--bins", "--lib"])));
    }
    let suites = SUITES.map(|name| format!("binary({name})")).join(" | ");
    let others = format!("not (kind(test) & ({suites}))");
    let mut apart = cargo_all(["nextest", "run", "--no-fail-fast", "-E", &others]);
    // What was built for the tests has to be used by them.
    if env::var_os("CI").is_some() && rdma_core::is_built() {
        apart.env("IBV_REQUIRE", "softnic-tools");
    }
    let apart = run(&mut apart);
    let mut together = program("timeout", ["--kill-after=10", SUITES_LIMIT]);
    // Cargo passes `--quiet` on to what it runs.
    let cargo = cargo_all(["test", "--no-fail-fast", "--quiet"]);
    together.arg(cargo.get_program()).args(cargo.get_args());
    together.args(SUITES.iter().flat_map(|name| ["--test", *name]));
    let together = run(&mut together);
    apart.and(together)?;
    Ok(Ran::Passed)
}

fn doctest() -> Result<Ran> {
    done(run(&mut cargo_all(["test", "--doc"])))
}

/// Feature unification would hide a feature that is missing, and a C compiler one that is needed: each
/// crate by itself, with compilers that always fail.
fn bare() -> Result<Ran> {
    for package in ["ibv-core", "ibv-topology", "provider-mock"] {
        let check = ["check", "--package", package, "--no-default-features"];
        run(cargo(check).env("CC", "false").env("CXX", "false"))?;
    }
    // What must not compile was shown in the lane `test`, at length. The same build as the lane `valgrind`'s.
    let nextest_run = ["nextest", "run", "-E", "not binary(compile_fail)"];
    let runner: &[&str] = if nextest() { &nextest_run } else { &["test", "--tests"] };
    run(cargo(runner).args(sanitizers::PACKAGES))?;
    crate::abi::run(&["--bare".into()])?;
    // The whole workspace needs a C compiler, and nothing else.
    let mut hidden = program("bash", ["xtask/scripts/bare.sh", "--with-cc", "cargo", "build", "--workspace"]);
    done(run(hidden.current_dir(root()).args(["--features", FEATURES])))
}

fn abi() -> Result<Ran> {
    debian_packages(&["gcc", "libc6-dev"])?;
    done(crate::abi::run(&[]))
}

fn bindgen() -> Result<Ran> {
    done(crate::bindgen::run(&["--check".into()]).map_err(|e| e.to_string().into()))
}

/// Builds it, for the tests of the lane `test` too, which find it in the build folder; and what EFA can do only
/// there, for the system's libefa may have no RDMA write.
fn newer_rdma_core() -> Result<Ran> {
    if let Err(why) = rdma_core::run(&[]) {
        return Ok(Ran::Not(format!("no newer rdma-core to be had: {why}")));
    }
    let newest = ["--rdma-core", "newest", "--provider", "efa", "--require", "efa"];
    run(&mut suite::conformance(&newest.map(String::from))?)?;
    pair::efa()
}

fn conformance() -> Result<Ran> {
    let args = ["--provider", "mock", "--require", "mock"].map(String::from);
    done(run(&mut suite::conformance(&args)?))
}

fn mutants() -> Result<Ran> {
    done(run(&mut suite::mutants(&[])?))
}

fn out_of_tree() -> Result<Ran> {
    certified(&root().join("examples/out-of-tree-provider"))?;
    let fresh = target().join("provider-fresh");
    if fresh.exists() {
        fs::remove_dir_all(&fresh)?;
    }
    new_provider::write("fresh", &fresh)?;
    done(certified(&fresh))
}

/// Runs the tests of a provider in a workspace of its own.
fn certified(provider: &Path) -> Result<()> {
    let test = ["test", "--manifest-path"];
    run(cargo(test).arg(provider.join("Cargo.toml")).env("CARGO_TARGET_DIR", target().join("out-of-tree")))
}

/// The models are in `ibv-core/src/sync/loom.rs`, which says what each one shows.
fn loom() -> Result<Ran> {
    let models = ["test", "--package", "ibv-core", "--profile", "loom", "--lib", "loom"];
    done(run(cargo(models).env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target().join("loom"))))
}

fn cost() -> Result<Ran> {
    match debian_packages(&["valgrind", "ibverbs-providers", "libibverbs1"]) {
        Err(why) => Ok(Ran::Not(why.to_string())),
        Ok(()) => done(crate::bench::limits_kept()),
    }
}

/// Whether the nightly toolchain has a component's program.
pub(crate) fn nightly_has(args: &[&str]) -> bool {
    succeeds(&mut nightly(args))
}

/// Whether `name` can be run at all.
pub(crate) fn has_program(name: &str) -> bool {
    succeeds(&mut program(name, ["--version"]))
}
