//! Work queue entries: a core work request as the bytes an mlx5 device fetches. Pure: no memory of the
//! device's, no ordering, no unsafe; where the bytes go is `ring.rs`'s.
//!
//! A WQE is a run of 16-byte segments, counted in `ds`, that starts on a 64-byte basic block: control,
//! then for one-sided operations the remote address, for atomics the operands, then the data. Layouts:
//! Adapters PRM, "Send WQE format"; rdma-core `providers/mlx5/mlx5dv.h`. All fields are big endian.

use ibv_core::{IbvMemoryRegionView, Op, Payload, RecvRequest, WorkRequest};
use ibv_sys as sys;

/// Bytes of a basic block, the unit of the send queue's counters.
pub const BLOCK: usize = 64;
/// Segments in a basic block.
pub const SEGMENTS_PER_BLOCK: u32 = 4;
/// The longest WQE that `ds` can express, in segments.
pub const MAX_SEGMENTS: u32 = 63;

/// One 16-byte segment, as it lies in memory.
pub type Segment = [u64; 2];

/// Takes the segments of a WQE in order.
pub trait Sink {
    /// The next 16 bytes.
    fn segment(&mut self, segment: Segment);
}

/// What a control segment needs beyond the request.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The queue pair, 24 bits.
    pub qpn: u32,
    /// The number of the WQE's first basic block, which wraps at 16 bits.
    pub index: u16,
}

/// Length of `wr`'s WQE in segments.
#[inline]
pub fn segments(wr: &WorkRequest<'_>) -> u32 {
    let local = match wr.local {
        Payload::Sges(sges) => sges.len() as u32,
        Payload::Inline([]) => 0,
        Payload::Inline(data) => inline_segments(data.len()),
    };
    1 + fixed_segments(wr.op) + local
}

/// Segments between control and data.
#[inline]
const fn fixed_segments(op: Op) -> u32 {
    match op {
        Op::Write | Op::WriteWithImm(_) | Op::Read => 1,
        Op::CompareSwap { .. } | Op::FetchAdd(_) => 2,
        _ => 0,
    }
}

/// Segments of `len` inline bytes: a 4-byte header in front, padding behind.
#[inline]
pub const fn inline_segments(len: usize) -> u32 {
    (4 + len).div_ceil(16) as u32
}

/// Segments of the longest request that a queue pair with these limits takes.
pub const fn longest(max_sge: u32, max_inline: u32) -> u32 {
    let inline = if max_inline == 0 { 0 } else { inline_segments(max_inline as usize) };
    // Control, remote address, and of what follows the longest: an atomic's operands and ranges, or inline
    // data.
    2 + if max_sge + 1 > inline { max_sge + 1 } else { inline }
}

/// Basic blocks that hold `segments`.
#[inline]
pub const fn blocks(segments: u32) -> u32 {
    segments.div_ceil(SEGMENTS_PER_BLOCK)
}

/// The opcode of the control segment.
#[inline]
pub const fn opcode(op: Op) -> u8 {
    (match op {
        Op::Write => sys::MLX5_OPCODE_RDMA_WRITE,
        Op::WriteWithImm(_) => sys::MLX5_OPCODE_RDMA_WRITE_IMM,
        Op::Read => sys::MLX5_OPCODE_RDMA_READ,
        Op::Send => sys::MLX5_OPCODE_SEND,
        Op::SendWithImm(_) => sys::MLX5_OPCODE_SEND_IMM,
        Op::CompareSwap { .. } => sys::MLX5_OPCODE_ATOMIC_CS,
        Op::FetchAdd(_) => sys::MLX5_OPCODE_ATOMIC_FA,
        // `Op` grows only together with this table: core offers what `Caps` offers.
        _ => sys::MLX5_OPCODE_NOP,
    }) as u8
}

