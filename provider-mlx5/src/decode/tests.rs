//! Requests, receives and rings from bytes, right and wrong. That entries of real rings are read as what was
//! posted is `tests/golden.rs`'s.

use super::*;
use crate::wqe::{self, Head, Segment};
use ibv_core::Op;
use proptest::prelude::*;

fn bytes(segments: &[Segment]) -> Vec<u8> {
    segments.iter().flatten().flat_map(|word| word.to_ne_bytes()).collect()
}

/// An entry as `wqe.rs` writes its parts.
fn entry(op: Op, index: u16, flags: u8, rest: &[Segment]) -> Vec<u8> {
    let (head, ds) = (Head { qpn: 0x1234, index }, 1 + rest.len() as u32);
    let control = wqe::control(head, wqe::opcode(op), ds, flags, op.imm().unwrap_or(0));
    bytes(&[&[control], rest].concat())
}

fn write(index: u16) -> Vec<u8> {
    entry(Op::Write, index, 8, &[wqe::remote_address(0x99, 5), wqe::data(0x1000, 10, 6)])
}

fn faults(bytes: &[u8]) -> Vec<Fault> {
    request(bytes, 0).faults
}

#[test]
fn an_entry_is_listed_word_by_word_under_the_headers_names() {
    let text = request(&write(7), 0x40).to_string();
    for line in [
        "0x0040: WQE RDMA_WRITE, index 7, queue pair 0x1234, 3 segments in block",
        "0040  ctrl    00000708                          opmod_idx_opcode      opmod 0x0, index 7, opcode 0x08 RDMA_WRITE",
        "0044          00123403                          qpn_ds                queue pair 0x1234, 3 segments",
        "004b          08                                fm_ce_se              CQ_UPDATE",
        "0050  raddr   0000000000000099                  raddr                 0x99",
        "0060  data    0000000a                          byte_count            10",
        "0068          0000000000001000                  addr                  0x1000",
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
    assert!(!text.contains("wrong:"), "{text}");
}

#[test]
fn each_defect_is_named() {
    let (to, from) = (wqe::remote_address(8, 5), wqe::data(0x1000, 8, 6));
    let sends = |rest: &[Segment]| entry(Op::Send, 0, 8, rest);
    let damaged = |at: usize, value: u8| {
        let mut bytes = write(0);
        bytes[at] = value;
        faults(&bytes)
    };
    assert_eq!(faults(&[1; 15]), [Fault::Truncated { need: 16, there: 15 }]);
    assert_eq!(damaged(7, 0), [Fault::Segments(0)]);
    assert_eq!(damaged(7, 4), [Fault::Truncated { need: 64, there: 48 }]);
    assert_eq!(damaged(3, 0x77), [Fault::Opcode(0x77)]);
    assert_eq!(damaged(0, 1), [Fault::Modifier(1)]);
    assert_eq!(damaged(11, 0x14), [Fault::Flags(0x14)]);
    assert_eq!(damaged(15, 9), [Fault::Immediate(9)]);
    assert_eq!(damaged(31, 1), [Fault::Reserved { at: 28 }]);
    assert_eq!(damaged(35, 0), [Fault::ByteCount { at: 32 }]);
    assert_eq!(faults(&entry(Op::Write, 0, 0, &[])), [Fault::TooShort { ds: 1, need: 2 }]);
    assert_eq!(faults(&entry(Op::FetchAdd(1), 0, 0, &[to])), [Fault::TooShort { ds: 2, need: 3 }]);
    assert_eq!(faults(&entry(Op::FetchAdd(1), 0, 0, &[to, [1, 0]])), [Fault::AtomicLength(0)]);
    let odd = wqe::remote_address(9, 5);
    assert_eq!(faults(&entry(Op::FetchAdd(1), 0, 0, &[odd, [1, 0], from])), [Fault::Alignment(9)]);
    assert_eq!(faults(&sends(&[wqe::data(0, 8, 0x100)])), [Fault::LocalKey { at: 20 }]);
    let inline = |len: u64| [(1 << 63 | len << 32).to_be(), 0];
    assert_eq!(faults(&sends(&[inline(13)])), [Fault::Inline { at: 16, len: 13 }]);
    assert_eq!(faults(&sends(&[inline(12)])), []);
    assert_eq!(faults(&entry(Op::Read, 0, 0, &[to, inline(8)])), [Fault::InlineAnswer { at: 32 }]);
}

#[test]
fn operations_of_others_are_listed_without_a_claim() {
    let mut umr = write(0);
    umr[3] = 0x25;
    let listing = request(&umr, 0);
    assert!(listing.value.is_none() && listing.faults.is_empty() && listing.title.contains("UMR"));
    assert_eq!(listing.fields.iter().map(|f| f.bytes.len()).sum::<usize>(), umr.len());
}

#[test]
fn a_receive_ends_with_its_list_or_its_slot() {
    let list = bytes(&[wqe::data(0x10, 5, 1), wqe::data(0x20, 6, 2), wqe::data(0, 0, 0x100), [7, 7]]);
    let listing = receive(&list, 0);
    assert_eq!(listing.title, "receive of 2 ranges, 11 bytes");
    assert!(listing.faults.is_empty() && listing.to_string().contains("the list ends"));
    assert_eq!(receive(&list[..16], 0).value.unwrap().len(), 1);
    assert_eq!(receive(&list[..20], 0).faults, [Fault::Truncated { need: 32, there: 20 }]);
}

/// Puts entries into a ring of `blocks`, each at its index.
fn ring_of(blocks: usize, entries: &[Vec<u8>]) -> Vec<u8> {
    let mut ring = vec![0; blocks * 64];
    for bytes in entries {
        let at = usize::from(u16::from_be_bytes([bytes[1], bytes[2]])) % blocks * 64;
        let len = ring.len();
        bytes.iter().enumerate().for_each(|(i, byte)| ring[(at + i) % len] = *byte);
    }
    ring
}

#[test]
fn a_ring_shows_its_entries_its_gaps_and_where_it_goes_on() {
    let long = |index| entry(Op::Send, index, 8, &[wqe::data(0x10, 5, 1); 5]);
    let fresh = ring(&ring_of(8, &[write(0), long(1), write(3)]));
    assert_eq!(fresh.faults().count(), 0);
    assert_eq!(fresh.entries().map(|e| e.at).collect::<Vec<_>>(), [0, 64, 192]);
    assert_eq!(fresh.slots.last(), Some(&Slot::Empty { block: 4, count: 4 }));
    // A second round has come as far as slot 3.
    let rounds: Vec<_> = (8..11).chain(3..8).map(write).collect();
    let later = ring(&ring_of(8, &rounds));
    assert!(later.slots.contains(&Slot::Producer { block: 3 }) && later.faults().count() == 0);
    assert!(later.to_string().contains("the next entry goes to slot 3"));
    // The last entry begins in the last block and ends in the first.
    let mut around = ring_of(4, &[write(1), write(2), long(3)]);
    let wrapped = ring(&around);
    let last = wrapped.entries().last().unwrap();
    assert!(last.at == 192 && last.value.as_ref().unwrap().local.len() == 5, "{wrapped}");
    around[64 + 2] = 2;
    assert!(ring(&around).faults().any(|f| *f == Fault::Index { index: 2, slot: 1, slots: 4 }));
    around[128 + 6] = 0xff;
    assert!(ring(&around).faults().any(|f| matches!(f, Fault::QueuePair { .. })));
}

#[derive(Debug, Clone)]
struct Parts {
    op: Op,
    index: u16,
    flags: [bool; 3],
    remote: (u64, u32),
    ranges: Vec<(u64, u32, u32)>,
}

fn parts() -> impl Strategy<Value = Parts> {
    let op = prop_oneof![
        Just(Op::Write),
        any::<u32>().prop_map(Op::WriteWithImm),
        Just(Op::Read),
        Just(Op::Send),
        any::<u32>().prop_map(Op::SendWithImm),
        any::<(u64, u64)>().prop_map(|(compare, swap)| Op::CompareSwap { compare, swap }),
        any::<u64>().prop_map(Op::FetchAdd),
    ];
    let ranges = prop::collection::vec((any::<u64>(), 1u32..1 << 31, any::<u32>()), 0..30);
    (op, any::<u16>(), any::<[bool; 3]>(), any::<(u64, u32)>(), ranges)
        .prop_map(|(op, index, flags, remote, ranges)| Parts { op, index, flags, remote, ranges })
}

proptest! {
    /// What `wqe.rs` writes for any operation is read as that operation, every field of it.
    #[test]
    fn what_is_encoded_is_decoded(p in parts()) {
        let sends = matches!(p.op, Op::Send | Op::SendWithImm(_));
        let mut rest = if sends { vec![] } else { vec![wqe::remote_address(p.remote.0, p.remote.1)] };
        match p.op {
            Op::CompareSwap { compare, swap } => rest.push([swap.to_be(), compare.to_be()]),
            Op::FetchAdd(add) => rest.push([add.to_be(), 0]),
            _ => {}
        }
        rest.extend(p.ranges.iter().map(|(addr, len, lkey)| wqe::data(*addr, *len as usize, *lkey)));
        let listing = request(&entry(p.op, p.index, wqe::flags(p.flags[0], p.flags[1], p.flags[2]), &rest), 0);
        let range = |(addr, len, lkey): &(u64, u32, u32)| Local::Range { addr: *addr, len: (*len).into(), lkey: *lkey };
        let wanted = Request {
            op: p.op,
            index: p.index,
            qpn: 0x1234,
            segments: 1 + rest.len() as u8,
            signaled: p.flags[0],
            solicited: p.flags[1],
            fence: p.flags[2],
            remote: if sends { (0, 0) } else { p.remote },
            local: p.ranges.iter().map(range).collect(),
        };
        prop_assert_eq!(listing.value, Some(wanted));
    }

    #[test]
    fn any_bytes_give_listings(bytes in prop::collection::vec(any::<u8>(), 0..1200), ds in 0u8..64, opcode in 0u8..0x30) {
        let _ = (request(&bytes, 0).to_string(), receive(&bytes, 0).to_string());
        let whole = ring(&bytes);
        prop_assert_eq!(whole.blocks, bytes.len() / 64);
        let _ = whole.to_string();
        // And bytes that get past the first checks.
        let mut likely = bytes;
        if likely.len() >= 16 {
            (likely[0], likely[3], likely[7]) = (0, opcode, ds);
            let listing = request(&likely, 0);
            let listed: usize = listing.fields.iter().map(|f| f.bytes.len()).sum();
            prop_assert!(listed <= likely.len());
            let _ = (listing.to_string(), ring(&likely).to_string());
        }
    }
}
