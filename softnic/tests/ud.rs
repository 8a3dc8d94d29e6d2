//! Unreliable datagrams through unmodified libibverbs and libmlx5: addresses, keys, route headers, and what is dropped.

mod rig;

use ibv_sys::*;
use rig::*;
use softnic::Config;
use softnic::description::{Description, Link};
use softnic::fault::Fault;

const OK: ibv_wc_status = IBV_WC_SUCCESS;

fn shape() -> Shape {
    Shape { kind: IBV_QPT_UD, ..Shape::default() }
}

/// The standard device's link-local address.
fn own_gid() -> [u8; 16] {
    Description::standard(Link::Ib, 1).devices[0].ports[0].gids[0].gid
}

fn roce() -> Config {
    Config { description: Description::standard(Link::Roce, 1), ..Config::steps(1) }
}

/// A datagram of `len` bytes from the front of `a`'s buffer to `b`.
fn send(a: &End, b: &End, ah: *mut ibv_ah, id: u64, len: u32) {
    let request = a.request(id, IBV_WR_SEND, 0, len, b, 0);
    assert_eq!(a.try_post_to(&request, ah, b.qpn(), QKEY), 0);
}

#[test]
fn a_datagram_lands_behind_the_room_of_its_header() {
    both(|rig| {
        let (a, b) = rig.pair(shape());
        let ah = rig.ah(|attr| attr.sl = 5);
        a.memory.put(0, b"a datagram");
        b.memory.put(0, &[7; 60]);
        b.recv(70, &[(0, 30), (30, 30)]);
        let mut request = a.request(1, IBV_WR_SEND_WITH_IMM, 0, 10, &b, 0);
        request.flags |= IBV_SEND_SOLICITED;
        assert_eq!(a.try_post_to(&request, ah, b.qpn(), QKEY), 0);
        assert_eq!(rig.expect(a.cq, 1, OK).opcode, IBV_WC_SEND);
        let wc = rig.expect(b.cq, 70, OK);
        assert_eq!((wc.opcode, wc.byte_len, wc.src_qp), (IBV_WC_RECV, 50, a.qpn()));
        assert_eq!((wc.slid, wc.sl, wc.wc_flags & IBV_WC_GRH), (1, 5, 0));
        // SAFETY: a send with immediate data sets it.
        assert_eq!(unsafe { wc.__bindgen_anon_1.imm_data }, 0x1122_3344u32.to_be());
        assert_eq!(b.memory.get(0, 40), [7; 40], "no header came, so none is written");
        assert_eq!(b.memory.get(40, 10), b"a datagram");
        rig.destroy_ah(ah);
    });
}

#[test]
fn a_routed_datagram_brings_its_header_and_can_be_answered() {
    both(|rig| {
        let (a, b) = rig.pair(shape());
        let ah = rig.ah(|attr| {
            (attr.is_global, attr.grh.dgid.raw) = (1, own_gid());
            (attr.grh.traffic_class, attr.grh.hop_limit, attr.grh.flow_label) = (3, 9, 0x12345);
        });
        b.recv(70, &[(0, 100)]);
        send(&a, &b, ah, 1, 6);
        rig.expect(a.cq, 1, OK);
        let mut wc = rig.expect(b.cq, 70, OK);
        assert_ne!(wc.wc_flags & IBV_WC_GRH, 0);
        assert_eq!(b.memory.get(0, 8), [0x60, 0x31, 0x23, 0x45, 0, 32, 0x1b, 9]);
        assert_eq!(b.memory.get(8, 32), [own_gid(), own_gid()].concat());
        // SAFETY: the completion and the header are live; the domain is alive.
        let back = unsafe { rig.v().ibv_create_ah_from_wc(rig.pd, &mut wc, b.at(0) as *mut _, 1) };
        assert!(!back.is_null(), "{}", std::io::Error::last_os_error());
        a.recv(80, &[(1000, 100)]);
        b.memory.put(0, b"answer");
        send(&b, &a, back, 2, 6);
        rig.expect(b.cq, 2, OK);
        rig.expect(a.cq, 80, OK);
        assert_eq!(a.memory.get(1040, 6), b"answer");
        [ah, back].into_iter().for_each(|ah| rig.destroy_ah(ah));
    });
}

