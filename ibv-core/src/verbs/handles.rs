//! Owning handles of verbs objects: each over a pointer that is never null, each with what must outlive
//! it, each destroyed exactly once and before that. What they are used for is the other files'.
#![allow(unsafe_code)]
//! # Safety
//! A handle is made from a pointer that the library returned and nobody else owns, and is the only one to
//! destroy it. Field and `Arc` order give the order of destruction: queue pair before completion queues
//! and protection domain, regions and address handles before the domain, all before the context.
//!
//! Where the library refuses to destroy an object, it may still use what the object was made from. So the
//! parents are kept for good then: a leak instead of a use after free. In a forked child nothing is
//! destroyed at all; the objects are the parent's.

use crate::{
    error::{Error, ErrorKind},
    verbs::{VerbsLibrary, device::Device, errno, fork::HomeProcess, sysfs::DeviceDir},
};
use ibv_sys::{
    RingVariable, extend, ibv_context, ibv_device_attr_ex, ibv_pd, ibv_port_attr, ibv_transport_type,
    ring_variables,
};
use std::{
    ffi::c_int,
    ptr::NonNull,
    sync::{Arc, atomic::AtomicBool},
};

mod cq;
mod memory;
mod qp;
pub(super) use cq::set_nonblocking;
pub use cq::{Channel, Cq};
pub use memory::{Ah, Mr};
pub use qp::Qp;

/// An open device.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<ibv_context>,
    verbs: VerbsLibrary,
    home: HomeProcess,
    name: String,
    dir: DeviceDir,
    transport: ibv_transport_type,
    attr: ibv_device_attr_ex,
    /// Somebody reads its asynchronous events.
    pub(super) events_taken: AtomicBool,
}