/// The control segment. The index is 16 bits wide here: a wider one would leak into the opcode modifier.
#[inline]
pub const fn control(head: Head, wr_opcode: u8, ds: u32, flags: u8, imm: u32) -> Segment {
    let first = (wr_opcode as u64) << 32 | (head.qpn as u64) << 8 | ds as u64;
    [first.to_be() | control_index(head.index), control_second(flags, imm)]
}

/// The index alone, in its place in the first eight bytes.
#[inline]
pub const fn control_index(index: u16) -> u64 {
    ((index as u64) << 40).to_be()
}

/// The last eight bytes.
#[inline]
pub const fn control_second(flags: u8, imm: u32) -> u64 {
    ((flags as u64) << 32 | imm as u64).to_be()
}

/// `fm_ce_se`: completion, solicited event, fence.
#[inline]
pub fn flags(signaled: bool, solicited: bool, fence: bool) -> u8 {
    let bit = |on: bool, flag: u32| if on { flag as u8 } else { 0 };
    bit(signaled, sys::MLX5_WQE_CTRL_CQ_UPDATE)
        | bit(solicited, sys::MLX5_WQE_CTRL_SOLICITED)
        | bit(fence, sys::MLX5_WQE_CTRL_FENCE)
}

/// The remote address segment.
#[inline]
pub const fn remote_address(addr: u64, rkey: u32) -> Segment {
    [addr.to_be(), ((rkey as u64) << 32).to_be()]
}

/// A data segment. Core passes no empty range, and none longer than 2^31 - 1 bytes: a count of 0 would
/// mean 2^31.
#[inline]
pub const fn data(addr: u64, len: usize, lkey: u32) -> Segment {
    [((len as u32 as u64) << 32 | lkey as u64).to_be(), addr.to_be()]
}

#[inline]
fn data_of(view: &IbvMemoryRegionView<'_>) -> Segment {
    data(view.addr(), view.len(), view.lkey())
}

/// The WQE of any request. Its length is [`segments`], at most [`MAX_SEGMENTS`].
pub fn encode(wr: &WorkRequest<'_>, head: Head, sink: &mut impl Sink) {
    let flags = flags(wr.signaled, wr.solicited, wr.fence);
    sink.segment(control(head, opcode(wr.op), segments(wr), flags, wr.op.imm().unwrap_or(0)));
    if fixed_segments(wr.op) > 0 {
        sink.segment(remote_address(wr.remote.addr, wr.remote.rkey));
    }
    match wr.op {
        Op::CompareSwap { compare, swap } => sink.segment([swap.to_be(), compare.to_be()]),
        Op::FetchAdd(add) => sink.segment([add.to_be(), 0]),
        _ => {}
    }
    match wr.local {
        Payload::Sges(sges) => sges.iter().for_each(|view| sink.segment(data_of(view))),
        Payload::Inline([]) => {}
        Payload::Inline(data) => inline(data, sink),
    }
}

/// Inline data: a header with its length and the inline bit, the bytes, zeroes up to a whole segment.
fn inline(data: &[u8], sink: &mut impl Sink) {
    let header = data.len() as u32 | sys::MLX5_INLINE_SEG;
    let (first, rest) = data.split_at(data.len().min(12));
    let mut segment = [0; 16];
    segment[..4].copy_from_slice(&header.to_be_bytes());
    segment[4..4 + first.len()].copy_from_slice(first);
    sink.segment(words(segment));
    for chunk in rest.chunks(16) {
        let mut segment = [0; 16];
        segment[..chunk.len()].copy_from_slice(chunk);
        sink.segment(words(segment));
    }
}

fn words(bytes: [u8; 16]) -> Segment {
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
    [word(0), word(8)]
}

