//! Faults to order: what a device does wrong on purpose, and when. Counting only; the devices ask and act.

use crate::fabric::packet::{Address, Packet};

/// A fault. `nth` counts from when it was injected; 0 is the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The nth request packet is lost.
    DropRequest {
        /// Which one.
        nth: u64,
    },
    /// The nth reply packet is lost.
    DropReply {
        /// Which one.
        nth: u64,
    },
    /// The nth packet is held back.
    Delay {
        /// Which one.
        nth: u64,
        /// For how long, in nanoseconds of the device's clock.
        ns: u64,
    },
    /// The nth command from now fails.
    FailCommand {
        /// Which one.
        nth: u64,
        /// With this errno.
        errno: i32,
    },
    /// The payload of the nth WRITE reaches memory only after `steps` more steps, though it is acknowledged at once.
    LateDma {
        /// Which one.
        nth: u64,
        /// How late.
        steps: u32,
    },
    /// The nth completion entry carries an opcode that no device writes.
    PoisonCqe {
        /// Which one.
        nth: u64,
    },
}

/// The ordered faults and their counters.
#[derive(Debug, Default)]
pub struct Faults {
    list: Vec<Fault>,
    /// Addresses of stopped ports.
    stopped: Vec<Address>,
}

impl Faults {
    /// Orders a fault.
    pub fn inject(&mut self, fault: Fault) {
        self.list.push(fault);
    }

    /// Forgets all faults that were ordered; stopped ports stay stopped.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// The port of these addresses carries nothing, until [`Faults::start_port`].
    pub fn stop_port(&mut self, addresses: impl IntoIterator<Item = Address>) {
        self.stopped.extend(addresses);
    }

    /// A stopped port carries packets again.
    pub fn start_port(&mut self, addresses: impl IntoIterator<Item = Address>) {
        for address in addresses {
            self.stopped.retain(|a| *a != address);
        }
    }

    /// What happens to a packet: `None` if it is lost, else by how many nanoseconds it is late.
    pub fn on_packet(&mut self, packet: &Packet) -> Option<u64> {
        if self.list.is_empty() && self.stopped.is_empty() {
            return Some(0);
        }
        if self.is_stopped(&packet.from) || self.is_stopped(&packet.to) {
            return None;
        }
        let request = packet.is_request();
        let lost = self.count(|f| match f {
            Fault::DropRequest { nth } if request => Some(nth),
            Fault::DropReply { nth } if !request => Some(nth),
            _ => None,
        });
        if lost.is_some() {
            return None;
        }
        match self.count(|f| if let Fault::Delay { nth, .. } = f { Some(nth) } else { None }) {
            Some(Fault::Delay { ns, .. }) => Some(ns),
            _ => Some(0),
        }
    }

    /// The errno with which the present command fails.
    pub fn on_command(&mut self) -> Option<i32> {
        match self.count(|f| if let Fault::FailCommand { nth, .. } = f { Some(nth) } else { None }) {
            Some(Fault::FailCommand { errno, .. }) => Some(errno),
            _ => None,
        }
    }

    /// How many steps the present WRITE's payload is late.
    pub fn on_write(&mut self) -> Option<u32> {
        match self.count(|f| if let Fault::LateDma { nth, .. } = f { Some(nth) } else { None }) {
            Some(Fault::LateDma { steps, .. }) => Some(steps),
            _ => None,
        }
    }

    /// Whether the present completion entry is spoilt.
    pub fn on_cqe(&mut self) -> bool {
        self.count(|f| if let Fault::PoisonCqe { nth } = f { Some(nth) } else { None }).is_some()
    }

    /// Whether the port with this address is stopped.
    pub fn is_stopped(&self, port: &Address) -> bool {
        let same = |a: &Address| a.lid != 0 && a.lid == port.lid || a.gid.is_some() && a.gid == port.gid;
        self.stopped.iter().any(same)
    }

    /// Counts the faults that `pick` answers a counter for; takes out the first that is due.
    fn count(&mut self, mut pick: impl FnMut(&mut Fault) -> Option<&mut u64>) -> Option<Fault> {
        let mut due = None;
        for (i, fault) in self.list.iter_mut().enumerate() {
            match pick(fault) {
                Some(0) if due.is_none() => due = Some(i),
                Some(n) => *n = n.saturating_sub(1),
                None => {}
            }
        }
        due.map(|i| self.list.remove(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_one_is_hit_and_only_once() {
        let mut faults = Faults::default();
        faults.inject(Fault::PoisonCqe { nth: 2 });
        faults.inject(Fault::FailCommand { nth: 0, errno: 12 });
        let hits: Vec<bool> = (0..5).map(|_| faults.on_cqe()).collect();
        assert_eq!(hits, [false, false, true, false, false]);
        assert_eq!((faults.on_command(), faults.on_command()), (Some(12), None));
    }
}
