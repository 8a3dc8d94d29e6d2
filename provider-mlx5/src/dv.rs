//! Calls into libmlx5: what device it is, how a queue pair is created, where rings are. No data path.
#![allow(unsafe_code)]
//! # Safety
//! Every call passes live objects and structs that are writable for their whole length.

use ibv_core::{
    Error, ErrorKind, IbvConfig,
    verbs::{Context, Cq, Pd, Qp, fork::HomeProcess, missing},
};
use ibv_sys as sys;
use std::{ptr::NonNull, sync::Arc};

/// libmlx5's functions, from the file that libibverbs uses for its mlx5 devices.
pub(crate) fn load() -> Result<&'static sys::Mlx5dv, Error> {
    sys::mlx5dv().map(|library| &**library).map_err(missing)
}

/// Whether `context` is libmlx5's; the error says why not.
pub(crate) fn check_device(context: &Context) -> Result<(), Error> {
    let mut attr = sys::mlx5dv_context::default();
    // SAFETY: the context is open and the struct writable.
    match unsafe { load()?.mlx5dv_query_device(context.as_ptr(), &mut attr) } {
        0 => Ok(()),
        code => Err(Error::from_errno("mlx5dv_query_device", code).context(context.name())),
    }
}

/// Refuses what libmlx5 does to rings behind our back and does not report.
pub(crate) fn check_environment() -> Result<(), Error> {
    let signed = |v: &sys::RingVariable| v.name == "MLX5_QP_SIGNATURE" && v.value != "0";
    if let Some(found) = sys::ring_variables().iter().find(|v| signed(v)) {
        let detail = format!("{} is set: {}; unset it", found.name, found.effect);
        return Err(Error::new(ErrorKind::Unsupported, "create_qp", detail));
    }
    Ok(())
}

/// A doorbell register of one's own: a thread domain, and the parent domain that carries it.
#[derive(Debug)]
pub(crate) struct ThreadDomain {
    td: NonNull<sys::ibv_td>,
    parent: NonNull<sys::ibv_pd>,
    home: HomeProcess,
    pd: Arc<Pd>,
}

// SAFETY: the library takes both from any thread, and nothing in them changes after creation.
unsafe impl Send for ThreadDomain {}
// SAFETY: as for `Send`.
unsafe impl Sync for ThreadDomain {}

impl ThreadDomain {
    /// Allocates one; `None` where the device has no register to spare, or the library no such call.
    pub(crate) fn alloc(pd: &Arc<Pd>) -> Option<Self> {
        let context = pd.context();
        let mut attr = sys::ibv_td_init_attr::default();
        // SAFETY: the context is open and the struct read only.
        let td = NonNull::new(unsafe { sys::ibv_alloc_td(context.as_ptr(), &mut attr) })?;
        let mut attr =
            sys::ibv_parent_domain_init_attr { pd: pd.as_ptr(), td: td.as_ptr(), ..Default::default() };
        // SAFETY: as above; both domains are alive.
        let parent = unsafe { sys::ibv_alloc_parent_domain(context.as_ptr(), &mut attr) };
        match NonNull::new(parent) {
            Some(parent) => Some(Self { td, parent, home: HomeProcess::this(), pd: pd.clone() }),
            None => {
                // SAFETY: allocated above, used by nobody.
                unsafe { sys::ibv_dealloc_td(td.as_ptr()) };
                None
            }
        }
    }

    fn as_pd(&self) -> *mut sys::ibv_pd {
        self.parent.as_ptr()
    }
}

impl Drop for ThreadDomain {
    fn drop(&mut self) {
        if !self.home.is_here() {
            return;
        }
        // SAFETY: allocated in `alloc`, owned by this value alone; the queue pair on it is gone.
        unsafe {
            if self.pd.context().verbs().ibv_dealloc_pd(self.parent.as_ptr()) == 0 {
                sys::ibv_dealloc_td(self.td.as_ptr());
            }
        }
    }
}

