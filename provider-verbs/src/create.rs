//! Creating a queue pair: the extended interface first, the plain one where the device lacks it. How
//! either posts is `session.rs`'s.
#![allow(unsafe_code)]
//! # Safety
//! Domain and queues are alive for the call, and a queue pair that comes back is owned by its handle at
//! once, so every way out destroys it.

use ibv_core::{
    Caps, Error, ErrorKind, IbvConfig,
    verbs::{Context, Cq, Pd, Qp, missing},
};
use ibv_sys::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_RDMA_READ,
    IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND,
    IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPT_RC,
    LoadError, MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE, MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS, Mlx5dv,
    ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, mlx5dv_context,
    mlx5dv_qp_init_attr,
};
use std::{io, ptr::NonNull, sync::Arc};

/// How a queue pair's requests reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Posting {
    /// `ibv_wr_*`: a batch is one session, published whole or not at all.
    Builders,
    /// `ibv_post_send`: a batch is one list.
    List,
}

/// What a queue pair has to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) cap: ibv_qp_cap,
    pub(crate) atomics: bool,
}

impl Shape {
    pub(crate) fn of(config: &IbvConfig, caps: &Caps) -> Self {
        let cap = ibv_qp_cap {
            max_send_wr: config.max_send_wr,
            max_recv_wr: config.max_recv_wr,
            max_send_sge: config.max_send_sge,
            max_recv_sge: config.max_recv_sge,
            max_inline_data: config.max_inline,
        };
        Self { cap, atomics: caps.atomics.present() }
    }

    fn send_ops(self) -> u64 {
        let mut ops = IBV_QP_EX_WITH_RDMA_WRITE
            | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | IBV_QP_EX_WITH_SEND
            | IBV_QP_EX_WITH_SEND_WITH_IMM
            | IBV_QP_EX_WITH_RDMA_READ;
        if self.atomics {
            ops |= IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
        }
        u64::from(ops)
    }
}

/// A queue pair in RESET.
#[derive(Debug)]
pub(crate) struct Created {
    pub(crate) qp: Qp,
    /// The queue pair as the builders take it; `None` posts lists.
    pub(crate) ex: Option<NonNull<ibv_qp_ex>>,
    /// What the device made of the sizes.
    pub(crate) cap: ibv_qp_cap,
}

/// Creates a queue pair of `shape` that reports to these queues.
///
/// # Errors
/// The device's, with the sizes; `OutOfResources` where it gave less than was asked for.
pub(crate) fn create(
    pd: &Arc<Pd>,
    shape: Shape,
    send_cq: &Arc<Cq>,
    recv_cq: &Arc<Cq>,
) -> Result<Created, Error> {
    let (made, is_extended) = match libmlx5(pd.context())? {
        Some(dv) => (without_scatter(dv, pd, shape, send_cq, recv_cq), true),
        None if misbuilds(pd.context().attr().orig_attr.vendor_id) => {
            (plain(pd, shape, send_cq, recv_cq), false)
        }
        None => match extended(pd, shape, send_cq, recv_cq) {
            Err(errno) if lacks_extended(errno) => (plain(pd, shape, send_cq, recv_cq), false),
            made => (made, true),
        },
    };
    let (raw, cap) = made.map_err(|errno| refused(pd, &shape.cap, errno))?;
    // SAFETY: just created on these objects, and nobody else has it.
    let qp = unsafe { Qp::from_raw(raw, pd.clone(), send_cq.clone(), recv_cq.clone()) };
    check_cap(&shape.cap, &cap)?;
    let ex = if is_extended { builders(&qp, shape) } else { None };
    Ok(Created { qp, ex, cap })
}

/// librxe's builders take a list's first length for all of them (rdma-core's pull request 1744) and leave out
/// the flag for inline bytes, which the kernel then takes for ranges. Its lists are right.
pub(crate) fn misbuilds(vendor_id: u32) -> bool {
    // RXE_VENDOR_ID of drivers/infiniband/sw/rxe/rxe_param.h.
    vendor_id == 0x00ff_ffff
}

