//! `cargo xtask conformance` and `cargo xtask mutants`: two programs of the workspace, found by name.
//! What they print is theirs; nothing else goes to standard output.

use crate::{
    sh::{Result, target},
    softnic, workspace,
};
use std::{fs, process::Command};

/// A software device whose messages are short enough for the suite to test splitting by copying.
const DEVICE: &str = "[[device]]
name = \"mlx5_0\"
[[device.port]]
link = \"ib\"
lid = 1
max_message = 65536
gids = [{ gid = \"fe80::1\", type = \"ib\" }]
";

/// Runs the suite over the providers that the command line has: see `--help`. With `--softnic`, which is
/// taken out here, on software ConnectX devices under the system's own libibverbs; so too where a
/// provider that needs a device is named and the host has none.
pub(crate) fn conformance(args: &[String]) -> Result<()> {
    let (asked, rest): (Vec<_>, Vec<_>) = args.iter().cloned().partition(|arg| arg == "--softnic");
    let stands_in = asked.is_empty() && names_a_device_provider(&rest) && !has_rdma_device();
    if stands_in {
        eprintln!(
            "this host has no RDMA device: running on software ConnectX devices, never to be taken for hardware"
        );
    }
    if asked.is_empty() && !stands_in {
        return passed(
            "conformance",
            Command::new(workspace::program_of_ours("ibv")?).arg("conformance").args(rest),
        );
    }
    let ibv = workspace::program_of_ours("ibv")?.display().to_string();
    let session = format!("xtask-conformance-{}", std::process::id());
    let device = target().join("softnic-suite.toml");
    fs::write(&device, DEVICE)?;
    let device = device.display().to_string();
    let front = ["--session", &session, "--devices", &device, "--", &ibv, "conformance"].map(String::from);
    softnic::run(&[&front, rest.as_slice()].concat())
}

/// Whether `--provider` names one that drives devices of the kernel's.
fn names_a_device_provider(args: &[String]) -> bool {
    let named = args.windows(2).filter(|pair| pair[0] == "--provider").map(|pair| pair[1].as_str());
    let joined = args.iter().filter_map(|arg| arg.strip_prefix("--provider="));
    named.chain(joined).any(|name| ["mlx5", "verbs"].contains(&name))
}

/// Whether the kernel lists an RDMA device.
fn has_rdma_device() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut dir| dir.next().is_some())
}

/// Runs the suite over deliberately broken providers.
pub(crate) fn mutants(args: &[String]) -> Result<()> {
    passed("mutants", Command::new(workspace::program_of_ours("mutants")?).args(args))
}

fn passed(what: &str, command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|e| format!("{what}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what}: {status}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_providers_that_need_a_device_get_a_software_one() {
        let named =
            |args: &[&str]| names_a_device_provider(&args.iter().map(|a| a.to_string()).collect::<Vec<_>>());
        assert!(named(&["--json", "--provider", "mlx5"]) && named(&["--provider=verbs"]));
        assert!(!named(&["--provider", "mock", "--case", "mlx5"]) && !named(&["--require", "mlx5"]));
    }
}
