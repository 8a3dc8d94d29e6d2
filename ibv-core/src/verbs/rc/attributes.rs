//! The attributes of each transition for a given path, and which value a device is likely to have
//! refused. Pure: facts about device and port come in as data.

use super::QpAttrMask as M;
use crate::{
    config::IbvConfig,
    endpoint::IbvPath,
    gid::{Gid, LinkLayer, Mtu},
    queue_pair::QpState,
    verbs::device::{gid_of, mtu_of},
};
use ibv_sys::{ibv_ah_attr, ibv_gid, ibv_mtu, ibv_qp_attr, ibv_qp_state};

/// What is known about the local end of a path when its attributes are set.
#[derive(Clone, Copy, Debug)]
pub struct PathFacts {
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// The port's MTU in use.
    pub active_mtu: Option<Mtu>,
    /// The port's state is ACTIVE.
    pub active: bool,
    /// The source GID and its index, where the queue pair has one.
    pub gid: Option<(Gid, u32)>,
    /// The port insists on a global route header (`IBV_QPF_GRH_REQUIRED`).
    pub grh_required: bool,
    /// Ports of the device.
    pub ports: u8,
    /// Slots of the port's partition key table.
    pub pkeys: u16,
    /// Slots of the port's GID table.
    pub gids: u32,
    /// `max_qp_rd_atom` of the device.
    pub max_dest_rd_atomic: u32,
    /// `max_qp_init_rd_atom` of the device.
    pub max_rd_atomic: u32,
}

fn moving_to(state: QpState) -> ibv_qp_attr {
    ibv_qp_attr { qp_state: ibv_qp_state(state.0), ..ibv_qp_attr::default() }
}

/// RESET to INIT: port, partition key, and what the peer may do at all (`access`, of
/// `enum ibv_access_flags`).
pub fn attr_at_init(config: &IbvConfig, access: u32) -> (ibv_qp_attr, M) {
    let mut attr = moving_to(QpState::INIT);
    attr.port_num = config.port_num;
    attr.pkey_index = config.pkey_index;
    attr.qp_access_flags = access;
    (attr, M::STATE | M::PORT | M::PKEY_INDEX | M::ACCESS_FLAGS)
}

/// INIT to RTR: the peer, and how to reach it.
pub fn attr_at_rtr(config: &IbvConfig, path: &IbvPath, facts: &PathFacts) -> (ibv_qp_attr, M) {
    let mut attr = moving_to(QpState::RTR);
    attr.path_mtu = ibv_mtu(path.path_mtu as u32);
    attr.dest_qp_num = path.remote.qp_num;
    attr.rq_psn = path.remote.psn;
    attr.max_dest_rd_atomic = path.dest_rd_atomic;
    attr.min_rnr_timer = config.min_rnr_timer;
    attr.ah_attr = address(config, path, facts);
    let mask =
        M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    (attr, mask)
}

/// RTR to RTS: how to send, and how often to try.
pub fn attr_at_rts(config: &IbvConfig, path: &IbvPath) -> (ibv_qp_attr, M) {
    let mut attr = moving_to(QpState::RTS);
    attr.sq_psn = config.psn.unwrap_or(0);
    attr.timeout = config.timeout;
    attr.retry_cnt = config.retry_cnt;
    attr.rnr_retry = config.rnr_retry;
    attr.max_rd_atomic = path.rd_atomic;
    let mask = M::STATE | M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    (attr, mask)
}

/// The address vector: by GID on Ethernet, by LID inside a subnet, by both across subnets.
fn address(config: &IbvConfig, path: &IbvPath, facts: &PathFacts) -> ibv_ah_attr {
    let (port_num, sl, dlid) = (config.port_num, config.service_level, path.remote.lid);
    let mut ah = ibv_ah_attr { port_num, sl, dlid, ..ibv_ah_attr::default() };
    if let (Some((ours, index)), Some(theirs)) = (facts.gid, path.remote.gid)
        && needs_route_header(facts, path, ours, theirs)
    {
        ah.is_global = 1;
        ah.grh.dgid = ibv_gid { raw: theirs.0 };
        // `GidTable` has no entry beyond what this byte can name.
        ah.grh.sgid_index = index as u8;
        ah.grh.hop_limit = config.hop_limit;
        ah.grh.traffic_class = config.traffic_class;
        ah.grh.flow_label = config.flow_label;
    }
    ah
}

fn needs_route_header(facts: &PathFacts, path: &IbvPath, ours: Gid, theirs: Gid) -> bool {
    let subnet = |gid: Gid| gid.0.first_chunk::<8>().copied();
    facts.link_layer != LinkLayer::InfiniBand
        || facts.grh_required
        || path.remote.lid == 0
        || subnet(ours) != subnet(theirs)
}

/// What is wrong with one attribute's value.
type Check = fn(&ibv_qp_attr, &PathFacts) -> Option<String>;

