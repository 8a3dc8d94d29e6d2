//! What the two ends tell each other beside the transfer itself: frames of `ibvT`, a version, three zero
//! bytes, a length (big endian) and so many bytes of a [`Message`]. Endpoints travel inside in their own
//! versioned form. The peer is untrusted: every input is a message or a [`Failure`].

use crate::{Failure, file::Sha256};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

const MAGIC: [u8; 4] = *b"ibvT";
const VERSION: u8 = 1;
/// Longest message, bytes: an endpoint or a reason, and some.
const MAX_LEN: usize = 4096;
/// How often a busy end says that it is alive.
const BEAT: Duration = Duration::from_secs(1);

/// A byte stream to the peer that can be waited for in part.
pub trait Link: Read + Write + Send {
    /// Limits each read and each write from now on.
    ///
    /// # Errors
    /// The operating system's.
    fn limit(&self, timeout: Duration) -> io::Result<()>;
}

impl Link for TcpStream {
    fn limit(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

impl Link for UnixStream {
    fn limit(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

/// One message. The order of a transfer is: both `Hello`, `Offer` →, ← `Grant`, puts, `Placed` →,
/// ← `Verdict`, gets, `Returned` →, ← `Stored`; `Alive` and `Abort` at any time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// Who speaks: an endpoint's byte form.
    Hello { endpoint: Vec<u8> },
    /// What will be put.
    Offer { bytes: u64, sha256: Sha256 },
    /// Where to put it.
    Grant { addr: u64, len: u64, rkey: u32 },
    /// Every put has completed; with `notified`, a receive completes behind them.
    Placed { notified: bool },
    /// What arrived.
    Verdict { sha256: Sha256 },
    /// It came back unchanged.
    Returned,
    /// The file has its name.
    Stored,
    /// Busy.
    Alive,
    /// The sender of this has given up.
    Abort { reason: String },
}

impl Message {
    fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Offer { .. } => "offer",
            Self::Grant { .. } => "grant",
            Self::Placed { .. } => "placed",
            Self::Verdict { .. } => "verdict",
            Self::Returned => "returned",
            Self::Stored => "stored",
            Self::Alive => "alive",
            Self::Abort { .. } => "abort",
        }
    }

    /// The failure of having got this instead of `wanted`.
    pub(super) fn instead_of(&self, wanted: &str) -> Failure {
        Failure::Garbage(format!("it sent {} where {wanted} belongs", self.name()))
    }
}

/// Messages over a link, each within the time limit.
#[derive(Debug)]
pub(super) struct Channel<L> {
    link: L,
    timeout: Duration,
    last_sent: Instant,
}

impl<L: Link> Channel<L> {
    pub(super) fn new(link: L, timeout: Duration) -> Self {
        Self { link, timeout: timeout.max(Duration::from_millis(1)), last_sent: Instant::now() }
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<(), Failure> {
        let during = "was sending to it";
        let write = |link: &mut L, timeout| {
            link.limit(timeout)?;
            link.write_all(&frame(message)?)?;
            link.flush()
        };
        write(&mut self.link, self.timeout).map_err(|e| self.broken(e, during))?;
        self.last_sent = Instant::now();
        Ok(())
    }

    /// Says, at most once a second, that this end is alive and busy.
    pub(super) fn beat(&mut self) -> Result<(), Failure> {
        if self.last_sent.elapsed() < BEAT { Ok(()) } else { self.send(&Message::Alive) }
    }

    /// The next message that says something new. `during` completes the sentence "this end ...".
    pub(super) fn receive(&mut self, during: &'static str) -> Result<Message, Failure> {
        loop {
            match self.frame(Instant::now() + self.timeout, during)? {
                Message::Alive => {}
                Message::Abort { reason } => return Err(Failure::PeerFailed(printable(&reason))),
                message => return Ok(message),
            }
        }
    }

    /// Tells the peer why this end stops. It may be gone, so nothing comes of a failure here.
    pub(super) fn abort(&mut self, failure: &Failure) {
        if !matches!(failure, Failure::PeerFailed(_) | Failure::Vanished(_)) {
            // At most 4 bytes a character, so it stays below `MAX_LEN`.
            let reason = failure.to_string().chars().take(1000).collect();
            let _ = self.send(&Message::Abort { reason });
        }
    }

    /// Why a request failed, where the peer's going is the reason and the peer's own word is better.
    pub(super) fn explain(&mut self, failure: Failure) -> Failure {
        let (timeout, short) = (self.timeout, Duration::from_millis(500));
        self.timeout = timeout.min(short);
        let word = self.receive("was moving bytes");
        self.timeout = timeout;
        match word {
            Err(word @ (Failure::PeerFailed(_) | Failure::Vanished(_))) => word,
            _ => failure,
        }
    }

    fn frame(&mut self, deadline: Instant, during: &'static str) -> Result<Message, Failure> {
        let mut head = [0; 12];
        for (i, wanted) in MAGIC.into_iter().enumerate() {
            self.fill(&mut head[i..=i], deadline, during)?;
            if head[i] != wanted {
                let start = String::from_utf8_lossy(&head[..=i]).escape_debug().to_string();
                return Err(Failure::Garbage(format!(
                    "it starts with \"{start}\", not with \"ibvT\" as ibv transfer does"
                )));
            }
        }
        self.fill(&mut head[4..5], deadline, during)?;
        if head[4] != VERSION {
            let what = "transfer protocol";
            return Err(Failure::PeerVersion { what, theirs: head[4], ours: VERSION });
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
            WouldBlock | TimedOut => Failure::Silent { during, seconds: self.timeout.as_secs() },
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => Failure::Vanished(during),
            _ => Failure::Io { what: "the connection to the peer".into(), source },
        }
    }
}

fn frame(message: &Message) -> io::Result<Vec<u8>> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let mut out = [MAGIC.as_slice(), &[VERSION, 0, 0, 0], &(body.len() as u32).to_be_bytes()].concat();
    out.extend(body);
    Ok(out)
}

fn decode(body: &[u8]) -> Result<Message, Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::thread;

