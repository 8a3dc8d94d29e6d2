//! `ibv doctor`: what keeps RDMA from working on a machine, and what to do. Facts are collected
//! ([`collect`]) into a [`Snapshot`], which a pure function judges ([`diagnose`]); here both become a report.

mod collect;
mod diagnose;
mod snapshot;
mod sysfs;

use crate::{Failure, devices::kind_name};
use comfy_table::{ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};
use diagnose::{Finding, Severity};
use ibv::Registry;
use serde::Serialize;
use snapshot::{Device, LibraryState, ModuleState, Opening, Port, Snapshot};
use std::{fmt, path::Path};

/// Columns of a terminal that the table of facts takes; longer facts wrap.
const WIDTH: u16 = 120;

/// Facts and findings. Serializes as `--json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    usable: bool,
    findings: Vec<Finding>,
    snapshot: Snapshot,
}

impl Report {
    /// Looks at this machine, and opens every device that a provider of `registry` claims.
    pub(crate) fn of_this_machine(registry: &dyn Fn() -> Registry) -> Self {
        Self::of(collect::collect(Path::new("/"), registry))
    }

    /// Judges what another machine wrote.
    ///
    /// # Errors
    /// As [`Snapshot::read`].
    pub(crate) fn from_file(path: &Path) -> Result<Self, Failure> {
        Ok(Self::of(Snapshot::read(path)?))
    }

    fn of(snapshot: Snapshot) -> Self {
        let findings = diagnose::diagnose(&snapshot);
        Self { usable: diagnose::usable(&findings), findings, snapshot }
    }

    /// # Errors
    /// As [`Snapshot::write`].
    pub(crate) fn write_snapshot(&self, path: &Path) -> Result<(), Failure> {
        self.snapshot.write(path)
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|f| f.severity == severity).count()
    }

    /// # Errors
    /// `Unusable` where nothing can be used.
    pub(crate) fn verdict(&self) -> Result<(), Failure> {
        if self.usable { Ok(()) } else { Err(Failure::Unusable(self.count(Severity::Error))) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", table(&facts(&self.snapshot)))?;
        for finding in &self.findings {
            let Finding { severity, about, found, wanted, action, .. } = finding;
            writeln!(
                f,
                "\n{}: {about}\n  found:  {found}\n  wanted: {wanted}\n  do:     {action}",
                severity.name()
            )?;
        }
        let verdict = if self.usable { "RDMA can be used" } else { "RDMA can not be used" };
        let (errors, warnings) = (self.count(Severity::Error), self.count(Severity::Warning));
        write!(f, "\n{verdict}: {errors} error(s), {warnings} warning(s)")
    }
}

fn table(rows: &[(String, String)]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_header(["fact", "found"]);
    for (fact, found) in rows {
        table.add_row([fact, found]);
    }
    table
}

fn facts(s: &Snapshot) -> Vec<(String, String)> {
    let mut rows = vec![("kernel".into(), format!("{}, {}", or_unknown(&s.kernel.release), s.kernel.arch))];
    rows.extend(s.kernel.modules.iter().map(|m| (format!("module {}", m.name), module(m.state).into())));
    rows.extend(s.libraries.iter().map(|l| (l.name.clone(), library(&l.state))));
    rows.extend(s.adapters.iter().map(|a| {
        let driver = a.driver.as_deref().unwrap_or("none");
        (format!("adapter {}", a.address), format!("{}:{}, driver {driver}", a.vendor, a.device))
    }));
    rows.push(("device nodes".into(), nodes(s)));
    rows.push(("locked memory".into(), memlock(s)));
    rows.push(("huge pages".into(), hugepages(s)));
    rows.push(("GPU memory".into(), gpu_memory(s)));
    let set = s.ring_variables.iter().map(|v| (v.name.clone(), format!("{}: {}", v.value, v.effect)));
    rows.extend(set);
    for look in &s.providers {
        let seen = s.devices.iter().filter(|d| d.claims.iter().any(|c| c.provider == look.provider)).count();
        let found = look.error.clone().unwrap_or(format!("sees {seen} device(s)"));
        rows.push((format!("provider {}", look.provider), found));
    }
    rows.extend(s.real_devices().map(|d| (format!("device {}", d.name), device(s, d))));
    rows
}

fn or_unknown(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or("unknown")
}

fn module(state: ModuleState) -> &'static str {
    match state {
        ModuleState::Loaded => "loaded",
        ModuleState::Available => "installed, not loaded",
        ModuleState::Absent => "not among this kernel's modules",
        ModuleState::NotLoaded => "not loaded; no modules of this kernel are installed here",
    }
}

