//! A session: the processes of one machine that share a fabric. Each has a slot, and a socket to be reached at; packets
//! travel as messages, so each process touches only its own memory. Which queue pair a packet is for is not known here.
//!
//! Sockets have names in the abstract namespace, and having the name *is* having the slot. The kernel takes the name back
//! when the process ends, however it ends: nothing is left behind, nothing has to be locked, and the next process finds the
//! slot free. Processes of different network namespaces do not see each other's.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;

use rustix::event::epoll;

use super::packet::Packet;
use super::stream::{Incoming, Outgoing};

/// How many processes a session holds: a queue-pair number has 8 bits of slot and 16 of index.
pub const SLOTS: u32 = 256;
/// Longest name of a session, in bytes: a socket's name has 107.
const MAX_NAME: usize = 72;

/// This process's place in a session.
#[derive(Debug)]
pub struct Session {
    name: String,
    slot: u32,
    listener: UnixListener,
    /// Connections that we opened, by slot of the peer: what we send.
    out: BTreeMap<u32, Outgoing>,
    /// Peers that turned out to be gone while something was sent to them.
    gone: Vec<u32>,
    /// Connections that peers opened: what we receive.
    incoming: Vec<Incoming>,
    /// Becomes readable when a peer's bytes come.
    waiter: Arc<OwnedFd>,
}

impl Session {
    /// Takes the lowest free slot of this user's session named `name`.
    ///
    /// # Errors
    ///
    /// The name is longer than 72 bytes, all slots are taken, or the system refuses a socket.
    pub fn join(name: &str) -> io::Result<Self> {
        if name.len() > MAX_NAME {
            let why = format!("join session {name}: a name of {} bytes; at most {MAX_NAME}", name.len());
            return Err(io::Error::other(why));
        }
        for slot in 0..SLOTS {
            match UnixListener::bind_addr(&address(name, slot)?) {
                Ok(listener) => return Self::listen(name, slot, listener),
                Err(e) if e.kind() == ErrorKind::AddrInUse => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::other(format!("join session {name}: all {SLOTS} slots are taken")))
    }

    fn listen(name: &str, slot: u32, listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let waiter = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        watch(&waiter, &listener, epoll::EventFlags::IN)?;
        let (out, incoming) = (BTreeMap::new(), Vec::new());
        Ok(Self { name: name.to_owned(), slot, listener, out, gone: Vec::new(), incoming, waiter })
    }

    /// This process's slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Sends a packet to the process of `slot`; false if nobody is there.
    pub fn send(&mut self, slot: u32, packet: &Packet) -> bool {
        let Some(out) = self.connection(slot) else { return false };
        if out.send(packet).is_err() {
            self.out.remove(&slot);
            self.gone.push(slot);
            return false;
        }
        true
    }

    fn connection(&mut self, slot: u32) -> Option<&mut Outgoing> {
        use std::collections::btree_map::Entry;
        match self.out.entry(slot) {
            Entry::Occupied(entry) => Some(entry.into_mut()),
            Entry::Vacant(entry) => {
                let stream = UnixStream::connect_addr(&address(&self.name, slot).ok()?).ok()?;
                if !is_own(&stream) {
                    return None;
                }
                stream.set_nonblocking(true).ok()?;
                watch(&self.waiter, &stream, epoll::EventFlags::OUT | epoll::EventFlags::ET).ok()?;
                Some(entry.insert(Outgoing::new(stream)))
            }
        }
    }

    /// Moves bytes both ways without blocking; answers what arrived, and the slots of peers that went away. Unless it is
    /// `open`, nothing is taken from the peers: their bytes wait in the sockets, and then at them.
    pub fn pump(&mut self, open: bool) -> (Vec<Packet>, Vec<u32>) {
        self.accept();
        let mut arrived = Vec::new();
        if open {
            self.incoming.retain_mut(|peer| peer.receive(&mut arrived));
        }
        let mut gone = std::mem::take(&mut self.gone);
        self.out.retain(|slot, out| {
            let alive = out.flush().is_ok() && out.is_open();
            if !alive {
                gone.push(*slot);
            }
            alive
        });
        (arrived, gone)
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if is_own(&stream)
                && stream.set_nonblocking(true).is_ok()
                && watch(&self.waiter, &stream, epoll::EventFlags::IN).is_ok()
            {
                self.incoming.push(Incoming::new(stream));
            }
        }
    }

