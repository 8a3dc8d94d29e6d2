//! Asynchronous events of a device, taken off its descriptor without blocking. Completions are not events.
#![allow(unsafe_code)]
//! # Safety
//! An event names an object by pointer, which is valid until the event is acknowledged: destroying the
//! object waits for that. So what is needed is copied out and the event acknowledged before this file
//! returns.

use crate::{
    error::{Error, ErrorKind},
    event::{EventObject, EventSource, EventType, IbvEvent},
    verbs::{
        errno,
        handles::{Context, set_nonblocking},
    },
};
use ibv_sys::ibv_async_event;
use std::{
    os::fd::BorrowedFd,
    sync::{Arc, atomic::Ordering::SeqCst},
};

/// The one reader of a device's asynchronous events.
///
/// A device has one queue of events for each time it is opened, so there is one reader at a time; two
/// would take each other's.
#[derive(Debug)]
pub struct AsyncEvents {
    context: Arc<Context>,
}

impl AsyncEvents {
    /// Becomes the reader, until dropped. Events from before stay queued and are read first.
    ///
    /// # Errors
    /// `InUse` while there is another.
    pub fn subscribe(context: &Arc<Context>) -> Result<Self, Error> {
        if context.events_taken.swap(true, SeqCst) {
            let detail = format!(
                "the events of {} have a reader already; share that one, or open the device again",
                context.name()
            );
            return Err(Error::new(ErrorKind::InUse, "get_async_event", detail));
        }
        // From here on, dropping gives the right back.
        let this = Self { context: context.clone() };
        set_nonblocking(this.as_fd()).map_err(|code| Error::from_errno("get_async_event", code))?;
        Ok(this)
    }
}

impl Drop for AsyncEvents {
    fn drop(&mut self) {
        self.context.events_taken.store(false, SeqCst);
    }
}

impl EventSource for AsyncEvents {
    fn next_event(&mut self) -> Result<Option<IbvEvent>, Error> {
        let verbs = self.context.verbs();
        let mut raw = ibv_async_event::default();
        // SAFETY: the context is open and the event writable; the descriptor does not block.
        while unsafe { verbs.ibv_get_async_event(self.context.as_ptr(), &mut raw) } != 0 {
            match errno() {
                libc::EINTR => {}
                libc::EAGAIN => return Ok(None),
                code => return Err(Error::from_errno("get_async_event", code).context(self.context.name())),
            }
        }
        // SAFETY: just taken and not acknowledged.
        let event = unsafe { event_of(&raw) };
        // SAFETY: taken above, acknowledged once.
        unsafe { verbs.ibv_ack_async_event(&mut raw) };
        Ok(Some(event))
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context owns the descriptor and outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.context.async_fd()) }
    }
}

/// What an event says, copied.
///
/// # Safety
/// The event has been taken and not been acknowledged.
unsafe fn event_of(raw: &ibv_async_event) -> IbvEvent {
    let kind = EventType(raw.event_type.0);
    let object = match kind {
        EventType::QP_FATAL
        | EventType::QP_REQ_ERR
        | EventType::QP_ACCESS_ERR
        | EventType::COMM_EST
        | EventType::SQ_DRAINED
        | EventType::PATH_MIG
        | EventType::PATH_MIG_ERR
        | EventType::QP_LAST_WQE_REACHED => {
            // SAFETY: events of these types name a queue pair, alive until acknowledged.
            EventObject::QueuePair(unsafe { (*raw.element.qp).qp_num })
        }
        EventType::PORT_ACTIVE
        | EventType::PORT_ERR
        | EventType::LID_CHANGE
        | EventType::PKEY_CHANGE
        | EventType::SM_CHANGE
        | EventType::CLIENT_REREGISTER
        | EventType::GID_CHANGE => {
            // SAFETY: events of these types carry a port number.
            let port = unsafe { raw.element.port_num };
            u8::try_from(port).map_or(EventObject::Other, EventObject::Port)
        }
        EventType::CQ_ERR => EventObject::CompletionQueue,
        EventType::DEVICE_FATAL => EventObject::Device,
        _ => EventObject::Other,
    };
    IbvEvent { kind, object }
}
