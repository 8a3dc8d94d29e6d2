//! The seeds' struct [`IbvQueuePair`]: a queue pair with completion queues of its own, its rings' addresses
//! in public fields, and both argument orders. How WQEs are posted is `queue_pair.rs`'s.
//!
//! The inherent `put(local, remote)` is the seed's struct; the trait's `put(remote, local)` is the seed's
//! trait. An inherent method shadows the trait's, so `qp.put(a, b)` means the first; the types differ, so
//! mixing them up does not compile.
#![allow(unsafe_code)]
//! # Safety
//! `new` makes both queues on the domain itself, which is what creating a queue pair asks for. The trait's
//! functions forward their contracts.

use crate::{
    completion_queue::Mlx5Cq, domain::Mlx5Domain, poller::Mlx5Poller, queue_pair::Mlx5QueuePair, state::State,
};
use ibv_core::{
    Access, Caps, CqConfig, Error, ErrorKind, EventSource, FromCore, IbvBuffer, IbvConfig, IbvDomain,
    IbvDomainImpl, IbvMemoryRegionView, IbvPath, IbvQpInfo, IbvQueuePair as QueuePair,
    IbvRemoteMemoryRegionView, IbvWc, Op, Payload, PollCompletionError, PollTarget, PostError, QpAttributes,
    QpCore, QpState, RecvRequest, Request, WorkRequest, WorkRequestError, post, verbs::Mr,
};
use rdmaxcel_sys::rdmaxcel_qp;
use std::{any::Any, mem::ManuallyDrop, os::fd::BorrowedFd, ptr::NonNull, slice};

/// A queue pair of an mlx5 device and its two completion queues. Single owner: not `Clone`; dropping it
/// destroys the queue pair, then the queues, then what the addresses point to.
///
/// The fields are addresses, for people who drive the rings themselves. They are copies: whatever a caller
/// stores in them, nothing here reads them again.
#[derive(Debug)]
pub struct IbvQueuePair {
    /// Address of the send queue's `struct ibv_cq`.
    pub send_cq: usize,
    /// Address of the receive queue's `struct ibv_cq`.
    pub recv_cq: usize,
    /// Address of a `struct mlx5dv_qp` that describes the queue pair's rings, valid while it lives.
    pub dv_qp: usize,
    /// Address of a `struct mlx5dv_cq` that describes the send queue.
    pub dv_send_cq: usize,
    /// Address of a `struct mlx5dv_cq` that describes the receive queue.
    pub dv_recv_cq: usize,
    /// Dropped by hand, before `state`.
    qp: ManuallyDrop<Mlx5QueuePair>,
    state: State,
}

impl IbvQueuePair {
    /// Creates the queue pair, in RESET, *and* its two completion queues, whose only poller it is. `I` may
    /// be an mlx5 domain or `AnyDomain` around one.
    ///
    /// # Errors
    /// `ForeignHandle` for another provider's domain; else as creating a completion queue or a queue pair.
    /// Nothing is left behind.
    pub fn new<I: IbvDomainImpl>(domain: &IbvDomain<I>, config: IbvConfig) -> Result<Self, Error> {
        let send_cq = domain.create_cq(config.max_send_wr)?;
        let recv_cq = domain.create_cq(config.max_recv_wr.max(1))?;
        // SAFETY: `domain` has just made both queues.
        let qp = unsafe { <I::QueuePair as QueuePair>::new(domain, config, send_cq, recv_cq) }?;
        own(Box::new(qp))
    }

    fn over(qp: Mlx5QueuePair) -> Result<Self, Error> {
        let (device, queues) = qp.verbs()?;
        let [send_cq, recv_cq] = queues.map(|cq| cq.as_ptr() as usize);
        let state = State::of(device, queues, qp.core().config().max_send_wr)?;
        let [dv_qp, dv_send_cq, dv_recv_cq] = state.addresses();
        Ok(Self { send_cq, recv_cq, dv_qp, dv_send_cq, dv_recv_cq, qp: ManuallyDrop::new(qp), state })
    }

    /// The state block of `rdmaxcel.h`, for callers that drive the rings from C or from a GPU; the same
    /// pointer on each call. It stays this struct's.
    ///
    /// # Safety
    /// It is used only while `self` lives: dropping destroys it. While its user posts, nobody posts through
    /// `self`, and while its user polls a completion queue, nobody polls that one through `self`; nobody
    /// goes back to `self` afterwards but to drop it. The register is not shared with another queue pair
    /// that is rung meanwhile ([`Mlx5QueuePair::has_own_register`]).
    pub unsafe fn as_ptr(&self) -> *mut rdmaxcel_qp {
        self.state.block().as_ptr()
    }

    /// What a peer needs in order to connect; in every state, and stable.
    ///
    /// # Errors
    /// The device's.
    pub fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error> {
        self.qp.get_qp_info()
    }

    /// Asks the device for the state: `enum ibv_qp_state`.
    ///
    /// # Errors
    /// The device's.
    pub fn state(&mut self) -> Result<u32, Error> {
        Ok(self.qp.state()?.0)
    }

