//! Everything a command can fail with, and the exit code that says which. Usage errors are clap's: 2.

use ibv::{EndpointError, ErrorKind, PollCompletionError, PostError, WorkRequestError};
use std::{io, path::PathBuf, time::Duration};
use thiserror::Error;

/// Why a command failed. Prints in one line; [`code`](Self::code) is the process's exit code.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Failure {
    /// The library or a device refused.
    #[error(transparent)]
    Rdma(#[from] ibv::Error),
    /// A request was not accepted.
    #[error("post_send: {0}")]
    Post(#[from] PostError),
    /// A queue can not be polled.
    #[error("poll_cq: {0}")]
    Poll(#[from] PollCompletionError),
    /// A request was accepted and failed.
    #[error("{0}")]
    WorkRequest(#[from] WorkRequestError),
    /// An option has a value that nothing here can take; the message names option, value and range.
    #[error("{0}")]
    Setting(String),
    /// Whoever read standard output has gone, as `head` does: nothing is wrong, and nothing is said.
    #[error("nobody reads standard output any more")]
    NobodyReads,
    /// Standard output can not be written to, or something else of the operating system's.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// `ibv doctor` found nothing that can be used; what it found is on standard output.
    #[error("no RDMA device of that machine can be used: {0} error(s), listed above with what to do")]
    Unusable(usize),
    /// `ibv decode` found entries that are wrong; what, is on standard output.
    #[error("{0} thing(s) are wrong, each named behind its entry")]
    Malformed(usize),
    /// Lines of a trace can not be read; all others have been decoded and printed.
    #[error(
        "{path}: {lines} line(s) can not be read, and everything else is printed; the first is line {first}, which {why}"
    )]
    Unread {
        /// The trace.
        path: PathBuf,
        /// How many.
        lines: usize,
        /// The first one's number, from 1.
        first: usize,
        /// What is wrong with that.
        why: String,
    },
    /// What should be decoded is neither a dump nor a trace.
    #[error("{path}: is no dump: {why}")]
    NotADump {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file is no snapshot of `ibv doctor`.
    #[error("{path}: is no snapshot of ibv doctor: {why}; write one with --snapshot")]
    NotASnapshot {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another release wrote the snapshot.
    #[error(
        "{path}: is a snapshot of version {theirs}, and this release reads version {ours}; use the release that wrote it"
    )]
    SnapshotVersion {
        /// The file.
        path: PathBuf,
        /// The file's.
        theirs: u64,
        /// Ours.
        ours: u32,
    },
    /// The snapshot can not be written where asked for.
    #[error("{path}: the snapshot can not be written: {source}")]
    SnapshotUnwritable {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// No such file.
    #[error("{0}: no such file")]
    Missing(PathBuf),
    /// The file exists and can not be read.
    #[error("{path}: can not be read: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A directory, a socket, a device.
    #[error("{path}: is {what}; only regular files are transferred")]
    NotAFile {
        /// What was named.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// No bytes to move.
    #[error("{0}: is empty, so there is nothing to transfer")]
    Empty(PathBuf),
    /// It does not fit into memory; nothing was allocated.
    #[error("{what}: {need} bytes of registered memory are needed and {available} are available")]
    TooLarge {
        /// The file, or "the offered file".
        what: String,
        /// Bytes all regions together take.
        need: u64,
        /// Bytes the host or its control group has left.
        available: u64,
    },
    /// The received file can not be written where asked for; nothing is left there.
    #[error("{path}: can not be written: {source}")]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Nobody listens there, or nobody may.
    #[error("{addr}: {source}")]
    Unreachable {
        /// The address as given.
        addr: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The peer does not speak this protocol.
    #[error("the peer speaks something else: {0}")]
    Garbage(String),
    /// The peer speaks another version of it.
    #[error(
        "the peer speaks version {theirs} of the {what}, this end version {ours}; use the same release on both ends"
    )]
    PeerVersion {
        /// Transfer protocol, or endpoint form.
        what: &'static str,
        /// The peer's.
        theirs: u8,
        /// Ours.
        ours: u8,
    },
    /// The connection ended before the transfer did.
    #[error("the peer went away while this end {0}")]
    Vanished(&'static str),
    /// Nothing happened for too long.
    #[error(
        "nothing happened for {} s while this end {during}; raise {option} if that is too short",
        limit.as_secs_f64()
    )]
    Silent {
        /// What this end was doing.
        during: &'static str,
        /// How long.
        limit: Duration,
        /// The option that says so.
        option: &'static str,
    },
    /// The peer gave up and said why.
    #[error("the peer gave up: {0}")]
    PeerFailed(String),
    /// The provider's fabric is inside one process.
    #[error(
        "provider {0} can not join two processes: its fabric lives inside one; both ends can run here: --loopback for perf, neither --listen nor --to for transfer"
    )]
    OneProcess(String),
    /// The two ends of a measurement were told different things.
    #[error("the ends' settings differ: {0}; give both the same")]
    Differ(String),
    /// The device, or this build, can not do what was asked for.
    #[error("{0}")]
    Refused(String),
    /// `ibv perf --verify` found bytes that nobody sent.
    #[error("the bytes that arrived are not those that were sent: {0}")]
    WrongBytes(String),
    /// The report can not be written where asked for.
    #[error("{path}: the report can not be written: {source}")]
    ReportUnwritable {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The bytes differ.
    #[error("checksums differ: {ours} here, {theirs} {whose}")]
    Mismatch {
        /// Of the bytes that should be there.
        ours: String,
        /// Of the bytes that are.
        theirs: String,
        /// Where those are.
        whose: &'static str,
    },
}

