//! Requests of EFA, from bytes: what a program may have written there, checked. What they do is not here.
//!
//! Layout: `struct efa_io_tx_wqe`, `struct efa_io_tx_wqe_128` and `struct efa_io_rx_desc` of rdma-core's `efa_io_defs.h`.

use crate::efa::cqe::{RequestId, Status};

/// Bytes of a request.
pub const PLAIN_REQUEST: usize = 64;
/// Bytes of a wide request, with room for more inline data.
pub const WIDE_REQUEST: usize = 128;
/// Bytes of a receive's piece.
pub const RECEIVE_PIECE: usize = 16;

/// Bytes of the part that every request has, and of a description of memory.
const HEAD: usize = 32;
const MEMORY: usize = 16;

/// `enum efa_io_send_op_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
#[allow(missing_docs, reason = "the device's own names")]
pub enum Op {
    Send = 0,
    Read = 1,
    Write = 2,
}

impl Op {
    fn from_code(code: u8) -> Option<Self> {
        [Self::Send, Self::Read, Self::Write].get(usize::from(code)).copied()
    }
}

/// A piece of memory: of a request, of a receive, or the remote one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Address as the program knows it.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local or remote key.
    pub key: u32,
}

/// Where the bytes of a request are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// In the request itself.
    Inline(Vec<u8>),
    /// In registered memory.
    Pieces(Vec<Piece>),
}

impl Payload {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Pieces(pieces) => pieces.iter().map(|p| u64::from(p.len)).sum(),
        }
    }

    /// Whether there is nothing to move.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendWqe {
    /// What its completion names.
    pub id: RequestId,
    /// What it does.
    pub op: Op,
    /// Whether a success is reported.
    pub signalled: bool,
    /// Immediate data, in the order of the machine.
    pub imm: Option<u32>,
    /// Number of the address handle.
    pub handle: u16,
    /// The peer's queue pair.
    pub qpn: u16,
    /// The peer's key.
    pub qkey: u32,
    /// The bytes, or for READ the place for them.
    pub payload: Payload,
    /// The peer's memory, for READ and WRITE.
    pub remote: Option<Piece>,
}

/// A request that can't be carried out, with what its completion needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed {
    /// What its completion names.
    pub id: RequestId,
    /// Its operation's number, whatever it is.
    pub op: u8,
    /// How it ends.
    pub status: Status,
}

/// Reads a request of 64 or 128 bytes.
pub fn decode_send(b: &[u8]) -> Result<SendWqe, Malformed> {
    let (control, more) = (b[2], b[3]);
    let id = RequestId { low: u16_at(b, 0), high: [u16_at(b, 26), u16_at(b, 28), u16_at(b, 30)] };
    let bad = |status| Malformed { id, op: control & 15, status };
    // Metadata, first and last are set in each request; extended metadata does not exist.
    if control & 0xc0 != 0x80 || more & 0x0c != 0x0c {
        return Err(bad(Status::QpInternalError));
    }
    let op = Op::from_code(control & 15).ok_or(bad(Status::UnsupportedOp))?;
    let inline = control & 1 << 5 != 0;
    let count = usize::from(u16_at(b, 6));
    let (remote, rest) = match op {
        Op::Send => (None, &b[HEAD..]),
        Op::Read | Op::Write => (Some(piece(&b[HEAD..])), &b[HEAD + MEMORY..]),
    };
    let payload = if inline {
        // Only wide requests have room for the bytes of a WRITE.
        if op == Op::Read || op == Op::Write && b.len() < WIDE_REQUEST {
            return Err(bad(Status::UnsupportedOp));
        }
        Payload::Inline(rest.get(..count).ok_or(bad(Status::BadLength))?.to_vec())
    } else {
        let most = if op == Op::Send { 2 } else { 1 };
        if count > most {
            return Err(bad(Status::BadLength));
        }
        Payload::Pieces(rest.chunks_exact(MEMORY).take(count).map(local_piece).collect())
    };
    Ok(SendWqe {
        id,
        op,
        signalled: more & 1 << 4 != 0,
        imm: (control & 1 << 4 != 0).then(|| u32_at(b, 8)),
        handle: u16_at(b, 12),
        qpn: u16_at(b, 4),
        qkey: u32_at(b, 16),
        payload,
        remote,
    })
}

