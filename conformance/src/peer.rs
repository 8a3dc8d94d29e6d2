//! End b, wherever it is: cases speak to it through [`Peer`], which is an agent in this process or one
//! behind a socket. What the agent does with a command is `peer/agent.rs`'s.

use crate::{
    pattern::{touched_byte, wrong_byte},
    wait::{Look, Waiter},
};
use ibv_core::{Access, Caps, IbvConfig, IbvQpInfo, IbvRemoteMemoryRegionView, IbvWc, QpState};

mod agent;
mod tcp;
mod wire;
pub(crate) use agent::Agent;
pub(crate) use tcp::{TcpPeer, serve};
pub(crate) use wire::{Command, Limits, RangeOf, Reply, WireOp, WireRequest};

/// Whoever executes commands at end b.
pub(crate) trait Peer {
    fn execute(&mut self, command: Command) -> Result<Reply, String>;
}

/// A queue pair of end b.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerQp(pub(crate) u32);

/// A region of end b; it lives until the case ends or [`PeerEnd::deregister`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerRegion {
    pub(crate) id: u32,
    pub(crate) remote: IbvRemoteMemoryRegionView,
}

impl PeerRegion {
    pub(crate) fn whole(self) -> RangeOf {
        self.range(0, self.remote.len)
    }
    pub(crate) fn range(self, at: usize, len: usize) -> RangeOf {
        RangeOf { region: self.id, at: at as u64, len: len as u64 }
    }
    /// `len` bytes from `at` on, as a case names them to its own queue pair.
    pub(crate) fn at(self, at: usize, len: usize) -> Result<IbvRemoteMemoryRegionView, String> {
        self.remote
            .slice(at, len)
            .ok_or_else(|| format!("the case cut {at}+{len} of {} bytes", self.remote.len))
    }
}

/// End b, as cases use it.
pub(crate) struct PeerEnd<'p> {
    peer: &'p mut dyn Peer,
    wait: Waiter,
    pub(crate) caps: Caps,
}

/// Bytes in one read or write command; larger ones are several.
const PIECE: usize = 32 * 1024;

fn odd<T>(wanted: &str, got: &Reply) -> Result<T, String> {
    Err(format!("end b answered {got:?} where {wanted} was due"))
}

macro_rules! expect {
    ($self:ident, $command:expr, $pattern:pat => $value:expr, $wanted:literal) => {
        match $self.peer.execute($command)? {
            $pattern => Ok($value),
            Reply::Failed(why) => Err(format!("end b: {why}")),
            other => odd($wanted, &other),
        }
    };
}

impl<'p> PeerEnd<'p> {
    pub(crate) fn new(peer: &'p mut dyn Peer, wait: Waiter) -> Result<Self, String> {
        let caps = match peer.execute(Command::Open)? {
            Reply::Opened(caps) => *caps,
            Reply::Failed(why) => return Err(format!("end b: {why}")),
            other => return odd("capabilities", &other),
        };
        Ok(Self { peer, wait, caps })
    }

    /// Zero bytes, registered for everything that the device offers.
    pub(crate) fn alloc(&mut self, len: usize) -> Result<PeerRegion, String> {
        let mut access = Access::ALL;
        access.set(Access::REMOTE_ATOMIC, self.caps.atomics.present());
        self.alloc_for(len, access)
    }

    pub(crate) fn alloc_for(&mut self, len: usize, access: Access) -> Result<PeerRegion, String> {
        let command = Command::Alloc { len: len as u64, access: access.bits() };
        expect!(self, command, Reply::Region { id, remote } => PeerRegion { id, remote }, "a region")
    }

    pub(crate) fn deregister(&mut self, region: PeerRegion) -> Result<(), String> {
        expect!(self, Command::Deregister { region: region.id }, Reply::Done => (), "an end")
    }

