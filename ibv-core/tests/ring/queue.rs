//! The toy device's completion queue: written by queue pairs on any thread, read by one poller. What the
//! device does wrong on purpose is here too.
use super::*;
use std::{
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd},
    os::unix::net::UnixStream,
    sync::atomic::AtomicBool,
};

/// What is reported of one request: its id, and opcode and length in one word.
#[derive(Debug, Default)]
struct Cqe {
    id: AtomicU64,
    what: AtomicU64,
}

/// A completion queue in "device memory".
#[derive(Debug)]
pub struct Shared {
    /// Entries handed out to writers.
    tail: AtomicU64,
    /// Entries that are complete.
    rung: AtomicU64,
    /// Entries that the poller may see.
    visible: AtomicU64,
    /// Whether entries stay invisible until `release`.
    pub hold: AtomicBool,
    /// Releases what is held in the very moment that the queue is armed, before it takes effect.
    pub release_on_arm: AtomicBool,
    armed: AtomicBool,
    /// Whether everything that is polled from now on flushes.
    pub flushing: AtomicBool,
    cqes: [Cqe; SLOTS],
    channel: Option<(UnixStream, UnixStream)>,
}

impl Shared {
    pub fn new(channel: bool) -> io::Result<Arc<Self>> {
        let pair = || {
            let (a, b) = UnixStream::pair()?;
            a.set_nonblocking(true)?;
            b.set_nonblocking(true)?;
            Ok::<_, io::Error>((a, b))
        };
        Ok(Arc::new(Self {
            tail: AtomicU64::new(0),
            rung: AtomicU64::new(0),
            visible: AtomicU64::new(0),
            hold: AtomicBool::new(false),
            release_on_arm: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            flushing: AtomicBool::new(false),
            cqes: [const { Cqe { id: AtomicU64::new(0), what: AtomicU64::new(0) } }; SLOTS],
            channel: if channel { Some(pair()?) } else { None },
        }))
    }

    /// Writes one entry per item; queue pairs on other threads may do so at the same time.
    #[inline]
    pub fn complete(&self, count: usize, entries: impl Iterator<Item = (u64, u64)>) {
        let start = self.tail.fetch_add(count as u64, Relaxed);
        for (at, (id, what)) in (start..).zip(entries) {
            let cqe = &self.cqes[at as usize & (SLOTS - 1)];
            cqe.id.store(id, Relaxed);
            cqe.what.store(what, Relaxed);
        }
        while self.rung.load(Acquire) != start {
            std::thread::yield_now();
        }
        self.rung.store(start + count as u64, Release);
        if !self.hold.load(Relaxed) {
            self.release();
        }
    }

    /// Makes everything that was rung visible, and raises the event if the queue is armed.
    pub fn release(&self) {
        self.visible.fetch_max(self.rung.load(Acquire), AcqRel);
        if self.armed.load(SeqCst) && self.armed.swap(false, SeqCst) {
            self.raise();
        }
    }

    #[cold]
    fn raise(&self) {
        if let Some((end, _)) = &self.channel {
            let mut end: &UnixStream = end;
            assert_eq!(end.write(&[1]).expect("an event fits the channel"), 1);
        }
    }
}

/// What a device does wrong on purpose.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Refuses to build the request with this number, once.
    pub refuse: u64,
    /// Refuses the doorbell with this number.
    pub refuse_ring: u64,
    /// The completion with this number fails, and all later ones flush.
    pub fail: u64,
    /// With this status.
    pub status: WcStatus,
    /// Flips these bits of every `wr_id`.
    pub wr_id: u64,
    /// Reports this many more completions than there are.
    pub too_many: usize,
}

pub const NONE: Faults = Faults {
    refuse: u64::MAX,
    refuse_ring: u64::MAX,
    fail: u64::MAX,
    status: WcStatus::REM_ACCESS_ERR,
    wr_id: 0,
    too_many: 0,
};

#[derive(Debug)]
pub struct RingPoller {
    shared: Arc<Shared>,
    next: u64,
    faults: Faults,
}

impl RingPoller {
    pub fn new(shared: Arc<Shared>, faults: Faults) -> Self {
        Self { shared, next: 0, faults }
    }
}

impl CompletionQueue for RingPoller {
    #[inline]
    fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        let n = out.len().min((self.shared.visible.load(Acquire) - self.next) as usize);
        let flushing = self.shared.flushing.load(Relaxed);
        for wc in &mut out[..n] {
            let cqe = &self.shared.cqes[self.next as usize & (SLOTS - 1)];
            let what = cqe.what.load(Relaxed);
            *wc = IbvWc::default();
            wc.wr_id = cqe.id.load(Relaxed) ^ self.faults.wr_id;
            (wc.opcode, wc.byte_len) = (WcOpcode((what >> 32) as u32), what as u32);
            if self.next >= self.faults.fail || flushing {
                let first = self.next == self.faults.fail;
                wc.status = if first { self.faults.status } else { WcStatus::WR_FLUSH_ERR };
                wc.vendor_err = u32::from(first) * 0x88;
            }
            self.next += 1;
        }
        Ok(n + self.faults.too_many)
    }

    fn arm(&mut self, _: bool) -> Result<(), PollCompletionError> {
        if self.shared.channel.is_none() {
            return Err(PollCompletionError::NoChannel);
        }
        if self.shared.release_on_arm.load(Relaxed) {
            self.shared.release();
        }
        self.shared.armed.store(true, SeqCst);
        Ok(())
    }

    fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.shared.channel.as_ref().map(|(_, end)| end.as_fd())
    }

    fn take_events(&mut self) -> Result<u32, PollCompletionError> {
        let (_, end) = self.shared.channel.as_ref().ok_or(PollCompletionError::NoChannel)?;
        let mut end: &UnixStream = end;
        match end.read(&mut [0; 16]) {
            Ok(n) => Ok(n as u32),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(e) => Err(PollCompletionError::Device(e.raw_os_error().unwrap_or(0))),
        }
    }
}