// SAFETY: libibverbs allows calls on a context from any thread; the attributes are a copy, read only.
unsafe impl Send for Context {}
// SAFETY: as for `Send`: every call through `&Context` is one that the library locks for itself.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of that name.
    ///
    /// # Errors
    /// `NoDevice` with the names there are; `PermissionDenied` with the device node in mind;
    /// `InvalidState` where libmlx5's locks are switched off; else the device's.
    pub fn open(verbs: VerbsLibrary, name: &str) -> Result<Arc<Self>, Error> {
        let list = crate::verbs::device::RawList::new(verbs)?;
        let Some((raw, device)) = list.find(name) else {
            let names: Vec<_> = list.iter().map(|(_, d)| d.name).collect();
            let detail = format!("no RDMA device {name}; there are: {}", names.join(", "));
            return Err(Error::new(ErrorKind::NoDevice, "open_device", detail));
        };
        refuse_single_threaded(&device, &ring_variables())?;
        // SAFETY: `raw` is of the list, which lives through the call.
        let context = NonNull::new(unsafe { verbs.ibv_open_device(raw) });
        let raw = context.ok_or_else(|| failed("open_device", &device.name))?;
        let mut this = Self {
            raw,
            verbs,
            home: HomeProcess::this(),
            name: device.name,
            dir: device.dir,
            transport: device.transport,
            attr: ibv_device_attr_ex::default(),
            events_taken: AtomicBool::new(false),
        };
        this.attr = this.query_device()?;
        Ok(Arc::new(this))
    }

    /// The context itself, for calls that this module does not wrap. It stays the handle's.
    pub fn as_ptr(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// The functions it is called through.
    pub fn verbs(&self) -> VerbsLibrary {
        self.verbs
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's directory in sysfs.
    pub fn dir(&self) -> &DeviceDir {
        &self.dir
    }

    /// What it speaks below the verbs.
    pub fn transport(&self) -> ibv_transport_type {
        self.transport
    }

    /// The device's attributes, as read when it was opened.
    pub fn attr(&self) -> &ibv_device_attr_ex {
        &self.attr
    }

    /// How many ports it has.
    pub fn ports(&self) -> u8 {
        self.attr.orig_attr.phys_port_cnt
    }

    /// Completion vectors, that is, interrupts that completion channels can be spread over.
    pub fn comp_vectors(&self) -> u32 {
        // SAFETY: the context is open; the field is set when it is opened and never changes.
        u32::try_from(unsafe { (*self.raw.as_ptr()).num_comp_vectors }).unwrap_or(0)
    }

    /// The descriptor that asynchronous events arrive on.
    pub(super) fn async_fd(&self) -> c_int {
        // SAFETY: as above.
        unsafe { (*self.raw.as_ptr()).async_fd }
    }

    fn query_device(&self) -> Result<ibv_device_attr_ex, Error> {
        // SAFETY: the context is open and the struct is writable; the call zeroes or fills all of it.
        let call = |attr, _| unsafe { self.verbs.ibv_query_device_ex(self.as_ptr(), std::ptr::null(), attr) };
        extend::query(call).map_err(|code| Error::from_errno("query_device", code).context(&self.name))
    }

    /// Asks for a port's attributes now.
    ///
    /// # Errors
    /// `InvalidConfig` for a port that the device does not have; else the device's.
    pub fn query_port(&self, port_num: u8) -> Result<ibv_port_attr, Error> {
        if port_num == 0 || port_num > self.ports() {
            let detail = format!("port {port_num} of {}, which has ports 1 to {}", self.name, self.ports());
            return Err(Error::new(ErrorKind::InvalidConfig, "query_port", detail));
        }
        // SAFETY: the context is open and the struct is writable.
        let call = |attr, _| unsafe { self.verbs.ibv_query_port(self.as_ptr(), port_num, attr) };
        let fail =
            |code| Error::from_errno("query_port", code).context(format!("{} port {port_num}", self.name));
        extend::query(call).map_err(fail)
    }

    /// Asks for all ports' attributes now, in order.
    ///
    /// # Errors
    /// The device's.
    pub fn query_ports(&self) -> Result<Vec<ibv_port_attr>, Error> {
        (1..=self.ports()).map(|n| self.query_port(n)).collect()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, owned by this handle alone, and no object of it is left: each holds
        // an `Arc` of this.
        let close = || unsafe { self.verbs.ibv_close_device(self.as_ptr()) };
        let _ = destroy(self.home, "close_device", close);
    }
}

/// Without its locks libmlx5 may be called from one thread only, which these handles can not promise.
fn refuse_single_threaded(device: &Device, set: &[RingVariable]) -> Result<(), Error> {
    let named_so = device.name.starts_with("mlx5");
    let mlx5 = device.dir.driver().map_or(named_so, |driver| driver == "mlx5_core");
    if mlx5 && set.iter().any(|v| v.name == "MLX5_SINGLE_THREADED" && v.value == "1") {
        let detail = format!(
            "{}: MLX5_SINGLE_THREADED=1 switches off the locks that sharing it between threads needs; unset it",
            device.name
        );
        return Err(Error::new(ErrorKind::InvalidState, "open_device", detail));
    }
    Ok(())
}

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    raw: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: the library takes a domain from any thread, and nothing in it changes after creation.
unsafe impl Send for Pd {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates one.
    ///
    /// # Errors
    /// The device's.
    pub fn alloc(context: &Arc<Context>) -> Result<Arc<Self>, Error> {
        // SAFETY: the context is open.
        let pd = NonNull::new(unsafe { context.verbs.ibv_alloc_pd(context.as_ptr()) });
        let raw = pd.ok_or_else(|| failed("alloc_pd", context.name()))?;
        Ok(Arc::new(Self { raw, context: context.clone() }))
    }

    /// The domain itself, for calls that this module does not wrap. It stays the handle's.
    pub fn as_ptr(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    /// The device it is on.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: allocated in `alloc`, owned by this handle alone, and nothing made from it is left.
        let dealloc = || unsafe { self.context.verbs.ibv_dealloc_pd(self.as_ptr()) };
        if !destroy(self.context.home, "dealloc_pd", dealloc) {
            std::mem::forget(self.context.clone());
        }
    }
}

/// Destroys an object by `call`, unless this is a forked child. `false` says that it still exists: its
/// parents must be kept.
fn destroy(home: HomeProcess, verb: &'static str, call: impl FnOnce() -> c_int) -> bool {
    if !home.is_here() {
        return false;
    }
    let code = call();
    if code != 0 {
        leaked(verb, code);
    }
    code == 0
}

#[cfg(feature = "tracing")]
fn leaked(verb: &'static str, errno: c_int) {
    tracing::warn!(verb, errno, "the library refused to destroy an object; it and its parents are leaked");
}

#[cfg(not(feature = "tracing"))]
fn leaked(_: &'static str, _: c_int) {}

/// The error behind a null result.
fn failed(verb: &'static str, device: &str) -> Error {
    Error::from_errno(verb, errno()).context(device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibv_sys::{IBV_NODE_CA, IBV_TRANSPORT_IB};

    #[test]
    fn only_an_mlx5_device_without_its_locks_is_refused() {
        let device = |name: &str| Device {
            name: name.into(),
            dir: DeviceDir::new("/nonexistent"),
            node_type: IBV_NODE_CA,
            transport: IBV_TRANSPORT_IB,
        };
        let set = |name, value: &str| vec![RingVariable { name, value: value.into(), effect: "" }];
        let single = set("MLX5_SINGLE_THREADED", "1");
        let e = refuse_single_threaded(&device("mlx5_0"), &single).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidState);
        assert!(e.to_string().contains("mlx5_0") && e.to_string().contains("unset it"), "{e}");
        refuse_single_threaded(&device("rxe0"), &single).unwrap();
        refuse_single_threaded(&device("mlx5_0"), &set("MLX5_SINGLE_THREADED", "0")).unwrap();
        refuse_single_threaded(&device("mlx5_0"), &set("MLX5_CQE_SIZE", "1")).unwrap();
    }
}
