//! Completion entries of mlx5, as bytes. Where they are put is not here.
//!
//! Layout: `struct mlx5_cqe64` and `struct mlx5_err_cqe` of rdma-core's `mlx5dv.h`.

use ibv_core::WcStatus;

use crate::mlx5::scatter::Scattered;
use crate::mlx5::wqe::Opcode;

/// What a completion tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A send request succeeded.
    Request {
        /// Its opcode.
        opcode: u8,
        /// Bytes moved.
        len: u32,
    },
    /// A message arrived.
    Response {
        /// The sender's operation.
        opcode: Opcode,
        /// Bytes received.
        len: u32,
        /// Immediate data as on the wire.
        imm: [u8; 4],
        /// The sender's queue pair.
        source: Source,
        /// Whether the sender asked for an event.
        solicited: bool,
    },
    /// A request failed.
    Error {
        /// Which queue: send or receive.
        side: Side,
        /// Its opcode number (send queue).
        opcode: u8,
        /// What happened.
        status: WcStatus,
    },
}

/// Who sent a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Source {
    /// Queue-pair number.
    pub qpn: u32,
    /// Local identifier.
    pub lid: u16,
    /// Service level.
    pub sl: u8,
    /// Whether a global route header came along.
    pub global: bool,
}

/// A queue of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Send queue.
    Send,
    /// Receive queue.
    Receive,
}

/// A completion before it has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cqe {
    /// The queue pair's number.
    pub qpn: u32,
    /// The program's index of the queue pair (CQE version 1).
    pub uidx: u32,
    /// The request's counter: first basic block (send), or slot (receive).
    pub counter: u16,
    /// What it tells.
    pub kind: Kind,
    /// The message itself, if it travels in the entry.
    pub scattered: Option<Scattered>,
}

impl Cqe {
    /// Whether an event armed for solicited completions fires.
    pub fn is_solicited(&self) -> bool {
        match self.kind {
            Kind::Request { .. } => false,
            Kind::Response { solicited, .. } => solicited,
            Kind::Error { .. } => true,
        }
    }

    /// The 64 bytes, with `owner` as the ownership bit and `timestamp` in nanoseconds.
    pub fn encode(&self, owner: bool, timestamp: u64) -> [u8; 64] {
        let mut b = [0; 64];
        b[32..36].copy_from_slice(&self.uidx.to_be_bytes());
        b[60..62].copy_from_slice(&self.counter.to_be_bytes());
        let mut high = 0;
        match self.kind {
            Kind::Request { opcode, len } => {
                high = opcode;
                b[44..48].copy_from_slice(&len.to_be_bytes());
            }
            Kind::Response { len, imm, source, .. } => encode_response(&mut b, len, imm, source),
            Kind::Error { opcode, status, .. } => {
                high = opcode;
                (b[54], b[55]) = (vendor_error(status), syndrome(status));
            }
        }
        if !matches!(self.kind, Kind::Error { .. }) {
            b[48..56].copy_from_slice(&timestamp.to_be_bytes());
        }
        b[56..60].copy_from_slice(&(u32::from(high) << 24 | self.qpn & 0xff_ffff).to_be_bytes());
        b[63] = self.code() << 4 | u8::from(self.solicited_bit()) << 1 | u8::from(owner);
        b
    }

    fn solicited_bit(&self) -> bool {
        matches!(self.kind, Kind::Response { solicited: true, .. })
    }

    fn code(&self) -> u8 {
        match self.kind {
            Kind::Request { .. } => 0,
            Kind::Response { opcode: Opcode::WriteImm, .. } => 1,
            Kind::Response { opcode: Opcode::SendImm, .. } => 3,
            Kind::Response { opcode: Opcode::SendInvalidate, .. } => 4,
            Kind::Response { .. } => 2,
            Kind::Error { side: Side::Send, .. } => 13,
            Kind::Error { side: Side::Receive, .. } => 14,
        }
    }
}

