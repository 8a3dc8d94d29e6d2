//! Registered memory, and why safe callers can not misuse it. How host bytes are copied is
//! `memory/shared.rs`'s; how a device is told is the provider's.
#![allow(unsafe_code)]
//! # Safety
//! Nothing here relies on a borrow outliving a transfer: a borrow can not, because `mem::forget` and
//! early drops are safe. Two facts carry the proof instead. The device only touches memory through a
//! key, and a key covers exactly one region. And a region frees its memory only after the provider has
//! confirmed that the key is dead; if it can not confirm, the memory leaks. So dropping a region in
//! flight fails the request, and forgetting one leaks it; neither frees memory under a device.
//!
//! A peer that holds an `rkey` may write the region at any time. That is what the key is for: contents
//! are the peer's to decide, their safety is not, because no reference into the region ever exists.

use crate::{
    domain::DomainShared,
    error::{Error, ErrorKind},
    provider::IbvDomainImpl,
    trace::step,
};
use std::{alloc, fmt, marker::PhantomData, mem::ManuallyDrop, ptr::NonNull, sync::Arc};

mod shared;
pub use shared::{OutOfRange, SharedBytes};

bitflags::bitflags! {
    /// What a region may be used for: `enum ibv_access_flags` (libibverbs/verbs.h). Local reads are
    /// always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct Access: u32 {
        /// This end's gets, atomics and receives may fill it. Remote writes and atomics need it too.
        const LOCAL_WRITE = 1;
        /// The peer may put.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may get.
        const REMOTE_READ = 1 << 2;
        /// The peer may use atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// The device may reorder the region's writes between messages, for speed.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// Everything but relaxed ordering: what regions of this crate get unless told otherwise.
    pub const ALL: Self =
        Self::LOCAL_WRITE.union(Self::REMOTE_WRITE).union(Self::REMOTE_READ).union(Self::REMOTE_ATOMIC);

    /// Remote writes without local ones are a contradiction that devices refuse. Bits without a name here
    /// mean something to them: one makes a region start at 0, another leaves its pages unpinned.
    pub(crate) fn check(self) -> Result<(), Error> {
        let unknown = self.bits() & !Self::all().bits();
        if unknown != 0 {
            let detail =
                format!("access has the bits {unknown:#x}, which this crate has no name for; clear them");
            return Err(Error::new(ErrorKind::InvalidConfig, "reg_mr", detail));
        }
        let remote = self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC));
        if remote && !self.contains(Self::LOCAL_WRITE) {
            let detail = format!("access {self:?} allows remote writes without LOCAL_WRITE; add it");
            return Err(Error::new(ErrorKind::InvalidConfig, "reg_mr", detail));
        }
        Ok(())
    }
}

/// Memory a region can own.
///
/// # Safety
/// `as_raw` returns the same range on every call, valid for reads and writes until `self` drops
/// (moving `self` does not move the range), and nobody accesses it meanwhile but through the region.
pub unsafe trait RegionMemory: Send + Sync + 'static {
    /// The range.
    fn as_raw(&self) -> NonNull<[u8]>;
}

/// What a provider hands back for a registration.
///
/// # Safety
/// Once `deregister` has returned `Ok`, the device makes no further access through these keys: core
/// frees the memory next. Dropping without a successful `deregister` promises nothing.
pub unsafe trait Registration: fmt::Debug + Send + Sync + 'static {
    /// The local key.
    fn lkey(&self) -> u32;
    /// The remote key.
    fn rkey(&self) -> u32;
    /// Device address of byte 0; differs from the host address for zero-based dma-buf regions.
    fn iova(&self) -> u64;
    /// Kills the keys. Called once, and never again after `Ok`.
    fn deregister(&mut self) -> Result<(), Error>;
}

// SAFETY: forwards to the registration inside.
unsafe impl Registration for Box<dyn Registration> {
    fn lkey(&self) -> u32 {
        (**self).lkey()
    }
    fn rkey(&self) -> u32 {
        (**self).rkey()
    }
    fn iova(&self) -> u64 {
        (**self).iova()
    }
    fn deregister(&mut self) -> Result<(), Error> {
        (**self).deregister()
    }
}

