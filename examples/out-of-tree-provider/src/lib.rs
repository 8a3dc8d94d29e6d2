//! `provider-shm`: an RDMA provider that moves bytes between regions registered in one process, on the
//! processor of whoever rings the doorbell. Small, complete and certified: a provider to copy. Its device
//! is `fabric.rs`; what a provider has to write for any device is `domain.rs` and `queue_pair.rs`.
#![deny(unsafe_code)]

mod domain;
mod fabric;
mod queue_pair;

pub use domain::{ShmCq, ShmDomain, ShmPoller, ShmRegistration};
pub use fabric::Fabric;
pub use queue_pair::ShmQueuePair;

use ibv_core::{DeviceKind, Error, ErrorKind, Gid, GidEntry, GidType, IbvDeviceInfo, IbvPort, Provider};

const DEVICES: [&str; 2] = ["shm0", "shm1"];

/// The one port of each; its GID table has one entry, and its partition key table too.
pub(crate) const PORT: u8 = 1;

/// Two devices on one fabric. Providers that are to reach each other are clones of one.
#[derive(Clone, Debug, Default)]
pub struct ShmProvider(Fabric);

impl ShmProvider {
    /// Devices on `fabric`.
    pub fn new(fabric: Fabric) -> Self {
        Self(fabric)
    }
}

impl Provider for ShmProvider {
    type Domain = ShmDomain;

    fn name(&self) -> &'static str {
        "shm"
    }

    fn devices(&self) -> Result<Vec<IbvDeviceInfo>, Error> {
        Ok(DEVICES.map(|name| describe(name, self.0.gid())).into())
    }

    fn open(&self, device: &IbvDeviceInfo) -> Result<ShmDomain, Error> {
        if !DEVICES.contains(&device.name.as_str()) {
            let detail = format!("no device {}; this provider has {}", device.name, DEVICES.join(", "));
            return Err(Error::new(ErrorKind::NoDevice, "open", detail));
        }
        Ok(ShmDomain::new(&self.0))
    }
}

/// `SoftwareUser`, because a report must never take this for a network adapter.
fn describe(name: &str, gid: Gid) -> IbvDeviceInfo {
    let mut info = IbvDeviceInfo::new(name);
    info.kind = DeviceKind::SoftwareUser;
    info.fw_ver = env!("CARGO_PKG_VERSION").into();
    let mut port = IbvPort::new(PORT);
    port.gids = vec![GidEntry { index: 0, gid, gid_type: GidType::None, netdev: None }];
    info.ports = vec![port];
    info
}
