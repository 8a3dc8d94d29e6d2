use super::*;
use proptest::prelude::*;

fn rc(qp_num: u32) -> IbvQpInfo {
    let gid = Some(Gid([7; 16]));
    IbvQpInfo {
        gid,
        gid_type: GidType::RoceV2,
        link_layer: LinkLayer::Ethernet,
        ..IbvQpInfo::new(Transport::RC, qp_num)
    }
}

prop_compose! {
    fn any_endpoint()(
        (transport, lid, qkey) in any::<(u8, u16, u32)>(),
        link_layer in prop_oneof![Just(LinkLayer::Unspecified), Just(LinkLayer::InfiniBand), Just(LinkLayer::Ethernet)],
        gid_type in prop_oneof![Just(GidType::None), Just(GidType::Ib), Just(GidType::RoceV1), Just(GidType::RoceV2)],
        (qp_num, psn) in (0u32..1 << 24, 0u32..1 << 24),
        mtu in prop::sample::select(Mtu::ALL.to_vec()),
        gid in prop::option::of(any::<[u8; 16]>().prop_map(Gid)),
        (max_rd_atomic, max_dest_rd_atomic) in any::<(u8, u8)>(),
        (vendor_id, options, comp_mask) in any::<(u32, u32, u32)>(),
    ) -> IbvQpInfo {
        let ece = Ece { vendor_id, options, comp_mask };
        IbvQpInfo {
            transport: Transport(transport), link_layer, qp_num, lid, gid, gid_type, psn, mtu, qkey,
            max_rd_atomic, max_dest_rd_atomic, ece,
        }
    }
}

proptest! {
    #[test]
    fn bytes_and_back_is_the_same_endpoint(e in any_endpoint()) {
        prop_assert_eq!(IbvQpInfo::from_bytes(&e.to_bytes()), Ok(e));
    }

    #[test]
    fn any_bytes_are_an_endpoint_or_a_typed_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = IbvQpInfo::from_bytes(&bytes);
    }

    /// Random bytes rarely get past the magic; one changed byte of a real endpoint always does.
    #[test]
    fn one_changed_byte_is_an_endpoint_in_range_or_a_typed_error(e in any_endpoint(), at in 0usize..64, b in any::<u8>()) {
        let mut bytes = e.to_bytes();
        bytes[at] = b;
        if let Ok(read) = IbvQpInfo::from_bytes(&bytes) {
            prop_assert!(read.qp_num < 1 << 24 && read.psn < 1 << 24);
            prop_assert_eq!(IbvQpInfo::from_bytes(&read.to_bytes()), Ok(read));
        }
    }

    #[test]
    fn every_truncation_says_so(e in any_endpoint(), len in 0usize..64) {
        let short = matches!(IbvQpInfo::from_bytes(&e.to_bytes()[..len]), Err(EndpointError::Truncated { .. }));
        prop_assert!(short);
    }

    #[test]
    fn both_ends_agree(a in any_endpoint(), b in any_endpoint()) {
        match (negotiate(&a, &b), negotiate(&b, &a)) {
            (Ok(x), Ok(y)) => {
                prop_assert_eq!((x.path_mtu, x.rd_atomic, x.ece), (y.path_mtu, y.dest_rd_atomic, y.ece));
                prop_assert_eq!((x.remote, y.remote), (b, a));
            }
            (Err(x), Err(_)) => prop_assert_eq!(x.kind(), ErrorKind::Incompatible),
            (x, y) => prop_assert!(false, "one end agreed alone: {x:?} {y:?}"),
        }
    }
}

#[test]
fn a_newer_version_names_both() {
    let mut bytes = rc(1).to_bytes();
    bytes[4] = 9;
    let e = IbvQpInfo::from_bytes(&bytes).unwrap_err();
    assert_eq!(e, EndpointError::Version { theirs: 9, ours: 1 });
    assert!(e.to_string().contains('9') && e.to_string().contains('1'));
    // Even where the newer form is shorter than ours.
    assert_eq!(IbvQpInfo::from_bytes(&bytes[..5]), Err(e));
}

