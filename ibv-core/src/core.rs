//! What every queue pair embeds: ids, credits, and the queues it reports to. No device in sight.
//!
//! A credit is a slot of a work queue. Posting takes it on the poster's side (`built`); a completion
//! returns it on the poller's side (`Route::retired`). Each side writes its own counter only, so
//! there is no lock and no read-modify-write: one store for a completion, one load when the poster
//! runs into its last known limit.
//!
//! `wr_id` = route (16 bits) + sequence number (48 bits). The route finds the counter without a
//! lookup by `qp_num`, which is not enough: a device reuses the number of a destroyed queue pair
//! while completions of the old one are still queued. It also tells a receive from a send in an
//! error completion, where `opcode` is undefined.

#[cfg(feature = "recorder")]
use crate::recorder::{Counters, FlightRecord, PosterLog, RootCause};
use crate::{
    caps::Caps,
    config::IbvConfig,
    cq::{CqHandle, IbvCq},
    domain::IbvDomain,
    endpoint::IbvPath,
    error::{Error, ErrorKind, PollCompletionError, WorkRequestError},
    gid::Mtu,
    post::Plain,
    provider::{CompletionQueue, IbvDomainImpl},
    wc::PollTarget,
};
use std::{
    ptr,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

mod route;
mod work_queue;
pub(crate) use route::{Owner, Route};
pub(crate) use work_queue::WorkQueue;

/// Proof that core is the caller; a provider that wraps another passes it on.
#[derive(Debug)]
pub struct FromCore(pub(crate) ());

/// Core's share of a queue pair. A provider stores it as its *last* field and hands it out through
/// [`IbvQueuePair::core_mut`](crate::IbvQueuePair::core_mut); it looks no further inside.
#[derive(Debug)]
pub struct QpCore {
    pub(crate) send: WorkQueue,
    pub(crate) plain: Plain,
    pub(crate) recv: WorkQueue,
    /// The domain's capabilities, narrowed to what the queue pair was created with.
    limits: Caps,
    config: IbvConfig,
    /// What of it a connection replaces by what was negotiated.
    offered: Offered,
    #[cfg(feature = "recorder")]
    pub(crate) log: PosterLog,
    connected: bool,
    undestroyed: Undestroyed,
    /// Claimed by the first `poll_completion`; before `cqs`, so that they go back first.
    pollers: [Option<Box<dyn CompletionQueue>>; 2],
    cqs: [Arc<dyn CqHandle>; 2],
}

/// Whether the device has kept a queue pair that its owner dropped, so that completions of it may still be written.
/// Said before core's part drops: its ids and its room in the queues are then never anybody else's.
#[derive(Clone, Debug, Default)]
pub struct Undestroyed(Arc<AtomicBool>);

impl Undestroyed {
    /// The device did not let go of it.
    pub fn set(&self) {
        self.0.store(true, Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

#[derive(Clone, Copy, Debug)]
struct Offered {
    path_mtu: Mtu,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
}

impl Offered {
    fn of(config: &IbvConfig) -> Self {
        let IbvConfig { path_mtu, max_rd_atomic, max_dest_rd_atomic, .. } = *config;
        Self { path_mtu, max_rd_atomic, max_dest_rd_atomic }
    }
}

impl QpCore {
    /// Checks `config`, and that both queues are `domain`'s, and reserves room in them for every
    /// request that can be in flight, so that neither can be overrun.
    pub(crate) fn new<I: IbvDomainImpl>(
        domain: &IbvDomain<I>,
        config: IbvConfig,
        send_cq: &Arc<IbvCq<I>>,
        recv_cq: &Arc<IbvCq<I>>,
    ) -> Result<Self, Error> {
        static NEXT_OWNER: AtomicU64 = AtomicU64::new(1);
        for (which, cq) in [("send", send_cq), ("receive", recv_cq)] {
            if !cq.is_of(domain) {
                let detail =
                    format!("the {which} completion queue belongs to another domain; create it on this one");
                return Err(Error::new(ErrorKind::ForeignHandle, "create_qp", detail));
            }
        }
        let caps = domain.caps();
        config.validate(&caps)?;
        let config = config.resolve(&caps);
        let limits = narrowed(caps, &config);
        let owner = Arc::new(Owner::new(NEXT_OWNER.fetch_add(1, Relaxed), config.flight_recorder));
        let send = Arc::new(Route::new(owner.clone(), config.max_send_wr, limits.completions_in_order));
        let recv = Arc::new(Route::new(owner, config.max_recv_wr, false));
        let send_slot = send_cq.attach(&send)?;
        let recv_slot = recv_cq.attach(&recv).inspect_err(|_| send_cq.close_route(send_slot))?;
        Ok(Self {
            send: WorkQueue::new(send_slot, send),
            plain: Plain::new(&limits, cfg!(feature = "recorder") && config.flight_recorder > 0),
            recv: WorkQueue::open(recv_slot, recv),
            limits,
            #[cfg(feature = "recorder")]
            log: PosterLog::new(config.flight_recorder),
            offered: Offered::of(&config),
            config,
            connected: false,
            undestroyed: Undestroyed::default(),
            pollers: [None, None],
            cqs: [send_cq.clone(), recv_cq.clone()],
        })
    }

    /// The domain's capabilities, narrowed to what the queue pair was created with.
    #[inline]
    pub fn limits(&self) -> &Caps {
        &self.limits
    }

    /// Where to say that the device would not destroy the queue pair.
    pub fn undestroyed(&self) -> &Undestroyed {
        &self.undestroyed
    }

    /// The configuration in force; after `connect`, as negotiated.
    pub fn config(&self) -> &IbvConfig {
        &self.config
    }

    /// The top 16 bits of the ids of sends, and of receives. A provider whose library leaves a fact out of a
    /// completion may carry it in one of them, as long as these two do not use it, and takes it out again.
    pub fn routes(&self) -> [u16; 2] {
        [self.send.slot(), self.recv.slot()]
    }

    /// Requests and receives that have not given their credits back: each is posted and neither completed nor taken
    /// along by a completion. For a provider whose library can not be left with completions of a queue pair that goes.
    pub fn in_flight(&self) -> [u32; 2] {
        [self.send.in_flight(), self.recv.in_flight()]
    }

    /// The first failure that was not a mere flush: the root cause of all later ones.
    pub fn first_error(&self) -> Option<WorkRequestError> {
        self.send.first_error()
    }

    pub(crate) fn check_unconnected(&self) -> Result<(), Error> {
        if self.connected {
            let detail = "the queue pair is connected already; create another for another peer";
            return Err(Error::new(ErrorKind::InvalidState, "connect", detail));
        }
        Ok(())
    }

    /// Opens the send queue.
    pub(crate) fn connected(&mut self, path: &IbvPath) {
        self.connected = true;
        self.config.path_mtu = path.path_mtu;
        self.config.max_rd_atomic = path.rd_atomic;
        self.config.max_dest_rd_atomic = path.dest_rd_atomic;
        self.send.admit();
    }

    /// As after creation, but for the ids, which go on.
    pub(crate) fn restart(&mut self) {
        self.connected = false;
        let Offered { path_mtu, max_rd_atomic, max_dest_rd_atomic } = self.offered;
        self.config.path_mtu = path_mtu;
        (self.config.max_rd_atomic, self.config.max_dest_rd_atomic) = (max_rd_atomic, max_dest_rd_atomic);
        self.send.forgive();
        self.recv.admit();
    }

    /// Takes no more requests.
    pub(crate) fn close(&mut self) {
        self.send.refuse();
        self.recv.refuse();
    }

    /// Which queues' pollers it has claimed.
    pub(crate) fn claims(&self) -> [bool; 2] {
        self.pollers.each_ref().map(Option::is_some)
    }

    /// Gives back the pollers that it had not claimed when `claims` were asked for.
    pub(crate) fn give_back(&mut self, claims: [bool; 2]) {
        for (poller, claimed) in self.pollers.iter_mut().zip(claims) {
            if !claimed {
                *poller = None;
            }
        }
    }

    /// The poller of `target`'s queue, claimed on first use. One queue for both ends has one poller.
    pub(crate) fn sole_poller(
        &mut self,
        target: PollTarget,
    ) -> Result<&mut dyn CompletionQueue, PollCompletionError> {
        let one = ptr::addr_eq(Arc::as_ptr(&self.cqs[0]), Arc::as_ptr(&self.cqs[1]));
        let i = if one { 0 } else { target as usize };
        match &mut self.pollers[i] {
            Some(poller) => Ok(&mut **poller),
            empty => Ok(&mut **empty.insert(self.cqs[i].clone().claim_sole(self.send.owner())?)),
        }
    }
}

#[cfg(feature = "recorder")]
impl QpCore {
    /// What the queue pair has done so far.
    pub fn counters(&self) -> Counters {
        Counters::of(&self.log, [&self.send, &self.recv])
    }

    /// Its last operations, as many as `IbvConfig::flight_recorder` says, and what became of each.
    pub fn flight_record(&self) -> FlightRecord {
        FlightRecord::of(&self.log, self)
    }

    /// Its first failure that was not a mere flush, with the record.
    pub fn root_cause(&self) -> Option<RootCause> {
        self.first_error().map(|error| RootCause { error, record: self.flight_record() })
    }
}

/// The queue pair's own limits, where the device would allow more.
fn narrowed(caps: Caps, config: &IbvConfig) -> Caps {
    Caps {
        max_send_sge: config.max_send_sge,
        max_recv_sge: config.max_recv_sge,
        max_inline: config.max_inline,
        max_send_wr: config.max_send_wr,
        max_recv_wr: config.max_recv_wr,
        ..caps
    }
}

impl Drop for QpCore {
    fn drop(&mut self) {
        self.pollers = [None, None];
        if self.undestroyed.is_set() {
            // What is still to be written has its place, and ids that nobody else is given.
            return;
        }
        self.cqs[0].close_route(self.send.slot());
        self.cqs[1].close_route(self.recv.slot());
    }
}
