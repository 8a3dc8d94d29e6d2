//! Compiling C against rdma-core's headers from inside a test. Knows nothing of what is compiled.
#![allow(dead_code)] // Each test binary uses a part.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One set of headers to compare with.
#[derive(Debug, Clone)]
pub struct Headers {
    /// Its rdma-core version, or `installed`.
    pub label: String,
    /// The folder with `infiniband/verbs.h`.
    pub include: PathBuf,
}

/// The headers named by `IBV_ABI_HEADERS` (`label=folder`, separated by colons), else the installed ones.
///
/// # Errors
///
/// Says why there is nothing to compare with.
pub fn headers() -> Result<Vec<Headers>, String> {
    let list = match std::env::var("IBV_ABI_HEADERS") {
        Ok(list) => list
            .split(':')
            .filter_map(|item| item.split_once('='))
            .map(|(label, include)| headers_at(label, include))
            .collect(),
        Err(_) => vec![headers_at("installed", "/usr/include")],
    };
    compiler_works()?;
    match list.iter().find(|headers: &&Headers| !headers.include.join("infiniband/verbs.h").is_file()) {
        Some(headers) => Err(format!("no infiniband/verbs.h under {}", headers.include.display())),
        None => Ok(list),
    }
}

fn headers_at(label: &str, include: &str) -> Headers {
    Headers { label: label.to_owned(), include: PathBuf::from(include) }
}

/// Prints why a test did not run; fails it where `IBV_REQUIRE` names `abi`.
pub fn skip(reason: &str) {
    let required = std::env::var("IBV_REQUIRE").is_ok_and(|list| list.split(',').any(|name| name == "abi"));
    assert!(!required, "IBV_REQUIRE asks for abi, but: {reason}");
    println!("skipped: {reason}");
}

fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".to_owned())
}

fn compiler_works() -> Result<(), String> {
    let ran = Command::new(compiler()).arg("--version").output();
    ran.map(drop).map_err(|error| format!("no C compiler: {}: {error}", compiler()))
}

/// A C file that was compiled without the lines that the headers know nothing of.
#[derive(Debug)]
pub struct Compiled {
    /// The program or shared object.
    pub file: PathBuf,
    /// The lines that were left out, as they stood.
    pub left_out: Vec<String>,
}

/// Compiles a C file with each declaration on a line of its own, leaving out lines that do not compile.
///
/// Lines above the marker `/* lines */` must compile.
pub fn compile(source: &str, headers: &Headers, name: &str, flags: &[&str]) -> Compiled {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", headers.label));
    fs::create_dir_all(&folder).unwrap();
    let (c_file, file) = (folder.join(format!("{name}.c")), folder.join(name));
    let mut lines: Vec<&str> = source.lines().collect();
    let first =
        lines.iter().position(|line| line.contains("/* lines */")).expect("the source has the marker");
    let mut left_out = Vec::new();
    // A line can hide another's error (a type that is used before a missing member), so more than one round.
    for _ in 0..8 {
        fs::write(&c_file, lines.join("\n")).unwrap();
        let out = Command::new(compiler())
            .args(["-std=gnu11", "-O1", "-w", "-I"])
            .arg(&headers.include)
            .args(flags)
            .arg("-o")
            .args([&file, &c_file])
            .output()
            .unwrap();
        if out.status.success() {
            return Compiled { file, left_out };
        }
        let messages = String::from_utf8_lossy(&out.stderr);
        let bad: BTreeSet<usize> = error_lines(&messages, &c_file).filter(|line| *line > first).collect();
        assert!(!bad.is_empty(), "{} does not compile:\n{messages}", c_file.display());
        for line in bad {
            left_out.push(std::mem::take(&mut lines[line]).to_owned());
        }
    }
    panic!("{} still does not compile after 8 rounds", c_file.display());
}

/// The zero-based lines of the file that errors, and the macro expansions around them, are in.
fn error_lines<'a>(messages: &'a str, file: &Path) -> impl Iterator<Item = usize> + 'a {
    let prefix = format!("{}:", file.display());
    messages.lines().filter_map(move |message| {
        let line = message.strip_prefix(&prefix)?.split(':').next()?.parse::<usize>().ok()?;
        line.checked_sub(1)
    })
}
