//! Send and receive work-queue entries of mlx5, decoded from bytes that a program wrote. No memory, no state.
//!
//! Layouts: `mlx5dv.h` of rdma-core (`mlx5_wqe_ctrl_seg`, `_raddr_seg`, `_atomic_seg`, `_data_seg`, `mlx5_wqe_inl_data_seg`).

use crate::mlx5::transition::Transport;
use crate::mlx5::window::Bind;

/// Bytes of a basic block, the unit in which send queues count.
pub const BASIC_BLOCK: usize = 64;
/// Longest send descriptor in bytes that the device takes (`max_sq_desc_sz`).
pub const MAX_DESCRIPTOR: usize = 1024;
/// The key that ends a receive's list early (`MLX5_INVALID_LKEY`).
pub const END_OF_LIST: u32 = 0x100;
const INLINE: u32 = 1 << 31;

/// What a send request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the operations' own names")]
pub enum Opcode {
    Nop = 0x00,
    SendInvalidate = 0x01,
    Write = 0x08,
    WriteImm = 0x09,
    Send = 0x0a,
    SendImm = 0x0b,
    Read = 0x10,
    CompareSwap = 0x11,
    FetchAdd = 0x12,
    /// Changes a key: here, binds or invalidates a memory window.
    Umr = 0x25,
}

impl Opcode {
    /// By its number.
    pub fn from_code(code: u8) -> Option<Self> {
        use Opcode::*;
        [Nop, SendInvalidate, Write, WriteImm, Send, SendImm, Read, CompareSwap, FetchAdd, Umr]
            .into_iter()
            .find(|o| *o as u8 == code)
    }

    /// Whether it has a remote address.
    pub fn is_rdma(self) -> bool {
        !matches!(self, Self::Nop | Self::Umr | Self::Send | Self::SendImm | Self::SendInvalidate)
    }

    /// Whether it is an atomic.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether local memory is its target: a READ or an atomic.
    pub fn writes_locally(self) -> bool {
        self == Self::Read || self.is_atomic()
    }

    fn handles_windows(self) -> bool {
        matches!(self, Self::Umr | Self::SendInvalidate)
    }

    /// Whether a queue pair of this service has it (IB spec vol. 1, table of operations by service).
    pub fn exists_on(self, transport: Transport) -> bool {
        match transport {
            Transport::Rc => true,
            Transport::Uc => !self.writes_locally() && !self.handles_windows(),
            Transport::Ud => !self.is_rdma() && !self.handles_windows(),
        }
    }

    /// Whether it takes a receive at the other side.
    pub fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::SendInvalidate | Self::WriteImm)
    }
}

/// A piece of local memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSegment {
    /// Length in bytes (1 to 2^31).
    pub len: u32,
    /// Local key.
    pub lkey: u32,
    /// Address.
    pub addr: u64,
}

/// A piece of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// In registered memory.
    Memory(DataSegment),
    /// In the request itself.
    Inline(Vec<u8>),
}

impl Segment {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Memory(data) => u64::from(data.len),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The first 16 bytes of a send request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// Opcode number.
    pub opcode: u8,
    /// Opcode modifier.
    pub opmod: u8,
    /// Index of its first basic block.
    pub index: u16,
    /// Queue-pair number.
    pub qpn: u32,
    /// Length in units of 16 bytes.
    pub ds: u8,
    /// Fence mode, completion mode, solicited.
    pub flags: u8,
    /// Immediate data, as on the wire.
    pub imm: [u8; 4],
}

impl Control {
    /// Reads the first 16 bytes.
    pub fn decode(bytes: &[u8; 16]) -> Self {
        let qpn_ds = be32(&bytes[4..]);
        Self {
            opcode: bytes[3],
            opmod: bytes[0],
            index: u16::from_be_bytes([bytes[1], bytes[2]]),
            qpn: qpn_ds >> 8,
            ds: qpn_ds as u8 & 0x3f,
            flags: bytes[11],
            imm: [bytes[12], bytes[13], bytes[14], bytes[15]],
        }
    }

    /// How many basic blocks it occupies; a length of 0 counts as one block.
    pub fn basic_blocks(&self) -> u16 {
        (u16::from(self.ds) * 16).div_ceil(BASIC_BLOCK as u16).max(1)
    }

    /// Whether success is reported (`MLX5_WQE_CTRL_CQ_UPDATE`).
    pub fn signalled(&self) -> bool {
        self.flags & (2 << 2) != 0
    }

    /// Whether the peer's completion is solicited.
    pub fn solicited(&self) -> bool {
        self.flags & (1 << 1) != 0
    }

