//! A packet as the trace shows it: flat, with what people and tools ask for. The payload is told by its length alone.

use serde::Serialize;

mod efa;

use super::Action;
use crate::fabric::packet::{Body, Function, Operation, Packet, Reply, Request};
use crate::rules::Nak;

/// What became of which packet. Fields that a packet does not have are left out of the line.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[allow(missing_docs, reason = "the names of the README's schema, and the specification's own")]
pub struct PacketView {
    pub action: Action,
    /// Queue pair that it comes from, and the one that it goes to.
    pub source: u32,
    pub target: u32,
    /// `send`, `write`, `read`, `fetch_add`, `compare_swap`; `datagram`; `ack`, `data`,
    /// `nak`, `silence`.
    pub what: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psn: Option<u32>,
    /// Sequence numbers that it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<u32>,
    /// Bytes of the payload, or of what a READ asks for.
    pub len: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addr: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rkey: Option<u32>,
    /// Immediate data: the four bytes as a big-endian number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imm: Option<u32>,
    /// Why a request was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nak: Option<&'static str>,
}

impl PacketView {
    /// Looks at a packet.
    pub fn new(action: Action, packet: &Packet) -> Self {
        let view = Self::bare(action, packet);
        match &packet.body {
            Body::Request(request) | Body::OneWay(request) => view.request(request),
            Body::Reply(reply) => view.reply(reply),
            Body::Datagram(datagram) => {
                let imm = datagram.imm.map(u32::from_be_bytes);
                Self { what: "datagram", len: datagram.data.len(), imm, ..view }
            }
            Body::Efa(message) => efa::view(view, message),
        }
    }

    fn bare(action: Action, packet: &Packet) -> Self {
        let (source, target) = (packet.source, packet.target);
        Self {
            action,
            source,
            target,
            what: "",
            psn: None,
            packets: None,
            len: 0,
            addr: None,
            rkey: None,
            imm: None,
            nak: None,
        }
    }

    fn request(self, request: &Request) -> Self {
        let imm = |imm: Option<[u8; 4]>| imm.map(u32::from_be_bytes);
        let view = Self {
            psn: Some(request.psn.get()),
            packets: Some(request.packets),
            len: request.data.len(),
            ..self
        };
        let remote = |what, addr, rkey| Self { what, addr: Some(addr), rkey: Some(rkey), ..view.clone() };
        match request.operation {
            Operation::Send { imm: data } => Self { what: "send", imm: imm(data), ..view },
            Operation::SendInvalidate { rkey } => Self { what: "send_invalidate", rkey: Some(rkey), ..view },
            Operation::Write { addr, rkey, imm: data } => {
                Self { imm: imm(data), ..remote("write", addr, rkey) }
            }
            Operation::Read { addr, rkey, len } => Self { len: len as usize, ..remote("read", addr, rkey) },
            Operation::Atomic { addr, rkey, function: Function::Add(_) } => remote("fetch_add", addr, rkey),
            Operation::Atomic { addr, rkey, .. } => remote("compare_swap", addr, rkey),
        }
    }

    fn reply(self, reply: &Reply) -> Self {
        let view = Self { psn: Some(reply.psn().get()), ..self };
        match reply {
            Reply::Ack { .. } => Self { what: "ack", ..view },
            Reply::Data { data, .. } => Self { what: "data", len: data.len(), ..view },
            Reply::Nak { nak, .. } => Self { what: "nak", nak: Some(nak_name(*nak)), ..view },
            Reply::Silence { .. } => Self { what: "silence", ..view },
        }
    }
}

fn nak_name(nak: Nak) -> &'static str {
    match nak {
        Nak::ReceiverNotReady(_) => "receiver_not_ready",
        Nak::Sequence => "sequence",
        Nak::InvalidRequest => "invalid_request",
        Nak::RemoteAccess => "remote_access",
        Nak::RemoteOperation => "remote_operation",
    }
}
