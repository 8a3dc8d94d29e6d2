//! rdma-core's headers and libraries at every version that Debian's suites have, unpacked in the build folder.
//! Holds no knowledge of what is in them.

use std::error::Error;
use std::path::PathBuf;

use crate::debian::{Archive, Version};
use crate::sh;

/// One rdma-core version for one architecture.
#[derive(Debug, Clone)]
pub struct RdmaCore {
    /// The upstream version, `65.0`.
    pub version: String,
    /// The Debian suite it came from.
    pub suite: String,
    /// The folder to give to a compiler as `-I`.
    pub include: PathBuf,
    #[cfg_attr(not(feature = "bindgen"), allow(dead_code))]
    /// The folder of `libibverbs.so.1` and the provider libraries.
    pub libraries: PathBuf,
}

/// The packages with the headers, libibverbs, and the provider libraries.
const PACKAGES: [&str; 3] = ["libibverbs-dev", "libibverbs1", "ibverbs-providers"];

#[cfg(feature = "bindgen")]
/// The C library's and the kernel's headers, for a cross compiler without its own.
const C_PACKAGES: [&str; 2] = ["libc6-dev", "linux-libc-dev"];

/// Opens the Debian archive with its lists in the build folder.
pub fn archive() -> Result<Archive, Box<dyn Error>> {
    Archive::open(&sh::target().join("debian"))
}

/// Fetches every version for an architecture (`amd64`, `arm64`), oldest first.
pub fn fetch(archive: &Archive, architecture: &str) -> Result<Vec<RdmaCore>, Box<dyn Error>> {
    let versions = archive.versions(PACKAGES[0], architecture)?;
    if versions.is_empty() {
        return Err(format!("Debian has no {} for {architecture}", PACKAGES[0]).into());
    }
    versions.iter().map(|version| unpack(archive, architecture, version)).collect()
}

fn unpack(archive: &Archive, architecture: &str, version: &Version) -> Result<RdmaCore, Box<dyn Error>> {
    let folder = sh::target().join("rdma-core-headers").join(folder_name(architecture, version));
    for package in PACKAGES {
        archive.unpack(package, architecture, version, &folder)?;
    }
    Ok(RdmaCore {
        version: version.upstream().to_owned(),
        suite: version.suite.clone(),
        include: folder.join("usr/include"),
        libraries: folder.join("usr/lib").join(multiarch(architecture)),
    })
}

fn folder_name(architecture: &str, version: &Version) -> String {
    match architecture {
        "amd64" => version.upstream().to_owned(),
        other => format!("{}-{other}", version.upstream()),
    }
}

#[cfg(feature = "bindgen")]
/// Fetches the C library's headers for an architecture; gives the folders for `-isystem`.
pub fn c_headers(archive: &Archive, architecture: &str) -> Result<[PathBuf; 2], Box<dyn Error>> {
    let folder = sh::target().join("c-headers").join(architecture);
    for package in C_PACKAGES {
        let versions = archive.versions(package, architecture)?;
        // The oldest suite's: the C library's layouts are the same in all of them.
        let version =
            versions.first().ok_or_else(|| format!("Debian has no {package} for {architecture}"))?;
        archive.unpack(package, architecture, version, &folder)?;
    }
    let include = folder.join("usr/include");
    Ok([include.join(multiarch(architecture)), include])
}

fn multiarch(architecture: &str) -> &str {
    match architecture {
        "amd64" => "x86_64-linux-gnu",
        "arm64" => "aarch64-linux-gnu",
        other => other,
    }
}
