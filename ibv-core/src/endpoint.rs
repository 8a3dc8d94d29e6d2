//! Endpoints: what one end tells the other, its byte form, and what two of them agree on. Everything
//! here is pure; how the bytes travel is the caller's.
//!
//! Bytes from a peer are untrusted: [`IbvQpInfo::from_bytes`] answers every input with an endpoint whose
//! fields are in range, or with an [`EndpointError`].

use crate::{
    error::{Error, ErrorKind},
    gid::{Gid, GidType, LinkLayer, Mtu},
};
use std::fmt;

mod codec;
pub use codec::EndpointError;

/// How two queue pairs talk. A newtype, not an enum: third parties have their own.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(transparent)]
pub struct Transport(pub u8);

impl Transport {
    /// The InfiniBand specification's reliable connection.
    pub const RC: Self = Self(1);
    /// EFA's scalable reliable datagram.
    pub const SRD: Self = Self(2);
    /// The mock's in-process fabric.
    pub const MOCK: Self = Self(0x80);
    /// The first of 64 numbers that this project never assigns; any provider may use one.
    pub const PRIVATE: Self = Self(0xc0);
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RC => f.write_str("RC"),
            Self::SRD => f.write_str("SRD"),
            Self::MOCK => f.write_str("mock"),
            Self(n) => write!(f, "transport {n:#x}"),
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Enhanced connection establishment options (`struct ibv_ece`): a vendor's private agreement. Zero
/// where a provider has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Ece {
    /// Whose options these are; 0 is nobody's.
    pub vendor_id: u32,
    /// The vendor's bits.
    pub options: u32,
    /// Which of the fields are meant.
    pub comp_mask: u32,
}

/// A queue pair's endpoint: what its peer needs to connect to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct IbvQpInfo {
    /// How the queue pair talks.
    pub transport: Transport,
    /// Its port's link layer.
    pub link_layer: LinkLayer,
    /// Its number, 24 bits.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "codec::u24"))]
    pub qp_num: u32,
    /// Its port's local identifier; 0 where there is none.
    pub lid: u16,
    /// Its source GID, where it has one.
    pub gid: Option<Gid>,
    /// What that GID speaks.
    pub gid_type: GidType,
    /// Its first packet sequence number, 24 bits.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "codec::u24"))]
    pub psn: u32,
    /// The largest packet payload it takes.
    pub mtu: Mtu,
    /// Its queue key; datagram transports only.
    pub qkey: u32,
    /// Gets and atomics it may have outstanding at its peer.
    pub max_rd_atomic: u8,
    /// Gets and atomics its peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// Vendor options offered.
    pub ece: Ece,
}

impl IbvQpInfo {
    /// An endpoint of `transport` with everything else at its neutral value; providers fill it in.
    pub fn new(transport: Transport, qp_num: u32) -> Self {
        Self {
            transport,
            link_layer: LinkLayer::Unspecified,
            qp_num,
            lid: 0,
            gid: None,
            gid_type: GidType::None,
            psn: 0,
            mtu: Mtu::B4096,
            qkey: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            ece: Ece::default(),
        }
    }

    /// The endpoint in words, short enough for an error message.
    fn brief(&self) -> String {
        let gid = self.gid.map_or("no GID".into(), |g| format!("GID {g} ({})", self.gid_type));
        format!(
            "{} over {} link, queue pair {:#x}, LID {}, {gid}",
            self.transport, self.link_layer, self.qp_num, self.lid
        )
    }
}

/// What two endpoints agreed on, seen from one of them: all that a provider needs to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct IbvPath {
    /// The peer's endpoint.
    pub remote: IbvQpInfo,
    /// The smaller of both MTUs.
    pub path_mtu: Mtu,
    /// Gets and atomics this end may have outstanding at the peer.
    pub rd_atomic: u8,
    /// Gets and atomics the peer may have outstanding here.
    pub dest_rd_atomic: u8,
    /// Vendor options both offer.
    pub ece: Ece,
}

/// What `local` and `remote` agree on. Pure, and symmetric: both ends find the same MTU, and each end's
/// `rd_atomic` is the other's `dest_rd_atomic`.
///
/// # Errors
/// [`ErrorKind::Incompatible`] with both ends' values, where no path exists: different transports, link
/// layers or GID types, or an address that the transport needs and one end lacks.
pub fn negotiate(local: &IbvQpInfo, remote: &IbvQpInfo) -> Result<IbvPath, Error> {
    same("transport", local.transport, remote.transport, local, remote)?;
    same("link layer", local.link_layer, remote.link_layer, local, remote)?;
    addressed(local, remote)?;
    if local.gid.is_some() && remote.gid.is_some() {
        same("GID type", local.gid_type, remote.gid_type, local, remote)?;
    }
    Ok(IbvPath {
        remote: *remote,
        path_mtu: local.mtu.min(remote.mtu),
        rd_atomic: local.max_rd_atomic.min(remote.max_dest_rd_atomic),
        dest_rd_atomic: local.max_dest_rd_atomic.min(remote.max_rd_atomic),
        ece: common_ece(local.ece, remote.ece),
    })
}

fn same<T: PartialEq + fmt::Display>(
    what: &str,
    ours: T,
    theirs: T,
    local: &IbvQpInfo,
    remote: &IbvQpInfo,
) -> Result<(), Error> {
    if ours == theirs {
        return Ok(());
    }
    Err(incompatible(local, remote, &format!("{what} differs: ours {ours}, theirs {theirs}")))
}

/// Whether the peer can be addressed at all: by GID over Ethernet and for SRD, else by GID or LID.
fn addressed(local: &IbvQpInfo, remote: &IbvQpInfo) -> Result<(), Error> {
    let needs_gid = remote.link_layer == LinkLayer::Ethernet || remote.transport == Transport::SRD;
    for (whose, end) in [("our", local), ("their", remote)] {
        if needs_gid && end.gid.is_none() {
            return Err(incompatible(
                local,
                remote,
                &format!("{whose} end has no GID, which this transport needs"),
            ));
        }
        if end.link_layer == LinkLayer::InfiniBand && end.lid == 0 && end.gid.is_none() {
            return Err(incompatible(local, remote, &format!("{whose} end has neither LID nor GID")));
        }
    }
    Ok(())
}

fn incompatible(local: &IbvQpInfo, remote: &IbvQpInfo, why: &str) -> Error {
    let detail = format!("{why}; ours: {}; theirs: {}", local.brief(), remote.brief());
    Error::new(ErrorKind::Incompatible, "connect", detail)
}

/// Options are one vendor's: two vendors agree on none.
fn common_ece(a: Ece, b: Ece) -> Ece {
    if a.vendor_id != b.vendor_id {
        return Ece::default();
    }
    Ece { vendor_id: a.vendor_id, options: a.options & b.options, comp_mask: a.comp_mask & b.comp_mask }
}

#[cfg(test)]
mod tests;
