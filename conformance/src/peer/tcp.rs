//! End b in another process: length-prefixed JSON over TCP, with a greeting that carries the version.
//! What is said is `wire.rs`'s; nothing here knows a device.

use super::{
    Agent, Peer,
    wire::{Command, Limits, Reply},
};
use crate::{
    fixture::{End, Fixture, Progress, Side, Versions},
    stopped::{StopKind, Stopped},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    io::{
        self,
        ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, TimedOut, WouldBlock},
        Read, Write,
    },
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::Arc,
    time::{Duration, Instant},
};

/// The version of the protocol; both ends have to speak the same.
const VERSION: u32 = 1;
const MAGIC: &str = "ibv-conformance";
/// How long an end waits for the other's next word. A case's own deadline is shorter.
const SILENCE: Duration = Duration::from_secs(120);
/// How long whoever connects has to say who it is; nobody else is listened to meanwhile.
const INTRODUCTION: Duration = Duration::from_secs(5);

/// The first frame, both ways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Greeting {
    magic: String,
    version: u32,
    provider: String,
    versions: Versions,
    /// Why this end can not take part.
    refusal: Option<String>,
}

impl Greeting {
    /// What this end says, if it can take part.
    fn of<F: Fixture + ?Sized>(fixture: &F, side: Side) -> Result<Self, Stopped> {
        let end = fixture.end(side).map_err(|e| Stopped::of(&e, ""))?;
        let versions = fixture.versions().complete(end.domain.device_info());
        let (magic, provider) = (MAGIC.into(), fixture.provider().into());
        Ok(Self { magic, version: VERSION, provider, versions, refusal: None })
    }

    /// Whether the two can run the suite together.
    fn check(&self, theirs: &Self) -> Result<(), Stopped> {
        if theirs.magic != MAGIC {
            return Err(StopKind::Stranger.because("the other end is no conformance peer"));
        }
        if theirs.version != self.version {
            let (a, b) = (self.version, theirs.version);
            let why =
                format!("protocol version {b} at the other end, {a} here; use the same release on both");
            return Err(StopKind::Version.because(why));
        }
        if theirs.provider != self.provider {
            let why = format!("provider {} at the other end, {} here", theirs.provider, self.provider);
            return Err(StopKind::Differs.because(why));
        }
        match &theirs.refusal {
            Some(why) => Err(StopKind::Refused.because(format!("the other end: {why}"))),
            None => Ok(()),
        }
    }
}

/// Frames over a stream.
#[derive(Debug)]
struct Channel(TcpStream);

impl Channel {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(SILENCE))?;
        stream.set_read_timeout(Some(Duration::from_millis(2)))?;
        Ok(Self(stream))
    }

    fn send(&mut self, what: &impl Serialize) -> Result<(), Stopped> {
        let broken = |why| StopKind::Broken.because(why);
        let body = serde_json::to_vec(what).map_err(|e| broken(format!("encode a frame: {e}")))?;
        let len = u32::try_from(body.len()).ok().filter(|n| *n as usize <= Limits::FRAME);
        let len = len.ok_or_else(|| {
            broken(format!("a frame of {} bytes; at most {} go", body.len(), Limits::FRAME))
        })?;
        let mut frame = len.to_be_bytes().to_vec();
        frame.extend(body);
        let gone = |e| StopKind::Vanished.because(format!("send to the other end: {e}"));
        self.0.write_all(&frame).map_err(gone)
    }

    /// One frame; `meanwhile` is called while nothing comes, for `patience` at most.
    fn receive<T: DeserializeOwned>(
        &mut self,
        patience: Duration,
        meanwhile: impl Fn(),
    ) -> Result<T, Stopped> {
        let mut len = [0; 4];
        self.fill(&mut len, patience, &meanwhile)?;
        let len = u32::from_be_bytes(len) as usize;
        if len > Limits::FRAME {
            let most = Limits::FRAME;
            let why = format!("the other end announced a frame of {len} bytes; at most {most} are taken");
            return Err(StopKind::Stranger.because(why));
        }
        let mut body = vec![0; len];
        self.fill(&mut body, patience, &meanwhile)?;
        let other = |e| StopKind::Stranger.because(format!("the other end sent what is no frame: {e}"));
        serde_json::from_slice(&body).map_err(other)
    }

    /// Reads all of `out`.
    fn fill(&mut self, out: &mut [u8], patience: Duration, meanwhile: &impl Fn()) -> Result<(), Stopped> {
        let (mut have, end) = (0, Instant::now() + patience);
        while have < out.len() {
            match self.0.read(&mut out[have..]) {
                Ok(0) => return Err(StopKind::Vanished.because("the other end hung up")),
                Ok(n) => have += n,
                Err(e) if matches!(e.kind(), WouldBlock | TimedOut | Interrupted) => meanwhile(),
                Err(e) => {
                    return Err(StopKind::Vanished.because(format!("receive from the other end: {e}")));
                }
            }
            if Instant::now() > end {
                return Err(StopKind::Silent.because(format!("the other end said nothing for {patience:?}")));
            }
        }
        Ok(())
    }

    fn greet(&mut self, ours: &Greeting, patience: Duration) -> Result<Greeting, Stopped> {
        self.send(ours)?;
        let theirs: Greeting = self.receive(patience, || ())?;
        ours.check(&theirs)?;
        Ok(theirs)
    }
}

/// The case's side of the connection.
#[derive(Debug)]
pub(crate) struct TcpPeer {
    channel: Channel,
    /// What the other end runs on.
    pub(crate) versions: Versions,
    /// Why there is no other end any more.
    pub(crate) lost: Option<Stopped>,
}