/// A registration, the memory under it, and the domain both need. Dropping it in flight is safe: the
/// requests that still name it complete with a protection error.
pub struct IbvMemoryRegion<I: IbvDomainImpl, M = HeapMemory> {
    reg: I::Registration,
    mem: ManuallyDrop<M>,
    len: usize,
    access: Access,
    domain: Arc<DomainShared<I>>,
}

impl<I: IbvDomainImpl, M> IbvMemoryRegion<I, M> {
    /// `mem` (or what it stands for) is what `reg` covers, `len` bytes of it.
    pub(crate) fn new(
        reg: I::Registration,
        mem: M,
        len: usize,
        access: Access,
        domain: Arc<DomainShared<I>>,
    ) -> Self {
        Self { reg, mem: ManuallyDrop::new(mem), len, access, domain }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What it was registered for.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The device it is registered with.
    pub fn device_name(&self) -> &str {
        &self.domain.info.name
    }

    /// A borrowed local view: `Copy`, no reference count. The borrow is a courtesy, not the proof.
    #[inline]
    pub fn view(&self) -> IbvMemoryRegionView<'_> {
        IbvMemoryRegionView::from_raw_parts(self.reg.iova(), self.len, self.reg.lkey())
    }

    /// What to send a peer.
    #[inline]
    pub fn remote(&self) -> IbvRemoteMemoryRegionView {
        IbvRemoteMemoryRegionView { addr: self.reg.iova(), len: self.len, rkey: self.reg.rkey() }
    }

    /// Deregisters now and hands the memory back, or says why the device would not let go.
    ///
    /// # Errors
    /// The provider's; the region comes back with it, unchanged. Dropping the region instead leaks the
    /// memory in that case.
    pub fn deregister(mut self) -> Result<M, (Self, Error)> {
        let done = self.reg.deregister();
        step("dereg_mr", format_args!("{}, {} bytes", self.device_name(), self.len), done.as_ref().err());
        if let Err(e) = done {
            return Err((self, e));
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped and not used again, so each field is moved out or dropped
        // exactly once; the key is dead, so the memory is the caller's again.
        unsafe {
            let mem = ManuallyDrop::take(&mut this.mem);
            std::ptr::drop_in_place(&mut this.reg);
            std::ptr::drop_in_place(&mut this.domain);
            Ok(mem)
        }
    }
}

impl<I: IbvDomainImpl, M: RegionMemory> IbvMemoryRegion<I, M> {
    /// Copies out. What a device writes meanwhile arrives in part or not at all, word by word.
    ///
    /// # Errors
    /// [`OutOfRange`]; nothing was copied.
    pub fn read_at(&self, at: usize, out: &mut [u8]) -> Result<(), OutOfRange> {
        self.shared().read(at, out)
    }

    /// Copies in.
    ///
    /// # Errors
    /// [`OutOfRange`]; nothing was copied.
    pub fn write_at(&self, at: usize, src: &[u8]) -> Result<(), OutOfRange> {
        self.shared().write(at, src)
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len];
        let whole = self.read_at(0, &mut out);
        debug_assert!(whole.is_ok());
        out
    }

    fn shared(&self) -> SharedBytes {
        // SAFETY: valid while `self.mem` lives, which the result does not outlive; nobody accesses the
        // range but through this region (`RegionMemory`) and the device behind it, and both cut it by
        // its own bounds.
        unsafe { SharedBytes::new(self.mem.as_raw()) }
    }
}

impl<I: IbvDomainImpl, M> Drop for IbvMemoryRegion<I, M> {
    fn drop(&mut self) {
        let done = self.reg.deregister();
        if done.is_ok() {
            // SAFETY: the key is dead, so nobody but us knows the memory; dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.mem) };
        }
        let what = if done.is_ok() { "" } else { ", whose memory leaks" };
        let object = format_args!("{}, {} bytes{what}", self.device_name(), self.len);
        step("dereg_mr", object, done.as_ref().err());
    }
}

