//! Completions and asynchronous events as streams (feature `tokio`). The only part of this crate that is
//! asynchronous; nothing else waits for anything.
//!
//! A completion raises an event only while its queue is armed, and the event may be older than the last
//! poll. So the order is: poll; where that finds nothing, arm, and poll once more, because what came
//! between the two raised no event; only then wait. After the wait, take the events off the channel and
//! start again. A wake-up is lost by no interleaving, and one too many costs a poll.
#![allow(unsafe_code)]
//! # Safety
//! A watched descriptor is a duplicate that the watcher owns: nobody else can close or replace it.

use crate::{
    cq::Poller,
    error::{Error, ErrorKind, PollCompletionError},
    event::{EventSource, IbvEvent},
    provider::IbvDomainImpl,
    wc::IbvWc,
};
use futures_core::Stream;
use std::{
    fmt, io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::Handle,
};

/// Watches a duplicate of `fd`, so that the owner of the original stays its owner. Fails, rather than
/// panics, outside a runtime.
fn watch(verb: &'static str, fd: BorrowedFd<'_>) -> Result<AsyncFd<OwnedFd>, Error> {
    let fail = |e: io::Error| {
        Error::new(ErrorKind::OutOfResources, verb, format!("the channel can not be watched: {e}"))
            .with_source(e)
    };
    if Handle::try_current().is_err() {
        let detail = "a stream is made inside a tokio runtime with I/O enabled; enter one first";
        return Err(Error::new(ErrorKind::InvalidState, verb, detail));
    }
    let fd = fd.try_clone_to_owned().map_err(fail)?;
    // SAFETY: an `OwnedFd` is open, stays the same while the watcher owns it, and it alone closes it.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(|e| fail(e.into()))
}

/// Completions polled at once.
const BATCH: usize = 32;

/// The completions of one queue, one by one: a [`Poller`] that sleeps while there is nothing to poll.
/// Fails at most once, and ends then.
///
/// ```no_run
/// # use ibv_core::{IbvCq, IbvDomainImpl, stream::CompletionStream};
/// # use std::sync::Arc;
/// # async fn all<I: IbvDomainImpl>(cq: Arc<IbvCq<I>>) -> Result<(), Box<dyn std::error::Error>> {
/// use std::{future::poll_fn, pin::Pin};
/// use futures_core::Stream;
///
/// let mut completions = CompletionStream::new(cq.poller()?)?;
/// while let Some(wc) = poll_fn(|cx| Pin::new(&mut completions).poll_next(cx)).await {
///     println!("{:#x}: {}", wc?.wr_id(), wc?.status);
/// }
/// # Ok(())
/// # }
/// ```
pub struct CompletionStream<I: IbvDomainImpl> {
    channel: AsyncFd<OwnedFd>,
    poller: Poller<I>,
    polled: [IbvWc; BATCH],
    /// What of `polled` has not been handed out.
    ready: std::ops::Range<usize>,
    /// The queue is armed, and has been found empty since.
    armed: bool,
    failed: bool,
}

impl<I: IbvDomainImpl> CompletionStream<I> {
    /// Streams what `poller` polls. The queue must have been made by
    /// [`create_cq_with_channel`](crate::IbvDomain::create_cq_with_channel).
    ///
    /// # Errors
    /// `Unsupported` where the queue has no channel, `InvalidState` outside a tokio runtime,
    /// `OutOfResources` where the channel can not be watched. The poller goes back to its queue.
    ///
    /// # Panics
    /// Inside a tokio runtime that was built without I/O.
    pub fn new(poller: Poller<I>) -> Result<Self, Error> {
        let no_channel = || {
            let detail = PollCompletionError::NoChannel.to_string();
            Error::new(ErrorKind::Unsupported, "req_notify_cq", detail)
        };
        let channel = watch("req_notify_cq", poller.channel().ok_or_else(no_channel)?)?;
        let (polled, ready) = ([IbvWc::default(); BATCH], 0..0);
        Ok(Self { channel, poller, polled, ready, armed: false, failed: false })
    }

    /// The poller, for who wants to poll on without the runtime. Completions that were polled and not
    /// yet taken from the stream come with it, in order.
    pub fn into_poller(self) -> (Poller<I>, Vec<IbvWc>) {
        let rest = self.polled[self.ready].to_vec();
        (self.poller, rest)
    }

    fn step(&mut self, cx: &mut Context<'_>) -> Poll<Result<IbvWc, PollCompletionError>> {
        loop {
            if let Some(at) = self.ready.next() {
                return Poll::Ready(Ok(self.polled[at]));
            }
            self.ready = 0..self.poller.poll(&mut self.polled)?;
            match (self.ready.is_empty(), self.armed) {
                (false, _) => {}
                (true, false) => {
                    self.poller.arm(false)?;
                    self.armed = true;
                }
                (true, true) => ready!(self.wait(cx))?,
            }
        }
    }

    /// Ready once an event was taken off the channel. A readiness without one leaves the queue armed.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), PollCompletionError>> {
        loop {
            let watched = ready!(self.channel.poll_read_ready(cx));
            let mut guard =
                watched.map_err(|e| PollCompletionError::Device(e.raw_os_error().unwrap_or(0)))?;
            if self.poller.take_events()? > 0 {
                self.armed = false;
                return Poll::Ready(Ok(()));
            }
            guard.clear_ready();
        }
    }
}

/// Nothing in it is pinned.
impl<I: IbvDomainImpl> Unpin for CompletionStream<I> {}

impl<I: IbvDomainImpl> Stream for CompletionStream<I> {
    type Item = Result<IbvWc, PollCompletionError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.failed {
            return Poll::Ready(None);
        }
        let item = ready!(self.step(cx));
        self.failed = item.is_err();
        Poll::Ready(Some(item))
    }
}

impl<I: IbvDomainImpl> fmt::Debug for CompletionStream<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionStream")
            .field("poller", &self.poller)
            .field("channel", &self.channel.as_raw_fd())
            .field("ready", &self.ready)
            .field("armed", &self.armed)
            .field("failed", &self.failed)
            .finish()
    }
}

/// The asynchronous events of a device, one by one. Fails at most once, and ends then.
#[derive(Debug)]
pub struct EventStream {
    channel: AsyncFd<OwnedFd>,
    source: Box<dyn EventSource>,
    failed: bool,
}

impl EventStream {
    /// Streams what `source`, of [`IbvDomain::events`](crate::IbvDomain::events), reports.
    ///
    /// # Errors
    /// `InvalidState` outside a tokio runtime, `OutOfResources` where the channel can not be watched.
    ///
    /// # Panics
    /// Inside a tokio runtime that was built without I/O.
    pub fn new(source: Box<dyn EventSource>) -> Result<Self, Error> {
        let channel = watch("get_async_event", EventSource::as_fd(&*source))?;
        Ok(Self { channel, source, failed: false })
    }

    fn step(&mut self, cx: &mut Context<'_>) -> Poll<Result<IbvEvent, Error>> {
        loop {
            if let Some(event) = self.source.next_event()? {
                return Poll::Ready(Ok(event));
            }
            let watched = ready!(self.channel.poll_read_ready(cx));
            let errno = |e: io::Error| Error::from_errno("get_async_event", e.raw_os_error().unwrap_or(0));
            // What arrives from here on sets the readiness again.
            watched.map_err(errno)?.clear_ready();
        }
    }
}

impl Stream for EventStream {
    type Item = Result<IbvEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.failed {
            return Poll::Ready(None);
        }
        let item = ready!(self.step(cx));
        self.failed = item.is_err();
        Poll::Ready(Some(item))
    }
}
