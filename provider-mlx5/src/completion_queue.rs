//! What all holders of a completion queue share: the verbs object, who reports to it, and the graves of
//! those who did. Polling is `poller.rs`'s.
//!
//! # Why graves
//!
//! Reading a queue directly makes it ours for good (`mlx5dv_init_obj`): libmlx5 no longer sweeps the
//! entries of a queue pair that is destroyed, and the kernel reuses queue pair numbers. So a queue pair
//! that drops is moved to RESET, after which the device writes no entry for it, but is destroyed only
//! when both its queues have been seen empty since. Until then nobody else can have its number, and its
//! stale entries are told apart by it.
#![allow(unsafe_code)]
//! # Safety
//! The addresses come from `mlx5dv_init_obj` on a queue that this file keeps alive.

use crate::{
    cqe::Cqe,
    doorbell::{self, DoorbellRecord},
    dv,
    mapped::Walk,
    poller::Mlx5Poller,
    queue_pair::Device,
    ring::Slots,
};
use ibv_core::{
    CqConfig, Error, ErrorKind, PollCompletionError,
    verbs::{Channel, Context, Cq, poll},
};
use std::{
    ptr::NonNull,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The shared half of a completion queue.
#[derive(Debug)]
pub struct Mlx5Cq(pub(crate) Arc<CqShared>);

/// A queue pair that has dropped, kept until nothing in its queues is of it.
#[derive(Debug)]
pub(crate) struct Grave {
    pub(crate) slots: Arc<Slots>,
    /// Destroys the queue pair when both its queues have let go.
    pub(crate) _device: Device,
}

#[derive(Debug)]
pub(crate) struct CqShared {
    reporters: Mutex<Vec<Arc<Slots>>>,
    graves: Mutex<Vec<(u64, Arc<Grave>)>>,
    /// Counts graves, so that a poller sees with one load that there is something to bury.
    dug: AtomicU64,
    /// Counts queue pairs that left without a grave, for pollers' copies of `reporters`.
    left: AtomicU64,
    uar: NonNull<u8>,
    cqn: u32,
    /// Behind the graves, whose queue pairs report to it.
    pub(crate) cq: Arc<Cq>,
}

// SAFETY: `uar` is mapped while `cq` lives, and written by the one poller only.
unsafe impl Send for CqShared {}
// SAFETY: as for `Send`.
unsafe impl Sync for CqShared {}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a queue and takes its ring.
pub(crate) fn create(context: &Arc<Context>, config: &CqConfig) -> Result<(Mlx5Cq, Mlx5Poller), Error> {
    let cq = Cq::create(context, config.depth, config.channel)?;
    let found = dv::completion_queue(&cq)?;
    let (size, count) = (found.cqe_size, found.cqe_cnt);
    if !matches!(size, 64 | 128) || !count.is_power_of_two() || count < config.depth {
        let detail = format!("{count} entries of {size} bytes: neither 64 nor 128, or no power of two");
        return Err(Error::new(ErrorKind::Unsupported, "create_cq", detail));
    }
    let null = || Error::new(ErrorKind::Unsupported, "create_cq", "libmlx5 reports no ring for the queue");
    let buf = NonNull::new(found.buf).ok_or_else(null)?;
    let record = NonNull::new(found.dbrec).ok_or_else(null)?;
    let uar = NonNull::new(found.cq_uar.cast::<u8>()).ok_or_else(null)?;
    // SAFETY: libmlx5 describes the ring and the record of a live queue, which `CqShared` keeps alive.
    let (entries, record) = unsafe {
        // Of the two blocks of a 128-byte entry, the second is the one that is read.
        let first = buf.byte_add(size as usize - size_of::<Cqe>()).cast::<Cqe>();
        (Walk::new(first, count as usize, size as usize), DoorbellRecord::new(record.cast()))
    };
    let entries = entries.ok_or_else(null)?;
    let shared = Arc::new(CqShared {
        reporters: Mutex::default(),
        graves: Mutex::default(),
        dug: AtomicU64::new(0),
        left: AtomicU64::new(0),
        uar,
        cqn: found.cqn,
        cq,
    });
    Ok((Mlx5Cq(shared.clone()), Mlx5Poller::new(entries, record, shared)))
}

impl CqShared {
    /// `slots`' queue pair reports here from now on.
    pub(crate) fn enrol(&self, slots: &Arc<Slots>) {
        let mut reporters = lock(&self.reporters);
        if !reporters.iter().any(|s| Arc::ptr_eq(s, slots)) {
            reporters.push(slots.clone());
        }
    }

    /// All who report here, the dead whose entries may still be queued included.
    pub(crate) fn reporters(&self) -> Vec<Arc<Slots>> {
        lock(&self.reporters).clone()
    }

    /// `slots`' queue pair never had a request, so no entry is of it, and its number is free at once.
    pub(crate) fn leave(&self, slots: &Arc<Slots>) {
        lock(&self.reporters).retain(|s| !Arc::ptr_eq(s, slots));
        self.left.fetch_add(1, Release);
    }

    /// Queue pairs that have left without a grave.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Acquire)
    }

    pub(crate) fn dig(&self, grave: Arc<Grave>) {
        let mut graves = lock(&self.graves);
        let stamp = self.dug.fetch_add(1, Release) + 1;
        graves.push((stamp, grave));
    }

    /// Graves dug so far.
    #[inline]
    pub(crate) fn graves(&self) -> u64 {
        self.dug.load(Acquire)
    }

    /// The queue was empty when `upto` graves had been dug: those are done here.
    pub(crate) fn bury(&self, upto: u64) {
        let done: Vec<_> = {
            let mut graves = lock(&self.graves);
            let (done, left) = graves.drain(..).partition(|(stamp, _)| *stamp <= upto);
            *graves = left;
            done
        };
        let of = |s: &Arc<Slots>| done.iter().any(|(_, g): &(u64, Arc<Grave>)| Arc::ptr_eq(&g.slots, s));
        lock(&self.reporters).retain(|s| !of(s));
        // Outside the locks: the last holder destroys the queue pair, which calls the kernel.
        drop(done);
    }

    pub(crate) fn channel(&self) -> Option<&Channel> {
        self.cq.channel()
    }

    pub(crate) fn take_events(&self) -> Result<u32, PollCompletionError> {
        poll::take_events(&self.cq)
    }

    /// Arms the queue at consumer index `index`. `events` were taken off the channel so far: the device
    /// compares their low two bits, to tell a new request from the one it has answered.
    pub(crate) fn arm(&self, record: &DoorbellRecord, events: u32, index: u32, solicited_only: bool) {
        const SOLICITED_ONLY: u32 = 1 << 24;
        let word = (events & 3) << 28 | if solicited_only { SOLICITED_ONLY } else { 0 } | index;
        // SAFETY: the queue's own UAR, mapped while `cq` lives.
        unsafe { doorbell::arm(record, self.uar, word, self.cqn) };
    }
}
