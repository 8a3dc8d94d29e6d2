//! Requests built and not yet published: `ibv_send_wr` in memory laid out once, linked once. How they are
//! published is `session.rs`'s.
#![allow(unsafe_code)]
//! # Safety
//! Requests point at each other, at their ranges and at their inline bytes, so all of it is reached
//! through raw pointers to three blocks that never move and are freed by `Drop`; no reference to a block
//! lives across a call. An index is below the capacity because core takes a credit for each request
//! before it is built, and there are as many.

use ibv_core::{Op, Payload, WorkRequest};
use ibv_sys::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_qp_cap, ibv_send_wr, ibv_send_wr__bindgen_ty_1,
    ibv_send_wr__bindgen_ty_2, ibv_send_wr__bindgen_ty_2__bindgen_ty_1,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_2, ibv_sge, ibv_wr_opcode,
};
use std::{
    fmt,
    ptr::{self, NonNull},
    slice,
};

/// A block of `T` that never moves.
struct Block<T> {
    first: NonNull<T>,
    len: usize,
}

impl<T> fmt::Debug for Block<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}", self.len, std::any::type_name::<T>())
    }
}

impl<T: Clone> Block<T> {
    fn of(value: T, len: usize) -> Self {
        let block = Box::leak(vec![value; len].into_boxed_slice());
        Self { first: NonNull::from(&mut *block).cast(), len }
    }
}

impl<T> Drop for Block<T> {
    fn drop(&mut self) {
        let whole = ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.len);
        // SAFETY: leaked in `of` with this length, and freed once.
        drop(unsafe { Box::from_raw(whole) });
    }
}

/// The requests since the last ring, in order.
#[derive(Debug)]
pub(crate) struct SendList {
    wrs: Block<ibv_send_wr>,
    sges: Block<ibv_sge>,
    inline: Block<u8>,
    max_sge: usize,
    max_inline: usize,
    len: usize,
}

// SAFETY: the pointers lead to blocks that the list owns.
unsafe impl Send for SendList {}

impl SendList {
    /// Room for as many requests of the largest size as the queue pair takes.
    pub(crate) fn new(cap: &ibv_qp_cap) -> Self {
        let (n, max_sge, max_inline) =
            (cap.max_send_wr as usize, cap.max_send_sge.max(1) as usize, cap.max_inline_data as usize);
        let this = Self {
            wrs: Block::of(ibv_send_wr::default(), n),
            sges: Block::of(ibv_sge::default(), n * max_sge),
            inline: Block::of(0, n * max_inline),
            max_sge,
            max_inline,
            len: 0,
        };
        for i in 0..n {
            // SAFETY: `i` is below the capacity; the ranges' block has `max_sge` for each request.
            unsafe {
                let wr = this.wrs.first.add(i).as_ptr();
                (*wr).sg_list = this.sges.first.add(i * max_sge).as_ptr();
                (*wr).next = this.follower(i);
            }
        }
        this
    }