    fn pair() -> (Channel<UnixStream>, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        (Channel::new(here, Duration::from_millis(200)), there)
    }

    fn answer_to(bytes: &[u8]) -> Result<Message, Failure> {
        let (mut channel, mut peer) = pair();
        peer.write_all(bytes).unwrap();
        drop(peer);
        channel.receive("waited")
    }

    #[test]
    fn messages_arrive_as_sent_and_signs_of_life_are_passed_over() {
        let (mut channel, peer) = pair();
        let mut peer = Channel::new(peer, Duration::from_millis(200));
        let offer = Message::Offer { bytes: 7, sha256: Sha256([9; 32]) };
        channel.send(&Message::Alive).unwrap();
        channel.send(&offer).unwrap();
        assert_eq!(peer.receive("waited").unwrap(), offer);
    }

    #[test]
    fn a_stranger_is_told_from_a_newer_release_and_from_a_broken_peer() {
        assert_eq!(answer_to(b"GET / HTTP/1.1\r\n").unwrap_err().code(), 21);
        assert_eq!(answer_to(b"ib").unwrap_err().code(), 23);
        let e = answer_to(b"ibvT\x02").unwrap_err();
        assert!(matches!(e, Failure::PeerVersion { theirs: 2, ours: 1, .. }), "{e}");
        assert_eq!(answer_to(b"ibvT\x01\0\0\0\0\0\x10\x01").unwrap_err().code(), 21);
        assert_eq!(answer_to(b"ibvT\x01\0\0\0\0\0\0\x02\x06\x06").unwrap_err().code(), 21);
    }

    #[test]
    fn a_stranger_is_recognised_before_a_whole_header_came() {
        let (mut channel, mut peer) = pair();
        peer.write_all(b"hi").unwrap();
        assert_eq!(channel.receive("waited").unwrap_err().code(), 21);
    }

    #[test]
    fn a_silent_peer_costs_no_more_than_the_limit() {
        let (mut channel, _peer) = pair();
        let e = channel.receive("waited for its hello").unwrap_err();
        assert!(matches!(e, Failure::Silent { during: "waited for its hello", .. }), "{e}");
    }

    #[test]
    fn a_trickling_peer_costs_no_more_than_the_limit_either() {
        let (mut channel, mut peer) = pair();
        let trickle = thread::spawn(move || {
            let bytes = [b"ibvT\x01\0\0\0\0\0\x0f\0".as_slice(), &[0; 64]].concat();
            bytes.iter().all(|byte| {
                thread::sleep(Duration::from_millis(20));
                peer.write_all(&[*byte]).is_ok()
            })
        });
        assert_eq!(channel.receive("waited").unwrap_err().code(), 24);
        drop(channel);
        assert!(!trickle.join().unwrap(), "the reader read all of it");
    }

    #[test]
    fn a_reason_reaches_the_peer_without_its_control_characters() {
        let (mut channel, peer) = pair();
        let mut peer = Channel::new(peer, Duration::from_millis(200));
        channel.abort(&Failure::Garbage("a\x1b[2Jé".repeat(2000)));
        match peer.receive("waited").unwrap_err() {
            Failure::PeerFailed(reason) => assert!(!reason.contains('\x1b') && reason.contains('é')),
            e => panic!("{e}"),
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_message_or_a_failure(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let framed = [b"ibvT\x01\0\0\0".as_slice(), &(bytes.len() as u32).to_be_bytes(), &bytes].concat();
            if let Ok(message) = answer_to(&framed) {
                // Numbers have longer forms than the one written here.
                prop_assert!(frame(&message).unwrap().len() <= framed.len());
            }
            let _ = answer_to(&bytes).unwrap_err();
        }
    }
}
