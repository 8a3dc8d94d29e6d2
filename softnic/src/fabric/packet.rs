//! What queue pairs say to each other. Messages, not wire packets: a message of many packets is one request whose sequence
//! numbers advance by that many. Who carries it is not here.

use serde::{Deserialize, Serialize};

use crate::efa::message::{Message, Outcome, Reply as EfaReply};
use crate::rules::{Nak, Psn};

/// A port's address: a local identifier, a global one, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Address {
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Global identifier, where a global route is used.
    pub gid: Option<[u8; 16]>,
}

/// A message between two queue pairs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// Sender's port.
    pub from: Address,
    /// Target's port.
    pub to: Address,
    /// Sender's queue pair.
    pub source: u32,
    /// Target's queue pair.
    pub target: u32,
    /// What it says.
    pub body: Body,
}

/// A request or its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Requester to responder.
    Request(Request),
    /// Responder (or the fabric in its stead) to requester.
    Reply(Reply),
    /// A request of an unreliable connection: nobody answers, and nobody is told if it is lost.
    OneWay(Request),
    /// A message of an unreliable datagram queue pair; as silent.
    Datagram(Datagram),
    /// Between EFA devices.
    Efa(Message),
}

/// A datagram.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagram {
    /// The key that the target's queue pair must have.
    pub qkey: u32,
    /// Immediate data.
    pub imm: Option<[u8; 4]>,
    /// Whether the receiver's completion is solicited.
    pub solicited: bool,
    /// Service level.
    pub sl: u8,
    /// How it was routed, if it came with a global route.
    pub route: Option<Route>,
    /// Payload. Travels behind the encoded head.
    #[serde(skip)]
    pub data: Vec<u8>,
}

/// The fields of a global route header beyond the addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Route {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Whether it travels in UDP (RoCE version 2).
    pub udp: bool,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Number of its first packet.
    pub psn: Psn,
    /// How many packets it (or its READ response) takes.
    pub packets: u32,
    /// What to do.
    pub operation: Operation,
    /// Whether the receiver's completion is solicited.
    pub solicited: bool,
    /// Payload of SEND and WRITE. Travels behind the encoded head, so that long messages cost one copy.
    #[serde(skip)]
    pub data: Vec<u8>,
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// SEND, with immediate data or without.
    Send {
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// SEND that takes back a memory window of the receiver.
    SendInvalidate {
        /// The window's key.
        rkey: u32,
    },
    /// RDMA WRITE.
    Write {
        /// Target address.
        addr: u64,
        /// Target key.
        rkey: u32,
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ.
    Read {
        /// Source address.
        addr: u64,
        /// Source key.
        rkey: u32,
        /// Length in bytes.
        len: u32,
    },
    /// An atomic on 8 bytes.
    Atomic {
        /// Address.
        addr: u64,
        /// Key.
        rkey: u32,
        /// What it computes.
        function: Function,
    },
}

/// What an atomic computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Function {
    /// Adds, wrapping.
    Add(u64),
    /// Swaps in the second if the memory holds the first.
    CompareSwap(u64, u64),
}

impl Function {
    /// The new value for an old one.
    pub fn apply(self, old: u64) -> u64 {
        match self {
            Self::Add(n) => old.wrapping_add(n),
            Self::CompareSwap(compare, swap) if old == compare => swap,
            Self::CompareSwap(..) => old,
        }
    }
}

/// An answer. `psn` is the first number of the request it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// This request, and all before it, arrived.
    Ack {
        /// Of the request.
        psn: Psn,
    },
    /// Data of a READ, or the old value of an atomic.
    Data {
        /// Of the request.
        psn: Psn,
        /// The bytes. They travel behind the encoded head.
        #[serde(skip)]
        data: Vec<u8>,
    },
    /// Refused. All before it arrived.
    Nak {
        /// Of the request (for [`Nak::Sequence`], the expected number).
        psn: Psn,
        /// Why.
        nak: Nak,
    },
    /// The fabric knows that no answer can come. Stands for silence: the requester's timer starts.
    Silence {
        /// Of the request.
        psn: Psn,
    },
}

impl Reply {
    /// The number of the request that it answers.
    pub fn psn(&self) -> Psn {
        match self {
            Self::Ack { psn } | Self::Data { psn, .. } | Self::Nak { psn, .. } | Self::Silence { psn } => {
                *psn
            }
        }
    }
}

impl Packet {
    /// The answer `reply`, on the way back.
    pub fn answer(&self, reply: Reply) -> Self {
        Self {
            from: self.to,
            to: self.from,
            source: self.target,
            target: self.source,
            body: Body::Reply(reply),
        }
    }

