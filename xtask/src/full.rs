//! `cargo xtask full`: what is too slow for each change and rarely breaks, run before an issue is called resolved.
//! A step is a lane that CI does not run; how steps are chosen, timed and summed up is `test.rs`'s.

use crate::{
    cuda,
    lanes::{For, Lane, Ran, done},
    pair,
    sh::{Result, cargo, nightly, output, program, root, run, succeeds, target},
    suite,
    test::Course,
    vm,
    workspace::{FEATURES, cargo_all, program_of_ours},
};
use std::{env, fs, path::PathBuf, process::Command};

const USAGE: &str = "usage: cargo xtask full [--list] [--step NAME]...

Runs every step, or those named. Never asks anything. Tools that a step needs and cargo can build are built in
target/full; a step that can not run here says why. `cargo xtask test` runs everything else.";

const fn step(name: &'static str, about: &'static str, run: fn() -> Result<Ran>) -> Lane {
    Lane { name, about, whose: For::Maintainers, run }
}

/// In the order they run: what fails soonest first.
pub(crate) const STEPS: &[Lane] = &[
    step("deny", "licences, duplicates and sources of dependencies", deny),
    step("features", "each pair of features compiles, for each crate", features),
    step("minimal", "the oldest version of each dependency that is asked for compiles", minimal),
    step("oracle", "layouts against the rdma-sys crate", || abi("--oracle")),
    step("abi-aarch64", "layouts against C for the other architecture, under an emulator", || {
        abi("--aarch64")
    }),
    step("many", "2^20 operations through provider-mlx5, each completion once and in order", many),
    step(
        "kill",
        "200 processes killed at random moments, either side: the other is told, nothing is left",
        kill,
    ),
    step(
        "scale",
        "2^20 operations between 64 software devices, everybody to everybody, every byte and count right",
        scale,
    ),
    step(
        "differential",
        "hundreds of generated programs against the model, on each of the mock's schedules and on software devices",
        differential,
    ),
    step("transfer-100mb", "100 MB between two processes, each pair of providers", transfer),
    step("cuda", "the C header compiles for GPUs, to PTX", cuda::step),
    step("perf", "`ibv perf` needs no more instructions a message than perftest, setting by setting", || {
        done(crate::bench::run_bench(&["--perf".into()]))
    }),
    step("vm-newer", "the suite on the Soft-RoCE of a newer kernel", newer_kernel),
];

/// Runs the command.
pub(crate) fn run_full(args: &[String]) -> Result<()> {
    Course { what: "step", usage: USAGE, lanes: STEPS }.run(args)
}

fn abi(what: &str) -> Result<Ran> {
    done(crate::abi::run(&[what.into()]))
}

/// Advisories need a database from the network, which `cargo deny check advisories` fetches; the other three need none.
fn deny() -> Result<Ran> {
    with("cargo-deny", |cargo| run(cargo.args(["deny", "check", "bans", "licenses", "sources"])))
}

/// Without tests' dependencies, which would bring their own features.
fn features() -> Result<Ran> {
    with("cargo-hack", |cargo| {
        let words = ["hack", "check", "--quiet", "--workspace", "--exclude", "xtask"];
        let pairs = ["--feature-powerset", "--depth", "2", "--no-dev-deps"];
        // It takes the dependencies of tests out of the manifests for a while, so it has a copy of them.
        let folder = copy("features")?;
        run(cargo.args(words).args(pairs).current_dir(folder).env("CARGO_TARGET_DIR", target().join("full")))
    })
}

