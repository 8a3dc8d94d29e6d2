//! The seeds' `IbvBuffer`: either side of a transfer as plain data.

use crate::{
    memory::{IbvMemoryRegion, IbvMemoryRegionView, IbvRemoteMemoryRegionView},
    provider::IbvDomainImpl,
};

/// A byte range with both its keys: what the struct of seed 000 takes for local and remote alike. Plain
/// data, for the wire; it keeps nothing alive, and a key that has died fails the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IbvBuffer {
    /// The key its owner uses.
    pub lkey: u32,
    /// The key a peer uses.
    pub rkey: u32,
    /// Device address of its first byte. On a 32-bit host an address that the host does not choose
    /// (a dma-buf's) may not fit; use views there.
    pub addr: usize,
    /// Length in bytes.
    pub size: usize,
    /// The device it is registered with.
    pub device_name: String,
}

impl IbvBuffer {
    /// The local side of a transfer.
    pub fn local(&self) -> IbvMemoryRegionView<'static> {
        IbvMemoryRegionView::from_raw_parts(self.addr as u64, self.size, self.lkey)
    }

    /// The remote side of a transfer.
    pub fn remote(&self) -> IbvRemoteMemoryRegionView {
        IbvRemoteMemoryRegionView { addr: self.addr as u64, len: self.size, rkey: self.rkey }
    }

    /// `len` bytes from `at` on, where they are inside.
    pub fn slice(&self, at: usize, len: usize) -> Option<Self> {
        let end = at.checked_add(len)?;
        (end <= self.size).then(|| Self { addr: self.addr.wrapping_add(at), size: len, ..self.clone() })
    }
}

impl<I: IbvDomainImpl, M> From<&IbvMemoryRegion<I, M>> for IbvBuffer {
    fn from(mr: &IbvMemoryRegion<I, M>) -> Self {
        let (view, remote) = (mr.view(), mr.remote());
        Self {
            lkey: view.lkey(),
            rkey: remote.rkey,
            addr: view.addr() as usize,
            size: view.len(),
            device_name: mr.device_name().into(),
        }
    }
}

/// From a view: a local side only, since a view has no remote key.
impl From<IbvMemoryRegionView<'_>> for IbvBuffer {
    fn from(view: IbvMemoryRegionView<'_>) -> Self {
        let (addr, size) = (view.addr() as usize, view.len());
        Self { lkey: view.lkey(), addr, size, ..Self::default() }
    }
}

/// From a peer's view: a remote side only.
impl From<IbvRemoteMemoryRegionView> for IbvBuffer {
    fn from(view: IbvRemoteMemoryRegionView) -> Self {
        Self { rkey: view.rkey, addr: view.addr as usize, size: view.len, ..Self::default() }
    }
}
