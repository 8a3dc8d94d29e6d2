//! Entries of EFA devices. They stand here and not in `provider-efa`, because that one posts through libefa
//! and never meets these bytes: nobody but this command reads them.
//!
//! Layouts and names: rdma-core `providers/efa/efa_io_defs.h`. All fields are little endian.

use super::{Entries, Entry, Field, Format, Kind, hex_of, trace::Queue};
use std::fmt::Write;

/// Bytes of a request, and of one with room for more inline data.
const REQUEST: usize = 64;
const WIDE: usize = 128;
/// Bytes of one range of a receive.
const RANGE: usize = 16;
/// Bytes of a completion of either queue, without what newer devices add.
const COMPLETION: usize = 16;
/// Largest completion.
const LONG: usize = 32;
/// The number of an address handle that says that none is known.
const NO_HANDLE: u64 = 0xffff;

/// `enum efa_io_send_op_type`.
const OPERATIONS: [&str; 3] = ["SEND", "RDMA_READ", "RDMA_WRITE"];
/// `enum efa_io_comp_status`.
const STATUS: [&str; 16] = [
    "OK",
    "FLUSHED",
    "LOCAL_ERROR_QP_INTERNAL_ERROR",
    "LOCAL_ERROR_UNSUPPORTED_OP",
    "LOCAL_ERROR_INVALID_AH",
    "LOCAL_ERROR_INVALID_LKEY",
    "LOCAL_ERROR_BAD_LENGTH",
    "REMOTE_ERROR_BAD_ADDRESS",
    "REMOTE_ERROR_ABORT",
    "REMOTE_ERROR_BAD_DEST_QPN",
    "REMOTE_ERROR_RNR",
    "REMOTE_ERROR_BAD_LENGTH",
    "REMOTE_ERROR_BAD_STATUS",
    "LOCAL_ERROR_UNRESP_REMOTE",
    "REMOTE_ERROR_UNKNOWN_PEER",
    "LOCAL_ERROR_UNREACH_REMOTE",
];

/// Everything in `bytes`; a ring of requests is read as its slots.
pub(super) fn entries(bytes: &[u8], format: Format) -> Entries<'_> {
    let (default, read): (_, fn(&[u8], usize) -> Entry) = match format.kind {
        Kind::Wqe | Kind::Ring => (REQUEST, request),
        Kind::Cqe => (COMPLETION, completion),
        Kind::Receive => (RANGE, receive),
    };
    let slot = format.slot.unwrap_or(default);
    Box::new(bytes.chunks(slot).enumerate().map(move |(i, bytes)| read(bytes, i * slot)))
}

/// The bytes of one entry out of a trace.
pub(super) fn traced(queue: Queue, bytes: &[u8]) -> Entry {
    match queue {
        Queue::Send => request(bytes, 0),
        Queue::Receive => receive(bytes, 0),
        Queue::Completion => completion(bytes, 0),
    }
}

/// Takes fields off the front of an entry.
struct Reader<'b> {
    bytes: &'b [u8],
    base: usize,
    next: usize,
    segment: &'static str,
    fields: Vec<Field>,
    faults: Vec<String>,
}

impl<'b> Reader<'b> {
    fn new(bytes: &'b [u8], base: usize) -> Self {
        Self { bytes, base, next: 0, segment: "", fields: Vec::new(), faults: Vec::new() }
    }

    /// The next `len` bytes as a little-endian number; 0, and a fault, behind the end.
    fn take(&mut self, name: &'static str, len: usize, meaning: impl FnOnce(u64) -> String) -> u64 {
        let Some(bytes) = self.bytes.get(self.next..self.next + len) else {
            if !self.faults.iter().any(|fault| fault.contains("ends")) {
                self.faults.push(format!("the dump ends after {} bytes, inside {name}", self.bytes.len()));
            }
            return 0;
        };
        let value = bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        self.push(name, bytes, meaning(value));
        value
    }

    fn push(&mut self, name: &'static str, bytes: &[u8], meaning: String) {
        let at = self.base + self.next;
        self.fields.push(Field { at, segment: self.segment, name, bytes: hex_of(bytes), meaning });
        self.next += bytes.len();
    }