    /// Whether it waits for earlier READs and atomics (`MLX5_WQE_CTRL_FENCE`).
    pub fn fenced(&self) -> bool {
        self.flags >> 5 >= 2
    }
}

/// A decoded send request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendWqe {
    /// What it does.
    pub opcode: Opcode,
    /// Its first segment.
    pub control: Control,
    /// Where it goes, on a datagram queue pair.
    pub address: Option<AddressVector>,
    /// What it does to a memory window.
    pub bind: Option<Bind>,
    /// Remote address and key, for RDMA and atomics.
    pub remote: (u64, u32),
    /// Swap-or-add, and compare.
    pub operands: (u64, u64),
    /// The local side.
    pub segments: Vec<Segment>,
}

impl SendWqe {
    /// Length of the message in bytes.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(Segment::len).sum()
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where a datagram goes, as the request carries it (`mlx5_wqe_av`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressVector {
    /// Queue key; with the highest bit set, the queue pair's own is used.
    pub qkey: u32,
    /// Target queue pair.
    pub qpn: u32,
    /// Service level.
    pub sl: u8,
    /// Target's local identifier on InfiniBand; UDP source port on RoCE.
    pub rlid: u16,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Whether it has a global route (InfiniBand; RoCE always has).
    pub global: bool,
    /// Index of the own address.
    pub sgid_index: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Target's address.
    pub gid: [u8; 16],
}

impl AddressVector {
    /// Reads the 48 bytes of a datagram segment.
    pub fn decode(bytes: &[u8; 48]) -> Self {
        let route = be32(&bytes[28..]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[32..]);
        Self {
            qkey: be32(bytes),
            qpn: be32(&bytes[8..]) & 0xff_ffff,
            sl: bytes[12] & 0xf,
            rlid: u16::from_be_bytes([bytes[14], bytes[15]]),
            traffic_class: bytes[26],
            hop_limit: bytes[27],
            global: route >> 30 & 1 == 1,
            sgid_index: (route >> 20) as u8,
            flow_label: route & 0xf_ffff,
            gid,
        }
    }
}

/// Why a send request can't be understood; all are reported as a local queue-pair operation error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The length is zero, too short for the opcode, or longer than the device takes.
    #[error("bad descriptor length {0} (units of 16 bytes)")]
    Length(u8),
    /// The opcode is unknown to this device.
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// The opcode's modifier is not zero.
    #[error("bad opcode modifier {0:#04x}")]
    Opmod(u8),
    /// The index is not the one of the ring slot.
    #[error("index {found} in the slot of {expected}")]
    Index {
        /// In the request.
        found: u16,
        /// Of the slot.
        expected: u16,
    },
    /// The queue-pair number is another one's.
    #[error("queue pair number {0:#x} is not this queue pair's")]
    QueuePair(u32),
    /// A segment reaches past the end, or doesn't fit the opcode.
    #[error("bad segment at byte {0}")]
    Segment(usize),
}

/// Decodes the request in `bytes` (its `ds · 16` bytes, unwrapped), found at `index` of the queue of `qpn`.
pub fn decode_send(bytes: &[u8], qpn: u32, index: u16, transport: Transport) -> Result<SendWqe, Malformed> {
    let control = bytes.first_chunk().map(Control::decode).ok_or(Malformed::Length(0))?;
    let end = usize::from(control.ds) * 16;
    if end == 0 || end > MAX_DESCRIPTOR || end > bytes.len() {
        return Err(Malformed::Length(control.ds));
    }
    check_owner(&control, qpn, index)?;
    let opcode = Opcode::from_code(control.opcode).ok_or(Malformed::Opcode(control.opcode))?;
    if !opcode.exists_on(transport) {
        return Err(Malformed::Opcode(control.opcode));
    }
    if control.opmod != 0 {
        return Err(Malformed::Opmod(control.opmod));
    }
    decode_body(opcode, control, &bytes[..end], transport)
}

fn check_owner(control: &Control, qpn: u32, index: u16) -> Result<(), Malformed> {
    if control.qpn != qpn {
        return Err(Malformed::QueuePair(control.qpn));
    }
    if control.index != index {
        return Err(Malformed::Index { found: control.index, expected: index });
    }
    Ok(())
}

fn decode_body(
    opcode: Opcode,
    control: Control,
    bytes: &[u8],
    transport: Transport,
) -> Result<SendWqe, Malformed> {
    let datagram = transport == Transport::Ud && opcode != Opcode::Nop;
    let mut at = if datagram { 16 + 48 } else { 16 };
    let address = match datagram {
        true => {
            let segment = bytes.get(16..).and_then(|b| b.first_chunk());
            Some(AddressVector::decode(segment.ok_or(Malformed::Length(control.ds))?))
        }
        false => None,
    };
    let mut take = || {
        let segment: Option<&[u8; 16]> = bytes.get(at..).and_then(|b| b.first_chunk());
        at += 16;
        segment.ok_or(Malformed::Length(control.ds))
    };
    let remote = match opcode.is_rdma() {
        true => take().map(|s| (be64(&s[..8]), be32(&s[8..12])))?,
        false => (0, 0),
    };
    let operands = match opcode.is_atomic() {
        true => take().map(|s| (be64(&s[..8]), be64(&s[8..])))?,
        false => (0, 0),
    };
    let segments = match opcode {
        Opcode::Nop | Opcode::Umr => Vec::new(),
        _ => decode_segments(opcode, bytes, at)?,
    };
    let bind = match opcode {
        Opcode::Umr => Some(Bind::decode(&control, bytes).ok_or(Malformed::Length(control.ds))?),
        _ => None,
    };
    let wqe = SendWqe { opcode, control, address, bind, remote, operands, segments };
    if opcode.is_atomic() && wqe.len() != 8 {
        return Err(Malformed::Segment(at));
    }
    Ok(wqe)
}

fn decode_segments(opcode: Opcode, bytes: &[u8], mut at: usize) -> Result<Vec<Segment>, Malformed> {
    let mut segments = Vec::new();
    while at < bytes.len() {
        let word = be32(&bytes[at..]);
        if word & INLINE == 0 {
            segments.push(Segment::Memory(data_segment(&bytes[at..at + 16])));
            at += 16;
            continue;
        }
        let len = (word & !INLINE) as usize;
        let data = bytes.get(at + 4..).and_then(|b| b.get(..len)).ok_or(Malformed::Segment(at))?;
        if opcode.writes_locally() {
            return Err(Malformed::Segment(at));
        }
        segments.push(Segment::Inline(data.to_vec()));
        at += (4 + len).next_multiple_of(16);
    }
    Ok(segments)
}

/// Decodes a receive request: segments up to the end of the list, or of `bytes`.
pub fn decode_receive(bytes: &[u8]) -> Vec<DataSegment> {
    bytes.chunks_exact(16).map(data_segment).take_while(|s| s.lkey != END_OF_LIST).collect()
}

/// A byte count of 0 stands for 2^31 (the field has 31 bits).
pub(crate) fn data_segment(bytes: &[u8]) -> DataSegment {
    let count = be32(bytes);
    let len = if count == 0 { INLINE } else { count };
    DataSegment { len, lkey: be32(&bytes[4..]), addr: be64(&bytes[8..]) }
}

pub(crate) fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

pub(crate) fn be64(bytes: &[u8]) -> u64 {
    u64::from(be32(bytes)) << 32 | u64::from(be32(&bytes[4..]))
}

#[cfg(test)]
mod tests {
    use super::Transport::Rc;
    use super::*;
    use proptest::prelude::*;

