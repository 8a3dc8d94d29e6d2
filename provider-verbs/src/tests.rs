//! The provider over a replaced libibverbs: both ways of posting say the same, every failure leaves
//! nothing behind, and what was published in part is owned up to.

use crate::{
    HalfPosted, Posting, VerbsProvider, VerbsQueuePair, claim,
    fake::{self, MockLibrary},
};
use ibv_core::{
    Claim, Connected, Error, ErrorKind, IbvConfig, IbvDomain, IbvMemoryRegionView, IbvRemoteMemoryRegionView,
    Op, Payload, PostError, Provider, QueuePair, Request, Support,
    verbs::{Device, DeviceDir},
};
use ibv_sys::{
    IBV_ATOMIC_NONE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_TRANSPORT_IB,
    IBV_TRANSPORT_IWARP, IBV_TRANSPORT_UNSPECIFIED, IBV_TRANSPORT_USNIC,
};
use proptest::prelude::*;
use std::{cell::Cell, rc::Rc};

type Domain = IbvDomain<crate::VerbsDomain>;

fn domain() -> Result<Domain, Error> {
    let provider = VerbsProvider::over(fake::library());
    let device = provider.devices()?.remove(1);
    Ok(IbvDomain::new(provider.open(&device)?, device))
}

fn config() -> IbvConfig {
    let mut config = IbvConfig::default();
    (config.max_send_wr, config.max_recv_wr) = (8, 4);
    (config.max_send_sge, config.max_recv_sge, config.max_inline) = (3, 2, 32);
    config
}

fn queue_pair(domain: &Domain) -> Result<QueuePair<VerbsQueuePair>, Error> {
    let cq = domain.create_cq(64)?;
    domain.create_queue_pair(config(), &cq, &cq)
}

fn connect(mut qp: QueuePair<VerbsQueuePair>) -> Result<Connected<VerbsQueuePair>, Error> {
    let info = qp.get_qp_info()?;
    qp.connect(&info).map_err(|(_, e)| e)
}

fn connected() -> Connected<VerbsQueuePair> {
    connect(queue_pair(&domain().unwrap()).unwrap()).unwrap()
}

/// Every call succeeds but those of `verb`.
fn refusing(verb: &'static str, code: i32) -> MockLibrary {
    let mut library = MockLibrary::new();
    library.expect_call().returning(move |v| if v == verb { code } else { 0 });
    library
}

/// The call at position `n` fails.
fn failing(n: usize, code: i32) -> (MockLibrary, Rc<Cell<usize>>) {
    let (mut library, calls) = (MockLibrary::new(), Rc::new(Cell::new(0)));
    let seen = calls.clone();
    library.expect_call().returning_st(move |_| if seen.replace(seen.get() + 1) == n { code } else { 0 });
    (library, calls)
}

fn view(addr: u64, len: usize) -> IbvMemoryRegionView<'static> {
    IbvMemoryRegionView::from_raw_parts(addr, len, 0x11)
}

const REMOTE: IbvRemoteMemoryRegionView = IbvRemoteMemoryRegionView { addr: 0x8000, len: 4096, rkey: 0x22 };

#[test]
fn each_way_of_saying_not_here_leads_to_the_plain_interface_and_nothing_is_left() {
    for code in [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::ENOSYS, libc::EINVAL] {
        fake::install(refusing("create_qp_ex", code));
        let mut qp = queue_pair(&domain().unwrap()).unwrap();
        assert_eq!(qp.queue_pair().posting(), Posting::List, "errno {code}");
        drop(qp);
        fake::assert_clean();
    }
    fake::reset();
    fake::with(|f| f.no_builders = true);
    let mut qp = queue_pair(&domain().unwrap()).unwrap();
    assert_eq!(qp.queue_pair().posting(), Posting::List);
    fake::with(|f| assert!(!f.log.contains(&"create_qp"), "the queue pair that exists is used"));
    drop(qp);
    fake::assert_clean();
    fake::reset();
    assert_eq!(queue_pair(&domain().unwrap()).unwrap().queue_pair().posting(), Posting::Builders);
}

#[test]
fn a_device_that_makes_no_queue_pair_at_all_says_why_with_the_sizes() {
    let mut library = MockLibrary::new();
    let creating = |v| v == "create_qp_ex" || v == "create_qp";
    library.expect_call().returning(move |v| if creating(v) { libc::ENOMEM } else { 0 });
    fake::install(library);
    let e = domain().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfResources);
    assert!(e.to_string().contains("fake1 makes no reliable connection"), "{e}");
    assert!(e.to_string().contains("1 sends of 1 ranges"), "{e}");
    fake::assert_clean();
}

