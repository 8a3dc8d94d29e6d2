//! Ringing: one session of the extended builders for all requests since the last ring. libefa copies them to
//! the device and rings as often as the device's batches are long; all of them, or on an error none.
#![allow(unsafe_code)]
//! # Safety
//! The builders are of the queue pair whose owner holds them, and `publish` is called by that owner alone, so
//! nobody else posts to it. A session holds libefa's lock from start to end, so nothing is called in between
//! but builders; whatever leaves it early aborts it, which gives the lock back.

use crate::{
    peers::{Destination, Peers},
    work::{Built, Form, Kind},
};
use ibv_core::{Error, ErrorKind, verbs::Qp};
use ibv_sys::{
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    IBV_SEND_SIGNALED, ibv_ah, ibv_qp_ex,
};
use std::{
    ffi::{c_int, c_void},
    mem,
    ptr::NonNull,
};

type Plain = unsafe extern "C" fn(*mut ibv_qp_ex);
type Rdma = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64);

/// The builders of one queue pair, as libefa gave them when it was created: they never change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Builders {
    qp: NonNull<ibv_qp_ex>,
    start: Plain,
    complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int,
    abort: Plain,
    set_sge: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    set_inline_data: unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize),
    set_ud_addr: unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32),
    send: Plain,
    send_imm: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
    /// `None` where device or library have no such operation.
    read: Option<Rdma>,
    write: Option<Rdma>,
    write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
}

// SAFETY: the queue pair may be used from any thread, by one at a time, which its owner sees to.
unsafe impl Send for Builders {}

impl Builders {
    /// The builders of a new queue pair.
    ///
    /// # Errors
    /// `Unsupported` with the flag whose builder is missing.
    pub(crate) fn of(qp: &Qp, ops: u64) -> Result<Self, Error> {
        // SAFETY: the queue pair is alive; null where it has no extended part.
        let ex = unsafe { qp.pd().context().verbs().ibv_qp_to_qp_ex(qp.as_ptr()) };
        let ex = NonNull::new(ex).ok_or_else(|| missing("any builder", "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS"))?;
        // SAFETY: an extended queue pair that is alive, and that nobody else uses yet.
        Self::in_table(ex, unsafe { ex.as_ref() }, ops)
    }

    fn in_table(qp: NonNull<ibv_qp_ex>, table: &ibv_qp_ex, ops: u64) -> Result<Self, Error> {
        const ALWAYS: &str = "IBV_QP_INIT_ATTR_SEND_OPS_FLAGS";
        let asked = |bit: u32| ops & u64::from(bit) != 0;
        Ok(Self {
            qp,
            start: there(table.wr_start, "wr_start", ALWAYS)?,
            complete: there(table.wr_complete, "wr_complete", ALWAYS)?,
            abort: there(table.wr_abort, "wr_abort", ALWAYS)?,
            set_sge: there(table.wr_set_sge, "wr_set_sge", ALWAYS)?,
            set_inline_data: there(table.wr_set_inline_data, "wr_set_inline_data", ALWAYS)?,
            set_ud_addr: there(table.wr_set_ud_addr, "wr_set_ud_addr", ALWAYS)?,
            send: there(table.wr_send, "wr_send", "IBV_QP_EX_WITH_SEND")?,
            send_imm: there(table.wr_send_imm, "wr_send_imm", "IBV_QP_EX_WITH_SEND_WITH_IMM")?,
            read: where_asked(
                asked(IBV_QP_EX_WITH_RDMA_READ),
                table.wr_rdma_read,
                "wr_rdma_read",
                "IBV_QP_EX_WITH_RDMA_READ",
            )?,
            write: where_asked(
                asked(IBV_QP_EX_WITH_RDMA_WRITE),
                table.wr_rdma_write,
                "wr_rdma_write",
                "IBV_QP_EX_WITH_RDMA_WRITE",
            )?,
            write_imm: where_asked(
                asked(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM),
                table.wr_rdma_write_imm,
                "wr_rdma_write_imm",
                "IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM",
            )?,
        })
    }