    const QPN: u32 = 0x1234;

    fn wqe(opcode: u8, ds: u8, rest: &[[u8; 16]]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 7, opcode, 0, 0x12, 0x34, ds, 0, 0, 0, 8, 1, 2, 3, 4];
        rest.iter().for_each(|s| bytes.extend_from_slice(s));
        bytes
    }

    fn segment(count: u32, lkey: u32, addr: u64) -> [u8; 16] {
        let mut s = [0; 16];
        s[..4].copy_from_slice(&count.to_be_bytes());
        s[4..8].copy_from_slice(&lkey.to_be_bytes());
        s[8..].copy_from_slice(&addr.to_be_bytes());
        s
    }

    fn remote(addr: u64, rkey: u32) -> [u8; 16] {
        let mut s = [0; 16];
        s[..8].copy_from_slice(&addr.to_be_bytes());
        s[8..12].copy_from_slice(&rkey.to_be_bytes());
        s
    }

    #[test]
    fn a_write_has_a_remote_and_pieces() {
        let bytes = wqe(8, 4, &[remote(0x99, 5), segment(10, 6, 0x1000), segment(0, 6, 0x2000)]);
        let w = decode_send(&bytes, QPN, 7, Rc).unwrap();
        assert_eq!((w.opcode, w.remote, w.control.signalled()), (Opcode::Write, (0x99, 5), true));
        assert_eq!(w.len(), 10 + (1 << 31));
        assert_eq!(w.control.imm, [1, 2, 3, 4]);
        assert_eq!(w.control.basic_blocks(), 1);
    }

