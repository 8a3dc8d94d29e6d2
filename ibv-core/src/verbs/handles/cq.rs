//! A completion queue and its channel. Polling is `poll.rs`'s.
#![allow(unsafe_code)]
//! # Safety
//! As in the parent module.

use super::{Context, destroy, failed};
use crate::error::{Error, ErrorKind};
use ibv_sys::{ibv_comp_channel, ibv_cq};
use std::{
    ffi::c_int,
    os::fd::{AsFd, BorrowedFd, RawFd},
    ptr::{self, NonNull},
    sync::Arc,
};

/// A completion channel of one queue. Its descriptor does not block.
#[derive(Debug)]
pub struct Channel {
    raw: NonNull<ibv_comp_channel>,
    fd: RawFd,
    context: Arc<Context>,
}

// SAFETY: the library takes a channel from any thread; the descriptor never changes.
unsafe impl Send for Channel {}
// SAFETY: as for `Send`.
unsafe impl Sync for Channel {}

impl Channel {
    fn create(context: &Arc<Context>) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let channel = NonNull::new(unsafe { context.verbs().ibv_create_comp_channel(context.as_ptr()) });
        let raw = channel.ok_or_else(|| failed("create_comp_channel", context.name()))?;
        // SAFETY: just created; the field is set once.
        let fd = unsafe { (*raw.as_ptr()).fd };
        let this = Self { raw, fd, context: context.clone() };
        set_nonblocking(this.as_fd()).map_err(|code| {
            Error::from_errno("create_comp_channel", code).context("making it nonblocking")
        })?;
        Ok(this)
    }

    /// The channel itself. It stays the handle's.
    pub fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.raw.as_ptr()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel owns the descriptor and closes it when destroyed, after this borrow.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: created in `create`, owned by this handle alone; its queue has been destroyed.
        let close = || unsafe { self.context.verbs().ibv_destroy_comp_channel(self.as_ptr()) };
        if !destroy(self.context.home, "destroy_comp_channel", close) {
            std::mem::forget(self.context.clone());
        }
    }
}

/// Makes reads of `fd` return at once.
pub(in crate::verbs) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), c_int> {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open for the borrow; both commands take and return flags only.
    let done = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    if done { Ok(()) } else { Err(crate::verbs::errno()) }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    raw: NonNull<ibv_cq>,
    /// `None` only without one, and inside `drop`.
    channel: Option<Channel>,
    context: Arc<Context>,
}

// SAFETY: the library takes a queue from any thread. What it leaves to the caller, polling and arming,
// goes through the one `CqPoller`.
unsafe impl Send for Cq {}
// SAFETY: as for `Send`.
unsafe impl Sync for Cq {}

impl Cq {
    /// Creates a queue of at least `depth` entries, with a channel of its own where asked for.
    ///
    /// # Errors
    /// The device's; `OutOfResources` where it gave fewer entries than asked for. Nothing is left behind.
    pub fn create(context: &Arc<Context>, depth: u32, channel: bool) -> Result<Arc<Self>, Error> {
        let channel = if channel { Some(Channel::create(context)?) } else { None };
        let channel_ptr = channel.as_ref().map_or(ptr::null_mut(), Channel::as_ptr);
        let depth_arg = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: the context is open, the channel is null or of it, and vector 0 always exists.
        let cq = unsafe {
            context.verbs().ibv_create_cq(context.as_ptr(), depth_arg, ptr::null_mut(), channel_ptr, 0)
        };
        let raw = NonNull::new(cq).ok_or_else(|| {
            failed("create_cq", context.name()).context(format!("a completion queue of {depth} entries"))
        })?;
        // SAFETY: just created, and nobody else has it.
        let this = unsafe { Self::from_raw(raw, channel, context.clone()) };
        let got = this.depth();
        if got < depth {
            let detail = format!("asked for {depth} entries, got {got}");
            return Err(Error::new(ErrorKind::OutOfResources, "create_cq", detail));
        }
        Ok(Arc::new(this))
    }

    /// Takes over a queue that was created by other means.
    ///
    /// # Safety
    /// `raw` is a live queue of `context` that reports to `channel`, if any, and nobody else destroys it.
    pub unsafe fn from_raw(raw: NonNull<ibv_cq>, channel: Option<Channel>, context: Arc<Context>) -> Self {
        Self { raw, channel, context }
    }

    /// The queue itself, for calls that this module does not wrap. It stays the handle's.
    pub fn as_ptr(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// Its channel.
    pub fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    /// The device it is on.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Entries it has: at least what was asked for.
    pub fn depth(&self) -> u32 {
        // SAFETY: the queue is alive, and nobody resizes it.
        u32::try_from(unsafe { (*self.raw.as_ptr()).cqe }).unwrap_or(0)
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: created or taken over once, owned by this handle alone; the queue pairs that report to
        // it are gone, for each holds an `Arc` of this. Every event taken was acknowledged when taken.
        let call = || unsafe { self.context.verbs().ibv_destroy_cq(self.as_ptr()) };
        if !destroy(self.context.home, "destroy_cq", call) {
            std::mem::forget(self.context.clone());
            std::mem::forget(self.channel.take());
        }
    }
}
