//! The byte form of an endpoint. Big endian throughout:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `ibvE` |
//! | 4 | 1 | version, now 1: a reader refuses any other |
//! | 5 | 1 | revision, now 0: later ones add, a reader ignores what it does not know |
//! | 6 | 2 | length of the whole, bytes |
//! | 8 | 1 | transport |
//! | 9 | 1 | link layer: 0 unspecified, 1 InfiniBand, 2 Ethernet |
//! | 10 | 1 | MTU code, 1 to 5 |
//! | 11 | 1 | GID type: 0 none, 1 InfiniBand, 2 RoCE v1, 3 RoCE v2 |
//! | 12 | 4 | queue pair number, 24 bits |
//! | 16 | 4 | first packet sequence number, 24 bits |
//! | 20 | 4 | queue key |
//! | 24 | 2 | LID |
//! | 26 | 1 | gets and atomics outstanding as initiator |
//! | 27 | 1 | the same as responder |
//! | 28 | 1 | flags: bit 0, a GID is present; the rest zero |
//! | 29 | 3 | zero |
//! | 32 | 16 | GID |
//! | 48 | 12 | ECE: vendor, options, mask |
//! | 60 | 4 | zero |
//! | 64 | | extensions: type (2), length (2), value; a type with its top bit set must be understood |

use super::{Ece, IbvQpInfo, Transport};
use crate::gid::{Gid, GidType, LinkLayer, Mtu};
use thiserror::Error;

const MAGIC: [u8; 4] = *b"ibvE";
const VERSION: u8 = 1;
const CRITICAL: u16 = 0x8000;

/// Why bytes are not an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// They do not start as an endpoint does.
    #[error("not an endpoint: it starts with {0:02x?}, an endpoint with \"ibvE\"")]
    Magic([u8; 4]),
    /// Fewer bytes than announced, or than any endpoint has.
    #[error("truncated endpoint: {have} bytes of {need}")]
    Truncated {
        /// Bytes given.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// More bytes than announced, or than any endpoint may have.
    #[error("oversized endpoint: {have} bytes, {allowed} allowed")]
    Oversized {
        /// Bytes given.
        have: usize,
        /// Bytes allowed.
        allowed: usize,
    },
    /// Another version of the format.
    #[error("endpoint version {theirs}, this end speaks version {ours}; use the same release on both ends")]
    Version {
        /// The peer's.
        theirs: u8,
        /// This crate's.
        ours: u8,
    },
    /// A field is out of range.
    #[error("endpoint field {field} is out of range: {value:#x}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What stands there.
        value: u64,
    },
    /// An extension that may not be ignored, and that this crate does not know.
    #[error("endpoint extension {0:#06x} must be understood and is not; use the same release on both ends")]
    Extension(u16),
}

impl IbvQpInfo {
    /// Length of the byte form that this version writes, bytes.
    pub const ENCODED_LEN: usize = 64;
    /// Longest byte form that is read, bytes: later revisions may append.
    pub const MAX_ENCODED_LEN: usize = 1024;

    /// The byte form.
    pub fn to_bytes(&self) -> [u8; Self::ENCODED_LEN] {
        let mut out = [0; Self::ENCODED_LEN];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(4, &[VERSION, 0]);
        put(6, &(Self::ENCODED_LEN as u16).to_be_bytes());
        put(8, &[self.transport.0, link_code(self.link_layer), self.mtu as u8, gid_code(self.gid_type)]);
        put(12, &self.qp_num.to_be_bytes());
        put(16, &self.psn.to_be_bytes());
        put(20, &self.qkey.to_be_bytes());
        put(24, &self.lid.to_be_bytes());
        put(26, &[self.max_rd_atomic, self.max_dest_rd_atomic, u8::from(self.gid.is_some())]);
        put(32, &self.gid.unwrap_or_default().0);
        put(48, &self.ece.vendor_id.to_be_bytes());
        put(52, &self.ece.options.to_be_bytes());
        put(56, &self.ece.comp_mask.to_be_bytes());
        out
    }

    /// Reads the byte form; `bytes` is exactly one endpoint.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EndpointError> {
        let (head, rest) = framed(bytes)?;
        extensions(rest)?;
        let r = Fields(head);
        let gid = match r.u8(28) {
            0 => None,
            1 => Some(Gid(r.array(32))),
            n => return field("flags", n),
        };
        let ece = Ece { vendor_id: r.u32(48), options: r.u32(52), comp_mask: r.u32(56) };
        Ok(Self {
            transport: Transport(r.u8(8)),
            link_layer: link_layer(r.u8(9))?,
            mtu: Mtu::from_code(r.u8(10)).map_or_else(|| field("mtu", r.u8(10)), Ok)?,
            gid_type: gid_type(r.u8(11))?,
            qp_num: r.u24("qp_num", 12)?,
            psn: r.u24("psn", 16)?,
            qkey: r.u32(20),
            lid: u16::from_be_bytes(r.array(24)),
            max_rd_atomic: r.u8(26),
            max_dest_rd_atomic: r.u8(27),
            gid,
            ece,
        })
    }
}

