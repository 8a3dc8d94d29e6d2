//! Which entry of a port's GID table a queue pair uses, and why: ranked, explained, and identified by
//! its bytes. Pure; how the table is read is `device.rs`'s.
//!
//! Indices differ between nodes and boots, tables have holes, and every address appears once for each
//! protocol. So `Auto` ranks what is there, and every refusal lists it.

use crate::{
    config::GidChoice,
    device::GidEntry,
    error::{Error, ErrorKind},
    gid::{Gid, GidScope, GidType, LinkLayer},
};
use std::cmp::Reverse;

/// The highest index that an address vector can name: `sgid_index` is one byte.
const LAST_INDEX: u32 = 255;

/// A port's GID table: its length and what is in it, as far as a queue pair can name it (256 slots).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GidTable {
    /// Slots, filled or not.
    pub len: u32,
    /// The filled ones, by index.
    pub entries: Vec<GidEntry>,
}

/// An entry with what speaks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankedGid {
    /// The entry.
    pub entry: GidEntry,
    /// Its merits in words, or why it came last.
    pub why: String,
}

/// How good an entry is; the smallest is taken. Ties go to the lower index.
type Rank = (Reverse<u8>, Reverse<u8>, Reverse<bool>, u32);

fn rank(entry: &GidEntry) -> Rank {
    let protocol = match entry.gid_type {
        GidType::RoceV2 => 3,
        GidType::Ib => 2,
        GidType::RoceV1 => 1,
        GidType::None => 0,
    };
    let reach = match entry.gid.scope() {
        GidScope::Global => 3,
        GidScope::SiteLocal => 2,
        GidScope::LinkLocal => 1,
        GidScope::Loopback => 0,
    };
    (Reverse(protocol), Reverse(reach), Reverse(entry.gid.ipv4().is_some()), entry.index)
}

/// The merits that `rank` looked at, in its order.
fn merits(entry: &GidEntry) -> String {
    let protocol = match entry.gid_type {
        GidType::RoceV2 => "RoCE v2 (routable)",
        GidType::Ib => "InfiniBand",
        GidType::RoceV1 => "RoCE v1 (not routable)",
        GidType::None => "of no known type",
    };
    let reach = match entry.gid.scope() {
        GidScope::Global => "global",
        GidScope::SiteLocal => "site-local",
        GidScope::LinkLocal => "link-local",
        GidScope::Loopback => "loopback",
    };
    let family = if entry.gid.ipv4().is_some() { "IPv4" } else { "IPv6" };
    let netdev = entry.netdev.as_ref().map_or(String::new(), |n| format!(", on {n}"));
    match entry.gid_type {
        GidType::RoceV1 | GidType::RoceV2 => format!("{protocol}, {reach}, {family}{netdev}"),
        _ => format!("{protocol}, {reach}{netdev}"),
    }
}

impl GidTable {
    /// A table of `len` slots with these entries; empty, unreachable and out-of-range ones are left out.
    pub fn new(len: u32, entries: impl IntoIterator<Item = GidEntry>) -> Self {
        let filled = |e: &GidEntry| !e.gid.is_zero() && e.index < len && e.index <= LAST_INDEX;
        let mut entries: Vec<_> = entries.into_iter().filter(filled).collect();
        entries.sort_by_key(|e| e.index);
        Self { len, entries }
    }

    /// The entry at `index`, where there is one.
    pub fn at(&self, index: u32) -> Option<&GidEntry> {
        self.entries.iter().find(|e| e.index == index)
    }