#[test]
fn ethernet_headers_say_how_the_datagram_travelled() {
    with(roce(), |rig| {
        let (a, b) = rig.pair(shape());
        let gids = Description::standard(Link::Roce, 1).devices[0].ports[0].gids.clone();
        for index in 0..4u8 {
            let gid = gids[usize::from(index)].gid;
            let ah = rig.ah(|attr| {
                (attr.dlid, attr.is_global, attr.grh.dgid.raw) = (0, 1, gid);
                (attr.grh.sgid_index, attr.grh.hop_limit) = (index, 64);
            });
            b.memory.put(0, &[7; 100]);
            b.recv(70, &[(0, 100)]);
            a.memory.put(0, &[index; 20]);
            send(&a, &b, ah, 1, 20);
            rig.expect(a.cq, 1, OK);
            let wc = rig.expect(b.cq, 70, OK);
            assert_eq!(b.memory.get(40, 20), [index; 20]);
            let header = b.memory.get(0, 40);
            match index {
                // RoCE version 1, whatever the address; version 2 over IPv6; version 2 over IPv4.
                0 | 2 => assert_eq!((header[6], header[7], &header[24..]), (0x1b, 64, &gid[..])),
                1 => assert_eq!((header[6], header[7], &header[24..]), (17, 64, &gid[..])),
                _ => assert_eq!((header[20], header[29], &header[36..]), (0x45, 17, &[192, 0, 2, 1][..])),
            }
            assert_ne!(wc.wc_flags & IBV_WC_GRH, 0);
            rig.destroy_ah(ah);
        }
    });
}

#[test]
fn the_header_of_ipv4_has_a_right_checksum() {
    with(roce(), |rig| {
        let (a, b) = rig.pair(shape());
        let gid = Description::standard(Link::Roce, 1).devices[0].ports[0].gids[3].gid;
        let ah = rig.ah(|attr| {
            (attr.dlid, attr.is_global, attr.grh.dgid.raw, attr.grh.sgid_index) = (0, 1, gid, 3);
        });
        b.recv(70, &[(0, 100)]);
        send(&a, &b, ah, 1, 4);
        rig.expect(b.cq, 70, OK);
        let words = b.memory.get(20, 20);
        let sum: u32 = words.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        rig.destroy_ah(ah);
    });
}

#[test]
fn a_wrong_key_a_wrong_address_and_a_lost_packet_are_silence() {
    both(|rig| {
        let (a, b) = rig.pair(shape());
        let (ah, elsewhere) = (rig.ah(|_| {}), rig.ah(|attr| attr.dlid = 2));
        b.recv(70, &[(0, 100)]);
        let request = a.request(1, IBV_WR_SEND, 0, 8, &b, 0);
        assert_eq!(a.try_post_to(&request, ah, b.qpn(), QKEY + 1), 0);
        assert_eq!(a.try_post_to(&request, elsewhere, b.qpn(), QKEY), 0);
        assert_eq!(a.try_post_to(&request, ah, 0x7777, QKEY), 0);
        (0..3).for_each(|_| assert_eq!(rig.expect(a.cq, 1, OK).wr_id, 1));
        rig.nic.inject(Fault::DropRequest { nth: 0 });
        send(&a, &b, ah, 2, 8);
        rig.expect(a.cq, 2, OK);
        rig.settle();
        assert!(poll(b.cq).is_none());
        // The highest bit: the queue pair's own key.
        assert_eq!(a.try_post_to(&request, ah, b.qpn(), 0x8000_0000), 0);
        rig.expect(a.cq, 1, OK);
        rig.expect(b.cq, 70, OK);
        [ah, elsewhere].into_iter().for_each(|ah| rig.destroy_ah(ah));
    });
}

#[test]
fn what_finds_no_room_is_dropped_and_the_receive_stays() {
    both(|rig| {
        let (a, b) = rig.pair(shape());
        let ah = rig.ah(|_| {});
        send(&a, &b, ah, 1, 8);
        rig.expect(a.cq, 1, OK);
        rig.settle();
        b.recv(70, &[(0, 47)]);
        send(&a, &b, ah, 2, 8);
        rig.expect(a.cq, 2, OK);
        rig.settle();
        assert!(poll(b.cq).is_none(), "40 and 8 are more than 47");
        send(&a, &b, ah, 3, 7);
        assert_eq!(rig.expect(b.cq, 70, OK).byte_len, 47);
        rig.expect(a.cq, 3, OK);
        rig.destroy_ah(ah);
    });
}

