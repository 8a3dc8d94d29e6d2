//! `cargo xtask softnic -- COMMAND…`: runs any command on software RDMA devices. What the devices do is in the `softnic` crate.

mod scale;

use std::process::Command;

use crate::{lanes::Ran, rdma_core, sh, workspace};

const USAGE: &str = "usage: cargo xtask softnic [OPTION]... -- COMMAND [ARGUMENT]...
       cargo xtask softnic --scale

Runs a command on software RDMA devices: unmodified programs over unmodified libibverbs, libmlx5 and libefa.

  --device mlx5|efa the kind of device (default mlx5)
  --link ib|roce    the ports' link layer, of mlx5 (default ib)
  --count N         how many devices (default 1)
  --devices FILE    a TOML description of the devices instead (see softnic/README.md)
  --session NAME    the fabric that processes share (default: one for the user)
  --abi native|invoke|write
                    which generation of the kernel's interface is answered (default native)
  --trace FILE      write what the devices do, as JSON lines; `-`: as text, to standard error
  --trace-text FILE the same as text for people; both are described in softnic/README.md
  --strict          report breaches of the hardware's rules on standard error
  --count-doorbells count every write of EFA's doorbells, and tell the trace (x86-64)
  --scale           count what an operation costs with 1, 32 and 1024 queue pairs (needs valgrind)
  --rdma-core SUITE run on the rdma-core of this Debian suite, or of the `newest` (built by `cargo xtask rdma-core`)";

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// Variables for the device.
    set: Vec<(&'static str, String)>,
    suite: Option<String>,
    command: Vec<String>,
}

/// Runs the command, and comes back where that is none but words or counts.
pub(crate) fn run(args: &[String]) -> sh::Result<()> {
    let mut own = args.iter().take_while(|arg| *arg != "--");
    if args.is_empty() || own.any(|arg| arg == "--help" || arg == "-h") {
        println!("{USAGE}");
        return Ok(());
    }
    match args {
        [scale] if scale == "--scale" => return scale::run(),
        [scale, ..] if scale == "--scale" => {
            return Err(sh::usage(format!("--scale goes alone\n\n{USAGE}")));
        }
        _ => {}
    }
    // As `env` and `nice` do it: nobody stands between the command and who started this.
    sh::exec(&mut command(args)?)
}

/// What the arguments say, to be run on the devices.
pub(crate) fn command(args: &[String]) -> sh::Result<Command> {
    let options = parse(args)?;
    sh::debian_packages(&["ibverbs-providers", "libibverbs1"])?;
    let library = workspace::softnic_library()?;
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]).env("LD_PRELOAD", library).env("SOFTNIC_PRELOAD", "1");
    command.envs(options.set);
    if let Some(suite) = options.suite {
        let build = rdma_core::build(Some(suite.as_str()).filter(|suite| *suite != "newest"))?;
        command.env("LD_LIBRARY_PATH", build.join("lib"));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", build.join("bin").display()));
    }
    Ok(command)
}

/// The lane in which our own command line looks at software devices: it lists them, and finds nothing amiss.
pub(crate) fn lane() -> sh::Result<Ran> {
    if let Err(why) = sh::debian_packages(&["ibverbs-providers", "libibverbs1"]) {
        return Ok(Ran::Not(why.to_string()));
    }
    let ibv = workspace::program_of_ours("ibv")?;
    let session = format!("xtask-look-{}", std::process::id());
    let kinds = [("mlx5", "ib", "mlx5_1"), ("mlx5", "roce", "mlx5_1"), ("efa", "ib", "rdmap1s6")];
    for (device, link, second) in kinds {
        let on_devices = |what: &str| {
            let mut command = Command::new(sh::this_program()?);
            command.args(["softnic", "--device", device, "--link", link, "--count", "2"]);
            sh::output(command.args(["--session", &session, "--"]).arg(&ibv).arg(what))
        };
        let listed = on_devices("devices")?;
        if !listed.contains(&format!("{second} (software, in user space), claimed")) {
            return Err(format!("ibv devices on {device} over {link}: no {second}: {listed}").into());
        }
        let found = on_devices("doctor")?;
        if !found.contains("RDMA can be used: 0 error(s)") {
            return Err(format!("ibv doctor on {device} over {link}: {found}").into());
        }
    }
    Ok(Ran::Passed)
}

