//! End b's agent: owns its objects and does what commands say. It trusts no command: every handle is
//! looked up, every number is bounded, and nothing panics.

use super::Peer;
use super::wire::{Command, Limits, RangeOf, Reply, WireRequest};
use crate::pattern;
use ibv_core::{
    Access, Closing, Connected, HeapMemory, IbvConfig, IbvCq, IbvDomain, IbvDomainImpl, IbvMemoryRegion,
    IbvMemoryRegionView, IbvQpInfo, IbvQueuePair, IbvWc, Op, Payload, Poller, QueuePair, Request,
};
use std::{collections::BTreeMap, fmt::Display, sync::Arc};

/// Everything that end b has. Queue pairs drop before regions; both orders are legal.
pub(crate) struct Agent<D: IbvDomainImpl> {
    qps: BTreeMap<u32, Slot<D>>,
    regions: BTreeMap<u32, IbvMemoryRegion<D>>,
    registered: u64,
    next: u32,
    domain: Arc<IbvDomain<D>>,
}

/// A queue pair and its completion queue.
struct Slot<D: IbvDomainImpl> {
    stage: Stage<D>,
    poller: Poller<D>,
    _cq: Arc<IbvCq<D>>,
}

enum Stage<D: IbvDomainImpl> {
    Unconnected(QueuePair<D::QueuePair>),
    Connected(Connected<D::QueuePair>),
    Closing(Closing<D::QueuePair>),
    /// Only while one stage becomes the next, or after that failed.
    Gone,
}

fn say(e: impl Display) -> String {
    e.to_string()
}

fn check(ok: bool, why: &str) -> Result<(), String> {
    if ok { Ok(()) } else { Err(why.into()) }
}

impl<D: IbvDomainImpl> Peer for Agent<D> {
    fn execute(&mut self, command: Command) -> Result<Reply, String> {
        Ok(self.reply(command).unwrap_or_else(Reply::Failed))
    }
}

impl<D: IbvDomainImpl> Agent<D> {
    pub(crate) fn new(domain: Arc<IbvDomain<D>>) -> Self {
        Self { qps: BTreeMap::new(), regions: BTreeMap::new(), registered: 0, next: 1, domain }
    }

    fn reply(&mut self, command: Command) -> Result<Reply, String> {
        match command {
            Command::Open => Ok(Reply::Opened(Box::new(self.domain.caps()))),
            Command::Alloc { len, access } => self.alloc(len, access),
            Command::Deregister { region } => self.deregister(region),
            Command::Write { region, at, bytes } => self.write(region, at, &bytes),
            Command::Read { range } => self.read(range).map(Reply::Bytes),
            Command::Fill { range, seed } => self.fill(range, seed),
            Command::Compare { range, seed, from } => self.compare(range, seed, from),
            Command::CreateQp { config, channel } => self.create_qp(*config, channel),
            Command::Connect { qp, info } => self.connect(qp, &info),
            Command::PostRecv { qp, ranges } => self.post_recv(qp, &ranges),
            Command::Post { qp, request } => self.post(qp, &request),
            Command::Poll { qp, max } => self.poll(qp, max),
            Command::State { qp } => self.state(qp),
            Command::Config { qp } => self.config(qp),
            Command::Endpoint { qp } => self.endpoint(qp),
            Command::StartClose { qp } => self.start_close(qp),
            Command::DropQp { qp } => {
                self.qps.remove(&qp).map(|_| Reply::Done).ok_or_else(|| no("queue pair", qp))
            }
            Command::Arm { qp, solicited_only } => {
                self.slot(qp)?.poller.arm(solicited_only).map(|()| Reply::Done).map_err(say)
            }
            Command::TakeEvents { qp } => self.slot(qp)?.poller.take_events().map(Reply::Count).map_err(say),
            Command::Bye => Ok(Reply::Done),
        }
    }

    fn fresh_id(&mut self) -> Result<u32, String> {
        check(self.qps.len().max(self.regions.len()) < Limits::OBJECTS, "too many objects")?;
        self.next += 1;
        Ok(self.next)
    }

    fn alloc(&mut self, len: u64, access: u32) -> Result<Reply, String> {
        check(self.registered.saturating_add(len) <= Limits::MEMORY, "too much registered memory")?;
        let access = Access::from_bits(access).ok_or("access bits that no release knows")?;
        let id = self.fresh_id()?;
        let memory = HeapMemory::zeroed(usize::try_from(len).map_err(say)?).map_err(say)?;
        let region = self.domain.register_with(memory, access).map_err(say)?;
        let remote = region.remote();
        self.registered += len;
        self.regions.insert(id, region);
        Ok(Reply::Region { id, remote })
    }

