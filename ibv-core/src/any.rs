//! Run-time provider selection. `AnyDomain` is an ordinary `IbvDomainImpl`, so generic code takes
//! both, and core's `QpCore` passes through it untouched: ids, credits and routes exist once.
#![allow(unsafe_code)]
//! # Safety
//! Every unsafe function here has its namesake's contract and forwards it. A box changes its type only where
//! the value inside has said that it is of that type.

use crate::{
    caps::Caps,
    config::IbvConfig,
    core::QpCore,
    error::{Error, ErrorKind},
    event::EventSource,
    memory::{Access, Registration},
    provider::{CompletionQueue, CqConfig, IbvDomainImpl},
    queue_pair::IbvQueuePair,
};
use std::{any::Any, fmt, os::fd::BorrowedFd, ptr::NonNull};

/// A domain of whichever provider.
#[derive(Debug)]
pub struct AnyDomain(Box<dyn DynDomain>);

impl AnyDomain {
    /// Erases `domain`.
    pub fn new<D: IbvDomainImpl>(domain: D) -> Self {
        Self(Box::new(domain))
    }

    /// The domain inside, where it is a `D`.
    pub fn downcast_ref<D: IbvDomainImpl>(&self) -> Option<&D> {
        self.0.as_any().downcast_ref()
    }

    /// Takes the domain out, where it is a `D`, for code that should drive it without virtual calls.
    ///
    /// # Errors
    /// The domain as it was: it is no `D`.
    pub fn downcast<D: IbvDomainImpl>(self) -> Result<D, Self> {
        if self.downcast_ref::<D>().is_none() {
            return Err(self);
        }
        // SAFETY: the box is of a `D`, as it has just said, and nobody else has it.
        Ok(*unsafe { Box::from_raw(Box::into_raw(self.0).cast::<D>()) })
    }
}

/// A completion queue of whichever provider. A newtype, so that no `Box<dyn _>` (which is `Any` itself)
/// is downcast by mistake.
#[derive(Debug)]
pub struct AnyCq(Box<dyn DynCq>);

trait DynCq: Any + fmt::Debug + Send + Sync {}
impl<T: Any + fmt::Debug + Send + Sync> DynCq for T {}

/// Private, and implemented once, by the blanket below.
trait DynDomain: fmt::Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn caps(&self) -> Caps;
    fn create_cq(&self, config: &CqConfig) -> Result<(AnyCq, Box<dyn CompletionQueue>), Error>;
    fn events(&self) -> Result<Box<dyn EventSource>, Error>;
    /// # Safety
    /// As [`IbvDomainImpl::create_queue_pair`].
    unsafe fn create_queue_pair(
        &self,
        config: &IbvConfig,
        send_cq: &AnyCq,
        recv_cq: &AnyCq,
        core: QpCore,
    ) -> Result<Box<dyn IbvQueuePair>, Error>;
    /// # Safety
    /// As [`IbvDomainImpl::register`].
    unsafe fn register(&self, mem: NonNull<[u8]>, access: Access) -> Result<Box<dyn Registration>, Error>;
    /// # Safety
    /// As [`IbvDomainImpl::register_dmabuf`].
    unsafe fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Box<dyn Registration>, Error>;
}

impl<D: IbvDomainImpl> DynDomain for D {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn caps(&self) -> Caps {
        D::caps(self)
    }
    fn create_cq(&self, config: &CqConfig) -> Result<(AnyCq, Box<dyn CompletionQueue>), Error> {
        let (cq, poller) = D::create_cq(self, config)?;
        Ok((AnyCq(Box::new(cq)), Box::new(poller)))
    }
    fn events(&self) -> Result<Box<dyn EventSource>, Error> {
        D::events(self)
    }
    unsafe fn create_queue_pair(
        &self,
        config: &IbvConfig,
        send_cq: &AnyCq,
        recv_cq: &AnyCq,
        core: QpCore,
    ) -> Result<Box<dyn IbvQueuePair>, Error> {
        // SAFETY: forwarded contract; the queues are those that `D::create_cq` made.
        let qp = unsafe { D::create_queue_pair(self, config, own(send_cq)?, own(recv_cq)?, core) }?;
        Ok(Box::new(qp))
    }
    unsafe fn register(&self, mem: NonNull<[u8]>, access: Access) -> Result<Box<dyn Registration>, Error> {
        // SAFETY: forwarded contract.
        Ok(Box::new(unsafe { D::register(self, mem, access) }?))
    }
    unsafe fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Box<dyn Registration>, Error> {
        // SAFETY: forwarded contract.
        Ok(Box::new(unsafe { D::register_dmabuf(self, fd, offset, len, iova, access) }?))
    }
}

/// The provider's own queue inside. Core has checked that it is of this very domain.
fn own<T: 'static>(cq: &AnyCq) -> Result<&T, Error> {
    let any: &dyn Any = &*cq.0;
    let foreign =
        || Error::new(ErrorKind::ForeignHandle, "create_qp", "a completion queue of another provider");
    any.downcast_ref().ok_or_else(foreign)
}

impl IbvDomainImpl for AnyDomain {
    type Cq = AnyCq;
    type Poller = Box<dyn CompletionQueue>;
    type QueuePair = Box<dyn IbvQueuePair>;
    type Registration = Box<dyn Registration>;

    fn caps(&self) -> Caps {
        self.0.caps()
    }
    fn create_cq(&self, config: &CqConfig) -> Result<(AnyCq, Self::Poller), Error> {
        self.0.create_cq(config)
    }
    fn events(&self) -> Result<Box<dyn EventSource>, Error> {
        self.0.events()
    }
    unsafe fn create_queue_pair(
        &self,
        config: &IbvConfig,
        send_cq: &AnyCq,
        recv_cq: &AnyCq,
        core: QpCore,
    ) -> Result<Self::QueuePair, Error> {
        // SAFETY: forwarded contract.
        unsafe { self.0.create_queue_pair(config, send_cq, recv_cq, core) }
    }
    unsafe fn register(&self, mem: NonNull<[u8]>, access: Access) -> Result<Self::Registration, Error> {
        // SAFETY: forwarded contract.
        unsafe { self.0.register(mem, access) }
    }
    unsafe fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self::Registration, Error> {
        // SAFETY: forwarded contract.
        unsafe { self.0.register_dmabuf(fd, offset, len, iova, access) }
    }
}
