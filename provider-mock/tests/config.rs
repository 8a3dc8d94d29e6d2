//! Every configured value is read back, and what a device can not do is refused with both numbers.
mod common;
use common::*;
use ibv_core::*;
use provider_mock::*;

fn unusual(gid: Gid) -> IbvConfig {
    let mut c = IbvConfig::default();
    c.port_num = 1;
    c.pkey_index = 3;
    c.gid = GidChoice::Exact(gid);
    c.path_mtu = Mtu::B1024;
    (c.max_send_wr, c.max_recv_wr, c.max_send_sge, c.max_recv_sge, c.max_inline) = (5, 6, 3, 2, 17);
    (c.retry_cnt, c.rnr_retry, c.timeout, c.min_rnr_timer) = (4, 5, 9, 21);
    (c.max_rd_atomic, c.max_dest_rd_atomic, c.psn) = (7, 8, Some(0xabcdef));
    (c.traffic_class, c.service_level, c.flow_label, c.hop_limit) = (0x68, 5, 0xfffff, 3);
    (c.qkey, c.flight_recorder) = (Some(0x1234), 0);
    c
}

#[test]
fn every_field_reads_back_through_the_attributes_as_negotiated() {
    let fabric = ordered();
    let (d, e) = (open(&fabric, 0), open(&fabric, 1));
    let wanted = unusual(d.device_info().ports[0].gids[0].gid);
    let (cq, cqe) = (d.create_cq(11).unwrap(), e.create_cq(64).unwrap());
    let mut a = d.create_queue_pair(wanted.clone(), &cq, &cq).unwrap();
    let mut smaller = config(8, 8);
    (smaller.path_mtu, smaller.max_rd_atomic, smaller.max_dest_rd_atomic) = (Mtu::B512, 2, 3);
    let mut b = e.create_queue_pair(smaller, &cqe, &cqe).unwrap();
    let before = a.queue_pair().attributes().unwrap();
    assert_eq!((before.state, &before.config), (QpState::RESET, &wanted));
    assert_eq!((before.dest_qp_num, before.rq_psn), (None, None));

    let (ia, ib) = (a.get_qp_info().unwrap(), b.get_qp_info().unwrap());
    let mut a = a.connect(&ib).unwrap();
    let got = a.attributes().unwrap();
    let mut agreed = wanted.clone();
    (agreed.path_mtu, agreed.max_rd_atomic, agreed.max_dest_rd_atomic) = (Mtu::B512, 3, 2);
    assert_eq!((got.state, &got.config), (QpState::RTS, &agreed));
    assert_eq!((got.dest_qp_num, got.rq_psn), (Some(ib.qp_num), Some(ib.psn)));
    assert_eq!(a.config(), &agreed);
    assert_eq!(a.queue_pair().get_qp_info().unwrap(), ia, "an endpoint is stable");
    let mut b = b.connect(&ia).unwrap();
    let theirs = b.attributes().unwrap().config;
    assert_eq!((theirs.path_mtu, theirs.max_rd_atomic, theirs.max_dest_rd_atomic), (Mtu::B512, 2, 3));
}

#[test]
fn an_endpoint_names_what_it_was_made_with_and_survives_its_byte_form() {
    let fabric = ordered();
    let d = domain(&fabric);
    let cq = d.create_cq(64).unwrap();
    let gid = d.device_info().ports[0].gids[0].gid;
    let info = d.create_queue_pair(unusual(gid), &cq, &cq).unwrap().get_qp_info().unwrap();
    assert_eq!((info.transport, info.gid, info.qp_num), (Transport::MOCK, Some(gid), 1));
    assert_eq!((info.psn, info.qkey, info.mtu), (0xabcdef, 0x1234, Mtu::B1024));
    assert_eq!((info.max_rd_atomic, info.max_dest_rd_atomic), (7, 8));
    assert_eq!(IbvQpInfo::from_bytes(&info.to_bytes()), Ok(info));
}

