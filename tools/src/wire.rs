//! What two ends tell each other over a byte stream: frames of four letters, a version, three zero bytes, a
//! length (big endian) and so many bytes of a message. Which messages there are is each command's own. The
//! peer is untrusted: every input is a message or a [`Failure`].

use crate::Failure;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, Read, Write},
    marker::PhantomData,
    net::TcpStream,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// Longest message, bytes: an endpoint or a reason, and some.
const MAX_LEN: usize = 4096;
/// How often a busy end says that it is alive.
const BEAT: Duration = Duration::from_secs(1);

/// The messages of one command.
pub(crate) trait Protocol: Serialize + DeserializeOwned {
    /// What each frame begins with.
    const MAGIC: [u8; 4];
    /// Of the messages' form.
    const VERSION: u8;
    /// The command, as people know it.
    const COMMAND: &'static str;
    /// Busy.
    fn alive() -> Self;
    /// The sender of this has given up.
    fn abort(reason: String) -> Self;
    /// What a message says beside the command's own business.
    fn aside(self) -> Aside<Self>;
    /// The message's name.
    fn name(&self) -> &'static str;

    /// The failure of having got this instead of `wanted`.
    fn instead_of(&self, wanted: &str) -> Failure {
        Failure::Garbage(format!("it sent {} where {wanted} belongs", self.name()))
    }
}

/// A message, sorted.
pub(crate) enum Aside<M> {
    /// The peer is alive.
    Alive,
    /// It gave up, and why.
    Abort(String),
    /// Something of the command's own.
    None(M),
}

/// A byte stream to the peer that can be waited for in part.
pub trait Link: Read + Write + Send {
    /// Limits each read and each write from now on.
    ///
    /// # Errors
    /// The operating system's.
    fn limit(&self, timeout: Duration) -> io::Result<()>;

    /// Whether a read or a write waits at all.
    ///
    /// # Errors
    /// The operating system's.
    fn blocking(&self, blocking: bool) -> io::Result<()>;
}

impl Link for TcpStream {
    fn limit(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
    fn blocking(&self, blocking: bool) -> io::Result<()> {
        self.set_nonblocking(!blocking)
    }
}

impl Link for UnixStream {
    fn limit(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
    fn blocking(&self, blocking: bool) -> io::Result<()> {
        self.set_nonblocking(!blocking)
    }
}

/// Messages over a link, each within the time limit.
#[derive(Debug)]
pub(crate) struct Channel<L, M> {
    link: L,
    timeout: Duration,
    last_sent: Instant,
    /// The first byte of the next message, where [`Channel::ready`] has met it.
    met: Option<u8>,
    alive: Vec<u8>,
    _messages: PhantomData<M>,
}

impl<L: Link, M: Protocol> Channel<L, M> {
    pub(crate) fn new(link: L, timeout: Duration) -> Self {
        let timeout = timeout.max(Duration::from_millis(1));
        let alive = frame(&M::alive()).unwrap_or_default();
        Self { link, timeout, last_sent: Instant::now(), met: None, alive, _messages: PhantomData }
    }

    pub(crate) fn send(&mut self, message: &M) -> Result<(), Failure> {
        let framed = frame(message);
        framed.and_then(|bytes| self.write(&bytes)).map_err(|e| self.broken(e, "was sending to it"))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.link.limit(self.timeout)?;
        self.link.write_all(bytes)?;
        self.link.flush()?;
        self.last_sent = Instant::now();
        Ok(())
    }

    /// Says, at most once a second, that this end is alive and busy. Does not allocate.
    pub(crate) fn beat(&mut self) -> Result<(), Failure> {
        if self.last_sent.elapsed() < BEAT {
            return Ok(());
        }
        let alive = std::mem::take(&mut self.alive);
        let written = self.write(&alive);
        self.alive = alive;
        written.map_err(|e| self.broken(e, "was telling it that this end lives"))
    }

    /// How long nothing at all may happen.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether the peer has said something, without waiting for it.
    pub(crate) fn ready(&mut self, during: &'static str) -> Result<bool, Failure> {
        if self.met.is_some() {
            return Ok(true);
        }
        let mut first = [0];
        let read = self.link.blocking(false).and_then(|()| self.link.read(&mut first));
        self.link.blocking(true).map_err(|e| self.broken(e, during))?;
        match read {
            Ok(0) => return Err(Failure::Vanished(during)),
            Ok(_) => self.met = Some(first[0]),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(e) => return Err(self.broken(e, during)),
        }
        Ok(self.met.is_some())
    }

