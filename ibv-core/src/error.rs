//! Errors, sorted by whose move it is next.
//!
//! [`Error`] is the control path's and may allocate. [`PostError`], [`WorkRequestError`] and
//! [`PollCompletionError`] are the hot path's: `Copy`, no allocation, no formatting until printed.

use std::{borrow::Cow, error::Error as StdError, fmt, io};
use thiserror::Error as ThisError;

mod status;
pub use status::{WcOpcode, WcStatus};

/// What went wrong on the control path, in terms every provider shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An object of another domain or provider was passed in.
    ForeignHandle,
    /// The two ends can not talk to each other; the message names both ends' values.
    Incompatible,
    /// Somebody else holds what was asked for: a claimed poller, a queue that one queue pair polls.
    InUse,
    /// A field of a configuration is out of range, or larger than the device allows.
    InvalidConfig,
    /// Bytes that should describe an endpoint do not.
    InvalidEndpoint,
    /// The object is in a state where the verb makes no sense, such as a second `connect`.
    InvalidState,
    /// A shared library or one of its symbols is missing.
    LibraryMissing,
    /// No provider claims a device of that name.
    NoDevice,
    /// A queue, table, key space or memory limit is exhausted.
    OutOfResources,
    /// The operating system forbids it: a device node's permissions, a capability.
    PermissionDenied,
    /// A post failed; the source is the [`PostError`].
    Post,
    /// The device, the library or the provider does not offer it.
    Unsupported,
    /// The verb failed in a way that no other kind describes; the source is the operating system's.
    Verb,
}

/// A control-path failure: open, create, register, connect, and the posts of the convenience tier.
///
/// Prints as `VERB: what happened, with both sides' values; what to do`.
#[derive(Debug)]
pub struct Error(Box<Repr>);

#[derive(Debug)]
struct Repr {
    kind: ErrorKind,
    verb: &'static str,
    detail: Cow<'static, str>,
    errno: Option<i32>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// `verb` is the verb as the field calls it (`create_qp`, `reg_mr`); `detail` names the object, the
    /// values on both sides and what to do.
    pub fn new(kind: ErrorKind, verb: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Repr { kind, verb, detail: detail.into(), errno: None, source: None }))
    }

    /// From `errno` as *returned* by the verb; most verbs do not set the global `errno`. The sign does
    /// not matter. The kind follows from the number, and where the field has learnt what usually is
    /// behind it the message says so.
    pub fn from_errno(verb: &'static str, errno: i32) -> Self {
        let errno = errno.saturating_abs();
        let (kind, hint) = classify(errno);
        let os = io::Error::from_raw_os_error(errno);
        let detail = if hint.is_empty() { os.to_string() } else { format!("{os}; {hint}") };
        Self(Box::new(Repr {
            kind,
            verb,
            detail: detail.into(),
            errno: Some(errno),
            source: Some(os.into()),
        }))
    }

    /// Prefixes the detail with what was being done to which object.
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.0.detail = format!("{what}: {}", self.0.detail).into();
        self
    }

    /// Attaches the failure underneath.
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// What callers match on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The verb that failed.
    pub fn verb(&self) -> &'static str {
        self.0.verb
    }

    /// What happened, without the verb.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The operating system's number, where there was one.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }

    /// The hot-path error underneath, where a post of the convenience tier failed.
    pub fn post_error(&self) -> Option<PostError> {
        self.0.source.as_ref()?.downcast_ref().copied()
    }

    /// A failed post, for callers of the convenience tier.
    pub(crate) fn post(verb: &'static str, e: PostError, detail: String) -> Self {
        let kind = ErrorKind::Post;
        let errno = if let PostError::Device(errno) = e { Some(errno) } else { None };
        Self(Box::new(Repr { kind, verb, detail: detail.into(), errno, source: Some(e.into()) }))
    }
}

/// The numbers of Linux on every architecture this crate supports; spelled out so that the crate needs
/// no C library binding.
fn classify(errno: i32) -> (ErrorKind, &'static str) {
    match errno {
        1 | 13 => (ErrorKind::PermissionDenied, "check the permissions of /dev/infiniband/* and of the user"),
        2 | 6 | 19 => (ErrorKind::NoDevice, ""),
        11 | 12 | 28 => (
            ErrorKind::OutOfResources,
            "a queue or key table is full, or the locked-memory limit is too low (`ulimit -l`)",
        ),
        16 => (ErrorKind::InUse, "something created from it still exists"),
        38 | 93 | 95 => (ErrorKind::Unsupported, "the device, its driver or its library does not offer it"),
        _ => (ErrorKind::Verb, ""),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.verb, self.0.detail)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|s| s as _)
    }
}

impl From<PostError> for Error {
    fn from(e: PostError) -> Self {
        Self::post("post_send", e, e.to_string())
    }
}

