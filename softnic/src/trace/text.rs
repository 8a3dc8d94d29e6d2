//! An event as a line for people, in the manner of packet dumps: time, process, who, what. Not for tools.

use std::fmt::Write;

use super::{Action, Event, PacketView, Queue, hex_text};

/// The line, without its end.
pub(super) fn line(t: u64, slot: u32, event: &Event) -> String {
    let mut line = format!("{:>6}.{:06} {slot} ", t / 1_000_000_000, t / 1000 % 1_000_000);
    // A string takes everything.
    let _ = match event {
        Event::Doorbell { qpn, record } => write!(line, "{qpn:06x} doorbell, record {record}"),
        Event::Rung { queue, number, times } => {
            write!(line, "{number:06x} {} doorbell written {times} times", queue_text(*queue))
        }
        Event::Wqe { device, qpn, queue, index, bytes } => {
            let (queue, bytes) = (queue_text(*queue), hex_text(bytes));
            write!(line, "{qpn:06x} {queue} wqe {index} {device:?}: {bytes}")
        }
        Event::Sent { qpn, index, psn } => write!(line, "{qpn:06x} sends request {index}, psn {psn}"),
        Event::Packet(packet) => write!(line, "{}", packet_text(packet)),
        Event::Completed { device, cqn, qpn, counter, status, bytes } => {
            write!(line, "{qpn:06x} cqe in {cqn}: {counter} {status:?} {device:?}: {}", hex_text(bytes))
        }
        Event::State { qpn, state } => write!(line, "{qpn:06x} enters {state:?}"),
        Event::Timer { qpn } => write!(line, "{qpn:06x} timer ran out"),
    };
    line
}

fn queue_text(queue: Queue) -> String {
    format!("{queue:?}").to_lowercase()
}

fn packet_text(packet: &PacketView) -> String {
    let arrow = match packet.action {
        Action::Sent => ">",
        Action::Delayed => "~>",
        Action::Lost => "X",
        Action::Delivered => ">>",
    };
    let mut text = format!("{:06x} {arrow} {:06x} {}", packet.source, packet.target, packet.what);
    let number = |name: &str, value: Option<u64>| value.map(|v| format!(" {name} {v}")).unwrap_or_default();
    let address =
        |name: &str, value: Option<u64>| value.map(|v| format!(" {name} {v:#x}")).unwrap_or_default();
    text += &number("psn", packet.psn.map(u64::from));
    text += &number("packets", packet.packets.map(u64::from));
    text += &number("len", Some(packet.len as u64));
    text += &address("addr", packet.addr);
    text += &address("rkey", packet.rkey.map(u64::from));
    text += &address("imm", packet.imm.map(u64::from));
    text + &packet.nak.map(|nak| format!(" {nak}")).unwrap_or_default()
}
