//! What is wrong with one device: claims, ports, GID tables, MTUs. The host's own faults are `host.rs`'s.

use super::{Cause, Finding, Severity, host, node, one_sided};
use crate::doctor::snapshot::{Claim, Device, Netdev, Port, Snapshot, State};
use ibv::{GidScope, GidType, LinkLayer, Mtu};

/// Bytes that RoCE's headers may take of a network interface's MTU: GRH 40, UDP 8, BTH 12, XRC 4,
/// AtomicETH 28, ICRC 4, as the kernel counts (include/rdma/ib_addr.h, `iboe_get_mtu`).
const ROCE_HEADERS: u32 = 96;

/// What is wrong with a device as a whole, and with each of its ports.
pub(super) struct Verdict {
    device: Vec<Finding>,
    ports: Vec<Vec<Finding>>,
    /// Whether a finding about the host keeps it from being used.
    blocked: bool,
}

impl Verdict {
    /// Whether the device can be used, by one of its ports.
    pub(super) fn works(&self) -> bool {
        let fine = |all: &[Finding]| all.iter().all(|f| f.severity != Severity::Error);
        !self.blocked && fine(&self.device) && self.ports.iter().any(|port| fine(port))
    }

    pub(super) fn into_findings(self) -> impl Iterator<Item = Finding> {
        self.device.into_iter().chain(self.ports.into_iter().flatten())
    }
}

pub(super) fn diagnose(facts: &Snapshot, device: &Device) -> Verdict {
    let ports = device.ports.iter().map(|p| port(facts, device, p)).collect();
    let mut own = node::of(facts, device);
    let mut blocked = false;
    if let Some(finding) = claims(facts, device) {
        let by_variable = facts.ring_variables.iter().any(|v| finding.found.contains(&v.name));
        let by_host = by_variable || host::lacks_library(facts) || node::is_missing(facts, device);
        blocked = match finding.cause {
            Cause::NotClaimed => host::lacks_libibverbs(facts) || host::lacks_library_of(facts, device),
            _ => by_host || !own.is_empty(),
        };
        own.extend((!blocked).then_some(finding));
    }
    own.extend(one_sided::of(facts, device));
    Verdict { device: own, ports, blocked }
}

/// What the provider that would open it says. Consequences of other findings are not told apart here.
fn claims(facts: &Snapshot, device: &Device) -> Option<Finding> {
    let Device { name, claims, .. } = device;
    // The first that claims it is the one that opens it.
    let Some(opener) = claims.iter().find(|c| c.claimed) else { return Some(unclaimed(facts, device)) };
    if let Some(error) = &opener.open_error {
        return Some(
            Finding::error(Cause::DoesNotOpen, name)
                .found(format!("provider {}: {error}", opener.provider))
                .wanted("a device that opens")
                .action("do what the error says; dmesg may have more"),
        );
    }
    device.ports.is_empty().then(|| {
        Finding::error(Cause::NoPort, name)
            .found("no port")
            .wanted("at least one")
            .action("read dmesg: the driver could not ask its ports")
    })
}

fn unclaimed(facts: &Snapshot, device: &Device) -> Finding {
    let no = |c: &Claim| format!("{}: {}", c.provider, c.reason);
    let mut reasons: Vec<_> = device.claims.iter().map(no).collect();
    let blind =
        facts.providers.iter().filter(|look| !device.claims.iter().any(|c| c.provider == look.provider));
    reasons.extend(blind.filter_map(|look| Some(format!("{}: {}", look.provider, look.error.as_ref()?))));
    let driver = device.driver.as_deref().unwrap_or("unknown");
    let found = match reasons.is_empty() {
        true => "no provider of this build sees it".into(),
        false => format!("no provider claims it ({})", reasons.join("; ")),
    };
    Finding::error(Cause::NotClaimed, format!("{} (driver {driver})", device.name))
            .found(found)
            .wanted("a provider that claims it")
            .action("build ibv with the provider of that device, put right what keeps a provider from seeing it, or use another device")
}

fn port(facts: &Snapshot, device: &Device, port: &Port) -> Vec<Finding> {
    let about = format!("{} port {}", device.name, port.port);
    let mut all = Vec::new();
    all.extend(state(facts, device, port, &about));
    if port.link_layer == LinkLayer::Ethernet {
        all.extend(gids(device, port, &about));
        all.extend(widest_netdev(facts, port).and_then(|n| mtu_against(port, n, &about)));
    }
    all
}

fn state(facts: &Snapshot, device: &Device, port: &Port, about: &str) -> Option<Finding> {
    let found = port.state.name();
    let infiniband = port.link_layer == LinkLayer::InfiniBand;
    match port.state {
        State::Active if infiniband && port.lid == 0 => Some(no_subnet_manager(about, "active, LID 0")),
        State::Active | State::Unknown => None,
        State::Init | State::Armed if infiniband => {
            Some(no_subnet_manager(about, &format!("{found}, LID {}", port.lid)))
        }
        _ => {
            let down: Vec<&str> = device.netdevs.iter().map(String::as_str).collect();
            let netdev = down.first().copied().unwrap_or("NAME");
            let operstate = facts.netdev(netdev).and_then(|n| n.operstate.as_deref());
            let behind = operstate.map(|s| format!("; its interface {netdev} is {s}")).unwrap_or_default();
            let action = match port.link_layer {
                LinkLayer::Ethernet => {
                    format!(
                        "ip link set {netdev} up; if it stays down, look at the cable and the switch port"
                    )
                }
                _ => "look at the cable and the switch port".into(),
            };
            Some(
                Finding::error(Cause::PortDown, about)
                    .found(format!("state {found}{behind}"))
                    .wanted("state active")
                    .action(action),
            )
        }
    }
}