    /// What its requester is told if it is lost; for a lost reply, that is a packet to the same target. Nobody is told of
    /// unreliable ones.
    pub fn lost(&self) -> Option<Self> {
        match &self.body {
            Body::Request(request) => Some(self.answer(Reply::Silence { psn: request.psn })),
            Body::Reply(reply) => {
                Some(Self { body: Body::Reply(Reply::Silence { psn: reply.psn() }), ..self.clone_head() })
            }
            Body::Efa(message) => {
                let silence = Message::Reply(EfaReply::new(message.token(), Outcome::Silence));
                let to_requester = match message {
                    Message::Request(request) if !request.reliable => return None,
                    Message::Request(_) => self.answer(Reply::Silence { psn: Psn::new(0) }),
                    Message::Reply(_) => self.clone_head(),
                };
                Some(Self { body: Body::Efa(silence), ..to_requester })
            }
            Body::OneWay(_) | Body::Datagram(_) => None,
        }
    }

    /// Whether it asks for something, rather than answering.
    pub fn is_request(&self) -> bool {
        !matches!(self.body, Body::Reply(_) | Body::Efa(Message::Reply(_)))
    }

    /// Whether its sender waits for an answer.
    pub fn wants_answer(&self) -> bool {
        match &self.body {
            Body::Request(_) => true,
            Body::Efa(message) => message.wants_answer(),
            Body::Reply(_) | Body::OneWay(_) | Body::Datagram(_) => false,
        }
    }

    fn clone_head(&self) -> Self {
        let body = Body::Reply(Reply::Silence { psn: Psn::new(0) });
        Self { from: self.from, to: self.to, source: self.source, target: self.target, body }
    }

    /// Bytes for another process: the head, and behind it the payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = postcard::to_stdvec(self)
            .expect("a head of plain integers and small arrays always has an encoding");
        bytes.extend_from_slice(self.payload());
        bytes
    }

    /// Reads what [`Packet::encode`] wrote; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut packet, payload): (Self, &[u8]) = postcard::take_from_bytes(bytes).ok()?;
        match &mut packet.body {
            Body::Request(Request { data, .. })
            | Body::OneWay(Request { data, .. })
            | Body::Datagram(Datagram { data, .. })
            | Body::Reply(Reply::Data { data, .. }) => *data = payload.to_vec(),
            Body::Efa(message) => message.set_data(payload),
            Body::Reply(_) if payload.is_empty() => {}
            Body::Reply(_) => return None,
        }
        Some(packet)
    }

    fn payload(&self) -> &[u8] {
        match &self.body {
            Body::Request(Request { data, .. })
            | Body::OneWay(Request { data, .. })
            | Body::Datagram(Datagram { data, .. })
            | Body::Reply(Reply::Data { data, .. }) => data,
            Body::Efa(message) => message.data(),
            Body::Reply(_) => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(data: Vec<u8>) -> Packet {
        let operation = Operation::Write { addr: 0x1000, rkey: 7, imm: Some([1, 2, 3, 4]) };
        let request = Request { psn: Psn::new(5), packets: 1, operation, solicited: true, data };
        let from = Address { lid: 1, gid: None };
        let to = Address { lid: 0, gid: Some([9; 16]) };
        Packet { from, to, source: 0x100, target: 0x10200, body: Body::Request(request) }
    }

    #[test]
    fn a_lost_packet_silences_its_requester_either_way() {
        let request = write(vec![]);
        let silence = request.lost().unwrap();
        assert_eq!(
            (silence.target, &silence.body),
            (0x100, &Body::Reply(Reply::Silence { psn: Psn::new(5) }))
        );
        let reply = request.answer(Reply::Ack { psn: Psn::new(5) });
        assert_eq!(reply.lost(), Some(silence));
    }

    #[test]
    fn a_lost_unreliable_packet_silences_nobody() {
        let Packet { body: Body::Request(request), .. } = write(vec![1]) else { unreachable!() };
        let one_way = Packet { body: Body::OneWay(request), ..write(vec![]) };
        assert_eq!(one_way.lost(), None);
        assert_eq!(Packet::decode(&one_way.encode()), Some(one_way));
    }

    #[test]
    fn atomics_compute() {
        assert_eq!(Function::Add(2).apply(u64::MAX), 1);
        assert_eq!(Function::CompareSwap(3, 9).apply(3), 9);
        assert_eq!(Function::CompareSwap(3, 9).apply(4), 4);
    }

    proptest! {
        #[test]
        fn bytes_carry_a_packet_there_and_back(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            let packet = write(data);
            prop_assert_eq!(Packet::decode(&packet.encode()), Some(packet));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Packet::decode(&bytes);
        }
    }
}
