//! Compiles the shim with the host's C compiler, and with feature `cuda` the header for GPUs.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=csrc");
    println!("cargo::rerun-if-changed=include");
    println!("cargo::rustc-check-cfg=cfg(rdmaxcel_ptx)");
    cc::Build::new()
        .file("csrc/rdmaxcel.c")
        .include("include")
        .std("c11")
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .compile("rdmaxcel");
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        ptx();
    }
}

/// The kernels as PTX in the output folder; a warning where there is no nvcc.
fn ptx() {
    println!("cargo::rerun-if-env-changed=NVCC");
    let nvcc = env::var("NVCC").unwrap_or_else(|_| "nvcc".into());
    let out = Path::new(&env::var("OUT_DIR").unwrap_or_default()).join("rdmaxcel.ptx");
    let mut command = Command::new(&nvcc);
    command.args([
        "-ptx",
        "-arch=sm_90",
        "-std=c++17",
        "-DRDMAXCEL_CUDA",
        "-Iinclude",
        "csrc/rdmaxcel.cu",
        "-o",
    ]);
    match command.arg(&out).status() {
        Ok(status) if status.success() => println!("cargo::rustc-cfg=rdmaxcel_ptx"),
        Ok(status) => println!("cargo::error={nvcc}: {status}"),
        Err(e) => println!("cargo::warning=no PTX: {nvcc}: {e}; set NVCC"),
    }
}
