//! A provider written from outside, as small as one can be: 64-byte entries in a ring, and a "device"
//! that completes whatever was rung. It neither allocates nor locks when posting, ringing and polling,
//! so what a test or a bench sees beyond it is core's. It moves no bytes, and its one transport is a
//! loopback: a send meets the receives of its own queue pair.
#![allow(unsafe_code, dead_code)]
use ibv_core::*;
use std::{
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    ptr::NonNull,
    sync::{Arc, Mutex},
    sync::{atomic::AtomicU64, atomic::Ordering::*},
};

mod queue;
pub use queue::{Faults, NONE, RingPoller, Shared};

pub const SLOTS: usize = 256;
const SIGNALED: u64 = 1 << 3;

#[derive(Debug)]
pub struct RingDomain {
    pub caps: Caps,
    pub faults: Faults,
    /// Transport of the endpoints: another one makes `connect` fail.
    pub transport: Transport,
    pub queues: Mutex<Vec<Arc<Shared>>>,
    /// The device's end of each subscription.
    pub event_ends: Mutex<Vec<UnixStream>>,
    pub fail_deregister: bool,
}

impl Default for RingDomain {
    fn default() -> Self {
        let mut caps = Caps::default();
        (caps.write, caps.read, caps.send, caps.fence) =
            (Support::Native, Support::Native, Support::Native, Support::Native);
        (caps.write_with_imm, caps.atomics, caps.cq_channel) =
            (Support::Native, Support::Native, Support::Native);
        (caps.solicited, caps.completions_in_order, caps.messages_in_order) = (true, true, true);
        (caps.max_msg_size, caps.max_send_size, caps.max_mr_size) = (1 << 30, 1 << 20, u64::MAX);
        (caps.max_send_sge, caps.max_recv_sge, caps.max_inline) = (4, 4, 32);
        (caps.max_send_wr, caps.max_recv_wr, caps.max_cqe) = (128, 64, SLOTS as u32);
        caps.max_rd_atomic = 8;
        let (queues, event_ends) = Default::default();
        Self { caps, faults: NONE, transport: Transport::PRIVATE, queues, event_ends, fail_deregister: false }
    }
}

impl RingDomain {
    pub fn with(faults: Faults) -> Self {
        Self { faults, ..Self::default() }
    }
}

impl IbvDomainImpl for RingDomain {
    type Cq = Arc<Shared>;
    type Poller = RingPoller;
    type QueuePair = RingQueuePair;
    type Registration = RingRegistration;

    fn caps(&self) -> Caps {
        self.caps.clone()
    }

    fn create_cq(&self, config: &CqConfig) -> Result<(Arc<Shared>, RingPoller), Error> {
        let shared = Shared::new(config.channel).map_err(|e| {
            Error::new(ErrorKind::OutOfResources, "create_comp_channel", e.to_string()).with_source(e)
        })?;
        self.queues.lock().expect("not poisoned").push(shared.clone());
        Ok((shared.clone(), RingPoller::new(shared, self.faults)))
    }

    unsafe fn create_queue_pair(
        &self,
        config: &IbvConfig,
        send_cq: &Arc<Shared>,
        recv_cq: &Arc<Shared>,
        core: QpCore,
    ) -> Result<RingQueuePair, Error> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let ring = Ring { faults: self.faults, ..Ring::new(send_cq.clone()) };
        Ok(RingQueuePair {
            ring,
            recv_cq: recv_cq.clone(),
            receives: [(0, 0); SLOTS],
            taken: 0,
            posted: 0,
            qp_num: NUMBERS.fetch_add(1, Relaxed) as u32 & 0xff_ffff,
            transport: self.transport,
            state: QpState::RESET,
            config: config.clone(),
            core,
        })
    }

    unsafe fn register(&self, mem: NonNull<[u8]>, _: Access) -> Result<RingRegistration, Error> {
        Ok(RingRegistration(mem.cast::<u8>().as_ptr() as u64, self.fail_deregister))
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Error> {
        let fail = |e: io::Error| Error::from_errno("open", e.raw_os_error().unwrap_or(0));
        let (device, end) = UnixStream::pair().map_err(fail)?;
        end.set_nonblocking(true).map_err(fail)?;
        self.event_ends.lock().expect("not poisoned").push(device);
        Ok(Box::new(RingEvents(end)))
    }
}

/// Events, as four bytes each in a socket.
#[derive(Debug)]
pub struct RingEvents(UnixStream);

