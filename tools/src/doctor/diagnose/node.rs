//! What is wrong with the nodes under /dev/infiniband: none, or none that this user may open.

use super::{Cause, Finding};
use crate::doctor::snapshot::{Device, ModuleState, Node, Opening, Snapshot};

fn of_verbs(facts: &Snapshot) -> impl Iterator<Item = &Node> {
    facts.nodes.iter().filter(|n| n.path.contains("/uverbs"))
}

/// Whether the kernel has this device, nobody could open it, and there is no node at all.
pub(super) fn is_missing(facts: &Snapshot, device: &Device) -> bool {
    let opened = device.ports.iter().any(|p| p.active_mtu.is_some());
    device.in_sysfs && !opened && of_verbs(facts).next().is_none()
}

pub(super) fn missing(facts: &Snapshot) -> Option<Finding> {
    let without: Vec<&str> =
        facts.real_devices().filter(|d| is_missing(facts, d)).map(|d| d.name.as_str()).collect();
    if without.is_empty() {
        return None;
    }
    let action = match facts.module("ib_uverbs") {
        Some(ModuleState::Loaded) => {
            "in a container: pass it the host's devices (docker run --device /dev/infiniband); else start udev (udevadm trigger)"
        }
        _ => "modprobe ib_uverbs",
    };
    Some(
        Finding::error(Cause::NodeMissing, "/dev/infiniband")
            .found(format!("no uverbs node for {}", without.join(", ")))
            .wanted("/dev/infiniband/uverbs0 and so on")
            .action(action),
    )
}

/// Refused nodes that belong to no listed device.
pub(super) fn of_no_device(facts: &Snapshot) -> Vec<Finding> {
    let listed = |n: &&Node| facts.real_devices().any(|d| n.device.as_ref() == Some(&d.name));
    of_verbs(facts).filter(|n| !listed(n)).filter_map(|n| refused(facts, n)).collect()
}

/// Refused nodes of this device.
pub(super) fn of(facts: &Snapshot, device: &Device) -> Vec<Finding> {
    let ours = |n: &&Node| n.device.as_ref() == Some(&device.name);
    of_verbs(facts).filter(ours).filter_map(|n| refused(facts, n)).collect()
}

fn refused(facts: &Snapshot, node: &Node) -> Option<Finding> {
    let Opening::Refused(why) = &node.open else { return None };
    let Node { path, mode, uid, gid, device, .. } = node;
    let of = device.as_ref().map(|d| format!(" of {d}")).unwrap_or_default();
    let who = facts.user.uid.map_or("this user".into(), |uid| format!("user {uid}"));
    Some(
        Finding::error(Cause::NodePermission, format!("{path}{of}"))
            .found(format!("{who} may not open it ({why}); mode {mode}, owner {uid}:{gid}"))
            .wanted("read and write")
            .action(permit(facts, node)),
    )
}

fn permit(facts: &Snapshot, Node { path, mode, uid, gid, .. }: &Node) -> String {
    const RW: u32 = 0o6;
    let bits = u32::from_str_radix(mode, 8).unwrap_or(0);
    let (owner, group, others) = (bits >> 6 & RW == RW, bits >> 3 & RW == RW, bits & RW == RW);
    let user = facts.user.uid;
    let allowed = match () {
        () if user == Some(0) => true,
        () if user == Some(*uid) => owner,
        () if facts.user.groups.contains(gid) => group,
        () => others,
    };
    if allowed {
        return format!(
            "its mode allows it, so something else forbids it, such as a container's device rules: start the container with --device {path}"
        );
    }
    if group && *gid != 0 && !facts.user.groups.contains(gid) {
        return format!("add the user to group {gid} and log in anew, or make it mode 0666 by a udev rule");
    }
    format!(
        "chmod 0666 {path}, and for good a udev rule: SUBSYSTEM==\"infiniband_verbs\", KERNEL==\"uverbs*\", MODE=\"0666\""
    )
}
