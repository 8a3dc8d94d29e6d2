//! Running other programs: where, how loudly, and what their failure is called. What is run is the
//! commands' business.

use std::{
    env,
    error::Error,
    ffi::OsStr,
    fmt, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A failure with an exit status of its own; all others are 1.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: u8,
    why: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl Error for Ended {}

/// A command line that can not be meant.
pub(crate) fn usage(why: impl Into<String>) -> Box<dyn Error> {
    Box::new(Ended { status: 2, why: why.into() })
}

/// The exit status that a failure is told by.
pub(crate) fn status_of(why: &(dyn Error + 'static)) -> u8 {
    why.downcast_ref::<Ended>().map_or(1, |ended| ended.status)
}

/// Prints to standard output. Without a reader there is nobody to go on for: ends as a program does that `SIGPIPE` ends.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    use std::io::{ErrorKind, Write};
    match io::stdout().lock().write_fmt(what) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(141),
        Err(e) => {
            eprintln!("error: standard output: {e}");
            std::process::exit(1);
        }
    }
}

/// Prints to standard error. A remark that nobody can be told ends nothing: the exit status says the rest.
pub(crate) fn remark(what: std::fmt::Arguments<'_>) {
    use std::io::Write;
    let _ = std::io::stderr().lock().write_fmt(what);
}

/// The workspace's folder.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Where cargo builds: one folder for every command.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// The cargo that runs this, in the workspace, without input.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root()).stdin(Stdio::null());
    command
}

/// The nightly cargo, through rustup.
pub(crate) fn nightly<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new("cargo");
    command.arg("+nightly").args(args).current_dir(root()).stdin(Stdio::null());
    // The stable cargo that runs this left word of itself, which its sibling would believe.
    command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// Any other program, likewise.
pub(crate) fn program<S: AsRef<OsStr>>(name: &str, args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(name);
    command.args(args).current_dir(root()).stdin(Stdio::null());
    command
}

/// This program's own file. A build that a lane runs may have put a new one in its place, of which Linux
/// says so in the old one's name.
pub(crate) fn this_program() -> Result<PathBuf> {
    Ok(in_place(env::current_exe()?))
}

fn in_place(path: PathBuf) -> PathBuf {
    let replaced = path.to_str().and_then(|p| p.strip_suffix(" (deleted)")).map(PathBuf::from);
    replaced.unwrap_or(path)
}

/// Says what is run and runs it.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    eprintln!("$ {}", shown(command));
    let status = command.status().map_err(|e| format!("{}: {e}", shown(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", shown(command)).into()) }
}

/// [`run`], with what it prints on standard error: for a step of a command whose own output is read.
pub(crate) fn run_aside(command: &mut Command) -> Result<()> {
    run(command.stdout(io::stderr()))
}

/// Whether something comes behind what is being done.
static MORE_COMES: AtomicBool = AtomicBool::new(false);

/// From now on, [`exec`] is a mistake: it would end this program as if all of it had been done.
pub(crate) fn more_comes() {
    MORE_COMES.store(true, Ordering::Relaxed);
}

/// Becomes the program, whose exit status and signals are then its own: the last that a command of this program
/// does, and nothing for a lane, behind which others come. Comes back where there is none, with what
/// a shell says then: 127, or 126 where it can not be run.
pub(crate) fn exec(command: &mut Command) -> Result<()> {
    if MORE_COMES.load(Ordering::Relaxed) {
        return Err(format!("{} would take the place of what comes behind it", shown(command)).into());
    }
    let e = command.exec();
    let status = if e.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    Err(Box::new(Ended { status, why: format!("run {}: {e}", command.get_program().display()) }))
}

/// Runs quietly and returns standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let out = command.output().map_err(|e| format!("{}: {e}", shown(command)))?;
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        return Err(format!("{}: {}: {}", shown(command), out.status, why.trim()).into());
    }
    Ok(String::from_utf8(out.stdout)?)
}

/// Whether it runs and succeeds, quietly.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// The command as a person would type it, without the folders of its program.
fn shown(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Makes sure that the system has `packages`, installing what is missing where this is Debian and root.
pub(crate) fn debian_packages(packages: &[&str]) -> Result<()> {
    let installed = |p: &&&str| {
        output(&mut program("dpkg-query", ["-W", "-f=${Status}", p]))
            .is_ok_and(|s| s.contains("ok installed"))
    };
    let missing: Vec<&str> = packages.iter().filter(|p| !installed(p)).copied().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !succeeds(&mut program("apt-get", ["--version"])) {
        return Err(format!("needs {list}, and this system has no apt to install them with").into());
    }
    if output(&mut program("id", ["-u"]))?.trim() != "0" {
        return Err(format!("needs {list}; as root: apt-get install {list}").into());
    }
    eprintln!("installing {list}");
    let apt = |args: &[&str]| output(program("apt-get", args).env("DEBIAN_FRONTEND", "noninteractive"));
    apt(&["update", "-qq"])?;
    apt(&[&["install", "-y", "-qq", "--no-install-recommends"], missing.as_slice()].concat()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_typed() {
        assert_eq!(shown(&program("/usr/bin/true", ["a", "b c"])), "true a b c");
    }

    #[test]
    fn a_failure_names_the_command_and_its_words() {
        let e = output(&mut program("sh", ["-c", "echo why >&2; exit 3"])).unwrap_err().to_string();
        assert!(e.starts_with("sh -c") && e.contains("exit status: 3") && e.ends_with("why"), "{e}");
        assert!(run(&mut program("false", [""; 0])).is_err());
        assert!(!succeeds(&mut program("no-such-program", [""; 0])));
    }

    #[test]
    fn what_can_not_be_run_is_told_from_what_is_not_there() {
        let status = |name: &str| status_of(exec(&mut program(name, [""; 0])).unwrap_err().as_ref());
        assert_eq!((status("no-such-program"), status("/dev/null")), (127, 126));
        more_comes();
        let refused = exec(&mut program("true", ["x"])).unwrap_err();
        assert_eq!(refused.to_string(), "true x would take the place of what comes behind it");
        assert_eq!((status_of(usage("x").as_ref()), status_of(Box::<dyn Error>::from("x").as_ref())), (2, 1));
    }

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("Cargo.toml").is_file() && root().join("xtask").is_dir());
    }

    #[test]
    fn a_program_that_was_built_anew_meanwhile_is_found_in_its_place() {
        assert_eq!(in_place("/t/debug/xtask (deleted)".into()), Path::new("/t/debug/xtask"));
        assert_eq!(in_place("/t/debug/xtask".into()), Path::new("/t/debug/xtask"));
    }
}