impl TcpPeer {
    pub(crate) fn connect<F: Fixture + ?Sized>(fixture: &F, address: &str) -> Result<Self, Stopped> {
        let addresses = resolve(address)?;
        let ours = Greeting::of(fixture, Side::A)?;
        let unreachable = |e| StopKind::Unreachable.because(format!("connect to {address}: {e}"));
        let stream = TcpStream::connect(&addresses[..]).map_err(unreachable)?;
        let mut channel = Channel::new(stream).map_err(unreachable)?;
        let theirs = channel.greet(&ours, SILENCE)?;
        Ok(Self { channel, versions: theirs.versions, lost: None })
    }

    /// Tells the other end that the run is over.
    pub(crate) fn bye(mut self) -> Result<(), String> {
        self.execute(Command::Bye).map(drop)
    }
}

impl Peer for TcpPeer {
    fn execute(&mut self, command: Command) -> Result<Reply, String> {
        let answer = self.channel.send(&command).and_then(|()| self.channel.receive(SILENCE, || ()));
        Ok(answer.inspect_err(|why| self.lost = Some(why.clone()))?)
    }
}

/// End b while it is open, and how it goes on.
type Serving<D> = Option<(Agent<D>, Arc<dyn Fn() -> Progress + Send + Sync>)>;

/// Serves one run as end b, until the other end says that it is over. Whoever comes before it and is no such end is
/// told to `note`, and passed over.
pub(crate) fn serve<F: Fixture + ?Sized>(
    fixture: &F,
    listener: &TcpListener,
    note: impl FnMut(String),
) -> Result<(), Stopped> {
    let mut channel = meet(&Greeting::of(fixture, Side::B)?, listener, note)?;
    let mut end: Serving<F::Domain> = None;
    loop {
        let progress = end.as_ref().map(|(_, progress)| progress.clone());
        let command = channel.receive(SILENCE, || {
            let _ = progress.as_ref().map(|go_on| go_on());
        })?;
        let reply = match (&command, &mut end) {
            (Command::Bye, _) => return channel.send(&Reply::Done),
            (Command::Open, _) => {
                // The old end goes first: a case must find nothing of the one before.
                drop(end.take());
                reopen(fixture, &mut end)
            }
            (_, Some((agent, _))) => agent.execute(command).unwrap_or_else(Reply::Failed),
            (_, None) => Reply::Failed("a command before the end was opened".into()),
        };
        channel.send(&reply)?;
    }
}

/// Waits for an end that this one can run the suite with.
fn meet(ours: &Greeting, listener: &TcpListener, mut note: impl FnMut(String)) -> Result<Channel, Stopped> {
    loop {
        let (stream, from) = match listener.accept() {
            Ok(met) => met,
            Err(e) if matches!(e.kind(), ConnectionAborted | ConnectionReset | Interrupted) => continue,
            Err(e) => return Err(StopKind::Broken.because(format!("accept a connection: {e}"))),
        };
        let greeted = match Channel::new(stream) {
            Ok(mut channel) => channel.greet(ours, INTRODUCTION).map(|_| channel),
            Err(e) => Err(StopKind::Vanished.because(e.to_string())),
        };
        match greeted {
            Ok(channel) => return Ok(channel),
            Err(why) => note(format!("{from}: {why}; still listening")),
        }
    }
}

/// What `HOST:PORT` stands for.
fn resolve(address: &str) -> Result<Vec<SocketAddr>, Stopped> {
    match address.to_socket_addrs() {
        Ok(addresses) => Ok(addresses.collect()),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
            Err(StopKind::NoAddress.because(format!("{address} is no address such as HOST:PORT")))
        }
        Err(e) => Err(StopKind::Unreachable.because(format!("find {address}: {e}"))),
    }
}

fn reopen<F: Fixture + ?Sized>(fixture: &F, end: &mut Serving<F::Domain>) -> Reply {
    match fixture.end(Side::B) {
        Err(e) => Reply::Failed(e.reason().to_owned()),
        Ok(End { domain, progress }) => {
            let caps = Box::new(domain.caps());
            *end = Some((Agent::new(Arc::new(domain)), progress));
            Reply::Opened(caps)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::mock::Mock;
    use provider_mock::{Drive, Fabric, FabricConfig, Schedule};
    use std::{net::Shutdown, thread};

    #[test]
    fn who_was_passed_over_is_said_once_each() {
        let fabric = Fabric::new(FabricConfig { drive: Drive::Manual, ..FabricConfig::default() });
        let far = Mock::new(Schedule::InOrder).on(fabric.clone());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut notes = Vec::new();
        thread::scope(|s| {
            s.spawn(|| {
                for words in ["GET / HTTP/1.1", ""] {
                    let mut stranger = TcpStream::connect(address).unwrap();
                    let _ = stranger.write_all(words.as_bytes());
                    // By now it may have been passed over.
                    let _ = stranger.shutdown(Shutdown::Write);
                    let _ = stranger.read_to_end(&mut Vec::new());
                }
                let near = Mock::new(Schedule::InOrder).on(fabric);
                TcpPeer::connect(&near, &address.to_string()).unwrap().bye().unwrap();
            });
            serve(&far, &listener, |note| notes.push(note)).unwrap();
        });
        let [web, mute] = &notes[..] else { panic!("{notes:?}") };
        assert!(web.contains("announced a frame of") && web.ends_with("; still listening"), "{web}");
        assert!(mute.contains("hung up; still listening"), "{mute}");
    }
}
