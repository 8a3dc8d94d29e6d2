//! What a device says about itself, and which objects it makes, changes and refuses: ports, addresses, transitions, register
//! pages, generations of the kernel's interface.

mod rig;

use std::ptr::null;

use ibv_sys::*;
use rig::*;
use softnic::Config;
use softnic::description::{Abi, Description, Link, Uar};

const OK: ibv_wc_status = IBV_WC_SUCCESS;

const MACHINE: &str = r#"
    [[device]]
    name = "mlx5_ib"
    [[device.port]]
    link = "ib"
    lid = 7
    gids = [{ gid = "fe80::7" }]

    [[device]]
    name = "rocep1s0"
    uar = "static"
    [[device.port]]
    link = "roce"
    mtu = 1024
    gids = [
        { gid = "fe80::1", type = "v1", netdev = "lo" },
        { gid = "fe80::1", type = "v2", netdev = "lo" },
        {},
        { gid = "192.0.2.7", type = "v1" },
        { gid = "192.0.2.7", type = "v2" },
        { gid = "2001:db8::9", type = "v2" },
    ]
    [[device.port]]
    link = "roce"
    active = false
"#;

fn machine(abi: Abi) -> Config {
    let mut description = Description::parse(MACHINE).unwrap();
    description.abi = abi;
    Config { description, ..Config::steps(1) }
}

fn each_abi(index: usize, test: impl Fn(&mut Rig)) {
    for abi in [Abi::Native, Abi::Invoke, Abi::Write] {
        if let Some(mut rig) = Rig::open(machine(abi), index) {
            test(&mut rig);
            assert_eq!(rig.nic.take_breaches(), []);
        }
    }
}

#[test]
fn the_gid_table_has_pairs_types_and_no_holes() {
    each_abi(1, |rig| {
        // SAFETY: all-zero entries are valid, and there is room for as many as are asked for.
        let (n, table) = unsafe {
            let mut table: [ibv_gid_entry; 16] = std::mem::zeroed();
            (rig.v().ibv_query_gid_table(rig.context, table.as_mut_ptr(), 16, 0), table)
        };
        let got: Vec<_> = table[..n as usize].iter().map(|e| (e.port_num, e.gid_index, e.gid_type)).collect();
        assert_eq!(got, [(1, 0, 1), (1, 1, 2), (1, 3, 1), (1, 4, 2), (1, 5, 2)]);
        // SAFETY: any bytes are a GID.
        let raw = unsafe { table[2].gid.raw };
        assert_eq!(raw[10..], [0xff, 0xff, 192, 0, 2, 7]);
        assert_ne!(table[0].ndev_ifindex, 0, "lo has an index everywhere");
    });
}

#[test]
fn single_gids_are_answered_and_holes_are_not() {
    each_abi(1, |rig| {
        // SAFETY: an all-zero entry is valid.
        let mut entry: ibv_gid_entry = unsafe { std::mem::zeroed() };
        // SAFETY: the context is alive and the entry is this frame's.
        let mut query =
            |port, index| unsafe { rig.v().ibv_query_gid_ex(rig.context, port, index, &mut entry, 0) };
        assert_eq!(query(1, 2), libc::ENODATA);
        assert_ne!(query(3, 0), 0);
        assert_eq!(query(1, 5), 0);
        assert_eq!((entry.gid_type, entry.gid_index), (2, 5));
    });
}

#[test]
fn ports_answer_link_state_mtu_and_lid() {
    each_abi(0, |rig| assert_eq!(port(rig, 1), (IBV_PORT_ACTIVE, 1, IBV_MTU_4096, 7)));
    each_abi(1, |rig| {
        assert_eq!(port(rig, 1), (IBV_PORT_ACTIVE, 2, IBV_MTU_1024, 0));
        assert_eq!(port(rig, 2).0, IBV_PORT_DOWN);
        // SAFETY: the context is alive; an all-zero structure is valid.
        let refused = unsafe { rig.v().ibv_query_port(rig.context, 3, &mut std::mem::zeroed()) };
        assert_ne!(refused, 0, "there is no port 3");
    });
}

fn port(rig: &Rig, number: u8) -> (ibv_port_state, u8, ibv_mtu, u16) {
    let attr = rig.port(number);
    (attr.state, attr.link_layer, attr.active_mtu, attr.lid)
}