    /// RESET → INIT → RTR → RTS, connected to `connection_info`.
    ///
    /// # Errors
    /// `InvalidState` the second time; else names the transition that failed.
    pub fn connect(&mut self, connection_info: &IbvQpInfo) -> Result<(), Error> {
        QueuePair::connect(self, connection_info)
    }

    /// Posts one receive into `lhandle`, such as a put with immediate consumes; its id. No bytes are fine.
    ///
    /// # Errors
    /// `Post`; nothing was posted.
    pub fn recv(&mut self, lhandle: IbvBuffer, _rhandle: IbvBuffer) -> Result<u64, Error> {
        post::recv_explained(self, &[lhandle.local()])
    }

    /// Writes `lhandle` to the front of `rhandle`, now, and what is enqueued with it. One id for each work
    /// request.
    ///
    /// # Errors
    /// `Post`, with both sizes or the queue's numbers; nothing was posted.
    pub fn put(&mut self, lhandle: IbvBuffer, rhandle: IbvBuffer) -> Result<Vec<u64>, Error> {
        let ids = self.enqueue_put(lhandle, rhandle)?;
        self.ring_doorbell().map(|()| ids)
    }

    /// `put`, with an immediate of 0 that consumes one receive of the peer.
    ///
    /// # Errors
    /// As `put`.
    pub fn put_with_recv(&mut self, lhandle: IbvBuffer, rhandle: IbvBuffer) -> Result<Vec<u64>, Error> {
        let ids = self.enqueue_put_with_recv(lhandle, rhandle)?;
        self.ring_doorbell().map(|()| ids)
    }

    /// Reads all of `rhandle` into the front of `lhandle`, now, and does what is enqueued with it.
    ///
    /// # Errors
    /// As `put`.
    pub fn get(&mut self, lhandle: IbvBuffer, rhandle: IbvBuffer) -> Result<Vec<u64>, Error> {
        let ids = self.enqueue_get(lhandle, rhandle)?;
        self.ring_doorbell().map(|()| ids)
    }

    /// Builds a put that the device can not see before [`ring_doorbell`](Self::ring_doorbell).
    ///
    /// # Errors
    /// `Post`; nothing was built, and nothing overwritten.
    pub fn enqueue_put(&mut self, lhandle: IbvBuffer, rhandle: IbvBuffer) -> Result<Vec<u64>, Error> {
        let local = [lhandle.local()];
        post::enqueue_explained(self, "enqueue_put", &Request::put(rhandle.remote(), &local))
    }

    /// Builds a put with an immediate of 0.
    ///
    /// # Errors
    /// As `enqueue_put`.
    pub fn enqueue_put_with_recv(
        &mut self,
        lhandle: IbvBuffer,
        rhandle: IbvBuffer,
    ) -> Result<Vec<u64>, Error> {
        let local = [lhandle.local()];
        let request = Request::new(Op::WriteWithImm(0), rhandle.remote(), Payload::Sges(&local));
        post::enqueue_explained(self, "enqueue_put_with_recv", &request)
    }

    /// Builds a get.
    ///
    /// # Errors
    /// As `enqueue_put`.
    pub fn enqueue_get(&mut self, lhandle: IbvBuffer, rhandle: IbvBuffer) -> Result<Vec<u64>, Error> {
        let local = [lhandle.local()];
        post::enqueue_explained(self, "enqueue_get", &Request::get(&local, rhandle.remote()))
    }

    /// Executes all enqueued operations; nothing enqueued is fine.
    ///
    /// # Errors
    /// `Post`; nothing was published, and what was enqueued is forgotten.
    pub fn ring_doorbell(&mut self) -> Result<(), Error> {
        post::ring_explained(self)
    }

    /// Takes one completion from `target`'s queue.
    ///
    /// # Errors
    /// The outer error says that the queue can not be polled; the inner one that a request failed.
    pub fn poll_completion(
        &mut self,
        target: PollTarget,
    ) -> Result<Option<Result<IbvWc, WorkRequestError>>, PollCompletionError> {
        let polled = self.qp.poll_completion(target)?;
        let id = polled.as_ref().map(|done| done.as_ref().map_or_else(|e| e.wr_id, |wc| wc.wr_id));
        match (target, id) {
            (PollTarget::Send, Some(id)) => self.state.polled_send(id),
            (PollTarget::Recv, Some(_)) => self.state.polled_recv(),
            (_, None) => {}
        }
        Ok(polled)
    }

    /// Whether its doorbell register is nobody else's.
    pub fn has_own_register(&self) -> bool {
        self.qp.has_own_register()
    }
}

impl Drop for IbvQueuePair {
    fn drop(&mut self) {
        // SAFETY: dropped once, here, and not used again; what it describes goes after it.
        unsafe { ManuallyDrop::drop(&mut self.qp) };
    }
}

