//! Endpoints of another kind: each is refused before anything is touched, and the message names both sides.

mod common;

use common::{domain, fresh, nic};
use ibv_core::{
    EndpointError, ErrorKind, GidType, IbvConfig, IbvDomain, IbvQpInfo, LinkLayer, Provider, QpState,
    Transport,
};
use provider_mock::MockProvider;

/// What an EFA queue pair says to `info`; it stays in RESET.
fn answer(info: &IbvQpInfo) -> String {
    let _nic = nic(1);
    let d = domain(0);
    let (qp, _cq) = fresh(&d, IbvConfig::default());
    let (mut qp, e) = qp.connect(info).err().unwrap();
    assert_eq!((e.kind(), qp.state().unwrap()), (ErrorKind::Incompatible, QpState::RESET));
    e.to_string()
}

fn own() -> IbvQpInfo {
    let _nic = nic(1);
    let d = domain(0);
    let (mut qp, _cq) = fresh(&d, IbvConfig::default());
    qp.get_qp_info().unwrap()
}

#[test]
fn a_connections_endpoint_is_refused() {
    let mut rc = own();
    (rc.transport, rc.qp_num) = (Transport::RC, 0x123);
    let e = answer(&rc);
    assert!(e.contains("ours SRD, theirs RC") && e.contains("queue pair 0x123"), "{e}");
}

#[test]
fn a_port_of_another_link_layer_is_refused() {
    let mut ethernet = own();
    ethernet.link_layer = LinkLayer::Ethernet;
    let e = answer(&ethernet);
    assert!(e.contains("link layer differs") && e.contains("theirs Ethernet"), "{e}");
    let mut typed = own();
    typed.gid_type = GidType::RoceV2;
    let e = answer(&typed);
    assert!(e.contains("GID type differs") && e.contains("RoCE v2"), "{e}");
}

#[test]
fn another_version_of_the_endpoint_is_refused_with_both_numbers() {
    let mut bytes = own().to_bytes();
    bytes[4] = 9;
    let e = IbvQpInfo::from_bytes(&bytes).unwrap_err();
    assert_eq!(e, EndpointError::Version { theirs: 9, ours: 1 });
    assert!(e.to_string().contains('9') && e.to_string().contains('1'), "{e}");
}

#[test]
fn another_provider_refuses_an_srd_endpoint() {
    let srd = own();
    let provider = MockProvider::default();
    let device = provider.devices().unwrap().remove(0);
    let d = IbvDomain::new(provider.open(&device).unwrap(), device);
    let cq = d.create_cq(256).unwrap();
    let mut qp = d.create_queue_pair(IbvConfig::default(), &cq, &cq).unwrap();
    let theirs = qp.get_qp_info().unwrap();
    let (_, e) = qp.connect(&srd).err().unwrap();
    assert!(e.to_string().contains("ours mock, theirs SRD"), "{e}");
    let e = answer(&theirs);
    assert!(e.contains("ours SRD, theirs mock"), "{e}");
}
