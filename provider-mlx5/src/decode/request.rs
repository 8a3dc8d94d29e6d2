//! Work queue entries, and the receives of a receive queue.

use super::{Fault, Listing, Reader, hex, silent};
use ibv_core::Op;
use ibv_sys as sys;

/// Bytes of a segment.
const SEGMENT: usize = 16;
/// The most segments of an entry.
const MOST: u8 = 63;

/// What a work queue entry asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// The number of its first basic block.
    pub index: u16,
    /// The queue pair.
    pub qpn: u32,
    /// Segments of 16 bytes.
    pub segments: u8,
    /// Whether success is reported.
    pub signaled: bool,
    /// Whether it raises a solicited event at the peer.
    pub solicited: bool,
    /// Whether it waits for earlier gets and atomics.
    pub fence: bool,
    /// Address and key of the remote side; 0 for sends.
    pub remote: (u64, u32),
    /// The local side.
    pub local: Vec<Local>,
}

/// A part of a request's local side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// Registered memory.
    Range {
        /// Its address.
        addr: u64,
        /// Bytes, 1 to 2^31.
        len: u64,
        /// Its key.
        lkey: u32,
    },
    /// Bytes in the entry itself.
    Inline(Vec<u8>),
}

impl Local {
    fn len(&self) -> u64 {
        match self {
            Self::Range { len, .. } => *len,
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// What lies between control and data segments.
#[derive(Clone, Copy, PartialEq)]
enum Middle {
    Nothing,
    Remote,
    Atomic,
}

/// A row of [`OPCODES`]: number, name, what follows the control segment where this module knows it.
type Opcode = (u32, &'static str, Option<Middle>);

const OPCODES: [Opcode; 20] = [
    (sys::MLX5_OPCODE_NOP, "NOP", None),
    (sys::MLX5_OPCODE_SEND_INVAL, "SEND_INVAL", None),
    (sys::MLX5_OPCODE_RDMA_WRITE, "RDMA_WRITE", Some(Middle::Remote)),
    (sys::MLX5_OPCODE_RDMA_WRITE_IMM, "RDMA_WRITE_IMM", Some(Middle::Remote)),
    (sys::MLX5_OPCODE_SEND, "SEND", Some(Middle::Nothing)),
    (sys::MLX5_OPCODE_SEND_IMM, "SEND_IMM", Some(Middle::Nothing)),
    (sys::MLX5_OPCODE_TSO, "TSO", None),
    (sys::MLX5_OPCODE_RDMA_READ, "RDMA_READ", Some(Middle::Remote)),
    (sys::MLX5_OPCODE_ATOMIC_CS, "ATOMIC_CS", Some(Middle::Atomic)),
    (sys::MLX5_OPCODE_ATOMIC_FA, "ATOMIC_FA", Some(Middle::Atomic)),
    (sys::MLX5_OPCODE_ATOMIC_MASKED_CS, "ATOMIC_MASKED_CS", None),
    (sys::MLX5_OPCODE_ATOMIC_MASKED_FA, "ATOMIC_MASKED_FA", None),
    (sys::MLX5_OPCODE_FMR, "FMR", None),
    (sys::MLX5_OPCODE_LOCAL_INVAL, "LOCAL_INVAL", None),
    (sys::MLX5_OPCODE_CONFIG_CMD, "CONFIG_CMD", None),
    (sys::MLX5_OPCODE_SET_PSV, "SET_PSV", None),
    (sys::MLX5_OPCODE_UMR, "UMR", None),
    (sys::MLX5_OPCODE_TAG_MATCHING, "TAG_MATCHING", None),
    (sys::MLX5_OPCODE_FLOW_TBL_ACCESS, "FLOW_TBL_ACCESS", None),
    (sys::MLX5_OPCODE_MMO, "MMO", None),
];

fn known(opcode: u8) -> Option<&'static Opcode> {
    OPCODES.iter().find(|(number, ..)| *number == u32::from(opcode))
}

/// The name of a send opcode, for completions that repeat it.
pub(super) fn opcode_name(opcode: u8) -> &'static str {
    known(opcode).map_or("none", |(_, name, _)| name)
}

/// The control segment.
pub(super) struct Control {
    pub(super) opcode: u8,
    pub(super) index: u16,
    pub(super) qpn: u32,
    pub(super) ds: u8,
    modifier: u8,
    flags: u8,
    imm: u32,
}

impl Control {
    /// Of the first 16 bytes.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        control(&mut Reader::new(bytes, 0))
    }

    /// Basic blocks that the entry takes.
    pub(super) fn blocks(&self) -> usize {
        usize::from(self.ds).div_ceil(4).max(1)
    }
}

/// The work queue entry at the front of `bytes`, which lie at `at` of a dump.
pub fn request(bytes: &[u8], at: usize) -> Listing<Request> {
    let mut reader = Reader::new(bytes, at);
    reader.segment = "ctrl";
    let Some(control) = control(&mut reader) else {
        reader.faults.push(Fault::Truncated { need: SEGMENT, there: bytes.len() });
        return reader.finish("the beginning of a work queue entry".into(), None);
    };
    let title = title(&control);
    let value = body(&mut reader, &control);
    reader.finish(title, value)
}

fn title(control: &Control) -> String {
    let Control { opcode, index, qpn, ds, .. } = control;
    let blocks = if control.blocks() == 1 { "block".into() } else { format!("{} blocks", control.blocks()) };
    let name = opcode_name(*opcode);
    format!("WQE {name}, index {index}, queue pair {qpn:#x}, {ds} segments in {blocks}")
}

fn control(reader: &mut Reader<'_>) -> Option<Control> {
    if reader.left() < SEGMENT {
        return None;
    }
    let first = reader.take("opmod_idx_opcode", 4, |word| {
        let (opmod, index, opcode) = (word >> 24, word >> 8 & 0xffff, word as u8);
        format!("opmod {opmod:#x}, index {index}, opcode {opcode:#04x} {}", opcode_name(opcode))
    })?;
    let second =
        reader.take("qpn_ds", 4, |word| format!("queue pair {:#x}, {} segments", word >> 8, word & 0x3f))?;
    reader.take("signature", 1, silent)?;
    reader.take("dci_stream_channel_id", 2, silent)?;
    let flags = reader.take("fm_ce_se", 1, |flags| flag_names(flags as u8))? as u8;
    let imm = reader.take("imm", 4, silent)? as u32;
    Some(Control {
        opcode: first as u8,
        index: (first >> 8) as u16,
        modifier: (first >> 24) as u8,
        qpn: (second >> 8) as u32,
        ds: (second & 0x3f) as u8,
        flags,
        imm,
    })
}

const SIGNALED: u8 = sys::MLX5_WQE_CTRL_CQ_UPDATE as u8;
const SOLICITED: u8 = sys::MLX5_WQE_CTRL_SOLICITED as u8;
const FENCE: u8 = sys::MLX5_WQE_CTRL_FENCE as u8;
const SMALL_FENCE: u8 = sys::MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE as u8;

fn flag_names(flags: u8) -> String {
    let names = [
        (SIGNALED, "CQ_UPDATE"),
        (SOLICITED, "SOLICITED"),
        (FENCE, "FENCE"),
        (SMALL_FENCE, "INITIATOR_SMALL_FENCE"),
    ];
    let set: Vec<_> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { "reports errors only".into() } else { set.join(" ") }
}

/// Everything behind the control segment.
fn body(reader: &mut Reader<'_>, control: &Control) -> Option<Request> {
    if !(1..=MOST).contains(&control.ds) {
        reader.faults.push(Fault::Segments(control.ds));
        return None;
    }
    let need = usize::from(control.ds) * SEGMENT;
    if need > reader.bytes.len() {
        reader.faults.push(Fault::Truncated { need, there: reader.bytes.len() });
        return None;
    }
    reader.bytes = &reader.bytes[..need];
    let Some((_, _, middle)) = known(control.opcode) else {
        reader.faults.push(Fault::Opcode(control.opcode));
        return rest(reader);
    };
    check_control(reader, control);
    // Nothing of ours: the bytes, without a claim about them.
    let Some(middle) = *middle else { return rest(reader) };
    let (remote, operands) = match between(reader, middle) {
        Some(both) => both,
        None => {
            let need = if middle == Middle::Atomic { 3 } else { 2 };
            reader.faults.push(Fault::TooShort { ds: control.ds, need });
            return None;
        }
    };
    let op = op(control, operands)?;
    let local = locals(reader, op.fills_local())?;
    check_atomic(reader, op, remote.0, &local);
    let Control { index, qpn, ds, flags, .. } = *control;
    let is = |bit: u8| flags & bit != 0;
    let (signaled, solicited, fence) = (is(SIGNALED), is(SOLICITED), is(FENCE));
    Some(Request { op, index, qpn, segments: ds, signaled, solicited, fence, remote, local })
}

fn rest(reader: &mut Reader<'_>) -> Option<Request> {
    reader.segment = "other";
    while reader.left() >= 8 {
        reader.take("", 8, silent)?;
    }
    None
}

fn check_control(reader: &mut Reader<'_>, control: &Control) {
    if control.modifier != 0 {
        reader.faults.push(Fault::Modifier(control.modifier));
    }
    let unknown = control.flags & !(SIGNALED | SOLICITED | FENCE | SMALL_FENCE);
    if unknown != 0 {
        reader.faults.push(Fault::Flags(unknown));
    }
    let carries = [
        sys::MLX5_OPCODE_RDMA_WRITE_IMM,
        sys::MLX5_OPCODE_SEND_IMM,
        sys::MLX5_OPCODE_SEND_INVAL,
        sys::MLX5_OPCODE_UMR,
        sys::MLX5_OPCODE_LOCAL_INVAL,
    ];
    if control.imm != 0 && !carries.contains(&control.opcode.into()) {
        reader.faults.push(Fault::Immediate(control.imm));
    }
}

type Between = ((u64, u32), (u64, u64));

/// Remote address and operands, as far as the operation has them.
fn between(reader: &mut Reader<'_>, middle: Middle) -> Option<Between> {
    let (mut remote, mut operands) = ((0, 0), (0, 0));
    if middle != Middle::Nothing {
        reader.segment = "raddr";
        remote = (reader.take("raddr", 8, hex)?, reader.take("rkey", 4, hex)? as u32);
        reader.reserved(4)?;
    }
    if middle == Middle::Atomic {
        reader.segment = "atomic";
        operands = (reader.take("swap_add", 8, hex)?, reader.take("compare", 8, hex)?);
    }
    Some((remote, operands))
}

fn op(control: &Control, (swap_add, compare): (u64, u64)) -> Option<Op> {
    Some(match u32::from(control.opcode) {
        sys::MLX5_OPCODE_RDMA_WRITE => Op::Write,
        sys::MLX5_OPCODE_RDMA_WRITE_IMM => Op::WriteWithImm(control.imm),
        sys::MLX5_OPCODE_RDMA_READ => Op::Read,
        sys::MLX5_OPCODE_SEND => Op::Send,
        sys::MLX5_OPCODE_SEND_IMM => Op::SendWithImm(control.imm),
        sys::MLX5_OPCODE_ATOMIC_CS => Op::CompareSwap { compare, swap: swap_add },
        sys::MLX5_OPCODE_ATOMIC_FA => Op::FetchAdd(swap_add),
        _ => return None,
    })
}

/// Data segments up to the end; `None` where one can not be read.
fn locals(reader: &mut Reader<'_>, answers: bool) -> Option<Vec<Local>> {
    let mut local = Vec::new();
    while reader.left() >= SEGMENT {
        let at = reader.at();
        let header = u32::from_be_bytes([0, 1, 2, 3].map(|i| reader.bytes[reader.next + i]));
        if header & sys::MLX5_INLINE_SEG == 0 {
            local.push(range(reader)?);
            continue;
        }
        if answers {
            reader.faults.push(Fault::InlineAnswer { at });
        }
        local.push(Local::Inline(inline(reader, header)?));
    }
    Some(local)
}

fn range(reader: &mut Reader<'_>) -> Option<Local> {
    reader.segment = "data";
    let at = reader.at();
    let count = reader.take("byte_count", 4, |n| if n == 0 { "2^31".into() } else { n.to_string() })?;
    if count == 0 {
        reader.faults.push(Fault::ByteCount { at });
    }
    let lkey = reader.take("lkey", 4, hex)? as u32;
    if lkey == sys::MLX5_INVALID_LKEY {
        reader.faults.push(Fault::LocalKey { at: at + 4 });
    }
    let addr = reader.take("addr", 8, hex)?;
    Some(Local::Range { addr, len: if count == 0 { 1 << 31 } else { count }, lkey })
}

/// Inline bytes behind their header, and the padding up to a whole segment.
fn inline(reader: &mut Reader<'_>, header: u32) -> Option<Vec<u8>> {
    reader.segment = "inline";
    let (at, len) = (reader.at(), (header & !sys::MLX5_INLINE_SEG) as usize);
    reader.take("byte_count", 4, |_| format!("{len} bytes inline"))?;
    let Some(bytes) = reader.bytes.get(reader.next..reader.next.saturating_add(len)) else {
        reader.faults.push(Fault::Inline { at, len });
        return None;
    };
    // Lines end where segments do.
    let (first, rest) = bytes.split_at(len.min(SEGMENT - 4));
    for line in std::iter::once(first).chain(rest.chunks(SEGMENT)).filter(|line| !line.is_empty()) {
        reader.push("data", line.to_vec(), String::new());
    }
    let padding = (4 + len).next_multiple_of(SEGMENT) - (4 + len);
    if padding > 0 {
        let bytes = reader.bytes.get(reader.next..reader.next + padding)?.to_vec();
        reader.push("padding", bytes, String::new());
    }
    Some(bytes.to_vec())
}

fn check_atomic(reader: &mut Reader<'_>, op: Op, addr: u64, local: &[Local]) {
    if !matches!(op, Op::CompareSwap { .. } | Op::FetchAdd(_)) {
        return;
    }
    let len: u64 = local.iter().map(Local::len).sum();
    if len != 8 {
        reader.faults.push(Fault::AtomicLength(len));
    }
    if !addr.is_multiple_of(8) {
        reader.faults.push(Fault::Alignment(addr));
    }
}

/// The receive in `bytes`, which lie at `at` of a dump: ranges up to the key that ends the list, or to the end.
pub fn receive(bytes: &[u8], at: usize) -> Listing<Vec<Local>> {
    let mut reader = Reader::new(bytes, at);
    let mut ranges = Vec::new();
    while reader.left() >= SEGMENT {
        let lkey = u32::from_be_bytes([4, 5, 6, 7].map(|i| reader.bytes[reader.next + i]));
        if lkey == sys::MLX5_INVALID_LKEY {
            reader.segment = "end";
            let _ = reader.take("byte_count", 4, silent);
            let _ = reader.take("lkey", 4, |_| "the list ends".into());
            let _ = reader.take("addr", 8, silent);
            break;
        }
        ranges.extend(range(&mut reader));
    }
    if !reader.left().is_multiple_of(SEGMENT) {
        let (need, there) = (bytes.len().next_multiple_of(SEGMENT), bytes.len());
        reader.faults.push(Fault::Truncated { need, there });
    }
    let total: u64 = ranges.iter().map(Local::len).sum();
    let title = format!("receive of {} ranges, {total} bytes", ranges.len());
    reader.finish(title, Some(ranges))
}