impl Failure {
    /// Every exit code and what it says, in order.
    pub const CODES: [(u8, &str); 30] = [
        (0, "success"),
        (1, "the library, a device, the operating system or a conformance case failed"),
        (
            2,
            "wrong usage: an option that is not there, or a value that can not be used; option, value and range are printed",
        ),
        (3, "no device, or no provider of that name"),
        (5, "doctor: no device can be used; what to do is printed"),
        (6, "decode: something is wrong with what was decoded; it is printed"),
        (10, "the file does not exist"),
        (11, "the file can not be read"),
        (12, "a directory or something else that is no regular file"),
        (13, "the file is empty"),
        (14, "the file, or the messages of perf, do not fit into memory"),
        (15, "the received file can not be written"),
        (20, "the peer's address can not be reached or listened on"),
        (21, "the peer speaks something else"),
        (22, "the peer speaks another version"),
        (23, "the peer went away midway"),
        (24, "nothing happened for --timeout seconds, or nobody came within --wait seconds"),
        (25, "the peer gave up; its reason is printed"),
        (26, "perf: the two ends' settings differ"),
        (30, "the provider can not join two processes"),
        (31, "the device or this build can not do that"),
        (40, "checksums differ"),
        (41, "perf: the bytes that arrived are not those that were sent"),
        (50, "the file is no snapshot of ibv doctor"),
        (51, "another release wrote the snapshot"),
        (52, "the snapshot can not be written"),
        (53, "perf: the report can not be written"),
        (54, "the file is no dump that decode can read"),
        (
            55,
            "decode: lines of the trace can not be read, such as the last of a killed process; the others are printed",
        ),
        (141, "nobody reads standard output any more, as after `| head`; nothing is said"),
    ];

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Rdma(e) if e.kind() == ErrorKind::NoDevice => 3,
            Self::Rdma(_) | Self::Post(_) | Self::Poll(_) | Self::WorkRequest(_) | Self::Io { .. } => 1,
            Self::Setting(_) => 2,
            Self::Unusable(_) => 5,
            Self::Malformed(_) => 6,
            Self::Missing(_) => 10,
            Self::Unreadable { .. } => 11,
            Self::NotAFile { .. } => 12,
            Self::Empty(_) => 13,
            Self::TooLarge { .. } => 14,
            Self::Unwritable { .. } => 15,
            Self::Unreachable { .. } => 20,
            Self::Garbage(_) => 21,
            Self::PeerVersion { .. } => 22,
            Self::Vanished(_) => 23,
            Self::Silent { .. } => 24,
            Self::PeerFailed(_) => 25,
            Self::Differ(_) => 26,
            Self::OneProcess(_) => 30,
            Self::Refused(_) => 31,
            Self::Mismatch { .. } => 40,
            Self::WrongBytes(_) => 41,
            Self::NotASnapshot { .. } => 50,
            Self::SnapshotVersion { .. } => 51,
            Self::SnapshotUnwritable { .. } => 52,
            Self::ReportUnwritable { .. } => 53,
            Self::NotADump { .. } => 54,
            Self::Unread { .. } => 55,
            Self::NobodyReads => 141,
        }
    }

    /// What a device refuses of a configuration, in the words of the options that made it: pairs of a field and
    /// an option.
    pub(crate) fn of_options(refused: ibv::Error, options: &[(&str, &str)]) -> Self {
        if refused.kind() != ErrorKind::InvalidConfig {
            return refused.into();
        }
        let said = refused.detail().replace("IbvConfig::", "");
        Self::Setting(options.iter().fold(said, |said, (field, option)| said.replace(field, option)))
    }

    /// Output that can not be written: a closed pipe, a full disk.
    pub(crate) fn output(source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::BrokenPipe {
            return Self::NobodyReads;
        }
        Self::Io { what: "standard output".into(), source }
    }
}