/// What is ever posted. Unless told, libmlx5 makes every WQE's place wide enough to bind a memory window,
/// four basic blocks, and the ring of a long queue does not fit the device.
const OPERATIONS: u32 = sys::IBV_QP_EX_WITH_RDMA_WRITE
    | sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | sys::IBV_QP_EX_WITH_RDMA_READ
    | sys::IBV_QP_EX_WITH_SEND
    | sys::IBV_QP_EX_WITH_SEND_WITH_IMM
    | sys::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | sys::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

/// Creates a queue pair in RESET. Never with scatter to CQE: the poller would then have to copy into
/// memory that safe code may have freed.
pub(crate) fn create_qp(
    pd: &Arc<Pd>,
    td: Option<&ThreadDomain>,
    config: &IbvConfig,
    send_cq: &Arc<Cq>,
    recv_cq: &Arc<Cq>,
) -> Result<Qp, Error> {
    let mut attr = sys::ibv_qp_init_attr_ex {
        send_cq: send_cq.as_ptr(),
        recv_cq: recv_cq.as_ptr(),
        cap: sys::ibv_qp_cap {
            max_send_wr: config.max_send_wr,
            max_recv_wr: config.max_recv_wr,
            max_send_sge: config.max_send_sge,
            max_recv_sge: config.max_recv_sge,
            max_inline_data: config.max_inline,
        },
        qp_type: sys::IBV_QPT_RC,
        comp_mask: (sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) as _,
        send_ops_flags: u64::from(OPERATIONS),
        pd: td.map_or(pd.as_ptr(), ThreadDomain::as_pd),
        ..Default::default()
    };
    let mut mlx5 = sys::mlx5dv_qp_init_attr {
        comp_mask: sys::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS as u64,
        create_flags: sys::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
        ..Default::default()
    };
    let context = pd.context();
    // SAFETY: all objects are of this context and alive; both structs are writable.
    let qp = unsafe { load()?.mlx5dv_create_qp(context.as_ptr(), &mut attr, &mut mlx5) };
    let Some(qp) = NonNull::new(qp) else {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        let what = format!(
            "{}: {} sends of {} ranges or {} inline bytes, {} receives of {} ranges",
            context.name(),
            config.max_send_wr,
            config.max_send_sge,
            config.max_inline,
            config.max_recv_wr,
            config.max_recv_sge
        );
        return Err(Error::from_errno("create_qp", errno).context(what));
    };
    // SAFETY: just created on these objects, and nobody else has it.
    Ok(unsafe { Qp::from_raw(qp, pd.clone(), send_cq.clone(), recv_cq.clone()) })
}

/// Where a queue pair's rings, records and register are.
pub(crate) fn queue_pair(qp: &Qp) -> Result<Box<sys::mlx5dv_qp>, Error> {
    let mut out = Box::new(sys::mlx5dv_qp::default());
    let mut obj = sys::mlx5dv_obj::default();
    (obj.qp.in_, obj.qp.out) = (qp.as_ptr(), &mut *out);
    init(&mut obj, sys::MLX5DV_OBJ_QP)?;
    Ok(out)
}

/// Where a completion queue's ring, record and register are. From here on the queue is ours to poll.
pub(crate) fn completion_queue(cq: &Cq) -> Result<Box<sys::mlx5dv_cq>, Error> {
    let mut out = Box::new(sys::mlx5dv_cq::default());
    let mut obj = sys::mlx5dv_obj::default();
    (obj.cq.in_, obj.cq.out) = (cq.as_ptr(), &mut *out);
    init(&mut obj, sys::MLX5DV_OBJ_CQ)?;
    Ok(out)
}

fn init(obj: &mut sys::mlx5dv_obj, kind: sys::mlx5dv_obj_type) -> Result<(), Error> {
    // SAFETY: the caller set `in` and `out` of this kind to a live object and a writable struct.
    match unsafe { load()?.mlx5dv_init_obj(obj, u64::from(kind)) } {
        0 => Ok(()),
        code => Err(Error::from_errno("mlx5dv_init_obj", code)),
    }
}