fn library(state: &LibraryState) -> String {
    match state {
        LibraryState::Loaded { file, file_version, absent, .. } => {
            let lacks = match absent.len() {
                0 => String::new(),
                n => format!(", lacks {n} newer function(s)"),
            };
            format!("version {}{lacks}: {file}", or_unknown(file_version))
        }
        LibraryState::NotFound { tried, .. } => {
            let tried: Vec<_> = tried.iter().map(|a| a.file.as_str()).collect();
            format!("not found; tried {}", tried.join(", "))
        }
        LibraryState::TwoCopies { loaded, plugin, .. } => format!("two copies: {loaded} and {plugin}"),
        LibraryState::Unusable { error } => error.clone(),
    }
}

fn nodes(s: &Snapshot) -> String {
    let one = |n: &snapshot::Node| {
        let open = match &n.open {
            Opening::Opened => "opens".into(),
            Opening::Refused(why) => format!("does not open ({why})"),
            Opening::NotTried => "not tried".into(),
        };
        format!("{} {} {}:{} {open}", n.path, n.mode, n.uid, n.gid)
    };
    lines(s.nodes.iter().map(one), "none in /dev/infiniband")
}

fn lines(each: impl Iterator<Item = String>, none: &str) -> String {
    let all: Vec<String> = each.collect();
    if all.is_empty() { none.into() } else { all.join("\n") }
}

fn memlock(s: &Snapshot) -> String {
    let Some(limit) = s.user.memlock else { return "limit unknown".into() };
    let kib = |bytes: Option<u64>| bytes.map_or("unlimited".into(), |b| format!("{} KiB", b / 1024));
    let lifted = if s.user.ipc_lock == Some(true) { "; CAP_IPC_LOCK lifts it" } else { "" };
    format!("soft limit {}, hard limit {}{lifted}", kib(limit.soft), kib(limit.hard))
}

fn hugepages(s: &Snapshot) -> String {
    let pool = |p: &snapshot::Hugepages| format!("{} of {} of {} KiB free", p.free, p.total, p.size_kib);
    lines(s.hugepages.iter().map(pool), "no pool")
}

fn gpu_memory(s: &Snapshot) -> String {
    let function = match s.dmabuf_function() {
        Some(true) => "libibverbs has ibv_reg_dmabuf_mr",
        Some(false) => "libibverbs lacks ibv_reg_dmabuf_mr",
        None => "no libibverbs",
    };
    let loaded = |name: &&str| s.module(name) == Some(ModuleState::Loaded);
    let peer: Vec<_> = ["nvidia_peermem", "nv_peer_mem"].into_iter().filter(loaded).collect();
    let peer = if peer.is_empty() { "no peer-memory module".into() } else { peer.join(", ") };
    format!("dma-buf: {function}; {peer}")
}

fn device(s: &Snapshot, device: &Device) -> String {
    let claims = device.claims.iter().map(|c| {
        let word = if c.claimed { "claims it" } else { "does not claim it" };
        let error = c.open_error.as_ref().map(|e| format!("; does not open: {e}")).unwrap_or_default();
        let lacks =
            if c.absent.is_empty() { String::new() } else { format!("; lacks {}", c.absent.join(", ")) };
        format!("{} {word}: {}{error}{lacks}", c.provider, c.reason)
    });
    let kind = kind_name(device.kind);
    let driver = format!("{kind}, driver {}, firmware {}", or_unknown(&device.driver), device.fw_ver);
    let ports = device.ports.iter().map(|p| port(s, p));
    lines(std::iter::once(driver).chain(claims).chain(ports), "")
}

fn port(s: &Snapshot, port: &Port) -> String {
    let mtu = port.active_mtu.map_or("unknown".into(), |mtu| mtu.to_string());
    let mut text = format!(
        "port {}: {}, {} link, MTU {mtu}, LID {}",
        port.port,
        port.state.name(),
        port.link_layer,
        port.lid
    );
    for gid in &port.gids {
        let netdev = gid.netdev.as_deref().map_or(String::new(), |name| {
            let mtu = s.netdev(name).and_then(|n| n.mtu).map_or("unknown".into(), |mtu| mtu.to_string());
            format!(", {name} with MTU {mtu}")
        });
        text += &format!("\n  GID {}: {} ({}{netdev})", gid.index, gid.gid, gid.gid_type);
    }
    text
}
