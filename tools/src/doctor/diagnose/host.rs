//! What is wrong with the host as a whole: libraries, kernel modules, limits, environment. Device nodes are
//! `node.rs`'s, devices and ports `device.rs`'s.

use super::{Cause, Finding, node};
use crate::doctor::snapshot::{
    Adapter, Attempt, Device, Library, LibraryState, Look, ModuleState, Snapshot, Variable,
};
use std::collections::BTreeSet;

/// Locked memory that does not even hold a queue pair's rings and a small region, bytes.
const MEMLOCK_UNUSABLE: u64 = 1 << 20;
/// Locked memory below which an ordinary program's buffers do not fit, bytes.
const MEMLOCK_TIGHT: u64 = 1 << 30;
/// The first kernel whose ib_core registers dma-bufs.
const DMABUF_KERNEL: (u32, u32) = (5, 12);

pub(super) fn diagnose(facts: &Snapshot) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(libraries(facts));
    all.extend(two_copies(facts));
    all.extend(modules(facts));
    all.extend(adapters(facts));
    all.extend(no_device(facts));
    all.extend(node::missing(facts));
    all.extend(node::of_no_device(facts));
    all.extend(memlock(facts));
    all.extend(facts.ring_variables.iter().filter_map(|v| ring_variable(facts, v)));
    all.extend(providers(facts));
    all.extend(gpu_memory(facts));
    all
}

/// Whether the host has, or should have, devices that this vendor library drives.
fn needed(facts: &Snapshot, library: &str) -> bool {
    let (driver, vendor) = match library {
        "libmlx5.so.1" => ("mlx5", "0x15b3"),
        "libefa.so.1" => ("efa", "0x1d0f"),
        _ => return true,
    };
    let driven = |name: &Option<String>| name.as_ref().is_some_and(|n| n.starts_with(driver));
    facts.real_devices().any(|d| driven(&d.driver) || d.name.starts_with(driver))
        || facts.adapters.iter().any(|a| a.vendor == vendor)
}

fn lacking(library: &Library) -> bool {
    !matches!(library.state, LibraryState::Loaded { .. })
}

pub(super) fn lacks_libibverbs(facts: &Snapshot) -> bool {
    facts.library("libibverbs").is_some_and(lacking)
}

/// Whether a library that some device here needs can not be used.
pub(super) fn lacks_library(facts: &Snapshot) -> bool {
    facts.libraries.iter().any(|l| lacking(l) && needed(facts, &l.name))
}

/// Whether the vendor library that drives this device can not be used, so that its provider sees nothing.
pub(super) fn lacks_library_of(facts: &Snapshot, device: &Device) -> bool {
    let driver = device.driver.as_deref().unwrap_or_default();
    let vendors = [("mlx5", "libmlx5"), ("efa", "libefa")];
    let library = vendors.iter().find(|(prefix, _)| driver.starts_with(prefix));
    library.and_then(|(_, name)| facts.library(name)).is_some_and(lacking)
}

fn libraries(facts: &Snapshot) -> Vec<Finding> {
    let mut all = Vec::new();
    for library in facts.libraries.iter().filter(|l| needed(facts, &l.name)) {
        match &library.state {
            LibraryState::Loaded { .. } | LibraryState::TwoCopies { .. } => {}
            LibraryState::NotFound { variable, tried } => {
                all.push(
                    Finding::error(Cause::LibraryMissing, &library.name)
                        .found(format!("not found; tried {}", list_of(tried)))
                        .wanted("a file that the dynamic linker finds")
                        .action(format!(
                            "install rdma-core ({}), or set {variable} to the file's path",
                            packages(&library.name)
                        )),
                );
            }
            LibraryState::Unusable { error } => all.push(
                Finding::error(Cause::LibraryUnusable, &library.name)
                    .found(error.clone())
                    .wanted("a library with every function that the providers need")
                    .action("install a newer rdma-core"),
            ),
        }
    }
    all
}

fn packages(library: &str) -> &'static str {
    match library {
        "libibverbs.so.1" => "Debian, Ubuntu: libibverbs1 ibverbs-providers; Fedora: libibverbs",
        _ => "Debian, Ubuntu: ibverbs-providers; Fedora: libibverbs",
    }
}

fn list_of(tried: &[Attempt]) -> String {
    let each: Vec<_> = tried.iter().map(|a| format!("{} ({})", a.file, a.answer)).collect();
    if each.is_empty() { "nothing".into() } else { each.join(", ") }
}