    fn wrong(&mut self, is: bool, what: impl Into<String>) {
        if is {
            self.faults.push(what.into());
        }
    }

    /// What is left, in lines of 16 bytes.
    fn rest(&mut self, name: &'static str) {
        let rest = self.bytes.get(self.next..).unwrap_or_default();
        rest.chunks(16).for_each(|line| self.push(name, line, String::new()));
    }

    fn finish(self, title: String) -> Entry {
        let Self { base, fields, faults, .. } = self;
        let mut text = format!("{base:#06x}: {title}\n");
        let mut segment = "";
        for field in &fields {
            let shown = if segment == field.segment { "" } else { field.segment };
            segment = field.segment;
            let line =
                format!("  {:04x}  {shown:8}{:34}{:22}{}", field.at, field.bytes, field.name, field.meaning);
            let _ = writeln!(text, "{}", line.trim_end());
        }
        faults.iter().for_each(|fault| text += &format!("  wrong: {fault}\n"));
        Entry { at: base, title, fields, faults, text }
    }
}

fn silent(_: u64) -> String {
    String::new()
}

fn decimal(value: u64) -> String {
    value.to_string()
}

fn hex(value: u64) -> String {
    format!("{value:#x}")
}

/// Set bits by name, lowest first.
fn bits(value: u64, names: &[(u32, &str)]) -> String {
    let set: Vec<_> = names.iter().filter(|(bit, _)| value >> bit & 1 == 1).map(|(_, name)| *name).collect();
    set.join(" ")
}

/// `struct efa_io_tx_wqe`, or its wide form.
fn request(bytes: &[u8], at: usize) -> Entry {
    let mut reader = Reader::new(bytes, at);
    reader.segment = "meta";
    let id = reader.take("req_id", 2, decimal);
    let control = reader.take("ctrl1", 1, |n| {
        let operation = OPERATIONS.get(n as usize & 15).unwrap_or(&"none");
        let flags = [(4, "has_imm"), (5, "inline_msg"), (6, "meta_extension"), (7, "meta_desc")];
        format!("op_type {operation} {}", bits(n, &flags))
    });
    let more =
        reader.take("ctrl2", 1, |n| bits(n, &[(0, "phase"), (2, "first"), (3, "last"), (4, "comp_req")]));
    let qpn = reader.take("dest_qp_num", 2, hex);
    let count = reader.take("length", 2, decimal);
    reader.take("immediate_data", 4, silent);
    let handle = reader.take("ah", 2, decimal);
    reader.take("reserved", 2, silent);
    reader.take("qkey", 4, hex);
    reader.take("reserved2", 6, silent);
    reader.take("reserved2", 6, silent);
    let whole = [REQUEST, WIDE].contains(&bytes.len());
    reader.wrong(!whole, format!("{} bytes; a request has 64, or 128", bytes.len()));
    reader.wrong(control & 0xc0 != 0x80, "metadata are not what ctrl1 must announce: meta_desc alone");
    reader.wrong(more & 0x0c != 0x0c, "ctrl2 must say first and last");
    let operation = OPERATIONS.get(control as usize & 15);
    reader.wrong(operation.is_none(), format!("op_type {} is none", control & 15));
    if whole && operation.is_some() {
        data(&mut reader, control, count as usize);
    }
    let operation = operation.unwrap_or(&"of no operation");
    reader.finish(format!(
        "EFA request {operation}, id {id}, to queue pair {qpn:#x} by address handle {handle}"
    ))
}

/// What follows the metadata: the remote memory, then ranges or the bytes themselves.
fn data(reader: &mut Reader<'_>, control: u64, count: usize) {
    let (send, read, inline) = (control & 15 == 0, control & 15 == 1, control >> 5 & 1 == 1);
    if !send {
        reader.segment = "remote";
        range(reader, "rkey");
    }
    if inline {
        let room = reader.bytes.len() - reader.next;
        let narrow = !send && reader.bytes.len() < WIDE;
        reader.wrong(read || narrow, "inline data, where this operation has no room for them");
        reader.wrong(count > room, format!("{count} inline bytes, and there is room for {room}"));
        reader.segment = "inline";
    } else {
        let most = if send { 2 } else { 1 };
        reader.wrong(count > most, format!("{count} ranges; this operation has at most {most}"));
        reader.segment = "local";
        (0..count.min(most)).for_each(|_| range(reader, "lkey"));
        reader.segment = "unused";
    }
    reader.rest("data");
}

