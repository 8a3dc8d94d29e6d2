//! Which crate may depend on which: the drawing in ARCHITECTURE.md, as a table. An arrow that is not
//! here is forbidden.

use crate::sh::{Result, cargo, output};
use serde_json::Value;

/// A crate and what of ours it may depend on when it is used.
const USES: &[(&str, &[&str])] = &[
    (
        "ibv",
        &["ibv-core", "ibv-topology", "provider-mock", "provider-mlx5", "provider-efa", "provider-verbs"],
    ),
    ("ibv-topology", &[]),
    ("ibv-core", &["ibv-sys"]),
    ("ibv-sys", &[]),
    ("rdmaxcel-sys", &["ibv-sys"]),
    ("provider-mlx5", &["ibv-core", "ibv-sys", "rdmaxcel-sys"]),
    ("provider-efa", &["ibv-core", "ibv-sys"]),
    ("provider-verbs", &["ibv-core", "ibv-sys"]),
    ("provider-mock", &["ibv-core"]),
    ("conformance", &["ibv-core", "provider-mock"]),
    ("mutants", &["conformance", "ibv-core", "provider-mock"]),
    ("softnic", &["ibv-core", "provider-mock"]),
    ("ibv-tools", &["conformance", "ibv", "ibv-sys"]),
    ("xtask", &[]),
];

/// What of ours a crate's tests may use besides.
const TESTS_USE: &[(&str, &[&str])] = &[
    ("ibv-core", &["provider-mock"]),
    ("ibv-sys", &["softnic"]),
    ("rdmaxcel-sys", &["provider-mlx5", "softnic"]),
    ("provider-mlx5", &["conformance", "provider-mock", "softnic"]),
    ("provider-efa", &["conformance", "provider-mock", "softnic"]),
    ("provider-verbs", &["conformance", "provider-mock", "softnic"]),
    ("provider-mock", &["conformance"]),
    ("softnic", &["ibv-sys"]),
    ("ibv-tools", &["ibv-core", "provider-mock"]),
];

/// Crates that build with no C compiler and no system library.
const NO_C: [&str; 3] = ["ibv-core", "ibv-topology", "provider-mock"];

pub(super) fn metadata() -> Result<Value> {
    let text = output(&mut cargo(["metadata", "--format-version", "1", "--no-deps"]))?;
    Ok(serde_json::from_str(&text)?)
}

/// The workspace's packages.
pub(super) fn packages(metadata: &Value) -> Result<&Vec<Value>> {
    Ok(metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?)
}

pub(super) fn check(metadata: &Value) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for package in packages(metadata)? {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(uses) = allowed(USES, name) else {
            wrong.push(format!(
                "{name}: a new crate; draw its arrows in ARCHITECTURE.md and in xtask/src/tidy/arrows.rs"
            ));
            continue;
        };
        let tests_use = allowed(TESTS_USE, name).unwrap_or_default();
        for (to, dev) in dependencies(package) {
            if !(uses.contains(&to) || dev && tests_use.contains(&to)) {
                let kind = if dev { "may not depend on, not even in tests:" } else { "may not depend on" };
                wrong.push(format!("{name} {kind} {to} (ARCHITECTURE.md draws no such arrow)"));
            }
        }
    }
    Ok(wrong)
}

fn allowed(table: &'static [(&str, &[&str])], name: &str) -> Option<&'static [&'static str]> {
    table.iter().find(|(from, _)| *from == name).map(|(_, to)| *to)
}

/// The dependencies that are in the workspace, and whether only tests use them.
fn dependencies(package: &Value) -> impl Iterator<Item = (&str, bool)> {
    let all = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter()
        .filter(|d| d["path"].is_string())
        .filter_map(|d| Some((d["name"].as_str()?, d["kind"] == "dev")))
}

/// Whatever compiles or looks for C, or binds a library.
pub(super) fn check_no_c() -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for package in NO_C {
        let args =
            ["tree", "--package", package, "--edges", "normal,build", "--prefix", "none", "--format", "{p}"];
        let tree = output(&mut cargo(args))?;
        let names = tree.lines().filter_map(|line| line.split_whitespace().next());
        wrong.extend(names.filter(|n| is_c(n)).map(|n| format!("{package} needs {n}, so it needs C")));
    }
    Ok(wrong)
}

fn is_c(name: &str) -> bool {
    ["bindgen", "cc", "cmake", "pkg-config"].contains(&name) || name.ends_with("-sys")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn workspace(name: &str, to: &str, kind: Value) -> Value {
        let dependencies = json!([{"name": to, "path": "p", "kind": kind}, {"name": "libc", "kind": null}]);
        json!({ "packages": [{ "name": name, "dependencies": dependencies }] })
    }

    #[test]
    fn a_drawn_arrow_passes_and_another_does_not() {
        assert!(check(&workspace("ibv", "ibv-core", Value::Null)).unwrap().is_empty());
        assert_eq!(check(&workspace("ibv-core", "ibv", Value::Null)).unwrap().len(), 1);
        assert_eq!(check(&workspace("provider-mlx5", "softnic", Value::Null)).unwrap().len(), 1);
        assert!(check(&workspace("provider-mlx5", "softnic", json!("dev"))).unwrap().is_empty());
        assert_eq!(check(&workspace("conformance", "softnic", json!("dev"))).unwrap().len(), 1);
    }

    #[test]
    fn a_crate_without_arrows_is_a_violation() {
        assert!(check(&workspace("newcomer", "ibv", Value::Null)).unwrap()[0].starts_with("newcomer: "));
    }

    #[test]
    fn what_compiles_c_is_known_by_name() {
        assert!(is_c("cc") && is_c("ibv-sys") && !is_c("libc"));
    }
}
