//! Global identifiers and link facts that endpoints and ports share. How a GID is chosen on a real
//! device is `verbs::gid`'s.

use std::{fmt, net::Ipv6Addr};

/// A 128-bit global identifier, as it stands on the wire.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Gid(pub [u8; 16]);

/// How far a GID reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GidScope {
    /// `::1` and 127/8 mapped.
    Loopback,
    /// `fe80::/10` and 169.254/16 mapped.
    LinkLocal,
    /// `fec0::/10`.
    SiteLocal,
    /// Everything else.
    Global,
}

impl Gid {
    /// Whether every byte is zero: an empty slot of a GID table.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// The IPv4 address inside, for a mapped one (`::ffff:a.b.c.d`).
    pub fn ipv4(&self) -> Option<[u8; 4]> {
        let (prefix, v4) = self.0.split_at(12);
        (prefix == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]).then(|| [v4[0], v4[1], v4[2], v4[3]])
    }

    /// How far it reaches; a mapped IPv4 address counts as that address.
    pub fn scope(&self) -> GidScope {
        if let Some(v4) = self.ipv4() {
            return match v4 {
                [127, ..] => GidScope::Loopback,
                [169, 254, ..] => GidScope::LinkLocal,
                _ => GidScope::Global,
            };
        }
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1] => GidScope::Loopback,
            [0xfe, b, ..] if b & 0xc0 == 0x80 => GidScope::LinkLocal,
            [0xfe, b, ..] if b & 0xc0 == 0xc0 => GidScope::SiteLocal,
            _ => GidScope::Global,
        }
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(addr: Ipv6Addr) -> Self {
        Self(addr.octets())
    }
}

/// Eight full groups, as sysfs prints a GID.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks_exact(2).enumerate() {
            let colon = if i == 0 { "" } else { ":" };
            write!(f, "{colon}{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a GID table entry speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum GidType {
    /// No GID, or a provider that has no such notion.
    #[default]
    None,
    /// InfiniBand's own.
    Ib,
    /// RoCE over Ethernet frames, not routable.
    RoceV1,
    /// RoCE over UDP, routable.
    RoceV2,
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Ib => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// A port's link layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum LinkLayer {
    /// Neither of the two, or a provider that has no such notion.
    #[default]
    Unspecified,
    /// Addressed by LID, with a subnet manager.
    InfiniBand,
    /// Addressed by GID.
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "unspecified",
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        })
    }
}

/// A path MTU: payload bytes in one packet. The discriminants are the verbs ABI's `enum ibv_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// All, smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// From the verbs ABI's number, 1 to 5.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as u8 == code)
    }

    /// Payload bytes in one packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(s: &str) -> Gid {
        s.parse::<Ipv6Addr>().unwrap().into()
    }

    #[test]
    fn scopes_follow_the_address_families() {
        for (addr, scope) in [
            ("::1", GidScope::Loopback),
            ("::ffff:127.0.0.9", GidScope::Loopback),
            ("fe80::1", GidScope::LinkLocal),
            ("febf::1", GidScope::LinkLocal),
            ("::ffff:169.254.3.4", GidScope::LinkLocal),
            ("fec0::1", GidScope::SiteLocal),
            ("::ffff:10.0.0.1", GidScope::Global),
            ("2001:db8::1", GidScope::Global),
        ] {
            assert_eq!(gid(addr).scope(), scope, "{addr}");
        }
    }

    #[test]
    fn a_gid_prints_as_sysfs_does() {
        assert_eq!(gid("fe80::1:2").to_string(), "fe80:0000:0000:0000:0000:0000:0001:0002");
    }

    #[test]
    fn mtu_codes_are_those_of_the_abi() {
        assert_eq!(Mtu::ALL.map(Mtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!((Mtu::from_code(5), Mtu::from_code(0), Mtu::from_code(6)), (Some(Mtu::B4096), None, None));
    }
}
