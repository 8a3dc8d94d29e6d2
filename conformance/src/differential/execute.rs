//! Runs a plan on two ends and notes what can be observed. What was due is not known here.

use super::plan::{DEPTH, Fault, Kind, Plan, SLOTS, Step};
use crate::{
    ctx::{Ctx, Link, Region, Say},
    fixture::{Pair, Unavailable},
    peer::{Agent, PeerEnd, PeerRegion},
    wait::Waiter,
};
use ibv_core::{
    Batch, IbvConfig, IbvDomain, IbvDomainImpl, IbvMemoryRegionView, IbvRemoteMemoryRegionView, IbvWc,
    PostError, Request, WcOpcode, WcStatus,
};
use std::sync::Arc;

/// Everything a caller can see of a run.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Each request built: its number of work requests, or why not.
    pub(super) posts: Vec<Result<u32, PostError>>,
    pub(super) epochs: Vec<Epoch>,
}

/// What is seen between two drains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch {
    /// Completions at end a in order: the request's number on its connection, and the status.
    pub(super) completions: Vec<(u64, WcStatus)>,
    /// Messages that end b received, in order.
    pub(super) received: Vec<Received>,
    /// End a's and end b's regions afterwards.
    pub(super) near: Vec<u8>,
    pub(super) far: Vec<u8>,
    /// The root cause that end a kept, as a request's number.
    pub(super) cause: Option<(u64, WcStatus)>,
}

/// A receive that succeeded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Received {
    opcode: WcOpcode,
    imm: Option<u32>,
    byte_len: u32,
    /// Of a send; an immediate alone writes nothing here.
    bytes: Vec<u8>,
}

/// Runs `plan`. Every wait has a deadline; `Err` says what did not come.
pub(super) fn execute<D: IbvDomainImpl>(
    plan: &Plan,
    base: IbvConfig,
    a: &IbvDomain<D>,
    b: IbvDomain<D>,
    wait: Waiter,
) -> Result<Observed, String> {
    let mut agent = Agent::new(Arc::new(b));
    let far = PeerEnd::new(&mut agent, wait.clone())?;
    let open = || Err::<Pair<D>, _>(Unavailable::Fail("not asked for".into()));
    let mut ctx = Ctx { a, b: far, here: None, wait, base, open: &open, skipped: None };
    let mut run = Run::new(plan, &mut ctx)?;
    for step in &plan.steps {
        run.step(&mut ctx, *step)?;
    }
    Ok(run.seen)
}

/// A request that was built, until its batch is rung or dropped.
#[derive(Clone, Copy)]
struct Built {
    first: u64,
    count: u32,
    signaled: bool,
    faulty: bool,
    /// It takes a receive.
    announces: bool,
}

/// Where requests go: both ends' memory, and what is there no more.
struct Ground<D: IbvDomainImpl> {
    near: Region<D>,
    far: PeerRegion,
    /// End b's receives point here, one slot each.
    inbox: PeerRegion,
    dead_near: IbvMemoryRegionView<'static>,
    dead_far: IbvRemoteMemoryRegionView,
}

impl<D: IbvDomainImpl> Ground<D> {
    fn new(plan: &Plan, c: &mut Ctx<'_, D>) -> Result<Self, String> {
        let size = plan.slot * SLOTS;
        let (near, gone) = (c.patterned(size, 1)?, c.region(64)?);
        let view = gone.view();
        let dead_near = IbvMemoryRegionView::from_raw_parts(view.addr(), 64, view.lkey());
        gone.deregister().map_err(|(_, e)| format!("deregister: {e}"))?;
        let (far, inbox, gone) = (c.b.alloc(size)?, c.b.alloc(plan.slot * DEPTH as usize)?, c.b.alloc(64)?);
        c.b.fill(far, 2)?;
        c.b.deregister(gone)?;
        Ok(Self { near, far, inbox, dead_near, dead_far: gone.remote })
    }

    fn local(&self, at: usize, len: usize, fault: Fault) -> Result<IbvMemoryRegionView<'_>, String> {
        let fine = self.near.view().slice(at, len).say("slice")?;
        Ok(match fault {
            Fault::WrongLocalKey => IbvMemoryRegionView::from_raw_parts(fine.addr(), len, !fine.lkey()),
            Fault::DeadLocalRegion => self.dead_near.slice(0, len).say("slice")?,
            _ => fine,
        })
    }

    fn remote(&self, at: usize, len: usize, fault: Fault) -> Result<IbvRemoteMemoryRegionView, String> {
        let fine = self.far.at(at, len)?;
        let end = fine.addr - at as u64 + self.far.remote.len as u64;
        Ok(match fault {
            Fault::WrongRemoteKey => IbvRemoteMemoryRegionView { rkey: !fine.rkey, ..fine },
            Fault::DeadRemoteRegion => IbvRemoteMemoryRegionView { len, ..self.dead_far },
            // Aligned where an atomic may need it, and over the end by its last byte at least.
            Fault::BeyondRemoteEnd if len == 8 => IbvRemoteMemoryRegionView { addr: end, ..fine },
            Fault::BeyondRemoteEnd => IbvRemoteMemoryRegionView { addr: end - len as u64 + 1, ..fine },
            _ => fine,
        })
    }
}

