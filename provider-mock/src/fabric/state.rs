//! Everything a fabric knows, and the verbs on it: create, register, connect, post, poll, destroy. When
//! requests run is `engine.rs`'s.

use super::{
    config::FabricConfig,
    cq::{Armed, Cq, CqId},
    device::{Device, Qp, QpRef, event_name},
    engine::Engine,
    transfer::Regions,
    work::{Built, Sizes},
};
use crate::{
    faults::{FaultState, QUEUE_FULL, Verb},
    model,
    tap::Tap,
    trace::{Trace, What, Who},
};
use ibv_core::{
    Access, Error, ErrorKind, EventObject, EventType, Gid, IbvConfig, IbvEvent, IbvPath, IbvWc,
    PollCompletionError, PortState, PostError, QpState, RecvRequest, SharedBytes,
};
use std::{
    hash::{BuildHasher, RandomState},
    os::unix::net::UnixStream,
};

/// EIO: what a dead device answers.
const EIO: i32 = 5;

#[derive(Debug)]
pub(crate) struct State {
    pub config: FabricConfig,
    /// Tells this fabric from every other, of other processes too.
    pub id: u64,
    pub devices: Vec<Device>,
    pub regions: Regions,
    pub cqs: Vec<Option<Cq>>,
    pub engine: Engine,
    pub faults: FaultState,
    pub trace: Trace,
    pub tap: Option<Box<dyn Tap>>,
    next_pd: u32,
    next_serial: u64,
}

impl State {
    pub fn new(config: FabricConfig) -> Self {
        let id = RandomState::new().hash_one(0u8);
        let device = |i: u16| Device::new(gid(id, i, 0));
        Self {
            id,
            devices: (0..config.devices.clamp(1, 256) as u16).map(device).collect(),
            regions: Regions::default(),
            cqs: Vec::new(),
            engine: Engine::new(&config),
            faults: FaultState::default(),
            trace: Trace::new(config.trace),
            tap: None,
            next_pd: 1,
            next_serial: 1,
            config,
        }
    }

    pub fn note(&mut self, device: u16, qp: u32, what: What) {
        self.trace.note(self.engine.now, Who { device, qp }, what);
    }

    pub fn device(&mut self, index: u16) -> &mut Device {
        // Indices are made by `new` and checked by `Faults` through `has_device`.
        let last = self.devices.len() - 1;
        &mut self.devices[usize::from(index).min(last)]
    }

    fn has_device(&self, index: u16) -> bool {
        usize::from(index) < self.devices.len()
    }

    pub fn qp(&self, at: QpRef) -> Option<&Qp> {
        let slot = self.devices.get(usize::from(at.device))?.qps.get(at.index)?;
        slot.as_ref().filter(|qp| qp.serial == at.serial)
    }

    pub fn qp_mut(&mut self, at: QpRef) -> Option<&mut Qp> {
        let slot = self.devices.get_mut(usize::from(at.device))?.qps.get_mut(at.index)?;
        slot.as_mut().filter(|qp| qp.serial == at.serial)
    }

    /// Fails where a fault says so.
    pub fn fault(&mut self, verb: Verb, name: &'static str, device: u16) -> Result<(), Error> {
        let Some(errno) = self.faults.call(verb, device) else { return Ok(()) };
        self.note(device, 0, What::Fault(name));
        Err(Error::from_errno(name, errno).context(format!("a fault on mock{device}")))
    }

    /// The same, and where the device is dead.
    pub fn call(&mut self, verb: Verb, name: &'static str, device: u16) -> Result<(), Error> {
        self.fault(verb, name, device)?;
        if self.device(device).fatal && !matches!(verb, Verb::DeregMr | Verb::QueryQp) {
            return Err(Error::from_errno(name, EIO).context(format!("mock{device} is dead")));
        }
        Ok(())
    }

    /// Whether destroying works; where not, the object stays behind.
    fn destroys(&mut self, verb: Verb, device: u16, name: &'static str) -> bool {
        if self.faults.call(verb, device).is_some() {
            self.note(device, 0, What::Fault(name));
            self.device(device).counters.leaked += 1;
            return false;
        }
        true
    }

