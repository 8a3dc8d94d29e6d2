//! Receives through `ibv_post_recv`: posted at once, or kept until the queue pair takes them. A device takes
//! none in RESET.
#![allow(unsafe_code)]
//! # Safety
//! A receive is handed over in one call that copies it; its memory is guarded by its key.

use crate::{config::IbvConfig, memory::IbvMemoryRegionView, verbs::handles::Qp};
use ibv_sys::{ibv_post_recv, ibv_recv_wr, ibv_sge};
use std::{ffi::c_int, mem, ptr};

/// The most ranges a receive of core's has.
const MAX_SGE: usize = 32;

/// Receives that wait for INIT, in order.
#[derive(Debug)]
pub struct EarlyReceives {
    ids: Vec<(u64, usize)>,
    sges: Vec<ibv_sge>,
}

impl EarlyReceives {
    /// Room for as many as the queue pair takes.
    pub fn new(config: &IbvConfig) -> Self {
        let (n, sge) = (config.max_recv_wr as usize, config.max_recv_sge as usize);
        Self { ids: Vec::with_capacity(n), sges: Vec::with_capacity(n * sge) }
    }

    /// Keeps one.
    pub fn keep(&mut self, id: u64, local: &[IbvMemoryRegionView<'_>]) {
        self.ids.push((id, local.len()));
        self.sges.extend(local.iter().map(range));
    }

    /// Posts all, in order, and forgets them.
    ///
    /// # Errors
    /// The library's number; those before the refused one are posted.
    pub fn post_all(&mut self, qp: &mut Qp) -> Result<(), c_int> {
        let mut rest = &mut self.sges[..];
        let done = self.ids.drain(..).try_for_each(|(id, n)| {
            let (mine, others) = mem::take(&mut rest).split_at_mut(n);
            rest = others;
            post_ranges(qp, id, mine)
        });
        // Refused or not, none may be taken for a later one's.
        self.sges.clear();
        done
    }
}

fn range(view: &IbvMemoryRegionView<'_>) -> ibv_sge {
    // A range longer than 2^31 - 1 bytes is cut off; no message is longer than 2^31.
    const MOST: usize = i32::MAX as usize;
    let length = view.len().min(MOST) as u32;
    ibv_sge { addr: view.addr(), length, lkey: view.lkey() }
}

/// Posts one receive.
///
/// # Errors
/// The library's number; nothing was posted.
#[inline]
pub fn post(qp: &mut Qp, id: u64, local: &[IbvMemoryRegionView<'_>]) -> Result<(), c_int> {
    let mut sges = [ibv_sge::default(); MAX_SGE];
    let n = local.len().min(MAX_SGE);
    for (sge, view) in sges.iter_mut().zip(local) {
        *sge = range(view);
    }
    post_ranges(qp, id, &mut sges[..n])
}

fn post_ranges(qp: &mut Qp, wr_id: u64, sges: &mut [ibv_sge]) -> Result<(), c_int> {
    let num_sge = sges.len() as c_int;
    let mut wr = ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: sges.as_mut_ptr(), num_sge };
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair is alive and exclusively borrowed; the request is one, with as many ranges.
    match unsafe { ibv_post_recv(qp.as_ptr(), &mut wr, &mut bad) } {
        0 => Ok(()),
        code => Err(code),
    }
}
