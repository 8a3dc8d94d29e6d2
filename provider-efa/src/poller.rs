//! Completion queues: polled through libefa, with what it leaves out put back. Two things it does not do by
//! itself: tell a get from a send (`work.rs` marks the id), and take the completions of a queue pair along when
//! that is destroyed. Those stay in the queue, answer "invalid argument" when polled, and would be another
//! queue pair's once the number is used again; so the queue is swept before that can happen.

#![allow(unsafe_code)]
//! # Safety
//! The queue that is polled is that of the handle beside its pointer, and alive as long as that is.

use crate::work::GET;
use ibv_core::{
    CompletionQueue, Glance, IbvWc, PollCompletionError, WcOpcode, WcStatus,
    verbs::{Cq, CqPoller, poll},
};
use ibv_sys::{ibv_cq, ibv_wc};
use std::{
    ffi::c_int,
    os::fd::BorrowedFd,
    ptr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// The shared half of a completion queue.
#[derive(Debug)]
pub struct EfaCq {
    /// What sweeps took and nobody has polled yet.
    swept: Mutex<Vec<IbvWc>>,
    /// `swept` may hold something. Written under its lock, and before anything is taken off the queue.
    is_swept: AtomicBool,
    cq: Arc<Cq>,
}

impl EfaCq {
    pub(crate) fn new(cq: Arc<Cq>) -> Self {
        Self { swept: Mutex::default(), is_swept: AtomicBool::new(false), cq }
    }

    pub(crate) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    fn swept(&self) -> MutexGuard<'_, Vec<IbvWc>> {
        self.swept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes everything off the queue, and keeps what is not of the queue pair that goes; how many of its there were,
    /// as long as libefa knows it.
    pub(crate) fn sweep(&self, gone: u32) -> u64 {
        let mut swept = self.swept();
        // libefa's lock orders this before the end of a poll that finds the queue empty because of it.
        self.is_swept.store(true, Relaxed);
        let mut wcs = [IbvWc::default(); 16];
        // Each call takes one entry at least, so this ends, whatever is written meanwhile.
        for _ in 0..=self.cq.depth() {
            match poll::poll(&self.cq, &mut wcs) {
                Ok(0) => break,
                Ok(n) => swept.extend(&wcs[..n]),
                Err(_) => {}
            }
        }
        let all = swept.len();
        swept.retain(|wc| wc.qp_num != gone);
        self.is_swept.store(!swept.is_empty(), Relaxed);
        (all - swept.len()) as u64
    }

    /// Moves what was swept to `out`; how many.
    #[cold]
    fn take_swept(&self, out: &mut [IbvWc]) -> usize {
        let mut swept = self.swept();
        let n = swept.len().min(out.len());
        out.iter_mut().zip(swept.drain(..n)).for_each(|(slot, wc)| *slot = wc);
        self.is_swept.store(!swept.is_empty(), Relaxed);
        n
    }
}

/// The one consumer of a queue.
#[derive(Debug)]
pub struct EfaPoller {
    shared: Arc<EfaCq>,
    /// What a poll of one calls.
    raw: RawPoll,
    /// Channel and events.
    plain: CqPoller,
}

/// A queue, and libefa's function that polls it: it never changes, and this is two loads fewer.
#[derive(Clone, Copy, Debug)]
struct RawPoll {
    cq: *mut ibv_cq,
    poll: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
}

// SAFETY: the queue may be polled from any thread.
unsafe impl Send for RawPoll {}

impl RawPoll {
    fn of(cq: &Cq) -> Self {
        // SAFETY: the queue is alive, and so is its context.
        let poll = unsafe { (*(*cq.as_ptr()).context).ops.poll_cq };
        Self { cq: cq.as_ptr(), poll: poll.unwrap_or(none) }
    }
}

/// A library that polls nothing.
unsafe extern "C" fn none(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    -libc::EOPNOTSUPP
}

impl EfaPoller {
    pub(crate) fn new(shared: Arc<EfaCq>) -> Self {
        Self { plain: CqPoller::new(shared.cq.clone()), raw: RawPoll::of(&shared.cq), shared }
    }

    /// Past the entries of destroyed queue pairs: each is an error, and taken. An error that stays is one.
    #[cold]
    fn past_stale(
        &self,
        out: &mut [IbvWc],
        first: PollCompletionError,
    ) -> Result<usize, PollCompletionError> {
        let mut last = first;
        for _ in 0..=self.shared.cq.depth() {
            match poll::poll(&self.shared.cq, out) {
                Err(e @ PollCompletionError::Device(libc::EINVAL)) => last = e,
                answer => return answer,
            }
        }
        Err(last)
    }
}

impl CompletionQueue for EfaPoller {
    #[inline(always)]
    fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        let room = out.len();
        let mut n = match poll::poll(&self.shared.cq, out) {
            Ok(n) => n,
            Err(e @ PollCompletionError::Device(libc::EINVAL)) => self.past_stale(out, e)?,
            Err(e) => return Err(e),
        };
        if n < out.len() && self.shared.is_swept.load(Relaxed) {
            n += self.shared.take_swept(&mut out[n..]);
        }
        complete_all(&mut out[..n.min(room)]);
        Ok(n)
    }

    #[inline(always)]
    fn glance(&mut self, wc: &mut IbvWc) -> Glance {
        // SAFETY: `shared` keeps the queue alive; one completion is writable, of the same layout (`verbs::poll`).
        let n = unsafe { (self.raw.poll)(self.raw.cq, 1, ptr::from_mut(wc).cast()) };
        // Asked for one, so more are one; and this is a comparison fewer than with 1.
        if n > 0 {
            mark_get(wc);
            if wc.status == WcStatus::SUCCESS {
                return Glance::Unordered;
            }
            rename(wc);
            return Glance::Failure;
        }
        // An error comes again when `poll` asks, or was that of an entry of a destroyed queue pair.
        if n == 0 && !self.shared.is_swept.load(Relaxed) { Glance::Nothing } else { Glance::Unclear }
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), PollCompletionError> {
        self.plain.arm(solicited_only)
    }

    fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.plain.channel()
    }

    fn take_events(&mut self) -> Result<u32, PollCompletionError> {
        self.plain.take_events()
    }
}

