//! The traits, handles and rules that every RDMA provider of `ibv` shares: moving bytes between the
//! registered memory of two machines with one-sided put and get. It names no provider, starts no thread,
//! and by default links no C.
//!
//! Who calls whom, from the top:
//!
//! ```text
//! Batch / Connected / QueuePair   handle.rs       safe: typestate, one batch at a time, close
//!        │ enqueue, ring          post.rs         bounds, chunks, credits: once, for every provider
//!        ▼
//! trait IbvQueuePair              queue_pair.rs   enqueue, ring_doorbell, discard: what a device does
//!        │ core() / core_mut()
//!        ▼
//! QpCore { WorkQueue ×2 }         core.rs         ids and credits; every queue pair embeds one
//!        ▲ credits, one store a completion
//! Poller ◄─ Arc<IbvCq>            cq.rs           the only consumer of a queue, claimed, never locked
//! ```
//!
//! Creating runs one way: [`IbvDomain::create_queue_pair`] (safe) → [`IbvQueuePair::new`] (provided) →
//! [`IbvDomainImpl::create_queue_pair`] (required). A provider writes only the last.
//!
//! # Two tiers
//!
//! The hot tier is [`Connected::batch`] and [`Poller::poll`]: no allocation, no lock, no formatting. The
//! convenience tier is the trait's own [`put`](IbvQueuePair::put), [`get`](IbvQueuePair::get) and
//! [`poll_completion`](IbvQueuePair::poll_completion), with ids in a `Vec` and errors that carry numbers.
//!
//! ```no_run
//! use ibv_core::{IbvConfig, IbvDomain, IbvDomainImpl, IbvQpInfo, IbvRemoteMemoryRegionView, IbvWc};
//!
//! fn hello<I: IbvDomainImpl>(
//!     domain: &IbvDomain<I>,
//!     peer: &IbvQpInfo,
//!     theirs: IbvRemoteMemoryRegionView,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     let cq = domain.create_cq(256)?;
//!     let qp = domain.create_queue_pair(IbvConfig::default(), &cq, &cq)?;
//!     let mut qp = qp.connect(peer).map_err(|(_, e)| e)?;
//!     let region = domain.alloc(4096)?;
//!     region.write_at(0, b"hello")?;
//!
//!     let mut batch = qp.batch();
//!     let ids = batch.put(theirs, region.view())?;
//!     batch.ring()?;
//!
//!     let (mut poller, mut wcs) = (cq.poller()?, [IbvWc::default(); 16]);
//!     loop {
//!         let n = poller.poll(&mut wcs)?;
//!         for wc in &wcs[..n] {
//!             if wc.result()?.wr_id() == ids.last() {
//!                 return Ok(());
//!             }
//!         }
//!     }
//! }
//! ```
//!
//! # What a completion promises
//!
//! - A polled completion of a get, an atomic or a receive: the bytes are in local memory.
//! - A polled completion of a put or a send: the source may be reused, and the peer's adapter has the
//!   bytes. That the peer's *processor* sees them, only a completion at the peer says: send a message or
//!   an immediate after the put (on the same queue pair, where `Caps::messages_in_order`).
//! - Requests of one queue pair are independent unless `Caps` says otherwise. A put of bytes that an
//!   earlier get fetches needs [`Request::fenced`].
//!
//! # Peers are trusted with what they were given, and no further
//!
//! Whoever holds an `rkey` may write that region at any time; its contents are then the peer's to decide.
//! Nothing a peer sends can make this crate touch other memory, panic, or confuse one queue pair's
//! credits with another's.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

pub mod any;
pub mod buffer;
pub mod caps;
pub mod config;
pub mod core;
pub mod cq;
pub mod device;
pub mod domain;
pub mod endpoint;
pub mod error;
pub mod event;
pub mod gid;
pub mod handle;
pub mod memory;
pub mod post;
pub mod provider;
pub mod queue_pair;
#[cfg(feature = "recorder")]
#[cfg_attr(docsrs, doc(cfg(feature = "recorder")))]
pub mod recorder;
pub mod registry;
#[cfg(feature = "tokio")]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
pub mod stream;
mod sync;
mod trace;
#[cfg(feature = "verbs")]
#[cfg_attr(docsrs, doc(cfg(feature = "verbs")))]
pub mod verbs;
pub mod wc;
pub mod wr;

pub use crate::{
    any::AnyDomain,
    buffer::IbvBuffer,
    caps::{Caps, Support},
    config::{GidChoice, IbvConfig},
    core::{FromCore, QpCore, Undestroyed},
    cq::{IbvCq, Poller},
    device::{DeviceKind, GidEntry, IbvDeviceInfo, IbvPort, PortState},
    domain::IbvDomain,
    endpoint::{Ece, EndpointError, IbvPath, IbvQpInfo, Transport, negotiate},
    error::{Error, ErrorKind, PollCompletionError, PostError, WcOpcode, WcStatus, WorkRequestError},
    event::{EventObject, EventSource, EventType, IbvEvent},
    gid::{Gid, GidScope, GidType, LinkLayer, Mtu},
    handle::{Batch, Closed, Closing, Connected, Peer, QueuePair},
    memory::{
        Access, HeapMemory, IbvMemoryRegion, IbvMemoryRegionView, IbvRemoteMemoryRegionView, OutOfRange,
        RegionMemory, Registration, SharedBytes,
    },
    provider::{Claim, CompletionQueue, CqConfig, Glance, IbvDomainImpl, Provider},
    queue_pair::{IbvDatagram, IbvQueuePair, QpAttributes, QpState},
    registry::Registry,
    wc::{IbvWc, PollTarget},
    wr::{Op, Payload, RecvRequest, Request, WorkRequest, WrIds},
};