/// A receive WQE of `stride` segments: the ranges, cut off where no message reaches, then, where they are fewer than the stride, the key
/// that ends the list (rdma-core `mlx5_post_recv`).
pub fn encode_recv(wr: &RecvRequest<'_>, stride: u32, sink: &mut impl Sink) {
    // A count of 2^31 and more would lose its top bit, or mean something else.
    const MOST: usize = i32::MAX as usize;
    for view in wr.local {
        sink.segment(data(view.addr(), view.len().min(MOST), view.lkey()));
    }
    if (wr.local.len() as u32) < stride {
        sink.segment(data(0, 0, sys::MLX5_INVALID_LKEY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Sink for Vec<u8> {
        fn segment(&mut self, segment: Segment) {
            segment.iter().for_each(|word| self.extend(word.to_ne_bytes()));
        }
    }

    fn control_bytes(index: u16, qpn: u32, op: Op, ds: u32, f: u8, imm: u32) -> Vec<u8> {
        let mut out = Vec::new();
        out.segment(control(Head { qpn, index }, opcode(op), ds, f, imm));
        out
    }

    #[test]
    fn a_control_segment_lies_as_the_prm_says() {
        let op = Op::WriteWithImm(0);
        let bytes = control_bytes(0xabcd, 0x12_3456, op, 3, flags(true, true, true), 0x0102_0304);
        assert_eq!(bytes, [0, 0xab, 0xcd, 9, 0x12, 0x34, 0x56, 3, 0, 0, 0, 8 | 2 | 0x80, 1, 2, 3, 4]);
    }

    /// Each operation's number, from the PRM.
    #[test]
    fn opcodes_are_the_prms() {
        let ops = [
            (Op::Write, 0x08),
            (Op::WriteWithImm(1), 0x09),
            (Op::Send, 0x0a),
            (Op::SendWithImm(1), 0x0b),
            (Op::Read, 0x10),
            (Op::CompareSwap { compare: 0, swap: 0 }, 0x11),
            (Op::FetchAdd(1), 0x12),
        ];
        for (op, number) in ops {
            assert_eq!(opcode(op), number, "{op:?}");
        }
    }

    proptest! {
        /// An index past 16 bits once reached the opcode modifier, the first byte.
        #[test]
        fn the_opcode_modifier_is_zero_whatever_the_index(index in any::<u16>(), qpn in 0u32..1 << 24) {
            let bytes = control_bytes(index, qpn, Op::Read, 3, 0, 0);
            prop_assert_eq!(bytes[0], 0);
            prop_assert_eq!(&bytes[1..3], &index.to_be_bytes());
            prop_assert_eq!(&bytes[4..7], &qpn.to_be_bytes()[1..]);
        }

        #[test]
        fn inline_bytes_follow_their_header_and_padding_is_zero(payload in prop::collection::vec(any::<u8>(), 1..300)) {
            let mut out = Vec::new();
            inline(&payload, &mut out);
            prop_assert_eq!(out.len(), inline_segments(payload.len()) as usize * 16);
            let header = u32::from_be_bytes([out[0], out[1], out[2], out[3]]);
            prop_assert_eq!(header, 1 << 31 | payload.len() as u32);
            prop_assert_eq!(&out[4..4 + payload.len()], &payload[..]);
            prop_assert!(out[4 + payload.len()..].iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn data_and_address_segments_lie_as_the_prm_says() {
        let mut out = Vec::new();
        out.segment(remote_address(0x0102_0304_0506_0708, 0x1112_1314));
        out.segment(data(0x2122_2324_2526_2728, 0x3132_3334, 0x4142_4344));
        let raddr = [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 0];
        let sge =
            [0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0x44, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28];
        assert_eq!(out, [raddr, sge].concat());
    }

    #[test]
    fn the_longest_wqe_counts_atomics_and_inline() {
        assert_eq!(longest(1, 0), 4, "an atomic");
        assert_eq!(longest(4, 0), 7, "an atomic into four ranges");
        assert_eq!(longest(1, 64), 2 + 5);
        assert_eq!((blocks(4), blocks(5)), (1, 2));
    }
}