    pub fn open(&mut self, device: u16) -> Result<u32, Error> {
        self.call(Verb::Open, "open_device", device)?;
        self.next_pd += 1;
        Ok(self.next_pd - 1)
    }

    pub fn close_domain(&mut self, device: u16, pd: u32) {
        if !self.destroys(Verb::DeallocPd, device, "dealloc_pd") {
            return;
        }
        let qps = self.devices.iter().flat_map(|d| &d.qps).flatten().filter(|q| q.pd == pd && !q.zombie);
        let users = qps.count() + self.cqs.iter().flatten().filter(|c| c.pd == pd && !c.zombie).count();
        if users > 0 {
            self.device(device).counters.misuse += 1;
        }
    }

    pub fn create_cq(
        &mut self,
        device: u16,
        pd: u32,
        depth: u32,
        channel: Option<UnixStream>,
    ) -> Result<CqId, Error> {
        self.call(Verb::CreateCq, "create_cq", device)?;
        let free = self.cqs.iter().position(Option::is_none).unwrap_or(self.cqs.len());
        if free == self.cqs.len() {
            self.cqs.push(None);
        }
        self.cqs[free] = Some(Cq::new(pd, depth, channel));
        Ok(CqId(free))
    }

    pub fn destroy_cq(&mut self, device: u16, id: CqId) {
        let used = self.devices.iter().flat_map(|d| &d.qps).flatten();
        let used = used.filter(|q| !q.zombie && (q.send_cq == id || q.recv_cq == id)).count();
        if used > 0 {
            self.device(device).counters.misuse += 1;
        }
        if self.cqs[id.0].as_ref().is_some_and(|c| c.armed != Armed::No) {
            self.engine.armed -= 1;
        }
        if self.destroys(Verb::DestroyCq, device, "destroy_cq") {
            self.cqs[id.0] = None;
        } else if let Some(cq) = &mut self.cqs[id.0] {
            cq.zombie = true;
        }
    }

    /// Takes the lowest free number at once, as a device may.
    pub fn create_qp(
        &mut self,
        device: u16,
        pd: u32,
        config: &IbvConfig,
        cqs: (CqId, CqId),
        gid: Gid,
    ) -> Result<QpRef, Error> {
        self.call(Verb::CreateQp, "create_qp", device)?;
        let serial = self.next_serial;
        self.next_serial += 1;
        let qp = Qp::new(serial, pd, config, cqs, gid);
        self.engine.reserve(config.max_send_wr as usize);
        let qps = &mut self.device(device).qps;
        let index = qps.iter().position(Option::is_none).unwrap_or(qps.len());
        if index == qps.len() {
            qps.push(None);
        }
        qps[index] = Some(qp);
        Ok(QpRef { device, index, serial })
    }

    pub fn destroy_qp(&mut self, at: QpRef) {
        let Some(qp) = self.qp_mut(at) else { return };
        (qp.state, qp.zombie) = (QpState::RESET, true);
        self.cancel(at);
        if self.destroys(Verb::DestroyQp, at.device, "destroy_qp") {
            self.device(at.device).qps[at.index] = None;
        }
        self.wake_parked(at);
    }

    /// As created, under the same number and another serial number: what is on its way to it is lost.
    pub fn reset_qp(&mut self, at: QpRef) -> Result<QpRef, Error> {
        self.call(Verb::ModifyQp, "modify_qp", at.device)?;
        self.cancel(at);
        let serial = self.next_serial;
        self.next_serial += 1;
        let qp = self.qp_mut(at).ok_or_else(|| Error::from_errno("modify_qp", 22))?;
        *qp = Qp::new(serial, qp.pd, &qp.offered.clone(), (qp.send_cq, qp.recv_cq), qp.gid);
        self.note(at.device, at.num(), What::State(QpState::RESET));
        self.wake_parked(at);
        Ok(QpRef { serial, ..at })
    }