/// [`complete`] for all of them: most need nothing, which is asked of all at once.
#[inline(always)]
fn complete_all(wcs: &mut [IbvWc]) {
    let (ids, success) = IbvWc::differing(wcs, 0);
    if ids & GET != 0 || !success {
        wcs.iter_mut().for_each(complete);
    }
}

/// Puts back what libefa leaves out: what a get was, and what an error is called.
#[inline(always)]
fn complete(wc: &mut IbvWc) {
    mark_get(wc);
    if wc.status != WcStatus::SUCCESS {
        rename(wc);
    }
}

#[inline(always)]
fn mark_get(wc: &mut IbvWc) {
    if wc.wr_id & GET != 0 {
        wc.wr_id &= !GET;
        wc.opcode = WcOpcode::RDMA_READ;
    }
}

#[cold]
#[inline(never)]
fn rename(wc: &mut IbvWc) {
    if wc.status == WcStatus::GENERAL_ERR {
        wc.status = name(wc.vendor_err);
    }
}

/// Device statuses (`enum efa_io_comp_status`) that an older libefa has no name for: what newer ones call them.
fn name(device_status: u32) -> WcStatus {
    match device_status {
        REMOTE_ERROR_BAD_ADDRESS => WcStatus::REM_ACCESS_ERR,
        REMOTE_ERROR_FEATURE_MISMATCH => WcStatus::REM_INV_REQ_ERR,
        LOCAL_ERROR_UNREACH_REMOTE => WcStatus::RESP_TIMEOUT_ERR,
        REMOTE_ERROR_UNKNOWN_PEER => WcStatus::REM_OP_ERR,
        _ => WcStatus::GENERAL_ERR,
    }
}

const REMOTE_ERROR_BAD_ADDRESS: u32 = 7;
const REMOTE_ERROR_UNKNOWN_PEER: u32 = 14;
const LOCAL_ERROR_UNREACH_REMOTE: u32 = 15;
const REMOTE_ERROR_FEATURE_MISMATCH: u32 = 18;

#[cfg(test)]
mod tests {
    use super::*;

    fn polled(wr_id: u64, opcode: WcOpcode) -> IbvWc {
        let mut wc = IbvWc { wr_id, opcode, ..IbvWc::default() };
        complete(&mut wc);
        wc
    }

    #[test]
    fn a_get_is_told_from_a_send_and_has_its_own_id() {
        let wc = polled(5 | GET, WcOpcode::SEND);
        assert_eq!((wc.wr_id, wc.opcode), (5, WcOpcode::RDMA_READ));
        assert_eq!(polled(5, WcOpcode::SEND).opcode, WcOpcode::SEND);
    }

    #[test]
    fn statuses_that_an_old_libefa_does_not_know_have_their_names() {
        let of = |status, vendor_err| {
            let mut wc = IbvWc { status, vendor_err, ..IbvWc::default() };
            complete(&mut wc);
            wc.status
        };
        assert_eq!(of(WcStatus::GENERAL_ERR, 7), WcStatus::REM_ACCESS_ERR);
        assert_eq!(of(WcStatus::GENERAL_ERR, 14), WcStatus::REM_OP_ERR);
        assert_eq!(of(WcStatus::GENERAL_ERR, 99), WcStatus::GENERAL_ERR);
        assert_eq!(
            of(WcStatus::RNR_RETRY_EXC_ERR, 7),
            WcStatus::RNR_RETRY_EXC_ERR,
            "libefa's own word stands"
        );
    }
}
