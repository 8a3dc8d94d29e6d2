//! Rules that no fixture has: each from a healthy machine's facts with one thing changed.

use super::*;
use crate::doctor::snapshot::{Memlock, ModuleState, Opening, State, Variable};
use ibv::LinkLayer;

fn healthy() -> Snapshot {
    serde_json::from_str(include_str!("../../../tests/snapshots/healthy.json")).unwrap()
}

/// One device and its port, so that what is wrong with them is an error.
fn single() -> Snapshot {
    let mut facts = healthy();
    facts.devices.truncate(1);
    facts
}

fn causes(facts: &Snapshot) -> Vec<(Severity, Cause)> {
    diagnose(facts).into_iter().map(|f| (f.severity, f.cause)).collect()
}

fn load(facts: &mut Snapshot, module: &str) {
    facts.kernel.modules.iter_mut().find(|m| m.name == module).unwrap().state = ModuleState::Loaded;
}

#[test]
fn locked_memory_is_judged_by_its_size_unless_a_capability_lifts_the_limit() {
    let judged = |soft, ipc_lock| {
        let mut facts = healthy();
        facts.user.memlock = Some(Memlock { soft: Some(soft), hard: None });
        facts.user.ipc_lock = ipc_lock;
        causes(&facts).first().map(|(severity, _)| *severity)
    };
    assert_eq!(judged(64 << 10, Some(false)), Some(Severity::Error));
    assert_eq!(judged(8 << 20, Some(false)), Some(Severity::Warning));
    assert_eq!(judged(8 << 20, None), Some(Severity::Warning));
    assert_eq!(judged(1 << 30, Some(false)), None);
    assert_eq!(judged(64 << 10, Some(true)), None);
}

#[test]
fn an_infiniband_port_without_lid_lacks_a_subnet_manager() {
    for (state, lid, cause) in [
        (State::Init, 0, Some(Cause::NoSubnetManager)),
        (State::Active, 0, Some(Cause::NoSubnetManager)),
        (State::Down, 0, Some(Cause::PortDown)),
        (State::Active, 7, None),
    ] {
        let mut facts = single();
        let port = &mut facts.devices[0].ports[0];
        (port.link_layer, port.state, port.lid) = (LinkLayer::InfiniBand, state, lid);
        let wanted: Vec<_> = cause.map(|c| (Severity::Error, c)).into_iter().collect();
        assert_eq!(causes(&facts), wanted, "{state:?} {lid}");
    }
}

#[test]
fn what_to_do_about_a_node_fits_who_may_open_it() {
    let advice = |mode: &str, gid, user, groups: &[u32]| {
        let mut facts = single();
        let node = facts.nodes.iter_mut().find(|n| n.path.ends_with("uverbs0")).unwrap();
        (node.mode, node.gid, node.open) = (mode.into(), gid, Opening::Refused("no".into()));
        (facts.user.uid, facts.user.groups) = (Some(user), groups.into());
        let finding = diagnose(&facts).remove(0);
        assert_eq!((finding.severity, finding.cause), (Severity::Error, Cause::NodePermission));
        finding.action
    };
    assert!(advice("0660", 104, 1000, &[1000]).contains("group 104"));
    assert!(advice("0660", 0, 1000, &[1000]).contains("udev rule: SUBSYSTEM"));
    assert!(advice("0600", 104, 1000, &[104]).contains("udev rule: SUBSYSTEM"));
    assert!(advice("0666", 0, 1000, &[1000]).contains("--device /dev/infiniband/uverbs0"));
    assert!(advice("0600", 0, 0, &[]).contains("--device"));
    assert!(advice("0660", 104, 1000, &[104]).contains("--device"));
}

#[test]
fn another_device_that_works_makes_a_refused_node_a_warning() {
    let mut facts = healthy();
    facts.nodes.iter_mut().find(|n| n.path.ends_with("uverbs1")).unwrap().open =
        Opening::Refused("no".into());
    assert_eq!(causes(&facts), [(Severity::Warning, Cause::NodePermission)]);
}

#[test]
fn gpu_memory_needs_dmabuf_or_a_peer_memory_module() {
    let mut facts = healthy();
    load(&mut facts, "nvidia");
    assert_eq!(causes(&facts), []);
    facts.kernel.release = Some("5.4.0-150-generic".into());
    assert_eq!(causes(&facts), [(Severity::Warning, Cause::GpuMemory)]);
    load(&mut facts, "nvidia_peermem");
    assert_eq!(causes(&facts), []);
}

#[test]
fn an_adapter_that_is_lent_out_is_told_from_one_without_driver() {
    let mut facts = healthy();
    facts.devices.clear();
    facts.adapters.truncate(1);
    facts.adapters[0].rdma.clear();
    facts.adapters[0].driver = Some("vfio-pci".into());
    let found = diagnose(&facts);
    assert_eq!((found[0].cause, found[1].cause), (Cause::AdapterWithoutDriver, Cause::NoDevice));
    assert!(found[0].action.contains("lent to a guest"), "{}", found[0].action);
}

#[test]
fn a_refused_variable_is_no_error_where_no_mlx5_device_is() {
    let set = |value: &str| {
        let name = "MLX5_SINGLE_THREADED".into();
        vec![Variable { name, value: value.into(), effect: "no locks".into() }]
    };
    let mut facts = healthy();
    facts.ring_variables = set("0");
    assert_eq!(causes(&facts), []);
    facts.ring_variables = set("1");
    assert_eq!(causes(&facts), [(Severity::Error, Cause::RingVariable)]);
    for device in &mut facts.devices {
        device.name = device.name.replace("mlx5", "irdma");
        device.driver = Some("irdma".into());
    }
    for node in &mut facts.nodes {
        node.device = None;
    }
    facts.adapters.clear();
    assert_eq!(causes(&facts), [(Severity::Warning, Cause::RingVariable)]);
}

#[test]
fn a_device_that_does_not_open_is_named_with_the_provider_s_error() {
    let mut facts = single();
    facts.devices[0].claims[0].open_error = Some("open_device: EIO".into());
    let found = diagnose(&facts);
    assert_eq!((found.len(), found[0].cause), (1, Cause::DoesNotOpen));
    assert!(found[0].found.contains("mlx5: open_device: EIO"));
}

#[test]
fn a_vlan_with_a_small_mtu_does_not_speak_for_the_port() {
    let mut facts = single();
    let mut vlan = facts.netdevs[0].clone();
    (vlan.name, vlan.mtu) = ("ens1f0.7".into(), Some(1500));
    facts.netdevs.push(vlan);
    facts.devices[0].ports[0].gids[2].netdev = Some("ens1f0.7".into());
    assert_eq!(causes(&facts), []);
}

#[test]
fn two_mapped_copies_are_found_where_both_loaded() {
    let mut facts = healthy();
    facts.mapped.push("/opt/lib/libmlx5.so.1.25.58.0".into());
    let found = diagnose(&facts);
    assert_eq!((found.len(), found[0].cause), (1, Cause::TwoCopies));
    assert!(found[0].found.contains("/opt/lib/libmlx5.so.1.25.58.0 and /usr/lib/"), "{}", found[0].found);
}
