//! A session: the processes of one machine that share a fabric. Each has a slot, and a socket to be reached at; packets
//! travel as messages, so each process touches only its own memory. Which queue pair a packet is for is not known here.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::epoll;

use super::packet::Packet;

/// How many processes a session holds: a queue-pair number has 8 bits of slot and 16 of index.
pub const SLOTS: u32 = 256;

/// Longest frame accepted from a peer: the largest message and its head.
const MAX_FRAME: usize = (1 << 30) + 256;

/// This process's place in a session.
#[derive(Debug)]
pub struct Session {
    dir: PathBuf,
    slot: u32,
    listener: UnixListener,
    /// Held for the life of the process: the lock is the claim on the slot.
    _lock: File,
    /// Connections that we opened, by slot of the peer: what we send.
    out: BTreeMap<u32, Outgoing>,
    /// Connections that peers opened: what we receive.
    incoming: Vec<Incoming>,
    /// Becomes readable when a peer's bytes come.
    waiter: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Outgoing {
    stream: UnixStream,
    queue: VecDeque<u8>,
}

#[derive(Debug)]
struct Incoming {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Session {
    /// Takes the lowest free slot of the session named `name`, under the user's run-time folder.
    ///
    /// # Errors
    ///
    /// The folder can't be used, or all slots are taken.
    pub fn join(name: &str) -> io::Result<Self> {
        let dir = session_dir(name);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        for slot in 0..SLOTS {
            if let Some(lock) = claim(&dir, slot)? {
                return Self::listen(dir, slot, lock);
            }
        }
        Err(io::Error::other(format!("join session {name}: all {SLOTS} slots are taken")))
    }

    fn listen(dir: PathBuf, slot: u32, lock: File) -> io::Result<Self> {
        let path = socket_path(&dir, slot);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        let waiter = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        watch(&waiter, &listener, epoll::EventFlags::IN)?;
        Ok(Self { dir, slot, listener, _lock: lock, out: BTreeMap::new(), incoming: Vec::new(), waiter })
    }

    /// This process's slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Sends a packet to the process of `slot`; false if nobody is there.
    pub fn send(&mut self, slot: u32, packet: &Packet) -> bool {
        let Some(out) = self.connection(slot) else { return false };
        let bytes = packet.encode();
        out.queue.extend((bytes.len() as u32).to_le_bytes());
        out.queue.extend(&bytes);
        if out.flush().is_err() {
            self.out.remove(&slot);
            return false;
        }
        true
    }

    fn connection(&mut self, slot: u32) -> Option<&mut Outgoing> {
        use std::collections::btree_map::Entry;
        match self.out.entry(slot) {
            Entry::Occupied(entry) => Some(entry.into_mut()),
            Entry::Vacant(entry) => {
                let stream = UnixStream::connect(socket_path(&self.dir, slot)).ok()?;
                stream.set_nonblocking(true).ok()?;
                watch(&self.waiter, &stream, epoll::EventFlags::OUT | epoll::EventFlags::ET).ok()?;
                Some(entry.insert(Outgoing { stream, queue: VecDeque::new() }))
            }
        }
    }

    /// Moves bytes both ways without blocking; answers what arrived, and the slots of peers that went away.
    pub fn pump(&mut self) -> (Vec<Packet>, Vec<u32>) {
        self.accept();
        let mut arrived = Vec::new();
        self.incoming.retain_mut(|peer| peer.receive(&mut arrived));
        let mut gone = Vec::new();
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
            if stream.set_nonblocking(true).is_ok()
                && watch(&self.waiter, &stream, epoll::EventFlags::IN).is_ok()
            {
                self.incoming.push(Incoming { stream, buffer: Vec::new() });
            }
        }
    }

    /// Bytes not yet taken by the peers' sockets.
    pub fn backlog(&self) -> usize {
        self.out.values().map(|o| o.queue.len()).sum()
    }

    /// What to wait for until a peer's bytes come.
    pub fn waiter(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.waiter)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A later owner of the slot replaces the file anyway; a failure leaves a name that nobody listens to.
        let _ = fs::remove_file(socket_path(&self.dir, self.slot));
    }
}

impl Outgoing {
    fn flush(&mut self) -> io::Result<()> {
        while !self.queue.is_empty() {
            let (front, _) = self.queue.as_slices();
            match self.stream.write(front) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => drop(self.queue.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Peers never answer on this connection, so anything but "nothing to read" means that it ended.
    fn is_open(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock)
    }
}

impl Incoming {
    /// Reads what is there; false once the peer is gone or talks nonsense.
    fn receive(&mut self, arrived: &mut Vec<Packet>) -> bool {
        let mut chunk = [0; 64 << 10];
        let mut open = true;
        while open {
            match self.stream.read(&mut chunk) {
                Ok(0) => open = false,
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
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

/// A closed descriptor leaves the set by itself.
fn watch(waiter: &OwnedFd, source: impl AsFd, flags: epoll::EventFlags) -> io::Result<()> {
    Ok(epoll::add(waiter, source, epoll::EventData::new_u64(0), flags)?)
}

/// `$XDG_RUNTIME_DIR/softnic/NAME`, or a folder of the user's own under the temporary folder.
fn session_dir(name: &str) -> PathBuf {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|d| Path::new(d).is_dir()) {
        Some(dir) => Path::new(&dir).join("softnic").join(name),
        None => {
            std::env::temp_dir().join(format!("softnic-{}", rustix::process::getuid().as_raw())).join(name)
        }
    }
}

fn socket_path(dir: &Path, slot: u32) -> PathBuf {
    dir.join(format!("{slot}.sock"))
}

fn claim(dir: &Path, slot: u32) -> io::Result<Option<File>> {
    let path = dir.join(format!("{slot}.lock"));
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
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
            a.pump();
            got.extend(b.pump().0);
            if got.len() == sent.len() {
                break;
            }
        }
        assert_eq!(got, sent);
        assert_eq!(a.backlog(), 0);
    }

    #[test]
    fn a_peer_that_went_away_is_noticed_and_its_slot_is_free_again() {
        let (mut a, b) = pair("gone");
        let slot = b.slot();
        assert!(a.send(slot, &packet(1, 1)));
        drop(b);
        assert_eq!(a.pump().1, [slot]);
        assert!(!a.send(slot, &packet(1, 1)));
        let name = format!("test-gone-{}", std::process::id());
        assert_eq!(Session::join(&name).unwrap().slot(), slot);
    }

    #[test]
    fn nonsense_ends_the_connection() {
        let (a, mut b) = pair("nonsense");
        let mut stream = UnixStream::connect(socket_path(&a.dir, b.slot())).unwrap();
        stream.write_all(&u32::MAX.to_le_bytes()).unwrap();
        b.pump();
        assert!(b.incoming.is_empty());
    }
}
