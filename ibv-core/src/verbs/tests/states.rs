//! Walking the state machine and asking where it is.

use super::*;
use crate::{
    config::IbvConfig,
    endpoint::{IbvPath, Transport, negotiate},
    gid::Mtu,
    queue_pair::QpState,
    verbs::{
        rc::{QpAttrMask as M, attr_at_init, attr_at_rtr},
        state::{rc_attributes, rc_to_init, rc_to_rts, walk},
    },
};
use ibv_sys::{IBV_MTU_512, IBV_MTU_4096, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};

struct Rig {
    qp: Qp,
    config: IbvConfig,
    path: IbvPath,
    facts: rc::PathFacts,
}

fn rig(library: MockLibrary) -> Rig {
    fake::install(library);
    let context = open();
    let (pd, cq) = (Pd::alloc(&context).unwrap(), Cq::create(&context, 16, false).unwrap());
    let qp = queue_pair(&pd, &cq).unwrap();
    let config = IbvConfig { psn: Some(0x111), ..IbvConfig::default() };
    let end = LocalEndpoint::discover(&context, &config).unwrap();
    let info = end.info(Transport::RC, qp.qp_num(), &config);
    let path = negotiate(&info, &info).unwrap();
    let facts = end.facts(&context).unwrap();
    Rig { qp, config, path, facts }
}

#[test]
fn the_way_up_tells_the_device_three_times_what_it_needs() {
    let mut r = rig(refusing("nothing", 1));
    rc_to_init(&mut r.qp, &r.config, 0xf, &r.facts).unwrap();
    rc_to_rts(&mut r.qp, &r.config, &r.path, &r.facts).unwrap();
    fake::with(|f| {
        let states: Vec<_> = f.modified.iter().map(|(attr, _)| attr.qp_state).collect();
        assert_eq!(states, [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS]);
        assert_eq!((f.modified[0].0.qp_access_flags, f.modified[1].0.dest_qp_num), (0xf, 0x77));
        assert_eq!((f.modified[1].0.ah_attr.is_global, f.modified[1].0.ah_attr.grh.sgid_index), (1, 1));
        assert_eq!(f.modified[2].0.sq_psn, 0x111);
    });
    assert_eq!(r.qp.state().unwrap(), QpState::RTS);
}

#[test]
fn a_refused_transition_names_itself_the_attribute_and_both_ends() {
    let mut r = rig(refusing("modify_qp", libc::EINVAL));
    let e = rc_to_init(&mut r.qp, &r.config, 0xf, &r.facts).unwrap_err().to_string();
    assert!(e.contains("from RESET to INIT") && e.contains("ACCESS_FLAGS | PKEY_INDEX | PORT"), "{e}");
    r.path.path_mtu = Mtu::B4096;
    let e = rc_to_rts(&mut r.qp, &r.config, &r.path, &r.facts).unwrap_err();
    assert_eq!((e.verb(), e.errno()), ("modify_qp", Some(libc::EINVAL)));
    let e = e.to_string();
    for part in [
        "queue pair 0x77 from INIT to RTR",
        "PATH_MTU: 4096 bytes over a port that uses 1024",
        "ours: GID fe80:",
        "theirs: GID fe80:",
    ] {
        assert!(e.contains(part), "{e} does not say {part}");
    }
}

#[test]
fn another_errno_is_not_blamed_on_an_attribute_that_is_right() {
    let mut r = rig(refusing("modify_qp", libc::ETIMEDOUT));
    let e = rc_to_init(&mut r.qp, &r.config, 0xf, &r.facts).unwrap_err();
    assert_eq!(e.errno(), Some(libc::ETIMEDOUT));
    assert!(!e.to_string().contains("PKEY_INDEX"), "{e}");
}

#[test]
fn a_mask_that_does_not_suit_never_reaches_the_device() {
    let mut r = rig(refusing("nothing", 1));
    let (attr, mask) = attr_at_rtr(&r.config, &r.path, &r.facts);
    let e = walk(&mut r.qp, QpState::INIT, (attr, mask - M::DEST_QPN), &r.facts).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidState);
    assert!(e.to_string().contains("also needs DEST_QPN"), "{e}");
    let e = walk(&mut r.qp, QpState::RESET, (attr, mask), &r.facts).unwrap_err();
    assert!(e.to_string().contains("no transition from RESET to RTR"), "{e}");
    fake::with(|f| assert!(f.modified.is_empty()));
}

#[test]
fn failing_from_reset_goes_through_init() {
    let mut r = rig(refusing("nothing", 1));
    r.qp.fail(attr_at_init(&r.config, 0xf)).unwrap();
    fake::with(|f| {
        let states: Vec<_> = f.modified.iter().map(|(attr, _)| attr.qp_state).collect();
        assert_eq!(states, [IBV_QPS_INIT, IBV_QPS_ERR]);
        f.modified.clear();
        f.queried.qp_state = IBV_QPS_RTS;
    });
    r.qp.fail(attr_at_init(&r.config, 0xf)).unwrap();
    fake::with(|f| assert_eq!(f.modified.len(), 1));
}

#[test]
fn attributes_are_the_devices_as_far_as_it_has_been_told() {
    let mut r = rig(refusing("nothing", 1));
    fake::with(|f| {
        (f.queried.path_mtu, f.queried.timeout, f.queried.dest_qp_num) = (IBV_MTU_512, 9, 0x99);
        f.queried.port_num = 1;
    });
    let asked = |r: &mut Rig, state| {
        fake::with(|f| f.queried.qp_state = state);
        rc_attributes(&mut r.qp, &r.config).unwrap()
    };
    let init = asked(&mut r, IBV_QPS_INIT);
    assert_eq!((init.dest_qp_num, init.config.path_mtu, init.config.timeout), (None, Mtu::B4096, 14));
    let rtr = asked(&mut r, IBV_QPS_RTR);
    assert_eq!((rtr.dest_qp_num, rtr.config.path_mtu, rtr.config.timeout), (Some(0x99), Mtu::B512, 14));
    let rts = asked(&mut r, IBV_QPS_RTS);
    assert_eq!((rts.state, rts.config.timeout, rts.config.psn), (QpState::RTS, 9, Some(0)));
    let err = asked(&mut r, IBV_QPS_ERR);
    assert_eq!((err.config.timeout, err.config.path_mtu), (14, Mtu::B4096));
    assert_ne!(IBV_MTU_4096, IBV_MTU_512);
}