struct Run<'p, D: IbvDomainImpl> {
    plan: &'p Plan,
    link: Link<D>,
    ground: Ground<D>,
    /// Posts of the batch under way, played when it is rung or dropped.
    batch: Vec<Step>,
    /// Rung since the last drain.
    rung: Vec<Built>,
    /// Completions polled before the drain.
    early: Vec<IbvWc>,
    /// The id of the connection's first request.
    base: Option<u64>,
    /// Receives posted in this epoch, in order.
    recvs: Vec<u64>,
    immediate: u32,
    seen: Observed,
}

impl<'p, D: IbvDomainImpl> Run<'p, D> {
    fn new(plan: &'p Plan, c: &mut Ctx<'_, D>) -> Result<Self, String> {
        Ok(Self {
            plan,
            ground: Ground::new(plan, c)?,
            link: Self::connect(c)?,
            batch: Vec::new(),
            rung: Vec::new(),
            early: Vec::new(),
            base: None,
            recvs: Vec::new(),
            immediate: 0x0102_0300,
            seen: Observed::default(),
        })
    }

    fn connect(c: &mut Ctx<'_, D>) -> Result<Link<D>, String> {
        let config = c.shallow(DEPTH);
        c.link_with(&config, &config)
    }

    fn step(&mut self, c: &mut Ctx<'_, D>, step: Step) -> Result<(), String> {
        match step {
            Step::Post { .. } => self.batch.push(step),
            Step::Ring => self.play(c, true)?,
            Step::DropBatch => self.play(c, false)?,
            Step::Drain => self.drain(c)?,
        }
        Ok(())
    }

    /// Builds the batch, with receives at end b for what announces itself, and rings or drops it.
    fn play(&mut self, c: &mut Ctx<'_, D>, ring: bool) -> Result<(), String> {
        let steps = std::mem::take(&mut self.batch);
        let mut builder = Builder {
            plan: self.plan,
            ground: &self.ground,
            max_send: c.caps().max_send_size,
            batch: self.link.qp.batch(),
            built: Vec::new(),
            immediate: &mut self.immediate,
            posts: &mut self.seen.posts,
        };
        for step in steps {
            builder.build(step)?;
        }
        if !ring {
            return Ok(());
        }
        let Builder { batch, built, .. } = builder;
        // A receive for each announcement before it can arrive.
        for _ in built.iter().filter(|b| b.announces) {
            let at = self.recvs.len() % DEPTH as usize * self.plan.slot;
            self.recvs.push(c.b.post_recv(self.link.peer, &[self.ground.inbox.range(at, self.plan.slot)])?);
        }
        batch.ring().say("ring")?;
        self.base = self.base.or(built.first().map(|b| b.first));
        self.rung.extend(built);
        Ok(())
    }

    /// Waits for everything rung, and notes what is to be seen.
    fn drain(&mut self, c: &mut Ctx<'_, D>) -> Result<(), String> {
        let failing = self.rung.iter().position(|b| b.faulty);
        if failing.is_none() && self.rung.last().is_some_and(|b| !b.signaled) {
            self.mark(c)?;
        }
        let reports = |(i, b): &(usize, &Built)| failing.is_some_and(|k| *i >= k) || b.signaled;
        let due: u32 = self.rung.iter().enumerate().filter(reports).map(|(_, b)| b.count).sum();
        let mut wcs = std::mem::take(&mut self.early);
        wcs.extend(c.completions(&mut self.link, (due as usize).saturating_sub(wcs.len()))?);
        let base = self.base.unwrap_or(0);
        let number = |id: u64| id.wrapping_sub(base);
        let mut epoch = Epoch {
            completions: wcs.iter().map(|wc| (number(wc.wr_id), wc.status)).collect(),
            cause: self.link.qp.first_error().map(|e| (number(e.wr_id), e.status)),
            ..Epoch::default()
        };
        epoch.received = self.received(c, failing.is_none())?;
        // A completion at end a does not say that end b's processor sees the bytes.
        c.wait.settle();
        epoch.near = self.ground.near.to_vec();
        epoch.far = c.b.read(self.ground.far, 0, self.ground.far.remote.len)?;
        self.seen.epochs.push(epoch);
        self.rung.clear();
        self.recvs.clear();
        if failing.is_some() { self.start_over(c) } else { Ok(()) }
    }

