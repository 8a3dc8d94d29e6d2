//! What EFA devices say to each other: a request with its bytes, and its answer. Unlike a connection's, requests have no
//! sequence: each stands for itself. Who carries them is not here.

use serde::{Deserialize, Serialize};

use crate::efa::cqe::Status;
use crate::fabric::packet::{Address, Body, Packet};

/// Marks the numbers of EFA queue pairs on the fabric, which they share with connections.
const MARK: u32 = 1 << 24;
/// An EFA number has 16 bits: these, which say which queue pair of the process, and above them the process's slot.
const INDEX_BITS: u32 = 10;
/// Queue-pair numbers that a process can give.
pub const INDICES: u16 = 1 << INDEX_BITS;

/// The fabric's number of an EFA queue pair.
pub fn fabric_number(qpn: u16) -> u32 {
    let (slot, index) = (u32::from(qpn) >> INDEX_BITS, u32::from(qpn % INDICES));
    MARK | slot << crate::fabric::INDEX_BITS | index
}

/// The EFA number of a queue pair on the fabric; `None` for a connection's.
pub fn qpn(number: u32) -> Option<u16> {
    let slot = number >> crate::fabric::INDEX_BITS & 0xff;
    (number & MARK != 0).then(|| (slot << INDEX_BITS) as u16 | (number % u32::from(INDICES)) as u16)
}

/// The first queue-pair number of a process; `None` if its slot is beyond those that 16 bits can tell apart.
pub fn base(slot: u32) -> Option<u16> {
    (slot < 1 << (16 - INDEX_BITS)).then_some((slot << INDEX_BITS) as u16)
}

/// A request or an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// To a responder.
    Request(Request),
    /// Back from it.
    Reply(Reply),
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// What its answer names; never used again by any process of the session.
    pub token: u64,
    /// The key that the target queue pair must have.
    pub qkey: u32,
    /// Whether an answer is waited for. A datagram is sent and forgotten.
    pub reliable: bool,
    /// What to do.
    pub operation: Operation,
    /// Immediate data, in the order of the machine.
    pub imm: Option<u32>,
    /// Bytes of SEND and WRITE. They travel behind the encoded head.
    #[serde(skip)]
    pub data: Vec<u8>,
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Fills a receive.
    Send,
    /// Writes memory.
    Write {
        /// Address.
        addr: u64,
        /// Key.
        rkey: u32,
    },
    /// Reads memory.
    Read {
        /// Address.
        addr: u64,
        /// Key.
        rkey: u32,
        /// Length in bytes.
        len: u32,
    },
}

/// A request as its responder keeps it: who asks for what, without the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Sender's port.
    pub from: Address,
    /// Target's port.
    pub to: Address,
    /// Sender's queue pair, as the fabric counts.
    pub source: u32,
    /// Target's queue pair, as the fabric counts.
    pub target: u32,
    /// What its answer names.
    pub token: u64,
    /// The key that the target queue pair must have.
    pub qkey: u32,
    /// Whether an answer is waited for.
    pub reliable: bool,
    /// What to do.
    pub operation: Operation,
    /// Immediate data, in the order of the machine.
    pub imm: Option<u32>,
    /// Bytes of SEND and WRITE.
    pub len: u32,
}

impl Asked {
    /// Takes a request apart from its bytes.
    pub fn of(packet: &Packet, request: &Request) -> Self {
        Self {
            from: packet.from,
            to: packet.to,
            source: packet.source,
            target: packet.target,
            token: request.token,
            qkey: request.qkey,
            reliable: request.reliable,
            operation: request.operation,
            imm: request.imm,
            len: request.data.len() as u32,
        }
    }

    /// The answer, on its way back.
    pub fn answer(&self, reply: Reply) -> Packet {
        Packet {
            from: self.to,
            to: self.from,
            source: self.target,
            target: self.source,
            body: Body::Efa(Message::Reply(reply)),
        }
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Of the request.
    pub token: u64,
    /// What came of it.
    pub outcome: Outcome,
    /// Bytes of a READ. They travel behind the encoded head.
    #[serde(skip)]
    pub data: Vec<u8>,
}

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Done.
    Done,
    /// Not done, for this reason.
    Refused(Status),
    /// No receive was there; try again.
    NotReady,
    /// The fabric knows that no answer can come.
    Silence,
}

impl Message {
    /// The bytes that travel behind the head.
    pub fn data(&self) -> &[u8] {
        match self {
            Self::Request(request) => &request.data,
            Self::Reply(reply) => &reply.data,
        }
    }

    /// Puts the bytes back behind the head.
    pub fn set_data(&mut self, bytes: &[u8]) {
        match self {
            Self::Request(request) => request.data = bytes.to_vec(),
            Self::Reply(reply) => reply.data = bytes.to_vec(),
        }
    }

    /// The token of either.
    pub fn token(&self) -> u64 {
        match self {
            Self::Request(request) => request.token,
            Self::Reply(reply) => reply.token,
        }
    }

    /// Whether somebody waits for an answer.
    pub fn wants_answer(&self) -> bool {
        matches!(self, Self::Request(request) if request.reliable)
    }
}

impl Reply {
    /// An answer without bytes.
    pub fn new(token: u64, outcome: Outcome) -> Self {
        Self { token, outcome, data: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_to_the_fabric_and_back() {
        for slot in [0, 1, 63] {
            let first = base(slot).unwrap();
            for number in [first, first + 1, first + (INDICES - 1)] {
                let fabric = fabric_number(number);
                assert_eq!(qpn(fabric), Some(number));
                assert_eq!(fabric >> crate::fabric::INDEX_BITS & 0xff, slot);
            }
        }
        assert_eq!((base(64), qpn(0x1_0100)), (None, None));
    }
}
