//! A message between EFA devices as the trace shows it.

use super::PacketView;
use crate::efa::message::{Message, Operation, Outcome};

/// Fills in what the message has.
pub(super) fn view(bare: PacketView, message: &Message) -> PacketView {
    let bare = PacketView { len: message.data().len(), ..bare };
    match message {
        Message::Request(request) => {
            let view = PacketView { imm: request.imm, ..bare };
            match request.operation {
                Operation::Send if !request.reliable => PacketView { what: "datagram", ..view },
                Operation::Send => PacketView { what: "send", ..view },
                Operation::Write { addr, rkey } => {
                    PacketView { what: "write", addr: Some(addr), rkey: Some(rkey), ..view }
                }
                Operation::Read { addr, rkey, len } => {
                    let len = len as usize;
                    PacketView { what: "read", len, addr: Some(addr), rkey: Some(rkey), ..view }
                }
            }
        }
        Message::Reply(reply) => match reply.outcome {
            Outcome::Done if reply.data.is_empty() => PacketView { what: "ack", ..bare },
            Outcome::Done => PacketView { what: "data", ..bare },
            Outcome::Refused(status) => PacketView { what: "nak", nak: Some(status.name()), ..bare },
            Outcome::NotReady => PacketView { what: "nak", nak: Some("receiver_not_ready"), ..bare },
            Outcome::Silence => PacketView { what: "silence", ..bare },
        },
    }
}