/// A whole life up to the first completion.
fn live() -> Result<(), Error> {
    let domain = domain()?;
    let mut qp = connect(queue_pair(&domain)?)?;
    qp.post_recv(&[view(1, 2)])?;
    let _ids = qp.put(REMOTE, view(0x10, 8))?;
    domain.events()?.next_event()?;
    Ok(())
}

#[test]
fn whatever_call_fails_nothing_is_left_behind() {
    let (library, calls) = failing(usize::MAX, 0);
    fake::install(library);
    live().unwrap();
    fake::assert_clean();
    let total = calls.get();
    assert!(total > 40, "{total} calls");
    let mut errors = 0;
    for n in 0..total {
        let (library, calls) = failing(n, libc::ENOMEM);
        fake::install(library);
        errors += usize::from(live().is_err());
        assert!(calls.get() > n, "call {n} was never made");
        fake::with(|f| {
            assert_eq!(f.misuse, Vec::<String>::new(), "after call {n} failed");
            let left: Vec<_> = f.alive.values().copied().collect();
            // What could not be destroyed, and what that needs, stays: a destroying call failed then.
            let refused = ["list", "qp", "cq", "pd", "context"].iter().any(|kind| left.contains(kind));
            assert!(left.is_empty() || refused, "after call {n} failed: {left:?}");
        });
    }
    assert!(errors >= 20, "{errors} of {total} failures were noticed");
}

/// Four queue pairs fill the queue, go, and somebody sees the queue empty: whether there is room for another.
fn room_after(refused: bool) -> bool {
    fake::install(refusing(if refused { "destroy_qp" } else { "nothing" }, libc::EIO));
    let domain = domain().unwrap();
    let cq = domain.create_cq(48).unwrap();
    let made = || domain.create_queue_pair(config(), &cq, &cq);
    let all: Vec<_> = (0..4).map(|_| connect(made().unwrap()).unwrap()).collect();
    for mut qp in all {
        let _ids = qp.put(REMOTE, view(0x10, 8)).unwrap();
    }
    let mut poller = cq.poller().unwrap();
    while poller.poll(&mut [ibv_core::IbvWc::default(); 8]).unwrap() > 0 {}
    let kind = made().map_or_else(|e| Some(e.kind()), |_| None);
    assert!(matches!(kind, None | Some(ErrorKind::OutOfResources)), "{kind:?}");
    kind.is_none()
}

#[test]
fn ids_and_room_of_a_queue_pair_that_would_not_go_are_nobody_elses() {
    assert!(room_after(false));
    assert!(!room_after(true), "completions of those four may still come");
}

#[test]
fn receives_before_connect_wait_for_init_and_keep_their_order() {
    fake::reset();
    let mut qp = queue_pair(&domain().unwrap()).unwrap();
    let first = qp.post_recv(&[view(0x100, 10), view(0x200, 20)]).unwrap();
    let second = qp.post_recv(&[]).unwrap();
    fake::with(|f| assert!(f.recvs.is_empty(), "a device takes no receive in RESET"));
    let mut qp = connect(qp).unwrap();
    let third = qp.post_recv(&[view(0x300, 30)]).unwrap();
    fake::with(|f| {
        let got: Vec<_> = f.recvs.iter().map(|r| (r.wr_id, r.sges.clone())).collect();
        let want = [
            (first, vec![(0x100, 10, 0x11), (0x200, 20, 0x11)]),
            (second, vec![]),
            (third, vec![(0x300, 30, 0x11)]),
        ];
        assert_eq!(got, want);
        let at = |verb| f.log.iter().position(|v| *v == verb).unwrap();
        let states: Vec<_> = f.modified.iter().map(|(attr, _)| attr.qp_state).collect();
        assert_eq!(states, [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS]);
        assert!(at("modify_qp") < at("post_recv"));
        assert!(f.log.iter().rposition(|v| *v == "modify_qp").unwrap() > at("post_recv"));
    });
}

