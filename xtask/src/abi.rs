//! `cargo xtask abi`: the bindings against every rdma-core that can be had. Runs `ibv-sys`'s own tests with the
//! headers of each version; compares nothing by itself.

mod bare;
mod oracle;

use std::{env, fs, path::PathBuf, process::Command};

use serde_json::Value;

use crate::bindgen::headers::{self, RdmaCore};
use crate::sh::{self, Result};
use crate::workspace;

const USAGE: &str = "usage: cargo xtask abi [--json] [--aarch64]
       cargo xtask abi --oracle
       cargo xtask abi --bare

Compares every type, field, constant and inline function of ibv-sys with C compiled against the headers of every
rdma-core version among Debian's suites, which it fetches and unpacks in the build folder.

  --json     print one JSON object for each version instead of a table
  --aarch64  compare the layouts for aarch64, with a cross compiler and an emulator (installs them)
  --oracle   compare with the rdma-sys crate, which binds the installed headers (installs what it needs)
  --bare     build with nothing of RDMA installed, and ask for devices there";

/// Runs the command.
pub fn run(args: &[String]) -> Result<()> {
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => compare(Target::X86_64, Form::Table),
        ["--json"] => compare(Target::X86_64, Form::Json),
        ["--aarch64"] => compare(Target::Aarch64, Form::Table),
        ["--aarch64", "--json"] | ["--json", "--aarch64"] => compare(Target::Aarch64, Form::Json),
        ["--oracle"] => oracle::run(),
        ["--bare"] => bare::run(),
        ["--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(sh::usage(USAGE)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    X86_64,
    Aarch64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Table,
    Json,
}

fn compare(target: Target, form: Form) -> Result<()> {
    let debian = match target {
        Target::X86_64 => "amd64",
        Target::Aarch64 => "arm64",
    };
    let cores = headers::fetch(&headers::archive()?, debian)?;
    for core in &cores {
        eprintln!("comparing with rdma-core {} of {}", core.version, core.suite);
    }
    let report = report_file()?;
    let tested = tests(target, &cores, &report)?.output()?;
    let lines = fs::read_to_string(&report).unwrap_or_default();
    let reports = lines.lines().map(serde_json::from_str).collect::<serde_json::Result<Vec<Value>>>()?;
    match form {
        Form::Json => println!("{}", serde_json::to_string_pretty(&reports)?),
        Form::Table => print!("{}", table(&reports)),
    }
    if tested.status.success() && reports.len() == cores.len() {
        return Ok(());
    }
    let (out, err) = (String::from_utf8_lossy(&tested.stdout), String::from_utf8_lossy(&tested.stderr));
    Err(format!("the bindings do not agree with the headers:\n{out}{err}").into())
}

fn report_file() -> Result<PathBuf> {
    let file = sh::target().join("abi-report.jsonl");
    fs::create_dir_all(sh::target())?;
    if file.exists() {
        fs::remove_file(&file)?;
    }
    Ok(file)
}

/// The tests of `ibv-sys` that compare with C, told which headers to take and to skip nothing.
fn tests(target: Target, cores: &[RdmaCore], report: &PathBuf) -> Result<Command> {
    let labelled = |core: &RdmaCore| format!("{}={}", core.version, core.include.display());
    let list = cores.iter().map(labelled).collect::<Vec<_>>().join(":");
    let mut command = match target {
        // As in the lane `test`, so that nothing is built for this alone.
        Target::X86_64 => workspace::cargo_all(["test", "--test", "abi"]),
        Target::Aarch64 => sh::cargo(["test", "--package", "ibv-sys", "--test", "abi"]),
    };
    match target {
        Target::X86_64 => {
            command.args(["--test", "inline", "--test", "copies"]);
        }
        Target::Aarch64 => {
            sh::debian_packages(&["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"])?;
            command.env("CC", "aarch64-linux-gnu-gcc").env("IBV_ABI_TARGET", "aarch64");
            command.env("IBV_ABI_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu");
        }
    }
    command.env("IBV_ABI_HEADERS", list).env("IBV_ABI_REPORT", report).env("IBV_REQUIRE", "abi");
    // A library that the environment names would be loaded instead of those that the tests make.
    for variable in ["IBV_LIBIBVERBS", "IBV_LIBMLX5", "IBV_LIBEFA"] {
        if env::var_os(variable).is_some() {
            command.env_remove(variable);
        }
    }
    Ok(command)
}

/// Column by column: the version, what was compared, what only one side has, and what disagrees.
const COLUMNS: [(&str, &str); 8] = [
    ("rdma-core", "headers"),
    ("types", "types"),
    ("fields", "fields"),
    ("values", "values"),
    ("older: absent", "absent"),
    ("older: shorter", "shorter"),
    ("newer: longer", "longer"),
    ("differences", "differences"),
];

fn table(reports: &[Value]) -> String {
    let heading = COLUMNS.map(|(title, _)| title.to_owned());
    let rows = reports.iter().map(|report| COLUMNS.map(|(_, key)| cell(&report[key])));
    let lines = std::iter::once(heading).chain(rows).map(|cells| {
        let padded = cells.iter().zip(COLUMNS).map(|(cell, (title, _))| format!("{cell:>0$}", title.len()));
        padded.collect::<Vec<_>>().join("  ") + "\n"
    });
    let shorter = reports.iter().flat_map(|report| {
        let notes = ["shorter", "longer", "reserved", "differences"].into_iter().flat_map(|key| {
            report[key]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(move |note| Some(format!("{key}: {}", note.as_str()?)))
        });
        notes.map(|note| format!("{}: {note}\n", cell(&report["headers"]))).collect::<Vec<_>>()
    });
    lines.chain(std::iter::once("\n".to_owned())).chain(shorter).collect()
}

/// A number or a word as it is, a list as its length.
fn cell(value: &Value) -> String {
    match value {
        Value::Array(list) => list.len().to_string(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_counts_lists_and_names_what_differs() {
        let report = serde_json::json!({
            "headers": "44.0", "types": 2, "fields": 3, "values": 4, "absent": ["x", "y"], "shorter": ["a: 8 bytes"],
            "longer": [], "reserved": [], "differences": [],
        });
        let table = table(&[report]);
        let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["44.0", "2", "3", "4", "2", "1", "0", "0"]);
        assert!(table.contains("44.0: shorter: a: 8 bytes"), "{table}");
    }
}
