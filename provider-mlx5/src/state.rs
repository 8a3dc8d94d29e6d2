//! What the seeds' struct shows of a queue pair: libmlx5's descriptions of its rings at fixed addresses, and
//! the state block that C and device code share. Nothing is posted or polled here.
#![allow(unsafe_code)]
//! # Safety
//! All four objects are allocated in `of`, at addresses that never change, and freed in `drop`. The block
//! is made of what libmlx5 says about live objects; it is written through atomics, and its one plain field
//! that changes by the owner of the queue pair, who is the only one to post.

use crate::{dv, ring::Positions};
use ibv_core::{
    Error, ErrorKind,
    verbs::{Cq, Qp},
};
use ibv_sys as sys;
use rdmaxcel_sys as shim;
use std::{
    collections::VecDeque,
    ptr::{self, NonNull},
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, Release},
    },
};

#[derive(Debug)]
pub(crate) struct State {
    dv_qp: NonNull<sys::mlx5dv_qp>,
    dv_cqs: [NonNull<sys::mlx5dv_cq>; 2],
    block: NonNull<shim::rdmaxcel_qp>,
    /// Requests that may be in flight, with the basic block behind each. Core admits no more of them than
    /// fit, so whoever is pushed out at the front is finished.
    ends: VecDeque<(u64, u64)>,
}

// SAFETY: the objects are owned, and what changes in them is atomic or written through `&mut`.
unsafe impl Send for State {}

fn leaked<T>(value: Box<T>) -> NonNull<T> {
    NonNull::from(Box::leak(value))
}

impl State {
    /// Describes `qp` and its queues; `depth` requests are in flight at most.
    pub(crate) fn of(qp: &Qp, queues: [&Cq; 2], depth: u32) -> Result<Self, Error> {
        let (dv_qp, send, recv) =
            (dv::queue_pair(qp)?, dv::completion_queue(queues[0])?, dv::completion_queue(queues[1])?);
        let from = block(qp, queues, &dv_qp, [&send, &recv]);
        // SAFETY: the description is only read.
        let block = NonNull::new(unsafe { shim::rdmaxcel_qp_create(&from) });
        let refused = || Error::new(ErrorKind::OutOfResources, "create_qp", "no state block for these rings");
        let block = block.ok_or_else(refused)?;
        let dv_cqs = [leaked(send), leaked(recv)];
        Ok(Self { dv_qp: leaked(dv_qp), dv_cqs, block, ends: VecDeque::with_capacity(depth as usize) })
    }

    /// The block; the same on each call.
    pub(crate) fn block(&self) -> NonNull<shim::rdmaxcel_qp> {
        self.block
    }

    /// Addresses of the descriptions: queue pair, send queue, receive queue.
    pub(crate) fn addresses(&self) -> [usize; 3] {
        [self.dv_qp.as_ptr() as usize, self.dv_cqs[0].as_ptr() as usize, self.dv_cqs[1].as_ptr() as usize]
    }

    /// Stores where the send queue is.
    pub(crate) fn sent(&mut self, at: Positions) {
        let counters = [
            (self.counter(|b| &b.send_last_idx), at.last),
            (self.counter(|b| &b.send_wqe_idx), at.next),
            (self.counter(|b| &b.send_db_idx), at.rung),
        ];
        counters.into_iter().for_each(|(counter, value)| counter.store(value, Release));
    }

    /// The half of the register that comes next.
    pub(crate) fn half(&mut self, offset: usize) {
        // SAFETY: a plain field that only the one poster touches.
        unsafe { (&raw mut (*self.block.as_ptr()).sq.bf_offset).write(offset as u32) };
    }

    /// Request `id` was built up to block `end`.
    pub(crate) fn built(&mut self, id: u64, end: u64) {
        if self.ends.len() == self.ends.capacity()
            && let Some((_, done)) = self.ends.pop_front()
        {
            self.counter(|b| &b.send_done_idx).store(done, Release);
        }
        self.ends.push_back((id, end));
    }