#[test]
fn the_error_state_is_reached_from_reset_and_waiting_receives_go_along() {
    fake::reset();
    let mut qp = queue_pair(&domain().unwrap()).unwrap();
    qp.post_recv(&[]).unwrap();
    ibv_core::IbvQueuePair::enter_error(qp.queue_pair()).unwrap();
    fake::with(|f| {
        let states: Vec<_> = f.modified.iter().map(|(attr, _)| attr.qp_state).collect();
        assert_eq!((states, f.recvs.len()), (vec![IBV_QPS_INIT, IBV_QPS_ERR], 1));
    });
    let info = qp.get_qp_info().unwrap();
    let (_, e) = qp.connect(&info).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidState);
}

#[test]
fn a_failed_connect_is_not_tried_again() {
    fake::install(refusing("modify_qp", libc::EINVAL));
    let mut qp = queue_pair(&domain().unwrap()).unwrap();
    let info = qp.get_qp_info().unwrap();
    let (mut qp, e) = qp.connect(&info).unwrap_err();
    assert!(e.to_string().contains("from RESET to INIT"), "{e}");
    fake::with(|f| {
        f.library.checkpoint();
        f.library.expect_call().returning(|v| if v == "post_recv" { libc::ENOMEM } else { 0 });
    });
    qp.post_recv(&[]).unwrap();
    let (qp, e) = qp.connect(&info).unwrap_err();
    assert!(e.to_string().contains("a receive posted before connect"), "{e}");
    let (_, e) = qp.connect(&info).unwrap_err();
    assert!(e.to_string().contains("has left RESET already"), "{e}");
}

#[test]
fn a_session_that_fails_published_nothing_and_the_next_one_works() {
    fake::install(refusing("wr_complete", libc::ENOMEM));
    let mut qp = connected();
    assert_eq!(qp.put(REMOTE, view(0x10, 8)), Err(PostError::Device(libc::ENOMEM)));
    fake::with(|f| {
        assert!(f.sends.is_empty() && f.misuse.is_empty());
        f.library.checkpoint();
        f.library.expect_call().return_const(0);
    });
    let ids = qp.put(REMOTE, view(0x10, 8)).unwrap();
    fake::with(|f| assert_eq!(f.sends[0][0].wr_id, ids.first));
    assert_eq!((qp.in_flight(), qp.queue_pair().half_posted()), (1, None));
}

fn five(qp: &mut Connected<VerbsQueuePair>) -> (Vec<u64>, Result<(), PostError>) {
    let mut batch = qp.batch();
    let ids = (0..5).map(|i| batch.put(REMOTE, view(0x10 + i, 1)).unwrap().first).collect();
    (ids, batch.ring())
}

fn plain() -> Connected<VerbsQueuePair> {
    let qp = connected();
    fake::with(|f| f.queried.qp_state = IBV_QPS_RTS);
    qp
}

#[test]
fn a_list_refused_at_its_head_published_nothing() {
    fake::install(refusing("create_qp_ex", libc::EOPNOTSUPP));
    let mut qp = plain();
    fake::with(|f| f.refuse_at = Some((0, libc::ENOMEM)));
    assert_eq!(five(&mut qp).1, Err(PostError::Device(libc::ENOMEM)));
    assert_eq!((qp.in_flight(), qp.queue_pair().half_posted()), (0, None));
    fake::with(|f| f.sends.clear());
    let (ids, rung) = five(&mut qp);
    assert_eq!(rung, Ok(()));
    fake::with(|f| assert_eq!(f.sends[0].iter().map(|p| p.wr_id).collect::<Vec<_>>(), ids));
}

#[test]
fn a_list_refused_in_its_middle_is_finished_on_a_dead_queue_pair() {
    for at in 1..5 {
        fake::install(refusing("create_qp_ex", libc::EOPNOTSUPP));
        let mut qp = plain();
        fake::with(|f| f.refuse_at = Some((at, libc::EIO)));
        let (ids, rung) = five(&mut qp);
        assert_eq!(rung, Ok(()), "every request will report itself");
        fake::with(|f| {
            let lists: Vec<Vec<u64>> = f.sends.iter().map(|l| l.iter().map(|p| p.wr_id).collect()).collect();
            assert_eq!(lists, [ids[..at].to_vec(), ids[at..].to_vec()]);
            assert_eq!(f.modified.last().unwrap().0.qp_state, IBV_QPS_ERR);
        });
        let half = HalfPosted { errno: libc::EIO, taken: at, of: 5, lost: false };
        assert_eq!((qp.in_flight(), qp.queue_pair().half_posted()), (5, Some(half)));
    }
}