/// The ways of saying "not here". EINVAL is an older provider's answer to a flag it does not know; where
/// it means something else, the plain attempt will say so. 0 is a null result without a reason.
fn lacks_extended(errno: i32) -> bool {
    [0, libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::ENOSYS, libc::EINVAL].contains(&errno)
}

type Made = Result<(NonNull<ibv_qp>, ibv_qp_cap), i32>;

/// What a creating function gave; null says "see `errno`", which is read before anything else is called.
fn made(raw: *mut ibv_qp) -> Result<NonNull<ibv_qp>, i32> {
    NonNull::new(raw).ok_or_else(|| io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// libmlx5's own functions, where the device is libmlx5's.
///
/// # Errors
/// Another copy of libmlx5 was loaded than the one that drives the device.
fn libmlx5(context: &Context) -> Result<Option<&'static Mlx5dv>, Error> {
    const VENDORS: [u32; 2] = [0x15b3, 0x02c9];
    if !VENDORS.contains(&context.attr().orig_attr.vendor_id) {
        return Ok(None);
    }
    let dv = match ibv_sys::mlx5dv() {
        Ok(dv) => &**dv,
        // An older device of the same vendor, on a host without libmlx5.
        Err(LoadError::LibraryNotFound { .. }) => return Ok(None),
        Err(e) => return Err(missing(e)),
    };
    let mut attr = mlx5dv_context::default();
    // SAFETY: the context is open and the struct writable.
    let theirs = unsafe { dv.mlx5dv_query_device(context.as_ptr(), &mut attr) } == 0;
    Ok(theirs.then_some(dv))
}

/// As `extended`, and without scatter to CQE: there the *poller* copies a small receive to the address
/// that the receive named, which safe code may have deregistered and freed by then.
fn without_scatter(dv: &Mlx5dv, pd: &Pd, shape: Shape, send_cq: &Cq, recv_cq: &Cq) -> Made {
    let mut attr = extended_attr(pd, shape, send_cq, recv_cq);
    let mut mlx5 = mlx5dv_qp_init_attr {
        comp_mask: u64::from(MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS),
        create_flags: MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
        ..mlx5dv_qp_init_attr::default()
    };
    // SAFETY: all objects are alive, and both structs are valid for the call.
    let raw = made(unsafe { dv.mlx5dv_create_qp(pd.context().as_ptr(), &mut attr, &mut mlx5) })?;
    Ok((raw, attr.cap))
}

fn extended_attr(pd: &Pd, shape: Shape, send_cq: &Cq, recv_cq: &Cq) -> ibv_qp_init_attr_ex {
    ibv_qp_init_attr_ex {
        send_cq: send_cq.as_ptr(),
        recv_cq: recv_cq.as_ptr(),
        cap: shape.cap,
        qp_type: IBV_QPT_RC,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        pd: pd.as_ptr(),
        send_ops_flags: shape.send_ops(),
        ..ibv_qp_init_attr_ex::default()
    }
}

fn extended(pd: &Pd, shape: Shape, send_cq: &Cq, recv_cq: &Cq) -> Made {
    let mut attr = extended_attr(pd, shape, send_cq, recv_cq);
    let context = pd.context();
    // SAFETY: all objects are alive, and the attributes are valid for the call.
    let raw = made(unsafe { context.verbs().ibv_create_qp_ex(context.as_ptr(), &mut attr) })?;
    Ok((raw, attr.cap))
}

fn plain(pd: &Pd, shape: Shape, send_cq: &Cq, recv_cq: &Cq) -> Made {
    let mut attr = ibv_qp_init_attr {
        send_cq: send_cq.as_ptr(),
        recv_cq: recv_cq.as_ptr(),
        cap: shape.cap,
        qp_type: IBV_QPT_RC,
        ..ibv_qp_init_attr::default()
    };
    // SAFETY: as above.
    let raw = made(unsafe { pd.context().verbs().ibv_create_qp(pd.as_ptr(), &mut attr) })?;
    Ok((raw, attr.cap))
}

#[cold]
fn refused(pd: &Pd, cap: &ibv_qp_cap, errno: i32) -> Error {
    Error::from_errno("create_qp", errno).context(format!(
        "{}: {} sends of {} ranges or {} inline bytes, {} receives of {} ranges",
        pd.context().name(),
        cap.max_send_wr,
        cap.max_send_sge,
        cap.max_inline_data,
        cap.max_recv_wr,
        cap.max_recv_sge
    ))
}

/// A device may give more than was asked for, never less; core counts on what was asked for.
fn check_cap(asked: &ibv_qp_cap, got: &ibv_qp_cap) -> Result<(), Error> {
    for (what, asked, got) in [
        ("max_send_wr", asked.max_send_wr, got.max_send_wr),
        ("max_recv_wr", asked.max_recv_wr, got.max_recv_wr),
        ("max_send_sge", asked.max_send_sge, got.max_send_sge),
        ("max_recv_sge", if asked.max_recv_wr == 0 { 0 } else { asked.max_recv_sge }, got.max_recv_sge),
        ("max_inline", asked.max_inline_data, got.max_inline_data),
    ] {
        if got < asked {
            let detail = format!("asked for IbvConfig::{what} of {asked}, got {got}");
            return Err(Error::new(ErrorKind::OutOfResources, "create_qp", detail));
        }
    }
    Ok(())
}

/// The builders of a queue pair, where it has every one that will be used.
fn builders(qp: &Qp, shape: Shape) -> Option<NonNull<ibv_qp_ex>> {
    // SAFETY: the queue pair is alive; null where it has no extended part.
    let ex = NonNull::new(unsafe { qp.pd().context().verbs().ibv_qp_to_qp_ex(qp.as_ptr()) })?;
    // SAFETY: an extended queue pair that is alive, and that nobody else uses yet.
    let ops = unsafe { ex.as_ref() };
    let all = ops.wr_start.is_some()
        && ops.wr_complete.is_some()
        && ops.wr_abort.is_some()
        && ops.wr_rdma_write.is_some()
        && ops.wr_rdma_write_imm.is_some()
        && ops.wr_rdma_read.is_some()
        && ops.wr_send.is_some()
        && ops.wr_send_imm.is_some()
        && ops.wr_set_sge.is_some()
        && ops.wr_set_sge_list.is_some()
        && ops.wr_set_inline_data.is_some();
    let atomics = ops.wr_atomic_cmp_swp.is_some() && ops.wr_atomic_fetch_add.is_some();
    (all && (atomics || !shape.atomics)).then_some(ex)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{VerbsProvider, fake};
    use ibv_core::Provider;
    use ibv_sys::ibv_context;
    use std::cell::Cell;

    thread_local! {
        /// `comp_mask` and `create_flags` of the last queue pair that libmlx5 was asked for.
        static ASKED: Cell<Option<(u64, u32)>> = const { Cell::new(None) };
    }

    unsafe extern "C" fn refusing(
        _: *mut ibv_context,
        _: *mut ibv_qp_init_attr_ex,
        mlx5: *mut mlx5dv_qp_init_attr,
    ) -> *mut ibv_qp {
        // SAFETY: the caller's own, and valid for the call.
        let mlx5 = unsafe { *mlx5 };
        ASKED.set(Some((mlx5.comp_mask, mlx5.create_flags)));
        std::ptr::null_mut()
    }

    #[test]
    fn libmlx5_is_told_not_to_scatter_to_cqe() {
        let real = match ibv_sys::mlx5dv() {
            Ok(real) => real,
            Err(e) => return println!("skipped: no libmlx5 to take the other functions from: {e}"),
        };
        let dv = Mlx5dv { mlx5dv_create_qp: refusing, ..**real };
        fake::reset();
        let provider = VerbsProvider::over(fake::library());
        let device = provider.devices().unwrap().remove(1);
        let domain = provider.open(&device).unwrap();
        let cq = Cq::create(domain.pd().context(), 8, false).unwrap();
        let shape = Shape { cap: ibv_qp_cap::default(), atomics: false };
        assert!(without_scatter(&dv, domain.pd(), shape, &cq, &cq).is_err(), "nothing was made");
        let (mask, flags) = ASKED.take().expect("libmlx5 was asked");
        assert_ne!(
            mask & u64::from(MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS),
            0,
            "or the flags are not read"
        );
        assert_ne!(flags & MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE, 0);
    }
}
