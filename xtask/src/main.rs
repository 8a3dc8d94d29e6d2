//! Maintainers' commands: `cargo xtask help`.

mod abi;
mod bindgen;
mod debian;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("abi") => abi::run(&args[1..]),
        Some("bindgen") => bindgen::run(&args[1..]),
        _ => Err("usage: cargo xtask abi|bindgen".into()),
    }
}