#[test]
fn a_list_that_can_not_even_be_flushed_ends_the_queue_pair() {
    fake::install(refusing("create_qp_ex", libc::EOPNOTSUPP));
    let mut qp = plain();
    fake::with(|f| {
        f.refuse_at = Some((2, libc::EIO));
        f.library.checkpoint();
        f.library.expect_call().returning(|v| if v == "modify_qp" { libc::EIO } else { 0 });
    });
    assert_eq!(five(&mut qp).1, Err(PostError::Device(libc::EIO)));
    assert!(qp.queue_pair().half_posted().unwrap().lost);
    fake::with(|f| f.sends.clear());
    assert_eq!(qp.put(REMOTE, view(0x10, 1)), Err(PostError::Device(libc::EIO)));
    fake::with(|f| assert!(f.sends.is_empty(), "nothing more reaches the device"));
}

#[test]
fn a_dropped_batch_leaves_nothing_to_ring() {
    for code in [0, libc::EOPNOTSUPP] {
        fake::install(refusing("create_qp_ex", code));
        let mut qp = connected();
        let mut batch = qp.batch();
        let _ids = batch.put(REMOTE, view(0x10, 1)).unwrap();
        drop(batch);
        let ids = qp.put(REMOTE, view(0x20, 2)).unwrap();
        fake::with(|f| {
            let all: Vec<_> = f.sends.concat().iter().map(|p| (p.wr_id, p.sges[0].0)).collect();
            assert_eq!(all, [(ids.first, 0x20)]);
        });
    }
}

#[test]
fn inline_bytes_are_those_at_the_time_of_building() {
    for code in [0, libc::EOPNOTSUPP] {
        fake::install(refusing("create_qp_ex", code));
        let mut qp = connected();
        let mut bytes = *b"as they were";
        let mut batch = qp.batch();
        let _ids = batch.push(&Request::new(Op::Write, REMOTE, Payload::Inline(&bytes))).unwrap();
        bytes.fill(0);
        batch.ring().unwrap();
        fake::with(|f| assert_eq!(f.sends[0][0].inline, b"as they were"));
    }
}

#[test]
fn capabilities_are_what_the_device_was_found_to_have() {
    fake::reset();
    let caps = domain().unwrap().caps();
    assert_eq!((caps.atomics, caps.dmabuf, caps.max_inline), (Support::Native, Support::Native, 1024));
    fake::install(refusing("reg_dmabuf_mr", libc::EOPNOTSUPP));
    fake::with(|f| f.device.atomic_cap = IBV_ATOMIC_NONE);
    let caps = domain().unwrap().caps();
    assert_eq!(
        (caps.atomics, caps.dmabuf, caps.relaxed_ordering),
        (Support::Absent, Support::Absent, Support::Absent)
    );
}

#[test]
fn a_shorter_message_size_splits_puts_and_leaves_sends_alone() {
    fake::reset();
    let provider = VerbsProvider::over(fake::library()).with_max_msg_size(100);
    let device = provider.devices().unwrap().remove(0);
    let domain = IbvDomain::new(provider.open(&device).unwrap(), device);
    assert_eq!((domain.caps().max_msg_size, domain.caps().max_send_size), (100, 1 << 30));
    let mut qp = connect(queue_pair(&domain).unwrap()).unwrap();
    assert_eq!(qp.put(REMOTE, view(0x10, 250)).unwrap().count, 3);
    fake::with(|f| {
        let lens: Vec<_> = f.sends.concat().iter().map(|p| (p.remote.0, p.sges[0].1)).collect();
        assert_eq!(lens, [(0x8000, 100), (0x8064, 100), (0x80c8, 50)]);
    });
}

#[test]
fn an_empty_region_is_refused_before_the_device() {
    fake::reset();
    let e = domain().unwrap().alloc(0).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidConfig);
}

#[test]
fn a_gid_that_is_not_there_is_an_error_before_any_queue_pair() {
    fake::reset();
    let domain = domain().unwrap();
    let cq = domain.create_cq(64).unwrap();
    let made = |f: &mut fake::Fake| f.log.iter().filter(|v| v.starts_with("create_qp")).count();
    let before = fake::with(made);
    let mut wrong = config();
    wrong.gid = ibv_core::GidChoice::Index(9);
    assert_eq!(domain.create_queue_pair(wrong, &cq, &cq).unwrap_err().kind(), ErrorKind::InvalidConfig);
    assert_eq!(fake::with(made), before);
}

