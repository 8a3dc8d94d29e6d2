//! End b in another process: length-prefixed JSON over TCP, with a greeting that carries the version.
//! What is said is `wire.rs`'s; nothing here knows a device.

use super::{
    Agent, Peer,
    wire::{Command, Limits, Reply},
};
use crate::fixture::{End, Fixture, Progress, Side, Versions};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    io::{
        self,
        ErrorKind::{TimedOut, WouldBlock},
        Read, Write,
    },
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

/// The version of the protocol; both ends have to speak the same.
const VERSION: u32 = 1;
const MAGIC: &str = "ibv-conformance";
/// How long an end waits for the other's next word. A case's own deadline is shorter.
const SILENCE: Duration = Duration::from_secs(120);

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
    fn of<F: Fixture + ?Sized>(fixture: &F, side: Side) -> Self {
        let (refusal, versions) = match fixture.end(side) {
            Ok(end) => (None, fixture.versions().complete(end.domain.device_info())),
            Err(e) => (Some(e.reason().to_owned()), fixture.versions()),
        };
        Self { magic: MAGIC.into(), version: VERSION, provider: fixture.provider().into(), versions, refusal }
    }

    /// Whether the two can run the suite together.
    fn check(&self, theirs: &Self) -> Result<(), String> {
        if theirs.magic != MAGIC {
            return Err("the other end is no conformance peer".into());
        }
        if theirs.version != self.version {
            let (a, b) = (self.version, theirs.version);
            return Err(format!(
                "protocol version {b} at the other end, {a} here; use the same release on both"
            ));
        }
        if theirs.provider != self.provider {
            return Err(format!("provider {} at the other end, {} here", theirs.provider, self.provider));
        }
        match (&self.refusal, &theirs.refusal) {
            (Some(why), _) => Err(format!("this end: {why}")),
            (_, Some(why)) => Err(format!("the other end: {why}")),
            _ => Ok(()),
        }
    }
}

/// Frames over a stream.
#[derive(Debug)]
struct Channel(TcpStream);

impl Channel {
    fn new(stream: TcpStream) -> Result<Self, String> {
        stream.set_nodelay(true).map_err(|e| format!("set TCP_NODELAY: {e}"))?;
        stream.set_write_timeout(Some(SILENCE)).map_err(|e| format!("set the write time limit: {e}"))?;
        stream
            .set_read_timeout(Some(Duration::from_millis(2)))
            .map_err(|e| format!("set the read time limit: {e}"))?;
        Ok(Self(stream))
    }

    fn send(&mut self, what: &impl Serialize) -> Result<(), String> {
        let body = serde_json::to_vec(what).map_err(|e| format!("encode a frame: {e}"))?;
        let len = u32::try_from(body.len()).ok().filter(|n| *n as usize <= Limits::FRAME);
        let len =
            len.ok_or_else(|| format!("a frame of {} bytes; at most {} go", body.len(), Limits::FRAME))?;
        let mut frame = len.to_be_bytes().to_vec();
        frame.extend(body);
        self.0.write_all(&frame).map_err(|e| format!("send to the other end: {e}"))
    }

    fn receive<T: DeserializeOwned>(&mut self, meanwhile: impl Fn()) -> Result<T, String> {
        let mut len = [0; 4];
        self.fill(&mut len, &meanwhile)?;
        let len = u32::from_be_bytes(len) as usize;
        if len > Limits::FRAME {
            return Err(format!(
                "the other end announced a frame of {len} bytes; at most {} are taken",
                Limits::FRAME
            ));
        }
        let mut body = vec![0; len];
        self.fill(&mut body, &meanwhile)?;
        serde_json::from_slice(&body).map_err(|e| format!("the other end sent what is no frame: {e}"))
    }

    /// Reads all of `out`, calling `meanwhile` while nothing comes.
    fn fill(&mut self, out: &mut [u8], meanwhile: &impl Fn()) -> Result<(), String> {
        let (mut have, end) = (0, Instant::now() + SILENCE);
        while have < out.len() {
            match self.0.read(&mut out[have..]) {
                Ok(0) => return Err("the other end hung up".into()),
                Ok(n) => have += n,
                Err(e) if matches!(e.kind(), WouldBlock | TimedOut | io::ErrorKind::Interrupted) => {
                    meanwhile()
                }
                Err(e) => return Err(format!("receive from the other end: {e}")),
            }
            if Instant::now() > end {
                return Err(format!("the other end said nothing for {SILENCE:?}"));
            }
        }
        Ok(())
    }

    fn greet(&mut self, ours: &Greeting) -> Result<Greeting, String> {
        self.send(ours)?;
        let theirs: Greeting = self.receive(|| ())?;
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
}

impl TcpPeer {
    pub(crate) fn connect<F: Fixture + ?Sized>(fixture: &F, address: &str) -> Result<Self, String> {
        let stream = TcpStream::connect(address).map_err(|e| format!("connect to {address}: {e}"))?;
        let mut channel = Channel::new(stream)?;
        let theirs = channel.greet(&Greeting::of(fixture, Side::A))?;
        Ok(Self { channel, versions: theirs.versions })
    }

    /// Tells the other end that the run is over.
    pub(crate) fn bye(mut self) -> Result<(), String> {
        self.execute(Command::Bye).map(drop)
    }
}

impl Peer for TcpPeer {
    fn execute(&mut self, command: Command) -> Result<Reply, String> {
        self.channel.send(&command)?;
        self.channel.receive(|| ())
    }
}

/// End b while it is open, and how it goes on.
type Serving<D> = Option<(Agent<D>, Arc<dyn Fn() -> Progress + Send + Sync>)>;

/// Serves one run as end b, until the other end says that it is over.
pub(crate) fn serve<F: Fixture + ?Sized>(fixture: &F, listener: &TcpListener) -> Result<(), String> {
    let (stream, from) = listener.accept().map_err(|e| format!("accept a connection: {e}"))?;
    let mut channel = Channel::new(stream)?;
    channel.greet(&Greeting::of(fixture, Side::B)).map_err(|e| format!("{from}: {e}"))?;
    let mut end: Serving<F::Domain> = None;
    loop {
        let progress = end.as_ref().map(|(_, progress)| progress.clone());
        let command = channel.receive(|| {
            let _ = progress.as_ref().map(|go_on| go_on());
        })?;
        let reply = match (&command, &mut end) {
            (Command::Bye, _) => return channel.send(&Reply::Done),
            (Command::Open, _) => {
                // The old end goes first: a case must find nothing of the one before.
                drop(end.take());
                reopen(fixture, &mut end)
            }
            (_, Some((agent, _))) => agent.execute(command)?,
            (_, None) => Reply::Failed("a command before the end was opened".into()),
        };
        channel.send(&reply)?;
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
