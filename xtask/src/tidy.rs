//! `cargo xtask tidy`: what the compiler and clippy do not check. Each rule is in a file of its own;
//! here they are run over what git tracks.

mod arrows;
mod roots;
mod text;
mod unsafe_files;

use crate::sh::{Result, output, program, root};
use std::{fs, path::PathBuf};

const USAGE: &str = "usage: cargo xtask tidy

Checks dependency arrows, the list of files that may hold unsafe code, each crate root's attribute, file
sizes and words. Prints every violation.";

/// A tracked text file.
pub(crate) struct Tracked {
    /// Relative to the workspace, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Tracked {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Written by a program, which says so at the top.
    pub(crate) fn is_generated(&self) -> bool {
        self.text.lines().take(5).any(|line| line.contains("@generated"))
    }
}

/// Runs the command.
pub(crate) fn run(args: &[String]) -> Result<()> {
    match args {
        [] => {}
        [flag] if flag == "--help" || flag == "-h" => {
            println!("{USAGE}");
            return Ok(());
        }
        _ => return Err(USAGE.into()),
    }
    let (files, metadata) = (tracked()?, arrows::metadata()?);
    let mut wrong = arrows::check(&metadata)?;
    wrong.extend(arrows::check_no_c()?);
    wrong.extend(roots::check(&metadata)?);
    wrong.extend(unsafe_files::check(&files, &fs::read_to_string(root().join("xtask/unsafe-files.txt"))?));
    wrong.extend(files.iter().flat_map(text::check));
    if wrong.is_empty() {
        println!("tidy: {} files in order", files.len());
        return Ok(());
    }
    wrong.iter().for_each(|line| eprintln!("{line}"));
    Err(format!("tidy: {} violations", wrong.len()).into())
}

/// Every tracked file that is text and still there.
fn tracked() -> Result<Vec<Tracked>> {
    let list = output(&mut program("git", ["ls-files", "-z"]))?;
    let read = |path: &str| {
        let text = fs::read_to_string(root().join(PathBuf::from(path))).ok()?;
        Some(Tracked { path: path.into(), text })
    };
    Ok(list.split('\0').filter(|path| !path.is_empty()).filter_map(read).collect())
}