    /// All entries, best first, each with its merits: RoCE v2 before v1 (routable), then by reach, then
    /// IPv4 before IPv6, then by index. On InfiniBand and where the link has no types, index order
    /// decides among equals, and the first entry is the port's own.
    pub fn ranked(&self) -> Vec<RankedGid> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_key(|e| rank(e));
        entries.into_iter().map(|e| RankedGid { entry: e.clone(), why: merits(e) }).collect()
    }

    /// The entry that `choice` means, with the reason; `None` where `Auto` finds an empty table on a link
    /// that has LIDs and needs no GID.
    ///
    /// # Errors
    /// `InvalidConfig` for an index that is empty or beyond the table, and for bytes that are not in it;
    /// `InvalidState` where the link needs a GID and the table is empty. Each lists what there is.
    pub fn choose(&self, choice: GidChoice, link: LinkLayer) -> Result<Option<RankedGid>, Error> {
        match choice {
            GidChoice::Auto => self.auto(link),
            GidChoice::Exact(gid) => self.exact(gid).map(Some),
            GidChoice::Index(index) => self.indexed(index).map(Some),
        }
    }

    fn auto(&self, link: LinkLayer) -> Result<Option<RankedGid>, Error> {
        let first = match link {
            LinkLayer::Ethernet => self.ranked().into_iter().next(),
            // The subnet manager and the device put the port's own GID first; others are aliases.
            _ => self.entries.first().map(|e| RankedGid { entry: e.clone(), why: merits(e) }),
        };
        let Some(mut best) = first else {
            if link == LinkLayer::InfiniBand {
                return Ok(None);
            }
            let detail = format!(
                "the port's GID table ({} slots) is empty, and a {link} link is addressed by GID; bring the network interface up and give it an address",
                self.len
            );
            return Err(Error::new(ErrorKind::InvalidState, "query_gid", detail));
        };
        let others = self.entries.len() - 1;
        let index = best.entry.index;
        best.why = match link {
            LinkLayer::Ethernet => format!("{}: the best of {}", best.why, others + 1),
            _ => format!("{}: the port's first, at index {index}", best.why),
        };
        Ok(Some(best))
    }

    fn exact(&self, gid: Gid) -> Result<RankedGid, Error> {
        let same = self.ranked().into_iter().find(|r| r.entry.gid == gid);
        let Some(mut found) = same else {
            let detail =
                format!("IbvConfig::gid asks for {gid}, which the port does not have; {}", self.list());
            return Err(Error::new(ErrorKind::InvalidConfig, "query_gid", detail));
        };
        found.why = format!("{}: asked for by its bytes", found.why);
        Ok(found)
    }

    fn indexed(&self, index: u32) -> Result<RankedGid, Error> {
        let Some(entry) = self.at(index) else {
            let what = match index {
                i if i >= self.len => "is beyond the table",
                i if i > LAST_INDEX => "no queue pair can name (255 is the last)",
                _ => "is empty",
            };
            let detail = format!("IbvConfig::gid asks for index {index}, which {what}; {}", self.list());
            return Err(Error::new(ErrorKind::InvalidConfig, "query_gid", detail));
        };
        Ok(RankedGid { entry: entry.clone(), why: format!("{}: asked for by its index", merits(entry)) })
    }

    /// Where the entry with `gid`'s bytes and type stands now. The table may have changed since they
    /// were chosen, and they are what the peer was told.
    ///
    /// # Errors
    /// `InvalidState` where it has gone, with what is in its place.
    pub fn relocate(&self, chosen: &GidEntry) -> Result<u32, Error> {
        let same = |e: &&GidEntry| e.gid == chosen.gid && e.gid_type == chosen.gid_type;
        // Its old place first: two interfaces may hold the same link-local address.
        let old = self.at(chosen.index).filter(same);
        match old.or_else(|| self.entries.iter().find(same)) {
            Some(entry) => Ok(entry.index),
            None => {
                let detail = format!(
                    "the GID table has changed: {} ({}) was at index {} when the queue pair was created, and is gone; create the queue pair anew; {}",
                    chosen.gid,
                    chosen.gid_type,
                    chosen.index,
                    self.list()
                );
                Err(Error::new(ErrorKind::InvalidState, "connect", detail))
            }
        }
    }

    /// The table in words, for error messages.
    fn list(&self) -> String {
        if self.entries.is_empty() {
            return format!("all {} slots are empty", self.len);
        }
        let one = |e: &GidEntry| format!("{}: {} ({})", e.index, e.gid, e.gid_type);
        let entries: Vec<_> = self.entries.iter().map(one).collect();
        format!("its {} slots hold {}", self.len, entries.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv6Addr;

    const V1: GidType = GidType::RoceV1;
    const V2: GidType = GidType::RoceV2;

    fn table(len: u32, rows: &[(u32, &str, GidType)]) -> GidTable {
        GidTable::new(len, rows.iter().map(|&(index, addr, gid_type)| entry(index, addr, gid_type)))
    }

    fn entry(index: u32, addr: &str, gid_type: GidType) -> GidEntry {
        let gid = addr.parse::<Ipv6Addr>().unwrap().into();
        GidEntry { index, gid, gid_type, netdev: Some("eth0".into()) }
    }

    fn auto(t: &GidTable) -> (u32, String) {
        let best = t.choose(GidChoice::Auto, LinkLayer::Ethernet).unwrap().unwrap();
        (best.entry.index, best.why)
    }

    /// The usual table of one interface: each address twice, the link-local pair first.
    fn usual() -> GidTable {
        table(
            256,
            &[
                (0, "fe80::1", V1),
                (1, "fe80::1", V2),
                (2, "::ffff:10.0.0.1", V1),
                (3, "::ffff:10.0.0.1", V2),
                (4, "2001:db8::1", V1),
                (5, "2001:db8::1", V2),
            ],
        )
    }

    #[test]
    fn of_v1_and_v2_pairs_the_routable_one_with_the_widest_reach_is_taken() {
        let (index, why) = auto(&usual());
        assert_eq!((index, &*why), (3, "RoCE v2 (routable), global, IPv4, on eth0: the best of 6"));
    }

    #[test]
    fn link_local_alone_is_taken_as_v2() {
        assert_eq!(auto(&table(8, &[(0, "fe80::1", V1), (1, "fe80::1", V2)])).0, 1);
    }

    #[test]
    fn an_ipv6_only_interface_gets_its_global_address() {
        let t = table(8, &[(0, "fe80::1", V2), (1, "fe80::1", V1), (4, "2001:db8::9", V2)]);
        assert_eq!(auto(&t).0, 4);
    }

    #[test]
    fn v1_alone_is_better_than_nothing_and_says_so() {
        let (index, why) = auto(&table(8, &[(0, "::ffff:10.0.0.1", V1)]));
        assert_eq!(index, 0);
        assert!(why.contains("RoCE v1 (not routable)"), "{why}");
    }

    #[test]
    fn a_routable_link_local_address_is_taken_before_a_global_one_that_is_not_routable() {
        assert_eq!(auto(&table(8, &[(0, "::ffff:10.0.0.1", V1), (1, "fe80::1", V2)])).0, 1);
    }

    #[test]
    fn an_empty_table_is_an_error_on_ethernet_and_none_on_infiniband() {
        let empty = table(16, &[(3, "::", V2)]);
        let e = empty.choose(GidChoice::Auto, LinkLayer::Ethernet).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidState);
        assert!(e.to_string().contains("16 slots"), "{e}");
        assert_eq!(empty.choose(GidChoice::Auto, LinkLayer::InfiniBand).unwrap(), None);
    }

    #[test]
    fn on_infiniband_the_ports_own_gid_is_taken_whatever_its_scope() {
        let t = table(8, &[(0, "fe80::2", GidType::Ib), (1, "2001:db8::2", GidType::Ib)]);
        let best = t.choose(GidChoice::Auto, LinkLayer::InfiniBand).unwrap().unwrap();
        assert_eq!(best.entry.index, 0);
    }

    #[test]
    fn a_hole_and_an_index_beyond_the_table_are_told_apart_and_both_list_the_table() {
        let t = table(8, &[(0, "fe80::1", V2), (5, "2001:db8::1", V2)]);
        for (index, text) in [(3, "is empty"), (8, "beyond the table"), (u32::MAX, "beyond the table")] {
            let e = t.choose(GidChoice::Index(index), LinkLayer::Ethernet).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidConfig);
            assert!(e.to_string().contains(text) && e.to_string().contains("5: 2001:"), "{e}");
        }
        let at = t.choose(GidChoice::Index(0), LinkLayer::Ethernet).unwrap().unwrap();
        assert_eq!(at.entry.index, 0, "an index that was asked for is not outranked");
    }

    #[test]
    fn what_one_byte_can_not_name_is_never_chosen() {
        let t = table(400, &[(255, "fe80::1", V2), (256, "2001:db8::1", V2)]);
        assert_eq!(auto(&t).0, 255);
        let e = t.choose(GidChoice::Index(256), LinkLayer::Ethernet).unwrap_err();
        assert!(e.to_string().contains("index 256, which no queue pair can name"), "{e}");
    }

    #[test]
    fn bytes_find_their_entry_wherever_it_stands_and_as_v2() {
        let gid = usual().at(2).unwrap().gid;
        let found = usual().choose(GidChoice::Exact(gid), LinkLayer::Ethernet).unwrap().unwrap();
        assert_eq!(found.entry.index, 3);
        let e = usual().choose(GidChoice::Exact(Gid([9; 16])), LinkLayer::Ethernet).unwrap_err();
        assert!(e.to_string().contains("0909:0909") && e.to_string().contains("0: fe80:"), "{e}");
    }

    #[test]
    fn a_table_that_changed_moves_the_index_or_refuses() {
        let chosen = usual().at(3).unwrap().clone();
        assert_eq!(usual().relocate(&chosen).unwrap(), 3);
        let moved = table(256, &[(3, "fe80::1", V2), (7, "::ffff:10.0.0.1", V2)]);
        assert_eq!(moved.relocate(&chosen).unwrap(), 7);
        let gone = table(256, &[(2, "::ffff:10.0.0.1", V1)]);
        let e = gone.relocate(&chosen).unwrap_err();
        assert!(e.to_string().contains("was at index 3") && e.to_string().contains("RoCE v1"), "{e}");
    }

    prop_compose! {
        fn entries()(rows in prop::collection::vec((0u32..300, any::<[u8; 16]>(), 0u8..4), 0..20)) -> Vec<GidEntry> {
            let kind = |k| [GidType::None, GidType::Ib, V1, V2][usize::from(k)];
            rows.into_iter().map(|(index, gid, k)| GidEntry { index, gid: Gid(gid), gid_type: kind(k), netdev: None }).collect()
        }
    }

    proptest! {
        #[test]
        fn what_is_chosen_is_in_the_table_and_nothing_in_it_is_better(entries in entries(), len in 0u32..300) {
            let t = GidTable::new(len, entries);
            match t.choose(GidChoice::Auto, LinkLayer::Ethernet) {
                Ok(Some(best)) => {
                    prop_assert!(t.entries.contains(&best.entry) && best.entry.index < len);
                    prop_assert!(t.entries.iter().all(|e| rank(&best.entry) <= rank(e)));
                }
                Ok(None) => prop_assert!(false, "an Ethernet link without a GID"),
                Err(_) => prop_assert!(t.entries.is_empty()),
            }
        }
    }
}
