//! Finds the facts on the machine it runs on. What sysfs tells of RDMA devices is read in `sysfs.rs`; what
//! any of it means is not said here.
//!
//! Every file is looked for below one root, so a copied or made-up tree will do. What can not be read is
//! left out: a sandbox without `/proc` is no reason to say nothing.

use super::{
    snapshot::{
        Attempt, Claim, Device, GidRow, Hugepages, Kernel, Library, LibraryState, Look, Memlock, Module,
        ModuleState, Node, Opening, Port, Snapshot, User, VERSION, Variable,
    },
    sysfs::{self, files, line},
};
use ibv::{Caps, IbvDeviceInfo, Registry, registry::ProviderDevices};
use ibv_sys::{LibraryVersion, LoadError};
use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};

/// What a verbs program may need, what makes a software device, and who registers memory of GPUs.
const MODULES: [&str; 9] = [
    "ib_core",
    "ib_uverbs",
    "mlx5_ib",
    "efa",
    "rdma_rxe",
    "nvidia",
    "nvidia_peermem",
    "nv_peer_mem",
    "amdgpu",
];
/// CAP_IPC_LOCK (include/uapi/linux/capability.h).
const IPC_LOCK: u32 = 14;

/// The facts of this process's machine, with files below `root`, which is `/` but for tests.
pub(crate) fn collect(root: &Path, registry: &dyn Fn() -> Registry) -> Snapshot {
    // Loads the libraries and their plugins, which is why it comes first.
    let registry = registry();
    let survey = registry.survey();
    let libraries = libraries();
    let providers = survey.iter().map(look).collect();
    let devices = devices(root, survey, &registry);
    Snapshot {
        version: VERSION,
        ibv: env!("CARGO_PKG_VERSION").into(),
        kernel: kernel(root),
        libraries,
        mapped: mapped(root),
        nodes: nodes(root),
        user: user(root),
        hugepages: hugepages(root),
        ring_variables: ibv_sys::ring_variables().into_iter().map(variable).collect(),
        adapters: sysfs::adapters(root),
        netdevs: sysfs::netdevs(root, &devices),
        providers,
        devices,
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn libraries() -> Vec<Library> {
    vec![
        library("libibverbs.so.1", ibv_sys::verbs().err()),
        library("libmlx5.so.1", ibv_sys::mlx5dv().err()),
        library("libefa.so.1", ibv_sys::efadv().err()),
    ]
}

fn library(name: &str, error: Option<LoadError>) -> Library {
    let state = match error {
        None => match ibv_sys::versions().into_iter().find(|v| v.library == name) {
            Some(version) => loaded(&version),
            None => LibraryState::Unusable { error: "loaded, and not listed as such".into() },
        },
        Some(LoadError::LibraryNotFound { variable, tried, .. }) => {
            let attempt = |a: ibv_sys::Attempt| Attempt { file: text(&a.file), answer: a.answer };
            LibraryState::NotFound {
                variable: variable.into(),
                tried: tried.into_iter().map(attempt).collect(),
            }
        }
        Some(LoadError::PluginMismatch { variable, loaded, plugin, .. }) => LibraryState::TwoCopies {
            variable: variable.into(),
            loaded: text(&loaded),
            plugin: text(&plugin),
        },
        Some(other) => LibraryState::Unusable { error: other.to_string() },
    };
    Library { name: name.into(), state }
}

fn loaded(version: &LibraryVersion) -> LibraryState {
    LibraryState::Loaded {
        path: text(&version.path),
        file: text(&version.file),
        file_version: version.file_version.clone(),
        absent: version.absent.iter().map(|name| (*name).into()).collect(),
    }
}

/// proc(5): the path is the sixth field of a line of `maps`, and is the file's own, not a link's.
fn mapped(root: &Path) -> Vec<String> {
    let maps = fs::read_to_string(root.join("proc/self/maps")).unwrap_or_default();
    let ours = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        ["libibverbs", "libmlx5", "libefa"].iter().any(|prefix| name.starts_with(prefix))
    };
    let paths: BTreeSet<&str> =
        maps.lines().filter_map(|l| l.find('/').map(|at| &l[at..])).filter(ours).collect();
    paths.into_iter().map(str::to_owned).collect()
}

fn kernel(root: &Path) -> Kernel {
    let release = line(&root.join("proc/sys/kernel/osrelease"));
    let folder = root.join("lib/modules").join(release.as_deref().unwrap_or("unknown"));
    let list = |file: &str| fs::read_to_string(folder.join(file)).ok();
    let (loadable, built_in) = (list("modules.dep"), list("modules.builtin").unwrap_or_default());
    let running = fs::read_to_string(root.join("proc/modules")).unwrap_or_default();
    let state = |name: &str| {
        let running = running.lines().any(|l| l.split(' ').next() == Some(name));
        let built_in =
            lists(&built_in, name) || class_of(name).is_some_and(|class| root.join(class).exists());
        if running || root.join("sys/module").join(name).exists() || built_in {
            return ModuleState::Loaded;
        }
        match &loadable {
            None => ModuleState::NotLoaded,
            Some(list) if lists(list, name) => ModuleState::Available,
            Some(_) => ModuleState::Absent,
        }
    };
    let modules = MODULES.map(|name| Module { name: name.into(), state: state(name) });
    Kernel { release, arch: std::env::consts::ARCH.into(), modules: modules.into() }
}

/// The class that a module registers: a sign of it where it is built in and has no folder of its own.
fn class_of(module: &str) -> Option<&'static str> {
    match module {
        "ib_core" => Some("sys/class/infiniband"),
        "ib_uverbs" => Some("sys/class/infiniband_verbs"),
        _ => None,
    }
}

