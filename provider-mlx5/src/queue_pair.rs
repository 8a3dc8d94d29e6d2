//! A reliable connection whose WQEs, doorbells and receives are this crate's own. libmlx5 creates it and
//! moves its state; it never posts to it.
#![allow(unsafe_code)]
//! # Safety
//! The rings' addresses come from `mlx5dv_init_obj` on the queue pair that `Device` keeps alive.

use crate::{
    completion_queue::{Grave, Mlx5Cq},
    domain::Mlx5Options,
    doorbell::{DoorbellRecord, RECEIVE, Register, SEND, udma_to_device_barrier},
    dv::{self, ThreadDomain},
    mapped::{Dense, Mapped},
    ring::{Flags, Kind, Positions, RecvRing, Segments, SendRing, Slots},
    wqe,
};
use ibv_core::{
    Error, ErrorKind, FromCore, IbvConfig, IbvPath, IbvQpInfo, IbvQueuePair, Payload, PostError,
    QpAttributes, QpCore, QpState, RecvRequest, Transport, WorkRequest,
    verbs::{Cq, LocalEndpoint, Pd, Qp, fork::HomeProcess, rc, state},
};
use ibv_sys as sys;
use std::{
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

/// The verbs objects, in the order in which they go.
#[derive(Debug)]
pub(crate) struct Device {
    home: HomeProcess,
    pub(crate) qp: Qp,
    _own_register: Option<ThreadDomain>,
}

/// The register's lock is needed only where libmlx5 gave it to two queue pairs.
#[derive(Debug)]
enum Bell {
    Own(Register),
    /// Its own, and single WQEs are copied into it.
    BlueFlame(Register),
    Shared(Arc<Mutex<Register>>),
}

/// A queue pair of an mlx5 device.
#[derive(Debug)]
pub struct Mlx5QueuePair {
    send: SendRing,
    bell: Bell,
    record: DoorbellRecord,
    rq: Mapped<Segments>,
    recv: RecvRing,
    /// The device takes receives; before, they wait in the ring.
    initialised: bool,
    /// It had requests, before it was reset.
    used: bool,
    endpoint: LocalEndpoint,
    config: IbvConfig,
    access: u32,
    slots: Arc<Slots>,
    queues: [Mlx5Cq; 2],
    /// `None` only inside `drop`.
    device: Option<Device>,
    /// Last: the device object is out of use before core returns its credits.
    core: QpCore,
}

/// What a queue pair is made from.
pub(crate) struct Ingredients<'a> {
    pub(crate) pd: &'a Arc<Pd>,
    pub(crate) config: &'a IbvConfig,
    pub(crate) queues: [&'a Mlx5Cq; 2],
    /// What the peer may do at all: `enum ibv_access_flags`.
    pub(crate) access: u32,
    pub(crate) options: Mlx5Options,
    /// Finds the lock of a register that is not its queue pair's own.
    pub(crate) shared_register: &'a dyn Fn(Register) -> Arc<Mutex<Register>>,
}

impl Mlx5QueuePair {
    /// Creates the queue pair and takes its rings. On `Err` nothing is left behind.
    pub(crate) fn create(from: &Ingredients<'_>, core: QpCore) -> Result<Self, Error> {
        dv::check_environment()?;
        let (config, [send_cq, recv_cq]) = (from.config, from.queues);
        let endpoint = LocalEndpoint::discover(from.pd.context(), config)?;
        let own_register = if from.options.shared_registers { None } else { ThreadDomain::alloc(from.pd) };
        let qp = dv::create_qp(from.pd, own_register.as_ref(), config, &send_cq.0.cq, &recv_cq.0.cq)?;
        let found = dv::queue_pair(&qp)?;
        let slots = Slots::new(qp.qp_num(), found.sq.wqe_cnt, found.rq.wqe_cnt);
        let rings = Rings::of(&found, config, &slots)?;
        let bell = match own_register {
            Some(_) if from.options.blue_flame && rings.register.half_size() > 0 => {
                Bell::BlueFlame(rings.register)
            }
            Some(_) => Bell::Own(rings.register),
            None => Bell::Shared((from.shared_register)(rings.register)),
        };
        for cq in from.queues {
            cq.0.enrol(&slots);
        }
        Ok(Self {
            send: rings.send,
            bell,
            record: rings.record,
            rq: rings.rq,
            recv: rings.recv,
            initialised: false,
            used: false,
            endpoint,
            config: config.clone(),
            access: from.access,
            slots,
            queues: from.queues.map(|cq| Mlx5Cq(cq.0.clone())),
            device: Some(Device { home: HomeProcess::this(), qp, _own_register: own_register }),
            core,
        })
    }

    /// The queue pair's number.
    pub fn qp_num(&self) -> u32 {
        self.slots.qpn
    }

    /// Whether its doorbell register is nobody else's, so that ringing takes no lock.
    pub fn has_own_register(&self) -> bool {
        !matches!(self.bell, Bell::Shared(_))
    }

    /// The verbs objects: the queue pair, its send queue, its receive queue.
    pub(crate) fn verbs(&self) -> Result<(&Qp, [&Cq; 2]), Error> {
        let device = self.device.as_ref().ok_or_else(gone)?;
        Ok((&device.qp, [&*self.queues[0].0.cq, &*self.queues[1].0.cq]))
    }

    pub(crate) fn positions(&self) -> Positions {
        self.send.positions()
    }

    /// Receives posted in all.
    pub(crate) fn receives(&self) -> u64 {
        self.recv.total()
    }

    /// Receives become visible when posted.
    pub(crate) fn takes_receives(&self) -> bool {
        self.initialised
    }

    /// The offset in the register that is written next.
    pub(crate) fn half(&self) -> usize {
        match &self.bell {
            Bell::Own(register) | Bell::BlueFlame(register) => register.half(),
            Bell::Shared(register) => register.lock().unwrap_or_else(PoisonError::into_inner).half(),
        }
    }

    fn qp(&mut self) -> Result<&mut Qp, Error> {
        self.device.as_mut().map(|d| &mut d.qp).ok_or_else(gone)
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::InvalidState, "modify_qp", "the queue pair is being destroyed")
}

/// A queue pair's rings as libmlx5 described them, checked.
struct Rings {
    send: SendRing,
    register: Register,
    record: DoorbellRecord,
    rq: Mapped<Segments>,
    recv: RecvRing,
}

impl Rings {
    fn of(found: &sys::mlx5dv_qp, config: &IbvConfig, slots: &Arc<Slots>) -> Result<Self, Error> {
        let refuse = |why: String| Error::new(ErrorKind::Unsupported, "create_qp", why);
        let missing = || refuse("libmlx5 reports no send ring, record or register".into());
        if found.sq.stride as usize != wqe::BLOCK {
            return Err(refuse(format!("a send queue in strides of {} bytes, not 64", found.sq.stride)));
        }
        let (slots_fit, stride) = (found.rq.wqe_cnt >= config.max_recv_wr, found.rq.stride);
        // Without receives there is no stride to speak of.
        let ring = found.rq.wqe_cnt == 0 || found.rq.wqe_cnt.is_power_of_two() && stride.is_multiple_of(16);
        let room = config.max_recv_wr == 0 || stride / 16 >= config.max_recv_sge;
        if !(slots_fit && ring && room) {
            let (count, stride) = (found.rq.wqe_cnt, found.rq.stride);
            return Err(refuse(format!(
                "{} receives asked for, got {count} of {stride} bytes",
                config.max_recv_wr
            )));
        }
        let (sq, bf) = (NonNull::new(found.sq.buf), NonNull::new(found.bf.reg));
        let (Some(sq), Some(bf), Some(record)) = (sq, bf, NonNull::new(found.dbrec)) else {
            return Err(missing());
        };
        let longest = wqe::longest(config.max_send_sge, config.max_inline);
        let blocks = found.sq.wqe_cnt;
        // SAFETY: libmlx5 describes a send ring of `wqe_cnt` 64-byte blocks of the live queue pair.
        let memory = unsafe { Dense::new(sq.cast(), blocks as usize) };
        let memory = memory.ok_or_else(|| refuse(format!("a send queue of {blocks} basic blocks")))?;
        let send =
            SendRing::new(memory, slots.clone(), blocks, config.max_send_wr, longest).map_err(refuse)?;
        let stride = found.rq.stride / 16;
        let segments = (found.rq.wqe_cnt * stride) as usize;
        let rq = NonNull::new(found.rq.buf).filter(|_| segments > 0);
        // SAFETY: libmlx5 describes memory of the live queue pair: a receive ring of `wqe_cnt` strides, an 8-byte record, a register of two halves of `bf.size`.
        unsafe {
            Ok(Self {
                send,
                register: Register::new(bf.cast(), found.bf.size),
                record: DoorbellRecord::new(record.cast()),
                rq: Mapped::new(
                    rq.unwrap_or(NonNull::<[u64; 2]>::dangling().cast()),
                    rq.map_or(0, |_| segments),
                ),
                recv: RecvRing::new(slots.clone(), stride),
            })
        }
    }
}

impl IbvQueuePair for Mlx5QueuePair {
    #[inline]
    fn core(&self) -> &QpCore {
        &self.core
    }

    #[inline]
    fn core_mut(&mut self, _: FromCore) -> &mut QpCore {
        &mut self.core
    }

    fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error> {
        Ok(self.endpoint.info(Transport::RC, self.slots.qpn, &self.config))
    }

    fn establish(&mut self, path: &IbvPath, _: FromCore) -> Result<(), Error> {
        let device = self.device.as_ref().map(|d| d.qp.pd().context().clone());
        let context =
            device.ok_or_else(|| Error::new(ErrorKind::InvalidState, "connect", "being destroyed"))?;
        let facts = self.endpoint.facts(&context)?;
        let (config, access) = (self.config.clone(), self.access);
        state::rc_to_init(self.qp()?, &config, access, &facts)?;
        self.initialised = true;
        // The record must stay zero in RESET; what was posted there counts from here on.
        self.publish_receives();
        state::rc_to_rts(self.qp()?, &config, path, &facts)
    }

    fn state(&mut self) -> Result<QpState, Error> {
        self.qp()?.state()
    }

    fn attributes(&mut self) -> Result<QpAttributes, Error> {
        let config = self.core.config().clone();
        state::rc_attributes(self.qp()?, &config)
    }

    fn enter_error(&mut self) -> Result<(), Error> {
        let at_init = rc::attr_at_init(&self.config, self.access);
        self.qp()?.fail(at_init)?;
        // From RESET it went through INIT: receives that waited flush, and later ones do too.
        self.initialised = true;
        self.publish_receives();
        Ok(())
    }

    fn can_reset(&self) -> bool {
        true
    }

    fn to_reset(&mut self, _: FromCore) -> Result<(), Error> {
        let device = self.device.as_mut().ok_or_else(gone)?;
        device.reset().map_err(|e| e.context(format!("queue pair {:#x} to RESET", self.slots.qpn)))?;
        self.used |= self.send.positions().rung > 0 || self.recv.total() > 0;
        // The device counts from zero again, and reads the records before anything is rung.
        self.send.reset();
        self.recv.reset();
        self.initialised = false;
        udma_to_device_barrier();
        self.record.store(SEND, 0);
        self.record.store(RECEIVE, 0);
        Ok(())
    }

    // The common case is short once the operation is known, which it is where this is called.
    #[inline(always)]
    fn enqueue(&mut self, wr: &WorkRequest<'_>) -> Result<(), PostError> {
        match (Kind::of(wr.op), wr.local) {
            (Some((kind, imm)), Payload::Sges([one])) => {
                let raddr = wqe::remote_address(wr.remote.addr, wr.remote.rkey);
                let data = wqe::data(one.addr(), one.len(), one.lkey());
                let fm_ce_se = wqe::flags(wr.signaled, wr.solicited, wr.fence);
                let flags = Flags { kind, fm_ce_se, imm };
                let words = [raddr[0], raddr[1], data[0], data[1]];
                self.send.build_block(wr.id, words, flags);
            }
            _ => self.send.build(wr),
        }
        Ok(())
    }

    #[inline]
    fn ring_doorbell(&mut self, _: FromCore) -> Result<(), PostError> {
        // Core rings only where something was built.
        match &mut self.bell {
            Bell::Own(register) => {
                let (count, control) = self.send.publish();
                register.ring(&self.record, count, control);
            }
            other => ring_rare(other, &self.record, &mut self.send),
        }
        Ok(())
    }

    fn discard(&mut self, _: FromCore) {
        self.send.discard();
    }

    fn enqueue_recv(&mut self, wr: &RecvRequest<'_>) -> Result<(), PostError> {
        self.recv.build(self.rq.items(), wr);
        if self.initialised {
            self.publish_receives();
        }
        Ok(())
    }
}

#[inline(never)]
fn ring_rare(bell: &mut Bell, record: &DoorbellRecord, send: &mut SendRing) {
    let copied = match bell {
        Bell::BlueFlame(register) => {
            let count = send.positions().next as u16;
            send.only(register.half_size()).map(|blocks| register.ring_copy(record, count, blocks))
        }
        _ => None,
    };
    let (count, control) = send.publish();
    match bell {
        _ if copied.is_some() => {}
        Bell::Own(register) | Bell::BlueFlame(register) => register.ring(record, count, control),
        // Register and flush inside one lock: between them another processor's write could pass.
        Bell::Shared(register) => {
            register.lock().unwrap_or_else(PoisonError::into_inner).ring(record, count, control);
        }
    }
}

impl Mlx5QueuePair {
    /// Receives have no register: a barrier and the record.
    fn publish_receives(&self) {
        udma_to_device_barrier();
        self.record.store(RECEIVE, self.recv.count().into());
    }
}

impl Drop for Mlx5QueuePair {
    /// To RESET, after which the device writes no completion of it, and into the graves of its queues; a
    /// queue pair that never had a request goes at once.
    fn drop(&mut self) {
        let Some(mut device) = self.device.take() else { return };
        if !device.home.is_here() {
            // The parent's; another thread of it may have held the queues' locks when this child was made.
            std::mem::forget(device);
            return;
        }
        if device.reset().is_err() {
            // The device may go on writing: its entries still have to find the slots, and the number must
            // never be anybody else's, nor its ids.
            self.core.undestroyed().set();
            std::mem::forget(device);
            return;
        }
        let [send, recv] = &self.queues;
        if !self.used && self.send.positions().rung == 0 && self.recv.total() == 0 {
            send.0.leave(&self.slots);
            recv.0.leave(&self.slots);
            return;
        }
        let grave = Arc::new(Grave { slots: self.slots.clone(), _device: device });
        if !Arc::ptr_eq(&send.0, &recv.0) {
            recv.0.dig(grave.clone());
        }
        send.0.dig(grave);
    }
}

impl Device {
    /// Tells the device to forget the queue pair's connection.
    fn reset(&mut self) -> Result<(), Error> {
        let mut attr =
            sys::ibv_qp_attr { qp_state: sys::ibv_qp_state(QpState::RESET.0), ..Default::default() };
        self.qp.modify(&mut attr, rc::QpAttrMask::STATE)
    }
}
