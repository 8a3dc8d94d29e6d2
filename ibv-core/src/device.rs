//! What a provider says about a device before it is opened. How it finds out is the provider's.

use crate::gid::{Gid, GidType, LinkLayer, Mtu};

/// What stands behind a device name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum DeviceKind {
    /// A network adapter.
    Hardware,
    /// The kernel's software implementation over an ordinary network interface.
    SoftwareKernel,
    /// A software device in user space; never to be taken for hardware.
    SoftwareUser,
    /// A mock inside this process.
    Mock,
    /// The provider can not tell.
    #[default]
    Unknown,
}

/// A port's state: `enum ibv_port_state` (libibverbs/verbs.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(transparent)]
pub struct PortState(pub u32);

impl PortState {
    /// No link.
    pub const DOWN: Self = Self(1);
    /// Link, no address yet.
    pub const INIT: Self = Self(2);
    /// Addressed, not yet usable.
    pub const ARMED: Self = Self(3);
    /// Usable.
    pub const ACTIVE: Self = Self(4);

    /// The field's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::DOWN => "down",
            Self::INIT => "init",
            Self::ARMED => "armed",
            Self::ACTIVE => "active",
            _ => "unknown",
        }
    }
}

/// One entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GidEntry {
    /// Its index in the table.
    pub index: u32,
    /// The identifier.
    pub gid: Gid,
    /// What it speaks.
    pub gid_type: GidType,
    /// The network interface behind it, where there is one.
    pub netdev: Option<String>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct IbvPort {
    /// Its number, from 1.
    pub port_num: u8,
    /// Whether it can be used.
    pub state: PortState,
    /// What it speaks below.
    pub link_layer: LinkLayer,
    /// The largest packet payload in use.
    pub active_mtu: Mtu,
    /// Its local identifier; 0 where there is none.
    pub lid: u16,
    /// Its GID table, empty slots left out.
    pub gids: Vec<GidEntry>,
}

impl IbvPort {
    /// An active port without addresses; providers fill in the rest.
    pub fn new(port_num: u8) -> Self {
        Self {
            port_num,
            state: PortState::ACTIVE,
            link_layer: LinkLayer::Unspecified,
            active_mtu: Mtu::B4096,
            lid: 0,
            gids: Vec::new(),
        }
    }
}

/// A device, as listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct IbvDeviceInfo {
    /// Its name, unique on the host: `mlx5_0`, `rdmap0s6`, `mock0`.
    pub name: String,
    /// What stands behind it.
    pub kind: DeviceKind,
    /// PCI vendor, or 0.
    pub vendor_id: u32,
    /// The vendor's part number, or 0.
    pub vendor_part_id: u32,
    /// Hardware revision, or 0.
    pub hw_ver: u32,
    /// Firmware version, or empty.
    pub fw_ver: String,
    /// The node's globally unique identifier, or 0.
    pub node_guid: u64,
    /// Its ports; empty where the provider only knows them once opened.
    pub ports: Vec<IbvPort>,
}

impl IbvDeviceInfo {
    /// A device of that name of which nothing else is known.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The port of that number.
    pub fn port(&self, port_num: u8) -> Option<&IbvPort> {
        self.ports.iter().find(|p| p.port_num == port_num)
    }
}