/// A piece of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivePiece {
    /// What the completion names; valid in the first piece.
    pub id: u16,
    /// The memory.
    pub piece: Piece,
    /// It starts a receive.
    pub first: bool,
    /// It ends one.
    pub last: bool,
}

/// Reads a piece of a receive.
pub fn decode_receive(b: &[u8; RECEIVE_PIECE]) -> ReceivePiece {
    let control = u32_at(b, 12);
    let addr = u64::from(u32_at(b, 0)) | u64::from(u32_at(b, 4)) << 32;
    let piece = Piece { addr, len: u32::from(u16_at(b, 10)), key: control & 0xff_ffff };
    ReceivePiece { id: u16_at(b, 8), piece, first: control >> 30 & 1 == 1, last: control >> 31 == 1 }
}

fn piece(b: &[u8]) -> Piece {
    Piece {
        len: u32_at(b, 0),
        key: u32_at(b, 4),
        addr: u64::from(u32_at(b, 8)) | u64::from(u32_at(b, 12)) << 32,
    }
}

fn local_piece(b: &[u8]) -> Piece {
    let piece = piece(b);
    Piece { key: piece.key & 0xff_ffff, ..piece }
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(len: usize, op: u8, count: u16) -> Vec<u8> {
        let mut b = vec![0; len];
        b[0..2].copy_from_slice(&0x0102u16.to_le_bytes());
        (b[2], b[3]) = (0x80 | op, 0x1c);
        b[4..6].copy_from_slice(&0x0304u16.to_le_bytes());
        b[6..8].copy_from_slice(&count.to_le_bytes());
        b[12] = 7;
        b[16] = 9;
        b
    }

    #[test]
    fn a_write_names_both_memories() {
        let mut b = head(64, 2, 1);
        b[32] = 100;
        b[36..40].copy_from_slice(&0xaabb_ccddu32.to_le_bytes());
        b[44] = 1;
        b[48] = 100;
        b[52..56].copy_from_slice(&0xff00_0011u32.to_le_bytes());
        b[56] = 0x40;
        let wqe = decode_send(&b).unwrap();
        assert_eq!((wqe.id.low, wqe.qpn, wqe.handle, wqe.qkey), (0x0102, 0x0304, 7, 9));
        assert_eq!(wqe.remote, Some(Piece { addr: 1 << 32, len: 100, key: 0xaabb_ccdd }));
        assert_eq!(wqe.payload, Payload::Pieces(vec![Piece { addr: 0x40, len: 100, key: 0x11 }]));
        assert!(wqe.signalled && wqe.imm.is_none());
    }

    #[test]
    fn inline_bytes_fit_the_request() {
        for (len, op, most) in [(64, 0, 32), (128, 0, 96), (128, 2, 80)] {
            let full = decode_send(&head(len, op | 1 << 5, most)).unwrap();
            assert_eq!(full.payload.len(), u64::from(most));
            assert_eq!(decode_send(&head(len, op | 1 << 5, most + 1)).unwrap_err().status, Status::BadLength);
        }
        assert_eq!(decode_send(&head(64, 2 | 1 << 5, 8)).unwrap_err().status, Status::UnsupportedOp);
        assert_eq!(decode_send(&head(128, 1 | 1 << 5, 8)).unwrap_err().status, Status::UnsupportedOp);
    }

    #[test]
    fn what_no_library_writes_is_refused() {
        assert_eq!(decode_send(&head(64, 3, 1)).unwrap_err().status, Status::UnsupportedOp);
        assert_eq!(decode_send(&head(64, 0, 3)).unwrap_err().status, Status::BadLength);
        assert_eq!(decode_send(&[0; 64]).unwrap_err().status, Status::QpInternalError);
    }

    #[test]
    fn a_receive_has_its_key_and_marks() {
        let mut b = [0; 16];
        (b[0], b[4], b[8], b[10]) = (1, 2, 3, 4);
        b[12..16].copy_from_slice(&0xc0ab_cdefu32.to_le_bytes());
        let r = decode_receive(&b);
        assert_eq!(r.piece, Piece { addr: 0x2_0000_0001, len: 4, key: 0xab_cdef });
        assert_eq!((r.id, r.first, r.last), (3, true, true));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(b in proptest::collection::vec(any::<u8>(), 128), wide: bool) {
            let _ = decode_send(&b[..if wide { 128 } else { 64 }]);
            let _ = decode_receive(b.first_chunk().unwrap());
        }
    }
}