    /// Bytes that the socket of the peer in `slot` has not taken yet.
    pub fn backlog(&self, slot: u32) -> usize {
        self.out.get(&slot).map_or(0, Outgoing::backlog)
    }

    /// What to wait for until a peer's bytes come.
    pub fn waiter(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.waiter)
    }

    /// Every descriptor of the session: what a forked child must not keep open, lest peers take it for this process.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let out = self.out.values().map(|o| o.stream.as_raw_fd());
        let incoming = self.incoming.iter().map(|i| i.stream.as_raw_fd());
        out.chain(incoming).chain([self.listener.as_raw_fd(), self.waiter.as_raw_fd()]).collect()
    }
}

/// Abstract names have no owner and no mode: the kernel's word on who is at the other end stands for them.
fn is_own(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == rustix::process::getuid())
}

/// A closed descriptor leaves the set by itself.
fn watch(waiter: &OwnedFd, source: impl AsFd, flags: epoll::EventFlags) -> io::Result<()> {
    Ok(epoll::add(waiter, source, epoll::EventData::new_u64(0), flags)?)
}

fn address(name: &str, slot: u32) -> io::Result<SocketAddr> {
    let user = rustix::process::getuid().as_raw();
    SocketAddr::from_abstract_name(format!("softnic/{user}/{slot}/{name}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::packet::{Address, Body, Reply};
    use super::*;
    use crate::rules::Psn;

    fn packet(psn: u32, len: usize) -> Packet {
        let body = Body::Reply(Reply::Data { psn: Psn::new(psn), data: vec![psn as u8; len] });
        Packet { from: Address::default(), to: Address::default(), source: 1, target: 2, body }
    }

    fn pair(name: &str) -> (Session, Session) {
        let name = format!("test-{name}-{}", std::process::id());
        (Session::join(&name).unwrap(), Session::join(&name).unwrap())
    }

    #[test]
    fn packets_arrive_whole_and_in_order_however_large() {
        let (mut a, mut b) = pair("order");
        assert_ne!(a.slot(), b.slot());
        let sent: Vec<Packet> =
            [0, 1, 100, 1 << 20, 5].iter().enumerate().map(|(i, n)| packet(i as u32, *n)).collect();
        for p in &sent {
            assert!(a.send(b.slot(), p));
        }
        let mut got = Vec::new();
        for _ in 0..10_000 {
            a.pump(true);
            got.extend(b.pump(true).0);
            if got.len() == sent.len() {
                break;
            }
        }
        assert_eq!(got, sent);
        assert_eq!(a.backlog(b.slot()), 0);
    }

    #[test]
    fn a_peer_that_went_away_is_noticed_and_its_slot_is_free_again() {
        let (mut a, b) = pair("gone");
        let slot = b.slot();
        assert!(a.send(slot, &packet(1, 1)));
        drop(b);
        assert_eq!(a.pump(true).1, [slot]);
        assert!(!a.send(slot, &packet(1, 1)));
        let name = format!("test-gone-{}", std::process::id());
        assert_eq!(Session::join(&name).unwrap().slot(), slot);
    }

    #[test]
    fn a_peer_found_dead_while_sending_is_told_by_the_next_pump() {
        let (mut a, b) = pair("dead");
        let slot = b.slot();
        assert!(a.send(slot, &packet(1, 1)));
        drop(b);
        assert!(!a.send(slot, &packet(2, 1)));
        assert_eq!(a.pump(true).1, [slot], "what was sent before needs its silence");
        assert!(a.pump(true).1.is_empty(), "once");
    }

    #[test]
    fn nonsense_ends_the_connection() {
        let (a, mut b) = pair("nonsense");
        let mut stream = UnixStream::connect_addr(&address(&a.name, b.slot()).unwrap()).unwrap();
        stream.write_all(&u32::MAX.to_le_bytes()).unwrap();
        b.pump(true);
        assert!(b.incoming.is_empty());
    }

    #[test]
    fn a_name_that_is_too_long_is_refused_by_its_length() {
        let error = Session::join(&"x".repeat(73)).unwrap_err().to_string();
        assert!(error.contains("73 bytes"), "{error}");
    }

    #[test]
    fn a_session_holds_as_many_processes_as_there_are_slots() {
        let name = format!("test-full-{}", std::process::id());
        let all: Vec<Session> = (0..SLOTS).map(|_| Session::join(&name).unwrap()).collect();
        assert!(Session::join(&name).unwrap_err().to_string().contains("256"));
        drop(all);
        assert_eq!(Session::join(&name).unwrap().slot(), 0);
    }
}