    pub fn establish(&mut self, at: QpRef, path: &IbvPath) -> Result<(), Error> {
        self.call(Verb::ModifyQp, "modify_qp", at.device)?;
        let qp = self.qp_mut(at).ok_or_else(|| Error::from_errno("modify_qp", 22))?;
        for to in [QpState::INIT, QpState::RTR, QpState::RTS] {
            if !model::may_change(qp.state, to) {
                let detail = format!("a queue pair in {} can not move to {to}; create another", qp.state);
                return Err(Error::new(ErrorKind::InvalidState, "modify_qp", detail));
            }
            qp.state = to;
        }
        qp.path = Some(*path);
        qp.config.path_mtu = path.path_mtu;
        qp.config.max_rd_atomic = path.rd_atomic;
        qp.config.max_dest_rd_atomic = path.dest_rd_atomic;
        self.note(at.device, at.num(), What::State(QpState::RTS));
        Ok(())
    }

    pub fn register(
        &mut self,
        device: u16,
        pd: u32,
        base: u64,
        bytes: SharedBytes,
        access: Access,
    ) -> Result<model::Region, Error> {
        self.call(Verb::RegMr, "reg_mr", device)?;
        Ok(self.regions.insert(pd, base, bytes, access))
    }

    pub fn deregister(&mut self, device: u16, lkey: u32) -> Result<(), Error> {
        self.call(Verb::DeregMr, "dereg_mr", device)?;
        let region = self.regions.remove(lkey).ok_or_else(|| Error::from_errno("dereg_mr", 22))?;
        if self.faults.late_access {
            self.late_access(device, region.rkey);
        }
        Ok(())
    }

    /// A late try of the device on something that is gone: refused, and counted.
    pub fn late_access(&mut self, device: u16, key: u32) {
        let counters = &mut self.device(device).counters;
        counters.refused += 1;
        counters.late_refused += 1;
        self.note(device, 0, What::Late { key });
    }

    pub fn enqueue_fault(&mut self, device: u16) -> Result<(), PostError> {
        post_error(self.faults.call(Verb::Enqueue, device))
    }

    /// Publishes what `built` holds, all or nothing.
    pub fn ring(&mut self, at: QpRef, built: &mut Built) -> Result<(), PostError> {
        post_error(self.faults.call(Verb::PostSend, at.device))?;
        if self.device(at.device).fatal {
            return Err(PostError::Device(EIO));
        }
        let seeded = !self.config.ordered();
        let qp = self.devices[usize::from(at.device)].qps[at.index].as_mut();
        let qp = qp.filter(|qp| qp.serial == at.serial).ok_or(PostError::Device(EIO))?;
        if qp.sq.room() < built.len() {
            return Err(PostError::QueueFull);
        }
        for (head, ranges, inline) in built.iter() {
            let seed = if seeded { self.engine.rng.next() } else { 0 };
            qp.sq.push(head, ranges, inline, seed);
        }
        let (n, state) = (built.len(), qp.state);
        built.clear();
        let per_ring = if self.config.max_batch == 0 { n } else { self.config.max_batch as usize };
        let counters = &mut self.device(at.device).counters;
        counters.requests += n as u64;
        counters.doorbells += n.div_ceil(per_ring.max(1)) as u64;
        self.note(at.device, at.num(), What::Rung(n as u32));
        if state == QpState::ERR {
            self.flush(at);
        } else {
            self.admit(at);
        }
        Ok(())
    }

    pub fn post_recv(&mut self, at: QpRef, wr: &RecvRequest<'_>) -> Result<(), PostError> {
        post_error(self.faults.call(Verb::PostRecv, at.device))?;
        if self.device(at.device).fatal {
            return Err(PostError::Device(EIO));
        }
        let qp = self.qp_mut(at).ok_or(PostError::Device(EIO))?;
        qp.rq.post(wr)?;
        let state = qp.state;
        self.device(at.device).counters.receives += 1;
        if state == QpState::ERR {
            self.flush(at);
        } else {
            self.wake_parked(at);
        }
        Ok(())
    }