#[test]
fn trailing_and_oversized_bytes_are_refused() {
    let long = [&rc(1).to_bytes()[..], &[0]].concat();
    assert_eq!(IbvQpInfo::from_bytes(&long), Err(EndpointError::Oversized { have: 65, allowed: 64 }));
    let mut huge = rc(1).to_bytes();
    huge[6..8].copy_from_slice(&u16::MAX.to_be_bytes());
    let e = EndpointError::Oversized { have: 65535, allowed: IbvQpInfo::MAX_ENCODED_LEN };
    assert_eq!(IbvQpInfo::from_bytes(&huge), Err(e));
}

#[test]
fn optional_extensions_are_passed_over_and_critical_ones_refused() {
    let with = |ext: &[u8]| {
        let mut bytes = [&rc(1).to_bytes()[..], ext].concat();
        let len = u16::try_from(bytes.len()).unwrap();
        bytes[6..8].copy_from_slice(&len.to_be_bytes());
        bytes[5] = 3; // a later revision
        IbvQpInfo::from_bytes(&bytes)
    };
    assert_eq!(with(&[0, 5, 0, 2, 1, 2, 0, 6, 0, 0]), Ok(rc(1)));
    assert_eq!(with(&[0x80, 5, 0, 0]), Err(EndpointError::Extension(0x8005)));
    assert_eq!(with(&[0, 5, 0, 9, 1]), Err(EndpointError::Truncated { have: 5, need: 13 }));
    assert_eq!(with(&[0, 5]), Err(EndpointError::Truncated { have: 2, need: 4 }));
}

#[test]
fn reserved_room_is_zero_today() {
    let bytes = rc(1).to_bytes();
    assert_eq!((&bytes[29..32], &bytes[60..64]), (&[0; 3][..], &[0; 4][..]));
}

#[test]
fn the_smaller_mtu_wins_and_reads_are_bounded_by_the_responder() {
    let a = IbvQpInfo { mtu: Mtu::B4096, max_rd_atomic: 16, max_dest_rd_atomic: 2, ..rc(1) };
    let b = IbvQpInfo { mtu: Mtu::B1024, max_rd_atomic: 8, max_dest_rd_atomic: 4, ..rc(2) };
    let path = negotiate(&a, &b).unwrap();
    assert_eq!((path.path_mtu, path.rd_atomic, path.dest_rd_atomic), (Mtu::B1024, 4, 2));
}

#[test]
fn refusals_name_both_ends() {
    let srd = IbvQpInfo { transport: Transport::SRD, ..rc(2) };
    let ib = IbvQpInfo { link_layer: LinkLayer::InfiniBand, lid: 3, ..rc(2) };
    let v1 = IbvQpInfo { gid_type: GidType::RoceV1, ..rc(2) };
    let bare = IbvQpInfo { gid: None, ..rc(2) };
    for (other, words) in [
        (srd, ["ours RC", "theirs SRD"]),
        (ib, ["ours Ethernet", "theirs InfiniBand"]),
        (v1, ["ours RoCE v2", "theirs RoCE v1"]),
        (bare, ["their end has no GID", "theirs: RC"]),
    ] {
        let e = negotiate(&rc(1), &other).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Incompatible);
        for word in words {
            assert!(e.to_string().contains(word), "{e} does not say {word}");
        }
    }
}

#[test]
fn options_of_two_vendors_are_none() {
    let (a, b) =
        (Ece { vendor_id: 1, options: 3, comp_mask: 1 }, Ece { vendor_id: 2, options: 3, comp_mask: 1 });
    assert_eq!(common_ece(a, b), Ece::default());
    assert_eq!(common_ece(a, Ece { options: 6, ..a }).options, 2);
}