    pub(crate) fn write(&mut self, region: PeerRegion, at: usize, bytes: &[u8]) -> Result<(), String> {
        for (i, piece) in bytes.chunks(PIECE).enumerate() {
            let at = (at + i * PIECE) as u64;
            let command = Command::Write { region: region.id, at, bytes: piece.to_vec() };
            expect!(self, command, Reply::Done => (), "an end")?;
        }
        Ok(())
    }

    /// Reads now, whatever is still on its way.
    pub(crate) fn read(&mut self, region: PeerRegion, at: usize, len: usize) -> Result<Vec<u8>, String> {
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let range = region.range(at + out.len(), PIECE.min(len - out.len()));
            let bytes = expect!(self, Command::Read { range }, Reply::Bytes(b) => b, "bytes")?;
            if bytes.len() as u64 != range.len {
                return Err(format!("end b read {} bytes where {} were asked for", bytes.len(), range.len));
            }
            out.extend(bytes);
        }
        Ok(out)
    }

    /// Fills with [`pattern`](crate::pattern::pattern) of `seed`.
    pub(crate) fn fill(&mut self, region: PeerRegion, seed: u64) -> Result<(), String> {
        expect!(self, Command::Fill { range: region.whole(), seed }, Reply::Done => (), "an end")
    }

    /// Compares now with the pattern of `seed` from its byte `from` on.
    fn differs(&mut self, range: RangeOf, seed: u64, from: u64) -> Result<Option<String>, String> {
        expect!(self, Command::Compare { range, seed, from }, Reply::Differs(d) => d, "a comparison")
    }

    /// Waits until `region` holds the pattern of `seed`. A completion at this end does not say that the
    /// peer's processor sees the bytes already, so this looks more than once.
    pub(crate) fn expect_pattern(&mut self, region: PeerRegion, seed: u64) -> Result<(), String> {
        self.expect_range(region.whole(), seed, 0)
    }

    /// The same for a range that holds the pattern's bytes from `from` on.
    pub(crate) fn expect_range(&mut self, range: RangeOf, seed: u64, from: u64) -> Result<(), String> {
        let wait = self.wait.clone();
        wait.until_right(|| self.differs(range, seed, from))
            .map_err(|why| format!("end b's memory never became what was put there: {why}"))
    }

    /// The pattern of `seed` must be there now: a completion at end b has announced it.
    pub(crate) fn expect_pattern_now(&mut self, region: PeerRegion, seed: u64) -> Result<(), String> {
        match self.differs(region.whole(), seed, 0)? {
            None => Ok(()),
            Some(why) => Err(format!("a completion was polled before its bytes were there: {why}")),
        }
    }

    /// Waits until the bytes from `at` on are `want`.
    pub(crate) fn expect_bytes(&mut self, region: PeerRegion, at: usize, want: &[u8]) -> Result<(), String> {
        let wait = self.wait.clone();
        wait.until_right(|| {
            let got = self.read(region, at, want.len())?;
            Ok(wrong_byte("end b", at, &got, want))
        })
    }

    /// The bytes must be `want` once the fabric has come to rest: nothing may have touched them.
    pub(crate) fn expect_untouched(
        &mut self,
        region: PeerRegion,
        at: usize,
        want: &[u8],
    ) -> Result<(), String> {
        self.wait.settle();
        let got = self.read(region, at, want.len())?;
        touched_byte("end b", at, &got, want).map_or(Ok(()), Err)
    }

    /// A queue pair with a completion queue of its own, and its endpoint.
    pub(crate) fn create_qp(
        &mut self,
        config: &IbvConfig,
        channel: bool,
    ) -> Result<(PeerQp, IbvQpInfo), String> {
        let command = Command::CreateQp { config: Box::new(config.clone()), channel };
        let (id, info) = expect!(self, command, Reply::Qp { id, info } => (id, info), "a queue pair")?;
        let info = IbvQpInfo::from_bytes(&info).map_err(|e| format!("end b's endpoint: {e}"))?;
        Ok((PeerQp(id), info))
    }

    pub(crate) fn connect(&mut self, qp: PeerQp, info: &IbvQpInfo) -> Result<(), String> {
        let command = Command::Connect { qp: qp.0, info: info.to_bytes().to_vec() };
        expect!(self, command, Reply::Done => (), "an end")
    }

    /// Posts one receive into `ranges`; its id.
    pub(crate) fn post_recv(&mut self, qp: PeerQp, ranges: &[RangeOf]) -> Result<u64, String> {
        let command = Command::PostRecv { qp: qp.0, ranges: ranges.to_vec() };
        expect!(self, command, Reply::Id(id) => id, "an id")
    }

    /// Posts one request; its first id and their number.
    pub(crate) fn post(&mut self, qp: PeerQp, request: WireRequest) -> Result<(u64, u32), String> {
        let command = Command::Post { qp: qp.0, request: Box::new(request) };
        expect!(self, command, Reply::Ids { first, count } => (first, count), "ids")
    }

    /// What is in the queue pair's completion queue now, at most `max`.
    pub(crate) fn poll(&mut self, qp: PeerQp, max: u32) -> Result<Vec<IbvWc>, String> {
        expect!(self, Command::Poll { qp: qp.0, max }, Reply::Completions(wcs) => wcs, "completions")
    }

    /// Waits for exactly `n` completions, successful or not.
    pub(crate) fn wait(&mut self, qp: PeerQp, n: usize) -> Result<Vec<IbvWc>, String> {
        let wait = self.wait.clone();
        let mut seen = Vec::new();
        let what = format!("{n} completions at end b");
        let done = wait.until_all(
            || what.clone(),
            || {
                let got = self.poll(qp, 16)?;
                seen.extend(&got);
                Ok(Look::counted(got.len(), seen.len(), n))
            },
        );
        done.map_err(|e| format!("{e}; {} came: {}", seen.len(), crate::ctx::list(&seen)))?;
        seen.extend(self.poll(qp, 16)?);
        if seen.len() > n {
            return Err(format!(
                "{} completions at end b where {n} were due: {}",
                seen.len(),
                crate::ctx::list(&seen)
            ));
        }
        Ok(seen)
    }

    pub(crate) fn state(&mut self, qp: PeerQp) -> Result<QpState, String> {
        expect!(self, Command::State { qp: qp.0 }, Reply::State(n) => QpState(n), "a state")
    }

    /// A queue pair's endpoint, asked for again.
    pub(crate) fn endpoint(&mut self, qp: PeerQp) -> Result<IbvQpInfo, String> {
        let bytes = expect!(self, Command::Endpoint { qp: qp.0 }, Reply::Bytes(b) => b, "an endpoint")?;
        IbvQpInfo::from_bytes(&bytes).map_err(|e| format!("end b's endpoint: {e}"))
    }

    /// The configuration in force, as negotiated.
    pub(crate) fn config(&mut self, qp: PeerQp) -> Result<IbvConfig, String> {
        expect!(self, Command::Config { qp: qp.0 }, Reply::Config(config) => *config, "a configuration")
    }

    /// First phase of closing.
    pub(crate) fn start_close(&mut self, qp: PeerQp) -> Result<(), String> {
        expect!(self, Command::StartClose { qp: qp.0 }, Reply::Done => (), "an end")
    }

    pub(crate) fn drop_qp(&mut self, qp: PeerQp) -> Result<(), String> {
        expect!(self, Command::DropQp { qp: qp.0 }, Reply::Done => (), "an end")
    }

    pub(crate) fn arm(&mut self, qp: PeerQp, solicited_only: bool) -> Result<(), String> {
        expect!(self, Command::Arm { qp: qp.0, solicited_only }, Reply::Done => (), "an end")
    }

    pub(crate) fn take_events(&mut self, qp: PeerQp) -> Result<u32, String> {
        expect!(self, Command::TakeEvents { qp: qp.0 }, Reply::Count(n) => n, "a count")
    }
}