/// Whether a line of modules.dep or modules.builtin begins with the module's file, compressed or not.
fn lists(list: &str, name: &str) -> bool {
    let module_of = |l: &str| {
        let file = l.split(':').next()?.rsplit('/').next()?;
        Some(file.split_once(".ko")?.0.replace('-', "_"))
    };
    list.lines().any(|l| module_of(l).is_some_and(|module| module == name))
}

fn nodes(root: &Path) -> Vec<Node> {
    let folder = root.join("dev/infiniband");
    files(&folder).into_iter().filter_map(|name| node(root, &folder.join(&name), &name)).collect()
}

fn node(root: &Path, path: &Path, name: &str) -> Option<Node> {
    let about = fs::metadata(path).ok()?;
    if about.is_dir() {
        return None;
    }
    // Not every node: opening an `issm` one makes the port a subnet manager's. And no pipe, which would wait.
    let harmless = (name.starts_with("uverbs") || name == "rdma_cm") && !about.file_type().is_fifo();
    let open = match harmless.then(|| OpenOptions::new().read(true).write(true).open(path)) {
        None => Opening::NotTried,
        Some(Ok(_)) => Opening::Opened,
        Some(Err(e)) => Opening::Refused(e.to_string()),
    };
    Some(Node {
        path: format!("/dev/infiniband/{name}"),
        mode: format!("{:04o}", about.mode() & 0o7777),
        uid: about.uid(),
        gid: about.gid(),
        device: line(&root.join("sys/class/infiniband_verbs").join(name).join("ibdev")),
        open,
    })
}

fn user(root: &Path) -> User {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
    // Real, effective, saved, file system; the second is what opening a node goes by.
    let uid = field("Uid:").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok());
    let own = field("Gid:").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok());
    let more = field("Groups:").unwrap_or_default().split_whitespace().filter_map(|id| id.parse().ok());
    let groups: BTreeSet<u32> = own.into_iter().chain(more).collect();
    let effective = field("CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok());
    User {
        uid,
        groups: groups.into_iter().collect(),
        ipc_lock: effective.map(|bits| bits >> IPC_LOCK & 1 == 1),
        memlock: fs::read_to_string(root.join("proc/self/limits")).ok().as_deref().and_then(memlock),
    }
}

