//! Completion queue entries: the bytes an mlx5 device wrote as a core completion. Pure: who owns an entry
//! and in which order it may be read is `poller.rs`'s.
//!
//! Layouts: Adapters PRM, "Completion queue entry format"; rdma-core `struct mlx5_cqe64` and
//! `struct mlx5_err_cqe`. All fields are big endian.

use ibv_core::{IbvWc, WcOpcode, WcStatus};
use ibv_sys as sys;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A 64-byte entry in memory. A 128-byte one has these in its second half.
pub type Cqe = [AtomicU64; 8];

/// The entry's last eight bytes, as they lie: queue pair, counter, ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail(u64);

/// What the tail of the next success of one queue pair looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected(u64);

/// Bit 0 of the last byte: whose the entry is.
const OWNER: u64 = 1u64.to_be();
/// The opcode of the WQE.
const OPCODE: u64 = (0xff_u64 << 56).to_be();
/// What a success has in common with the next one of the same queue pair: number, `MLX5_CQE_REQ`, format,
/// owner. The opcode and counter of its WQE, the signature, and the solicited bit are its own.
const COMMON: u64 = 0x00ff_ffff_0000_00fdu64.to_be();

impl Expected {
    /// Of queue pair `qpn` in round `parity` of the queue.
    #[inline]
    pub const fn new(qpn: u32, parity: bool) -> Self {
        Self((NO_OPCODE << 56 | (qpn as u64 & 0xff_ffff) << 32 | parity as u64).to_be())
    }

    /// Of no queue pair: no success looks like it.
    #[inline]
    pub const fn nobody(parity: bool) -> Self {
        // The format of data in the entry.
        Self((NO_OPCODE << 56 | 4 | parity as u64).to_be())
    }

    /// Of a WQE of that opcode.
    #[inline]
    pub const fn of_opcode(self, opcode: u8) -> Self {
        Self(self.0 & !OPCODE | ((opcode as u64) << 56).to_be())
    }

    /// The round of the queue.
    #[inline]
    pub const fn parity(self) -> bool {
        self.0 & OWNER != 0
    }

    /// In the queue's next round.
    #[inline]
    pub const fn next_round(self) -> Self {
        Self(self.0 ^ OWNER)
    }
}

/// An opcode of no WQE.
const NO_OPCODE: u64 = 0xff;

/// A tail and what was expected of it, as what differs. That leaves the counter as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    bits: u64,
    tail: Tail,
}

impl Difference {
    /// Whether it is the success of a request of the queue pair, round and opcode that were expected. A foreign
    /// format is none, nor is an entry as initialised.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.bits & (COMMON | OPCODE) == 0
    }

    /// The same of any opcode, if it is not an atomic's: what completed.
    #[inline]
    pub const fn plain_send(self) -> Option<WcOpcode> {
        let opcode = self.tail.send_opcode();
        if self.bits & COMMON != 0 || opcode > sys::MLX5_OPCODE_RDMA_READ as u8 {
            return None;
        }
        Some(SEND_OPCODES[(opcode & 0x1f) as usize])
    }

    /// As [`Tail::wqe_counter`].
    #[inline]
    pub const fn wqe_counter(self) -> u16 {
        (u64::from_be(self.bits) >> 16) as u16
    }
}

impl Tail {
    /// Reads the last eight bytes.
    #[inline]
    pub fn read(cqe: &Cqe) -> Self {
        Self(cqe[7].load(Relaxed))
    }

    #[inline]
    const fn number(self) -> u64 {
        u64::from_be(self.0)
    }

    #[inline]
    const fn op_own(self) -> u8 {
        self.number() as u8
    }

    /// Whether the device has written this entry in round `parity` of the queue: its owner bit says so,
    /// and it is not as initialised.
    #[inline]
    pub const fn is_ready(self, parity: bool) -> bool {
        self.op_own() >> 4 != sys::MLX5_CQE_INVALID as u8 && self.op_own() & 1 == parity as u8
    }

    /// Whether the owner bit is of that round: the half of [`is_ready`](Self::is_ready) that decides, but
    /// where an entry was never written.
    #[inline]
    pub const fn is_of_round(self, expected: Expected) -> bool {
        (self.0 ^ expected.0) & OWNER == 0
    }

    /// What of it is not as `expected`.
    #[inline]
    pub const fn beside(self, expected: Expected) -> Difference {
        Difference { bits: self.0 ^ expected.0, tail: self }
    }