fn no_subnet_manager(about: &str, found: &str) -> Finding {
    Finding::error(Cause::NoSubnetManager, about)
        .found(format!("state {found}"))
        .wanted("state active and a LID, which a subnet manager gives")
        .action("start one on the fabric: opensm on a host, or the switch's own")
}

fn gids(device: &Device, port: &Port, about: &str) -> Option<Finding> {
    let netdev = device.netdevs.first().map_or("NAME", String::as_str);
    let filled = port.gids.len();
    if filled == 0 {
        return Some(
            Finding::error(Cause::NoGid, about)
                .found("an empty GID table")
                .wanted("a GID: an Ethernet port is addressed by nothing else")
                .action(format!(
                    "ip link set {netdev} up, and give it an address: ip addr add ADDRESS dev {netdev}"
                )),
        );
    }
    if port.gids.iter().all(|g| g.gid_type == GidType::RoceV1) {
        return Some(
            Finding::warning(Cause::RoceV1Only, about)
                .found(format!("{filled} GID(s), all RoCE v1"))
                .wanted("a RoCE v2 GID: v1 is not routed, and a peer that chose v2 can not be reached")
                .action("let the adapter speak RoCE v2 (mlx5: mlxconfig ROCE_CONTROL, or devlink dev param enable_roce), and update the kernel driver"),
        );
    }
    // Of those that would be chosen: v2 goes before v1 whatever its reach.
    let mut v2 = port.gids.iter().filter(|g| g.gid_type == GidType::RoceV2).peekable();
    if v2.peek().is_some() && v2.all(|g| g.gid.scope() <= GidScope::LinkLocal) {
        return Some(
            Finding::warning(Cause::LinkLocalGidOnly, about)
                .found(format!("{filled} GID(s), link-local only"))
                .wanted("a GID of a global address: link-local ones reach no other network")
                .action(format!("ip addr add ADDRESS dev {netdev}")),
        );
    }
    None
}

/// Of the interfaces behind a port's GIDs the one with the largest MTU: the port's own, since a
/// VLAN's is no larger.
fn widest_netdev<'a>(facts: &'a Snapshot, port: &Port) -> Option<&'a Netdev> {
    port.gids.iter().filter_map(|g| facts.netdev(g.netdev.as_ref()?)).max_by_key(|n| n.mtu)
}

/// The largest path MTU whose packets fit an interface.
fn fitting(netdev_mtu: u32) -> Option<Mtu> {
    let room = netdev_mtu.checked_sub(ROCE_HEADERS)?;
    Mtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room)
}

fn mtu_against(port: &Port, netdev: &Netdev, about: &str) -> Option<Finding> {
    let (active, frame) = (port.active_mtu?, netdev.mtu?);
    let fits = fitting(frame).map_or(0, Mtu::bytes);
    let name = &netdev.name;
    let found = format!("active MTU {active}, while {name} has MTU {frame}, into which {fits} fits");
    if active > fits {
        let need = active.saturating_add(ROCE_HEADERS);
        return Some(
            Finding::error(Cause::MtuAgainstNetdev, about)
                .found(found)
                .wanted(format!("{name} with MTU {need} or more: longer packets are dropped without a word"))
                .action(format!(
                    "ip link set {name} mtu 9000, on both ends and on the switch, or ask for path MTU {fits}"
                )),
        );
    }
    (active < fits).then(|| {
        Finding::warning(Cause::MtuAgainstNetdev, about)
            .found(found)
            .wanted(format!("active MTU {fits}, unless the device can do no more than {active}"))
            .action(format!(
                "ip link set {name} down and up again: the port took its MTU before the interface had its own"
            ))
    })
}

/// Active ports of one link layer with different MTUs: a connection between them takes the smaller, and two
/// ends that each take their own do not understand each other.
pub(super) fn mtu_between_ports(facts: &Snapshot) -> Option<Finding> {
    let mut active: Vec<(u32, LinkLayer, String)> = Vec::new();
    for device in facts.real_devices() {
        for port in device.ports.iter().filter(|p| p.state == State::Active) {
            let name = format!("{} port {}", device.name, port.port);
            active.extend(port.active_mtu.map(|mtu| (mtu, port.link_layer, name)));
        }
    }
    active.sort_by_key(|(mtu, ..)| *mtu);
    let larger = |(mtu, link, _): &_| active.iter().rev().find(|(m, l, _)| m > mtu && l == link);
    let (least, other) = active.iter().find_map(|least| Some((least, larger(least)?)))?;
    Some(
        Finding::warning(Cause::MtuBetweenPorts, format!("{} and {}", least.2, other.2))
            .found(format!("active MTU {} and {}", least.0, other.0))
            .wanted("one MTU on all ports of a fabric")
            .action(format!(
                "give their interfaces and the switch the same MTU (9000 carries 4096), or ask for path MTU {} on both ends",
                least.0
            )),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_mtu_leaves_room_for_the_headers() {
        let mtus = [0, 95, 351, 352, 1119, 1120, 1500, 2144, 4191, 4192, 9000, u32::MAX];
        let fits = [0, 0, 0, 256, 512, 1024, 1024, 2048, 2048, 4096, 4096, 4096];
        assert_eq!(mtus.map(|mtu| fitting(mtu).map_or(0, Mtu::bytes)), fits);
    }
}
