//! One direction of a connection between two processes: packets as frames of length and bytes, without blocking. Who is at
//! the other end is in `session`.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::packet::Packet;

/// Longest frame accepted from a peer: the largest message and its head.
const MAX_FRAME: usize = (1 << 30) + 256;
/// Most bytes taken from one peer at a time, so that none keeps the others waiting.
const SHARE: usize = 4 << 20;
const CHUNK: usize = 64 << 10;

/// A connection that we opened: what we send.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) stream: UnixStream,
    queue: VecDeque<u8>,
}

/// A connection that a peer opened: what we receive.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) stream: UnixStream,
    buffer: Vec<u8>,
}

impl Outgoing {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, queue: VecDeque::new() }
    }

    /// Queues a packet and sends what the socket takes.
    pub(super) fn send(&mut self, packet: &Packet) -> io::Result<()> {
        let bytes = packet.encode();
        self.queue.extend((bytes.len() as u32).to_le_bytes());
        self.queue.extend(&bytes);
        self.flush()
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.queue.is_empty() {
            let (front, _) = self.queue.as_slices();
            // Not `write`: a peer that died must not cost the program a SIGPIPE.
            match rustix::net::send(&self.stream, front, SendFlags::NOSIGNAL) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => drop(self.queue.drain(..n)),
                Err(Errno::WOULDBLOCK) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Bytes that the socket has not taken yet.
    pub(super) fn backlog(&self) -> usize {
        self.queue.len()
    }

    /// Peers never answer on this connection, so anything but "nothing to read" means that it ended.
    pub(super) fn is_open(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock)
    }
}

impl Incoming {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// Reads what is there, up to a share; false once the peer is gone or talks nonsense. What a peer sent before it died
    /// arrives, whole packets only.
    pub(super) fn receive(&mut self, arrived: &mut Vec<Packet>) -> bool {
        let mut chunk = [0; CHUNK];
        let mut open = true;
        let mut taken = 0;
        while open && taken < SHARE {
            match self.stream.read(&mut chunk) {
                Ok(0) => open = false,
                Ok(n) => {
                    taken += n;
                    self.buffer.extend_from_slice(&chunk[..n]);
                    if n < CHUNK {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => open = false,
            }
        }
        self.take_frames(arrived) && open
    }

    fn take_frames(&mut self, arrived: &mut Vec<Packet>) -> bool {
        let mut at = 0;
        let mut sane = true;
        while let Some(head) = self.buffer.get(at..).and_then(|b| b.first_chunk::<4>()) {
            let len = u32::from_le_bytes(*head) as usize;
            if len > MAX_FRAME {
                sane = false;
                break;
            }
            let Some(frame) = self.buffer.get(at + 4..at + 4 + len) else { break };
            at += 4 + len;
            let Some(packet) = Packet::decode(frame) else {
                sane = false;
                break;
            };
            arrived.push(packet);
        }
        self.buffer.drain(..at);
        sane
    }
}
