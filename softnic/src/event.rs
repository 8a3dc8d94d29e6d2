//! Event channels: file descriptors from which a program reads completion and asynchronous events. When events are due is
//! the devices' affair.
//!
//! A channel is a pair of packet sockets rather than a pipe: one read takes one event, and on destruction of an object the
//! device can take its unread events back without blocking, so that `events_reported` counts only what was read
//! (`ibv_destroy_cq` waits for as many acknowledgements).

use std::collections::VecDeque;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd, RawFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The device's end of a channel.
#[derive(Debug)]
pub struct EventChannel {
    /// Number of the program's descriptor. The program closes it.
    program_fd: RawFd,
    /// The program's end again, for taking events back.
    program_end: OwnedFd,
    device_end: OwnedFd,
    /// Events that the socket had no room for.
    pending: VecDeque<Vec<u8>>,
}

impl EventChannel {
    /// Makes a channel; the program's descriptor is open and belongs to the program.
    pub fn new() -> std::io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (device_end, program) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let program_end = program.try_clone()?;
        Ok(Self { program_fd: program.into_raw_fd(), program_end, device_end, pending: VecDeque::new() })
    }

    /// The program's descriptor number.
    pub fn program_fd(&self) -> RawFd {
        self.program_fd
    }

    /// Sends an event.
    pub fn send(&mut self, event: &[u8]) {
        self.pending.push_back(event.to_vec());
        self.flush();
    }

    /// Sends what had no room before.
    pub fn flush(&mut self) {
        while let Some(event) = self.pending.front() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            if rustix::net::send(&self.device_end, event, flags).is_err() {
                return;
            }
            self.pending.pop_front();
        }
    }

    /// Whether an event waits to be read.
    pub fn has_unread(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        !self.pending.is_empty() || rustix::net::recv(&self.program_end, &mut [0u8; 8][..], flags).is_ok()
    }

    /// Takes back the unread events whose first 8 bytes are `element`; answers how many.
    pub fn take_back(&mut self, element: u64) -> u32 {
        let mut kept = VecDeque::new();
        let mut buffer = [0; 64];
        while let Ok((n, _)) =
            rustix::net::recv(self.program_end.as_fd(), &mut buffer[..], RecvFlags::DONTWAIT)
        {
            if n == 0 {
                break;
            }
            kept.push_back(buffer[..n].to_vec());
        }
        kept.append(&mut self.pending);
        let before = kept.len();
        kept.retain(|e| e.first_chunk() != Some(&element.to_ne_bytes()));
        let taken = before - kept.len();
        self.pending = kept;
        self.flush();
        taken as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fd: RawFd) -> Option<Vec<u8>> {
        let mut buffer = [0; 64];
        let fd = crate::memory::program_file(fd).ok()?;
        let n = rustix::net::recv(fd, &mut buffer[..], RecvFlags::DONTWAIT).ok()?.0;
        Some(buffer[..n].to_vec())
    }

    #[test]
    fn unread_events_of_a_destroyed_object_are_taken_back() {
        let mut channel = EventChannel::new().unwrap();
        for element in [1u64, 2, 1, 3] {
            channel.send(&element.to_ne_bytes());
        }
        assert_eq!(read(channel.program_fd()), Some(1u64.to_ne_bytes().to_vec()));
        assert!(channel.has_unread());
        assert_eq!(channel.take_back(1), 1, "one of two was read");
        assert_eq!(read(channel.program_fd()), Some(2u64.to_ne_bytes().to_vec()));
        assert_eq!(read(channel.program_fd()), Some(3u64.to_ne_bytes().to_vec()));
        assert_eq!(read(channel.program_fd()), None);
        assert!(!channel.has_unread());
    }

    #[test]
    fn events_beyond_the_sockets_room_wait_and_none_is_lost() {
        let mut channel = EventChannel::new().unwrap();
        (0..5000u64).for_each(|e| channel.send(&e.to_ne_bytes()));
        for e in 0..5000u64 {
            let got = read(channel.program_fd()).or_else(|| {
                channel.flush();
                read(channel.program_fd())
            });
            assert_eq!(got, Some(e.to_ne_bytes().to_vec()));
        }
        assert_eq!(channel.take_back(7), 0);
    }
}
