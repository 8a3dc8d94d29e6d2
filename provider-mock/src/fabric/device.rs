//! A device: its port, its address, its queue pairs, and whom it tells of events.

use super::{
    cq::{self, CqId},
    work::{RecvQueue, SendQueue, Sizes},
};
use crate::trace::Counters;
use ibv_core::{
    Error, ErrorKind, EventSource, EventType, Gid, IbvConfig, IbvEvent, IbvPath, PortState, QpState,
};
use std::{
    collections::VecDeque,
    io::{Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// Names a queue pair. The serial number tells it from others that had or will have its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpRef {
    pub device: u16,
    pub index: usize,
    pub serial: u64,
}

#[derive(Debug)]
pub(crate) struct Qp {
    pub serial: u64,
    pub pd: u32,
    pub state: QpState,
    /// As created, which is what its endpoint says, and as agreed on.
    pub offered: IbvConfig,
    pub config: IbvConfig,
    pub gid: Gid,
    pub path: Option<IbvPath>,
    pub send_cq: CqId,
    pub recv_cq: CqId,
    pub sq: SendQueue,
    pub rq: RecvQueue,
    /// In the list of those that may have something to do.
    pub queued: bool,
    /// Starts no request until woken by a timer or by the peer.
    pub paused: bool,
    /// A request failed, and reports once those before it have; no other starts.
    pub halted: bool,
    /// Its owner is gone, but it could not be destroyed.
    pub zombie: bool,
}

impl Qp {
    /// In RESET, with room for all that `config` allows.
    pub fn new(serial: u64, pd: u32, config: &IbvConfig, (send_cq, recv_cq): (CqId, CqId), gid: Gid) -> Self {
        Self {
            serial,
            pd,
            state: QpState::RESET,
            offered: config.clone(),
            config: config.clone(),
            gid,
            path: None,
            send_cq,
            recv_cq,
            sq: SendQueue::new(Sizes::of(config)),
            rq: RecvQueue::new(config.max_recv_wr as usize, config.max_recv_sge as usize),
            queued: false,
            paused: false,
            halted: false,
            zombie: false,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Device {
    pub gid: Gid,
    pub port: PortState,
    pub fatal: bool,
    /// Answers nobody, and does not know it.
    pub gone: bool,
    pub qps: Vec<Option<Qp>>,
    pub counters: Counters,
    subscribers: Vec<Weak<Subscription>>,
}

/// Events that one subscriber keeps at most; later ones are lost.
const MAX_EVENTS: usize = 1024;

#[derive(Debug)]
struct Subscription {
    events: Mutex<VecDeque<IbvEvent>>,
    tell: UnixStream,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    pub fn new(gid: Gid) -> Self {
        Self { gid, port: PortState::ACTIVE, ..Self::default() }
    }

    pub fn raise(&mut self, event: IbvEvent) {
        self.counters.events += 1;
        self.subscribers.retain(|s| s.strong_count() > 0);
        for sub in self.subscribers.iter().filter_map(Weak::upgrade) {
            let mut events = lock(&sub.events);
            if events.len() < MAX_EVENTS {
                events.push_back(event);
                let _ = (&sub.tell).write(&[event.kind.0 as u8]);
            }
        }
    }

    pub fn subscribe(&mut self) -> Result<Events, Error> {
        let fail = |e: std::io::Error| {
            Error::new(ErrorKind::OutOfResources, "get_async_event", "no descriptors left").with_source(e)
        };
        let (tell, told) = cq::channel().map_err(fail)?;
        let shared = Arc::new(Subscription { events: Mutex::default(), tell });
        self.subscribers.push(Arc::downgrade(&shared));
        Ok(Events { shared, told })
    }
}

/// One subscription to a mock device's asynchronous events.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Subscription>,
    told: Arc<UnixStream>,
}

impl EventSource for Events {
    fn next_event(&mut self) -> Result<Option<IbvEvent>, Error> {
        let mut events = lock(&self.shared.events);
        let next = events.pop_front();
        if next.is_some() {
            // One byte an event; where the socket was full, there are fewer.
            let _ = (&*self.told).read(&mut [0]);
        }
        Ok(next)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }
}

/// What an event of this kind is called in the trace.
pub(crate) fn event_name(kind: EventType) -> &'static str {
    match kind {
        EventType::CQ_ERR => "completion queue error",
        EventType::QP_FATAL => "queue pair fatal error",
        EventType::QP_ACCESS_ERR => "access violation by the peer",
        EventType::QP_REQ_ERR => "invalid request from the peer",
        EventType::DEVICE_FATAL => "device fatal error",
        EventType::PORT_ACTIVE => "port active",
        EventType::PORT_ERR => "port down",
        EventType::GID_CHANGE => "GID table changed",
        _ => "event",
    }
}
