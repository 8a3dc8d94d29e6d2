//! Receives through `ibv_post_recv`: posted at once, or kept until the queue pair takes them. A device takes
//! none in RESET.
#![allow(unsafe_code)]
//! # Safety
//! A receive is handed over in one call that copies it; its memory is guarded by its key.

use crate::{
    config::IbvConfig,
    error::{Error, ErrorKind, PostError},
    memory::IbvMemoryRegionView,
    verbs::handles::Qp,
};
use ibv_sys::{ibv_post_recv, ibv_recv_wr, ibv_sge};
use std::{ffi::c_int, mem, ptr};

/// The most ranges a receive of core's has.
const MAX_SGE: usize = 32;

/// A queue pair's receives, and with them how far up it is: in RESET they wait, in order; from INIT on each is
/// posted at once.
#[derive(Debug)]
pub struct Receives {
    /// In RESET still.
    fresh: bool,
    ids: Vec<(u64, usize)>,
    sges: Vec<ibv_sge>,
}

impl Receives {
    /// Those of a queue pair in RESET, with room for as many as it takes.
    pub fn new(config: &IbvConfig) -> Self {
        let (n, sge) = (config.max_recv_wr as usize, config.max_recv_sge as usize);
        Self { fresh: true, ids: Vec::with_capacity(n), sges: Vec::with_capacity(n * sge) }
    }

    /// Whether the queue pair is in RESET, where receives wait.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Refuses to connect a queue pair that is not in RESET.
    ///
    /// # Errors
    /// `InvalidState` where it has left RESET.
    pub fn check_fresh(&self) -> Result<(), Error> {
        if self.fresh {
            return Ok(());
        }
        let detail = "the queue pair has left RESET already, by a connect that failed or into the error state; create another";
        Err(Error::new(ErrorKind::InvalidState, "connect", detail))
    }

    /// Posts one, or keeps it where it has to wait.
    ///
    /// # Errors
    /// `Device` with the library's number; nothing was posted.
    #[inline]
    pub fn take(&mut self, qp: &mut Qp, id: u64, local: &[IbvMemoryRegionView<'_>]) -> Result<(), PostError> {
        if self.fresh {
            self.ids.push((id, local.len()));
            self.sges.extend(local.iter().map(range));
            return Ok(());
        }
        post(qp, id, local).map_err(PostError::Device)
    }

    /// The queue pair is in INIT: posts all that waited, in order, and forgets them.
    ///
    /// # Errors
    /// The library's; those before the refused one are posted, and none waits any more.
    pub fn start(&mut self, qp: &mut Qp) -> Result<(), Error> {
        self.fresh = false;
        let mut rest = &mut self.sges[..];
        let done = self.ids.drain(..).try_for_each(|(id, n)| {
            let (mine, others) = mem::take(&mut rest).split_at_mut(n);
            rest = others;
            post_ranges(qp, id, mine)
        });
        // Refused or not, none may be taken for a later one's.
        self.sges.clear();
        done.map_err(|code| Error::from_errno("post_recv", code).context("a receive posted before connect"))
    }

    /// The queue pair is in RESET again: receives wait.
    pub fn reset(&mut self) {
        self.fresh = true;
    }
}

fn range(view: &IbvMemoryRegionView<'_>) -> ibv_sge {
    // A range longer than 2^31 - 1 bytes is cut off; no message is longer than 2^31.
    const MOST: usize = i32::MAX as usize;
    let length = view.len().min(MOST) as u32;
    ibv_sge { addr: view.addr(), length, lkey: view.lkey() }
}

#[inline]
fn post(qp: &mut Qp, id: u64, local: &[IbvMemoryRegionView<'_>]) -> Result<(), c_int> {
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