fn two_copies(facts: &Snapshot) -> Vec<Finding> {
    let mut all = Vec::new();
    for library in &facts.libraries {
        let stem = library.name.split('.').next().unwrap_or(&library.name);
        let copies: BTreeSet<&str> = match &library.state {
            LibraryState::TwoCopies { loaded, plugin, .. } => [loaded.as_str(), plugin.as_str()].into(),
            _ => facts.mapped.iter().map(String::as_str).filter(|path| is_copy(path, stem)).collect(),
        };
        if copies.len() > 1 {
            let copies: Vec<_> = copies.into_iter().collect();
            all.push(
                Finding::error(Cause::TwoCopies, &library.name)
                    .found(copies.join(" and "))
                    .wanted("one copy: two do not know each other's devices and answer EOPNOTSUPP")
                    .action(format!(
                        "unset IBV_{} and take the other copy out of LD_LIBRARY_PATH, or uninstall it",
                        stem.to_uppercase()
                    )),
            );
        }
    }
    all
}

/// The library itself or libibverbs' name for it as a plugin: `libmlx5.so.1.24.44.0`, `libmlx5-rdmav34.so`.
fn is_copy(path: &str, stem: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.strip_prefix(stem).is_some_and(|rest| rest.starts_with(['.', '-']))
}

/// Only where no provider lists a device: one that is listed has what it needs.
fn modules(facts: &Snapshot) -> Vec<Finding> {
    if facts.real_devices().any(|d| !d.claims.is_empty()) {
        return Vec::new();
    }
    let mut wanted = vec!["ib_core", "ib_uverbs"];
    let has = |vendor: &str| facts.adapters.iter().any(|a| a.vendor == vendor);
    wanted.extend(has("0x15b3").then_some("mlx5_ib"));
    wanted.extend(has("0x1d0f").then_some("efa"));
    let missing = |name: &&str| facts.module(name).is_some_and(|state| state != ModuleState::Loaded);
    wanted.into_iter().filter(missing).map(|name| module(facts, name)).collect()
}

fn module(facts: &Snapshot, name: &str) -> Finding {
    let release = facts.kernel.release.as_deref().unwrap_or("of unknown release");
    let (found, action) = match facts.module(name) {
        Some(ModuleState::Available) => {
            (format!("installed for kernel {release} and not loaded"), format!("modprobe {name}"))
        }
        Some(ModuleState::Absent) => (
            format!("kernel {release} is installed without it"),
            "install the kernel's full set of modules (Debian: linux-image-amd64 instead of a cloud image; Ubuntu: linux-modules-extra), or boot a kernel with CONFIG_INFINIBAND".into(),
        ),
        _ => (
            format!("not loaded, and the modules of kernel {release} are not installed here"),
            format!(
                "on the machine whose kernel this is (a container or a virtual machine's guest may not be able to): modprobe {name}, or boot a kernel with CONFIG_INFINIBAND"
            ),
        ),
    };
    Finding::error(Cause::ModuleMissing, format!("kernel module {name}"))
        .found(found)
        .wanted("loaded")
        .action(action)
}

fn adapters(facts: &Snapshot) -> Vec<Finding> {
    let idle = |a: &&Adapter| a.rdma.is_empty() && facts.real_devices().all(|d| !d.in_sysfs);
    let finding = |a: &Adapter| {
        let driver = a.driver.as_deref().unwrap_or("none");
        let (wanted, action) = match (a.vendor.as_str(), driver) {
            (_, "vfio-pci" | "uio_pci_generic") => {
                ("the vendor's kernel driver", "give it back to the kernel: it is lent to a guest or to DPDK")
            }
            ("0x15b3", _) => ("mlx5_core, and mlx5_ib on it", "modprobe mlx5_ib, and read dmesg | grep mlx5"),
            _ => ("efa", "modprobe efa, and read dmesg | grep efa"),
        };
        Finding::error(
            Cause::AdapterWithoutDriver,
            format!("adapter {} ({}:{})", a.address, a.vendor, a.device),
        )
        .found(format!("driver {driver}, no RDMA device"))
        .wanted(wanted)
        .action(action)
    };
    facts.adapters.iter().filter(idle).map(finding).collect()
}