/// proc(5): soft and hard limit behind the name, in bytes.
fn memlock(limits: &str) -> Option<Memlock> {
    let mut both = limits.lines().find_map(|l| l.strip_prefix("Max locked memory"))?.split_whitespace();
    let mut limit = || match both.next()? {
        "unlimited" => Some(None),
        bytes => Some(Some(bytes.parse().ok()?)),
    };
    Some(Memlock { soft: limit()?, hard: limit()? })
}

fn hugepages(root: &Path) -> Vec<Hugepages> {
    let folder = root.join("sys/kernel/mm/hugepages");
    let pool = |name: String| {
        let count = |file: &str| line(&folder.join(&name).join(file))?.parse().ok();
        let size_kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        Some(Hugepages { size_kib, total: count("nr_hugepages")?, free: count("free_hugepages")? })
    };
    files(&folder).into_iter().filter_map(pool).collect()
}

fn variable(set: ibv_sys::RingVariable) -> Variable {
    Variable { name: set.name.into(), value: set.value.to_string_lossy().into(), effect: set.effect.into() }
}

fn look(found: &ProviderDevices) -> Look {
    Look { provider: found.provider.into(), error: found.devices.as_ref().err().map(ToString::to_string) }
}

/// What sysfs lists, and what providers see beyond that, with every provider's word on each.
fn devices(root: &Path, survey: Vec<ProviderDevices>, registry: &Registry) -> Vec<Device> {
    let mut all = sysfs::devices(root);
    for ProviderDevices { provider, devices } in survey {
        for (info, claim) in devices.unwrap_or_default() {
            let (claimed, reason) = match claim {
                ibv::Claim::Yes(why) => (true, why),
                ibv::Claim::No(why) => (false, why),
            };
            let open = || registry.open_with(provider, &info.name).map(|domain| absent(&domain.caps()));
            let opened = if claimed { open() } else { Ok(Vec::new()) };
            let open_error = opened.as_ref().err().map(ToString::to_string);
            let absent = opened.unwrap_or_default();
            let claim = Claim { provider: provider.into(), claimed, reason, open_error, absent };
            let at = all.iter().position(|d| d.name == info.name).unwrap_or_else(|| {
                all.push(sysfs::unlisted(&info.name));
                all.len() - 1
            });
            enrich(&mut all[at], info);
            all[at].claims.push(claim);
        }
    }
    all
}

fn absent(caps: &Caps) -> Vec<String> {
    let rows = caps.rows().into_iter().filter(|(_, value)| value == "absent");
    rows.map(|(name, _)| name.into()).collect()
}

/// An open device knows more than sysfs, which has no active MTU.
fn enrich(device: &mut Device, info: IbvDeviceInfo) {
    device.kind = info.kind;
    if !info.fw_ver.is_empty() {
        device.fw_ver = info.fw_ver;
    }
    if !info.ports.is_empty() {
        device.ports = info.ports.into_iter().map(port).collect();
    }
    let behind = device.ports.iter().flat_map(|p| &p.gids).filter_map(|g| g.netdev.clone());
    let all: BTreeSet<String> = device.netdevs.drain(..).chain(behind).collect();
    device.netdevs = all.into_iter().collect();
}

fn port(port: ibv::IbvPort) -> Port {
    let gid =
        |e: ibv::GidEntry| GidRow { index: e.index, gid: e.gid, gid_type: e.gid_type, netdev: e.netdev };
    Port {
        port: port.port_num,
        state: port.state.into(),
        link_layer: port.link_layer,
        active_mtu: Some(port.active_mtu.bytes()),
        lid: port.lid,
        gids: port.gids.into_iter().map(gid).collect(),
    }
}

#[cfg(test)]
mod tests;
