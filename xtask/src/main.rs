//! Maintainers' commands: `cargo xtask help`. A thin dispatcher; each command is in a file of its own.
#![forbid(unsafe_code)]

/// Like the standard ones, which panic once the reader of a pipe went away (`cargo xtask help | head`).
macro_rules! print {
    ($($what:tt)*) => { $crate::sh::say(format_args!($($what)*)) };
}
macro_rules! println {
    ($($what:tt)*) => { $crate::sh::say(format_args!("{}\n", format_args!($($what)*))) };
}

macro_rules! eprint {
    ($($what:tt)*) => { $crate::sh::remark(format_args!($($what)*)) };
}
macro_rules! eprintln {
    ($($what:tt)*) => { $crate::sh::remark(format_args!("{}\n", format_args!($($what)*))) };
}

mod abi;
mod bench;
mod bindgen;
mod callgrind;
mod cuda;
mod debian;
mod demo;
mod full;
mod lanes;
mod lock;
mod new_provider;
mod pair;
mod perftest;
mod rdma_core;
mod sanitizers;
mod sh;
mod softnic;
mod suite;
mod test;
mod tidy;
mod vm;
mod workspace;

use std::process::ExitCode;

const HELP: &str = "usage: cargo xtask COMMAND [ARGUMENTS]

  demo          move a real file of more than 100 MB through the mock, and back
  test          every check there is; --list names the lanes, --lane NAME runs one
  full          what is slow and rarely changes: --list names the steps, --step NAME runs one
  conformance   certify providers: --provider NAME... [--require NAME] [--json] [--junit FILE] [--softnic]
  mutants       show that the suite catches broken providers [--json]
  new-provider  write the skeleton of a provider of your own, the suite wired in
  tidy          dependency arrows, unsafe files, file sizes, words
  bench         benches, and what the safe handle costs in instructions
  softnic       run a command on software RDMA devices: softnic [OPTION]... -- COMMAND...
  vm            run a command, or the suite, on a real kernel's Soft-RoCE in QEMU
  rdma-core     build a newer rdma-core than the system's, beside it
  bindgen       write ibv-sys's bindings anew from rdma-core's headers
  abi           compare ibv-sys's layouts with installed headers

Each takes --help. Exit status: 0, 1 where something failed, 2 where the command line is wrong; demo,
softnic, conformance and mutants: that of the program they run.";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, args) = args.split_first().map_or(("help", &[][..]), |(c, rest)| (c.as_str(), rest));
    match run(command, args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(sh::status_of(why.as_ref()))
        }
    }
}

fn run(command: &str, args: &[String]) -> sh::Result<()> {
    match command {
        "abi" => abi::run(args),
        "bench" => bench::run_bench(args),
        "bindgen" => bindgen::run(args),
        "conformance" => sh::exec(&mut suite::conformance(args)?),
        "demo" => demo::run_demo(args),
        "full" => full::run_full(args),
        "rdma-core" => rdma_core::run(args),
        "softnic" => softnic::run(args),
        "mutants" => sh::exec(&mut suite::mutants(args)?),
        "new-provider" => new_provider::run(args),
        "test" => test::run(args),
        "tidy" => tidy::run(args),
        "vm" => vm::run(args),
        "help" | "--help" | "-h" => {
            println!("{HELP}");
            Ok(())
        }
        other => Err(sh::usage(format!("no command {other}\n\n{HELP}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_help_lists_is_there_and_has_help_of_its_own() {
        let names = HELP.lines().skip(2).take_while(|line| !line.is_empty());
        let names: Vec<_> = names.filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(names.len(), 13, "{names:?}");
        // Two of them become a program of ours, whose help it is, and one runs it.
        for name in names.into_iter().filter(|name| !["conformance", "mutants"].contains(name)) {
            run(name, &["--help".into()]).unwrap_or_else(|e| panic!("{name}: {e}"));
            if name != "demo" {
                let wrong = run(name, &["--no-such-option".into()]).unwrap_err();
                assert_eq!(sh::status_of(wrong.as_ref()), 2, "{name}: {wrong}");
            }
        }
        assert_eq!(sh::status_of(run("nonesuch", &[]).unwrap_err().as_ref()), 2);
    }
}
