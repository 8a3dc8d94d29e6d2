//! `cargo run -p mutants -- [--all] [--json] [--list] [NAME…]`: judges the mutants whose names contain one
//! of `NAME`, or all of them, and fails if one survives. Everything else is in the library.
#![forbid(unsafe_code)]

use clap::Parser;
use mutants::{judge_all, mutants};
use std::{panic, process::ExitCode};

/// Runs the conformance suite on deliberately broken providers, each of which it must catch; also on devices without puts.
#[derive(Debug, Parser)]
struct Args {
    /// Mutants whose names contain one of these; all of them if there are none.
    names: Vec<String>,
    /// Run every case on each mutant, not only up to the first that fails.
    #[arg(long)]
    all: bool,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Print the mutants and what they do, and judge none.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let wanted = |name: &str| args.names.is_empty() || args.names.iter().any(|n| name.contains(n.as_str()));
    let chosen: Vec<_> = mutants().into_iter().filter(|m| wanted(m.name)).collect();
    if chosen.is_empty() {
        eprintln!("no mutant is named so; see --list");
        return ExitCode::from(2);
    }
    if args.list {
        chosen.iter().for_each(|m| println!("{}{}: {}", m.name, m.device(), m.does));
        return ExitCode::SUCCESS;
    }
    // A panic is one way of being caught, and the table says so.
    panic::set_hook(Box::new(|_| {}));
    let tally = judge_all(&chosen, args.all);
    if args.json {
        println!("{}", tally.to_json())
    } else {
        print!("{tally}")
    }
    if tally.survivors().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