    /// The request behind the one at `i`, or null behind the last slot.
    fn follower(&self, i: usize) -> *mut ibv_send_wr {
        // SAFETY: inside the block.
        if i + 1 < self.wrs.len { unsafe { self.wrs.first.add(i + 1).as_ptr() } } else { ptr::null_mut() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Builds one request. `None`, and nothing built, if core had promised room that is not there.
    #[inline]
    pub(crate) fn push(&mut self, wr: &WorkRequest<'_>) -> Option<()> {
        let i = self.len;
        if i >= self.wrs.len {
            debug_assert!(false, "core takes a credit for every request");
            return None;
        }
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        let mut flags = flag(wr.signaled, IBV_SEND_SIGNALED)
            | flag(wr.fence, IBV_SEND_FENCE)
            | flag(wr.solicited, IBV_SEND_SOLICITED);
        let num_sge = match wr.local {
            Payload::Sges(sges) => {
                debug_assert!(sges.len() <= self.max_sge);
                let n = sges.len().min(self.max_sge);
                for (at, view) in sges[..n].iter().enumerate() {
                    // A request of core's is at most `max_msg_size` bytes, which fits.
                    let sge = ibv_sge { addr: view.addr(), length: view.len() as u32, lkey: view.lkey() };
                    // SAFETY: `at` is below `max_sge`, and the block has as many for request `i`.
                    unsafe { self.sges.first.add(i * self.max_sge + at).write(sge) };
                }
                n
            }
            Payload::Inline(data) => {
                flags |= IBV_SEND_INLINE;
                self.copy_inline(i, data)
            }
        };
        let (opcode, imm, operation) = parts(wr);
        // SAFETY: `i` is below the capacity, and nobody else has a pointer in use.
        unsafe {
            let slot = self.wrs.first.add(i).as_ptr();
            (*slot).wr_id = wr.id;
            (*slot).num_sge = num_sge as i32;
            (*slot).opcode = opcode;
            (*slot).send_flags = flags;
            (*slot).__bindgen_anon_1 = ibv_send_wr__bindgen_ty_1 { imm_data: imm.to_be() };
            (*slot).wr = operation;
        }
        self.len = i + 1;
        Some(())
    }

    /// Copies inline bytes, which may change once the request is built; one range names the copy.
    fn copy_inline(&mut self, i: usize, data: &[u8]) -> usize {
        debug_assert!(data.len() <= self.max_inline);
        let n = data.len().min(self.max_inline);
        if n == 0 {
            return 0;
        }
        // SAFETY: `n` is at most `max_inline`, of which the block has as many for request `i`; the source
        // is the caller's and does not overlap it.
        unsafe {
            let to = self.inline.first.add(i * self.max_inline);
            to.copy_from_nonoverlapping(NonNull::from(data).cast(), n);
            let sge = ibv_sge { addr: to.as_ptr() as u64, length: n as u32, lkey: 0 };
            self.sges.first.add(i * self.max_sge).write(sge);
        }
        1
    }

    /// The requests from `from` on as a list that ends with the last one built, for the length of `post`.
    pub(crate) fn as_list<R>(
        &mut self,
        from: usize,
        post: impl FnOnce(NonNull<ibv_send_wr>) -> R,
    ) -> Option<R> {
        if from >= self.len {
            return None;
        }
        // SAFETY: both indices are below `len`.
        let (first, last) = unsafe { (self.wrs.first.add(from), self.wrs.first.add(self.len - 1).as_ptr()) };
        // SAFETY: the last request, which nobody else uses now.
        unsafe { (*last).next = ptr::null_mut() };
        let done = post(first);
        // SAFETY: as above.
        unsafe { (*last).next = self.follower(self.len - 1) };
        Some(done)
    }

    /// Where in the list a request is that the library points at.
    pub(crate) fn position(&self, wr: *const ibv_send_wr) -> Option<usize> {
        let bytes = (wr as usize).checked_sub(self.wrs.first.as_ptr() as usize)?;
        Some(bytes / size_of::<ibv_send_wr>()).filter(|at| *at < self.len)
    }

    /// The requests in order, each with its ranges.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ibv_send_wr, &[ibv_sge])> {
        (0..self.len).map(|i| {
            // SAFETY: `i` is below `len`; the request's ranges are its own, `num_sge` of them written.
            unsafe {
                let wr = self.wrs.first.add(i).as_ref();
                let sges = self.sges.first.add(i * self.max_sge);
                (wr, slice::from_raw_parts(sges.as_ptr(), wr.num_sge as usize))
            }
        })
    }
}

/// Opcode, immediate, and what is remote about a request.
#[inline]
fn parts(wr: &WorkRequest<'_>) -> (ibv_wr_opcode, u32, ibv_send_wr__bindgen_ty_2) {
    let (remote_addr, rkey) = (wr.remote.addr, wr.remote.rkey);
    let rdma =
        ibv_send_wr__bindgen_ty_2 { rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey } };
    let atomic = |compare_add, swap| ibv_send_wr__bindgen_ty_2 {
        atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey },
    };
    match wr.op {
        Op::Write => (IBV_WR_RDMA_WRITE, 0, rdma),
        Op::WriteWithImm(imm) => (IBV_WR_RDMA_WRITE_WITH_IMM, imm, rdma),
        Op::Read => (IBV_WR_RDMA_READ, 0, rdma),
        Op::Send => (IBV_WR_SEND, 0, rdma),
        Op::SendWithImm(imm) => (IBV_WR_SEND_WITH_IMM, imm, rdma),
        Op::CompareSwap { compare, swap } => (IBV_WR_ATOMIC_CMP_AND_SWP, 0, atomic(compare, swap)),
        Op::FetchAdd(add) => (IBV_WR_ATOMIC_FETCH_AND_ADD, 0, atomic(add, 0)),
        // `Op` may grow; core asks for nothing that `Caps` does not offer, and these are what it offers.
        _ => (ibv_wr_opcode(u32::MAX), 0, rdma),
    }
}
