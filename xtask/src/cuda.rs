//! The step that compiles the C header for GPUs: nvcc from Python's packages, in a folder of its own, and the test
//! that looks at the PTX. Nothing else ever needs nvcc.

use crate::{
    lanes::{Ran, done},
    sh::{Result, cargo, program, run, succeeds, target},
};
use std::path::{Path, PathBuf};

/// A compiler, and what it includes and calls. The index is the one that pip is configured for.
const WHEELS: [&str; 5] =
    ["nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl"];

/// Runs the step.
pub(crate) fn step() -> Result<Ran> {
    let folder = target().join("cuda");
    let nvcc = match nvcc(&folder) {
        Some(nvcc) => nvcc,
        None => {
            if let Err(why) = install(&folder) {
                return Ok(Ran::Not(format!("no nvcc to be had: {why}")));
            }
            match nvcc(&folder) {
                Some(nvcc) => nvcc,
                None => return Ok(Ran::Not(format!("{} bring no nvcc", WHEELS.join(", ")))),
            }
        }
    };
    let test = ["test", "--package", "rdmaxcel-sys", "--features", "cuda", "--test", "shim", "a_kernel"];
    done(run(cargo(test).env("NVCC", nvcc).env("RDMAXCEL_REQUIRE", "ptx")))
}

/// A virtual environment with the wheels.
fn install(folder: &Path) -> Result<()> {
    let python = folder.display().to_string();
    run(&mut program("python3", ["-m", "venv", &python]))?;
    let pip = folder.join("bin/pip").display().to_string();
    run(program(&pip, ["install", "--quiet"]).args(WHEELS))
}

/// The compiler in the environment, if it runs: `lib/pythonX.Y/site-packages/nvidia/VERSION/bin/nvcc`.
fn nvcc(folder: &Path) -> Option<PathBuf> {
    let mut found = Vec::new();
    let mut look = vec![(folder.join("lib"), 0)];
    while let Some((at, depth)) = look.pop() {
        for entry in at.read_dir().into_iter().flatten().flatten() {
            let path = entry.path();
            if path.ends_with("bin/nvcc") {
                found.push(path);
            } else if depth < 6 && path.is_dir() {
                look.push((path, depth + 1));
            }
        }
    }
    found.sort();
    found.pop().filter(|nvcc| succeeds(&mut program(&nvcc.display().to_string(), ["--version"])))
}
