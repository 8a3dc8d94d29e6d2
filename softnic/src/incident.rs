//! What befalls a device of itself: ports that go down and come back, addresses that change, devices and their objects that
//! fail. By order of a test, or at times that the description names. What gets lost on the way is in [`crate::fault`].

use serde::Deserialize;

use crate::description::{DeviceDescription, GidEntry};
use crate::host::Host;
use crate::mlx5::async_event;
use crate::mlx5::port::Port;
use crate::mlx5::transition::QpState;
use crate::uverbs::Errno;
use crate::uverbs::abi::AsyncEvent;

/// An incident. Ports count from 1.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Incident {
    /// A port goes down: it carries nothing, and says so.
    PortDown(u32),
    /// A port comes up again.
    PortUp(u32),
    /// An entry of a port's address table becomes another one.
    GidChange(GidChange),
    /// The device fails for good: commands fail, but for those that take away; nothing is sent or answered.
    DeviceFatal,
    /// The queue pair of this number fails.
    QueuePairFatal(u32),
    /// The completion queue of this number fails, and its queue pairs with it.
    CompletionQueueError(u32),
}

/// Another address.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GidChange {
    /// The port.
    pub port: u32,
    /// Index in its table.
    pub index: usize,
    /// The new entry.
    pub entry: GidEntry,
}

/// An incident at a time of the device's clock.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduled {
    /// Microseconds since the machine started.
    pub at: u64,
    /// The device's name.
    pub device: String,
    /// What happens.
    pub what: Incident,
}

impl Scheduled {
    /// When, in nanoseconds.
    pub(crate) fn time(&self) -> u64 {
        self.at.saturating_mul(1000)
    }

    /// Whether there is such a device, with such a port; else a message that names what there is not.
    pub(crate) fn check(&self, devices: &[DeviceDescription]) -> Result<(), String> {
        let (at, name) = (self.at, &self.device);
        let Some(device) = devices.iter().find(|d| d.name == *name) else {
            return Err(format!("event at {at}: there is no device {name:?}"));
        };
        let port = match &self.what {
            Incident::PortDown(port) | Incident::PortUp(port) => *port,
            Incident::GidChange(change) => change.port,
            _ => return Ok(()),
        };
        if port == 0 || port as usize > device.ports.len() {
            return Err(format!("event at {at}: device {name} has no port {port}"));
        }
        Ok(())
    }
}

impl Host {
    /// Lets an incident befall a device (its index).
    pub fn befall(&mut self, device: usize, incident: &Incident) {
        match incident {
            Incident::PortDown(port) => self.set_port(device, *port, false),
            Incident::PortUp(port) => self.set_port(device, *port, true),
            Incident::GidChange(change) => self.change_gid(device, change),
            Incident::DeviceFatal => self.fail_device(device),
            Incident::QueuePairFatal(qpn) => self.fail_queue_pair(*qpn),
            Incident::CompletionQueueError(cqn) => self.fail_completion_queue(*cqn),
        }
    }

    /// Lets the incidents befall whose time has come; true if there were any.
    pub(crate) fn run_schedule(&mut self) -> bool {
        let now = self.engine.shared.now;
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.schedule).into_iter().partition(|s| s.time() <= now);
        self.schedule = later;
        for scheduled in &due {
            let device = self.description.devices.iter().position(|d| d.name == scheduled.device);
            if let Some(device) = device {
                self.befall(device, &scheduled.what);
            }
        }
        !due.is_empty()
    }

    fn change_gid(&mut self, device: usize, change: &GidChange) {
        let number = change.port;
        let Some(described) = self.described_port(device, number) else { return };
        let Some(entry) = described.gids.get_mut(change.index) else { return };
        *entry = change.entry.clone();
        let port = Port::of(described);
        for qp in self.engine.qps.values_mut().filter(|q| q.device == device) {
            if u32::from(qp.attr.port) == number {
                qp.port = port.clone();
            }
        }
        self.tell_device(device, u64::from(number), async_event::GID_CHANGE);
    }

    fn fail_device(&mut self, device: usize) {
        self.failed.insert(device);
        for qp in self.engine.qps.values_mut().filter(|q| q.device == device) {
            qp.freeze();
        }
        self.efa.fail_device(device, &mut self.engine.shared);
        self.tell_device(device, 0, async_event::DEVICE_FATAL);
    }

    fn fail_queue_pair(&mut self, qpn: u32) {
        let shared = &mut self.engine.shared;
        if let Some(qp) = self.engine.qps.get_mut(&qpn) {
            qp.set_state(QpState::Error, shared);
            qp.report(async_event::QP_FATAL, shared);
        }
    }

    fn fail_completion_queue(&mut self, cqn: u32) {
        let shared = &mut self.engine.shared;
        if let Some(cq) = shared.cqs.get_mut(cqn).filter(|cq| !cq.dead) {
            cq.dead = true;
            cq.async_events += 1;
            shared.async_events.push((cq.context, cq.user_handle, async_event::CQ_ERR));
            shared.overrun = true;
            self.engine.kill_overrun();
        }
    }

    /// A device that failed refuses what does not take away (`dealloc`, `dereg`, `destroy`).
    pub(crate) fn check_alive(&self, context: u32) -> Result<(), Errno> {
        let failed = self.contexts.get(&context).is_some_and(|c| self.failed.contains(&c.device));
        if failed { Err(Errno::IO) } else { Ok(()) }
    }

    /// Tells every program that has the device open.
    pub(crate) fn tell_device(&mut self, device: usize, element: u64, event_type: u32) {
        let event = AsyncEvent { element, event_type, reserved: 0 };
        for context in self.contexts.values_mut().filter(|c| c.device == device) {
            if let Some(channel) = &mut context.async_channel {
                channel.send(bytemuck::bytes_of(&event));
            }
        }
    }
}