#[test]
fn a_bad_receive_ends_the_queue_pair() {
    both(|rig| {
        let (a, b) = rig.pair(shape());
        let ah = rig.ah(|_| {});
        b.recv_raw(70, &[(b.at(0), 100, 0xdead00)]);
        send(&a, &b, ah, 1, 8);
        rig.expect(a.cq, 1, OK);
        rig.expect(b.cq, 70, IBV_WC_LOC_PROT_ERR);
        assert_eq!(b.state(), IBV_QPS_ERR);
        rig.destroy_ah(ah);
    });
}

#[test]
fn a_failed_send_stops_the_send_queue_alone_until_it_is_resumed() {
    both(|rig| {
        let (a, b) = rig.pair(shape());
        let ah = rig.ah(|_| {});
        a.recv(80, &[(1000, 100)]);
        b.recv(70, &[(0, 100)]);
        send(&a, &b, ah, 1, 4097);
        send(&a, &b, ah, 2, 8);
        rig.expect(a.cq, 1, IBV_WC_LOC_LEN_ERR);
        rig.expect(a.cq, 2, IBV_WC_WR_FLUSH_ERR);
        assert_eq!(a.state(), IBV_QPS_SQE);
        send(&b, &a, ah, 3, 8);
        rig.expect(b.cq, 3, OK);
        rig.expect(a.cq, 80, OK);
        assert_eq!(a.modify(&mut rig::attr(IBV_QPS_RTS), IBV_QP_STATE), 0);
        send(&a, &b, ah, 4, 8);
        rig.expect(a.cq, 4, OK);
        rig.expect(b.cq, 70, OK);
        rig.destroy_ah(ah);
    });
}

#[test]
fn one_queue_pair_talks_to_many_and_itself() {
    both(|rig| {
        let ends: Vec<End> = (0..4)
            .map(|_| {
                let end = rig.end(shape());
                end.to_init(shape());
                assert_eq!((end.to_rtr(0, shape()), end.to_rts(shape())), (0, 0));
                end
            })
            .collect();
        let ah = rig.ah(|_| {});
        for round in 0..50u64 {
            for (i, to) in ends.iter().enumerate() {
                to.recv(100 + round, &[(512, 100)]);
                ends[0].memory.put(0, &[round as u8 + i as u8; 16]);
                send(&ends[0], to, ah, round, 16);
                // A queue pair that talks to itself has both completions in one queue, in either order.
                if i == 0 {
                    let ids = [rig.wait(to.cq).wr_id, rig.wait(to.cq).wr_id];
                    assert!(ids.contains(&round) && ids.contains(&(100 + round)), "{ids:?}");
                } else {
                    rig.expect(ends[0].cq, round, OK);
                    assert_eq!(rig.expect(to.cq, 100 + round, OK).src_qp, ends[0].qpn());
                }
                assert_eq!(to.memory.get(552, 16), [round as u8 + i as u8; 16]);
            }
        }
        rig.destroy_ah(ah);
    });
}

#[test]
fn handles_are_checked_and_counted() {
    let Some(rig) = Rig::start(roce()) else { return };
    // SAFETY: all-zero attributes are valid; the domain is alive.
    let make = |fill: &dyn Fn(&mut ibv_ah_attr)| unsafe {
        let mut attr: ibv_ah_attr = std::mem::zeroed();
        (attr.port_num, attr.is_global) = (1, 1);
        fill(&mut attr);
        rig.v().ibv_create_ah(rig.pd, &mut attr)
    };
    assert!(make(&|attr| attr.is_global = 0).is_null(), "Ethernet needs a global route");
    assert!(make(&|attr| attr.grh.sgid_index = 7).is_null(), "entry 7 is a hole");
    assert!(make(&|attr| attr.port_num = 2).is_null(), "there is no port 2");
    let ah = make(&|_| {});
    assert!(!ah.is_null());
    // SAFETY: the call must refuse, and leave the domain alive.
    assert_eq!(unsafe { rig.v().ibv_dealloc_pd(rig.pd) }, libc::EBUSY);
    rig.destroy_ah(ah);
}