/// A posting failure. Nothing was posted, no credit was taken.
///
/// `ibv_post_send` answers most of these with one number (ENOMEM); here each has its own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ThisError)]
#[non_exhaustive]
pub enum PostError {
    /// The device or its library refused; the number is the operating system's.
    #[error("the device refused the work request (errno {0})")]
    Device(i32),
    /// More inline bytes than the queue pair was created for.
    #[error(
        "more inline bytes than the queue pair's max_inline; raise IbvConfig::max_inline or use a region"
    )]
    InlineTooLong,
    /// A send longer than one message may be. Sends are never split: one send is one receive.
    #[error("a send longer than Caps::max_send_size; split it, or use put")]
    MessageTooLong,
    /// Unsignaled requests alone would fill the send queue, and no completion could ever empty it.
    #[error("a send queue full of unsignaled requests could never drain; make one of them signaled")]
    NeedsSignal,
    /// The queue pair has not been connected, or is being closed.
    #[error("the queue pair is not connected; call connect first")]
    NotConnected,
    /// The destination is shorter than the source, an atomic operand is not 8 aligned bytes, or a
    /// length does not fit.
    #[error("the destination is shorter than the transfer, or an atomic is not 8 aligned bytes")]
    OutOfBounds,
    /// Every slot of the work queue is taken by a request whose completion was not polled yet.
    #[error("the work queue is full; poll completions, or raise its depth")]
    QueueFull,
    /// More scatter/gather ranges than the queue pair was created for.
    #[error(
        "more ranges than the queue pair's scatter/gather limit; raise IbvConfig::max_send_sge or max_recv_sge"
    )]
    TooManySge,
    /// The device does not offer the operation or the flag; see `Caps`.
    #[error("the device does not offer this operation; see Caps")]
    Unsupported,
}

/// The poll itself failed.
///
/// After [`Corrupt`](Self::Corrupt) or [`Device`](Self::Device) every queue pair that reports to the
/// queue is dead. The others say that this caller may not do that, and harm nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ThisError)]
#[non_exhaustive]
pub enum PollCompletionError {
    /// A poller of this queue exists elsewhere.
    #[error("the completion queue's poller is claimed elsewhere; drop that one first")]
    Claimed,
    /// The provider reported a completion that answers no request in flight; the id it named.
    #[error(
        "the completion queue holds an entry (wr_id {0:#x}) that answers no request in flight; its queue pairs are dead"
    )]
    Corrupt(u64),
    /// The device or its library failed; the number is the operating system's.
    #[error("the completion queue can not be polled (errno {0}); its queue pairs are dead")]
    Device(i32),
    /// Other queue pairs report to this queue; poll it through its own handle.
    #[error("other queue pairs report to this completion queue; poll it through IbvCq::poller")]
    Shared,
    /// The queue has no completion channel, so it can not be armed.
    #[error(
        "the completion queue has no completion channel; create it with IbvDomain::create_cq_with_channel"
    )]
    NoChannel,
    /// The device arms for every completion alone.
    #[error(
        "the device can not be armed for solicited completions only; arm it for all, see Caps::solicited"
    )]
    Unsupported,
}

/// One work request completed unsuccessfully.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ThisError)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[error("work request {wr_id:#x} failed: {status} (vendor error {vendor_err:#x})")]
pub struct WorkRequestError {
    /// The request, as `put`, `get` or `push` returned it.
    pub wr_id: u64,
    /// What the device says went wrong.
    pub status: WcStatus,
    /// The device's own detail, to quote to its vendor.
    pub vendor_err: u32,
}

impl WorkRequestError {
    /// Whether the request was merely flushed: a consequence of an earlier error, never a cause.
    pub fn is_wr_flush_err(&self) -> bool {
        self.status == WcStatus::WR_FLUSH_ERR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_has_one_kind_whatever_number_says_it() {
        for errno in [95, -95, 93, 38] {
            assert_eq!(Error::from_errno("create_qp_ex", errno).kind(), ErrorKind::Unsupported);
        }
    }

    #[test]
    fn enomem_speaks_of_locked_memory() {
        let e = Error::from_errno("reg_mr", 12);
        assert_eq!((e.kind(), e.errno()), (ErrorKind::OutOfResources, Some(12)));
        assert!(e.to_string().starts_with("reg_mr: ") && e.to_string().contains("ulimit -l"), "{e}");
    }

    #[test]
    fn errno_of_the_smallest_number_does_not_overflow() {
        assert_eq!(Error::from_errno("x", i32::MIN).kind(), ErrorKind::Verb);
    }

    #[test]
    fn a_post_error_survives_the_conversion() {
        let e = Error::from(PostError::QueueFull);
        assert_eq!((e.kind(), e.post_error()), (ErrorKind::Post, Some(PostError::QueueFull)));
    }

    #[test]
    fn hot_path_errors_are_small() {
        assert!(size_of::<PostError>() <= 8 && size_of::<PollCompletionError>() <= 16);
    }
}