impl EventSource for RingEvents {
    fn next_event(&mut self) -> Result<Option<IbvEvent>, Error> {
        let mut word = [0; 4];
        match (&self.0).read_exact(&mut word) {
            Ok(()) => {
                Ok(Some(IbvEvent { kind: EventType(u32::from_be_bytes(word)), object: EventObject::Device }))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(Error::from_errno("get_async_event", e.raw_os_error().unwrap_or(5))),
        }
    }
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[derive(Debug)]
pub struct RingRegistration(u64, bool);

// SAFETY: no device touches anything.
unsafe impl Registration for RingRegistration {
    fn lkey(&self) -> u32 {
        1
    }
    fn rkey(&self) -> u32 {
        2
    }
    fn iova(&self) -> u64 {
        self.0
    }
    fn deregister(&mut self) -> Result<(), Error> {
        if self.1 {
            return Err(Error::new(ErrorKind::InUse, "dereg_mr", "this device never lets go"));
        }
        Ok(())
    }
}

/// The send queue.
#[derive(Debug)]
pub struct Ring {
    pub wqes: [[u64; 8]; SLOTS],
    next: u64,
    rung: u64,
    doorbells: u64,
    faults: Faults,
    shared: Arc<Shared>,
}

impl Ring {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { wqes: [[0; 8]; SLOTS], next: 0, rung: 0, doorbells: 0, faults: NONE, shared }
    }

    /// Everything the provider itself does to build one request of one range.
    #[inline]
    pub fn write(
        &mut self,
        id: u64,
        opcode: WcOpcode,
        local: IbvMemoryRegionView<'_>,
        remote: IbvRemoteMemoryRegionView,
        signaled: bool,
    ) -> Result<(), PostError> {
        if self.next == self.faults.refuse {
            self.faults.refuse = u64::MAX;
            return Err(PostError::Device(5));
        }
        let wqe = &mut self.wqes[self.next as usize & (SLOTS - 1)];
        wqe[0] = self.next << 8 | 8;
        wqe[1] = u64::from(signaled) << 3;
        wqe[2] = remote.addr.swap_bytes();
        wqe[3] = u64::from(remote.rkey.swap_bytes());
        wqe[4] = u64::from((local.len() as u32).swap_bytes()) << 32 | u64::from(local.lkey().swap_bytes());
        wqe[5] = local.addr().swap_bytes();
        wqe[6] = id;
        wqe[7] = u64::from(opcode.0) << 32 | local.len() as u64 & 0xffff_ffff;
        self.next += 1;
        Ok(())
    }

    /// One doorbell. The device completes on the spot what asked for a completion.
    pub fn ring(&mut self) -> Result<(), PostError> {
        self.doorbells += 1;
        if self.doorbells - 1 == self.faults.refuse_ring {
            return Err(PostError::Device(11));
        }
        let wqes = &self.wqes;
        let rung = (self.rung..self.next).map(|i| &wqes[i as usize & (SLOTS - 1)]);
        let done = rung.filter(|wqe| wqe[1] & SIGNALED != 0);
        self.shared.complete(done.clone().count(), done.map(|wqe| (wqe[6], wqe[7])));
        self.rung = self.next;
        Ok(())
    }
}

#[derive(Debug)]
pub struct RingQueuePair {
    pub ring: Ring,
    recv_cq: Arc<Shared>,
    /// Id and length of each receive.
    receives: [(u64, usize); SLOTS],
    taken: usize,
    posted: usize,
    qp_num: u32,
    transport: Transport,
    state: QpState,
    config: IbvConfig,
    core: QpCore,
}

impl RingQueuePair {
    /// Lets each send that was just rung consume one receive.
    #[cold]
    fn deliver(&mut self, from: u64) {
        for i in from..self.ring.rung {
            let what = self.ring.wqes[i as usize & (SLOTS - 1)][7];
            if WcOpcode((what >> 32) as u32) == WcOpcode::SEND && self.taken < self.posted {
                let (id, _) = self.receives[self.taken & (SLOTS - 1)];
                let what = u64::from(WcOpcode::RECV.0) << 32 | what & 0xffff_ffff;
                self.recv_cq.complete(1, std::iter::once((id, what)));
                self.taken += 1;
            }
        }
    }
}

impl IbvQueuePair for RingQueuePair {
    #[inline]
    fn core(&self) -> &QpCore {
        &self.core
    }
    #[inline]
    fn core_mut(&mut self, _: FromCore) -> &mut QpCore {
        &mut self.core
    }
    fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error> {
        let mut info = IbvQpInfo::new(self.transport, self.qp_num);
        info.psn = self.config.psn.unwrap_or(0);
        (info.mtu, info.max_rd_atomic) = (self.config.path_mtu, self.config.max_rd_atomic);
        info.max_dest_rd_atomic = self.config.max_dest_rd_atomic;
        Ok(info)
    }
    fn establish(&mut self, _: &IbvPath, _: FromCore) -> Result<(), Error> {
        self.state = QpState::RTS;
        Ok(())
    }
    fn state(&mut self) -> Result<QpState, Error> {
        Ok(self.state)
    }
    fn attributes(&mut self) -> Result<QpAttributes, Error> {
        Ok(QpAttributes::new(self.state, self.config.clone()))
    }
    fn enter_error(&mut self) -> Result<(), Error> {
        self.state = QpState::ERR;
        self.ring.shared.flushing.store(true, Relaxed);
        self.recv_cq.flushing.store(true, Relaxed);
        for at in self.taken..self.posted {
            self.recv_cq.complete(1, std::iter::once((self.receives[at & (SLOTS - 1)].0, 0)));
        }
        self.taken = self.posted;
        Ok(())
    }
    #[inline]
    fn enqueue(&mut self, wr: &WorkRequest<'_>) -> Result<(), PostError> {
        let opcode = match wr.op {
            Op::Write | Op::WriteWithImm(_) => WcOpcode::RDMA_WRITE,
            Op::Read => WcOpcode::RDMA_READ,
            Op::Send => WcOpcode::SEND,
            Op::FetchAdd(_) => WcOpcode::FETCH_ADD,
            _ => return Err(PostError::Unsupported),
        };
        let local = match wr.local {
            Payload::Sges([one]) => *one,
            Payload::Sges(sges) => {
                IbvMemoryRegionView::from_raw_parts(0, sges.iter().map(|s| s.len()).sum(), 0)
            }
            Payload::Inline(data) => IbvMemoryRegionView::from_raw_parts(0, data.len(), 0),
        };
        self.ring.write(wr.id, opcode, local, wr.remote, wr.signaled)
    }
    #[inline]
    fn ring_doorbell(&mut self, _: FromCore) -> Result<(), PostError> {
        let from = self.ring.rung;
        self.ring.ring()?;
        if self.taken != self.posted {
            self.deliver(from);
        }
        Ok(())
    }
    fn discard(&mut self, _: FromCore) {
        self.ring.next = self.ring.rung;
    }
    fn enqueue_recv(&mut self, wr: &RecvRequest<'_>) -> Result<(), PostError> {
        let len = wr.local.iter().map(|v| v.len()).sum();
        self.receives[self.posted & (SLOTS - 1)] = (wr.id, len);
        self.posted += 1;
        Ok(())
    }
}

/// A domain on the ring.
pub fn domain(imp: RingDomain) -> IbvDomain<RingDomain> {
    IbvDomain::new(imp, IbvDeviceInfo::new("ring0"))
}

/// Send and receive depths, and nothing else unusual.
pub fn depths(max_send_wr: u32, max_recv_wr: u32) -> IbvConfig {
    let mut config = IbvConfig::default();
    (config.max_send_wr, config.max_recv_wr) = (max_send_wr, max_recv_wr);
    config
}

/// A queue pair connected to itself, reporting to `cq`.
pub fn looped<D: IbvDomainImpl>(
    d: &IbvDomain<D>,
    cq: &Arc<IbvCq<D>>,
    config: IbvConfig,
) -> Connected<D::QueuePair> {
    let mut qp = d.create_queue_pair(config, cq, cq).expect("queue pair");
    let me = qp.get_qp_info().expect("info");
    qp.connect(&me).map_err(|(_, e)| e).expect("connect")
}

/// Everything that is in the queue now.
pub fn drain<D: IbvDomainImpl>(poller: &mut Poller<D>) -> Vec<IbvWc> {
    let (mut wcs, mut all) = ([IbvWc::default(); 16], Vec::new());
    loop {
        let n = poller.poll(&mut wcs).expect("poll");
        all.extend_from_slice(&wcs[..n]);
        if n < wcs.len() {
            return all;
        }
    }
}