/// Names the attribute whose value the device can not take, with both values; `None` where each looks
/// right. Asked after the device has answered EINVAL, which does not say which.
pub fn wrong_value(attr: &ibv_qp_attr, mask: M, facts: &PathFacts) -> Option<String> {
    let checks: [(M, Check); 7] = [
        (M::PORT, wrong_port),
        (M::PKEY_INDEX, wrong_pkey),
        (M::PATH_MTU, wrong_mtu),
        (M::AV, wrong_address),
        (M::MAX_DEST_RD_ATOMIC, wrong_dest_rd_atomic),
        (M::MAX_QP_RD_ATOMIC, wrong_rd_atomic),
        (M::DEST_QPN | M::RQ_PSN, wrong_number),
    ];
    checks.into_iter().filter(|(bits, _)| mask.intersects(*bits)).find_map(|(_, check)| check(attr, facts))
}

fn wrong_port(attr: &ibv_qp_attr, facts: &PathFacts) -> Option<String> {
    let wrong = attr.port_num == 0 || attr.port_num > facts.ports;
    wrong.then(|| format!("PORT: port {} of a device that has {}", attr.port_num, facts.ports))
}

fn wrong_pkey(attr: &ibv_qp_attr, facts: &PathFacts) -> Option<String> {
    let wrong = attr.pkey_index >= facts.pkeys;
    wrong.then(|| format!("PKEY_INDEX: index {} of a table of {}", attr.pkey_index, facts.pkeys))
}

fn wrong_mtu(attr: &ibv_qp_attr, facts: &PathFacts) -> Option<String> {
    let (asked, active) = (mtu_of(attr.path_mtu), facts.active_mtu?);
    match asked {
        Some(mtu) if mtu <= active => None,
        Some(mtu) => Some(format!("PATH_MTU: {mtu} bytes over a port that uses {active}")),
        None => Some(format!("PATH_MTU: code {} is none of 1 to 5", attr.path_mtu.0)),
    }
}

fn wrong_address(attr: &ibv_qp_attr, facts: &PathFacts) -> Option<String> {
    let ah = &attr.ah_attr;
    if !facts.active {
        return Some(format!("AV: port {} is not active", ah.port_num));
    }
    if ah.is_global == 0 {
        let unaddressed = facts.link_layer == LinkLayer::Ethernet || ah.dlid == 0;
        return unaddressed
            .then(|| format!("AV: no GID and LID {} over a {} link", ah.dlid, facts.link_layer));
    }
    match facts.gid {
        Some((gid, index)) if index >= facts.gids.min(256) => {
            Some(format!("AV: source GID {gid} is at index {index} of a table of {}", facts.gids))
        }
        Some((gid, index)) => {
            let peer = gid_of(&ah.grh.dgid);
            let families = gid.ipv4().is_some() != peer.ipv4().is_some();
            families.then(|| {
                format!("AV: source GID {gid} (index {index}) and peer GID {peer} are of different address families")
            })
        }
        None => Some("AV: a peer's GID without one of our own".into()),
    }
}

fn wrong_dest_rd_atomic(attr: &ibv_qp_attr, facts: &PathFacts) -> Option<String> {
    let (asked, most) = (u32::from(attr.max_dest_rd_atomic), facts.max_dest_rd_atomic);
    (asked > most).then(|| format!("MAX_DEST_RD_ATOMIC: {asked} on a device that answers {most} at once"))
}

fn wrong_rd_atomic(attr: &ibv_qp_attr, facts: &PathFacts) -> Option<String> {
    let (asked, most) = (u32::from(attr.max_rd_atomic), facts.max_rd_atomic);
    (asked > most).then(|| format!("MAX_QP_RD_ATOMIC: {asked} on a device that starts {most} at once"))
}