#[test]
fn the_device_answers_its_limits() {
    each_abi(1, |rig| {
        // SAFETY: the context is alive; an all-zero structure is valid.
        let attr = unsafe {
            let mut attr: ibv_device_attr_ex = std::mem::zeroed();
            assert_eq!(rig.v().ibv_query_device_ex(rig.context, null(), &mut attr), 0);
            attr
        };
        let a = attr.orig_attr;
        assert_eq!((a.vendor_id, a.vendor_part_id, a.phys_port_cnt, a.max_qp_rd_atom), (0x2c9, 4119, 2, 16));
        assert_eq!(attr.hca_core_clock, 1_000_000);
        assert!(a.max_sge >= 16 && a.max_qp_wr >= 8192 && a.max_cqe >= 1 << 20);
    });
}

#[test]
fn a_roce_connection_runs_in_every_generation_of_the_interface() {
    each_abi(1, |rig| {
        for sgid in [0, 1, 4, 5] {
            let shape = Shape::default();
            let (a, b) = (rig.end(shape), rig.end(shape));
            connect_roce(&a, &b, sgid, shape);
            a.memory.put(0, &[3; 100]);
            a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 100, &b, 0));
            rig.expect(a.cq, 1, OK);
            assert_eq!(b.memory.get(0, 100), [3; 100]);
        }
    });
}

/// Connects two ends of the RoCE device by one of its addresses.
fn connect_roce(a: &End, b: &End, sgid: u8, shape: Shape) {
    let description = Description::parse(MACHINE).unwrap();
    let gid = description.devices[1].ports[0].gids[usize::from(sgid)].gid;
    for (own, peer) in [(a, b), (b, a)] {
        own.to_init(shape);
        let (mut attr, mask) = roce(peer.qpn(), gid, sgid, shape);
        assert_eq!(own.modify(&mut attr, mask), 0);
        assert_eq!(own.to_rts(shape), 0);
    }
}

fn roce(peer: u32, gid: [u8; 16], sgid: u8, shape: Shape) -> (ibv_qp_attr, u32) {
    let (mut attr, mask) = rtr(peer, shape);
    attr.ah_attr.dlid = 0;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid.raw = gid;
    attr.ah_attr.grh.sgid_index = sgid;
    attr.ah_attr.grh.hop_limit = 64;
    (attr, mask)
}