    /// Everything built past block `rung` was thrown away.
    pub(crate) fn discarded(&mut self, rung: u64) {
        while self.ends.back().is_some_and(|(_, end)| *end > rung) {
            self.ends.pop_back();
        }
    }

    /// A completion of the send queue was taken: it retires all requests up to its own.
    pub(crate) fn polled_send(&mut self, id: u64) {
        self.counter(|b| &b.send_cq_idx).fetch_add(1, Relaxed);
        let Some(i) = self.ends.iter().position(|(known, _)| *known == id) else { return };
        let done = self.ends[i].1;
        self.ends.drain(..=i);
        self.counter(|b| &b.send_done_idx).store(done, Release);
    }

    /// A completion of the receive queue was taken.
    pub(crate) fn polled_recv(&mut self) {
        self.counter(|b| &b.recv_cq_idx).fetch_add(1, Relaxed);
    }

    /// One receive was built, and published or not.
    pub(crate) fn received(&mut self, built: u64, published: bool) {
        self.counter(|b| &b.recv_wqe_idx).store(built, Release);
        if published {
            self.counter(|b| &b.recv_db_idx).store(built, Release);
        }
    }

    /// The queue pair has reached RTS now.
    pub(crate) fn reached_rts(&mut self) {
        // SAFETY: the block is alive.
        unsafe { shim::rdmaxcel_qp_reached_rts(self.block.as_ptr()) };
    }

    fn counter(&self, which: impl Fn(&shim::rdmaxcel_qp) -> &AtomicU64) -> &AtomicU64 {
        // SAFETY: the block is alive; what else is in it is not written while this borrow lasts, for that
        // takes `&mut self` or the caller of `as_ptr`, who posts instead of us and not beside us.
        which(unsafe { self.block.as_ref() })
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: each allocated in `of`, and freed once, here.
        unsafe {
            shim::rdmaxcel_qp_destroy(self.block.as_ptr());
            drop(Box::from_raw(self.dv_qp.as_ptr()));
            self.dv_cqs.into_iter().for_each(|cq| drop(Box::from_raw(cq.as_ptr())));
        }
    }
}

/// The description that a block is created from. Its counters are not read.
fn block(qp: &Qp, queues: [&Cq; 2], found: &sys::mlx5dv_qp, cqs: [&sys::mlx5dv_cq; 2]) -> shim::rdmaxcel_qp {
    let ring = |cq: &sys::mlx5dv_cq| shim::rdmaxcel_cq_ring {
        buf: cq.buf.cast(),
        dbrec: cq.dbrec.cast(),
        cqe_cnt: cq.cqe_cnt,
        cqe_size: cq.cqe_size,
    };
    let zero = || AtomicU64::new(0);
    shim::rdmaxcel_qp {
        ibv_qp: qp.as_ptr().cast(),
        send_cq: queues[0].as_ptr().cast(),
        recv_cq: queues[1].as_ptr().cast(),
        sq: shim::rdmaxcel_send_ring {
            buf: found.sq.buf.cast(),
            dbrec: found.dbrec.cast(),
            bf_reg: found.bf.reg.cast(),
            wqe_cnt: found.sq.wqe_cnt,
            bf_size: found.bf.size,
            bf_offset: 0,
            qp_num: qp.qp_num(),
        },
        rq: shim::rdmaxcel_recv_ring {
            buf: found.rq.buf.cast(),
            wqe_cnt: found.rq.wqe_cnt,
            stride: found.rq.stride,
        },
        send_ring: ring(cqs[0]),
        recv_ring: ring(cqs[1]),
        send_wqe_idx: zero(),
        send_db_idx: zero(),
        send_cq_idx: zero(),
        recv_wqe_idx: zero(),
        recv_db_idx: zero(),
        recv_cq_idx: zero(),
        send_last_idx: zero(),
        send_done_idx: zero(),
        rts_timestamp: zero(),
        send_cache: ptr::null_mut(),
        recv_cache: ptr::null_mut(),
    }
}
