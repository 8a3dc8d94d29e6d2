//! Bounds, chunks and credits: the checks no provider repeats.
//!
//! The flow is always reserve → the provider builds → advance, so a provider that refuses leaves the
//! counters as they were.

use crate::{
    caps::{Caps, Support},
    core::FromCore,
    error::{Error, PostError},
    memory::{IbvMemoryRegionView, IbvRemoteMemoryRegionView},
    queue_pair::IbvQueuePair,
    wr::{Op, Payload, RecvRequest, Request, WorkRequest, WrIds},
};
#[cfg(feature = "recorder")]
use crate::{core::QpCore, recorder::Built};
use std::slice;

mod single;
mod split;
pub(crate) use single::post_one;
use split::{Ranges, enqueue_split};

/// The most ranges a request may have, whatever the device can do: they are cut on the stack.
pub(crate) const MAX_SGE: usize = 32;

/// A request of one range, as the hot path takes it: small enough to stay in a register.
#[derive(Clone, Copy)]
pub(crate) enum One {
    Write,
    Read,
    WriteWithImm(u32),
    Send,
}

impl One {
    #[inline]
    const fn op(self) -> Op {
        match self {
            Self::Write => Op::Write,
            Self::Read => Op::Read,
            Self::WriteWithImm(imm) => Op::WriteWithImm(imm),
            Self::Send => Op::Send,
        }
    }

    /// Whether `local` bytes are as long as the remote side allows, which a send does not have.
    #[inline]
    const fn fits(self, local: usize, remote: usize) -> bool {
        matches!(self, Self::Send) || local <= remote
    }
}

/// Largest request of one range that needs no second look, bytes: for put, get, put with immediate and send.
/// 0 where the device lacks the operation, or where a flight recorder wants to see each request, so that
/// one comparison answers all three.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain {
    write: usize,
    read: usize,
    write_with_imm: usize,
    send: usize,
}

impl Plain {
    pub(crate) fn new(caps: &Caps, recording: bool) -> Self {
        let max = |op: Support, most| if op.present() && !recording { most } else { 0 };
        Self {
            write: max(caps.write, caps.max_msg_size),
            read: max(caps.read, caps.max_msg_size),
            write_with_imm: max(caps.write_with_imm, caps.max_msg_size),
            send: max(caps.send, caps.max_send_size),
        }
    }
    /// Whether `local` bytes are such a request, with so many at the other end.
    #[inline(always)]
    fn admits(&self, one: One, local: usize, remote: usize) -> bool {
        // No bytes wrap around, so they are rare too.
        one.fits(local, remote) && local.wrapping_sub(1) < self.max(one)
    }
    #[inline]
    fn max(&self, one: One) -> usize {
        match one {
            One::Write => self.write,
            One::Read => self.read,
            One::WriteWithImm(_) => self.write_with_imm,
            One::Send => self.send,
        }
    }
}

/// Builds a request of one registered range: the hot path. `remote` is at least as long as `local`, or
/// it is refused. Everything is passed by value, and what is rare is a call that takes registers, so nothing
/// here needs an address and the optimiser keeps it in registers.
#[inline]
pub(crate) fn enqueue_one<Q: IbvQueuePair + ?Sized>(
    qp: &mut Q,
    one: One,
    local: IbvMemoryRegionView<'_>,
    remote: IbvRemoteMemoryRegionView,
) -> Result<WrIds, PostError> {
    match enqueue_plain(qp, one, local, remote, true) {
        Some(built) => built,
        None => {
            let (l, r) = ((local.addr(), local.len()), (remote.addr, remote.len));
            enqueue_rare(qp, one, l, r, (local.lkey(), remote.rkey))
        }
    }
}

/// Builds it if it needs no second look.
#[inline(always)]
fn enqueue_plain<Q: IbvQueuePair + ?Sized>(
    qp: &mut Q,
    one: One,
    local: IbvMemoryRegionView<'_>,
    remote: IbvRemoteMemoryRegionView,
    signaled: bool,
) -> Option<Result<WrIds, PostError>> {
    let core = qp.core_mut(FromCore(()));
    if !core.plain.admits(one, local.len(), remote.len) {
        return None;
    }
    let first = if signaled { core.send.peek() } else { core.send.peek_silent() }?;
    let parts = Parts { op: one.op(), signaled, fence: false, solicited: false, remote };
    if let Err(e) = qp.enqueue(&parts.request(first, Payload::Sges(slice::from_ref(&local)))) {
        #[cfg(feature = "recorder")]
        qp.core_mut(FromCore(())).log.count_refused();
        return Some(Err(e));
    }
    let core = qp.core_mut(FromCore(()));
    core.send.advance(1, signaled);
    #[cfg(feature = "recorder")]
    core.log.count(one.op(), local.len());
    Some(Ok(WrIds { first, count: 1 }))
}