#[test]
fn wrong_addresses_are_refused_or_lead_nowhere() {
    let Some(mut rig) = Rig::open(machine(Abi::Native), 1) else { return };
    let shape = Shape::default();
    let (a, b) = (rig.end(shape), rig.end(shape));
    a.to_init(shape);
    b.to_init(shape);
    let gid = Description::parse(MACHINE).unwrap().devices[1].ports[0].gids[0].gid;
    let (mut local, mask) = rtr(b.qpn(), shape);
    assert_eq!(a.modify(&mut local, mask), libc::EINVAL, "RoCE needs a global route");
    let (mut hole, _) = roce(b.qpn(), gid, 2, shape);
    assert_eq!(a.modify(&mut hole, mask), libc::EINVAL, "entry 2 is a hole");
    let (mut large, _) = roce(b.qpn(), gid, 0, Shape { mtu: IBV_MTU_4096, ..shape });
    assert_eq!(a.modify(&mut large, mask), libc::EINVAL, "the port's MTU is 1024");
    let (mut elsewhere, _) = roce(b.qpn(), [7; 16], 0, shape);
    assert_eq!((a.modify(&mut elsewhere, mask), a.to_rts(shape)), (0, 0));
    a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
    rig.expect(a.cq, 1, IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn illegal_transitions_and_missing_attributes_are_refused() {
    let Some(mut rig) = Rig::start(Config::steps(1)) else { return };
    let shape = Shape::default();
    let end = rig.end(shape);
    assert_eq!(end.to_rtr(1, shape), libc::EINVAL, "from RESET");
    end.to_init(shape);
    assert_eq!(end.to_rts(shape), libc::EINVAL, "from INIT");
    let (mut attr, mask) = rtr(1, shape);
    for bit in (0..21).map(|b| 1u32 << b).filter(|b| mask & b != 0 && *b != IBV_QP_STATE) {
        assert_eq!(end.modify(&mut attr, mask & !bit), libc::EINVAL, "without {bit:#x}");
        assert_eq!(end.state(), IBV_QPS_INIT, "a refused change changes nothing");
    }
    assert_eq!(end.modify(&mut attr, mask | IBV_QP_SQ_PSN), libc::EINVAL, "not at this step");
    attr.path_mtu = ibv_mtu(9);
    assert_eq!(end.modify(&mut attr, mask), libc::EINVAL);
    assert_eq!((end.to_rtr(1, shape), end.to_rts(shape)), (0, 0));
    let mut reset = rig::attr(IBV_QPS_RESET);
    assert_eq!(end.modify(&mut reset, IBV_QP_STATE), 0);
    assert_eq!(end.state(), IBV_QPS_RESET);
}

#[test]
fn a_queue_pair_runs_again_after_reset() {
    both(|rig| {
        let shape = Shape::default();
        let (a, b) = rig.pair(shape);
        for round in 0..3 {
            let mut bad = a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0);
            bad.remote.1 ^= 1;
            a.post(&a.request(0, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
            a.post(&bad);
            rig.expect(a.cq, 0, OK);
            rig.expect(a.cq, 1, IBV_WC_REM_ACCESS_ERR);
            for end in [&a, &b] {
                let mut reset = rig::attr(IBV_QPS_RESET);
                assert_eq!(end.modify(&mut reset, IBV_QP_STATE), 0, "round {round}");
            }
            rig.connect(&a, &b, shape);
        }
    });
}

#[test]
fn used_objects_are_not_destroyed() {
    let Some(mut rig) = Rig::start(Config::steps(1)) else { return };
    let end = rig.end(Shape::default());
    // SAFETY: both calls must refuse, and leave the objects alive.
    let (cq, pd) = unsafe { (rig.v().ibv_destroy_cq(end.cq), rig.v().ibv_dealloc_pd(rig.pd)) };
    assert_eq!((cq, pd), (libc::EBUSY, libc::EBUSY));
}

#[test]
fn bad_registrations_are_refused() {
    let Some(rig) = Rig::start(Config::steps(1)) else { return };
    let memory = Memory::new(4096);
    // SAFETY: the device checks the range by itself.
    let reg = |addr: u64, len, access| unsafe { rig.v().ibv_reg_mr(rig.pd, addr as *mut _, len, access) };
    let remote_only = IBV_ACCESS_REMOTE_WRITE;
    for (addr, len, access) in [(memory.addr(), 0, LOCAL), (8, 4096, LOCAL), (memory.addr(), 64, remote_only)]
    {
        assert!(reg(addr, len, access).is_null(), "{addr:#x}+{len} access {access:#x}");
    }
}

#[test]
fn thread_domains_get_registers_of_their_own() {
    for (abi, index) in [(Abi::Native, 0), (Abi::Native, 1), (Abi::Write, 1)] {
        let mut config = machine(abi);
        config.description.devices[0].ports[0].lid = 1;
        let Some(rig) = Rig::open(config, index) else { return };
        let v = rig.v();
        // SAFETY: all-zero attributes are valid; what is made is destroyed once, users first.
        unsafe {
            let shape = Shape::default();
            let cq = v.ibv_create_cq(rig.context, 64, raw::none(), raw::none(), 0);
            let mut made = Vec::new();
            for _ in 0..6 {
                let mut td_attr: ibv_td_init_attr = std::mem::zeroed();
                let td = ibv_alloc_td(rig.context, &mut td_attr);
                assert!(!td.is_null(), "{abi:?} {index}: {}", std::io::Error::last_os_error());
                let mut attr: ibv_parent_domain_init_attr = std::mem::zeroed();
                (attr.pd, attr.td) = (rig.pd, td);
                let pd = ibv_alloc_parent_domain(rig.context, &mut attr);
                let qp = rig.qp(cq, pd, shape);
                assert!(!qp.is_null());
                made.push((qp, pd, td, register(qp)));
            }
            let registers: std::collections::BTreeSet<_> = made.iter().map(|m| m.3).collect();
            assert_eq!(registers.len(), made.len(), "no two share a register");
            for (qp, pd, td, _) in made {
                assert_eq!((v.ibv_destroy_qp(qp), v.ibv_dealloc_pd(pd), ibv_dealloc_td(td)), (0, 0, 0));
            }
            assert_eq!(v.ibv_destroy_cq(cq), 0);
        }
    }
}

/// # Safety
///
/// `qp` is alive.
unsafe fn register(qp: *mut ibv_qp) -> usize {
    // SAFETY: all-zero structures are valid.
    unsafe {
        let mut out: mlx5dv_qp = std::mem::zeroed();
        let mut obj: mlx5dv_obj = std::mem::zeroed();
        (obj.qp.in_, obj.qp.out) = (qp, &mut out);
        assert_eq!(ibv_sys::mlx5dv().unwrap().mlx5dv_init_obj(&mut obj, u64::from(MLX5DV_OBJ_QP)), 0);
        out.bf.reg as usize
    }
}

#[test]
fn many_queue_pairs_share_registers_and_lose_no_doorbell() {
    for uar in [Uar::Dynamic, Uar::Static] {
        let mut config = Config::steps(7);
        config.description = Description::standard(Link::Ib, 1);
        config.description.devices[0].uar = uar;
        with(config, |rig| {
            let pairs: Vec<_> = (0..24).map(|_| rig.pair(Shape::default())).collect();
            for round in 0..5u64 {
                for (a, b) in &pairs {
                    a.post(&a.request(round, IBV_WR_RDMA_WRITE, 0, 8, b, 0));
                    b.post(&b.request(round, IBV_WR_RDMA_READ, 0, 8, a, 0));
                }
                for (a, b) in &pairs {
                    rig.expect(a.cq, round, OK);
                    rig.expect(b.cq, round, OK);
                }
            }
        });
    }
}

#[test]
fn a_file_is_registered_as_dmabuf_and_reached_by_its_own_addresses() {
    both(|rig| {
        use std::os::fd::AsRawFd;
        let file = softnic::memory::memory_file("dmabuf", 3 * 4096).unwrap();
        let iova = 0x7000_0000_1000u64;
        // SAFETY: the domain and the descriptor are alive; destroyed once.
        unsafe {
            let v = rig.v();
            let mr = v.ibv_reg_dmabuf_mr(rig.pd, 4096, 8192, iova, file.as_raw_fd(), ALL as i32);
            assert!(!mr.is_null(), "{}", std::io::Error::last_os_error());
            let (a, b) = rig.pair(Shape::default());
            a.memory.put(0, b"through the file");
            let mut send = a.request(1, IBV_WR_RDMA_WRITE, 0, 16, &b, 0);
            send.remote = (iova + 100, (*mr).rkey);
            a.post(&send);
            rig.expect(a.cq, 1, OK);
            let seen = softnic::memory::Mapping::new(&file, 0, 3 * 4096).unwrap();
            assert_eq!(softnic::memory::read_vec(seen.addr() + 4196, 16, 16).unwrap(), b"through the file");
            send.remote.0 = iova - 1;
            a.post(&send);
            rig.expect(a.cq, 1, IBV_WC_REM_ACCESS_ERR);
            assert_eq!(v.ibv_dereg_mr(mr), 0);
            let past = v.ibv_reg_dmabuf_mr(rig.pd, 4096, 8193, iova, file.as_raw_fd(), ALL as i32);
            assert!(past.is_null(), "past the end of the file");
        }
    });
}

#[test]
fn events_come_once_per_arming_and_are_counted() {
    both(|rig| {
        let v = rig.v();
        // SAFETY: what is made is destroyed once, users first; all-zero attributes are valid.
        unsafe {
            let channel = v.ibv_create_comp_channel(rig.context);
            let mut a = rig.end(Shape::default());
            let b = rig.end(Shape::default());
            let cq = v.ibv_create_cq(rig.context, 64, raw::none(), channel, 0);
            a.destroy_qp();
            let plain = std::mem::replace(&mut a.cq, cq);
            assert_eq!(v.ibv_destroy_cq(plain), 0);
            a.qp = rig.qp(cq, rig.pd, Shape::default());
            rig.connect(&a, &b, Shape::default());
            let readable = |ms| {
                let mut p = libc::pollfd { fd: (*channel).fd, events: libc::POLLIN, revents: 0 };
                libc::poll(&mut p, 1, ms) == 1
            };
            for id in 0..5 {
                assert_eq!(ibv_req_notify_cq(cq, 0), 0);
                a.post(&a.request(id, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
                rig.until("an event", |_| readable(0).then_some(()));
                let (mut from, mut context) = (raw::none(), raw::none());
                assert_eq!(v.ibv_get_cq_event(channel, &mut from, &mut context), 0);
                assert_eq!(from, cq);
                rig.expect(cq, id, OK);
                rig.settle();
                assert!(!readable(0), "one event per arming");
                v.ibv_ack_cq_events(cq, 1);
            }
            // An event that nobody reads must not keep the queue from being destroyed.
            assert_eq!(ibv_req_notify_cq(cq, 0), 0);
            a.post(&a.request(9, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
            rig.until("an event", |_| readable(0).then_some(()));
            rig.expect(cq, 9, OK);
            drop(a);
            assert_eq!(v.ibv_destroy_comp_channel(channel), 0);
        }
    });
}

#[test]
fn an_extended_queue_and_builder_work_together() {
    both(|rig| {
        let v = rig.v();
        // SAFETY: what is made is destroyed once, users first; all-zero attributes are valid.
        unsafe {
            let mut cq_attr: ibv_cq_init_attr_ex = std::mem::zeroed();
            cq_attr.cqe = 64;
            cq_attr.wc_flags = u64::from(IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
            let cq_ex = ibv_create_cq_ex(rig.context, &mut cq_attr);
            assert!(!cq_ex.is_null());
            let cq = cq_ex.cast::<ibv_cq>();
            let mut a = rig.end(Shape::default());
            let b = rig.end(Shape::default());
            a.destroy_qp();
            assert_eq!(v.ibv_destroy_cq(std::mem::replace(&mut a.cq, cq)), 0);
            let mut init: ibv_qp_init_attr_ex = std::mem::zeroed();
            (init.send_cq, init.recv_cq, init.qp_type, init.pd) = (cq, cq, IBV_QPT_RC, rig.pd);
            (init.cap.max_send_wr, init.cap.max_send_sge) = (16, 1);
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (16, 1);
            init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            init.send_ops_flags = u64::from(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ);
            a.qp = v.ibv_create_qp_ex(rig.context, &mut init);
            assert!(!a.qp.is_null(), "{}", std::io::Error::last_os_error());
            rig.connect(&a, &b, Shape::default());
            let qp_ex = v.ibv_qp_to_qp_ex(a.qp);
            b.memory.put(64, &[6; 32]);
            assert_eq!(ibv_wr_start(qp_ex), 0);
            (*qp_ex).wr_id = 5;
            (*qp_ex).wr_flags = IBV_SEND_SIGNALED;
            assert_eq!(ibv_wr_rdma_read(qp_ex, b.rkey(), b.at(64)), 0);
            assert_eq!(ibv_wr_set_sge(qp_ex, a.lkey(), a.at(0), 32), 0);
            assert_eq!(ibv_wr_complete(qp_ex), 0);
            let mut poll: ibv_poll_cq_attr = std::mem::zeroed();
            rig.until("a completion", |_| (ibv_start_poll(cq_ex, &mut poll) == 0).then_some(()));
            assert_eq!(((*cq_ex).wr_id, (*cq_ex).status), (5, OK));
            assert_eq!(ibv_wc_read_byte_len(cq_ex), Ok(32));
            assert!(ibv_wc_read_completion_ts(cq_ex).is_ok());
            ibv_end_poll(cq_ex);
            assert_eq!(a.memory.get(0, 32), [6; 32]);
        }
    });
}

#[test]
fn two_devices_reach_each_other_and_keep_their_objects_apart() {
    let config = Config { description: Description::standard(Link::Ib, 2), ..Config::steps(1) };
    with(config, |rig| {
        let shape = Shape::default();
        let a = rig.end(shape);
        let (b, _second) = rig.on_device(1, |rig| rig.end(shape));
        for (own, peer, lid) in [(&a, &b, 2), (&b, &a, 1)] {
            own.to_init(shape);
            let (mut attr, mask) = rtr(peer.qpn(), shape);
            attr.ah_attr.dlid = lid;
            assert_eq!((own.modify(&mut attr, mask), own.to_rts(shape)), (0, 0));
        }
        a.memory.put(0, &[8; 32]);
        a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 32, &b, 0));
        b.post(&b.request(2, IBV_WR_RDMA_READ, 64, 32, &a, 0));
        rig.expect(a.cq, 1, OK);
        rig.expect(b.cq, 2, OK);
        assert_eq!((b.memory.get(0, 32), b.memory.get(64, 32)), (vec![8; 32], vec![8; 32]));
        // A key of the other device's domain is no key here.
        let mut send = a.request(3, IBV_WR_RDMA_WRITE, 0, 32, &b, 0);
        send.pieces[0].2 = b.lkey();
        a.post(&send);
        rig.expect(a.cq, 3, IBV_WC_LOC_PROT_ERR);
        drop(b);
    });
}

#[test]
fn a_message_longer_than_the_ports_limit_is_a_local_length_error() {
    let mut config = Config::steps(1);
    config.description.devices[0].ports[0].max_message = 4096;
    with(config, |rig| {
        let (a, b) = rig.pair(Shape::default());
        assert_eq!(rig.port(1).max_msg_sz, 4096);
        a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 4096, &b, 0));
        rig.expect(a.cq, 1, OK);
        a.post(&a.request(2, IBV_WR_RDMA_WRITE, 0, 4097, &b, 0));
        rig.expect(a.cq, 2, IBV_WC_LOC_LEN_ERR);
    });
}
