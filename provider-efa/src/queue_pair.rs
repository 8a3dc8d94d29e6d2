//! An SRD queue pair. Ids, credits and bounds are core's; building and ringing are `work.rs`'s and
//! `session.rs`'s.
#![allow(unsafe_code)]
//! # Safety
//! The builders are of the queue pair beside them, which is destroyed before anything else here drops; `&mut`
//! keeps everybody else from posting to it.

use crate::{
    create::Created,
    peers::{AddressBook, Peers, Route},
    poller::EfaCq,
    session::Builders,
    state::{attributes, to_init, to_rtr, to_rts, walk},
    version,
    work::{Built, SendRing},
};
use ibv_core::{
    Error, ErrorKind, FromCore, IbvDatagram, IbvMemoryRegionView, IbvPath, IbvQpInfo, IbvQueuePair,
    PostError, QpAttributes, QpCore, QpState, RecvRequest, Transport, WorkRequest,
    verbs::{LocalEndpoint, Qp, RankedGid, Receives, fork::HomeProcess},
};
use std::{
    mem::ManuallyDrop,
    slice,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// The queue pair of [`EfaDomain`](crate::EfaDomain): created through `efadv_create_qp_ex`, driven by the
/// extended work-request builders. It connects to one peer and reaches any number more
/// ([`Connected::add_peer`](ibv_core::Connected::add_peer)); each request says whom.
///
/// It is its queue pair's single owner, so there is no second one:
/// ```compile_fail,E0277
/// fn cloned<T: Clone>() {}
/// cloned::<provider_efa::EfaQueuePair>();
/// ```
#[derive(Debug)]
pub struct EfaQueuePair {
    qp: SweptQp,
    builders: Builders,
    sends: SendRing,
    receives: Receives,
    rnr_retry: bool,
    nothing: IbvMemoryRegionView<'static>,
    end: LocalEndpoint,
    peers: Peers,
    book: Arc<AddressBook>,
    core: QpCore,
}

/// What a queue pair is put together from.
pub(crate) struct Ingredients<'d> {
    pub(crate) made: Created,
    pub(crate) end: LocalEndpoint,
    pub(crate) queues: [&'d Arc<EfaCq>; 2],
    pub(crate) births: &'d Arc<Mutex<()>>,
    pub(crate) book: &'d Arc<AddressBook>,
    /// A byte of the domain's.
    pub(crate) nothing: IbvMemoryRegionView<'static>,
    pub(crate) rnr_retry: bool,
}

impl EfaQueuePair {
    pub(crate) fn new(from: Ingredients<'_>, core: QpCore) -> Result<Self, Error> {
        let (config, nothing) = (core.config(), from.nothing);
        let sends = SendRing::new(config.max_send_wr, config.max_inline, (nothing.lkey(), nothing.addr()));
        let this = Self {
            qp: SweptQp::new(from.made.qp.of(&core), from.queues, from.births),
            builders: from.made.builders,
            sends,
            receives: Receives::new(config),
            rnr_retry: from.rnr_retry,
            nothing,
            end: from.end,
            peers: Peers::default(),
            book: from.book.clone(),
            core,
        };
        this.check_ids().map(|()| this)
    }

    /// The bit of an id that marks gets is not core's.
    fn check_ids(&self) -> Result<(), Error> {
        const MOST: u16 = 1 << 15;
        if self.core.routes().iter().all(|route| *route < MOST) {
            return Ok(());
        }
        let detail = format!("{MOST} work queues report to this completion queue, and no more can over EFA");
        Err(Error::new(ErrorKind::OutOfResources, "create_qp", detail))
    }

    /// The GID it uses, and why that one.
    pub fn gid(&self) -> Option<&RankedGid> {
        self.end.gid()
    }

    /// Adds the peer at the end of `path`; its number.
    fn reach_along(&mut self, path: &IbvPath) -> Result<u32, Error> {
        let no_gid = |whose: &str| {
            let detail = format!("{whose} end has no GID, which SRD is addressed by");
            Error::new(ErrorKind::Incompatible, "create_ah", detail)
        };
        let facts = self.end.facts(self.qp.pd().context())?;
        let (_, index) = facts.gid.ok_or_else(|| no_gid("our"))?;
        let dgid = path.remote.gid.ok_or_else(|| no_gid("their"))?;
        let sgid_index = u8::try_from(index).map_err(|_| no_gid("our"))?;
        let route = Route { port: self.core.config().port_num, sgid_index, dgid };
        Ok(self.peers.add(self.book.look_up(route)?, path))
    }

    /// RESET to INIT, and the receives that waited for it.
    fn start(&mut self) -> Result<(), Error> {
        walk(&mut self.qp, QpState::RESET, to_init(self.core.config()))?;
        self.receives.start(&mut self.qp)
    }
}

impl IbvQueuePair for EfaQueuePair {
    #[inline]
    fn core(&self) -> &QpCore {
        &self.core
    }

    #[inline]
    fn core_mut(&mut self, _: FromCore) -> &mut QpCore {
        &mut self.core
    }

    fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error> {
        Ok(self.end.info(Transport::SRD, self.qp.qp_num(), self.core.config()))
    }

    /// The address handle first: where it can not be had, the queue pair is still in RESET.
    fn establish(&mut self, path: &IbvPath, _: FromCore) -> Result<(), Error> {
        self.receives.check_fresh()?;
        if self.peers.at(0).is_none() {
            self.reach_along(path)?;
        }
        self.start()?;
        walk(&mut self.qp, QpState::INIT, to_rtr())?;
        walk(&mut self.qp, QpState::RTR, to_rts(self.core.config(), self.rnr_retry))
    }

    fn state(&mut self) -> Result<QpState, Error> {
        self.qp.state()
    }

    fn attributes(&mut self) -> Result<QpAttributes, Error> {
        let mut out = attributes(&mut self.qp, self.core.config())?;
        out.dest_qp_num = self.peers.at(0).map(|peer| peer.qp_num);
        Ok(out)
    }

    /// From RESET by way of INIT, so that receives which waited flush like any other.
    fn enter_error(&mut self) -> Result<(), Error> {
        if self.receives.is_fresh() {
            self.start().map_err(|e| e.context("on the way to ERR"))?;
        }
        let at_init = to_init(self.core.config());
        self.qp.fail(at_init)
    }

    // Of a request whose operation is known, as where this is called, little is left.
    #[inline(always)]
    fn enqueue(&mut self, wr: &WorkRequest<'_>) -> Result<(), PostError> {
        self.sends.push(wr).ok_or(PostError::Unsupported)
    }

    #[inline]
    fn ring_doorbell(&mut self, _: FromCore) -> Result<(), PostError> {
        let done = match self.sends.requests() {
            // SAFETY: the queue pair is alive, and `&mut self` keeps everybody else from posting to it.
            Some(all) => unsafe { self.builders.publish(all, &self.peers) }.map_err(PostError::Device),
            None => Err(PostError::QueueFull),
        };
        self.sends.clear();
        done
    }

    /// From core's registers into libefa's session.
    #[inline(always)]
    fn post_single(&mut self, wr: &WorkRequest<'_>, _: FromCore) -> Result<(), PostError> {
        let Some(request) = Built::of_range(wr, self.sends.aim) else { return Err(PostError::Unsupported) };
        // SAFETY: as above.
        unsafe { self.builders.publish(slice::from_ref(&request), &self.peers) }.map_err(PostError::Device)
    }

    fn discard(&mut self, _: FromCore) {
        self.sends.clear();
    }

    fn enqueue_recv(&mut self, wr: &RecvRequest<'_>) -> Result<(), PostError> {
        let local = if wr.local.is_empty() { slice::from_ref(&self.nothing) } else { wr.local };
        self.receives.take(&mut self.qp, wr.id, local)
    }
}

impl IbvDatagram for EfaQueuePair {
    fn reach(&mut self, path: &IbvPath, _: FromCore) -> Result<u32, Error> {
        self.reach_along(path)
    }

    #[inline]
    fn aim(&mut self, peer: u32, _: FromCore) {
        self.sends.aim = peer;
    }
}

/// How long a queue pair that goes waits for what it had in flight. In the error state that is flushed at once.
const FLUSH: Duration = Duration::from_secs(1);

/// An older libefa does not look into the queue of a queue pair that is destroyed, unless another one uses it too:
/// what is left there would be taken for the next one's of the same number, and its ids index memory. So all of
/// it is taken off before; and where it does not come, the number stays taken.
impl Drop for EfaQueuePair {
    fn drop(&mut self) {
        if version::polls_idle_queues() || !self.qp.home.is_here() || self.in_flight() == 0 {
            return;
        }
        if self.enter_error().is_err() || !self.flush(Instant::now() + FLUSH) {
            self.core.undestroyed().set();
        }
    }
}

impl EfaQueuePair {
    /// Takes off what is in flight; whether that is all.
    fn flush(&self, end: Instant) -> bool {
        let mut swept = 0;
        loop {
            swept += self.qp.sweep(self.qp.qp_num());
            if self.in_flight() <= swept {
                return true;
            }
            if Instant::now() > end {
                return false;
            }
            thread::yield_now();
        }
    }

    /// Requests and receives that nobody has polled the completion of; over SRD each has one.
    fn in_flight(&self) -> u64 {
        self.core.in_flight().iter().map(|n| u64::from(*n)).sum()
    }
}

/// A queue pair whose completion queues are swept when it is destroyed, before another can have its number.
#[derive(Debug)]
struct SweptQp {
    qp: ManuallyDrop<Qp>,
    queues: [Arc<EfaCq>; 2],
    births: Arc<Mutex<()>>,
    home: HomeProcess,
}

impl SweptQp {
    fn new(qp: Qp, queues: [&Arc<EfaCq>; 2], births: &Arc<Mutex<()>>) -> Self {
        let queues = queues.map(Arc::clone);
        Self { qp: ManuallyDrop::new(qp), queues, births: births.clone(), home: HomeProcess::this() }
    }

    /// Takes the completions of queue pair `number`, this one's, off both queues; how many there were.
    fn sweep(&self, number: u32) -> u64 {
        let [send, recv] = &self.queues;
        send.sweep(number) + if Arc::ptr_eq(send, recv) { 0 } else { recv.sweep(number) }
    }
}

impl std::ops::Deref for SweptQp {
    type Target = Qp;
    fn deref(&self) -> &Qp {
        &self.qp
    }
}

impl std::ops::DerefMut for SweptQp {
    fn deref_mut(&mut self) -> &mut Qp {
        &mut self.qp
    }
}

impl Drop for SweptQp {
    fn drop(&mut self) {
        let _held = self.births.lock();
        let number = self.qp.qp_num();
        // SAFETY: once, and not used after.
        unsafe { ManuallyDrop::drop(&mut self.qp) };
        // A forked child has destroyed nothing, and may not poll.
        if !self.home.is_here() {
            return;
        }
        self.sweep(number);
    }
}