fn wrong_number(attr: &ibv_qp_attr, _: &PathFacts) -> Option<String> {
    let wide = |what: &str, n: u32| (n > 0xff_ffff).then(|| format!("{what}: {n:#x} has more than 24 bits"));
    wide("DEST_QPN", attr.dest_qp_num).or_else(|| wide("RQ_PSN", attr.rq_psn))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        endpoint::{IbvQpInfo, Transport, negotiate},
        gid::GidType,
        verbs::rc::check,
    };

    fn facts(link_layer: LinkLayer) -> PathFacts {
        PathFacts {
            link_layer,
            active_mtu: Some(Mtu::B1024),
            active: true,
            gid: Some((Gid([1; 16]), 3)),
            grh_required: false,
            ports: 1,
            pkeys: 1,
            gids: 8,
            max_dest_rd_atomic: 16,
            max_rd_atomic: 16,
        }
    }

    fn info(link_layer: LinkLayer, lid: u16, gid: [u8; 16]) -> IbvQpInfo {
        let mut info = IbvQpInfo::new(Transport::RC, 0x123);
        (info.link_layer, info.lid, info.gid, info.psn) = (link_layer, lid, Some(Gid(gid)), 0x456);
        info.gid_type = if link_layer == LinkLayer::Ethernet { GidType::RoceV2 } else { GidType::Ib };
        (info.mtu, info.max_rd_atomic, info.max_dest_rd_atomic) = (Mtu::B1024, 4, 8);
        info
    }

    fn path(link_layer: LinkLayer, lid: u16, gid: [u8; 16]) -> IbvPath {
        negotiate(&info(link_layer, 7, [1; 16]), &info(link_layer, lid, gid)).unwrap()
    }

    #[test]
    fn each_transition_gets_exactly_what_it_needs() {
        let (config, path) = (IbvConfig::default(), path(LinkLayer::Ethernet, 0, [2; 16]));
        let (_, init) = attr_at_init(&config, 0xf);
        assert_eq!(check(QpState::RESET, QpState::INIT, init), Ok(()));
        let (_, rtr) = attr_at_rtr(&config, &path, &facts(LinkLayer::Ethernet));
        assert_eq!(check(QpState::INIT, QpState::RTR, rtr), Ok(()));
        let (_, rts) = attr_at_rts(&config, &path);
        assert_eq!(check(QpState::RTR, QpState::RTS, rts), Ok(()));
    }

    #[test]
    fn the_peers_numbers_and_the_negotiated_limits_are_what_the_device_is_told() {
        let config = IbvConfig { psn: Some(9), traffic_class: 0x60, hop_limit: 5, ..IbvConfig::default() };
        let path = path(LinkLayer::Ethernet, 0, [2; 16]);
        let (rtr, _) = attr_at_rtr(&config, &path, &facts(LinkLayer::Ethernet));
        assert_eq!((rtr.dest_qp_num, rtr.rq_psn, rtr.path_mtu.0), (0x123, 0x456, Mtu::B1024 as u32));
        assert_eq!((rtr.max_dest_rd_atomic, rtr.min_rnr_timer), (4, 12));
        let grh = rtr.ah_attr.grh;
        assert_eq!(
            (rtr.ah_attr.is_global, grh.sgid_index, grh.hop_limit, grh.traffic_class),
            (1, 3, 5, 0x60)
        );
        assert_eq!(gid_of(&grh.dgid), Gid([2; 16]));
        let (rts, _) = attr_at_rts(&config, &path);
        assert_eq!(
            (rts.sq_psn, rts.max_rd_atomic, rts.timeout, rts.retry_cnt, rts.rnr_retry),
            (9, 4, 14, 7, 6)
        );
    }

    #[test]
    fn inside_a_subnet_the_lid_is_enough_and_across_subnets_it_is_not() {
        let ib = LinkLayer::InfiniBand;
        let global = |facts: &PathFacts, lid, gid| {
            let (attr, _) = attr_at_rtr(&IbvConfig::default(), &path(ib, lid, gid), facts);
            (attr.ah_attr.is_global, attr.ah_attr.dlid)
        };
        assert_eq!(global(&facts(ib), 5, [1; 16]), (0, 5));
        assert_eq!(global(&facts(ib), 5, [2; 16]), (1, 5), "another subnet");
        assert_eq!(global(&PathFacts { grh_required: true, ..facts(ib) }, 5, [1; 16]), (1, 5));
        assert_eq!(global(&facts(ib), 0, [1; 16]), (1, 0), "no LID");
    }

    #[test]
    fn each_wrong_value_is_named_with_both_values() {
        let config = IbvConfig { port_num: 3, pkey_index: 4, ..IbvConfig::default() };
        let eth = facts(LinkLayer::Ethernet);
        let (init, mask) = attr_at_init(&config, 0xf);
        let said =
            |attr: &ibv_qp_attr, mask, facts: &PathFacts| wrong_value(attr, mask, facts).unwrap_or_default();
        assert_eq!(said(&init, mask, &eth), "PORT: port 3 of a device that has 1");
        assert_eq!(said(&init, M::PKEY_INDEX, &eth), "PKEY_INDEX: index 4 of a table of 1");

        let (mut rtr, mask) = attr_at_rtr(&config, &path(LinkLayer::Ethernet, 0, [2; 16]), &eth);
        assert_eq!(wrong_value(&rtr, mask, &eth), None);
        assert!(said(&rtr, mask, &PathFacts { active: false, ..eth }).contains("not active"));
        assert!(said(&rtr, mask, &PathFacts { gids: 2, ..eth }).contains("index 3 of a table of 2"));
        let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
        let mapped = PathFacts { gid: Some((Gid(v4), 3)), ..eth };
        assert!(said(&rtr, mask, &mapped).contains("different address families"));
        rtr.path_mtu = ibv_mtu(5);
        assert_eq!(said(&rtr, mask, &eth), "PATH_MTU: 4096 bytes over a port that uses 1024");
        rtr.path_mtu = ibv_mtu(9);
        assert!(said(&rtr, mask, &eth).contains("code 9"));
        rtr.path_mtu = ibv_mtu(1);
        rtr.max_dest_rd_atomic = 17;
        assert!(said(&rtr, mask, &eth).contains("17 on a device that answers 16"));
        rtr.max_dest_rd_atomic = 1;
        rtr.rq_psn = 1 << 24;
        assert!(said(&rtr, mask, &eth).starts_with("RQ_PSN"));

        let (mut rts, mask) = attr_at_rts(&config, &path(LinkLayer::Ethernet, 0, [2; 16]));
        rts.max_rd_atomic = 200;
        assert!(said(&rts, mask, &eth).contains("200 on a device that starts 16"));
    }
}
