//! Completion entries of EFA, as bytes. Where they are put is not here.
//!
//! Layout: `struct efa_io_tx_cdesc` and `struct efa_io_rx_cdesc_ex` of rdma-core's `efa_io_defs.h`.

use ibv_core::WcStatus;

/// Bytes of an entry without the parts that came later.
pub const PLAIN_ENTRY: usize = 16;
/// Bytes of an entry with them.
pub const LONG_ENTRY: usize = 32;
/// An address-handle number that says that none is known.
pub const NO_HANDLE: u16 = 0xffff;

/// `enum efa_io_comp_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
#[allow(missing_docs, reason = "the device's own names")]
pub enum Status {
    Ok = 0,
    Flushed = 1,
    QpInternalError = 2,
    UnsupportedOp = 3,
    InvalidAh = 4,
    InvalidLkey = 5,
    BadLength = 6,
    RemoteBadAddress = 7,
    RemoteAbort = 8,
    RemoteBadDestQpn = 9,
    RemoteNotReady = 10,
    RemoteBadLength = 11,
    RemoteBadStatus = 12,
    UnresponsiveRemote = 13,
    RemoteUnknownPeer = 14,
    UnreachableRemote = 15,
}

impl Status {
    /// What libefa makes of it, for the trace.
    pub fn verbs(self) -> WcStatus {
        match self {
            Self::Ok => WcStatus::SUCCESS,
            Self::Flushed => WcStatus::WR_FLUSH_ERR,
            Self::QpInternalError | Self::UnsupportedOp | Self::InvalidAh => WcStatus::LOC_QP_OP_ERR,
            Self::InvalidLkey => WcStatus::LOC_PROT_ERR,
            Self::BadLength => WcStatus::LOC_LEN_ERR,
            Self::RemoteBadAddress => WcStatus::REM_ACCESS_ERR,
            Self::RemoteAbort => WcStatus::REM_ABORT_ERR,
            Self::RemoteBadDestQpn => WcStatus::REM_INV_RD_REQ_ERR,
            Self::RemoteNotReady => WcStatus::RNR_RETRY_EXC_ERR,
            Self::RemoteBadLength => WcStatus::REM_INV_REQ_ERR,
            Self::RemoteBadStatus => WcStatus::BAD_RESP_ERR,
            Self::UnresponsiveRemote | Self::UnreachableRemote => WcStatus::RESP_TIMEOUT_ERR,
            Self::RemoteUnknownPeer => WcStatus::REM_OP_ERR,
        }
    }
}

impl Status {
    /// Its name in the trace.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Flushed => "flushed",
            Self::QpInternalError => "qp_internal_error",
            Self::UnsupportedOp => "unsupported_op",
            Self::InvalidAh => "invalid_ah",
            Self::InvalidLkey => "invalid_lkey",
            Self::BadLength => "bad_length",
            Self::RemoteBadAddress => "bad_address",
            Self::RemoteAbort => "abort",
            Self::RemoteBadDestQpn => "bad_dest_qpn",
            Self::RemoteNotReady => "receiver_not_ready",
            Self::RemoteBadLength => "remote_bad_length",
            Self::RemoteBadStatus => "bad_status",
            Self::UnresponsiveRemote => "unresponsive_remote",
            Self::RemoteUnknownPeer => "unknown_peer",
            Self::UnreachableRemote => "unreachable_remote",
        }
    }
}

/// What a request carries to be known again: the 16 bits that every library uses, and the rest of a whole 64-bit id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RequestId {
    /// The number that the library gave it, or the lowest bits of the program's id.
    pub low: u16,
    /// The other bits of the program's id, if the library uses them.
    pub high: [u16; 3],
}

/// Which queue an entry is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// A request of the send queue.
    Send,
    /// A message that arrived.
    Receive(Received),
}

/// What an entry says of a message that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Received {
    /// Bytes.
    pub len: u32,
    /// Immediate data, in the order of the machine.
    pub imm: Option<u32>,
    /// The sender's address handle at this device, or [`NO_HANDLE`].
    pub handle: u16,
    /// The sender's queue pair.
    pub source_qpn: u16,
    /// The sender's GID.
    pub source_gid: [u8; 16],
    /// It took no receive.
    pub unsolicited: bool,
}

