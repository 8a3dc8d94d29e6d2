//! Asynchronous device events: what happened to a device, a port, a queue or a queue pair while nobody
//! asked. Completions are not events; they are in `cq.rs`.

use crate::error::Error;
use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
};

/// What happened: `enum ibv_event_type` (libibverbs/verbs.h). A newtype: devices grow new ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(transparent)]
pub struct EventType(pub u32);

macro_rules! event_types {
    ($($(#[$doc:meta])* $name:ident = $n:literal, $text:literal;)*) => {
        impl EventType {
            $($(#[$doc])* pub const $name: Self = Self($n);)*
        }
        impl fmt::Display for EventType {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str($text),)*
                    Self(n) => write!(f, "event {n}"),
                }
            }
        }
    };
}

event_types! {
    /// A completion queue overran or is broken.
    CQ_ERR = 0, "completion queue error";
    /// A queue pair moved to the error state by itself.
    QP_FATAL = 1, "queue pair fatal error";
    /// A peer's request was invalid.
    QP_REQ_ERR = 2, "invalid request from the peer";
    /// A peer's request violated an access right.
    QP_ACCESS_ERR = 3, "access violation by the peer";
    /// The first packet arrived on a queue pair that only receives yet.
    COMM_EST = 4, "communication established";
    /// A send queue drained.
    SQ_DRAINED = 5, "send queue drained";
    /// A path migrated.
    PATH_MIG = 6, "path migrated";
    /// A path could not migrate.
    PATH_MIG_ERR = 7, "path migration failed";
    /// The device is dead: everything on it has failed.
    DEVICE_FATAL = 8, "device fatal error";
    /// A port came up.
    PORT_ACTIVE = 9, "port active";
    /// A port went down.
    PORT_ERR = 10, "port down";
    /// A port's LID changed.
    LID_CHANGE = 11, "LID changed";
    /// A port's partition keys changed.
    PKEY_CHANGE = 12, "partition keys changed";
    /// The subnet manager changed.
    SM_CHANGE = 13, "subnet manager changed";
    /// A shared receive queue is broken.
    SRQ_ERR = 14, "shared receive queue error";
    /// A shared receive queue fell below its limit.
    SRQ_LIMIT_REACHED = 15, "shared receive queue limit reached";
    /// A queue pair took its last receive.
    QP_LAST_WQE_REACHED = 16, "last receive reached";
    /// Clients have to register anew with the subnet manager.
    CLIENT_REREGISTER = 17, "client reregistration";
    /// A port's GID table changed.
    GID_CHANGE = 18, "GID table changed";
    /// A work queue is broken.
    WQ_FATAL = 19, "work queue fatal error";
}

impl fmt::Debug for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whom an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum EventObject {
    /// The whole device.
    Device,
    /// The port of that number, from 1.
    Port(u8),
    /// The queue pair of that number.
    QueuePair(u32),
    /// A completion queue.
    CompletionQueue,
    /// Something this crate has no name for.
    Other,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IbvEvent {
    /// What happened.
    pub kind: EventType,
    /// To whom.
    pub object: EventObject,
}

impl fmt::Display for IbvEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.object {
            EventObject::Device => write!(f, "{}: device", self.kind),
            EventObject::Port(n) => write!(f, "{}: port {n}", self.kind),
            EventObject::QueuePair(n) => write!(f, "{}: queue pair {n:#x}", self.kind),
            EventObject::CompletionQueue => write!(f, "{}: completion queue", self.kind),
            EventObject::Other => write!(f, "{}", self.kind),
        }
    }
}

/// A provider's end of a domain's events. Dropping it ends the subscription.
///
/// `Box<dyn EventSource>` is `AsFd`, for `poll(2)` and the like; feature `tokio` makes it a stream.
pub trait EventSource: fmt::Debug + Send + 'static {
    /// Takes the oldest event, if there is one. Never blocks.
    ///
    /// # Errors
    /// The device's, such as a channel that broke because the device was removed.
    fn next_event(&mut self) -> Result<Option<IbvEvent>, Error>;
    /// Readable while an event waits; does not block when read by the source itself.
    fn as_fd(&self) -> BorrowedFd<'_>;
}

impl AsFd for dyn EventSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        EventSource::as_fd(self)
    }
}
