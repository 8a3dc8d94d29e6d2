//! Creating a queue pair through `efadv_create_qp_ex`, with the builders of exactly the operations that library
//! and device have. How it posts is `session.rs`'s.
#![allow(unsafe_code)]
//! # Safety
//! Domain and queues are alive for the call, and a queue pair that comes back is owned by its handle at
//! once, so every way out destroys it.

use crate::session::Builders;
use ibv_core::{
    Caps, Error, ErrorKind, IbvConfig,
    verbs::{Cq, Pd, Qp},
};
use ibv_sys::{
    EFADV_DEVICE_ATTR_CAPS_RDMA_READ, EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE, EFADV_QP_DRIVER_TYPE_SRD,
    EFADV_QP_FLAGS_INLINE_WRITE, EFADV_SQ_DEPTH_ATTR_INLINE_WRITE, Efadv, Extensible,
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QPT_DRIVER, efadv_device_attr, efadv_qp_init_attr, efadv_sq_depth_attr, ibv_qp_cap,
    ibv_qp_init_attr_ex,
};
use std::{io, ptr::NonNull, sync::Arc};

/// What a queue pair has to hold and to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) cap: ibv_qp_cap,
    /// Mask of `enum ibv_qp_create_send_ops_flags`.
    pub(crate) ops: u64,
    /// Puts take inline bytes; each request is then twice as long.
    pub(crate) inline_write: bool,
    pub(crate) service_level: u8,
}

impl Shape {
    pub(crate) fn of(config: &IbvConfig, caps: &Caps) -> Self {
        let cap = ibv_qp_cap {
            max_send_wr: config.max_send_wr,
            max_recv_wr: config.max_recv_wr,
            max_send_sge: 1,
            max_recv_sge: config.max_recv_sge,
            max_inline_data: config.max_inline,
        };
        Self {
            cap,
            ops: send_ops(caps.read.present(), caps.write.present()),
            inline_write: config.max_inline > 0 && caps.write.present(),
            service_level: config.service_level,
        }
    }

    /// The least that shows whether the device makes queue pairs.
    pub(crate) fn smallest(attr: &efadv_device_attr) -> Self {
        let has = |bit| attr.device_caps & bit != 0;
        let ops = send_ops(has(EFADV_DEVICE_ATTR_CAPS_RDMA_READ), has(EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE));
        let cap = ibv_qp_cap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        Self { cap, ops, inline_write: false, service_level: 0 }
    }
}

fn send_ops(read: bool, write: bool) -> u64 {
    let mut ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    if read {
        ops |= IBV_QP_EX_WITH_RDMA_READ;
    }
    if write {
        ops |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    }
    u64::from(ops)
}

/// A queue pair in RESET.
#[derive(Debug)]
pub(crate) struct Created {
    pub(crate) qp: Qp,
    pub(crate) builders: Builders,
}

/// Creates an SRD queue pair of `shape` that reports to these queues.
///
/// # Errors
/// `InvalidConfig` for sizes that exclude each other, with the numbers; `Unsupported` with the flag whose
/// builder libefa did not give; else the device's, with the sizes. Nothing is left behind.
pub(crate) fn create(
    efadv: &Efadv,
    pd: &Arc<Pd>,
    shape: &Shape,
    send_cq: &Arc<Cq>,
    recv_cq: &Arc<Cq>,
) -> Result<Created, Error> {
    let mut attr = init_attr(pd, shape, send_cq, recv_cq);
    let mut efa = efa_attr(shape);
    let len = efa.used_len() as u32;
    let context = pd.context();
    // SAFETY: all objects are alive; both structs are valid for the call, the second one to that length.
    let raw = unsafe { efadv.efadv_create_qp_ex(context.as_ptr(), &mut attr, &mut efa, len) };
    let raw = NonNull::new(raw).ok_or_else(|| refused(pd, shape))?;
    // SAFETY: just created on these objects, and nobody else has it.
    let qp = unsafe { Qp::from_raw(raw, pd.clone(), send_cq.clone(), recv_cq.clone()) };
    let builders = Builders::of(&qp, shape.ops)?;
    Ok(Created { qp, builders })
}

