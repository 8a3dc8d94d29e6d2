//! What a queue pair knows of its port: addresses and limits. Which packets a stopped port loses is not decided here.

use crate::description::{GidType, Link, PortDescription};
use crate::fabric::packet::Address;

/// A port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Port {
    /// Whether it is an Ethernet port.
    pub roce: bool,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Bytes of its active MTU: the longest datagram.
    pub mtu: u32,
    /// Longest message in bytes.
    pub max_message: u32,
    /// Address table by index; `None` for holes.
    gids: Vec<Option<Gid>>,
}

/// An address of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// The 16 bytes.
    pub raw: [u8; 16],
    /// Whether its packets travel in UDP (RoCE version 2).
    pub udp: bool,
}

impl Port {
    /// A port as it is described.
    pub fn of(description: &PortDescription) -> Self {
        let gid = |index| {
            let kind = description.gid_type(index)?;
            Some(Gid { raw: description.gids[index].gid, udp: kind == GidType::V2 })
        };
        Self {
            roce: description.link == Link::Roce,
            lid: description.lid,
            mtu: u32::from(description.mtu),
            max_message: description.max_message,
            gids: (0..description.gids.len()).map(gid).collect(),
        }
    }

    /// An entry of the address table.
    pub fn gid(&self, index: u8) -> Option<Gid> {
        self.gids.get(usize::from(index)).copied().flatten()
    }

    /// Whether a packet to `address` is for this port.
    pub fn is_addressed_by(&self, address: &Address) -> bool {
        let lid = self.roce || address.lid == self.lid;
        lid && match address.gid {
            Some(gid) => self.gids.iter().flatten().any(|g| g.raw == gid),
            None => !self.roce,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::Description;

    #[test]
    fn a_port_is_addressed_by_its_own_identifiers_only() {
        let ports =
            [Link::Ib, Link::Roce].map(|l| Port::of(&Description::standard(l, 1).devices[0].ports[0]));
        let [ib, roce] = &ports;
        let own = ib.gid(0).unwrap().raw;
        assert!(ib.is_addressed_by(&Address { lid: 1, gid: None }));
        assert!(ib.is_addressed_by(&Address { lid: 1, gid: Some(own) }));
        assert!(!ib.is_addressed_by(&Address { lid: 2, gid: Some(own) }));
        assert!(!ib.is_addressed_by(&Address { lid: 1, gid: Some([9; 16]) }));
        assert!(!roce.is_addressed_by(&Address { lid: 0, gid: None }));
        assert!(roce.is_addressed_by(&Address { lid: 0, gid: Some(own) }));
        assert_eq!((roce.gid(0).unwrap().udp, roce.gid(1).unwrap().udp, roce.gid(9)), (false, true, None));
    }
}