    #[test]
    fn a_datagram_has_its_address_before_its_pieces() {
        let mut av = [[0; 16]; 3];
        av[0][..4].copy_from_slice(&0x1111_1111u32.to_be_bytes());
        av[0][8..12].copy_from_slice(&(0x8000_0000u32 | 0x77).to_be_bytes());
        (av[0][12], av[0][15]) = (0x25, 9);
        (av[1][10], av[1][11]) = (3, 64);
        av[1][12..].copy_from_slice(&(1u32 << 30 | 2 << 20 | 0xabcde).to_be_bytes());
        av[2] = [0xfe; 16];
        let w =
            decode_send(&wqe(0x0a, 5, &[av[0], av[1], av[2], segment(10, 6, 0x1000)]), QPN, 7, Transport::Ud);
        let w = w.unwrap();
        let a = w.address.unwrap();
        assert_eq!((a.qkey, a.qpn, a.sl, a.rlid), (0x1111_1111, 0x77, 5, 9));
        assert_eq!((a.traffic_class, a.hop_limit, a.global, a.sgid_index), (3, 64, true, 2));
        assert_eq!((a.flow_label, a.gid, w.len()), (0xabcde, [0xfe; 16], 10));
        assert_eq!(decode_send(&wqe(0x0a, 3, &av), QPN, 7, Transport::Ud), Err(Malformed::Length(3)));
        let write = wqe(8, 3, &[remote(1, 2), segment(8, 3, 4)]);
        assert_eq!(decode_send(&write, QPN, 7, Transport::Ud), Err(Malformed::Opcode(8)));
        let read = wqe(0x10, 3, &[remote(1, 2), segment(8, 3, 4)]);
        assert_eq!(decode_send(&read, QPN, 7, Transport::Uc), Err(Malformed::Opcode(0x10)));
    }

    #[test]
    fn inline_bytes_are_taken_and_padding_is_not() {
        let mut inline = [0; 16];
        inline[..4].copy_from_slice(&(INLINE | 5).to_be_bytes());
        inline[4..9].copy_from_slice(b"hello");
        let w = decode_send(&wqe(0x0a, 2, &[inline]), QPN, 7, Rc).unwrap();
        assert_eq!(w.segments, [Segment::Inline(b"hello".to_vec())]);
    }

    #[test]
    fn malformed_requests_say_what_is_wrong() {
        let write = |opcode, ds| wqe(opcode, ds, &[remote(1, 2), segment(8, 3, 4), segment(8, 3, 4)]);
        let check = |bytes: Vec<u8>| decode_send(&bytes, QPN, 7, Rc).unwrap_err();
        assert_eq!(check(write(8, 0)), Malformed::Length(0));
        assert_eq!(check(write(8, 1)), Malformed::Length(1));
        assert_eq!(check(write(8, 40)), Malformed::Length(40));
        assert_eq!(check(write(0x26, 3)), Malformed::Opcode(0x26));
        let mut opmod = write(8, 3);
        opmod[0] = 1;
        assert_eq!(check(opmod), Malformed::Opmod(1));
        assert_eq!(decode_send(&write(8, 3), QPN, 8, Rc), Err(Malformed::Index { found: 7, expected: 8 }));
        assert_eq!(decode_send(&write(8, 3), 9, 7, Rc), Err(Malformed::QueuePair(QPN)));
        let inline = segment(INLINE | 400, 0, 0);
        assert_eq!(check(wqe(0x0a, 2, &[inline])), Malformed::Segment(16));
        let inline_read = segment(INLINE | 8, 0, 0);
        assert_eq!(check(wqe(0x10, 3, &[remote(1, 2), inline_read])), Malformed::Segment(32));
        let atomic = wqe(0x12, 4, &[remote(8, 2), segment(0, 1, 0), segment(4, 3, 4)]);
        assert_eq!(check(atomic), Malformed::Segment(48));
    }

    #[test]
    fn a_receive_ends_at_the_terminator_or_the_slot() {
        let list =
            [segment(5, 1, 10), segment(6, 2, 20), segment(0, END_OF_LIST, 0), segment(7, 3, 30)].concat();
        let lens: Vec<u32> = decode_receive(&list).iter().map(|s| s.len).collect();
        assert_eq!(lens, [5, 6]);
        assert_eq!(decode_receive(&list[..16]).len(), 1);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1100), index: u16) {
            let _ = decode_send(&bytes, QPN, index, Rc);
            let _ = decode_receive(&bytes);
            if let Some(control) = bytes.first_chunk().map(Control::decode) {
                for transport in [Rc, Transport::Uc, Transport::Ud] {
                    let _ = decode_send(&bytes, control.qpn, control.index, transport);
                }
                prop_assert!((1..=16).contains(&control.basic_blocks()));
            }
        }
    }
}
