//! Asynchronous events through unmodified libibverbs: ports, addresses, queue pairs, queues and devices that fail or change,
//! by order and by schedule.

mod rig;

use ibv_sys::*;
use rig::*;
use softnic::Config;
use softnic::description::{Description, GidEntry, Link};
use softnic::incident::{GidChange, Incident};

const OK: ibv_wc_status = IBV_WC_SUCCESS;

#[test]
fn a_port_goes_down_loses_what_it_carries_and_comes_back() {
    both(|rig| {
        let (a, b) = rig.pair(Shape { retry: 7, timeout: 8, ..Shape::default() });
        rig.nic.befall(0, &Incident::PortDown(1));
        rig.expect_event(IBV_EVENT_PORT_ERR, 1);
        assert_eq!(rig.port(1).state, IBV_PORT_DOWN);
        a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
        rig.expect(a.cq, 1, IBV_WC_RETRY_EXC_ERR);
        rig.nic.befall(0, &Incident::PortUp(1));
        rig.expect_event(IBV_EVENT_PORT_ACTIVE, 1);
        assert_eq!(rig.port(1).state, IBV_PORT_ACTIVE);
        let (c, d) = rig.pair(Shape::default());
        c.post(&c.request(1, IBV_WR_RDMA_WRITE, 0, 8, &d, 0));
        rig.expect(c.cq, 1, OK);
        assert_eq!(rig.event(), None);
    });
}

#[test]
fn a_port_has_another_address_and_the_old_one_leads_nowhere() {
    both(|rig| {
        let shape = Shape { kind: IBV_QPT_UD, ..Shape::default() };
        let (a, b) = rig.pair(shape);
        let old = Description::standard(Link::Ib, 1).devices[0].ports[0].gids[0].gid;
        let mut new = old;
        new[15] ^= 0x55;
        let entry = GidEntry { gid: new, kind: None, netdev: None };
        rig.nic.befall(0, &Incident::GidChange(GidChange { port: 1, index: 0, entry }));
        rig.expect_event(IBV_EVENT_GID_CHANGE, 1);
        // SAFETY: the context is alive; an all-zero entry is valid, and any bytes are a GID.
        let asked = unsafe {
            let mut entry: ibv_gid_entry = std::mem::zeroed();
            assert_eq!(rig.v().ibv_query_gid_ex(rig.context, 1, 0, &mut entry, 0), 0);
            entry.gid.raw
        };
        assert_eq!(asked, new);
        b.recv(70, &[(0, 100)]);
        for (id, gid) in [(1, old), (2, new)] {
            let ah = rig.ah(|attr| (attr.is_global, attr.grh.dgid.raw) = (1, gid));
            a.memory.put(0, &[id as u8; 8]);
            assert_eq!(a.try_post_to(&a.request(id, IBV_WR_SEND, 0, 8, &b, 0), ah, b.qpn(), QKEY), 0);
            rig.expect(a.cq, id, OK);
            rig.destroy_ah(ah);
        }
        rig.expect(b.cq, 70, OK);
        assert_eq!(b.memory.get(40, 8), [2; 8]);
    });
}

#[test]
fn a_queue_pair_that_fails_says_so_and_flushes() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        a.recv(80, &[(0, 8)]);
        rig.nic.befall(0, &Incident::QueuePairFatal(a.qpn()));
        rig.expect_event(IBV_EVENT_QP_FATAL, a.qp as u64);
        assert_eq!(a.state(), IBV_QPS_ERR);
        rig.expect(a.cq, 80, IBV_WC_WR_FLUSH_ERR);
        a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
        rig.expect(a.cq, 1, IBV_WC_WR_FLUSH_ERR);
        assert_eq!(b.state(), IBV_QPS_RTS, "the peer learns it by its own requests");
        b.post(&b.request(2, IBV_WR_RDMA_WRITE, 0, 8, &a, 0));
        rig.expect(b.cq, 2, IBV_WC_RETRY_EXC_ERR);
    });
}

#[test]
fn a_queue_that_fails_takes_its_queue_pairs_along() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        // SAFETY: the queue is alive.
        let cqn = unsafe { (*a.cq).handle };
        rig.nic.befall(0, &Incident::CompletionQueueError(cqn));
        rig.expect_event(IBV_EVENT_CQ_ERR, a.cq as u64);
        assert_eq!(a.state(), IBV_QPS_ERR);
        a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
        rig.settle();
        assert!(poll(a.cq).is_none(), "it reports nothing any more");
        assert_eq!(rig.event(), None, "once");
    });
}

#[test]
fn a_device_that_fails_says_so_does_nothing_and_lets_everything_be_taken_away() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        rig.nic.befall(0, &Incident::DeviceFatal);
        rig.expect_event(IBV_EVENT_DEVICE_FATAL, 0);
        a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
        b.recv(70, &[(0, 8)]);
        rig.settle();
        assert!(poll(a.cq).is_none() && poll(b.cq).is_none());
        let v = rig.v();
        // SAFETY: the context and the domain are alive; each call must refuse.
        unsafe {
            assert!(v.ibv_alloc_pd(rig.context).is_null());
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
            assert!(v.ibv_create_cq(rig.context, 16, raw::none(), raw::none(), 0).is_null());
            assert!(v.ibv_reg_mr(rig.pd, a.memory.addr() as *mut _, 64, LOCAL).is_null());
            assert_ne!(v.ibv_query_port(rig.context, 1, &mut std::mem::zeroed()), 0);
        }
        let mut error = attr(IBV_QPS_ERR);
        assert_eq!(a.modify(&mut error, IBV_QP_STATE), libc::EIO);
        // The ends and the rig destroy all they made, and assert that it succeeds.
    });
}

#[test]
fn events_come_when_the_description_says() {
    let text = r#"
        [[device]]
        name = "mlx5_0"
        [[device.port]]
        link = "ib"
        lid = 1
        gids = [{ gid = "fe80::1" }]

        [[event]]
        at = 900
        device = "mlx5_0"
        what = { port-up = 1 }

        [[event]]
        at = 500
        device = "mlx5_0"
        what = { port-down = 1 }

        [[event]]
        at = 1000
        device = "mlx5_0"
        what = { gid-change = { port = 1, index = 0, entry = { gid = "fe80::2" } } }
    "#;
    let config = Config { description: Description::parse(text).unwrap(), ..Config::steps(1) };
    with(config, |rig| {
        let mut seen = Vec::new();
        while rig.nic.step() != softnic::drive::Step::Idle {
            let now = rig.nic.with(|host| host.engine.shared.now);
            seen.extend(rig.event().map(|event| (event.0, now / 1000)));
        }
        let expected =
            [(IBV_EVENT_PORT_ERR, 500), (IBV_EVENT_PORT_ACTIVE, 900), (IBV_EVENT_GID_CHANGE, 1000)];
        assert_eq!(seen, expected);
    });
    for (what, want) in [("{ port-down = 2 }", "no port 2"), ("{ sunshine = 1 }", "sunshine")] {
        let wrong = text.replace("{ port-up = 1 }", what);
        let error = Description::parse(&wrong).unwrap_err().to_string();
        assert!(error.contains(want), "{error} should name {want}");
    }
}

#[test]
fn unread_events_do_not_hold_their_objects_back() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        rig.nic.befall(0, &Incident::QueuePairFatal(a.qpn()));
        rig.nic.befall(0, &Incident::PortDown(1));
        rig.settle();
        drop((a, b));
        rig.expect_event(IBV_EVENT_PORT_ERR, 1);
        assert_eq!(rig.event(), None, "what a gone queue pair had to say is gone too");
    });
}