/// Ranges as address and length, and their keys: two words each travel in registers.
#[cold]
#[inline(never)]
fn enqueue_rare<Q: IbvQueuePair + ?Sized>(
    qp: &mut Q,
    one: One,
    local: (u64, usize),
    remote: (u64, usize),
    (lkey, rkey): (u32, u32),
) -> Result<WrIds, PostError> {
    let local = IbvMemoryRegionView::from_raw_parts(local.0, local.1, lkey);
    let remote = IbvRemoteMemoryRegionView { addr: remote.0, len: remote.1, rkey };
    // Mostly it is the limit of a while ago, and no more.
    if qp.core_mut(FromCore(())).send.look_again().is_some()
        && let Some(built) = enqueue_plain(qp, one, local, remote, true)
    {
        return built;
    }
    enqueue(qp, &Request::new(one.op(), remote, Payload::Sges(&[local])))
}

/// The end of a request that was refused.
#[cold]
fn refuse<Q: IbvQueuePair + ?Sized>(
    _qp: &mut Q,
    _req: &Request<'_>,
    why: PostError,
) -> Result<WrIds, PostError> {
    #[cfg(feature = "recorder")]
    _qp.core_mut(FromCore(()))
        .log
        .refused(why, || Built::send(0, _req.op, _req.signaled, _req.local, _req.remote));
    Err(why)
}

/// Checks `req`, takes its credits and builds it. On `Err` the request left nothing behind.
pub(crate) fn enqueue<Q: IbvQueuePair + ?Sized>(qp: &mut Q, req: &Request<'_>) -> Result<WrIds, PostError> {
    match plain(qp, req) {
        Some(built) => built,
        None => enqueue_checked(qp, req),
    }
}

/// Apart from the short way, which then saves no register for it.
#[inline(never)]
fn enqueue_checked<Q: IbvQueuePair + ?Sized>(qp: &mut Q, req: &Request<'_>) -> Result<WrIds, PostError> {
    checked(qp, req).or_else(|e| refuse(qp, req, e))
}

/// Builds `req` if it is of one range and as simple as `put`, `get` and `send`, signaled or not, and needs no second
/// look. Each operation has code of its own, where what is known of it costs nothing.
#[inline(always)]
fn plain<Q: IbvQueuePair + ?Sized>(qp: &mut Q, req: &Request<'_>) -> Option<Result<WrIds, PostError>> {
    let Payload::Sges(&[local]) = req.local else { return None };
    if req.fence || req.solicited {
        return None;
    }
    match req.op {
        Op::Write => enqueue_plain(qp, One::Write, local, req.remote, req.signaled),
        Op::Read if local.len() == req.remote.len => {
            enqueue_plain(qp, One::Read, local, req.remote, req.signaled)
        }
        Op::Send => enqueue_plain(qp, One::Send, local, req.remote, req.signaled),
        Op::WriteWithImm(imm) => enqueue_plain(qp, One::WriteWithImm(imm), local, req.remote, req.signaled),
        _ => None,
    }
}

fn checked<Q: IbvQueuePair + ?Sized>(qp: &mut Q, req: &Request<'_>) -> Result<WrIds, PostError> {
    let caps = qp.core().limits();
    let len = transfer_len(caps, req)?;
    if let Payload::Sges(sges) = req.local {
        let whole = sges.iter().map(|s| s.len()).sum::<usize>() == len && sges.iter().all(|s| !s.is_empty());
        if !whole || len > limit(caps, req.op) {
            return enqueue_split(qp, req, sges, len);
        }
    }
    let ids = qp.core_mut(FromCore(())).send.reserve(1, req.signaled)?;
    let parts = Parts::of(req);
    qp.enqueue(&parts.request(ids.first, req.local))?;
    let core = qp.core_mut(FromCore(()));
    core.send.advance(1, req.signaled);
    #[cfg(feature = "recorder")]
    parts.record(core, ids.first, req.local, len);
    Ok(ids)
}

/// Largest single work request of this kind, bytes.
fn limit(caps: &Caps, op: Op) -> usize {
    match op {
        Op::Send | Op::SendWithImm(_) => caps.max_send_size,
        Op::CompareSwap { .. } | Op::FetchAdd(_) => usize::MAX,
        _ => caps.max_msg_size,
    }
}

/// A request but for its local side.
#[derive(Clone, Copy)]
struct Parts {
    op: Op,
    signaled: bool,
    fence: bool,
    solicited: bool,
    remote: IbvRemoteMemoryRegionView,
}

