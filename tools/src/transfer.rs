//! Moving one file from one end's registered memory to the other's and back. Both ends run
//! [`send`] and [`receive`], in two processes over TCP or in two threads of this one over a socket pair;
//! the bytes themselves go through put and get only. Arguments and exit codes are elsewhere.

mod end;
mod report;
mod session;
mod wire;

pub use crate::file::Sha256;
pub use crate::wire::Link;
pub use report::{Checksums, Cut, Moved, Report};
pub use session::{receive, send};

use crate::failure::Failure;
use ibv::{Caps, Error, ErrorKind, IbvDomain, IbvDomainImpl, OutOfRange};
use std::{os::unix::net::UnixStream, path::Path, thread, time::Duration};

/// What each frame of a sender begins with.
pub(crate) const MAGIC: [u8; 4] = <wire::Message as crate::wire::Protocol>::MAGIC;

/// How the bytes are cut and how long to wait.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes in one work request; more than the device's largest message counts as that.
    pub chunk: usize,
    /// Work requests in flight at once: the send queue's depth.
    pub depth: u32,
    /// Work requests that one doorbell publishes, at most; more than the device takes at once counts as that.
    pub batch: u32,
    /// How long nothing at all may happen.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { chunk: 1 << 20, depth: 64, batch: 16, timeout: Duration::from_secs(30) }
    }
}

impl Settings {
    /// Refuses what a device with `caps` can not do, before anybody is waited for.
    ///
    /// # Errors
    /// `Refused` where it lacks an operation, `Setting` where its queues are shorter.
    pub(crate) fn check(&self, device: &str, caps: &Caps) -> Result<(), Failure> {
        if !caps.write.present() || !caps.read.present() {
            let hint = "`ibv doctor` says why (libefa before rdma-core 46 has no RDMA write)";
            let why = format!("{device} does not offer both put and get, which a transfer needs; {hint}");
            return Err(Failure::Refused(why));
        }
        let most = caps.max_send_wr.min(caps.max_cqe.saturating_sub(RECEIVES));
        if (1..=most).contains(&self.depth) {
            return Ok(());
        }
        Err(Failure::Setting(format!("--depth {}: {device} takes 1 to {most}", self.depth)))
    }

    /// As a device with `caps` does it: in chunks that are one request each, in batches that are one doorbell each.
    fn on(&self, caps: &Caps) -> Self {
        let at_once = if caps.max_batch == 0 { u32::MAX } else { caps.max_batch };
        let chunk = self.chunk.clamp(1, caps.max_msg_size.max(1));
        Self { chunk, batch: self.batch.clamp(1, at_once), ..*self }
    }
}

/// Is told how far a transfer has come.
pub trait Watch: Send {
    /// A phase of `bytes` begins.
    fn phase(&mut self, name: &'static str, bytes: u64);
    /// So many of them are done.
    fn done(&mut self, bytes: u64);
}

/// Looks away.
impl Watch for () {
    fn phase(&mut self, _: &'static str, _: u64) {}
    fn done(&mut self, _: u64) {}
}

/// Receives that a notification needs.
const RECEIVES: u32 = 1;
/// Regions that the sending end holds: the file, and the file as it came back.
const SENDER_COPIES: u64 = 2;
/// Regions that the receiving end holds.
const RECEIVER_COPIES: u64 = 1;

/// Sends `path` from `near` to `far` and gets it back, both in this process; what arrived is verified
/// and not kept.
///
/// # Errors
/// See [`Failure`]; where both ends fail, the one that failed for a reason of its own.
pub fn both_ends<I: IbvDomainImpl>(
    near: &IbvDomain<I>,
    far: &IbvDomain<I>,
    path: &Path,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Report, Failure> {
    let len = crate::file::Source::open(path)?.len();
    fits(path.display(), len, SENDER_COPIES + RECEIVER_COPIES)?;
    let pair = UnixStream::pair().map_err(|source| Failure::Io { what: "socketpair".into(), source });
    let (here, there) = pair?;
    thread::scope(|scope| {
        let far_end = scope.spawn(move || receive(far, there, None, settings, &mut ()));
        let sent = send(near, here, path, settings, watch);
        let received = far_end.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (sent, received) {
            (Err(Failure::PeerFailed(_) | Failure::Vanished(_)), Err(cause)) => Err(cause),
            (sent, _) => sent,
        }
    })
}

/// Refuses what the host has no memory for, before any of it is taken.
fn fits(what: impl ToString, len: u64, copies: u64) -> Result<(), Failure> {
    let need = len.saturating_mul(copies);
    match crate::memory::available() {
        Some(available) if need > available => {
            Err(Failure::TooLarge { what: what.to_string(), need, available })
        }
        _ => Ok(()),
    }
}

/// A region's own length was misjudged: a mistake of this program, reported rather than panicked about.
pub(crate) fn out_of_range(e: OutOfRange) -> Failure {
    Error::new(ErrorKind::InvalidState, "copy", e.to_string()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibv::Support;

    #[test]
    fn a_device_that_lacks_put_or_get_is_told_from_one_whose_queue_is_short() {
        let mut caps = Caps::default();
        (caps.write, caps.read) = (Support::Native, Support::Native);
        (caps.max_send_wr, caps.max_cqe) = (64, 32);
        let refused = |caps: &Caps| Settings::default().check("dev0", caps).unwrap_err();
        let short = refused(&caps);
        assert_eq!((short.code(), short.to_string().as_str()), (2, "--depth 64: dev0 takes 1 to 31"));
        Settings { depth: 31, ..Settings::default() }.check("dev0", &caps).unwrap();
        for lack in [|c: &mut Caps| c.write = Support::Absent, |c: &mut Caps| c.read = Support::Absent] {
            let mut caps = caps.clone();
            lack(&mut caps);
            let lacks = refused(&caps);
            assert!(lacks.code() == 31 && lacks.to_string().contains("both put and get"), "{lacks}");
        }
    }

    /// Else what is reported as doorbells would be batches.
    #[test]
    fn no_batch_is_longer_than_what_the_device_takes_at_once() {
        let mut caps = Caps::default();
        caps.max_msg_size = 4096;
        let mut batch = |most, asked| {
            caps.max_batch = most;
            Settings { batch: asked, ..Settings::default() }.on(&caps).batch
        };
        assert_eq!([batch(0, 16), batch(1, 16), batch(8, 16), batch(64, 16), batch(8, 0)], [16, 1, 8, 16, 1]);
        assert_eq!(Settings::default().on(&caps).chunk, 4096);
    }
}
