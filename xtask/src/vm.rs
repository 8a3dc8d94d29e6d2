//! `cargo xtask vm`: commands on a real kernel's Soft-RoCE, in a virtual machine. What a machine is made of
//! is in `vm/`; what the suite and the transfer do is theirs.

mod conformance;
mod initramfs;
mod kernel;
mod machine;
mod pair;

use crate::{
    lanes::Ran,
    sh::{Result, debian_packages, output, program, target, usage},
    workspace::program_of_ours,
};
use kernel::Kernel;
use machine::{Accelerator, Ended, Guest};
use std::{fs, process::exit, time::Duration};

const USAGE: &str = "usage: cargo xtask vm [OPTION]... -- COMMAND [ARGUMENT]...
       cargo xtask vm [OPTION]... conformance [--json] [ARGUMENT OF THE SUITE]...
       cargo xtask vm [OPTION]... pair

Boots Debian's generic kernel in QEMU with this machine's own tree, read-only below a layer in memory, makes
the Soft-RoCE device rxe0, and runs COMMAND there as root; ends with its exit status. Nothing is installed on
the host but QEMU and the tools it takes (where it is Debian and you are root). No KVM is needed.

conformance runs the suite for the provider `verbs` on rxe0: by both dispatches, none failed and at least 70
passed by each, unless ARGUMENTs choose cases.

pair boots two machines, joined by a wire, and moves 16 MB from one to the other with `ibv transfer`.

  --suite SUITE     the Debian suite of the kernel (default bookworm)
  --seconds N       how long the command may take (default 300; the suite 1800)

Times in a guest say nothing: only results count. Logs are kept in target/vm/logs.";

const PACKAGES: [&str; 8] = [
    "busybox-static",
    "coreutils",
    "ibverbs-providers",
    "iproute2",
    "kmod",
    "libibverbs1",
    "qemu-system-x86",
    "xz-utils",
];

/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(300);
/// How long the whole suite may take, under emulation on a busy host.
const SUITE_LIMIT: Duration = Duration::from_secs(1800);

#[derive(Debug, PartialEq, Eq)]
struct Options {
    suite: String,
    limit: Option<Duration>,
    /// A word of ours and its arguments, or `--` and a command.
    rest: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &[String]) -> Result<()> {
    if args.first().is_none_or(|a| a == "--help" || a == "-h") {
        println!("{USAGE}");
        return Ok(());
    }
    let options = parse(args)?;
    match options.rest.split_first() {
        Some((word, command)) if word == "--" && !command.is_empty() => {
            let lab = Lab::open(&options, LIMIT)?;
            let ended = lab.run("command", command, true)?;
            exit(i32::from(ended.code))
        }
        Some((word, rest)) if word == "conformance" => {
            conformance::run_suite(&Lab::open(&options, SUITE_LIMIT)?, rest)
        }
        Some((word, [])) if word == "pair" => pair::run_pair(&Lab::open(&options, LIMIT)?),
        Some((word, _)) if word != "--" => Err(usage(format!("no command {word}\n\n{USAGE}"))),
        _ => Err(usage(format!("no command to run\n\n{USAGE}"))),
    }
}

/// The lane: the suite, then a file between two guests.
pub(crate) fn lane() -> Result<Ran> {
    let lab = match Lab::open(&parse(&[])?, SUITE_LIMIT) {
        Ok(lab) => lab,
        Err(why) => return Ok(Ran::Not(why.to_string())),
    };
    conformance::run_suite(&lab, &[])?;
    pair::run_pair(&lab)?;
    Ok(Ran::Passed)
}

fn parse(args: &[String]) -> Result<Options> {
    let mut options = Options { suite: "bookworm".into(), limit: None, rest: Vec::new() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| usage(format!("{arg} needs a value\n\n{USAGE}")));
        match arg.as_str() {
            "--suite" => options.suite.clone_from(value()?),
            "--seconds" => {
                let seconds = value()?;
                let number = seconds.parse().map_err(|_| format!("--seconds {seconds}: must be a number"))?;
                options.limit = Some(Duration::from_secs(number));
            }
            _ => {
                options.rest = [arg].into_iter().chain(args).cloned().collect();
                break;
            }
        }
    }
    Ok(options)
}

/// What every guest needs, made once.
struct Lab {
    kernel: Kernel,
    accelerator: Accelerator,
    limit: Duration,
}

impl Lab {
    /// Fails where no guest can run here, and says why.
    fn open(options: &Options, patience: Duration) -> Result<Self> {
        let machine = output(&mut program("uname", ["-m"]))?;
        if machine.trim() != "x86_64" {
            return Err(
                format!("guests run this machine's programs on x86_64; it is {}", machine.trim()).into()
            );
        }
        debian_packages(&PACKAGES)?;
        machine::qemu_is_recent()?;
        let kernel = Kernel::of(&options.suite)?;
        let accelerator = Accelerator::best(&kernel)?;
        eprintln!("vm: kernel {}, {accelerator:?}", kernel.release);
        Ok(Self { kernel, accelerator, limit: options.limit.unwrap_or(patience) })
    }

    fn guest(&self, name: &str, command: &[String]) -> Guest {
        let (name, command) = (name.into(), command.to_vec());
        Guest { name, command, limit: self.limit, wire: None, aloud: false }
    }

    fn run(&self, name: &str, command: &[String], aloud: bool) -> Result<Ended> {
        Guest { aloud, ..self.guest(name, command) }.boot(&self.kernel, self.accelerator)?.wait()
    }
}

/// The command line, built and laid where no later build replaces it: a guest reads its pages from here while
/// it runs.
fn ibv() -> Result<String> {
    let built = program_of_ours("ibv")?;
    let (partial, kept) = (target().join("vm/ibv.partial"), target().join("vm/ibv"));
    fs::create_dir_all(target().join("vm"))?;
    fs::copy(built, &partial)?;
    fs::rename(partial, &kept)?;
    Ok(kept.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Options> {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_end_where_the_command_begins() {
        let options = words("--seconds 9 --suite trixie -- ls --seconds 3").unwrap();
        assert_eq!((options.suite.as_str(), options.limit), ("trixie", Some(Duration::from_secs(9))));
        assert_eq!(options.rest, ["--", "ls", "--seconds", "3"]);
        assert_eq!(words("conformance --json").unwrap().rest, ["conformance", "--json"]);
    }

    #[test]
    fn what_is_not_a_number_or_not_there_is_said() {
        assert!(words("--seconds soon -- ls").unwrap_err().to_string().contains("soon"));
        assert!(words("--suite").unwrap_err().to_string().contains("needs a value"));
    }
}