    /// `MLX5_CQE_*`.
    #[inline]
    pub const fn opcode(self) -> u8 {
        self.op_own() >> 4
    }

    /// Whether data was scattered into the entry or the entry is compressed. Queue pairs are created
    /// with neither, so such an entry means that the queue can not be trusted.
    #[inline]
    pub const fn is_foreign_format(self) -> bool {
        self.op_own() & (sys::MLX5_INLINE_SCATTER_32 | sys::MLX5_INLINE_SCATTER_64) as u8 != 0
    }

    /// The queue pair it belongs to.
    #[inline]
    pub const fn qpn(self) -> u32 {
        (self.number() >> 32) as u32 & 0xff_ffff
    }

    /// For a requester's entry, the opcode of its WQE.
    #[inline]
    pub const fn send_opcode(self) -> u8 {
        (self.number() >> 56) as u8
    }

    /// The number of the WQE's first basic block, or of the receive.
    #[inline]
    pub const fn wqe_counter(self) -> u16 {
        (self.number() >> 16) as u16
    }

    /// Which of the queue pair's queues it is of; `None` for an opcode this provider never asked for.
    #[inline]
    pub const fn side(self) -> Option<Side> {
        match self.opcode() as u32 {
            sys::MLX5_CQE_REQ | sys::MLX5_CQE_REQ_ERR => Some(Side::Send),
            sys::MLX5_CQE_RESP_WR_IMM
            | sys::MLX5_CQE_RESP_SEND
            | sys::MLX5_CQE_RESP_SEND_IMM
            | sys::MLX5_CQE_RESP_SEND_INV
            | sys::MLX5_CQE_RESP_ERR => Some(Side::Recv),
            _ => None,
        }
    }
}

/// Which work queue an entry completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Puts, gets, sends, atomics.
    Send,
    /// Receives.
    Recv,
}

/// Fills `wc` from an entry whose ownership was checked and whose request is `wr_id`.
#[inline]
pub fn decode(cqe: &Cqe, tail: Tail, wr_id: u64, wc: &mut IbvWc) {
    match tail.opcode() as u32 {
        sys::MLX5_CQE_REQ => requester(cqe, tail, wr_id, wc),
        sys::MLX5_CQE_REQ_ERR | sys::MLX5_CQE_RESP_ERR => error(cqe, tail, wr_id, wc),
        _ => responder(cqe, tail, wr_id, wc),
    }
}

/// The success of a request.
fn requester(cqe: &Cqe, tail: Tail, wr_id: u64, wc: &mut IbvWc) {
    let opcode = SEND_OPCODES[usize::from(tail.send_opcode() & 0x1f)];
    let byte_len = if opcode > WcOpcode::RDMA_READ { 8 } else { byte_count(cqe) };
    *wc = IbvWc { wr_id, opcode, byte_len, qp_num: tail.qpn(), ..IbvWc::default() };
}

/// The success of a request of `qp_num` that is no atomic, in place: what means nothing then stays as it is.
#[inline]
pub fn plain(opcode: WcOpcode, byte_len: u32, wr_id: u64, qp_num: u32, wc: &mut IbvWc) {
    wc.wr_id = wr_id;
    wc.status = WcStatus::SUCCESS;
    wc.opcode = opcode;
    wc.byte_len = byte_len;
    wc.qp_num = qp_num;
    wc.wc_flags = 0;
}

/// `MLX5_OPCODE_*` as what completed; writes where there is none.
const SEND_OPCODES: [WcOpcode; 32] = {
    let mut table = [WcOpcode::RDMA_WRITE; 32];
    table[sys::MLX5_OPCODE_RDMA_READ as usize] = WcOpcode::RDMA_READ;
    table[sys::MLX5_OPCODE_SEND as usize] = WcOpcode::SEND;
    table[sys::MLX5_OPCODE_SEND_IMM as usize] = WcOpcode::SEND;
    table[sys::MLX5_OPCODE_ATOMIC_CS as usize] = WcOpcode::COMP_SWAP;
    table[sys::MLX5_OPCODE_ATOMIC_FA as usize] = WcOpcode::FETCH_ADD;
    table
};

// What comes back into memory beyond a read is the 8 bytes of an atomic.
const _: () =
    assert!(WcOpcode::COMP_SWAP.0 > WcOpcode::RDMA_READ.0 && WcOpcode::FETCH_ADD.0 > WcOpcode::RDMA_READ.0);

