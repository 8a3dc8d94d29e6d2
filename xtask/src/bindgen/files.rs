//! Writing generated files, or comparing them with the committed ones. Makes none of their text.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sh;

/// Text of every generated file, by its path in the repository.
pub type Files = BTreeMap<PathBuf, String>;

/// Writes the generated files.
pub fn write(files: &Files) -> Result<(), Box<dyn Error>> {
    let root = sh::root();
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(&path, formatted(&path, text)?)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// Fails if a committed file is not the generated one.
pub fn compare(files: &Files) -> Result<(), Box<dyn Error>> {
    let root = sh::root();
    let scratch = sh::target().join("bindgen-check");
    let mut stale = Vec::new();
    for (path, text) in files {
        let fresh = scratch.join(path);
        fs::create_dir_all(fresh.parent().unwrap_or(&scratch))?;
        let text = formatted(&root.join(path), text)?;
        fs::write(&fresh, &text)?;
        if fs::read_to_string(root.join(path)).ok().as_ref() != Some(&text) {
            stale.push(format!("{} differs from {}", path.display(), fresh.display()));
        }
    }
    if !stale.is_empty() {
        return Err(stale.join("\n").into());
    }
    println!("{} generated files match", files.len());
    Ok(())
}

/// What rustfmt with the repository's settings makes of a Rust file.
fn formatted(path: &Path, text: &str) -> Result<String, Box<dyn Error>> {
    if path.extension().is_none_or(|extension| extension != "rs") {
        return Ok(text.to_owned());
    }
    let root = sh::root();
    let scratch = sh::target().join("bindgen-format.rs");
    fs::write(&scratch, text)?;
    let status = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(root)
        .arg(&scratch)
        .status()?;
    if !status.success() {
        return Err(format!("rustfmt {}: {status}", path.display()).into());
    }
    Ok(fs::read_to_string(&scratch)?)
}
