//! What devices a machine has: names, ports, address tables. Plain data, read from TOML; nothing here does I/O on devices.

use serde::Deserialize;

use crate::efa::limits::Limits;
use crate::fabric::packet::Address;
use crate::fabric::wire::WireDescription;
use crate::incident::Scheduled;

/// A port's link layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// InfiniBand: local identifiers, and optional global routes.
    Ib,
    /// Ethernet: RoCE, always with a global route.
    Roce,
    /// Neither, as EFA says of its ports.
    Unspecified,
}

/// Whose device it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// ConnectX.
    #[default]
    Mlx5,
    /// Elastic Fabric Adapter.
    Efa,
}

/// How an address of the GID table travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GidType {
    /// InfiniBand.
    Ib,
    /// RoCE version 1 (Ethernet type 0x8915).
    V1,
    /// RoCE version 2 (UDP).
    V2,
}

/// One entry of a GID table; a zero address is a hole.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GidEntry {
    /// The address: IPv6 text, or IPv4 text for a mapped address. Empty or `::` is a hole.
    #[serde(default, deserialize_with = "gid_text")]
    pub gid: [u8; 16],
    /// How it travels; by default what the port's link needs (`ib`, or `v2`).
    #[serde(rename = "type", default)]
    pub kind: Option<GidType>,
    /// The network interface named in sysfs, for Ethernet ports.
    #[serde(default)]
    pub netdev: Option<String>,
}

impl GidEntry {
    /// Whether the entry is empty.
    pub fn is_hole(&self) -> bool {
        self.gid == [0; 16]
    }
}

/// One port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortDescription {
    /// Link layer.
    #[serde(default = "unspecified")]
    pub link: Link,
    /// Local identifier (InfiniBand only).
    #[serde(default)]
    pub lid: u16,
    /// Maximum and active MTU in bytes: 256, 512, 1024, 2048 or 4096.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
    /// Longest message in bytes, up to 2^30. For EFA the packet, of 8928 bytes by default: a SEND is one packet, and longer
    /// READs and WRITEs are split.
    #[serde(default = "default_max_message")]
    pub max_message: u32,
    /// Whether the port is up.
    #[serde(default = "yes")]
    pub active: bool,
    /// The address table, by index.
    #[serde(default)]
    pub gids: Vec<GidEntry>,
}

impl PortDescription {
    /// The verbs code of the MTU (1 is 256 bytes, 5 is 4096).
    pub fn mtu_code(&self) -> u8 {
        (self.mtu / 256).max(1).ilog2() as u8 + 1
    }

    /// How entry `index` travels; `None` for holes and past the table.
    pub fn gid_type(&self, index: usize) -> Option<GidType> {
        let entry = self.gids.get(index).filter(|e| !e.is_hole())?;
        Some(entry.kind.unwrap_or(match self.link {
            Link::Ib | Link::Unspecified => GidType::Ib,
            Link::Roce => GidType::V2,
        }))
    }

    /// Every address by which the port is reached: its local identifier, and each of its GIDs.
    pub fn addresses(&self) -> Vec<Address> {
        let gids =
            self.gids.iter().filter(|e| !e.is_hole()).map(|e| Address { lid: self.lid, gid: Some(e.gid) });
        gids.chain([Address { lid: self.lid, gid: None }]).collect()
    }

    /// Whether `gid` is in the table.
    pub fn has_gid(&self, gid: &[u8; 16]) -> bool {
        *gid != [0; 16] && self.gids.iter().any(|e| e.gid == *gid)
    }
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceDescription {
    /// Its name, as `ibv_devices` prints it.
    pub name: String,
    /// Whose device it is.
    #[serde(default)]
    pub kind: Kind,
    /// Node GUID.
    #[serde(default)]
    pub guid: u64,
    /// Its ports; port numbers start at 1. EFA has one, described or not.
    #[serde(rename = "port", default)]
    pub ports: Vec<PortDescription>,
    /// Register pages: handed out on demand (`dynamic`), or fixed at open as by old kernels (`static`).
    #[serde(default)]
    pub uar: Uar,
    /// What completion entries of mlx5 look like.
    #[serde(default)]
    pub cqe: CqeFormat,
    /// Sizes and capabilities, if it is an EFA device.
    #[serde(default)]
    pub efa: Limits,
}

/// What completion entries of mlx5 look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CqeFormat {
    /// Each for itself, and without data.
    #[default]
    Plain,
    /// Small messages in the entry, for queue pairs that ask for it or allow it, as on hardware.
    Inline,
    /// Small messages in the entry, asked for or not: to see a program refuse them.
    InlineAlways,
    /// Successes as compressed blocks, which no program can have asked for: to see it refuse them.
    Compressed,
}

