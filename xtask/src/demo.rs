//! `cargo xtask demo`: the command line, built for speed, moves a real file through registered memory
//! and back. Needs a Rust toolchain and nothing else.

use crate::sh::{Result, cargo, exec, output, program, target};
use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

const USAGE: &str = "usage: cargo xtask demo [FILE] [OPTIONS OF ibv transfer]

Builds the command line and runs `ibv transfer` on FILE, by default on the largest library of the Rust
compiler, a real file of more than 100 MB.";

/// A demonstration below this size says little, bytes.
const ENOUGH: u64 = 100_000_000;

/// Runs the command.
pub(crate) fn run_demo(args: &[String]) -> Result<()> {
    if args.iter().any(|a| a == "--help" || a == "-h") {
        println!("{USAGE}");
        return Ok(());
    }
    let (file, options) = match args.split_first() {
        Some((file, rest)) if !file.starts_with('-') => (PathBuf::from(file), rest),
        _ => (real_file()?, args),
    };
    exec(cargo(["run", "--release", "--package", "ibv-tools", "--", "transfer"]).arg(file).args(options))
}

/// The compiler's largest library; where there is no file of that size, one made for the purpose.
fn real_file() -> Result<PathBuf> {
    let sysroot = output(&mut program("rustc", ["--print", "sysroot"]))?;
    match largest(&Path::new(sysroot.trim()).join("lib")) {
        Some((len, path)) if len >= ENOUGH => {
            eprintln!("the file: {} ({} MB)", path.display(), len / 1_000_000);
            Ok(path)
        }
        _ => made_up(),
    }
}

fn largest(folder: &Path) -> Option<(u64, PathBuf)> {
    let entries = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let sized = entries.filter_map(|path| Some((fs::symlink_metadata(&path).ok()?, path)));
    sized.filter(|(meta, _)| meta.is_file()).map(|(meta, path)| (meta.len(), path)).max()
}

fn made_up() -> Result<PathBuf> {
    let path = target().join("demo.bin");
    eprintln!("no library of {} MB beside the compiler; making {}", ENOUGH / 1_000_000, path.display());
    fs::create_dir_all(target())?;
    write_bytes(&path, ENOUGH)?;
    Ok(path)
}

/// Writes a file of `len` bytes, rounded up to words.
pub(crate) fn write_bytes(path: &Path, len: u64) -> Result<()> {
    let (mut file, mut state) = (BufWriter::new(File::create(path)?), 0x9e37_79b9_7f4a_7c15u64);
    for _ in 0..len.div_ceil(8) {
        // xorshift64: bytes that no two places share.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.write_all(&state.to_le_bytes())?;
    }
    Ok(file.flush()?)
}
