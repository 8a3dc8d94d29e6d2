//! The consuming end of a completion queue through libibverbs: completions into the caller's slice, and
//! the channel. A provider that reads the rings itself has its own `poll` and may share the channel.
//!
//! Completions are routed by core, by the route that it keeps in every `wr_id`. Routing by `qp_num` is
//! possible beside that but not enough: a device reuses the number of a destroyed queue pair while
//! completions of the old one are still queued.
#![allow(unsafe_code)]
//! # Safety
//! A completion is written by the library into `IbvWc`, which is laid out as `ibv_wc`: asserted below,
//! field by field. Every event taken off the channel is acknowledged before anything else, so destroying
//! the queue, which waits for acknowledgements, never waits.

use crate::{
    error::PollCompletionError,
    provider::CompletionQueue,
    verbs::{
        errno,
        handles::{Channel, Cq},
    },
    wc::IbvWc,
};
use ibv_sys::{ibv_poll_cq, ibv_req_notify_cq, ibv_wc};
use std::{
    ffi::c_int,
    mem::offset_of,
    os::fd::{AsFd, BorrowedFd},
    ptr,
    sync::Arc,
};

const _: () = {
    assert!(size_of::<IbvWc>() == size_of::<ibv_wc>() && align_of::<IbvWc>() == align_of::<ibv_wc>());
    assert!(offset_of!(IbvWc, wr_id) == offset_of!(ibv_wc, wr_id));
    assert!(offset_of!(IbvWc, status) == offset_of!(ibv_wc, status));
    assert!(offset_of!(IbvWc, opcode) == offset_of!(ibv_wc, opcode));
    assert!(offset_of!(IbvWc, vendor_err) == offset_of!(ibv_wc, vendor_err));
    assert!(offset_of!(IbvWc, byte_len) == offset_of!(ibv_wc, byte_len));
    assert!(offset_of!(IbvWc, imm_data) == offset_of!(ibv_wc, __bindgen_anon_1));
    assert!(offset_of!(IbvWc, qp_num) == offset_of!(ibv_wc, qp_num));
    assert!(offset_of!(IbvWc, src_qp) == offset_of!(ibv_wc, src_qp));
    assert!(offset_of!(IbvWc, wc_flags) == offset_of!(ibv_wc, wc_flags));
    assert!(offset_of!(IbvWc, pkey_index) == offset_of!(ibv_wc, pkey_index));
    assert!(offset_of!(IbvWc, slid) == offset_of!(ibv_wc, slid));
    assert!(offset_of!(IbvWc, sl) == offset_of!(ibv_wc, sl));
    assert!(offset_of!(IbvWc, dlid_path_bits) == offset_of!(ibv_wc, dlid_path_bits));
    assert!(IbvWc::GRH == ibv_sys::IBV_WC_GRH && IbvWc::WITH_IMM == ibv_sys::IBV_WC_WITH_IMM);
};

/// Takes up to `out.len()` completions.
///
/// # Errors
/// `Device`: with the library's number, or EIO where it only says that it failed.
#[inline]
pub fn poll(cq: &Cq, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
    let room = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
    // SAFETY: the queue is alive; `out` has room for as many, of the same layout.
    let got = unsafe { ibv_poll_cq(cq.as_ptr(), room, out.as_mut_ptr().cast()) };
    usize::try_from(got).map_err(|_| PollCompletionError::Device(poll_errno(got)))
}

/// −1 is "failed" to every library there is, not EPERM.
#[cold]
fn poll_errno(got: c_int) -> c_int {
    if got == -1 { libc::EIO } else { got.saturating_neg() }
}

/// The one consumer of a queue.
#[derive(Debug)]
pub struct CqPoller {
    cq: Arc<Cq>,
}

impl CqPoller {
    /// The consumer of `cq`; its provider makes one.
    pub fn new(cq: Arc<Cq>) -> Self {
        Self { cq }
    }

    fn own_channel(&self) -> Result<&Channel, PollCompletionError> {
        self.cq.channel().ok_or(PollCompletionError::NoChannel)
    }
}

impl CompletionQueue for CqPoller {
    #[inline]
    fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        poll(&self.cq, out)
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), PollCompletionError> {
        self.own_channel()?;
        // SAFETY: the queue is alive and has a channel.
        match unsafe { ibv_req_notify_cq(self.cq.as_ptr(), c_int::from(solicited_only)) } {
            0 => Ok(()),
            code => Err(PollCompletionError::Device(code.saturating_abs())),
        }
    }

    fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.cq.channel().map(AsFd::as_fd)
    }

    fn take_events(&mut self) -> Result<u32, PollCompletionError> {
        take_events(&self.cq)
    }
}

/// Takes and acknowledges all events that wait on a queue's channel; never blocks, for its descriptor
/// does not.
///
/// # Errors
/// `NoChannel`; `Device` where the channel can not be read.
pub fn take_events(cq: &Cq) -> Result<u32, PollCompletionError> {
    let channel = cq.channel().ok_or(PollCompletionError::NoChannel)?;
    let verbs = cq.context().verbs();
    let (mut taken, mut failure) = (0u32, None);
    loop {
        let (mut whose, mut cookie) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive; both results are writable.
        if unsafe { verbs.ibv_get_cq_event(channel.as_ptr(), &mut whose, &mut cookie) } == 0 {
            taken += 1;
            continue;
        }
        match errno() {
            libc::EINTR => {}
            libc::EAGAIN => break,
            code => {
                failure = Some(PollCompletionError::Device(code));
                break;
            }
        }
    }
    if taken > 0 {
        // SAFETY: the queue is alive, and its channel carries no other queue's events.
        unsafe { verbs.ibv_ack_cq_events(cq.as_ptr(), taken) };
    }
    match failure {
        // The channel will say so again; the events taken must be counted.
        Some(e) if taken == 0 => Err(e),
        _ => Ok(taken),
    }
}