/// `struct efa_io_tx_buf_desc`, `struct efa_io_remote_mem_addr`.
fn range(reader: &mut Reader<'_>, key: &'static str) {
    reader.take("length", 4, |n| format!("{n} bytes"));
    reader.take(key, 4, hex);
    reader.take("buf_addr", 8, hex);
}

/// `struct efa_io_rx_desc`.
fn receive(bytes: &[u8], at: usize) -> Entry {
    let mut reader = Reader::new(bytes, at);
    reader.segment = "rx_desc";
    let addr = reader.take("buf_addr", 8, hex);
    let id = reader.take("req_id", 2, decimal);
    let len = reader.take("length", 2, |n| format!("{n} bytes"));
    reader.take("lkey_ctrl", 4, |n| {
        format!("lkey {:#x} {}", n & 0xff_ffff, bits(n, &[(30, "first"), (31, "last")]))
    });
    reader.rest("data");
    reader.finish(format!("EFA receive {id}: {len} bytes at {addr:#x}"))
}

/// `struct efa_io_cdesc_common` and what follows it in either queue's.
fn completion(bytes: &[u8], at: usize) -> Entry {
    let mut reader = Reader::new(bytes, at);
    reader.segment = "cdesc";
    let id = reader.take("req_id", 2, decimal);
    let status = reader.take("status", 1, |n| STATUS.get(n as usize).unwrap_or(&"none").to_string());
    let flags = reader.take("flags", 1, |n| {
        let queue = ["no queue", "send queue", "receive queue", "no queue"][n as usize >> 1 & 3];
        let operation = OPERATIONS.get(n as usize >> 4 & 7).unwrap_or(&"none");
        format!(
            "{queue}, op_type {operation} {}",
            bits(n, &[(0, "phase"), (3, "has_imm"), (7, "unsolicited")])
        )
    });
    let qpn = reader.take("qp_num", 2, hex);
    let queue = flags >> 1 & 3;
    let moved = match queue {
        2 => received(&mut reader, flags >> 4 & 7),
        _ => {
            reader.take("reserved16", 2, silent);
            String::new()
        }
    };
    reader.wrong(STATUS.get(status as usize).is_none(), format!("status {status} is none"));
    reader.wrong(
        ![1, 2].contains(&queue),
        format!("queue type {queue} is neither a send queue nor a receive queue"),
    );
    reader.wrong(flags >> 4 & 7 > 2, format!("op_type {} is none", flags >> 4 & 7));
    reader.rest("data");
    let side = if queue == 2 { "receive" } else { "request" };
    let how = STATUS.get(status as usize).unwrap_or(&"of no status");
    reader.finish(format!("EFA completion of {side} {id}, queue pair {qpn:#x}, {how}{moved}"))
}

