//! A queue pair's ownership. How it gets its state is `state.rs`'s, what it posts the provider's.
#![allow(unsafe_code)]
//! # Safety
//! As in the parent module.

use super::{Cq, Pd, destroy};
use crate::core::{QpCore, Undestroyed};
use ibv_sys::ibv_qp;
use std::{ptr::NonNull, sync::Arc};

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    raw: NonNull<ibv_qp>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    pd: Arc<Pd>,
    undestroyed: Undestroyed,
}

// SAFETY: the library takes a queue pair from any thread; what may not overlap takes `&mut self`.
unsafe impl Send for Qp {}
// SAFETY: as for `Send`; through `&Qp` only fields are read that never change.
unsafe impl Sync for Qp {}

impl Qp {
    /// Takes over a queue pair that a provider has created.
    ///
    /// # Safety
    /// `raw` is a live queue pair of `pd` that reports to these two queues, and nobody else destroys it.
    pub unsafe fn from_raw(raw: NonNull<ibv_qp>, pd: Arc<Pd>, send_cq: Arc<Cq>, recv_cq: Arc<Cq>) -> Self {
        Self { raw, send_cq, recv_cq, pd, undestroyed: Undestroyed::default() }
    }

    /// The handle that tells core where the library refuses to destroy it, and that keeps it where core was told so before.
    #[must_use]
    pub fn of(mut self, core: &QpCore) -> Self {
        self.undestroyed = core.undestroyed().clone();
        self
    }

    /// The queue pair itself, for calls that this module does not wrap. It stays the handle's.
    pub fn as_ptr(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }

    /// Its number.
    pub fn qp_num(&self) -> u32 {
        // SAFETY: the queue pair is alive; the field is set at creation and never changes.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The queue that sends report to.
    pub fn send_cq(&self) -> &Arc<Cq> {
        &self.send_cq
    }

    /// The queue that receives report to.
    pub fn recv_cq(&self) -> &Arc<Cq> {
        &self.recv_cq
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let context = self.pd.context();
        // SAFETY: taken over once in `from_raw`, owned by this handle alone. Every asynchronous event
        // about it that was taken was acknowledged when taken, so the call can not wait for one.
        let call = || unsafe { context.verbs().ibv_destroy_qp(self.as_ptr()) };
        if self.undestroyed.is_set() || !destroy(context.home, "destroy_qp", call) {
            self.undestroyed.set();
            std::mem::forget((self.pd.clone(), self.send_cq.clone(), self.recv_cq.clone()));
        }
    }
}
