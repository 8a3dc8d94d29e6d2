//! `cargo xtask abi --oracle`: the bindings against those that the rdma-sys crate makes, with its own bindgen, of
//! the installed headers.

use crate::sh::{self, Result};

/// What rdma-sys needs to build.
const PACKAGES: [&str; 4] = ["libibverbs-dev", "librdmacm-dev", "libclang-dev", "pkg-config"];

pub fn run() -> Result<()> {
    sh::debian_packages(&PACKAGES)?;
    let test =
        ["test", "--package", "ibv-sys", "--features", "rdma-sys", "--test", "oracle", "--", "--nocapture"];
    sh::run(&mut sh::cargo(test))
}
