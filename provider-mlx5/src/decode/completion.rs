//! Completion queue entries. An entry of 128 bytes has these 64 in its second half.

use super::{Fault, Listing, Reader, request::opcode_name, silent};
use crate::cqe;
use ibv_sys as sys;

/// Bytes of an entry.
const ENTRY: usize = 64;

/// What a completion queue entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// `MLX5_CQE_*`.
    pub opcode: u8,
    /// Ownership, as the device wrote it: the round of the queue, alternating.
    pub owner: bool,
    /// The queue pair.
    pub qpn: u32,
    /// The number of the request's first basic block, or of the receive.
    pub wqe_counter: u16,
    /// Bytes moved; 0 in an error.
    pub byte_count: u32,
    /// The immediate, or the key that was invalidated.
    pub imm: u32,
    /// In an error, what happened.
    pub syndrome: Option<u8>,
}

const OPCODES: [(u32, &str); 11] = [
    (sys::MLX5_CQE_REQ, "REQ"),
    (sys::MLX5_CQE_RESP_WR_IMM, "RESP_WR_IMM"),
    (sys::MLX5_CQE_RESP_SEND, "RESP_SEND"),
    (sys::MLX5_CQE_RESP_SEND_IMM, "RESP_SEND_IMM"),
    (sys::MLX5_CQE_RESP_SEND_INV, "RESP_SEND_INV"),
    (sys::MLX5_CQE_RESIZE_CQ, "RESIZE_CQ"),
    (sys::MLX5_CQE_NO_PACKET, "NO_PACKET"),
    (sys::MLX5_CQE_SIG_ERR, "SIG_ERR"),
    (sys::MLX5_CQE_REQ_ERR, "REQ_ERR"),
    (sys::MLX5_CQE_RESP_ERR, "RESP_ERR"),
    (sys::MLX5_CQE_INVALID, "INVALID"),
];

const SYNDROMES: [(u32, &str); 13] = [
    (sys::MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, "LOCAL_LENGTH_ERR"),
    (sys::MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, "LOCAL_QP_OP_ERR"),
    (sys::MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, "LOCAL_PROT_ERR"),
    (sys::MLX5_CQE_SYNDROME_WR_FLUSH_ERR, "WR_FLUSH_ERR"),
    (sys::MLX5_CQE_SYNDROME_MW_BIND_ERR, "MW_BIND_ERR"),
    (sys::MLX5_CQE_SYNDROME_BAD_RESP_ERR, "BAD_RESP_ERR"),
    (sys::MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR, "LOCAL_ACCESS_ERR"),
    (sys::MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, "REMOTE_INVAL_REQ_ERR"),
    (sys::MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, "REMOTE_ACCESS_ERR"),
    (sys::MLX5_CQE_SYNDROME_REMOTE_OP_ERR, "REMOTE_OP_ERR"),
    (sys::MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, "TRANSPORT_RETRY_EXC_ERR"),
    (sys::MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, "RNR_RETRY_EXC_ERR"),
    (sys::MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR, "REMOTE_ABORTED_ERR"),
];

