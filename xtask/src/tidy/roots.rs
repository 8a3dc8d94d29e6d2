//! Every crate root says whether it may hold unsafe code: `forbid`, or `deny` and then file by file.

use super::arrows::packages;
use crate::sh::Result;
use serde_json::Value;
use std::fs;

/// Crates that never need any.
const FORBID: [&str; 4] = ["conformance", "ibv", "ibv-tools", "xtask"];

pub(super) fn check(metadata: &Value) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for package in packages(metadata)? {
        let name = package["name"].as_str().unwrap_or_default();
        for path in roots(package) {
            wrong.extend(violation(name, &fs::read_to_string(path)?).map(|why| format!("{path}: {why}")));
        }
    }
    Ok(wrong)
}

/// The source files of its libraries and binaries; tests and examples are programs of their own.
fn roots(package: &Value) -> impl Iterator<Item = &str> {
    let targets = package["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_root = |target: &&Value| {
        let kinds = target["kind"].as_array().map(Vec::as_slice).unwrap_or_default();
        kinds.iter().any(|kind| kind == "lib" || kind == "rlib" || kind == "cdylib" || kind == "bin")
    };
    targets.iter().filter(is_root).filter_map(|target| target["src_path"].as_str())
}

fn violation(package: &str, text: &str) -> Option<&'static str> {
    let (forbids, denies) =
        (text.contains("#![forbid(unsafe_code)]"), text.contains("#![deny(unsafe_code)]"));
    match (FORBID.contains(&package), package.ends_with("-sys")) {
        (true, _) if !forbids => Some("lacks #![forbid(unsafe_code)]"),
        (false, false) if !(forbids || denies) => {
            Some("lacks #![deny(unsafe_code)] or #![forbid(unsafe_code)]")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_says_what_it_has_to() {
        let (forbid, deny) = ("//! x\n#![forbid(unsafe_code)]\n", "//! x\n#![deny(unsafe_code)]\n");
        assert!(violation("xtask", forbid).is_none() && violation("xtask", deny).is_some());
        assert!(violation("ibv-core", deny).is_none() && violation("ibv-core", "").is_some());
        assert!(violation("ibv-sys", "").is_none());
    }
}
