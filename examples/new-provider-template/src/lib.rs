//! `provider-{{name}}`: an RDMA provider. This file lists devices and opens them; what can be made on an
//! open one is in `domain.rs`, what a queue pair does in `queue_pair.rs`.
//!
//! So far it is a device without a data path, and says so: `Caps` offers no operation. Memory is
//! registered, queue pairs are created, connected, closed and flushed, and the suite checks all that; it
//! skips every case that needs an operation until `domain.rs` claims it.
#![deny(unsafe_code)]

mod domain;
mod queue_pair;

pub use domain::{{{Camel}}Cq, {{Camel}}Domain, {{Camel}}Poller, {{Camel}}Registration};
pub use queue_pair::{{Camel}}QueuePair;

use ibv_core::{DeviceKind, Error, ErrorKind, IbvDeviceInfo, IbvPort, Provider};

/// The devices of {{name}}.
#[derive(Clone, Debug, Default)]
pub struct {{Camel}}Provider;

impl Provider for {{Camel}}Provider {
    type Domain = {{Camel}}Domain;

    fn name(&self) -> &'static str {
        "{{name}}"
    }

    /// Where no device is present: `Ok` of nothing. Where nobody can look, such as for want of a library:
    /// `Err`, of kind `LibraryMissing`, that says what was tried.
    fn devices(&self) -> Result<Vec<IbvDeviceInfo>, Error> {
        Ok(vec![describe("{{name}}0")])
    }

    fn open(&self, device: &IbvDeviceInfo) -> Result<{{Camel}}Domain, Error> {
        if self.devices()?.iter().all(|d| d.name != device.name) {
            return Err(Error::new(ErrorKind::NoDevice, "open", format!("no device {}", device.name)));
        }
        Ok({{Camel}}Domain::new())
    }
}

/// A software device, until there is another: reports never take it for hardware.
fn describe(name: &str) -> IbvDeviceInfo {
    let mut info = IbvDeviceInfo::new(name);
    info.kind = DeviceKind::SoftwareUser;
    info.ports = vec![IbvPort::new(1)];
    info
}