fn no_device(facts: &Snapshot) -> Option<Finding> {
    if facts.real_devices().next().is_some() {
        return None;
    }
    let (found, action) = match facts.adapters.len() {
        0 => (
            "the kernel lists none, and the PCI bus has no RDMA adapter".into(),
            match facts.module("rdma_rxe") {
                Some(ModuleState::Loaded | ModuleState::Available) => {
                    "without an adapter, a network interface will do: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev NAME"
                }
                _ => {
                    "run where there is an adapter, or a kernel with Soft-RoCE (rdma_rxe, CONFIG_RDMA_RXE); what needs no device runs here on the provider mock"
                }
            },
        ),
        n => (
            format!("the kernel lists none, and the PCI bus has {n} adapter(s)"),
            "load the adapter's driver, as said above",
        ),
    };
    let at_least = "one in /sys/class/infiniband";
    Some(Finding::error(Cause::NoDevice, "RDMA devices").found(found).wanted(at_least).action(action))
}

fn memlock(facts: &Snapshot) -> Option<Finding> {
    let limit = facts.user.memlock?;
    let soft = limit.soft?;
    if facts.user.ipc_lock == Some(true) || soft >= MEMLOCK_TIGHT {
        return None;
    }
    let about = "limit on locked memory";
    let finding = match soft < MEMLOCK_UNUSABLE {
        true => Finding::error(Cause::MemlockTooLow, about),
        false => Finding::warning(Cause::MemlockTooLow, about),
    };
    let hard = limit.hard.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes / 1024));
    let raise = match limit.hard {
        None => "ulimit -l unlimited",
        Some(_) => {
            "raise memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit, or docker run --ulimit memlock=-1; then log in anew"
        }
    };
    Some(
        finding
            .found(format!("{} KiB (hard limit {hard}), and no CAP_IPC_LOCK", soft / 1024))
            .wanted("unlimited: registered memory and queues count as locked")
            .action(raise),
    )
}

/// What a provider refuses is an error where the host has such a device. The others only change rings that
/// the providers measure, so they are facts and no findings.
fn ring_variable(facts: &Snapshot, set: &Variable) -> Option<Finding> {
    let Variable { name, value, effect } = set;
    let refused = match name.as_str() {
        "MLX5_QP_SIGNATURE" => value != "0",
        "MLX5_SINGLE_THREADED" => value == "1",
        _ => false,
    };
    if !refused {
        return None;
    }
    let finding = match needed(facts, "libmlx5.so.1") {
        true => Finding::error(Cause::RingVariable, name),
        false => Finding::warning(Cause::RingVariable, name),
    };
    Some(
        finding
            .found(format!("{name}={value}: {effect}"))
            .wanted("not set: with it, mlx5 devices or their queue pairs are refused")
            .action(format!("unset {name}")),
    )
}

/// A provider that could not list devices, where no library above is to blame.
fn providers(facts: &Snapshot) -> Vec<Finding> {
    if lacks_libibverbs(facts) || facts.real_devices().any(|d| !d.claims.is_empty()) {
        return Vec::new();
    }
    let blind = |look: &Look| {
        let error = look.error.clone()?;
        Some(
            Finding::error(Cause::ProviderBlind, format!("provider {}", look.provider))
                .found(error)
                .wanted("a list of devices, even an empty one")
                .action("do what the error says"),
        )
    };
    facts.providers.iter().filter_map(blind).collect()
}

/// An NVIDIA driver whose memory no NIC can be given, neither as a dma-buf nor through a peer-memory module.
fn gpu_memory(facts: &Snapshot) -> Option<Finding> {
    let loaded = |name: &str| facts.module(name) == Some(ModuleState::Loaded);
    let kernel = facts.kernel.release.as_deref().and_then(version);
    let dmabuf = facts.dmabuf_function() != Some(false) && kernel.is_none_or(|v| v >= DMABUF_KERNEL);
    if !loaded("nvidia") || loaded("nvidia_peermem") || loaded("nv_peer_mem") || dmabuf {
        return None;
    }
    let release = facts.kernel.release.as_deref().unwrap_or("unknown");
    let function = if facts.dmabuf_function() == Some(false) { "without" } else { "with" };
    Some(
        Finding::warning(Cause::GpuMemory, "GPU memory")
            .found(format!(
                "kernel {release}, libibverbs {function} ibv_reg_dmabuf_mr, and no peer-memory module"
            ))
            .wanted("kernel 5.12 or newer and libibverbs with it, or nvidia_peermem")
            .action("modprobe nvidia_peermem, or install a newer kernel and rdma-core"),
    )
}

/// `6.1.0-18-amd64` as 6 and 1.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