    /// Posts `requests`, each to its peer.
    ///
    /// # Errors
    /// libefa's number; nothing was posted.
    ///
    /// # Safety
    /// The queue pair is alive and nobody else posts to it.
    #[inline(always)]
    pub(crate) unsafe fn publish(&self, requests: &[Built], peers: &Peers) -> Result<(), c_int> {
        let qp = self.qp.as_ptr();
        // SAFETY: the caller's promise; ended by `complete` below, or when `session` drops.
        unsafe { (self.start)(qp) };
        let session = Session(self);
        // SAFETY: the queue pair is alive; libefa takes no request that reports nothing.
        unsafe { (*qp).wr_flags = IBV_SEND_SIGNALED };
        let Some(first) = requests.first() else { return session.complete() };
        let mut peer = first.peer;
        let mut to = peers.at(peer).ok_or(libc::EINVAL)?;
        for request in requests {
            if request.peer != peer {
                peer = request.peer;
                to = peers.at(peer).ok_or(libc::EINVAL)?;
            }
            // SAFETY: inside the session, whose only request this is until the next.
            unsafe { self.build(qp, request, to)? };
        }
        session.complete()
    }

    /// Builds one request in the order that `ibv_wr_post(3)` asks for: what, its local side, whom.
    ///
    /// # Safety
    /// Between start and complete of a session on `qp`, which is ours; `to` is of its peers.
    #[inline(always)]
    unsafe fn build(&self, qp: *mut ibv_qp_ex, r: &Built, to: &Destination) -> Result<(), c_int> {
        // SAFETY: the queue pair is alive, and the session is ours.
        unsafe { (*qp).wr_id = r.id };
        // SAFETY: the caller's promise; builders copy what they are given, and what a range names a key guards.
        unsafe {
            if r.form == Form::Put {
                self.write.ok_or(libc::EOPNOTSUPP)?(qp, r.rkey, r.remote_addr);
            } else if r.form == Form::Get {
                self.read.ok_or(libc::EOPNOTSUPP)?(qp, r.rkey, r.remote_addr);
            } else if self.begin(r)? {
                (self.set_inline_data)(qp, r.local_addr as *mut c_void, r.len as usize);
                (self.set_ud_addr)(qp, to.ah, to.qp_num, to.qkey);
                return Ok(());
            }
            (self.set_sge)(qp, r.lkey, r.local_addr, r.len);
            (self.set_ud_addr)(qp, to.ah, to.qp_num, to.qkey);
        }
        Ok(())
    }

    /// The first builder of a request of any kind; whether its bytes follow, and no range.
    ///
    /// # Safety
    /// Between start and complete.
    #[inline(never)]
    unsafe fn begin(&self, r: &Built) -> Result<bool, c_int> {
        let qp = self.qp.as_ptr();
        let (kind, inline) = match r.form {
            Form::Put => (Kind::Write, false),
            Form::Get => (Kind::Read, false),
            Form::Range(kind) => (kind, false),
            Form::Inline(kind) => (kind, true),
        };
        // SAFETY: the caller's promise.
        unsafe {
            match kind {
                Kind::Write => self.write.ok_or(libc::EOPNOTSUPP)?(qp, r.rkey, r.remote_addr),
                Kind::Read => self.read.ok_or(libc::EOPNOTSUPP)?(qp, r.rkey, r.remote_addr),
                Kind::WriteWithImm(imm) => {
                    self.write_imm.ok_or(libc::EOPNOTSUPP)?(qp, r.rkey, r.remote_addr, imm);
                }
                Kind::Send => (self.send)(qp),
                Kind::SendWithImm(imm) => (self.send_imm)(qp, imm),
            }
        }
        Ok(inline)
    }
}

/// A session between start and its end.
struct Session<'b>(&'b Builders);

impl Session<'_> {
    /// Ends it: everything built is posted, or on an error nothing.
    #[inline]
    fn complete(self) -> Result<(), c_int> {
        let builders = self.0;
        mem::forget(self);
        // SAFETY: `publish` started it, on a queue pair that is alive; this ends it.
        match unsafe { (builders.complete)(builders.qp.as_ptr()) } {
            0 => Ok(()),
            code => Err(code),
        }
    }
}

impl Drop for Session<'_> {
    /// Left early, by an error or by unwinding.
    fn drop(&mut self) {
        // SAFETY: as in `complete`.
        unsafe { (self.0.abort)(self.0.qp.as_ptr()) };
    }
}

fn there<F>(builder: Option<F>, what: &'static str, flag: &'static str) -> Result<F, Error> {
    builder.ok_or_else(|| missing(what, flag))
}

fn where_asked<F>(
    asked: bool,
    builder: Option<F>,
    what: &'static str,
    flag: &'static str,
) -> Result<Option<F>, Error> {
    if asked { there(builder, what, flag).map(Some) } else { Ok(None) }
}

#[cold]
fn missing(what: &str, flag: &str) -> Error {
    let detail = format!("libefa gave no {what} for a queue pair created with {flag}");
    Error::new(ErrorKind::Unsupported, "ibv_qp_to_qp_ex", detail)
}

#[cfg(test)]
mod tests;
