//! Data types survive the way to text and back, and what a peer may send is checked on the way.
use ibv_core::*;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{from_str, json, to_string, to_value};
use std::fmt::Debug;

#[track_caller]
fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T) {
    let text = to_string(&value).unwrap();
    assert_eq!(from_str::<T>(&text).unwrap(), value, "{text}");
}

fn endpoint() -> IbvQpInfo {
    let mut info = IbvQpInfo::new(Transport::RC, 0xabcdef);
    (info.gid, info.gid_type, info.link_layer) = (Some(Gid([7; 16])), GidType::RoceV2, LinkLayer::Ethernet);
    (info.psn, info.mtu, info.lid) = (0xffffff, Mtu::B1024, 9);
    info.ece = Ece { vendor_id: 1, options: 2, comp_mask: 3 };
    info
}

#[test]
fn what_is_whole_comes_back_whole() {
    let mut config = IbvConfig::default();
    (config.gid, config.psn, config.path_mtu) = (GidChoice::Exact(Gid([1; 16])), Some(5), Mtu::B256);
    round_trip(config);
    round_trip(endpoint());
    round_trip(negotiate(&endpoint(), &endpoint()).unwrap());
    round_trip(IbvRemoteMemoryRegionView { addr: u64::MAX, len: 5, rkey: u32::MAX });
    let mut buffer = IbvBuffer::from(IbvRemoteMemoryRegionView { addr: 1, len: 2, rkey: 3 });
    buffer.device_name = "mlx5_0".into();
    round_trip(buffer);
    let mut caps = Caps::default();
    (caps.write, caps.atomics, caps.max_msg_size) = (Support::Native, Support::Emulated, 1 << 30);
    round_trip(caps);
    round_trip(WorkRequestError { wr_id: 1, status: WcStatus(99), vendor_err: 3 });
    round_trip(IbvEvent { kind: EventType(77), object: EventObject::Port(2) });
    round_trip(IbvEvent { kind: EventType::DEVICE_FATAL, object: EventObject::Device });
    round_trip(PollTarget::Recv);
    let mut info = IbvDeviceInfo::new("mlx5_0");
    info.ports = vec![IbvPort::new(1)];
    info.ports[0].gids =
        vec![GidEntry { index: 3, gid: Gid([2; 16]), gid_type: GidType::Ib, netdev: Some("eth0".into()) }];
    round_trip(info);
}

#[test]
fn completions_and_local_views_come_back_field_by_field() {
    let mut wc = IbvWc { wr_id: 1 << 60, status: WcStatus::REM_OP_ERR, byte_len: 7, ..IbvWc::default() };
    wc.set_imm(0xdead);
    let back: IbvWc = from_str(&to_string(&wc).unwrap()).unwrap();
    assert_eq!(to_value(back).unwrap(), to_value(wc).unwrap());
    assert_eq!((back.wr_id, back.status, back.imm()), (1 << 60, WcStatus::REM_OP_ERR, Some(0xdead)));
    let view = IbvMemoryRegionView::from_raw_parts(0x1000, 64, 5);
    let back: IbvMemoryRegionView<'static> = from_str(&to_string(&view).unwrap()).unwrap();
    assert_eq!((back.addr(), back.len(), back.lkey()), (0x1000, 64, 5));
}

#[test]
fn access_is_written_by_name_and_unknown_names_are_refused() {
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    assert_eq!(to_value(access).unwrap(), json!("LOCAL_WRITE | REMOTE_READ"));
    round_trip(access);
    round_trip(Access::empty());
    assert!(from_str::<Access>("\"REMOTE_CONTROL\"").is_err());
}

#[test]
fn missing_fields_are_the_defaults() {
    assert_eq!(from_str::<IbvConfig>("{}").unwrap(), IbvConfig::default());
    let some: IbvConfig = from_str(r#"{"max_send_wr": 7, "gid": {"Index": 3}}"#).unwrap();
    let mut want = IbvConfig::default();
    (want.max_send_wr, want.gid) = (7, GidChoice::Index(3));
    assert_eq!(some, want);
    assert_eq!(from_str::<Caps>("{}").unwrap(), Caps::default());
    assert_eq!(from_str::<IbvDeviceInfo>(r#"{"name":"a"}"#).unwrap(), IbvDeviceInfo::new("a"));
}

#[test]
fn an_endpoint_out_of_range_is_refused_by_this_way_too() {
    for field in ["qp_num", "psn"] {
        let mut text = to_value(endpoint()).unwrap();
        text[field] = json!(1 << 24);
        let e = serde_json::from_value::<IbvQpInfo>(text).unwrap_err();
        assert!(e.to_string().contains("0x1000000 exceeds 24 bits"), "{e}");
    }
    let mut text = to_value(endpoint()).unwrap();
    text["mtu"] = json!("B777");
    assert!(serde_json::from_value::<IbvQpInfo>(text).is_err());
}