    fn deregister(&mut self, id: u32) -> Result<Reply, String> {
        let region = self.regions.remove(&id).ok_or_else(|| no("region", id))?;
        self.registered = self.registered.saturating_sub(region.len() as u64);
        region.deregister().map(|_| Reply::Done).map_err(|(_, e)| say(e))
    }

    fn region(&self, id: u32) -> Result<&IbvMemoryRegion<D>, String> {
        self.regions.get(&id).ok_or_else(|| no("region", id))
    }

    fn write(&mut self, id: u32, at: u64, bytes: &[u8]) -> Result<Reply, String> {
        let at = usize::try_from(at).map_err(say)?;
        self.region(id)?.write_at(at, bytes).map(|()| Reply::Done).map_err(say)
    }

    fn read(&self, range: RangeOf) -> Result<Vec<u8>, String> {
        check(range.len <= Limits::READ, "too many bytes in one read")?;
        let (at, len) = (usize::try_from(range.at).map_err(say)?, usize::try_from(range.len).map_err(say)?);
        let mut out = vec![0; len];
        self.region(range.region)?.read_at(at, &mut out).map_err(say)?;
        Ok(out)
    }

    /// Calls `each` with pieces of `range` and their offset in it.
    fn pieces(
        range: RangeOf,
        mut each: impl FnMut(u64, RangeOf) -> Result<bool, String>,
    ) -> Result<(), String> {
        let mut done = 0;
        while done < range.len {
            let len = Limits::READ.min(range.len - done);
            let at = range.at.checked_add(done).ok_or("a range beyond 2^64")?;
            if !each(done, RangeOf { at, len, ..range })? {
                break;
            }
            done += len;
        }
        Ok(())
    }

    fn fill(&mut self, range: RangeOf, seed: u64) -> Result<Reply, String> {
        let region = self.region(range.region)?;
        Self::pieces(range, |done, piece| {
            let bytes: Vec<u8> = (0..piece.len).map(|i| pattern::byte(seed, done + i)).collect();
            region.write_at(usize::try_from(piece.at).map_err(say)?, &bytes).map_err(say)?;
            Ok(true)
        })?;
        Ok(Reply::Done)
    }

    fn compare(&mut self, range: RangeOf, seed: u64, from: u64) -> Result<Reply, String> {
        let mut found = None;
        Self::pieces(range, |done, piece| {
            let why = pattern::difference(&self.read(piece)?, seed, from.wrapping_add(done));
            found = why.map(|why| format!("from byte {} on, {why}", piece.at));
            Ok(found.is_none())
        })?;
        Ok(Reply::Differs(found))
    }

    fn create_qp(&mut self, config: IbvConfig, channel: bool) -> Result<Reply, String> {
        let id = self.fresh_id()?;
        let depth = config.max_send_wr.saturating_add(config.max_recv_wr).max(1);
        let cq =
            if channel { self.domain.create_cq_with_channel(depth) } else { self.domain.create_cq(depth) };
        let cq = cq.map_err(say)?;
        let mut qp = self.domain.create_queue_pair(config, &cq, &cq).map_err(say)?;
        let info = qp.get_qp_info().map_err(say)?.to_bytes().to_vec();
        let poller = cq.poller().map_err(say)?;
        self.qps.insert(id, Slot { stage: Stage::Unconnected(qp), poller, _cq: cq });
        Ok(Reply::Qp { id, info })
    }

    fn slot(&mut self, id: u32) -> Result<&mut Slot<D>, String> {
        self.qps.get_mut(&id).ok_or_else(|| no("queue pair", id))
    }

    fn connect(&mut self, id: u32, info: &[u8]) -> Result<Reply, String> {
        let info = IbvQpInfo::from_bytes(info).map_err(say)?;
        let slot = self.slot(id)?;
        match std::mem::replace(&mut slot.stage, Stage::Gone) {
            Stage::Unconnected(qp) => match qp.connect(&info) {
                Ok(qp) => {
                    slot.stage = Stage::Connected(qp);
                    Ok(Reply::Done)
                }
                Err((qp, e)) => {
                    slot.stage = Stage::Unconnected(qp);
                    Err(say(e))
                }
            },
            other => {
                slot.stage = other;
                Err("the queue pair is not waiting for a connection".into())
            }
        }
    }

