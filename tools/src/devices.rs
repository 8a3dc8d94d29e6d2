//! `ibv devices`: what each provider sees and can do, or why it sees nothing, as data and as tables.

use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use ibv::{AnyDomain, Caps, Claim, DeviceKind, IbvDeviceInfo, IbvDomain, IbvPort, Registry};
use serde::Serialize;
use std::fmt;

/// Every provider of a registry. Serializes as `--json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct Listing {
    providers: Vec<ProviderEntry>,
}

#[derive(Debug, Serialize)]
struct ProviderEntry {
    name: &'static str,
    /// Why it could not look.
    error: Option<String>,
    devices: Vec<DeviceEntry>,
}

#[derive(Debug, Serialize)]
struct DeviceEntry {
    name: String,
    kind: DeviceKind,
    claimed: bool,
    /// Why the provider claims it, or why not.
    reason: String,
    vendor_id: u32,
    vendor_part_id: u32,
    hw_ver: u32,
    fw_ver: String,
    node_guid: String,
    ports: Vec<PortEntry>,
    /// What an open domain says; absent where the device was not claimed or did not open.
    caps: Option<Caps>,
    /// Why it did not open.
    open_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct PortEntry {
    port: u8,
    state: &'static str,
    link_layer: String,
    active_mtu: u32,
    lid: u16,
    gids: Vec<GidRow>,
}

#[derive(Debug, Serialize)]
struct GidRow {
    index: u32,
    gid: String,
    #[serde(rename = "type")]
    kind: String,
    netdev: Option<String>,
}

impl Listing {
    /// Surveys the registry and opens what is claimed, each through the provider that claims it.
    pub(crate) fn of(registry: &dyn Fn() -> Registry) -> Self {
        let registry = registry();
        let look = |found: ibv::registry::ProviderDevices| {
            let open = |device: &str| registry.open_with(found.provider, device);
            let (error, devices) = match found.devices {
                Err(e) => (Some(e.to_string()), Vec::new()),
                Ok(list) => (
                    None,
                    list.into_iter().map(|(info, claim)| DeviceEntry::of(info, claim, &open)).collect(),
                ),
            };
            ProviderEntry { name: found.provider, error, devices }
        };
        Self { providers: registry.survey().into_iter().map(look).collect() }
    }
}

impl DeviceEntry {
    fn of(
        info: IbvDeviceInfo,
        claim: Claim,
        open: &dyn Fn(&str) -> Result<IbvDomain<AnyDomain>, ibv::Error>,
    ) -> Self {
        let (claimed, reason) = match claim {
            Claim::Yes(why) => (true, why),
            Claim::No(why) => (false, why),
        };
        let (caps, open_error) = match claimed.then(|| open(&info.name)) {
            Some(Ok(domain)) => (Some(domain.caps()), None),
            Some(Err(e)) => (None, Some(e.to_string())),
            None => (None, None),
        };
        Self {
            kind: info.kind,
            claimed,
            reason,
            vendor_id: info.vendor_id,
            vendor_part_id: info.vendor_part_id,
            hw_ver: info.hw_ver,
            fw_ver: info.fw_ver,
            node_guid: format!("{:#018x}", info.node_guid),
            ports: info.ports.iter().map(PortEntry::of).collect(),
            name: info.name,
            caps,
            open_error,
        }
    }
}

impl PortEntry {
    fn of(port: &IbvPort) -> Self {
        let gid = |entry: &ibv::GidEntry| GidRow {
            index: entry.index,
            gid: entry.gid.to_string(),
            kind: entry.gid_type.to_string(),
            netdev: entry.netdev.clone(),
        };
        Self {
            port: port.port_num,
            state: port.state.name(),
            link_layer: port.link_layer.to_string(),
            active_mtu: port.active_mtu.bytes(),
            lid: port.lid,
            gids: port.gids.iter().map(gid).collect(),
        }
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.providers.is_empty() {
            write!(f, "this build has no provider; build it with one of the features of crate ibv")?;
        }
        for (i, provider) in self.providers.iter().enumerate() {
            let gap = if i == 0 { "" } else { "\n" };
            writeln!(f, "{gap}provider {}", provider.name)?;
            write!(f, "{provider}")?;
        }
        match self.capabilities() {
            Some(table) => write!(f, "\n{table}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ProviderEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(error) = &self.error {
            return writeln!(f, "  could not look: {error}");
        }
        if self.devices.is_empty() {
            return writeln!(f, "  sees no device");
        }
        self.devices.iter().try_for_each(|device| device.fmt(f))
    }
}

impl fmt::Display for DeviceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claim = if self.claimed { "claimed" } else { "not claimed" };
        writeln!(f, "  {} ({}), {claim}: {}", self.name, kind_name(self.kind), self.reason)?;
        if let Some(error) = &self.open_error {
            writeln!(f, "    does not open: {error}")?;
        }
        for port in &self.ports {
            writeln!(
                f,
                "    port {}: {}, {} link, MTU {}, LID {}",
                port.port, port.state, port.link_layer, port.active_mtu, port.lid
            )?;
            for gid in &port.gids {
                let netdev = gid.netdev.as_deref().map(|n| format!(", {n}")).unwrap_or_default();
                writeln!(f, "      GID {}: {} ({}{netdev})", gid.index, gid.gid, gid.kind)?;
            }
        }
        Ok(())
    }
}

pub(crate) fn kind_name(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Hardware => "hardware",
        DeviceKind::SoftwareKernel => "software, in the kernel",
        DeviceKind::SoftwareUser => "software, in user space",
        DeviceKind::Mock => "mock, in this process",
        _ => "of unknown kind",
    }
}

impl Listing {
    /// One row for each capability, one column for each open device.
    fn capabilities(&self) -> Option<Table> {
        let open: Vec<(String, Vec<(&'static str, String)>)> = self
            .providers
            .iter()
            .flat_map(|p| p.devices.iter().map(move |d| (p.name, d)))
            .filter_map(|(p, d)| Some((format!("{p}: {}", d.name), d.caps.as_ref()?.rows())))
            .collect();
        let (_, first) = open.first()?;
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header(std::iter::once("capability").chain(open.iter().map(|(name, _)| name.as_str())));
        for (i, (name, _)) in first.iter().enumerate() {
            let values = open.iter().filter_map(|(_, rows)| rows.get(i)).map(|(_, value)| value.as_str());
            table.add_row(std::iter::once(*name).chain(values));
        }
        Some(table)
    }
}
