//! `cargo xtask full`: what is too slow for each change and rarely breaks, run before an issue is called resolved.
//! A step is a lane that CI does not run; how steps are chosen, timed and summed up is `test.rs`'s.

use crate::{
    lanes::{For, Lane, Ran, done},
    pair,
    sh::{Result, cargo, nightly, output, program, root, run, succeeds, target},
    test::Course,
    vm,
    workspace::{FEATURES, cargo_all, program_of_ours},
};
use std::{fs, path::PathBuf};

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
    step("differential", "thousands of generated programs against the model", differential),
    step("transfer-100mb", "100 MB between two processes, each pair of providers", transfer),
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
    let deny = match tool("cargo-deny") {
        Ok(deny) => deny,
        Err(why) => return Ok(Ran::Not(why)),
    };
    let checks = ["check", "bans", "licenses", "sources"];
    done(run(program(&deny.display().to_string(), checks).env("CARGO", "cargo")))
}

/// Without tests' dependencies, which would bring their own features.
fn features() -> Result<Ran> {
    let hack = match tool("cargo-hack") {
        Ok(hack) => hack,
        Err(why) => return Ok(Ran::Not(why)),
    };
    let words = ["hack", "check", "--quiet", "--workspace", "--exclude", "xtask"];
    let pairs = ["--feature-powerset", "--depth", "2", "--no-dev-deps"];
    let mut check = program(&hack.display().to_string(), words);
    // It takes the dependencies of tests out of the manifests for a while, so it has a copy of them.
    done(run(check.args(pairs).current_dir(copy("features")?).env("CARGO_TARGET_DIR", target().join("full"))))
}

/// A maintainers' program, built once.
///
/// # Errors
/// Why it can not be had.
fn tool(name: &str) -> std::result::Result<PathBuf, String> {
    let folder = target().join("full/tools");
    let file = folder.join("bin").join(name);
    if succeeds(&mut program(name, ["--version"])) {
        return Ok(name.into());
    }
    if !file.exists() {
        let install = ["install", "--quiet", "--locked", "--root", &folder.display().to_string(), name];
        let separate = target().join("full/tools/build");
        run(cargo(install).env("CARGO_TARGET_DIR", separate))
            .map_err(|e| format!("{name} is not installed and can not be: {e}"))?;
    }
    Ok(file)
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

fn differential() -> Result<Ran> {
    let ibv = program_of_ours("ibv")?.display().to_string();
    let args = ["conformance", "--provider", "mock", "--case", "write", "--differential", "2000"];
    done(run(&mut program(&ibv, args)))
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