/// Of what a peer sent in an endpoint's place.
impl From<EndpointError> for Failure {
    fn from(e: EndpointError) -> Self {
        match e {
            EndpointError::Version { theirs, ours } => {
                Self::PeerVersion { what: "endpoint form", theirs, ours }
            }
            e => Self::Garbage(e.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io() -> io::Error {
        io::ErrorKind::Other.into()
    }

    fn one_of_each() -> Vec<Failure> {
        let path = PathBuf::from("f");
        vec![
            ibv::Error::new(ErrorKind::Verb, "x", "y").into(),
            ibv::Error::new(ErrorKind::NoDevice, "x", "y").into(),
            Failure::Unusable(1),
            Failure::NotASnapshot { path: path.clone(), why: "x".into() },
            Failure::SnapshotVersion { path: path.clone(), theirs: 2, ours: 1 },
            Failure::SnapshotUnwritable { path: path.clone(), source: io() },
            Failure::Malformed(1),
            Failure::NotADump { path: path.clone(), why: "x".into() },
            Failure::Unread { path: path.clone(), lines: 1, first: 9, why: "x".into() },
            Failure::Setting("x".into()),
            Failure::NobodyReads,
            Failure::Missing(path.clone()),
            Failure::Unreadable { path: path.clone(), source: io() },
            Failure::NotAFile { path: path.clone(), what: "a directory" },
            Failure::Empty(path.clone()),
            Failure::TooLarge { what: "f".into(), need: 2, available: 1 },
            Failure::Unwritable { path: path.clone(), source: io() },
            Failure::ReportUnwritable { path, source: io() },
            Failure::Differ("x".into()),
            Failure::Refused("x".into()),
            Failure::WrongBytes("x".into()),
            Failure::Unreachable { addr: "a".into(), source: io() },
            Failure::Garbage("x".into()),
            Failure::PeerVersion { what: "x", theirs: 2, ours: 1 },
            Failure::Vanished("waited"),
            Failure::Silent { during: "waited", limit: Duration::from_millis(50), option: "--wait" },
            Failure::PeerFailed("x".into()),
            Failure::OneProcess("mock".into()),
            Failure::Mismatch { ours: "a".into(), theirs: "b".into(), whose: "there" },
        ]
    }

    #[test]
    fn every_failure_has_a_code_of_its_own_and_every_code_is_documented() {
        let mut codes: Vec<u8> = one_of_each().iter().map(Failure::code).collect();
        codes.push(0);
        codes.sort_unstable();
        assert_eq!(codes, Failure::CODES.map(|(code, _)| code));
    }

    #[test]
    fn what_a_device_refuses_is_said_by_the_options_that_asked_for_it() {
        let refused = "IbvConfig::max_send_wr is 9; with max_inline of 8 this device takes 1 to 4";
        let refused = |kind| ibv::Error::new(kind, "create_qp", refused);
        let options = [("max_send_wr", "--tx-depth"), ("max_inline", "--inline")];
        let said = Failure::of_options(refused(ErrorKind::InvalidConfig), &options);
        assert_eq!(said.to_string(), "--tx-depth is 9; with --inline of 8 this device takes 1 to 4");
        assert_eq!((said.code(), Failure::of_options(refused(ErrorKind::Verb), &options).code()), (2, 1));
    }

    #[test]
    fn messages_start_lower_case_and_take_one_line() {
        for failure in one_of_each() {
            let text = failure.to_string();
            assert!(!text.contains('\n') && !text.starts_with(char::is_uppercase), "{text}");
        }
    }
}