    pub fn poll(&mut self, id: CqId, device: u16, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        if let Some(errno) = self.faults.call(Verb::PollCq, device) {
            return Err(PollCompletionError::Device(errno));
        }
        let cq = self.cqs.get_mut(id.0).and_then(Option::as_mut);
        cq.ok_or(PollCompletionError::Device(EIO))?.poll(out)
    }

    pub fn raise(&mut self, device: u16, kind: EventType, object: EventObject) {
        self.note(device, 0, What::Fault(event_name(kind)));
        self.device(device).raise(IbvEvent { kind, object });
    }

    pub fn set_gone(&mut self, device: u16, gone: bool) {
        if self.has_device(device) {
            self.device(device).gone = gone;
        }
    }

    pub fn set_port(&mut self, device: u16, up: bool) {
        if !self.has_device(device) {
            return;
        }
        let state = if up { PortState::ACTIVE } else { PortState::DOWN };
        if std::mem::replace(&mut self.device(device).port, state) != state {
            let kind = if up { EventType::PORT_ACTIVE } else { EventType::PORT_ERR };
            self.raise(device, kind, EventObject::Port(1));
        }
    }

    pub fn change_gid(&mut self, device: u16) {
        if self.has_device(device) {
            let old = self.device(device).gid;
            self.device(device).gid = gid(self.id, device, old.0[5].wrapping_add(1));
            self.raise(device, EventType::GID_CHANGE, EventObject::Port(1));
        }
    }

    pub fn device_fatal(&mut self, device: u16) {
        if !self.has_device(device) || std::mem::replace(&mut self.device(device).fatal, true) {
            return;
        }
        for index in 0..self.device(device).qps.len() {
            if let Some(at) = self.qp_at(device, index) {
                self.fail(at, ibv_core::WcStatus::FATAL_ERR);
            }
        }
        self.raise(device, EventType::DEVICE_FATAL, EventObject::Device);
    }

    pub fn queue_pair_fatal(&mut self, device: u16, qp_num: u32) {
        let index = (qp_num as usize).wrapping_sub(1);
        if let Some(at) = self.qp_at(device, index) {
            self.enter_error(at);
            self.raise(device, EventType::QP_FATAL, EventObject::QueuePair(qp_num));
        }
    }

    /// The live queue pair in that place.
    pub fn qp_at(&self, device: u16, index: usize) -> Option<QpRef> {
        let qp = self.devices.get(usize::from(device))?.qps.get(index)?.as_ref()?;
        (!qp.zombie).then_some(QpRef { device, index, serial: qp.serial })
    }
}

impl QpRef {
    /// The number that it goes by on its device.
    pub fn num(self) -> u32 {
        self.index as u32 + 1
    }
}

impl Sizes {
    pub fn of(config: &IbvConfig) -> Self {
        Self {
            depth: config.max_send_wr as usize,
            ranges: config.max_send_sge as usize,
            inline: config.max_inline as usize,
        }
    }
}

fn post_error(errno: Option<i32>) -> Result<(), PostError> {
    match errno {
        None => Ok(()),
        Some(QUEUE_FULL) => Err(PostError::QueueFull),
        Some(errno) => Err(PostError::Device(errno)),
    }
}

/// `fdmo:ck`, a generation, the device, the fabric: unique in this process and every other.
pub(crate) fn gid(fabric: u64, device: u16, generation: u8) -> Gid {
    let mut bytes = *b"\xfdmock\0\0\0\0\0\0\0\0\0\0\0";
    bytes[5] = generation;
    bytes[6..8].copy_from_slice(&device.to_be_bytes());
    bytes[8..].copy_from_slice(&fabric.to_be_bytes());
    Gid(bytes)
}

/// The fabric and the device that a GID names, if it is a mock's.
pub(crate) fn parse_gid(gid: Gid) -> Option<(u64, u16)> {
    let (head, fabric) = gid.0.split_first_chunk::<8>()?;
    let fabric = u64::from_be_bytes(fabric.try_into().ok()?);
    (head[..5] == *b"\xfdmock").then(|| (fabric, u16::from_be_bytes([head[6], head[7]])))
}