#[test]
fn what_the_port_does_not_have_is_refused_before_a_queue_pair_is_made() {
    let fabric = ordered();
    let d = domain(&fabric);
    let cq = d.create_cq(64).unwrap();
    type Break = fn(&mut IbvConfig);
    let cases: [(&str, Break); 5] = [
        ("port_num is 2", |c| c.port_num = 2),
        ("pkey_index is 16", |c| c.pkey_index = 16),
        ("GID index 1", |c| c.gid = GidChoice::Index(1)),
        ("no GID 0000", |c| c.gid = GidChoice::Exact(Gid::default())),
        ("max_inline is 65", |c| c.max_inline = 65),
    ];
    for (text, damage) in cases {
        let mut c = config(4, 4);
        damage(&mut c);
        let e = d.create_queue_pair(c, &cq, &cq).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidConfig);
        assert!(e.to_string().contains(text), "{e}");
    }
    let mut c = config(4, 4);
    c.gid = GidChoice::Index(0);
    let mut first = d.create_queue_pair(c, &cq, &cq).unwrap();
    assert_eq!(first.get_qp_info().unwrap().qp_num, 1, "nothing was left behind");
}

#[test]
fn an_endpoint_of_another_fabric_is_refused_with_both_names() {
    let (one, other) = (ordered(), ordered());
    let (d, e) = (domain(&one), domain(&other));
    let (cq, cqe) = (d.create_cq(8).unwrap(), e.create_cq(8).unwrap());
    let mut a = d.create_queue_pair(config(4, 4), &cq, &cq).unwrap();
    let mut foreign = e.create_queue_pair(config(4, 4), &cqe, &cqe).unwrap().get_qp_info().unwrap();
    for _ in 0..2 {
        let (back, e) = a.connect(&foreign).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Incompatible);
        assert!(
            e.to_string().contains("not of this mock fabric") && e.to_string().contains("one process"),
            "{e}"
        );
        (a, foreign.gid) = (back, None);
    }
    let me = a.get_qp_info().unwrap();
    assert_eq!(a.state().unwrap(), QpState::RESET);
    assert!(a.connect(&me).is_ok(), "it can still be connected");
}

#[test]
fn knobs_turn_what_the_domain_says_and_what_it_does() {
    let fabric = Fabric::new(FabricConfig {
        devices: 3,
        max_msg_size: 100,
        max_send_size: 10,
        max_sge: 2,
        max_inline: 8,
        max_wr: 7,
        max_cqe: 20,
        max_batch: 3,
        max_mr_size: 64,
        max_rd_atomic: 2,
        loopback: false,
        atomics: Support::Absent,
        write_with_imm: Support::Absent,
        drive: Drive::Manual,
        ..FabricConfig::default()
    });
    let p = MockProvider::new(fabric.clone());
    let names: Vec<_> = p.devices().unwrap().into_iter().map(|d| (d.name, d.kind)).collect();
    assert_eq!(names, ["mock0", "mock1", "mock2"].map(|n| (n.to_owned(), DeviceKind::Mock)));
    assert_eq!(p.open(&IbvDeviceInfo::new("mock3")).unwrap_err().kind(), ErrorKind::NoDevice);
    assert_eq!(p.open(&IbvDeviceInfo::new("mlx5_0")).unwrap_err().kind(), ErrorKind::NoDevice);
    let d = domain(&fabric);
    let caps = d.caps();
    assert_eq!((caps.max_msg_size, caps.max_send_size, caps.max_inline), (100, 10, 8));
    assert_eq!((caps.max_send_sge, caps.max_recv_sge, caps.max_send_wr, caps.max_recv_wr), (2, 2, 7, 7));
    assert_eq!((caps.max_cqe, caps.max_batch, caps.max_mr_size, caps.max_rd_atomic), (20, 3, 64, 2));
    assert!(!caps.loopback && !caps.atomics.present() && !caps.write_with_imm.present() && caps.rnr_retry);
    assert_eq!(d.create_cq(21).unwrap_err().kind(), ErrorKind::InvalidConfig);
    assert_eq!(d.alloc(65).unwrap_err().kind(), ErrorKind::InvalidConfig);

    let [mut a, b] = pair_with(&fabric, |_, c| {
        (c.max_send_wr, c.max_recv_wr, c.max_send_sge, c.max_recv_sge, c.max_inline) = (7, 7, 2, 2, 8);
    });
    assert_eq!(a.qp.config().max_rd_atomic, 2);
    let (l, r) = (a.alloc(1, 11), b.alloc(0, 11));
    assert_eq!(a.qp.send(l.view()), Err(PostError::MessageTooLong));
    assert_eq!(a.qp.put_with_imm(r.remote(), l.view(), 1), Err(PostError::Unsupported));
    let mut batch = a.qp.batch();
    for _ in 0..7 {
        let _ids = batch.put(r.remote(), l.view()).unwrap();
    }
    batch.ring().unwrap();
    assert_eq!(fabric.counters().doorbells, 3, "seven requests, three to a doorbell");
}