    fn views<'r>(
        regions: &'r BTreeMap<u32, IbvMemoryRegion<D>>,
        ranges: &[RangeOf],
    ) -> Result<Vec<IbvMemoryRegionView<'r>>, String> {
        check(ranges.len() <= Limits::RANGES, "too many ranges")?;
        let view = |r: &RangeOf| {
            let region = regions.get(&r.region).ok_or_else(|| no("region", r.region))?;
            let (at, len) = (usize::try_from(r.at).map_err(say)?, usize::try_from(r.len).map_err(say)?);
            region.view().slice(at, len).ok_or_else(|| "a range outside its region".into())
        };
        ranges.iter().map(view).collect()
    }

    fn post_recv(&mut self, id: u32, ranges: &[RangeOf]) -> Result<Reply, String> {
        let views = Self::views(&self.regions, ranges)?;
        let slot = self.qps.get_mut(&id).ok_or_else(|| no("queue pair", id))?;
        let posted = match &mut slot.stage {
            Stage::Unconnected(qp) => qp.post_recv(&views),
            Stage::Connected(qp) => qp.post_recv(&views),
            _ => return Err("the queue pair is closing".into()),
        };
        posted.map(Reply::Id).map_err(say)
    }

    fn post(&mut self, id: u32, request: &WireRequest) -> Result<Reply, String> {
        let views = Self::views(&self.regions, &request.local)?;
        let slot = self.qps.get_mut(&id).ok_or_else(|| no("queue pair", id))?;
        let Stage::Connected(qp) = &mut slot.stage else {
            return Err("the queue pair is not connected".into());
        };
        let plain = Request::new(Op::from(request.op), request.remote, Payload::Sges(&views));
        let asked = if request.solicited { plain.solicited() } else { plain };
        let ids = qp.post(&asked).map_err(say)?;
        Ok(Reply::Ids { first: ids.first, count: ids.count })
    }

    fn poll(&mut self, id: u32, max: u32) -> Result<Reply, String> {
        let mut wcs = vec![IbvWc::default(); max.min(Limits::POLL) as usize];
        let n = self.slot(id)?.poller.poll(&mut wcs).map_err(say)?;
        wcs.truncate(n);
        Ok(Reply::Completions(wcs))
    }

    fn state(&mut self, id: u32) -> Result<Reply, String> {
        let state = match &mut self.slot(id)?.stage {
            Stage::Unconnected(qp) => qp.state(),
            Stage::Connected(qp) => qp.state(),
            Stage::Closing(qp) => qp.state(),
            Stage::Gone => return Err("the queue pair is gone".into()),
        };
        state.map(|s| Reply::State(s.0)).map_err(say)
    }

    fn endpoint(&mut self, id: u32) -> Result<Reply, String> {
        let info = match &mut self.slot(id)?.stage {
            Stage::Unconnected(qp) => qp.get_qp_info(),
            Stage::Connected(qp) => qp.queue_pair().get_qp_info(),
            _ => return Err("the queue pair is closing".into()),
        };
        Ok(Reply::Bytes(info.map_err(say)?.to_bytes().to_vec()))
    }

    fn config(&mut self, id: u32) -> Result<Reply, String> {
        match &self.slot(id)?.stage {
            Stage::Unconnected(qp) => Ok(Reply::Config(Box::new(qp.config().clone()))),
            Stage::Connected(qp) => Ok(Reply::Config(Box::new(qp.config().clone()))),
            _ => Err("the queue pair is closing".into()),
        }
    }

    fn start_close(&mut self, id: u32) -> Result<Reply, String> {
        let slot = self.slot(id)?;
        match std::mem::replace(&mut slot.stage, Stage::Gone) {
            Stage::Connected(qp) => match qp.start_close() {
                Ok(closing) => {
                    slot.stage = Stage::Closing(closing);
                    Ok(Reply::Done)
                }
                Err((qp, e)) => {
                    slot.stage = Stage::Connected(qp);
                    Err(say(e))
                }
            },
            other => {
                slot.stage = other;
                Err("the queue pair is not connected".into())
            }
        }
    }
}

fn no(what: &str, id: u32) -> String {
    format!("no {what} {id}")
}
