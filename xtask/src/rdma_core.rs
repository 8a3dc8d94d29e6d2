//! `cargo xtask rdma-core`: builds a newer rdma-core than the system's, beside it, from Debian's own source package. Does not
//! install anything over the system's libraries; who uses the build says so with a library path.

use std::path::{Path, PathBuf};

use crate::debian::{Archive, SUITES, Version};
use crate::lock::Lock;
use crate::{perftest, sh};

const USAGE: &str = "usage: cargo xtask rdma-core [--suite SUITE] [--list]

Downloads the rdma-core source package of a Debian suite (the newest one known, unless --suite names another),
builds libibverbs, librdmacm, the providers mlx5, efa and rxe, and the tools of ibverbs-utils in target/rdma-core, and
prints the folder; then a perftest that fits it, in target/perftest. Uses the system's apt configuration with
another suite; installs the build's own tools (cmake, ninja, headers of libnl, autotools) where they are missing.

To run a program on it: LD_LIBRARY_PATH=FOLDER/lib PATH=FOLDER/bin:$PATH";

/// What Debian's package builds with, less the documentation and the Python bindings.
const BUILD_PACKAGES: [&str; 8] = [
    "cmake",
    "ninja-build",
    "pkg-config",
    "gcc",
    "libc6-dev",
    "libnl-3-dev",
    "libnl-route-3-dev",
    "dpkg-dev",
];

/// What of it is used here, by folder or by name; the whole takes four times as long.
const PARTS: [&str; 7] = [
    "libibverbs/all",
    "libibverbs/examples/all",
    "providers/efa/all",
    "providers/mlx5/all",
    "providers/rxe/all",
    "rdmacm",
    "ibumad",
];

/// Runs the command.
pub(crate) fn run(args: &[String]) -> sh::Result<()> {
    let mut suite = None;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(());
            }
            "--list" => return list(),
            "--suite" => {
                suite = Some(
                    args.next().ok_or_else(|| sh::usage(format!("--suite needs a name\n\n{USAGE}")))?.clone(),
                );
            }
            other => return Err(sh::usage(format!("no argument {other}\n\n{USAGE}"))),
        }
    }
    let folder = build(suite.as_deref())?;
    match perftest::build(&folder) {
        Ok(tools) => eprintln!("perftest: {}", tools.display()),
        // The libraries are there all the same; who needs the tools says that they are missing.
        Err(why) => eprintln!("perftest: {why}"),
    }
    println!("{}", folder.display());
    Ok(())
}

fn list() -> sh::Result<()> {
    for version in archive()?.source_versions("rdma-core")? {
        println!("{:10} {}", version.suite, version.full);
    }
    Ok(())
}

/// Builds the version of a suite, unless that was done before; gives the build's folder.
pub(crate) fn build(suite: Option<&str>) -> sh::Result<PathBuf> {
    let _held = lock()?;
    sh::debian_packages(&BUILD_PACKAGES)?;
    let archive = archive()?;
    let version = pick(&archive.source_versions("rdma-core")?, suite)?;
    let out = unpacked("rdma-core", &version, &folder()).join("build");
    let stamp = out.join(".built");
    // Before the source is asked for: where a mirror lacks a part of it, that is unpacked anew each time.
    if !stamp.exists() {
        compile(&source(&archive, "rdma-core", &version, &folder())?, &out)?;
        std::fs::write(stamp, &version.full)?;
    }
    Ok(out)
}

/// Where a version of a source package is, once it is there.
fn unpacked(package: &str, version: &Version, into: &Path) -> PathBuf {
    into.join(format!("{package}-{}", version.upstream()))
}

/// Whether any version has been built.
pub(crate) fn is_built() -> bool {
    let sources = std::fs::read_dir(folder()).into_iter().flatten().flatten();
    sources.into_iter().any(|source| source.path().join("build/.built").is_file())
}

/// Downloads and unpacks one version of a source package under `into`; gives its folder.
pub(crate) fn source(
    archive: &Archive,
    package: &str,
    version: &Version,
    into: &Path,
) -> sh::Result<PathBuf> {
    match archive.unpack_source(package, version, into) {
        Ok(source) => Ok(source),
        Err(why) => Ok(unpack_upstream(package, version, into).map_err(|e| format!("{why}; and {e}"))?),
    }
}

/// Mirrors have been seen without the Debian part of a package that their lists name. apt leaves the upstream part, which it
/// has checked, in the folder: that builds as well.
fn unpack_upstream(package: &str, version: &Version, folder: &Path) -> sh::Result<PathBuf> {
    let name = format!("{package}_{}.orig.tar.gz", version.upstream());
    let tarball = folder.join(&name);
    if !tarball.is_file() {
        return Err(format!("apt left no {name}").into());
    }
    eprintln!(
        "the mirror lacks Debian's changes to {package} {}: building its upstream source",
        version.full
    );
    let source = unpacked(package, version, folder);
    std::fs::create_dir_all(&source)?;
    let (into, tarball) = (source.display().to_string(), tarball.display().to_string());
    sh::run_aside(&mut sh::program("tar", ["-xf", &tarball, "--strip-components=1", "-C", &into]))?;
    Ok(source)
}

