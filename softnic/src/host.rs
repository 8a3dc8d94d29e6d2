//! The machine: its devices, the contexts that programs opened, and the engine behind them. One per process, under one lock.
//! Where the lock is and who calls is in [`crate::drive`] and [`crate::preload`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{IntoRawFd, RawFd};

use crate::description::{Description, DeviceDescription, PortDescription};
use crate::drive::Choices;
use crate::efa;
use crate::fabric::Fabric;
use crate::incident::Scheduled;
use crate::mlx5::qp::async_event;
use crate::mlx5::{self, Engine};
use crate::numbered::Numbered;
use crate::uverbs::Errno;
use crate::uverbs::abi::AsyncEvent;
use crate::uverbs::ah::AddressHandle;
use crate::uverbs::context::{Context, DeviceFile};

/// One thing that a machine can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// Deliver a packet, or what an mlx5 device does.
    Mlx5(mlx5::Unit),
    /// What an EFA device does.
    Efa(efa::Unit),
}

/// The software machine.
#[derive(Debug)]
pub struct Host {
    /// What devices there are.
    pub description: Description,
    /// Queue pairs and completion queues of mlx5; and what all kinds share: regions, fabric, clock, trace.
    pub engine: Engine,
    /// Queue pairs and completion queues of EFA.
    pub efa: efa::Engine,
    pub(crate) contexts: BTreeMap<u32, Context>,
    /// Those with register pages.
    registered: BTreeSet<u32>,
    /// Protection domains and the contexts that they belong to.
    pub(crate) domains: Numbered<u32>,
    /// Address handles by their numbers.
    pub(crate) addresses: Numbered<AddressHandle>,
    /// Incidents to come.
    pub(crate) schedule: Vec<Scheduled>,
    /// Devices that failed.
    pub(crate) failed: BTreeSet<usize>,
    /// Whether writes of EFA's doorbells are counted, in contexts that are opened from now on.
    pub(crate) count_doorbells: bool,
    descriptors: BTreeMap<RawFd, u32>,
    next_context: u32,
    /// The context and page that were looked at last.
    scanned: (u32, usize),
}

/// Register pages that are looked at in a step while there is other work: each costs a good part of a request.
const SHARE: usize = 2;

fn scan_context(engine: &mut Engine, id: u32, context: &Context) -> bool {
    match &context.file {
        DeviceFile::Registers(pages) => engine.scan(id, pages),
        _ => false,
    }
}

impl Host {
    /// A machine with these devices on this fabric.
    pub fn new(description: Description, fabric: Fabric) -> Self {
        let mut engine = Engine::default();
        engine.shared.fabric = fabric;
        let efa = efa::Engine::new(&description);
        Self {
            schedule: description.events.clone(),
            failed: BTreeSet::new(),
            count_doorbells: false,
            description,
            engine,
            efa,
            contexts: BTreeMap::new(),
            registered: BTreeSet::new(),
            domains: Numbered::default(),
            addresses: Numbered::default(),
            descriptors: BTreeMap::new(),
            next_context: 1,
            scanned: (0, 0),
        }
    }