/// Bytes 44 to 47: what came back, or arrived.
#[inline]
pub fn byte_count(cqe: &Cqe) -> u32 {
    u64::from_be(cqe[5].load(Relaxed)) as u32
}

/// Bytes 36 to 39, the immediate as it travelled.
#[inline]
fn immediate(cqe: &Cqe) -> u32 {
    u64::from_be(cqe[4].load(Relaxed)) as u32
}

fn responder(cqe: &Cqe, tail: Tail, wr_id: u64, wc: &mut IbvWc) {
    let (opcode, byte_len) = (WcOpcode::RECV, byte_count(cqe));
    *wc = IbvWc { wr_id, opcode, byte_len, qp_num: tail.qpn(), ..IbvWc::default() };
    match tail.opcode() as u32 {
        sys::MLX5_CQE_RESP_SEND_IMM => wc.set_imm(immediate(cqe)),
        sys::MLX5_CQE_RESP_WR_IMM => {
            wc.opcode = WcOpcode::RECV_RDMA_WITH_IMM;
            wc.set_imm(immediate(cqe));
        }
        _ => {}
    }
}

/// Bytes 54 and 55 of an error entry: the vendor's detail and the syndrome.
#[cold]
fn error(cqe: &Cqe, tail: Tail, wr_id: u64, wc: &mut IbvWc) {
    *wc = IbvWc { wr_id, qp_num: tail.qpn(), ..IbvWc::default() };
    let word = u64::from_be(cqe[6].load(Relaxed));
    wc.vendor_err = (word >> 8) as u32 & 0xff;
    wc.status = status(word as u8);
}

