//! What every provider over libibverbs shares (feature `verbs`): owning handles, the device list, GID
//! choice, endpoints, the state machine of a reliable connection, state queries, polling, channels and
//! events. Which operations a queue pair has and how they are posted is the provider's.
//!
//! Everything is called through a table of functions ([`VerbsLibrary`]), which tests replace. [`load`]
//! opens the real one; nothing is linked.
//!
//! ```text
//! Context ◄─ Pd ◄─ Qp ─► Cq ─► Context      handles.rs   who keeps whom alive
//!    │        ◄─ Mr, Ah
//!    ├─ device.rs    list, ports, GID tables        sysfs.rs   what only sysfs tells
//!    ├─ endpoint.rs  port + GID choice → IbvQpInfo  gid.rs     the ranking
//!    ├─ rc.rs        the state machine, as data     state.rs   walking it, asking for it
//!    ├─ limits.rs    device attributes → Caps
//!    ├─ recv.rs      receives, early ones too
//!    └─ poll.rs      completions, channel           event.rs   asynchronous events
//! ```
//!
//! # Threads and forks
//!
//! libibverbs may be called from any thread (`ibv_open_device(3)`, and its locks). What it leaves to the
//! caller, such as two threads modifying one queue pair, `&mut` rules out here. A device opened with
//! libmlx5's locks switched off (`MLX5_SINGLE_THREADED`) is refused for that reason.
//!
//! A child process shares the parent's rings but not the right to use them: it must not post or poll, and
//! dropping any of these objects there does nothing. See [`fork`].
#![allow(unsafe_code)]
//! # Safety
//! The only unsafe function here is a promise about a table; who calls through it says why it may.

use crate::error::{Error, ErrorKind};

pub mod device;
pub mod endpoint;
pub mod event;
pub mod fork;
pub mod gid;
pub mod handles;
pub mod limits;
pub mod poll;
pub mod rc;
pub mod recv;
pub mod state;
pub mod sysfs;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use crate::verbs::{
    device::{Device, Port, list},
    endpoint::LocalEndpoint,
    event::AsyncEvents,
    fork::ForkPolicy,
    gid::{GidTable, RankedGid},
    handles::{Ah, Channel, Context, Cq, Mr, Pd, Qp},
    poll::CqPoller,
    recv::Receives,
    sysfs::DeviceDir,
};
pub use ibv_sys::Verbs;

/// The functions of a libibverbs that can be trusted to be one: each does what its manual page says.
/// Every handle keeps it, and is sound because of it.
#[derive(Clone, Copy, Debug)]
pub struct VerbsLibrary(&'static Verbs);

impl VerbsLibrary {
    /// A library made of other functions, such as a test's.
    ///
    /// # Safety
    /// Each function behaves as its namesake in libibverbs.
    pub unsafe fn from_table(table: &'static Verbs) -> Self {
        Self(table)
    }
}

impl std::ops::Deref for VerbsLibrary {
    type Target = Verbs;
    fn deref(&self) -> &Verbs {
        self.0
    }
}

/// The libibverbs of this machine, opened on the first call.
///
/// # Errors
/// `LibraryMissing` with every path that was tried, or the function that an old library lacks.
pub fn load() -> Result<VerbsLibrary, Error> {
    ibv_sys::verbs().map(|library| VerbsLibrary(library)).map_err(missing)
}

/// A library that could not be had, as this crate's error.
pub fn missing(e: ibv_sys::LoadError) -> Error {
    Error::new(ErrorKind::LibraryMissing, "dlopen", e.to_string()).with_source(e)
}

/// The number behind a null result: those functions set `errno`. Read before anything else is called.
pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