pub(crate) fn archive() -> sh::Result<Archive> {
    Archive::open(&sh::target().join("debian"))
}

/// Two that unpack or build in one folder would be in each other's way; the second finds what the first built.
pub(crate) fn lock() -> sh::Result<Lock> {
    Lock::take(&sh::target().join("rdma-core.lock"))
}

fn folder() -> PathBuf {
    sh::target().join("rdma-core")
}

fn pick(versions: &[Version], suite: Option<&str>) -> sh::Result<Version> {
    let found = match suite {
        Some(suite) => versions.iter().find(|v| v.suite == suite),
        None => SUITES.iter().rev().find_map(|suite| versions.iter().find(|v| v.suite == *suite)),
    };
    let known: Vec<&str> = versions.iter().map(|v| v.suite.as_str()).collect();
    let missing = |suite: &str| {
        sh::usage(format!(
            "no rdma-core source package in suite {suite:?}; suites that have one: {}",
            known.join(", ")
        ))
    };
    match (found, suite) {
        (Some(found), _) => Ok(found.clone()),
        (None, Some(suite)) => Err(missing(suite)),
        (None, None) => Err("no suite has an rdma-core source package".into()),
    }
}

fn compile(source: &Path, out: &Path) -> sh::Result<()> {
    let (source, out) = (source.display().to_string(), out.display().to_string());
    // IN_PLACE: the libraries look for their drivers in the build's own folder.
    let configure = [
        "-S",
        &source,
        "-B",
        &out,
        "-GNinja",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DIN_PLACE=1",
        "-DNO_MAN_PAGES=1",
        "-DNO_PYVERBS=1",
    ];
    sh::run_aside(&mut sh::program("cmake", configure))?;
    sh::run_aside(&mut sh::program("ninja", ["-C", &out].into_iter().chain(PARTS)))?;
    forget_unbuilt(Path::new(&out))
}

/// libibverbs complains of every driver that its folder of drivers names and that is not there.
fn forget_unbuilt(out: &Path) -> sh::Result<()> {
    let names = |folder: &str| -> sh::Result<Vec<String>> {
        let entries = std::fs::read_dir(out.join(folder))?.flatten();
        Ok(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    };
    // A link to what was not built leads nowhere.
    let built: Vec<String> =
        names("lib")?.into_iter().filter(|name| out.join("lib").join(name).exists()).collect();
    for file in names("etc/libibverbs.d")? {
        let library = format!("lib{}-rdmav", file.trim_end_matches(".driver"));
        if !built.iter().any(|name| name.starts_with(&library)) {
            std::fs::remove_file(out.join("etc/libibverbs.d").join(file))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(suite: &str, full: &str) -> Version {
        Version { full: full.to_owned(), suite: suite.to_owned() }
    }

    #[test]
    fn drivers_that_were_not_built_are_forgotten() {
        let out = std::env::temp_dir().join(format!("rdma-core-unbuilt-{}", std::process::id()));
        let (lib, etc) = (out.join("lib"), out.join("etc/libibverbs.d"));
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::create_dir_all(&etc).unwrap();
        std::fs::write(lib.join("librxe-rdmav65.so"), "").unwrap();
        std::os::unix::fs::symlink("libhns.so.1", lib.join("libhns-rdmav65.so")).unwrap();
        for name in ["rxe.driver", "hns.driver", "mlx4.driver"] {
            std::fs::write(etc.join(name), "").unwrap();
        }
        forget_unbuilt(&out).unwrap();
        let left: Vec<_> = std::fs::read_dir(&etc).unwrap().map(|e| e.unwrap().file_name()).collect();
        std::fs::remove_dir_all(&out).unwrap();
        assert_eq!(left, ["rxe.driver"]);
    }

    #[test]
    fn the_newest_suite_wins_unless_one_is_named() {
        let all = [version("bookworm", "44.0-2"), version("sid", "65.0-1"), version("trixie", "56.1-1")];
        assert_eq!(pick(&all, None).unwrap().full, "65.0-1");
        assert_eq!(pick(&all, Some("trixie")).unwrap().full, "56.1-1");
        let wrong = pick(&all, Some("buzz")).unwrap_err();
        assert!(wrong.to_string().contains("buzz") && sh::status_of(wrong.as_ref()) == 2, "{wrong}");
    }
}