#[test]
fn devices_are_claimed_by_their_transport_with_the_reason() {
    let claim_of = |transport| {
        let dir = DeviceDir::new("/nonexistent");
        claim(&Device { name: "x0".into(), dir, node_type: ibv_sys::IBV_NODE_CA, transport })
    };
    assert!(matches!(claim_of(IBV_TRANSPORT_IB), Claim::Yes(why) if why.contains("x0")));
    for (transport, word) in [
        (IBV_TRANSPORT_IWARP, "rdma_cm"),
        (IBV_TRANSPORT_UNSPECIFIED, "of its own"),
        (IBV_TRANSPORT_USNIC, "transport 2"),
    ] {
        assert!(matches!(claim_of(transport), Claim::No(why) if why.contains(word)), "{word}");
    }
    fake::reset();
    let unknown = VerbsProvider::over(fake::library()).claim(&ibv_core::IbvDeviceInfo::new("gone"));
    assert!(matches!(unknown, Claim::No(why) if why.contains("gone")));
}

/// A request in numbers, so that it can be made twice.
#[derive(Clone, Debug)]
struct Plan {
    kind: u8,
    lens: Vec<usize>,
    inline: Option<Vec<u8>>,
    flags: [bool; 3],
    operands: (u64, u64),
}

prop_compose! {
    fn plan()(
        kind in 0u8..7,
        lens in prop::collection::vec(0usize..50, 0..=3),
        inline in prop::option::of(prop::collection::vec(any::<u8>(), 0..=32)),
        flags in any::<[bool; 3]>(),
        operands in any::<(u64, u64)>(),
    ) -> Plan { Plan { kind, lens, inline, flags, operands } }
}

/// Posts the plans as one batch; what core refuses is left out, the same either way.
fn post(qp: &mut Connected<VerbsQueuePair>, plans: &[Plan]) -> usize {
    let (mut batch, mut built) = (qp.batch(), 0);
    for plan in plans {
        let (a, b) = plan.operands;
        let op = match plan.kind {
            0 => Op::Write,
            1 => Op::WriteWithImm(a as u32),
            2 => Op::Read,
            3 => Op::Send,
            4 => Op::SendWithImm(a as u32),
            5 => Op::CompareSwap { compare: a, swap: b },
            _ => Op::FetchAdd(a),
        };
        let atomic = plan.kind > 4;
        let mut at = 0x1000;
        let mut views: Vec<_> = plan
            .lens
            .iter()
            .map(|n| {
                at += 0x100;
                view(at, *n)
            })
            .collect();
        if atomic {
            views = vec![view(0x1000, 8)];
        }
        let len: usize = views.iter().map(|v| v.len()).sum();
        let remote = if plan.kind == 2 { REMOTE.slice(0, len).unwrap() } else { REMOTE };
        let local = match &plan.inline {
            Some(bytes) if matches!(plan.kind, 0 | 1 | 3 | 4) => Payload::Inline(bytes),
            _ => Payload::Sges(&views),
        };
        let mut request = Request::new(op, remote, local);
        if plan.flags[0] {
            request = request.unsignaled();
        }
        if plan.flags[1] {
            request = request.fenced();
        }
        if plan.flags[2] {
            request = request.solicited();
        }
        built += usize::from(batch.push(&request).is_ok());
    }
    batch.ring().unwrap();
    built
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
    #[test]
    fn both_ways_of_posting_tell_the_device_the_same(plans in prop::collection::vec(plan(), 1..=7)) {
        let published = |code| {
            fake::install(refusing("create_qp_ex", code));
            let mut qp = connected();
            let want = if code == 0 { Posting::Builders } else { Posting::List };
            assert_eq!(qp.queue_pair().posting(), want);
            let built = post(&mut qp, &plans);
            let sends = fake::with(|f| { assert_eq!(f.misuse, Vec::<String>::new()); f.sends.clone() });
            (built, sends)
        };
        let (by_builders, by_list) = (published(0), published(libc::EOPNOTSUPP));
        prop_assert_eq!(&by_builders, &by_list);
        let (built, sends) = by_builders;
        prop_assert_eq!(sends.len(), usize::from(built > 0), "one session or list for a batch");
        prop_assert_eq!(sends.concat().len(), built);
    }
}

#[test]
fn soft_roce_is_posted_lists() {
    assert!(crate::create::misbuilds(0x00ff_ffff));
    // ConnectX, and siw, whose builders are its own business.
    assert!(![0x15b3, 0x0062_6d74, 0x1234].into_iter().any(crate::create::misbuilds));
}