/// Runs a cargo that has this subcommand, which is built where it is not installed.
fn with(tool: &str, body: impl FnOnce(&mut Command) -> Result<()>) -> Result<Ran> {
    let folder = target().join("full/tools");
    let path = env::var("PATH").unwrap_or_default();
    let path = format!("{path}:{}", folder.join("bin").display());
    let subcommand = tool.trim_start_matches("cargo-");
    if !succeeds(cargo([subcommand, "--version"]).env("PATH", &path)) {
        let install = ["install", "--quiet", "--locked", "--root", &folder.display().to_string(), tool];
        if let Err(why) = run(cargo(install).env("CARGO_TARGET_DIR", folder.join("build"))) {
            return Ok(Ran::Not(format!("{tool} is not installed and can not be: {why}")));
        }
    }
    done(body(cargo([""; 0]).env("PATH", path)))
}

/// The versions that manifests ask for, by a lock file of its own. What those ask for in turn may be newer.
fn minimal() -> Result<Ran> {
    if !succeeds(&mut nightly(["--version"])) {
        return Ok(Ran::Not("there is no nightly toolchain; rustup toolchain install nightly".into()));
    }
    let copy = copy("minimal")?;
    run(nightly(["update", "--quiet", "-Z", "direct-minimal-versions"]).current_dir(&copy))?;
    let check = ["check", "--quiet", "--locked", "--workspace", "--all-targets", "--features", FEATURES];
    done(run(cargo(check).current_dir(&copy).env("CARGO_TARGET_DIR", target().join("full"))))
}

/// The workspace's files as they are now, without what was built from them.
fn copy(name: &str) -> Result<PathBuf> {
    let to = target().join("full").join(name);
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    let list = output(&mut program("git", ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))?;
    for file in list.split('\0').filter(|file| root().join(file).is_file()) {
        let into = to.join(file);
        fs::create_dir_all(into.parent().ok_or("a file of no folder")?)?;
        fs::copy(root().join(file), into)?;
    }
    Ok(to)
}

fn many() -> Result<Ran> {
    let test = ["test", "--release", "--package", "provider-mlx5", "--test", "many"];
    done(run(cargo(test).env("IBV_OPERATIONS", (1 << 20).to_string())))
}

fn kill() -> Result<Ran> {
    done(run(cargo_all(["test", "--test", "kill"]).env("SOFTNIC_KILLS", "200")))
}

fn scale() -> Result<Ran> {
    let test = ["test", "--release", "--package", "softnic", "--test", "scale"];
    done(run(cargo(test).env("SOFTNIC_OPERATIONS", "1048576")))
}

fn differential() -> Result<Ran> {
    let ibv = program_of_ours("ibv")?.display().to_string();
    let args = ["conformance", "--provider", "mock", "--case", "write", "--differential", "500"];
    run(&mut program(&ibv, args))?;
    let on_devices = |words: &[&str]| {
        let of_all = ["--case", "write", "--differential", "100"];
        let args: Vec<_> = words.iter().chain(&of_all).map(|word| word.to_string()).collect();
        run(&mut suite::conformance(&args)?)
    };
    on_devices(&["--softnic", "--provider", "mlx5", "--require", "mlx5"])?;
    on_devices(&["--softnic", "--provider", "verbs", "--require", "verbs"])?;
    done(on_devices(&["--rdma-core", "newest", "--provider", "efa", "--require", "efa"]))
}

/// This program once more, so that the lane reads the length from its environment.
fn transfer() -> Result<Ran> {
    let this = crate::sh::this_program()?.display().to_string();
    let lane = ["test", "--lane", "two-processes"];
    done(run(program(&this, lane).env(pair::BYTES, "100000000").env_remove("IBV_MINUTES")))
}

fn newer_kernel() -> Result<Ran> {
    let arguments = ["--suite", "trixie", "conformance"].map(String::from);
    done(vm::run(&arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_manifests_and_nothing_that_was_built() {
        let copy = copy("test-of-copy").unwrap();
        let has = |file: &str| copy.join(file).exists();
        let found = (has("Cargo.toml"), has("xtask/src/full.rs"), has("target"), has(".git"));
        fs::remove_dir_all(&copy).unwrap();
        assert_eq!(found, (true, true, false, false));
    }
}