/// How a context gets its register (UAR) pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Uar {
    /// By the UAR object's ioctl.
    #[default]
    Dynamic,
    /// Fixed at open.
    Static,
}

/// Which calls a device's kernel side answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Abi {
    /// The ioctl methods, as kernels since 5.7.
    #[default]
    Native,
    /// Old commands inside `INVOKE_WRITE`, and the few ioctls that have no older form.
    Invoke,
    /// `write(2)` only, as kernels before the ioctl interface. Forces static UARs.
    Write,
}

/// All devices of a machine.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Which calls are answered.
    #[serde(default)]
    pub abi: Abi,
    /// The devices.
    #[serde(rename = "device")]
    pub devices: Vec<DeviceDescription>,
    /// What lies between them, where it is not perfect.
    #[serde(rename = "wire", default)]
    pub wires: Vec<WireDescription>,
    /// What befalls them, and when.
    #[serde(rename = "event", default)]
    pub events: Vec<Scheduled>,
}

/// A description that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// Not TOML, or not of this shape.
    #[error("read device description: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A value is out of range.
    #[error("read device description: {0}")]
    Value(String),
}

impl Description {
    /// Reads TOML text.
    ///
    /// # Errors
    ///
    /// Names the line, or the device and the value.
    pub fn parse(text: &str) -> Result<Self, DescriptionError> {
        let mut description: Self = toml::from_str(text)?;
        for (i, device) in description.devices.iter_mut().enumerate() {
            check_device(i, device).map_err(DescriptionError::Value)?;
        }
        check_names(&description.devices).map_err(DescriptionError::Value)?;
        let known = |name: &str| description.devices.iter().any(|d| d.name == name);
        description.wires.iter().try_for_each(|w| w.check(known)).map_err(DescriptionError::Value)?;
        let (events, devices) = (&description.events, &description.devices);
        events.iter().try_for_each(|e| e.check(devices)).map_err(DescriptionError::Value)?;
        Ok(description)
    }

    /// `count` equal devices named `mlx5_0`, `mlx5_1`, …, with one port each.
    ///
    /// InfiniBand ports have a link-local GID; RoCE ports a link-local and an IPv4 pair, each as v1 and v2.
    pub fn standard(link: Link, count: u16) -> Self {
        let devices = (0..count).map(|i| standard_device(link, i)).collect();
        Self { devices, ..Self::default() }
    }

    /// `count` EFA devices named `rdmap0s6`, `rdmap1s6`, …, of the newest generation, each with one address.
    pub fn efa(count: u16) -> Self {
        Self { devices: (0..count).map(efa_device).collect(), ..Self::default() }
    }
}

/// Programs find devices by their names.
fn check_names(devices: &[DeviceDescription]) -> Result<(), String> {
    for (i, device) in devices.iter().enumerate() {
        if let Some(first) = devices[..i].iter().position(|d| d.name == device.name) {
            return Err(format!("device {i}: name {:?} is that of device {first} too", device.name));
        }
    }
    Ok(())
}

fn check_device(index: usize, device: &mut DeviceDescription) -> Result<(), String> {
    let name = &device.name;
    if name.is_empty() || name.len() > 63 || name.contains(['/', '.']) {
        return Err(format!("device {index}: name {name:?} must be 1 to 63 characters without '/' and '.'"));
    }
    if device.guid == 0 {
        device.guid = standard_guid(index as u16);
    }
    if device.kind == Kind::Efa {
        return check_efa(device);
    }
    if device.ports.is_empty() || device.ports.len() > 2 {
        return Err(format!("device {name}: {} ports; mlx5 devices have 1 or 2", device.ports.len()));
    }
    for (i, port) in device.ports.iter().enumerate() {
        let number = i + 1;
        if port.link == Link::Unspecified {
            return Err(format!("device {name} port {number}: link must be \"ib\" or \"roce\""));
        }
        if !matches!(port.mtu, 256 | 512 | 1024 | 2048 | 4096) {
            return Err(format!(
                "device {name} port {number}: mtu {} is not 256, 512, 1024, 2048 or 4096",
                port.mtu
            ));
        }
        if port.max_message == 0 || port.max_message > default_max_message() {
            return Err(format!(
                "device {name} port {number}: max_message {} is not 1 to 2^30",
                port.max_message
            ));
        }
        if port.gids.len() > 255 {
            return Err(format!(
                "device {name} port {number}: {} gids; the table holds 255",
                port.gids.len()
            ));
        }
        if port.link == Link::Ib && port.active && port.lid == 0 {
            return Err(format!("device {name} port {number}: an active InfiniBand port needs a lid"));
        }
        if port.link == Link::Ib
            && port.gids.iter().any(|g| matches!(g.kind, Some(GidType::V1 | GidType::V2)))
        {
            return Err(format!(
                "device {name} port {number}: an InfiniBand port has gids of type \"ib\" only"
            ));
        }
    }
    Ok(())
}