    /// Opens the device file of `device`; answers the program's descriptor.
    pub fn open(&mut self, device: usize) -> io::Result<RawFd> {
        if device >= self.description.devices.len() {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        let mut context = Context::new(device, self.description.devices[device].kind)?;
        let strict = self.engine.shared.trace.strict && self.engine.shared.trace.exact;
        match &mut context.file {
            DeviceFile::Registers(pages) => pages.strict = strict,
            DeviceFile::Memory(memory) => memory.counting = self.count_doorbells,
        }
        let fd = context.descriptor()?.into_raw_fd();
        let id = self.next_context;
        self.next_context += 1;
        if matches!(context.file, DeviceFile::Registers(_)) {
            self.registered.insert(id);
        }
        self.contexts.insert(id, context);
        self.descriptors.insert(fd, id);
        crate::log::debug(|| format!("open {} as descriptor {fd}", self.description.devices[device].name));
        Ok(fd)
    }

    /// The context of a descriptor.
    pub fn context_of(&self, fd: RawFd) -> Option<u32> {
        self.descriptors.get(&fd).copied()
    }

    /// The index of a descriptor's device.
    pub fn device_of(&self, fd: RawFd) -> Option<usize> {
        self.context_of(fd).and_then(|id| self.contexts.get(&id)).map(|c| c.device)
    }

    /// Whether what a descriptor has at this offset is a page of counted doorbells.
    pub(crate) fn is_counted(&self, fd: RawFd, offset: u64) -> bool {
        let context = self.context_of(fd).and_then(|id| self.contexts.get(&id));
        matches!(context.map(|c| &c.file), Some(DeviceFile::Memory(m)) if m.is_counted(offset))
    }

    /// The program closed its descriptor: everything that it made goes.
    pub fn close(&mut self, fd: RawFd) {
        let Some(id) = self.descriptors.remove(&fd) else { return };
        self.engine.qps.retain(|_, qp| qp.context != id);
        let cqs: Vec<u32> =
            self.engine.shared.cqs.iter().filter(|(_, c)| c.context == id).map(|(cqn, _)| *cqn).collect();
        for cqn in cqs {
            self.engine.shared.cqs.remove(cqn);
        }
        self.engine.shared.srqs.retain(|srq| srq.context != id);
        self.close_efa(id);
        self.engine.shared.regions.remove_context(id);
        self.domains.retain(|context| *context != id);
        self.addresses.retain(|handle| handle.context != id);
        self.registered.remove(&id);
        self.contexts.remove(&id);
    }

    /// A context.
    pub(crate) fn context(&mut self, id: u32) -> Result<&mut Context, Errno> {
        self.contexts.get_mut(&id).ok_or(Errno::IO)
    }

    /// The description of a context's device.
    pub(crate) fn device(&self, id: u32) -> Result<&DeviceDescription, Errno> {
        let context = self.contexts.get(&id).ok_or(Errno::IO)?;
        self.description.devices.get(context.device).ok_or(Errno::IO)
    }

    /// Looks at all register pages and at the session's sockets; true if anything was there.
    pub fn scan(&mut self) -> bool {
        let mut any = false;
        for (id, context) in &mut self.contexts {
            any |= scan_context(&mut self.engine, *id, context);
            context.flush_channels();
        }
        any |= self.efa.scan(&mut self.engine.shared);
        any | self.engine.shared.fabric.pump(self.engine.shared.now)
    }

    /// Looks at the register pages of a context: what was rung before a command is seen before it.
    pub(crate) fn see_doorbells(&mut self, id: u32) {
        if let Some(context) = self.contexts.get(&id) {
            scan_context(&mut self.engine, id, context);
        }
    }

    /// Looks at a few register pages and doorbells, in turn, and at the session's sockets.
    pub fn scan_some(&mut self) {
        for _ in 0..SHARE {
            let Some((id, page)) = self.next_page() else { break };
            self.scanned = (id, page);
            if let Some(DeviceFile::Registers(pages)) = self.contexts.get(&id).map(|c| &c.file) {
                self.engine.scan_page(id, pages, page);
            }
        }
        self.efa.scan_some(&mut self.engine.shared);
        self.engine.shared.fabric.pump(self.engine.shared.now);
    }

    /// The page after the one that was looked at last: of its context, of the next ones, or the first of all.
    fn next_page(&self) -> Option<(u32, usize)> {
        let (context, page) = self.scanned;
        let first = |id: &u32, from| match &self.contexts.get(id)?.file {
            DeviceFile::Registers(pages) => pages.in_use_from(from).map(|page| (*id, page)),
            DeviceFile::Memory(_) => None,
        };
        let mut here = self.registered.range(context..=context).filter_map(|id| first(id, page + 1));
        let mut later = self.registered.range(context + 1..).filter_map(|id| first(id, 0));
        let mut any = self.registered.iter().filter_map(|id| first(id, 0));
        here.next().or_else(|| later.next()).or_else(|| any.next())
    }

    /// Everything that could be done now, as far as anybody gave a sign of it.
    pub fn units(&mut self) -> Vec<Unit> {
        self.engine.settle();
        self.efa.settle();
        let mlx5 = (0..self.engine.count()).filter_map(|at| self.engine.unit(at)).map(Unit::Mlx5);
        let efa = (0..self.efa.count()).filter_map(|at| self.efa.unit(at)).map(Unit::Efa);
        mlx5.chain(efa).collect()
    }

    /// One of the units, by choice.
    pub fn choose(&mut self, choices: &mut Choices) -> Option<Unit> {
        self.engine.settle();
        self.efa.settle();
        let (mlx5, efa) = (self.engine.count(), self.efa.count());
        if mlx5 + efa == 0 {
            return None;
        }
        let at = choices.below(mlx5 + efa);
        match at.checked_sub(mlx5) {
            Some(at) => self.efa.unit(at).map(Unit::Efa),
            None => self.engine.unit(at).map(Unit::Mlx5),
        }
    }

    /// Has everything looked at again: some things change without a sign.
    pub fn look_everywhere(&mut self) {
        self.engine.qps.touch_all();
    }

    /// Does one unit.
    pub fn perform(&mut self, unit: Unit) {
        let shared = &mut self.engine.shared;
        match unit {
            Unit::Mlx5(mlx5::Unit::Deliver(source, target)) if efa::message::qpn(target).is_some() => {
                if let Some(packet) = shared.fabric.take((source, target)) {
                    self.efa.deliver(packet, shared);
                }
            }
            Unit::Mlx5(unit) => self.engine.perform(unit),
            Unit::Efa(unit) => self.efa.perform(unit, shared),
        }
    }

    /// Runs timers that are due at the present time; true if there were any.
    pub fn run_timers(&mut self) -> bool {
        self.run_schedule() | self.engine.run_timers() | self.efa.run_timers(&mut self.engine.shared)
    }

    /// When something is due that only time brings, in nanoseconds.
    pub fn next_time(&self) -> Option<u64> {
        let scheduled = self.schedule.iter().map(Scheduled::time).min();
        [self.engine.next_time(), self.efa.next_time(), scheduled].into_iter().flatten().min()
    }

    /// Sends the events that are due; true if there were any.
    pub fn send_events(&mut self) -> bool {
        let mut any = false;
        let now = self.engine.shared.now;
        let contexts = &mut self.contexts;
        self.engine.shared.cqs.tell_armed(|cq| {
            any |= cq.is_patient();
            if !cq.take_event(now) {
                return;
            }
            any = true;
            let context = contexts.get_mut(&cq.context);
            if let Some(channel) = cq.channel.and_then(|fd| context.and_then(|c| c.channel(fd))) {
                channel.send(&cq.user_handle.to_ne_bytes());
                cq.events += 1;
            }
        });
        any |= self.send_efa_events();
        for (context, element, event_type) in std::mem::take(&mut self.engine.shared.async_events) {
            any = true;
            let channel = self.contexts.get_mut(&context).and_then(|c| c.async_channel.as_mut());
            if let Some(channel) = channel {
                channel.send(bytemuck::bytes_of(&AsyncEvent { element, event_type, reserved: 0 }));
            }
        }
        if any {
            self.contexts.values_mut().for_each(Context::flush_channels);
        }
        any
    }

    /// Takes a port (its number, from 1) down or up: what it carries, what it says of itself, and the event that tells.
    pub fn set_port(&mut self, device: usize, number: u32, active: bool) {
        let Some(port) = self.described_port(device, number) else { return };
        port.active = active;
        let addresses = port.addresses();
        let faults = &mut self.engine.shared.faults;
        if active {
            faults.start_port(addresses)
        } else {
            faults.stop_port(addresses)
        }
        let event_type = if active { async_event::PORT_ACTIVE } else { async_event::PORT_ERR };
        self.tell_device(device, u64::from(number), event_type);
    }

    /// The description of a port, to change it.
    pub(crate) fn described_port(&mut self, device: usize, number: u32) -> Option<&mut PortDescription> {
        let index = (number as usize).checked_sub(1)?;
        self.description.devices.get_mut(device)?.ports.get_mut(index)
    }
}