    /// A signaled request behind unsignaled ones. Where the queue is full, completions make room first.
    fn mark(&mut self, c: &mut Ctx<'_, D>) -> Result<(), String> {
        let (far, wait) = (self.ground.far.remote, c.wait.clone());
        let marker = Request::put(IbvRemoteMemoryRegionView { len: 0, ..far }, &[]);
        let (link, early) = (&mut self.link, &mut self.early);
        let ids = wait.until(
            || "room for a marker behind unsignaled requests".into(),
            || match link.qp.post(&marker) {
                Ok(ids) => Ok(Some(ids)),
                Err(PostError::QueueFull) => {
                    let mut out = [IbvWc::default(); 4];
                    let n = link.poller.poll(&mut out).say("poll")?;
                    early.extend(&out[..n]);
                    Ok(None)
                }
                Err(e) => Err(format!("a marker: {e}")),
            },
        )?;
        self.rung.push(Built { first: ids.first, count: 1, signaled: true, faulty: false, announces: false });
        Ok(())
    }

    fn received(&mut self, c: &mut Ctx<'_, D>, all: bool) -> Result<Vec<Received>, String> {
        let wcs = if all { c.b.wait(self.link.peer, self.recvs.len())? } else { self.polled(c)? };
        let mut received = Vec::new();
        for wc in wcs.iter().filter(|wc| wc.is_valid()) {
            let at = self.recvs.iter().position(|id| *id == wc.wr_id).say("a receive that was not posted")?;
            let len = if wc.opcode == WcOpcode::RECV { wc.byte_len as usize } else { 0 };
            let bytes = c.b.read(self.ground.inbox, at % DEPTH as usize * self.plan.slot, len)?;
            received.push(Received { opcode: wc.opcode, imm: wc.imm(), byte_len: wc.byte_len, bytes });
        }
        Ok(received)
    }

    /// What end b has after a failure: some of its receives may never complete.
    fn polled(&mut self, c: &mut Ctx<'_, D>) -> Result<Vec<IbvWc>, String> {
        c.wait.settle();
        c.b.poll(self.link.peer, DEPTH + 1)
    }

    /// After a failure: another connection, and memory as it was in the beginning.
    fn start_over(&mut self, c: &mut Ctx<'_, D>) -> Result<(), String> {
        let old = std::mem::replace(&mut self.link, Self::connect(c)?);
        c.b.drop_qp(old.peer)?;
        drop(old);
        self.base = None;
        let near = &self.ground.near;
        near.write_at(0, &crate::pattern::pattern(1, near.len())).say("fill")?;
        c.b.fill(self.ground.far, 2)
    }
}

/// Builds one batch.
struct Builder<'b, D: IbvDomainImpl> {
    plan: &'b Plan,
    ground: &'b Ground<D>,
    max_send: usize,
    batch: Batch<'b, D::QueuePair>,
    built: Vec<Built>,
    immediate: &'b mut u32,
    posts: &'b mut Vec<Result<u32, PostError>>,
}

impl<D: IbvDomainImpl> Builder<'_, D> {
    fn build(&mut self, step: Step) -> Result<(), String> {
        let Step::Post { kind, local, remote, length, fault, unsignaled } = step else { return Ok(()) };
        let (slot, len) = (self.plan.slot, self.plan.length(length, kind, fault, self.max_send));
        let ground = self.ground;
        let sges = [ground.local(local * slot, len, fault)?];
        let there = ground.remote(remote * slot, len, fault)?;
        let mut request = match kind {
            Kind::Put => Request::put(there, &sges),
            Kind::PutWithImm => {
                *self.immediate += 1;
                Request::put_with_imm(there, &sges, *self.immediate)
            }
            Kind::Get | Kind::Forward => Request::get(&sges, there),
            Kind::Send => Request::send(&sges),
            Kind::FetchAdd => Request::fetch_add(there, &sges, 0x0101_0101),
            Kind::CompareSwap => Request::compare_swap(there, &sges, 0, u64::MAX),
        };
        if unsignaled {
            request = request.unsignaled();
        }
        let announces = matches!(kind, Kind::PutWithImm | Kind::Send);
        self.push(&request, !unsignaled, fault != Fault::None, announces);
        if kind == Kind::Forward {
            let next = ground.remote((remote + 1) % SLOTS * slot, len, Fault::None)?;
            self.push(&Request::put(next, &sges).fenced(), true, false, false);
        }
        Ok(())
    }

    fn push(&mut self, request: &Request<'_>, signaled: bool, faulty: bool, announces: bool) {
        let posted = self.batch.push(request);
        self.posts.push(posted.map(|ids| ids.count));
        if let Ok(ids) = posted {
            self.built.push(Built { first: ids.first, count: ids.count, signaled, faulty, announces });
        }
    }
}