/// One port, one address or more, and sizes that can be.
fn check_efa(device: &mut DeviceDescription) -> Result<(), String> {
    let name = &device.name;
    if device.ports.is_empty() {
        device.ports.push(efa_port(Vec::new()));
    }
    let [port] = &mut device.ports[..] else {
        return Err(format!("device {name}: {} ports; efa devices have 1", device.ports.len()));
    };
    if port.max_message == default_max_message() {
        port.max_message = EFA_MTU;
    }
    if port.link != Link::Unspecified {
        return Err(format!("device {name} port 1: an efa port has no link layer to choose"));
    }
    if port.max_message == 0 || port.max_message > u32::from(u16::MAX) {
        return Err(format!("device {name} port 1: max_message {} is not 1 to 65535", port.max_message));
    }
    if port.gids.is_empty() {
        port.gids.push(efa_gid(device.guid));
    }
    device.efa.check().map_err(|what| format!("device {name}: {what}"))
}

/// Bytes of EFA's packets.
const EFA_MTU: u32 = 8928;

fn efa_gid(guid: u64) -> GidEntry {
    GidEntry { gid: link_local(guid), kind: Some(GidType::Ib), netdev: None }
}

fn link_local(guid: u64) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&guid.to_be_bytes());
    gid
}

/// Parts of a device by its number, as Linux names EFA devices by their place on the bus.
fn efa_device(index: u16) -> DeviceDescription {
    let guid = 0x0efa_0000_00aa_bb00 + u64::from(index);
    let port = efa_port(vec![efa_gid(guid)]);
    with_port(format!("rdmap{index}s6"), Kind::Efa, guid, port)
}

fn efa_port(gids: Vec<GidEntry>) -> PortDescription {
    let (link, max_message) = (Link::Unspecified, EFA_MTU);
    PortDescription { link, lid: 0, mtu: default_mtu(), max_message, active: true, gids }
}

fn standard_guid(index: u16) -> u64 {
    0x0c42_a103_00aa_bb00 + u64::from(index)
}

fn standard_device(link: Link, index: u16) -> DeviceDescription {
    let guid = standard_guid(index);
    let link_local = link_local(guid);
    let ipv4 = std::net::Ipv4Addr::new(192, 0, 2, index as u8 + 1).to_ipv6_mapped().octets();
    let entry =
        |gid, kind| GidEntry { gid, kind: Some(kind), netdev: (link == Link::Roce).then(|| "lo".into()) };
    let gids = match link {
        Link::Ib => vec![entry(link_local, GidType::Ib)],
        Link::Roce | Link::Unspecified => vec![
            entry(link_local, GidType::V1),
            entry(link_local, GidType::V2),
            entry(ipv4, GidType::V1),
            entry(ipv4, GidType::V2),
        ],
    };
    let lid = if link == Link::Ib { index + 1 } else { 0 };
    let max_message = default_max_message();
    let port = PortDescription { link, lid, mtu: 4096, max_message, active: true, gids };
    with_port(format!("mlx5_{index}"), Kind::Mlx5, guid, port)
}

/// A device with one port, and what descriptions leave out.
fn with_port(name: String, kind: Kind, guid: u64, port: PortDescription) -> DeviceDescription {
    DeviceDescription {
        name,
        kind,
        guid,
        ports: vec![port],
        uar: Uar::default(),
        cqe: CqeFormat::default(),
        efa: Limits::default(),
    }
}

fn default_max_message() -> u32 {
    1 << 30
}

fn default_mtu() -> u16 {
    4096
}

fn unspecified() -> Link {
    Link::Unspecified
}

fn yes() -> bool {
    true
}

fn gid_text<'de, D: serde::Deserializer<'de>>(d: D) -> Result<[u8; 16], D::Error> {
    let text = String::deserialize(d)?;
    if text.is_empty() {
        return Ok([0; 16]);
    }
    match text.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(v4)) => Ok(v4.to_ipv6_mapped().octets()),
        Ok(std::net::IpAddr::V6(v6)) => Ok(v6.octets()),
        Err(_) => {
            Err(serde::de::Error::custom(format!("gid {text:?} is neither an IPv6 nor an IPv4 address")))
        }
    }
}

#[cfg(test)]
mod tests;