/// A completion before it has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cqe {
    /// The queue pair's number.
    pub qpn: u16,
    /// The request.
    pub id: RequestId,
    /// The operation's number (`enum efa_io_send_op_type`).
    pub op: u8,
    /// How it ended.
    pub status: Status,
    /// Which queue.
    pub side: Side,
}

impl Cqe {
    /// The bytes, with `phase`; a plain entry is the front of a long one.
    pub fn encode(&self, phase: bool) -> [u8; LONG_ENTRY] {
        let mut b = [0; LONG_ENTRY];
        b[0..2].copy_from_slice(&self.id.low.to_le_bytes());
        b[2] = self.status as u8;
        b[3] = u8::from(phase) | (self.op & 7) << 4;
        b[4..6].copy_from_slice(&self.qpn.to_le_bytes());
        match &self.side {
            Side::Send => {
                // `EFA_IO_SEND_QUEUE`.
                b[3] |= 1 << 1;
                for (chunk, word) in b[6..12].chunks_exact_mut(2).zip(self.id.high) {
                    chunk.copy_from_slice(&word.to_le_bytes());
                }
            }
            Side::Receive(received) => self.encode_received(received, &mut b),
        }
        b
    }

    fn encode_received(&self, r: &Received, b: &mut [u8; LONG_ENTRY]) {
        // `EFA_IO_RECV_QUEUE`.
        b[3] |= 2 << 1 | u8::from(r.imm.is_some()) << 3 | u8::from(r.unsolicited) << 7;
        let len = r.len.to_le_bytes();
        b[6..8].copy_from_slice(&len[..2]);
        b[8..10].copy_from_slice(&r.handle.to_le_bytes());
        b[10..12].copy_from_slice(&r.source_qpn.to_le_bytes());
        b[12..16].copy_from_slice(&r.imm.unwrap_or(0).to_le_bytes());
        // One place for two facts: the length's upper half, or the sender's address.
        if self.op == crate::efa::wqe::Op::Write as u8 {
            b[16..18].copy_from_slice(&len[2..]);
        } else if r.handle == NO_HANDLE {
            b[16..32].copy_from_slice(&r.source_gid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cqe(op: u8, side: Side) -> Cqe {
        let id = RequestId { low: 0x0201, high: [0x0403, 0x0605, 0x0807] };
        Cqe { qpn: 0x0a09, id, op, status: Status::RemoteAbort, side }
    }

    #[test]
    fn a_request_carries_its_whole_id_back() {
        let b = cqe(1, Side::Send).encode(true);
        assert_eq!(b[..12], [1, 2, 8, 1 | 1 << 1 | 1 << 4, 9, 10, 3, 4, 5, 6, 7, 8]);
        assert_eq!(cqe(1, Side::Send).encode(false)[3] & 1, 0);
    }

    #[test]
    fn a_message_has_its_length_sender_and_immediate() {
        let received = Received {
            len: 0x0003_0201,
            imm: Some(0x1122_3344),
            handle: 7,
            source_qpn: 8,
            source_gid: [9; 16],
            unsolicited: true,
        };
        let b = cqe(2, Side::Receive(received)).encode(true);
        assert_eq!(b[3], 1 | 2 << 1 | 1 << 3 | 2 << 4 | 1 << 7);
        assert_eq!(b[6..16], [1, 2, 7, 0, 8, 0, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(b[16..18], [3, 0]);
    }

    #[test]
    fn an_unknown_sender_is_named_by_its_address() {
        let received = Received { handle: NO_HANDLE, source_gid: [9; 16], ..Received::default() };
        assert_eq!(cqe(0, Side::Receive(received)).encode(true)[16..], [9; 16]);
        let known = Received { handle: 1, ..received };
        assert_eq!(cqe(0, Side::Receive(known)).encode(true)[16..], [0; 16]);
    }
}
