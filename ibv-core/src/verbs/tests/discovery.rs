//! Listing devices, ports and GID tables, and the local endpoint.

use super::*;
use crate::{
    config::{GidChoice, IbvConfig},
    device::PortState,
    endpoint::Transport,
    gid::{Gid, GidType, LinkLayer, Mtu},
    verbs::device::{describe_all, find, list},
};
use fake::gid_entry;
use ibv_sys::{IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_INFINIBAND};

const MAPPED: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];

#[test]
fn every_device_is_listed_and_described() {
    fake::reset();
    fake::with(|f| {
        f.device.node_guid = 0x1122_3344_5566_7788_u64.to_be();
        for (to, from) in f.device.fw_ver.iter_mut().zip(*b"1.2.3") {
            *to = from as _;
        }
    });
    let all = describe_all(fake::library(), ForkPolicy::Leave).unwrap();
    assert_eq!(all.iter().map(|d| &*d.name).collect::<Vec<_>>(), fake::DEVICES);
    assert_eq!(
        (&*all[0].fw_ver, all[0].vendor_id, all[0].node_guid),
        ("1.2.3", 0x1234, 0x1122_3344_5566_7788)
    );
    let port = all[0].port(1).unwrap();
    assert_eq!((port.state, port.active_mtu, port.gids.len()), (PortState::ACTIVE, Mtu::B1024, 1));
    fake::assert_clean();
}

#[test]
fn a_device_that_can_not_be_opened_is_listed_without_ports() {
    fake::install(refusing("open_device", libc::EACCES));
    let all = describe_all(fake::library(), ForkPolicy::Leave).unwrap();
    assert_eq!((all.len(), all[0].ports.len()), (2, 0));
    let e = Context::open(fake::library(), "fake0").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied);
    assert!(e.to_string().contains("fake0") && e.to_string().contains("/dev/infiniband"), "{e}");
    fake::assert_clean();
}

#[test]
fn a_kernel_without_rdma_has_no_devices_and_any_other_failure_is_one() {
    fake::install(refusing("get_device_list", libc::ENOSYS));
    assert!(list(fake::library()).unwrap().is_empty());
    fake::install(refusing("get_device_list", libc::EPERM));
    assert_eq!(list(fake::library()).unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn an_unknown_name_is_answered_with_the_names_there_are() {
    fake::reset();
    let e = Context::open(fake::library(), "fake7").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoDevice);
    assert!(e.to_string().contains("fake7; there are: fake0, fake1"), "{e}");
    assert_eq!(find(fake::library(), "fake7").unwrap_err().kind(), ErrorKind::NoDevice);
    assert_eq!(find(fake::library(), "fake0").unwrap().name, "fake0");
}

#[test]
fn an_old_library_gives_the_same_table_entry_by_entry() {
    let table = |library| {
        fake::install(library);
        fake::with(|f| {
            f.gids =
                vec![gid_entry(0, MAPPED, IBV_GID_TYPE_ROCE_V2), gid_entry(3, [5; 16], IBV_GID_TYPE_ROCE_V2)]
        });
        let context = open();
        Port::query(&context, 1).unwrap().gids
    };
    let whole = table(refusing("nothing", 1));
    let single = table(refusing("query_gid_table", libc::EOPNOTSUPP));
    fake::with(|f| assert_eq!(f.log.iter().filter(|v| **v == "query_gid").count(), 4));
    assert_eq!(whole.len, 4);
    let gids = |t: &GidTable| t.entries.iter().map(|e| (e.index, e.gid)).collect::<Vec<_>>();
    assert_eq!(gids(&whole), gids(&single));
    assert_eq!(gids(&whole), [(0, Gid(MAPPED)), (3, Gid([5; 16]))]);
    assert_eq!(whole.entries[0].gid_type, GidType::RoceV2);
}

#[test]
fn the_endpoint_is_what_the_port_and_the_configuration_say() {
    fake::reset();
    fake::with(|f| f.gids.push(gid_entry(2, MAPPED, IBV_GID_TYPE_ROCE_V2)));
    let config = IbvConfig { psn: Some(5), qkey: Some(6), max_rd_atomic: 3, ..IbvConfig::default() };
    let end = LocalEndpoint::discover(&open(), &config).unwrap();
    assert!(end.gid().unwrap().why.contains("global, IPv4"), "{:?}", end.gid());
    let info = end.info(Transport::RC, 9, &config);
    assert_eq!((info.qp_num, info.psn, info.mtu, info.qkey), (9, 5, Mtu::B1024, 0));
    assert_eq!(
        (info.link_layer, info.gid, info.gid_type),
        (LinkLayer::Ethernet, Some(Gid(MAPPED)), GidType::RoceV2)
    );
    assert_eq!((info.max_rd_atomic, info.max_dest_rd_atomic), (3, 16));
    assert_eq!(end.info(Transport::SRD, 9, &config).qkey, 6);
}

#[test]
fn an_infiniband_port_with_a_lid_needs_no_gid() {
    fake::reset();
    fake::with(|f| {
        (f.port.link_layer, f.port.lid) = (IBV_LINK_LAYER_INFINIBAND as u8, 0x17);
        f.gids.clear();
    });
    let config = IbvConfig::default();
    let context = open();
    let end = LocalEndpoint::discover(&context, &config).unwrap();
    let info = end.info(Transport::RC, 9, &config);
    assert_eq!((info.link_layer, info.lid, info.gid), (LinkLayer::InfiniBand, 0x17, None));
    assert_eq!(end.facts(&context).unwrap().gid, None);
}

#[test]
fn what_is_out_of_range_is_refused_before_any_queue_pair_is_made() {
    fake::reset();
    let context = open();
    let cases = [
        (IbvConfig { port_num: 2, ..IbvConfig::default() }, "port 2 of fake1, which has ports 1 to 1"),
        (IbvConfig { pkey_index: 1, ..IbvConfig::default() }, "pkey_index is 1"),
        (IbvConfig { gid: GidChoice::Index(0), ..IbvConfig::default() }, "index 0, which is empty"),
        (IbvConfig { gid: GidChoice::Index(4), ..IbvConfig::default() }, "index 4, which is beyond"),
        (IbvConfig { gid: GidChoice::Exact(Gid([7; 16])), ..IbvConfig::default() }, "does not have"),
    ];
    for (config, text) in cases {
        let e = LocalEndpoint::discover(&context, &config).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidConfig, "{e}");
        assert!(e.to_string().contains(text), "{e} does not say {text}");
    }
}

#[test]
fn a_gid_that_moved_is_followed_and_one_that_went_is_an_error() {
    fake::reset();
    let context = open();
    let end = LocalEndpoint::discover(&context, &IbvConfig::default()).unwrap();
    assert_eq!(end.facts(&context).unwrap().gid.unwrap().1, 1);
    fake::with(|f| f.gids[0].gid_index = 3);
    assert_eq!(end.facts(&context).unwrap().gid.unwrap().1, 3);
    fake::with(|f| f.gids[0].gid_type = IBV_GID_TYPE_ROCE_V1.0);
    let e = end.facts(&context).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidState);
    assert!(e.to_string().contains("the GID table has changed"), "{e}");
}
