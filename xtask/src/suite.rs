//! `cargo xtask conformance` and `cargo xtask mutants`: two programs of the workspace, found by name.
//! What they print is theirs, and so is the exit status; nothing else goes to standard output.

use crate::{
    sh::{Result, target, usage},
    softnic, workspace,
};
use std::{fs, process::Command};

/// A software device whose messages are short enough for the suite to test splitting by copying.
const CONNECTX: &str = r#"
[[device]]
name = "mlx5_0"
[[device.port]]
link = "ib"
lid = 1
max_message = 65536
gids = [{ gid = "fe80::1", type = "ib" }]
"#;
/// Two adapters that shuffle and two that keep order, whose RDMA is short: one does not have to reach itself.
const EFA: &str = r#"
[[device]]
name = "rdmap0s6"
kind = "efa"
efa = { seed = 11 }
[[device.port]]

[[device]]
name = "rdmap1s6"
kind = "efa"
efa = { seed = 12 }
[[device.port]]

[[device]]
name = "rdmap2s6"
kind = "efa"
efa = { in_order = true, max_rdma_size = 65536 }
[[device.port]]

[[device]]
name = "rdmap3s6"
kind = "efa"
efa = { in_order = true, max_rdma_size = 65536 }
[[device.port]]
"#;

/// The suite over the providers that the command line has: see `--help`. With `--softnic`, which is
/// taken out here, on software devices under the system's own libibverbs, or under that of `--rdma-core SUITE`,
/// taken out too; so too where a provider that needs a device is named and the host has none.
pub(crate) fn conformance(args: &[String]) -> Result<Command> {
    let (asked, rest): (Vec<_>, Vec<_>) = args.iter().cloned().partition(|arg| arg == "--softnic");
    let (suite, rest) = take_value(&rest, "--rdma-core")?;
    let asked = !asked.is_empty() || suite.is_some();
    let stands_in = !asked && names(&rest, &["efa", "mlx5", "verbs"]) && !has_rdma_device();
    if stands_in {
        eprintln!(
            "this host has no RDMA device: running on software devices, never to be taken for hardware"
        );
    }
    if !asked && !stands_in {
        let mut suite = Command::new(workspace::program_of_ours("ibv")?);
        suite.arg("conformance").args(rest);
        return Ok(suite);
    }
    let ibv = workspace::program_of_ours("ibv")?.display().to_string();
    let session = format!("xtask-conformance-{}", std::process::id());
    let machine = target().join("softnic-suite.toml");
    // Each provider has to leave the other's devices alone.
    let efa = if names(&rest, &["efa"]) { EFA } else { "" };
    fs::write(&machine, [CONNECTX, efa].concat())?;
    let mut front =
        ["--session", &session, "--devices", &machine.display().to_string()].map(String::from).to_vec();
    front.extend(suite.into_iter().flat_map(|suite| ["--rdma-core".to_owned(), suite]));
    front.extend(["--".into(), ibv, "conformance".into()]);
    softnic::command(&[front, rest].concat())
}

/// An option's value, and the other arguments.
fn take_value(args: &[String], option: &str) -> Result<(Option<String>, Vec<String>)> {
    let Some(at) = args.iter().position(|arg| arg == option) else { return Ok((None, args.to_vec())) };
    let value = args.get(at + 1).ok_or_else(|| usage(format!("{option} needs a value")))?;
    Ok((Some(value.clone()), [&args[..at], &args[at + 2..]].concat()))
}

/// Whether `--provider` names one of these.
fn names(args: &[String], providers: &[&str]) -> bool {
    let named = args.windows(2).filter(|pair| pair[0] == "--provider").map(|pair| pair[1].as_str());
    let joined = args.iter().filter_map(|arg| arg.strip_prefix("--provider="));
    named.chain(joined).any(|name| providers.contains(&name))
}

/// Whether the kernel lists an RDMA device.
fn has_rdma_device() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut dir| dir.next().is_some())
}

/// The suite over deliberately broken providers.
pub(crate) fn mutants(args: &[String]) -> Result<Command> {
    let mut mutants = Command::new(workspace::program_of_ours("mutants")?);
    mutants.args(args);
    Ok(mutants)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(args: &[&str]) -> Vec<String> {
        args.iter().map(|a| a.to_string()).collect()
    }

    #[test]
    fn only_providers_that_need_a_device_get_a_software_one() {
        let named = |args: &[&str]| names(&words(args), &["efa", "mlx5", "verbs"]);
        assert!(named(&["--json", "--provider", "mlx5"]) && named(&["--provider=verbs"]));
        assert!(named(&["--provider", "efa"]) && !names(&words(&["--provider", "mlx5"]), &["efa"]));
        assert!(!named(&["--provider", "mock", "--case", "mlx5"]) && !named(&["--require", "mlx5"]));
    }

    #[test]
    fn an_option_is_taken_out_with_its_value() {
        let args = words(&["--json", "--rdma-core", "newest", "--provider", "efa"]);
        let (value, rest) = take_value(&args, "--rdma-core").unwrap();
        assert_eq!((value.as_deref(), rest), (Some("newest"), words(&["--json", "--provider", "efa"])));
        assert_eq!(take_value(&args, "--case").unwrap(), (None, args.clone()));
        assert!(take_value(&args, "efa").is_err());
    }
}