fn encode_response(b: &mut [u8; 64], len: u32, imm: [u8; 4], source: Source) {
    let route = u32::from(source.global) << 28 | u32::from(source.sl & 0xf) << 24 | source.qpn & 0xff_ffff;
    b[22..24].copy_from_slice(&source.lid.to_be_bytes());
    b[24..28].copy_from_slice(&route.to_be_bytes());
    b[36..40].copy_from_slice(&imm);
    b[44..48].copy_from_slice(&len.to_be_bytes());
}

/// `MLX5_CQE_SYNDROME_*`.
pub fn syndrome(status: WcStatus) -> u8 {
    match status {
        WcStatus::SUCCESS => 0,
        WcStatus::LOC_LEN_ERR => 0x01,
        WcStatus::LOC_QP_OP_ERR => 0x02,
        WcStatus::LOC_PROT_ERR => 0x04,
        WcStatus::WR_FLUSH_ERR => 0x05,
        WcStatus::MW_BIND_ERR => 0x06,
        WcStatus::REM_INV_REQ_ERR => 0x12,
        WcStatus::REM_ACCESS_ERR => 0x13,
        WcStatus::REM_OP_ERR => 0x14,
        WcStatus::RETRY_EXC_ERR => 0x15,
        WcStatus::RNR_RETRY_EXC_ERR => 0x16,
        // Remote aborted; the rule-book has no other.
        _ => 0x22,
    }
}

/// The vendor's own code beside the syndrome. Assumed: the values seen most often in public logs of ConnectX devices.
pub fn vendor_error(status: WcStatus) -> u8 {
    match status {
        WcStatus::SUCCESS => 0,
        WcStatus::LOC_LEN_ERR => 0xd6,
        WcStatus::LOC_QP_OP_ERR => 0x68,
        WcStatus::LOC_PROT_ERR => 0x51,
        WcStatus::WR_FLUSH_ERR => 0xf9,
        WcStatus::REM_INV_REQ_ERR => 0x8a,
        WcStatus::REM_ACCESS_ERR => 0x88,
        WcStatus::REM_OP_ERR => 0x89,
        WcStatus::RETRY_EXC_ERR => 0x81,
        WcStatus::RNR_RETRY_EXC_ERR => 0x87,
        _ => 0xff,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cqe(kind: Kind) -> Cqe {
        Cqe { qpn: 0xabcdef, uidx: 0x11, counter: 0x0203, kind, scattered: None }
    }

    #[test]
    fn a_success_names_opcode_queue_pair_and_counter() {
        let b = cqe(Kind::Request { opcode: 0x10, len: 0x1234 }).encode(true, 0);
        assert_eq!(b[56..60], [0x10, 0xab, 0xcd, 0xef]);
        assert_eq!(b[60..62], [2, 3]);
        assert_eq!(b[32..36], [0, 0, 0, 0x11]);
        assert_eq!(b[44..48], [0, 0, 0x12, 0x34]);
        assert_eq!(b[63], 1);
    }

    #[test]
    fn an_error_has_its_syndrome_where_libmlx5_looks() {
        let kind = Kind::Error { side: Side::Receive, opcode: 0, status: WcStatus::LOC_LEN_ERR };
        let b = cqe(kind).encode(false, 9);
        assert_eq!((b[55], b[54], b[63]), (1, 0xd6, 14 << 4));
        assert_eq!(b[48..54], [0; 6], "no timestamp in an error entry");
    }

    #[test]
    fn each_arrival_has_its_code_and_immediate() {
        for (opcode, code) in [(Opcode::WriteImm, 1), (Opcode::Send, 2), (Opcode::SendImm, 3)] {
            let source = Source { qpn: 0x42, lid: 0x0506, sl: 3, global: true };
            let kind = Kind::Response { opcode, len: 8, imm: [9, 8, 7, 6], source, solicited: true };
            let b = cqe(kind).encode(false, 0);
            assert_eq!(b[63], code << 4 | 2);
            assert_eq!(b[36..40], [9, 8, 7, 6]);
            assert_eq!(b[24..28], [0x13, 0, 0, 0x42]);
            assert_eq!(b[22..24], [5, 6]);
        }
    }
}