/// A syndrome as a completion status (rdma-core `mlx5_handle_error_cqe`).
pub fn status(syndrome: u8) -> WcStatus {
    match u32::from(syndrome) {
        sys::MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR => WcStatus::LOC_LEN_ERR,
        sys::MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR => WcStatus::LOC_QP_OP_ERR,
        sys::MLX5_CQE_SYNDROME_LOCAL_PROT_ERR => WcStatus::LOC_PROT_ERR,
        sys::MLX5_CQE_SYNDROME_WR_FLUSH_ERR => WcStatus::WR_FLUSH_ERR,
        sys::MLX5_CQE_SYNDROME_MW_BIND_ERR => WcStatus::MW_BIND_ERR,
        sys::MLX5_CQE_SYNDROME_BAD_RESP_ERR => WcStatus::BAD_RESP_ERR,
        sys::MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR => WcStatus::LOC_ACCESS_ERR,
        sys::MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR => WcStatus::REM_INV_REQ_ERR,
        sys::MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR => WcStatus::REM_ACCESS_ERR,
        sys::MLX5_CQE_SYNDROME_REMOTE_OP_ERR => WcStatus::REM_OP_ERR,
        sys::MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR => WcStatus::RETRY_EXC_ERR,
        sys::MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR => WcStatus::RNR_RETRY_EXC_ERR,
        sys::MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR => WcStatus::REM_ABORT_ERR,
        _ => WcStatus::GENERAL_ERR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An entry from bytes at their offsets.
    fn entry(fields: &[(usize, &[u8])]) -> Cqe {
        let mut bytes = [0u8; 64];
        for (at, field) in fields {
            bytes[*at..at + field.len()].copy_from_slice(field);
        }
        std::array::from_fn(|w| AtomicU64::new(u64::from_ne_bytes(std::array::from_fn(|i| bytes[w * 8 + i]))))
    }

    fn decoded(fields: &[(usize, &[u8])]) -> (IbvWc, Tail) {
        let cqe = entry(fields);
        let (tail, mut wc) = (Tail::read(&cqe), IbvWc { byte_len: 99, wc_flags: 7, ..IbvWc::default() });
        decode(&cqe, tail, 42, &mut wc);
        (wc, tail)
    }

    #[test]
    fn a_get_reports_its_bytes() {
        let (wc, tail) =
            decoded(&[(44, &[0, 0, 1, 2]), (56, &[0x10, 0, 0, 9]), (60, &[0xff, 0xfe]), (63, &[0x01])]);
        assert_eq!((wc.wr_id, wc.opcode, wc.byte_len, wc.qp_num), (42, WcOpcode::RDMA_READ, 258, 9));
        assert_eq!((tail.wqe_counter(), tail.side(), wc.wc_flags), (0xfffe, Some(Side::Send), 0));
        assert!(tail.is_ready(true) && !tail.is_ready(false) && !tail.is_foreign_format());
    }

    #[test]
    fn immediates_keep_their_byte_order() {
        let imm: (usize, &[u8]) = (36, &[1, 2, 3, 4]);
        let (wc, _) = decoded(&[imm, (44, &[0, 0, 0, 5]), (63, &[0x10])]);
        assert_eq!((wc.imm(), wc.opcode, wc.byte_len), (Some(0x0102_0304), WcOpcode::RECV_RDMA_WITH_IMM, 5));
        let (wc, _) = decoded(&[imm, (63, &[0x30])]);
        assert_eq!((wc.imm(), wc.opcode), (Some(0x0102_0304), WcOpcode::RECV));
        let (wc, tail) = decoded(&[imm, (63, &[0x20])]);
        assert_eq!((wc.imm(), tail.side()), (None, Some(Side::Recv)));
    }

    #[test]
    fn errors_keep_syndrome_and_vendor_detail() {
        let (wc, tail) = decoded(&[(54, &[0x88, 0x13]), (56, &[0, 0, 0, 7]), (60, &[0, 3]), (63, &[0xd1])]);
        assert_eq!((wc.status, wc.vendor_err, wc.qp_num), (WcStatus::REM_ACCESS_ERR, 0x88, 7));
        assert_eq!((tail.wqe_counter(), tail.side()), (3, Some(Side::Send)));
        let (wc, tail) = decoded(&[(55, &[5]), (63, &[0xe0])]);
        assert_eq!((wc.status, tail.side()), (WcStatus::WR_FLUSH_ERR, Some(Side::Recv)));
        assert_eq!(status(0x77), WcStatus::GENERAL_ERR);
    }

    proptest! {
        /// One comparison accepts what all the questions together accept.
        #[test]
        fn a_plain_send_is_a_ready_success_of_the_queue_pair(
            op_own in prop_oneof![Just(0u8), Just(1), Just(2), Just(3), any::<u8>()],
            qpn in 0u32..1 << 24, flip in prop_oneof![Just(0u32), 0u32..1 << 24], parity in any::<bool>(),
            noise in any::<[u8; 4]>(), mask in prop_oneof![Just(0x13u8), Just(0xff)],
        ) {
            let number = (qpn ^ flip).to_be_bytes();
            let cqe = entry(&[(56, &[noise[0] & mask]), (57, &number[1..]), (60, &noise[1..]), (63, &[op_own])]);
            let (tail, expected) = (Tail::read(&cqe), Expected::new(qpn, parity));
            let success = tail.opcode() == sys::MLX5_CQE_REQ as u8 && !tail.is_foreign_format();
            let ready = tail.is_ready(parity) && success && flip == 0;
            let seen = tail.beside(expected);
            prop_assert_eq!(seen.plain_send().is_some(), ready && tail.send_opcode() <= 16);
            prop_assert_eq!(tail.beside(Expected::nobody(parity)).plain_send(), None);
            prop_assert!(!tail.beside(Expected::nobody(parity)).is_none());
            for opcode in [8, 16, tail.send_opcode()] {
                let same = tail.beside(expected.of_opcode(opcode)).is_none();
                prop_assert_eq!(same, ready && opcode == tail.send_opcode());
            }
            prop_assert_eq!(seen.wqe_counter(), tail.wqe_counter());
            prop_assert_eq!(tail.is_of_round(expected), op_own & 1 == u8::from(parity));
            prop_assert_eq!((expected.parity(), expected.next_round()), (parity, Expected::new(qpn, !parity)));
        }

        /// Every byte the device could put in the last place is sorted into one of the kinds.
        #[test]
        fn ownership_byte_is_read_as_the_prm_says(op_own in any::<u8>(), parity in any::<bool>()) {
            let cqe = entry(&[(63, &[op_own])]);
            let tail = Tail::read(&cqe);
            prop_assert_eq!(tail.is_ready(parity), op_own >> 4 != 15 && op_own & 1 == u8::from(parity));
            prop_assert_eq!(tail.is_foreign_format(), op_own & 0xc != 0);
            prop_assert_eq!(tail.side().is_some(), matches!(op_own >> 4, 0..=4 | 13 | 14));
        }

        /// Memory as the library initialises it, and poisoned memory, is never ready.
        #[test]
        fn an_entry_never_written_is_never_ready(fill in 0xf0u8..=0xff, parity in any::<bool>()) {
            prop_assert!(!Tail::read(&entry(&[(0, &[fill; 64])])).is_ready(parity));
        }
    }
}