fn parse(args: &[String]) -> sh::Result<Options> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value =
            || args.next().cloned().ok_or_else(|| sh::usage(format!("{arg} needs a value\n\n{USAGE}")));
        match arg.as_str() {
            "--" => break,
            "--device" => options.set.push(("SOFTNIC_DEVICE", one_of(arg, value()?, &["mlx5", "efa"])?)),
            "--link" => options.set.push(("SOFTNIC_LINK", one_of(arg, value()?, &["ib", "roce"])?)),
            "--count" => options.set.push(("SOFTNIC_COUNT", count(value()?)?)),
            "--devices" => {
                let file = value()?;
                let path = std::fs::canonicalize(&file).map_err(|e| format!("{arg} {file}: {e}"))?;
                options.set.push(("SOFTNIC_DEVICES", path.display().to_string()));
            }
            "--session" => options.set.push(("SOFTNIC_SESSION", value()?)),
            "--abi" => {
                let abi = one_of(arg, value()?, &["native", "invoke", "write"])?;
                options.set.push(("SOFTNIC_ABI", abi));
            }
            "--trace" => {
                let file = value()?;
                let name = if file == "-" { "SOFTNIC_TRACE_TEXT" } else { "SOFTNIC_TRACE" };
                options.set.push((name, trace_file(arg, file)?));
            }
            "--trace-text" => options.set.push(("SOFTNIC_TRACE_TEXT", trace_file(arg, value()?)?)),
            "--strict" => options.set.push(("SOFTNIC_STRICT", "1".to_owned())),
            "--count-doorbells" => options.set.push(("SOFTNIC_COUNT_DOORBELLS", "1".to_owned())),
            "--rdma-core" => options.suite = Some(value()?),
            other => {
                let why = format!("no option {other}; put `--` before the command\n\n{USAGE}");
                return Err(sh::usage(why));
            }
        }
    }
    options.command = args.cloned().collect();
    if options.command.is_empty() {
        return Err(sh::usage(format!("no command to run\n\n{USAGE}")));
    }
    Ok(options)
}

/// The devices append, each process for itself: here the file begins, or is emptied.
fn trace_file(option: &str, file: String) -> sh::Result<String> {
    if file == "-" {
        return Ok(file);
    }
    let path = std::fs::File::create(&file).and_then(|_| std::fs::canonicalize(&file));
    Ok(path.map_err(|e| format!("{option} {file}: {e}"))?.display().to_string())
}

fn count(value: String) -> sh::Result<String> {
    match value.parse() {
        Ok(1..=64u8) => Ok(value),
        _ => Err(sh::usage(format!("--count {value}: must be a number from 1 to 64"))),
    }
}

fn one_of(option: &str, value: String, known: &[&str]) -> sh::Result<String> {
    if known.contains(&value.as_str()) {
        return Ok(value);
    }
    Err(sh::usage(format!("{option} {value}: must be one of {}", known.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> sh::Result<Options> {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_become_the_devices_variables() {
        let o = words("--device mlx5 --link roce --count 2 --strict --count-doorbells -- ibv_devinfo -v")
            .unwrap();
        assert_eq!(o.command, ["ibv_devinfo", "-v"]);
        let names: Vec<&str> = o.set.iter().map(|(n, _)| *n).collect();
        let flags = ["SOFTNIC_STRICT", "SOFTNIC_COUNT_DOORBELLS"];
        assert_eq!(names, [&["SOFTNIC_DEVICE", "SOFTNIC_LINK", "SOFTNIC_COUNT"][..], &flags].concat());
    }

    #[test]
    fn help_is_asked_for_anywhere_before_the_command() {
        for line in ["--help", "--device efa --help", "--count 2 -h -- x"] {
            run(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap();
        }
        assert_eq!(words("-- x --help").unwrap().command, ["x", "--help"]);
    }

    #[test]
    fn what_is_not_there_is_said() {
        for (line, word) in [
            ("--device cx9 -- x", "cx9"),
            ("--link token-ring -- x", "token-ring"),
            ("ibv_devices", "`--`"),
            ("--link ib --", "no command"),
            ("--count", "needs a value"),
            ("--count x -- y", "--count x"),
            ("--count 65 -- y", "1 to 64"),
            ("--devices /nonexistent -- y", "/nonexistent"),
            ("--trace /nonexistent/t -- y", "/nonexistent/t"),
        ] {
            let e = words(line).unwrap_err();
            assert!(e.to_string().contains(word), "{line}: {e}");
            assert_eq!(sh::status_of(e.as_ref()) == 2, !line.contains("/nonexistent"), "{line}");
        }
    }
}