impl Parts {
    fn of(req: &Request<'_>) -> Self {
        let Request { op, signaled, fence, solicited, remote, local: _ } = *req;
        Self { op, signaled, fence, solicited, remote }
    }
    #[inline]
    fn request(self, id: u64, local: Payload<'_>) -> WorkRequest<'_> {
        let Self { op, signaled, fence, solicited, remote } = self;
        WorkRequest { id, op, signaled, fence, solicited, local, remote }
    }
    #[cfg(feature = "recorder")]
    fn record(self, core: &mut QpCore, id: u64, local: Payload<'_>, len: usize) {
        core.log.count(self.op, len);
        core.log.keep(|| Built::send(id, self.op, self.signaled, local, self.remote));
    }
}

/// Bytes to move, once everything about `req` fits.
fn transfer_len(caps: &Caps, req: &Request<'_>) -> Result<usize, PostError> {
    let local = local_len(caps, req.local)?;
    let fits = |n: usize, room: usize| if n <= room { Ok(n) } else { Err(PostError::OutOfBounds) };
    // What is not offered has no length that would be too long.
    let sends = |support: Support| match support.present() && local > caps.max_send_size {
        true => Err(PostError::MessageTooLong),
        false => Ok((support, local)),
    };
    let (support, len) = match req.op {
        Op::Write => (caps.write, fits(local, req.remote.len)?),
        Op::WriteWithImm(_) => (caps.write_with_imm, fits(local, req.remote.len)?),
        Op::Read => (caps.read, fits(req.remote.len, local)?),
        Op::Send => sends(caps.send)?,
        Op::SendWithImm(_) => sends(caps.send_with_imm)?,
        Op::CompareSwap { .. } | Op::FetchAdd(_) => {
            if local != 8 || req.remote.len < 8 || !req.remote.addr.is_multiple_of(8) {
                return Err(PostError::OutOfBounds);
            }
            (caps.atomics, 8)
        }
    };
    let inline = matches!(req.local, Payload::Inline(_));
    let flags = req.fence && !caps.fence.present() || req.solicited && !caps.solicited;
    if !support.present() || inline && req.op.fills_local() || flags {
        return Err(PostError::Unsupported);
    }
    Ok(len)
}

fn local_len(caps: &Caps, local: Payload<'_>) -> Result<usize, PostError> {
    match local {
        Payload::Sges([one]) => Ok(one.len()),
        Payload::Sges(sges) if sges.len() > caps.max_send_sge as usize => Err(PostError::TooManySge),
        Payload::Sges(sges) => total(sges),
        Payload::Inline(data) if data.len() > caps.max_inline as usize => Err(PostError::InlineTooLong),
        Payload::Inline(data) => Ok(data.len()),
    }
}

fn total(sges: &[IbvMemoryRegionView<'_>]) -> Result<usize, PostError> {
    sges.iter().try_fold(0usize, |n, s| n.checked_add(s.len())).ok_or(PostError::OutOfBounds)
}

/// Publishes everything built. `Err` says that none of it was.
#[inline]
pub(crate) fn ring<Q: IbvQueuePair + ?Sized>(qp: &mut Q) -> Result<(), PostError> {
    let send = &qp.core().send;
    if !send.dirty() {
        return Ok(());
    }
    if let Some(why) = send.void() {
        forget(qp);
        return Err(why);
    }
    let send = &mut qp.core_mut(FromCore(())).send;
    send.tell();
    let before = send.commit();
    let done = qp.ring_doorbell(FromCore(()));
    if done.is_err() {
        qp.core_mut(FromCore(())).send.uncommit(before);
        forget(qp);
        return done;
    }
    #[cfg(feature = "recorder")]
    qp.core_mut(FromCore(())).log.rung();
    Ok(())
}

/// Un-builds everything since the last ring.
#[inline]
pub(crate) fn discard<Q: IbvQueuePair + ?Sized>(qp: &mut Q) {
    if qp.core().send.dirty() {
        forget(qp);
    }
}

#[cold]
#[inline(never)]
fn forget<Q: IbvQueuePair + ?Sized>(qp: &mut Q) {
    void(qp, None);
}

/// Un-builds everything since the last ring; `why` makes the next ring fail.
fn void<Q: IbvQueuePair + ?Sized>(qp: &mut Q, why: Option<PostError>) {
    qp.discard(FromCore(()));
    let core = qp.core_mut(FromCore(()));
    core.send.forget(why);
    #[cfg(feature = "recorder")]
    core.log.discarded();
}

/// Posts one receive. Zero bytes are a legal receive: an immediate needs no room.
#[inline]
pub(crate) fn recv<Q: IbvQueuePair + ?Sized>(
    qp: &mut Q,
    sges: &[IbvMemoryRegionView<'_>],
) -> Result<u64, PostError> {
    let done = checked_recv(qp, sges);
    #[cfg(feature = "recorder")]
    {
        let (log, request) = (&mut qp.core_mut(FromCore(())).log, Payload::Sges(sges));
        match done {
            Ok(id) => log.posted_recv(|| Built::recv(id, request)),
            Err(e) => log.refused(e, || Built::recv(0, request)),
        }
    }
    done
}

#[inline]
fn checked_recv<Q: IbvQueuePair + ?Sized>(
    qp: &mut Q,
    sges: &[IbvMemoryRegionView<'_>],
) -> Result<u64, PostError> {
    let core = qp.core_mut(FromCore(()));
    if sges.len() > core.limits().max_recv_sge as usize {
        return Err(PostError::TooManySge);
    }
    let len = total(sges)?;
    let id = core.recv.reserve(1, true)?.first;
    core.recv.advance(1, true);
    core.recv.tell();
    let done = if sges.iter().all(|s| !s.is_empty()) {
        qp.enqueue_recv(&RecvRequest { id, local: sges })
    } else {
        let mut piece = [IbvMemoryRegionView::EMPTY; MAX_SGE];
        let used = Ranges::new(sges).fill(&mut piece, len);
        qp.enqueue_recv(&RecvRequest { id, local: &piece[..used] })
    };
    let recv = &mut qp.core_mut(FromCore(())).recv;
    match done {
        Ok(()) => _ = recv.commit(),
        Err(_) => recv.forget(None),
    }
    done.map(|()| id)
}

/// Enqueue and ring: the convenience tier, whose errors say both sides' values.
pub(crate) fn now<Q: IbvQueuePair + ?Sized>(
    qp: &mut Q,
    verb: &'static str,
    req: &Request<'_>,
) -> Result<Vec<u64>, Error> {
    discard(qp);
    let posted = enqueue(qp, req).and_then(|ids| ring(qp).map(|()| ids));
    posted.map(Vec::from).map_err(|e| explain(qp, verb, req, e))
}

/// Enqueue alone, likewise; for providers that offer the seeds' struct.
///
/// # Errors
/// `Post`, with both sides' values; nothing was built.
pub fn enqueue_explained<Q: IbvQueuePair + ?Sized>(
    qp: &mut Q,
    verb: &'static str,
    req: &Request<'_>,
) -> Result<Vec<u64>, Error> {
    enqueue(qp, req).map(Vec::from).map_err(|e| explain(qp, verb, req, e))
}

/// Rings what [`enqueue_explained`] built; for providers that offer the seeds' struct.
///
/// # Errors
/// `Post`; nothing was published, and everything built since the last ring is forgotten.
pub fn ring_explained<Q: IbvQueuePair + ?Sized>(qp: &mut Q) -> Result<(), Error> {
    ring(qp).map_err(|e| Error::post("ring_doorbell", e, format!("{e}; nothing was published")))
}

/// Posts one receive, likewise; for providers that offer the seeds' struct.
///
/// # Errors
/// `Post`, with the queue's numbers; nothing was posted.
pub fn recv_explained<Q: IbvQueuePair + ?Sized>(
    qp: &mut Q,
    sges: &[IbvMemoryRegionView<'_>],
) -> Result<u64, Error> {
    recv(qp, sges).map_err(|e| {
        let (depth, free) = (qp.core().recv.depth(), qp.core().recv.free());
        let most = qp.core().limits().max_recv_sge;
        let detail = format!("{e}; {free} of {depth} receives free, {} ranges of at most {most}", sges.len());
        Error::post("post_recv", e, detail)
    })
}

/// What a hot-path code leaves out: both sides' numbers.
#[cold]
fn explain<Q: IbvQueuePair + ?Sized>(qp: &Q, verb: &'static str, req: &Request<'_>, e: PostError) -> Error {
    let (send, caps) = (&qp.core().send, qp.core().limits());
    let (local, ranges) = match req.local {
        Payload::Sges(sges) => (sges.iter().fold(0usize, |n, s| n.saturating_add(s.len())), sges.len()),
        Payload::Inline(data) => (data.len(), 0),
    };
    let remote = req.remote.len;
    let numbers = match e {
        PostError::OutOfBounds if req.op == Op::Read => {
            format!("local buffer size ({local}) is smaller than remote buffer size ({remote})")
        }
        PostError::OutOfBounds => format!(
            "remote buffer size ({remote}) is smaller than local buffer size ({local}), or not 8 aligned bytes"
        ),
        PostError::QueueFull => {
            let need = local.div_ceil(caps.max_msg_size.max(1)).max(1);
            format!("{e}; {} of {} slots free, {need} needed", send.free(), send.depth())
        }
        PostError::TooManySge => format!("{e}; {ranges} given, {} allowed", caps.max_send_sge),
        PostError::InlineTooLong => format!("{e}; {local} bytes given, {} allowed", caps.max_inline),
        PostError::MessageTooLong => format!("{e}; {local} bytes given, {} allowed", caps.max_send_size),
        e => e.to_string(),
    };
    Error::post(verb, e, numbers)
}