fn name(table: &[(u32, &'static str)], number: u8) -> Option<&'static str> {
    table.iter().find(|(n, _)| *n == u32::from(number)).map(|(_, name)| *name)
}

/// The completion queue entry of 64 bytes at the front of `bytes`, which lie at `at` of a dump.
pub fn completion(bytes: &[u8], at: usize) -> Listing<Completion> {
    let Some(entry) = bytes.get(..ENTRY) else {
        let mut reader = Reader::new(bytes, at);
        reader.faults.push(Fault::Truncated { need: ENTRY, there: bytes.len() });
        return reader.finish("the beginning of a completion queue entry".into(), None);
    };
    let mut reader = Reader::new(entry, at);
    reader.segment = "cqe";
    let op_own = entry[ENTRY - 1];
    let failed = matches!(u32::from(op_own >> 4), sys::MLX5_CQE_REQ_ERR | sys::MLX5_CQE_RESP_ERR);
    let value = if failed { failure(&mut reader) } else { success(&mut reader) };
    let title = match value {
        Some(completion) => judged(&mut reader, op_own, &completion),
        None => "CQE".into(),
    };
    reader.finish(title, value.filter(|_| op_own >> 4 != sys::MLX5_CQE_INVALID as u8))
}

/// `struct mlx5_cqe64`.
fn success(reader: &mut Reader<'_>) -> Option<Completion> {
    for (name, len) in
        [("rsvd0", 2), ("wqe_id", 2), ("rsvd4", 8), ("rsvd4", 5), ("ml_path", 1), ("rsvd20", 4), ("slid", 2)]
    {
        reader.take(name, len, silent)?;
    }
    reader.take("flags_rqpn", 4, |word| {
        let sender = format!("sender's queue pair {:#x}", word & 0xff_ffff);
        if word == 0 { String::new() } else { sender }
    })?;
    reader.take("hds_ip_ext", 1, silent)?;
    reader.take("l4_hdr_type_etc", 1, silent)?;
    reader.take("vlan_info", 2, silent)?;
    reader.take("srqn_uidx", 4, silent)?;
    let imm = reader.take("imm_inval_pkey", 4, silent)? as u32;
    reader.take("app", 1, silent)?;
    reader.take("app_op", 1, silent)?;
    reader.take("app_info", 2, silent)?;
    let byte_count = reader.take("byte_cnt", 4, |n| format!("{n} bytes"))? as u32;
    reader.take("timestamp", 8, silent)?;
    let (qpn, wqe_counter, opcode, owner) = end(reader, "sop_drop_qpn")?;
    Some(Completion { opcode, owner, qpn, wqe_counter, byte_count, imm, syndrome: None })
}

/// `struct mlx5_err_cqe`.
fn failure(reader: &mut Reader<'_>) -> Option<Completion> {
    for _ in 0..4 {
        reader.take("rsvd0", 8, silent)?;
    }
    reader.take("srqn", 4, silent)?;
    reader.take("rsvd1", 8, silent)?;
    reader.take("rsvd1", 8, silent)?;
    reader.take("rsvd1", 2, silent)?;
    reader.take("vendor_err_synd", 1, silent)?;
    let syndrome = reader.take("syndrome", 1, |number| {
        let name = name(&SYNDROMES, number as u8).unwrap_or("none");
        format!("{name}: {}", cqe::status(number as u8))
    })? as u8;
    let (qpn, wqe_counter, opcode, owner) = end(reader, "s_wqe_opcode_qpn")?;
    Some(Completion { opcode, owner, qpn, wqe_counter, byte_count: 0, imm: 0, syndrome: Some(syndrome) })
}

/// The last eight bytes, which both have: queue pair, counter, opcode, owner.
fn end(reader: &mut Reader<'_>, first: &'static str) -> Option<(u32, u16, u8, bool)> {
    let word = reader.take(first, 4, |word| {
        let opcode = (word >> 24) as u8;
        format!("queue pair {:#x}, send opcode {opcode:#04x} {}", word & 0xff_ffff, opcode_name(opcode))
    })?;
    let counter = reader.take("wqe_counter", 2, |n| n.to_string())? as u16;
    reader.take("signature", 1, silent)?;
    let op_own = reader.take("op_own", 1, |n| {
        let opcode = name(&OPCODES, n as u8 >> 4).unwrap_or("none");
        let solicited = if n & 2 != 0 { ", solicited" } else { "" };
        format!("{opcode}, format {}{solicited}, owner {}", n >> 2 & 3, n & 1)
    })? as u8;
    Some((word as u32 & 0xff_ffff, counter, op_own >> 4, op_own & 1 != 0))
}

/// The entry's title; what is wrong with it goes to the reader.
fn judged(reader: &mut Reader<'_>, op_own: u8, c: &Completion) -> String {
    let format = op_own >> 2 & 3;
    match name(&OPCODES, c.opcode) {
        Some("INVALID") => return "CQE that was never written".into(),
        Some(_) => {}
        None => reader.faults.push(Fault::CompletionOpcode(c.opcode)),
    }
    if format != 0 {
        reader.faults.push(Fault::Format(format));
    }
    if let Some(syndrome) = c.syndrome.filter(|s| name(&SYNDROMES, *s).is_none()) {
        reader.faults.push(Fault::Syndrome(syndrome));
    }
    let Completion { opcode, owner, qpn, wqe_counter, byte_count, .. } = c;
    let what = name(&OPCODES, *opcode).unwrap_or("of no opcode");
    let how = match c.syndrome {
        Some(syndrome) => name(&SYNDROMES, syndrome).unwrap_or("an unknown error").to_owned(),
        None => format!("{byte_count} bytes"),
    };
    format!("CQE {what}, queue pair {qpn:#x}, counter {wqe_counter}, {how}, owner {}", u8::from(*owner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;

    fn entry(fields: &[(usize, &[u8])]) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (at, field) in fields {
            bytes[*at..at + field.len()].copy_from_slice(field);
        }
        bytes
    }

    #[test]
    fn a_success_names_queue_pair_counter_and_bytes() {
        let bytes = entry(&[
            (36, &[1, 2, 3, 4]),
            (44, &[0, 0, 1, 2]),
            (56, &[0x10, 0, 0, 9]),
            (60, &[0xff, 0xfe]),
            (63, &[1]),
        ]);
        let listing = completion(&bytes, 0x40);
        let wanted = Completion {
            opcode: 0,
            owner: true,
            qpn: 9,
            wqe_counter: 0xfffe,
            byte_count: 258,
            imm: 0x0102_0304,
            syndrome: None,
        };
        assert_eq!((listing.value, &listing.faults[..]), (Some(wanted), &[][..]));
        let text = listing.to_string();
        for words in ["CQE REQ, queue pair 0x9, counter 65534, 258 bytes", "RDMA_READ", "0x0040"] {
            assert!(text.contains(words), "no {words} in {text}");
        }
        assert_eq!(listing.fields.iter().map(|f| f.bytes.len()).sum::<usize>(), 64);
    }

    #[test]
    fn errors_say_what_happened_and_what_is_no_error() {
        let text = completion(&entry(&[(54, &[0x88, 0x13]), (63, &[0xd1])]), 0).to_string();
        assert!(text.contains("REMOTE_ACCESS_ERR") && text.contains("REQ_ERR"), "{text}");
        let unknown = completion(&entry(&[(55, &[0x77]), (63, &[0xe0])]), 0);
        assert_eq!(unknown.faults, [Fault::Syndrome(0x77)]);
        assert_eq!(unknown.fields.iter().map(|f| f.bytes.len()).sum::<usize>(), 64);
    }

    #[test]
    fn what_queues_never_hold_is_wrong_and_what_nobody_wrote_is_not() {
        assert_eq!(completion(&entry(&[(63, &[0x90])]), 0).faults, [Fault::CompletionOpcode(9)]);
        assert_eq!(completion(&entry(&[(63, &[0x0c])]), 0).faults, [Fault::Format(3)]);
        assert_eq!(completion(&[0; 63], 0).faults, [Fault::Truncated { need: 64, there: 63 }]);
        let fresh = completion(&[0xff; 64], 0);
        assert!(fresh.value.is_none() && fresh.title.contains("never written"));
    }

    proptest! {
        /// Both readers of an entry, this one and the one that polls, say the same.
        #[test]
        fn any_bytes_are_read_as_the_poller_reads_them(bytes in prop::collection::vec(any::<u8>(), 64)) {
            let listing = completion(&bytes, 0);
            let word = |w: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[w * 8 + i]));
            let entry: cqe::Cqe = std::array::from_fn(|w| AtomicU64::new(word(w)));
            let tail = cqe::Tail::read(&entry);
            prop_assert_eq!(listing.fields.iter().map(|f| f.bytes.len()).sum::<usize>(), 64);
            if let Some(c) = listing.value {
                prop_assert_eq!((c.qpn, c.wqe_counter, c.opcode), (tail.qpn(), tail.wqe_counter(), tail.opcode()));
                prop_assert!(tail.is_ready(c.owner));
                prop_assert_eq!(listing.faults.iter().any(|f| matches!(f, Fault::Format(_))), tail.is_foreign_format());
                let mut wc = ibv_core::IbvWc::default();
                cqe::decode(&entry, tail, 1, &mut wc);
                if let Some(syndrome) = c.syndrome {
                    prop_assert_eq!(wc.status, cqe::status(syndrome));
                } else if tail.side() == Some(cqe::Side::Recv) {
                    prop_assert_eq!(wc.byte_len, c.byte_count);
                }
            } else {
                prop_assert_eq!(tail.opcode(), 15);
            }
        }

        #[test]
        fn any_length_gives_a_listing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = completion(&bytes, usize::MAX / 2).to_string();
        }
    }
}
