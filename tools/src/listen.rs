//! Waiting for the other end: a listener that is not put off by who connects by mistake. What is said over
//! the connection is `wire.rs`'s.

use crate::Failure;
use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// How long a connection may say nothing; meanwhile others are listened to.
const MUTE: Duration = Duration::from_secs(30);
/// Connections that have said nothing yet, at most; the oldest goes first.
const MUTES: usize = 32;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits for somebody whose first bytes are `magic`. Whoever says something else, says nothing or goes away
/// is told `magic`, reported to `note` and forgotten. With `wait`, no longer than that.
///
/// # Errors
/// The operating system's; `Silent` where nobody came in time.
pub(crate) fn accept(
    listener: &TcpListener,
    magic: [u8; 4],
    wait: Option<Duration>,
    note: &mut dyn FnMut(String),
) -> Result<TcpStream, Failure> {
    let io = |source| Failure::Io { what: "listening".into(), source };
    listener.set_nonblocking(true).map_err(io)?;
    let (start, mut strangers) = (Instant::now(), Strangers(Vec::new()));
    loop {
        match listener.accept() {
            Ok((link, addr)) => strangers.met(link, addr.to_string(), note),
            Err(e) if is_later(&e) => thread::sleep(PAUSE),
            Err(e) => return Err(io(e)),
        }
        if let Some(link) = strangers.listen(magic, note) {
            link.set_nonblocking(false).and_then(|()| link.set_nodelay(true)).map_err(io)?;
            return Ok(link);
        }
        if let Some(wait) = wait.filter(|wait| start.elapsed() >= *wait) {
            return Err(Failure::Silent {
                during: "waited for the other end",
                limit: wait,
                option: "--wait",
            });
        }
    }
}

/// Errors that belong to one connection, or to nobody.
fn is_later(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(e.kind(), WouldBlock | Interrupted | ConnectionAborted | ConnectionReset)
}

/// Connections of which nobody knows yet who they are.
struct Strangers(Vec<(TcpStream, String, Instant)>);

impl Strangers {
    fn met(&mut self, link: TcpStream, addr: String, note: &mut dyn FnMut(String)) {
        if self.0.len() == MUTES {
            let (_, addr, _) = self.0.remove(0);
            note(format!("{addr} said nothing and was dropped for newer connections"));
        }
        match link.set_nonblocking(true) {
            Ok(()) => self.0.push((link, addr, Instant::now())),
            Err(e) => note(format!("{addr}: {e}")),
        }
    }

    /// The first that is known by its words.
    fn listen(&mut self, magic: [u8; 4], note: &mut dyn FnMut(String)) -> Option<TcpStream> {
        let mut i = 0;
        while let Some((link, addr, since)) = self.0.get(i) {
            match judge(link, magic, *since) {
                Ok(true) => return Some(self.0.swap_remove(i).0),
                Ok(false) => i += 1,
                Err(why) => {
                    note(format!("{addr} {why}; still listening"));
                    let (link, ..) = self.0.remove(i);
                    dismiss(link, magic);
                }
            }
        }
        None
    }
}

/// Says who listens here, so that another of this project's commands knows whom it met, and hangs up. What was
/// said is read, since the operating system takes words back from whoever is hung up on unheard.
fn dismiss(mut link: TcpStream, magic: [u8; 4]) {
    let _ = link.read(&mut [0; 4096]);
    let _ = link.write(&magic);
    let _ = link.shutdown(Shutdown::Both);
}

/// Whether `link` has begun with `magic`; no, not yet; or what is wrong with it.
fn judge(link: &TcpStream, magic: [u8; 4], since: Instant) -> Result<bool, String> {
    let mut start = [0; 4];
    match link.peek(&mut start) {
        Ok(0) => Err("went away".into()),
        Ok(n) if start[..n] != magic[..n] => {
            let said = String::from_utf8_lossy(&start[..n]).escape_debug().to_string();
            Err(format!("speaks something else: it starts with \"{said}\""))
        }
        Ok(4) => Ok(true),
        Err(e) if !is_later(&e) => Err(format!("went away: {e}")),
        _ if since.elapsed() > MUTE => Err(format!("said nothing for {} s", MUTE.as_secs())),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    const MAGIC: [u8; 4] = *b"ibvX";

    /// What a listener makes of what happens at its address: the first byte after the magic, and its notes.
    fn meets(wait: Duration, visitors: impl FnOnce(SocketAddr) + Send) -> (Result<u8, Failure>, Vec<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let mut notes = Vec::new();
        let met = thread::scope(|scope| {
            scope.spawn(move || visitors(addr));
            accept(&listener, MAGIC, Some(wait), &mut |note| notes.push(note))
        });
        let fifth = met.map(|link| {
            let (mut five, mut seen) = ([0; 5], 0);
            link.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            while seen < 5 {
                seen = link.peek(&mut five).unwrap();
            }
            five[4]
        });
        (fifth, notes)
    }

    #[test]
    fn strangers_of_every_kind_are_passed_over() {
        let (met, notes) = meets(Duration::from_secs(20), |addr| {
            let visit = |words: &[u8]| {
                let mut link = TcpStream::connect(addr).unwrap();
                link.write_all(words).unwrap();
                link
            };
            drop(visit(b""));
            let mut chat = visit(b"GET / HTTP/1.1\r\n\r\n");
            let mut told = Vec::new();
            chat.read_to_end(&mut told).unwrap();
            assert_eq!(told, MAGIC, "a stranger is told who listens");
            let mute = visit(b"");
            let half = visit(b"ib");
            let mut right = visit(b"ibv");
            thread::sleep(Duration::from_millis(20));
            right.write_all(b"X7").unwrap();
            thread::sleep(Duration::from_millis(200));
            drop((chat, mute, half, right));
        });
        assert_eq!(met.unwrap(), b'7');
        let said = notes.join("\n");
        assert!(said.contains("went away") && said.contains("starts with \"GET \""), "{said}");
    }

    #[test]
    fn nobody_is_waited_for_longer_than_asked() {
        let (met, notes) = meets(Duration::from_millis(50), |_| {});
        assert!(matches!(met, Err(Failure::Silent { .. })) && notes.is_empty());
    }
}