impl<I: IbvDomainImpl, M> fmt::Debug for IbvMemoryRegion<I, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IbvMemoryRegion")
            .field("device", &self.device_name())
            .field("len", &self.len)
            .field("access", &self.access)
            .field("lkey", &format_args!("{:#x}", self.reg.lkey()))
            .field("rkey", &format_args!("{:#x}", self.reg.rkey()))
            .finish_non_exhaustive()
    }
}

/// A local byte range with its `lkey`.
///
/// It can not outlive its region:
/// ```compile_fail,E0597
/// # fn late<I: ibv_core::IbvDomainImpl>(d: &ibv_core::IbvDomain<I>) {
/// let view = {
///     let region = d.alloc(8).unwrap();
///     region.view()
/// };
/// view.len();
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IbvMemoryRegionView<'mr> {
    addr: u64,
    len: usize,
    lkey: u32,
    #[cfg_attr(feature = "serde", serde(skip))]
    _region: PhantomData<&'mr ()>,
}

impl IbvMemoryRegionView<'_> {
    pub(crate) const EMPTY: Self = Self::from_raw_parts(0, 0, 0);

    /// Safe: a key that covers less than the range fails the request, as it would for a peer.
    #[inline]
    pub const fn from_raw_parts(addr: u64, len: usize, lkey: u32) -> Self {
        Self { addr, len, lkey, _region: PhantomData }
    }

    /// Device address of its first byte.
    #[inline]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// Length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The local key.
    #[inline]
    pub const fn lkey(&self) -> u32 {
        self.lkey
    }

    /// `len` bytes from `at` on, where they are inside.
    #[inline]
    pub fn slice(self, at: usize, len: usize) -> Option<Self> {
        let end = at.checked_add(len)?;
        (end <= self.len).then(|| Self { addr: self.addr.wrapping_add(at as u64), len, ..self })
    }
}

/// A remote byte range with its `rkey`: plain data, for the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IbvRemoteMemoryRegionView {
    /// The peer's device address of its first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: usize,
    /// The peer's remote key.
    pub rkey: u32,
}

impl IbvRemoteMemoryRegionView {
    pub(crate) const NONE: Self = Self { addr: 0, len: 0, rkey: 0 };

    /// `len` bytes from `at` on, where they are inside.
    #[inline]
    pub fn slice(self, at: usize, len: usize) -> Option<Self> {
        let end = at.checked_add(len)?;
        (end <= self.len).then(|| Self { addr: self.addr.wrapping_add(at as u64), len, ..self })
    }
}

/// The memory to use when you have no opinion: an owned, zeroed, page-aligned range whose pages the
/// operating system provides on first touch.
#[derive(Debug)]
pub struct HeapMemory {
    block: NonNull<u8>,
    layout: alloc::Layout,
    start: usize,
    len: usize,
}

// SAFETY: the range is owned and only touched through atomics or the device.
unsafe impl Send for HeapMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for HeapMemory {}

impl HeapMemory {
    const PAGE: usize = 4096;

    /// `len` zero bytes.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfResources`] where the allocator has not that much.
    pub fn zeroed(len: usize) -> Result<Self, Error> {
        let fail = || {
            let detail = format!("can not allocate {len} bytes; register less at a time");
            Error::new(ErrorKind::OutOfResources, "alloc", detail)
        };
        // A page more than asked for, and aligned by hand: an allocator asked for aligned zeroed memory
        // zeroes it by touching every page.
        let size = len.checked_add(Self::PAGE).ok_or_else(fail)?;
        let layout = alloc::Layout::from_size_align(size, 8).map_err(|_| fail())?;
        // SAFETY: the size is not zero.
        let block = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or_else(fail)?;
        let start = (block.as_ptr() as usize).wrapping_neg() % Self::PAGE;
        Ok(Self { block, layout, start, len })
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, freed once.
        unsafe { alloc::dealloc(self.block.as_ptr(), self.layout) }
    }
}

// SAFETY: the heap range is fixed until drop and never exposed as a reference.
unsafe impl RegionMemory for HeapMemory {
    fn as_raw(&self) -> NonNull<[u8]> {
        // SAFETY: `start` is less than a page, and the block is a page longer than `len`.
        let first = unsafe { self.block.add(self.start) };
        NonNull::slice_from_raw_parts(first, self.len)
    }
}