type Head = [u8; IbvQpInfo::ENCODED_LEN];

/// Checks the frame; returns the fixed part and the extensions. The magic comes first, so that a stray
/// peer is told from a short read; then the version, so that a newer peer is told from a broken one.
fn framed(bytes: &[u8]) -> Result<(&Head, &[u8]), EndpointError> {
    let have = bytes.len();
    let short = EndpointError::Truncated { have, need: IbvQpInfo::ENCODED_LEN };
    let Some((magic, rest)) = bytes.split_first_chunk::<4>() else { return Err(short) };
    if *magic != MAGIC {
        return Err(EndpointError::Magic(*magic));
    }
    match rest.first() {
        Some(&VERSION) => {}
        Some(&theirs) => return Err(EndpointError::Version { theirs, ours: VERSION }),
        None => return Err(short),
    }
    let Some((head, rest)) = bytes.split_first_chunk() else { return Err(short) };
    let need = usize::from(u16::from_be_bytes([head[6], head[7]]));
    match need {
        _ if need < IbvQpInfo::ENCODED_LEN => field("length", head[7]),
        _ if need > IbvQpInfo::MAX_ENCODED_LEN => {
            Err(EndpointError::Oversized { have: need, allowed: IbvQpInfo::MAX_ENCODED_LEN })
        }
        _ if have < need => Err(EndpointError::Truncated { have, need }),
        _ if have > need => Err(EndpointError::Oversized { have, allowed: need }),
        _ => Ok((head, rest)),
    }
}

/// Walks the extensions. None is known yet: optional ones are passed over, critical ones refused.
fn extensions(mut rest: &[u8]) -> Result<(), EndpointError> {
    while !rest.is_empty() {
        let cut = |need| EndpointError::Truncated { have: rest.len(), need };
        let Some((&[t0, t1, l0, l1], body)) = rest.split_first_chunk() else { return Err(cut(4)) };
        let (kind, len) = (u16::from_be_bytes([t0, t1]), usize::from(u16::from_be_bytes([l0, l1])));
        if kind & CRITICAL != 0 {
            return Err(EndpointError::Extension(kind));
        }
        rest = body.get(len..).ok_or(cut(4 + len))?;
    }
    Ok(())
}

struct Fields<'a>(&'a Head);

impl Fields<'_> {
    /// Offsets are constants of this file, all inside the fixed part.
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }
    fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }
    fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }
    fn u24(&self, name: &'static str, at: usize) -> Result<u32, EndpointError> {
        let value = self.u32(at);
        if value >> 24 == 0 { Ok(value) } else { field(name, value) }
    }
}

fn field<T>(field: &'static str, value: impl Into<u64>) -> Result<T, EndpointError> {
    Err(EndpointError::Field { field, value: value.into() })
}

fn link_code(link: LinkLayer) -> u8 {
    match link {
        LinkLayer::Unspecified => 0,
        LinkLayer::InfiniBand => 1,
        LinkLayer::Ethernet => 2,
    }
}

fn link_layer(code: u8) -> Result<LinkLayer, EndpointError> {
    match code {
        0 => Ok(LinkLayer::Unspecified),
        1 => Ok(LinkLayer::InfiniBand),
        2 => Ok(LinkLayer::Ethernet),
        n => field("link_layer", n),
    }
}

fn gid_code(kind: GidType) -> u8 {
    match kind {
        GidType::None => 0,
        GidType::Ib => 1,
        GidType::RoceV1 => 2,
        GidType::RoceV2 => 3,
    }
}

fn gid_type(code: u8) -> Result<GidType, EndpointError> {
    match code {
        0 => Ok(GidType::None),
        1 => Ok(GidType::Ib),
        2 => Ok(GidType::RoceV1),
        3 => Ok(GidType::RoceV2),
        n => field("gid_type", n),
    }
}

/// The 24-bit fields, where an endpoint comes by way of serde: from a peer just the same.
#[cfg(feature = "serde")]
pub(super) fn u24<'de, D: serde::Deserializer<'de>>(input: D) -> Result<u32, D::Error> {
    use serde::{Deserialize, de::Error as _};
    let value = u32::deserialize(input)?;
    if value >> 24 == 0 { Ok(value) } else { Err(D::Error::custom(format!("{value:#x} exceeds 24 bits"))) }
}