fn init_attr(pd: &Pd, shape: &Shape, send_cq: &Cq, recv_cq: &Cq) -> ibv_qp_init_attr_ex {
    ibv_qp_init_attr_ex {
        send_cq: send_cq.as_ptr(),
        recv_cq: recv_cq.as_ptr(),
        cap: shape.cap,
        qp_type: IBV_QPT_DRIVER,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        pd: pd.as_ptr(),
        send_ops_flags: shape.ops,
        ..ibv_qp_init_attr_ex::default()
    }
}

fn efa_attr(shape: &Shape) -> efadv_qp_init_attr {
    efadv_qp_init_attr {
        driver_qp_type: EFADV_QP_DRIVER_TYPE_SRD,
        flags: if shape.inline_write { EFADV_QP_FLAGS_INLINE_WRITE as u16 } else { 0 },
        sl: shape.service_level,
        ..efadv_qp_init_attr::default()
    }
}

/// Sizes that are each within the device's limits and together are not, with the numbers.
///
/// # Errors
/// `InvalidConfig`.
pub(crate) fn check_sizes(efadv: &Efadv, pd: &Pd, shape: &Shape, caps: &Caps) -> Result<(), Error> {
    let cap = &shape.cap;
    let ranges = u64::from(cap.max_recv_wr) * u64::from(cap.max_recv_sge);
    if ranges > u64::from(caps.max_recv_wr) {
        let detail = format!(
            "IbvConfig::max_recv_wr of {} times max_recv_sge of {} is {ranges} ranges; this device takes {}",
            cap.max_recv_wr, cap.max_recv_sge, caps.max_recv_wr
        );
        return Err(Error::new(ErrorKind::InvalidConfig, "create_qp", detail));
    }
    match send_depth(efadv, pd, shape) {
        Some(most) if cap.max_send_wr > most => {
            let detail = format!(
                "IbvConfig::max_send_wr is {}; with max_inline of {} this device takes 1 to {most}",
                cap.max_send_wr, cap.max_inline_data
            );
            Err(Error::new(ErrorKind::InvalidConfig, "create_qp", detail))
        }
        _ => Ok(()),
    }
}

/// How deep a send queue of this shape may be, where libefa tells.
fn send_depth(efadv: &Efadv, pd: &Pd, shape: &Shape) -> Option<u32> {
    let rdma = shape.ops & u64::from(IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE) != 0;
    let mut attr = efadv_sq_depth_attr {
        flags: if shape.inline_write { EFADV_SQ_DEPTH_ATTR_INLINE_WRITE } else { 0 },
        max_send_sge: 1,
        max_rdma_sge: u32::from(rdma),
        max_inline_data: shape.cap.max_inline_data,
        ..efadv_sq_depth_attr::default()
    };
    let len = size_of::<efadv_sq_depth_attr>() as u32;
    // SAFETY: the device is open; the struct is valid for the call, to that length.
    let most = unsafe { efadv.efadv_get_max_sq_depth(pd.context().as_ptr(), &mut attr, len) };
    u32::try_from(most).ok().filter(|most| *most > 0)
}

#[cold]
fn refused(pd: &Pd, shape: &Shape) -> Error {
    let (errno, cap) = (io::Error::last_os_error().raw_os_error().unwrap_or(0), &shape.cap);
    Error::from_errno("efadv_create_qp_ex", errno).context(format!(
        "{}: {} sends of {} ranges or {} inline bytes, {} receives of {} ranges, operations {:#x}, service level {}",
        pd.context().name(),
        cap.max_send_wr,
        cap.max_send_sge,
        cap.max_inline_data,
        cap.max_recv_wr,
        cap.max_recv_sge,
        shape.ops,
        shape.service_level
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_there_is_asked_for() {
        let ops = |read, write| send_ops(read, write) as u32;
        assert_eq!(ops(false, false), IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
        assert_eq!(ops(true, false) ^ ops(false, false), IBV_QP_EX_WITH_RDMA_READ);
        assert_eq!(
            ops(true, true) ^ ops(true, false),
            IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        );
    }

    #[test]
    fn the_library_is_given_no_byte_that_an_old_one_does_not_know() {
        let shape = Shape::smallest(&efadv_device_attr::default());
        assert_eq!(efa_attr(&shape).used_len(), 16, "efadv_qp_init_attr of rdma-core 44");
        let inline = Shape { inline_write: true, service_level: 3, ..shape };
        let attr = efa_attr(&inline);
        assert_eq!((attr.flags, attr.sl, attr.driver_qp_type), (2, 3, EFADV_QP_DRIVER_TYPE_SRD));
    }
}