/// `struct efa_io_rx_cdesc`, and of its long form what tells the sender or the rest of the length.
fn received(reader: &mut Reader<'_>, operation: u64) -> String {
    let low = reader.take("length", 2, |n| format!("{n} bytes"));
    let handle = reader.take("ah", 2, |n| if n == NO_HANDLE { "none".into() } else { n.to_string() });
    reader.take("src_qp_num", 2, hex);
    reader.take("imm", 4, silent);
    let mut len = low;
    if reader.bytes.len() >= LONG && operation == 2 {
        len |= reader.take("length_hi", 2, silent) << 16;
    } else if reader.bytes.len() >= LONG && handle == NO_HANDLE {
        reader.take("src_addr", 8, silent);
        reader.take("src_addr", 8, silent);
    }
    format!(", {len} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Operation and flags, ranges or inline bytes.
    fn head(len: usize, op: u8, count: u16) -> Vec<u8> {
        let mut bytes = vec![0; len];
        (bytes[0], bytes[2], bytes[3], bytes[4], bytes[12], bytes[16]) = (5, 0x80 | op, 0x1c, 3, 7, 9);
        bytes[6..8].copy_from_slice(&count.to_le_bytes());
        bytes
    }

    fn listed(entry: &Entry) -> usize {
        entry.fields.iter().map(|field| field.bytes.len() / 2).sum()
    }

    #[test]
    fn requests_name_operation_peer_and_memory() {
        let mut write = head(64, 2, 1);
        (write[32], write[36], write[40]) = (100, 0xdd, 0x40);
        let entry = request(&write, 0x40);
        assert_eq!(entry.title, "EFA request RDMA_WRITE, id 5, to queue pair 0x3 by address handle 7");
        assert_eq!(entry.faults, [""; 0]);
        for words in ["remote", "100 bytes", "rkey", "0xdd", "comp_req", "0x0040: EFA request"] {
            assert!(entry.text.contains(words), "no {words} in {}", entry.text);
        }
        assert_eq!(listed(&entry), 64);
        let inline = request(&head(128, 0x20, 96), 0);
        assert!(inline.faults.is_empty() && listed(&inline) == 128, "{}", inline.text);
    }

    #[test]
    fn each_defect_is_named() {
        let mut damaged = head(64, 0, 1);
        damaged[3] = 0;
        for (bytes, words) in [
            (head(63, 0, 1), "63 bytes"),
            (head(64, 3, 1), "op_type 3 is none"),
            (head(64, 0x40, 1), "meta_desc alone"),
            (damaged, "first and last"),
            (head(64, 0, 3), "3 ranges; this operation has at most 2"),
            (head(64, 2, 2), "at most 1"),
            (head(64, 0x20, 33), "33 inline bytes, and there is room for 32"),
            (head(64, 0x22, 8), "no room for them"),
            (head(128, 0x21, 8), "no room for them"),
        ] {
            let entry = request(&bytes, 0);
            assert!(entry.faults.iter().any(|fault| fault.contains(words)), "{words}: {}", entry.text);
        }
    }

    #[test]
    fn completions_say_whose_they_are_and_how_it_ended() {
        let send = completion(&[1, 0, 8, 0x13, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0);
        assert_eq!(send.title, "EFA completion of request 1, queue pair 0x9, REMOTE_ERROR_ABORT");
        assert!(send.faults.is_empty() && send.text.contains("send queue, op_type RDMA_READ phase"));
        let mut arrived = vec![1, 0, 0, 0x2c, 9, 0, 2, 1, 0xff, 0xff, 8, 0, 4, 3, 2, 1];
        assert!(completion(&arrived, 0).title.ends_with("OK, 258 bytes"));
        arrived.extend([1; 16]);
        assert!(completion(&arrived, 0).title.ends_with("OK, 16843010 bytes"), "the upper half of a length");
        for (at, value, words) in [(2, 16, "status 16"), (3, 1, "queue type 0"), (3, 0x72, "op_type 7")] {
            let mut bytes = [0; 16];
            bytes[3] = 2;
            bytes[at] = value;
            let entry = completion(&bytes, 0);
            assert!(entry.faults.iter().any(|fault| fault.contains(words)), "{}", entry.text);
        }
    }

    #[test]
    fn a_receive_names_memory_and_place_in_its_list() {
        let entry = receive(&[0x40, 0, 0, 0, 0, 0, 0, 0, 7, 0, 100, 0, 0x11, 0, 0, 0xc0], 0);
        assert_eq!(entry.title, "EFA receive 7: 100 bytes at 0x40");
        assert!(entry.text.contains("lkey 0x11 first last") && entry.faults.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_listing_of_all_of_them(bytes in prop::collection::vec(any::<u8>(), 0..140)) {
            for read in [request, receive, completion] {
                let entry = read(&bytes, usize::MAX / 2);
                prop_assert!(listed(&entry) <= bytes.len());
                prop_assert!(entry.text.lines().count() > entry.fields.len());
            }
            let short = bytes.len() < COMPLETION;
            prop_assert_eq!(receive(&bytes, 0).faults.is_empty(), !short);
        }
    }
}
