//! A perftest that fits a newer rdma-core, from Debian's own source package: that of Debian 12 knows no WRITE of EFA. Built by
//! `cargo xtask rdma-core`; what runs it is the tests' business.

use std::path::{Path, PathBuf};

use crate::debian::SUITES;
use crate::{rdma_core, sh};

/// What it builds with.
const BUILD_PACKAGES: [&str; 6] = ["autoconf", "automake", "gcc", "libpci-dev", "libtool", "make"];

/// The tools that are used here.
const TOOLS: [&str; 6] =
    ["ib_read_bw", "ib_read_lat", "ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat"];

/// A driver that a build of rdma-core may have as a library, but not as a header.
const FOREIGN: &str = "ac_cv_lib_hns_hnsdv_query_device=no";

/// Builds the newest version's tools over a build of rdma-core, unless that was done before; gives their folder.
pub(crate) fn build(rdma_core: &Path) -> sh::Result<PathBuf> {
    let _held = rdma_core::lock()?;
    sh::debian_packages(&BUILD_PACKAGES)?;
    let archive = rdma_core::archive()?;
    let versions = archive.source_versions("perftest")?;
    let newest = SUITES.iter().rev().find_map(|suite| versions.iter().find(|v| v.suite == *suite));
    let version = newest.ok_or("no suite has a source package of perftest")?;
    let source = rdma_core::source(&archive, "perftest", version, &sh::target().join("perftest"))?;
    let stamp = source.join(".built");
    if !stamp.exists() {
        compile(&source, rdma_core)?;
        std::fs::write(stamp, &version.full)?;
    }
    Ok(source)
}

fn compile(source: &Path, rdma_core: &Path) -> sh::Result<()> {
    let include = format!("CPPFLAGS=-I{}", rdma_core.join("include").display());
    let library = format!("LDFLAGS=-L{}", rdma_core.join("lib").display());
    let run = |name: &str, args: &[&str]| sh::run_aside(sh::program(name, args).current_dir(source));
    run("sh", &["autogen.sh"])?;
    run("sh", &["configure", "--quiet", &include, &library, FOREIGN])?;
    run("make", &[&["-s", "-j2"], &TOOLS[..]].concat())
}