    /// The next message that says something new. `during` completes the sentence "this end ...".
    pub(crate) fn receive(&mut self, during: &'static str) -> Result<M, Failure> {
        loop {
            if let Some(message) = self.one(during)? {
                return Ok(message);
            }
        }
    }

    /// The next message; `None` for a sign of life.
    pub(crate) fn one(&mut self, during: &'static str) -> Result<Option<M>, Failure> {
        match self.frame(Instant::now() + self.timeout, during)?.aside() {
            Aside::Alive => Ok(None),
            Aside::Abort(reason) => Err(Failure::PeerFailed(printable(&reason))),
            Aside::None(message) => Ok(Some(message)),
        }
    }

    /// Tells the peer why this end stops. It may be gone, so nothing comes of a failure here.
    pub(crate) fn abort(&mut self, failure: &Failure) {
        if !matches!(failure, Failure::PeerFailed(_) | Failure::Vanished(_)) {
            // At most 4 bytes a character, so it stays below `MAX_LEN`.
            let reason = failure.to_string().chars().take(1000).collect();
            let _ = self.send(&M::abort(reason));
        }
    }

    /// Why a request failed, where the peer's going is the reason and the peer's own word is better.
    pub(crate) fn explain(&mut self, failure: Failure) -> Failure {
        let (timeout, short) = (self.timeout, Duration::from_millis(500));
        self.timeout = timeout.min(short);
        let word = self.receive("was moving bytes");
        self.timeout = timeout;
        match word {
            Err(word @ (Failure::PeerFailed(_) | Failure::Vanished(_))) => word,
            _ => failure,
        }
    }

    fn frame(&mut self, deadline: Instant, during: &'static str) -> Result<M, Failure> {
        let mut head = [0; 12];
        for (i, wanted) in M::MAGIC.into_iter().enumerate() {
            self.fill(&mut head[i..=i], deadline, during)?;
            if head[i] != wanted {
                let start = String::from_utf8_lossy(&head[..=i]).escape_debug().to_string();
                let ours = String::from_utf8_lossy(&M::MAGIC).into_owned();
                let what = format!("it starts with \"{start}\", not with \"{ours}\" as {} does", M::COMMAND);
                return Err(Failure::Garbage(what));
            }
        }
        self.fill(&mut head[4..5], deadline, during)?;
        if head[4] != M::VERSION {
            let what = M::COMMAND;
            return Err(Failure::PeerVersion { what, theirs: head[4], ours: M::VERSION });
        }
        self.fill(&mut head[5..], deadline, during)?;
        let len = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        if len > MAX_LEN {
            return Err(Failure::Garbage(format!("a message of {len} bytes; {MAX_LEN} are allowed")));
        }
        let mut body = vec![0; len];
        self.fill(&mut body, deadline, during)?;
        decode(&body)
    }

    /// Fills `buf` by `deadline`, however slowly the peer trickles.
    fn fill(&mut self, buf: &mut [u8], deadline: Instant, during: &'static str) -> Result<(), Failure> {
        let mut at = 0;
        if let (Some(first), Some(met)) = (buf.first_mut(), self.met.take()) {
            (*first, at) = (met, 1);
        }
        while at < buf.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            let read = match left.is_zero() {
                true => Err(io::ErrorKind::TimedOut.into()),
                false => self.link.limit(left).and_then(|()| self.link.read(&mut buf[at..])),
            };
            match read {
                Ok(0) => return Err(Failure::Vanished(during)),
                Ok(n) => at += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.broken(e, during)),
            }
        }
        Ok(())
    }

    fn broken(&self, source: io::Error, during: &'static str) -> Failure {
        use io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock,
        };
        match source.kind() {
            WouldBlock | TimedOut => Failure::Silent { during, limit: self.timeout, option: "--timeout" },
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => Failure::Vanished(during),
            _ => Failure::Io { what: "the connection to the peer".into(), source },
        }
    }
}

fn frame<M: Protocol>(message: &M) -> io::Result<Vec<u8>> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let mut out = [M::MAGIC.as_slice(), &[M::VERSION, 0, 0, 0], &(body.len() as u32).to_be_bytes()].concat();
    out.extend(body);
    Ok(out)
}

fn decode<M: Protocol>(body: &[u8]) -> Result<M, Failure> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(Failure::Garbage(format!("{} bytes too many in a message", rest.len()))),
        Err(e) => Err(Failure::Garbage(format!("a message that can not be read: {e}"))),
    }
}

/// A peer's words on our terminal: one line, no control characters.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
