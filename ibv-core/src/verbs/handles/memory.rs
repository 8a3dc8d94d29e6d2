//! Memory regions and address handles: what a protection domain gives keys and routes for.
#![allow(unsafe_code)]
//! # Safety
//! As in the parent module.

use super::{Pd, destroy, failed};
use crate::{
    error::{Error, ErrorKind},
    memory::{Access, Registration},
};
use ibv_sys::{ibv_ah, ibv_ah_attr, ibv_mr};
use std::{
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::Arc,
};

/// A memory region.
#[derive(Debug)]
pub struct Mr {
    raw: NonNull<ibv_mr>,
    lkey: u32,
    rkey: u32,
    iova: u64,
    /// The keys still work.
    live: bool,
    pd: Arc<Pd>,
}

// SAFETY: the library takes a region from any thread, and the fields are copies.
unsafe impl Send for Mr {}
// SAFETY: as for `Send`; deregistering takes `&mut self`.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers host memory, addressed by its host address. `RELAXED_ORDERING` goes to the device where
    /// library and device know it, and is left out elsewhere.
    ///
    /// # Errors
    /// The device's; `InvalidConfig` for no bytes, and where it registered less than was asked for.
    ///
    /// # Safety
    /// As [`IbvDomainImpl::register`](crate::IbvDomainImpl::register).
    pub unsafe fn register(pd: &Arc<Pd>, mem: NonNull<[u8]>, access: Access) -> Result<Self, Error> {
        if mem.is_empty() {
            let detail = "a region of 0 bytes; devices register 1 or more";
            return Err(Error::new(ErrorKind::InvalidConfig, "reg_mr", detail));
        }
        let addr = mem.cast::<u8>().as_ptr();
        let verbs = pd.context().verbs();
        // SAFETY: the domain is alive; the caller keeps the memory valid until deregistration.
        let mr = unsafe { verbs.ibv_reg_mr(pd.as_ptr(), addr.cast(), mem.len(), access.bits()) };
        let what = || format!("{} bytes at {addr:p} for {access:?}", mem.len());
        // SAFETY: null or just created.
        unsafe { Self::take(pd, mr, "reg_mr", mem.len(), addr as u64, what) }
    }

    /// Registers `len` bytes of a dma-buf from `offset` on, addressed from `iova`.
    ///
    /// # Errors
    /// `Unsupported` where library, kernel or driver can not; else the device's.
    ///
    /// # Safety
    /// As [`IbvDomainImpl::register_dmabuf`](crate::IbvDomainImpl::register_dmabuf).
    pub unsafe fn register_dmabuf(
        pd: &Arc<Pd>,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self, Error> {
        // The signed argument of this one has room for the optional bits as they are.
        let flags = access.bits() as i32;
        let verbs = pd.context().verbs();
        // SAFETY: the domain is alive and the descriptor open; the kernel keeps the buffer.
        let mr = unsafe { verbs.ibv_reg_dmabuf_mr(pd.as_ptr(), offset, len, iova, fd.as_raw_fd(), flags) };
        let what = || format!("{len} bytes of dma-buf {} from {offset} for {access:?}", fd.as_raw_fd());
        // SAFETY: null or just created.
        unsafe { Self::take(pd, mr, "reg_dmabuf_mr", len, iova, what) }
    }

    /// # Safety
    /// `mr` is null, with `errno` set, or a live region of `pd` that nobody else owns.
    unsafe fn take(
        pd: &Arc<Pd>,
        mr: *mut ibv_mr,
        verb: &'static str,
        len: usize,
        iova: u64,
        what: impl Fn() -> String,
    ) -> Result<Self, Error> {
        let Some(raw) = NonNull::new(mr) else {
            return Err(failed(verb, pd.context().name()).context(what()));
        };
        // SAFETY: the caller's promise; the fields are set at creation and never change.
        let (lkey, rkey, length) = unsafe { ((*mr).lkey, (*mr).rkey, (*mr).length) };
        let this = Self { raw, lkey, rkey, iova, live: true, pd: pd.clone() };
        if length < len {
            let detail = format!("{}: the device registered only {length} of them", what());
            return Err(Error::new(ErrorKind::InvalidConfig, verb, detail));
        }
        Ok(this)
    }

    /// The region itself, for calls that this module does not wrap. It stays the handle's.
    pub fn as_ptr(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

// SAFETY: `ibv_dereg_mr` returns 0 only after the kernel has revoked the keys and unpinned the pages; in
// a forked child, and where it fails, `deregister` answers `Err`.
unsafe impl Registration for Mr {
    fn lkey(&self) -> u32 {
        self.lkey
    }
    fn rkey(&self) -> u32 {
        self.rkey
    }
    fn iova(&self) -> u64 {
        self.iova
    }
    fn deregister(&mut self) -> Result<(), Error> {
        let context = self.pd.context();
        if !context.home.is_here() {
            let detail = "the region belongs to the parent process, which goes on using it";
            return Err(Error::new(ErrorKind::InvalidState, "dereg_mr", detail));
        }
        if !self.live {
            return Ok(());
        }
        // SAFETY: the region is alive (`live`) and owned by this handle alone.
        match unsafe { context.verbs().ibv_dereg_mr(self.raw.as_ptr()) } {
            0 => {
                self.live = false;
                Ok(())
            }
            code => Err(Error::from_errno("dereg_mr", code).context(format!(
                "{}, lkey {:#x}",
                context.name(),
                self.lkey
            ))),
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.deregister().is_err() {
            std::mem::forget(self.pd.clone());
        }
    }
}

/// An address handle: a route to a peer's port, for datagrams.
#[derive(Debug)]
pub struct Ah {
    raw: NonNull<ibv_ah>,
    pd: Arc<Pd>,
}

// SAFETY: the library takes an address handle from any thread, and nothing in it changes.
unsafe impl Send for Ah {}
// SAFETY: as for `Send`.
unsafe impl Sync for Ah {}

impl Ah {
    /// Creates one for the route that `attr` describes.
    ///
    /// # Errors
    /// The device's.
    pub fn create(pd: &Arc<Pd>, attr: &mut ibv_ah_attr) -> Result<Self, Error> {
        // SAFETY: the domain is alive and the attributes are read during the call only.
        let ah = NonNull::new(unsafe { pd.context().verbs().ibv_create_ah(pd.as_ptr(), attr) });
        let raw = ah.ok_or_else(|| failed("create_ah", pd.context().name()))?;
        Ok(Self { raw, pd: pd.clone() })
    }

    /// The handle itself, for work requests. It stays this one's.
    pub fn as_ptr(&self) -> *mut ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        let context = self.pd.context();
        // SAFETY: created in `create` and owned by this handle alone; whoever posts with it keeps it.
        let call = || unsafe { context.verbs().ibv_destroy_ah(self.as_ptr()) };
        if !destroy(context.home, "destroy_ah", call) {
            std::mem::forget(self.pd.clone());
        }
    }
}