/// Finds the provider's queue pair in what an unknown domain made.
fn own(qp: Box<dyn Any>) -> Result<IbvQueuePair, Error> {
    let qp = match qp.downcast::<Box<dyn QueuePair>>() {
        Ok(erased) => *erased as Box<dyn Any>,
        Err(qp) => qp,
    };
    let foreign = |_| {
        let detail = "the domain is not an mlx5 device's; open it with Mlx5Provider";
        Error::new(ErrorKind::ForeignHandle, "create_qp", detail)
    };
    match qp.downcast::<IbvQueuePair>() {
        Ok(whole) => Ok(*whole),
        Err(qp) => IbvQueuePair::over(*qp.downcast::<Mlx5QueuePair>().map_err(foreign)?),
    }
}

/// The trait's methods: remote destination first.
impl QueuePair for IbvQueuePair {
    fn core(&self) -> &QpCore {
        self.qp.core()
    }
    fn core_mut(&mut self, by: FromCore) -> &mut QpCore {
        self.qp.core_mut(by)
    }
    fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error> {
        self.qp.get_qp_info()
    }
    fn establish(&mut self, path: &IbvPath, by: FromCore) -> Result<(), Error> {
        self.qp.establish(path, by)?;
        self.state.received(self.qp.receives(), true);
        self.state.reached_rts();
        Ok(())
    }
    fn state(&mut self) -> Result<QpState, Error> {
        self.qp.state()
    }
    fn attributes(&mut self) -> Result<QpAttributes, Error> {
        self.qp.attributes()
    }
    fn enter_error(&mut self) -> Result<(), Error> {
        self.qp.enter_error()?;
        self.state.received(self.qp.receives(), true);
        Ok(())
    }
    fn enqueue(&mut self, wr: &WorkRequest<'_>) -> Result<(), PostError> {
        self.qp.enqueue(wr)?;
        let at = self.qp.positions();
        self.state.built(wr.id, at.next);
        self.state.sent(at);
        Ok(())
    }
    fn ring_doorbell(&mut self, by: FromCore) -> Result<(), PostError> {
        self.qp.ring_doorbell(by)?;
        self.state.sent(self.qp.positions());
        self.state.half(self.qp.half());
        Ok(())
    }
    fn discard(&mut self, by: FromCore) {
        self.qp.discard(by);
        let at = self.qp.positions();
        self.state.discarded(at.rung);
        self.state.sent(at);
    }
    fn enqueue_recv(&mut self, wr: &RecvRequest<'_>) -> Result<(), PostError> {
        self.qp.enqueue_recv(wr)?;
        self.state.received(self.qp.receives(), self.qp.takes_receives());
        Ok(())
    }
    fn put(
        &mut self,
        remote_dst: IbvRemoteMemoryRegionView,
        local_src: IbvMemoryRegionView<'_>,
    ) -> Result<Vec<u64>, Error> {
        let request = Request::put(remote_dst, slice::from_ref(&local_src));
        let ids = post::enqueue_explained(self, "put", &request)?;
        post::ring_explained(self).map(|()| ids)
    }
    fn get(
        &mut self,
        local_dst: IbvMemoryRegionView<'_>,
        remote_src: IbvRemoteMemoryRegionView,
    ) -> Result<Vec<u64>, Error> {
        let request = Request::get(slice::from_ref(&local_dst), remote_src);
        let ids = post::enqueue_explained(self, "get", &request)?;
        post::ring_explained(self).map(|()| ids)
    }
    fn poll_completion(
        &mut self,
        target: PollTarget,
    ) -> Result<Option<Result<IbvWc, WorkRequestError>>, PollCompletionError> {
        Self::poll_completion(self, target)
    }
}

/// The domain whose queue pair is the seeds' struct: it makes the trait's `new` callable on the struct,
/// with four arguments.
#[derive(Debug)]
pub struct SeedDomain(pub Mlx5Domain);

impl IbvDomainImpl for SeedDomain {
    type Cq = Mlx5Cq;
    type Poller = Mlx5Poller;
    type QueuePair = IbvQueuePair;
    type Registration = Mr;

    fn caps(&self) -> Caps {
        self.0.caps()
    }
    fn create_cq(&self, config: &CqConfig) -> Result<(Mlx5Cq, Mlx5Poller), Error> {
        self.0.create_cq(config)
    }
    unsafe fn create_queue_pair(
        &self,
        config: &IbvConfig,
        send_cq: &Mlx5Cq,
        recv_cq: &Mlx5Cq,
        core: QpCore,
    ) -> Result<IbvQueuePair, Error> {
        // SAFETY: forwarded contract.
        IbvQueuePair::over(unsafe { self.0.create_queue_pair(config, send_cq, recv_cq, core) }?)
    }
    unsafe fn register(&self, mem: NonNull<[u8]>, access: Access) -> Result<Mr, Error> {
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
    ) -> Result<Mr, Error> {
        // SAFETY: forwarded contract.
        unsafe { self.0.register_dmabuf(fd, offset, len, iova, access) }
    }
    fn events(&self) -> Result<Box<dyn EventSource>, Error> {
        self.0.events()
    }
}
