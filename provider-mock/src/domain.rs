//! The provider, its domains, completion queues and registrations: thin faces over the fabric.
#![allow(unsafe_code)]
//! # Safety
//! Memory is touched in one way: through the `SharedBytes` that `register` makes of exactly the region's
//! range, in the fabric's key table, under the fabric's lock. `deregister` takes it out of that table
//! under the same lock, so once it has returned no access is under way and none follows.

use crate::{
    Fabric, Verb,
    fabric::{self, CqId},
    queue_pair::MockQueuePair,
};
use ibv_core::{
    Access, Caps, CompletionQueue, CqConfig, DeviceKind, Error, ErrorKind, EventSource, Gid, GidChoice,
    GidEntry, GidType, IbvConfig, IbvDeviceInfo, IbvDomainImpl, IbvPort, IbvWc, PollCompletionError,
    Provider, QpCore, Registration, SharedBytes,
};
use std::{
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    ptr::NonNull,
    sync::Arc,
};

/// Partition key table entries of a mock port.
const PKEYS: u16 = 16;

/// The provider of a fabric's devices.
#[derive(Clone, Debug, Default)]
pub struct MockProvider(Fabric);

impl MockProvider {
    /// The devices of `fabric`.
    pub fn new(fabric: Fabric) -> Self {
        Self(fabric)
    }

    /// The fabric behind the devices.
    pub fn fabric(&self) -> &Fabric {
        &self.0
    }
}

impl Provider for MockProvider {
    type Domain = MockDomain;

    fn name(&self) -> &'static str {
        "mock"
    }

    fn devices(&self) -> Result<Vec<IbvDeviceInfo>, Error> {
        let mut state = self.0.lock();
        state.fault(Verb::Devices, "get_device_list", 0)?;
        Ok((0u16..).zip(&state.devices).map(|(i, d)| describe(i, d)).collect())
    }

    fn open(&self, device: &IbvDeviceInfo) -> Result<MockDomain, Error> {
        let index = device.name.strip_prefix("mock").and_then(|n| n.parse::<u16>().ok());
        let mut state = self.0.lock();
        let devices = state.devices.len();
        let Some(device) = index.filter(|i| usize::from(*i) < devices) else {
            let detail =
                format!("no device {} on this fabric; it has mock0 to mock{}", device.name, devices - 1);
            return Err(Error::new(ErrorKind::NoDevice, "open_device", detail));
        };
        let pd = state.open(device)?;
        drop(state);
        Ok(MockDomain { fabric: self.0.clone(), device, pd })
    }
}

fn describe(index: u16, d: &fabric::Device) -> IbvDeviceInfo {
    let mut info = IbvDeviceInfo::new(format!("mock{index}"));
    info.kind = DeviceKind::Mock;
    info.fw_ver = env!("CARGO_PKG_VERSION").into();
    info.node_guid = 0x6d6f_636b_0000_0000 | u64::from(index);
    let mut port = IbvPort::new(1);
    port.state = d.port;
    port.gids = vec![GidEntry { index: 0, gid: d.gid, gid_type: GidType::None, netdev: None }];
    info.ports = vec![port];
    info
}

/// A protection domain on a mock device.
#[derive(Debug)]
pub struct MockDomain {
    fabric: Fabric,
    device: u16,
    pd: u32,
}

impl MockDomain {
    /// The fabric the device is on.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The device's index: 1 of `mock1`.
    pub fn device_index(&self) -> u16 {
        self.device
    }

    /// The source GID that `config` chooses, once everything the port has to offer is checked.
    fn choose_gid(&self, config: &IbvConfig) -> Result<Gid, Error> {
        let gid = self.fabric.lock().device(self.device).gid;
        let fail = |detail: String| Err(Error::new(ErrorKind::InvalidConfig, "create_qp", detail));
        if config.port_num != 1 {
            return fail(format!(
                "IbvConfig::port_num is {}; mock{} has port 1 alone",
                config.port_num, self.device
            ));
        }
        if config.pkey_index >= PKEYS {
            return fail(format!(
                "IbvConfig::pkey_index is {}; the table has {PKEYS} entries",
                config.pkey_index
            ));
        }
        match config.gid {
            GidChoice::Index(0) | GidChoice::Auto => Ok(gid),
            GidChoice::Exact(wanted) if wanted == gid => Ok(gid),
            GidChoice::Exact(wanted) => fail(format!("no GID {wanted} on mock{}; it has {gid}", self.device)),
            GidChoice::Index(i) => {
                fail(format!("GID index {i} on mock{}; its table has 1 entry", self.device))
            }
            _ => fail("a GID choice that the mock does not know; use Auto, Exact or Index".into()),
        }
    }
}

impl Drop for MockDomain {
    fn drop(&mut self) {
        self.fabric.lock().close_domain(self.device, self.pd);
    }
}

impl IbvDomainImpl for MockDomain {
    type Cq = MockCq;
    type Poller = MockPoller;
    type QueuePair = MockQueuePair;
    type Registration = MockRegistration;

    fn caps(&self) -> Caps {
        self.fabric.lock().config.caps()
    }

    fn create_cq(&self, config: &CqConfig) -> Result<(MockCq, MockPoller), Error> {
        let fail = |e: std::io::Error| {
            Error::new(ErrorKind::OutOfResources, "create_comp_channel", "no descriptors left").with_source(e)
        };
        let (device_end, channel) = match config.channel {
            true => fabric::channel().map(|(d, p)| (Some(d), Some(p))).map_err(fail)?,
            false => (None, None),
        };
        let id = self.fabric.lock().create_cq(self.device, self.pd, config.depth, device_end)?;
        let (fabric, device) = (self.fabric.clone(), self.device);
        Ok((MockCq { fabric: fabric.clone(), device, id }, MockPoller { fabric, device, id, channel }))
    }

    unsafe fn create_queue_pair(
        &self,
        config: &IbvConfig,
        send_cq: &MockCq,
        recv_cq: &MockCq,
        core: QpCore,
    ) -> Result<MockQueuePair, Error> {
        let gid = self.choose_gid(config)?;
        let cqs = (send_cq.id, recv_cq.id);
        let at = self.fabric.lock().create_qp(self.device, self.pd, config, cqs, gid)?;
        Ok(MockQueuePair::new(self.fabric.clone(), at, config, core))
    }

    unsafe fn register(&self, mem: NonNull<[u8]>, access: Access) -> Result<MockRegistration, Error> {
        let base = mem.cast::<u8>().as_ptr() as usize as u64;
        // SAFETY: valid until `deregister` has succeeded, by this function's contract, and it leaves the
        // key table before that; the region accesses the same range through a `SharedBytes` too.
        let bytes = unsafe { SharedBytes::new(mem) };
        let region = self.fabric.lock().register(self.device, self.pd, base, bytes, access)?;
        let (lkey, rkey) = (region.lkey, region.rkey);
        Ok(MockRegistration { fabric: self.fabric.clone(), device: self.device, lkey, rkey, base })
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Error> {
        Ok(Box::new(self.fabric.lock().device(self.device).subscribe()?))
    }
}

/// The shared half of a mock completion queue.
#[derive(Debug)]
pub struct MockCq {
    fabric: Fabric,
    device: u16,
    id: CqId,
}

impl Drop for MockCq {
    fn drop(&mut self) {
        self.fabric.lock().destroy_cq(self.device, self.id);
    }
}

/// Its exclusive half.
#[derive(Debug)]
pub struct MockPoller {
    fabric: Fabric,
    device: u16,
    id: CqId,
    channel: Option<Arc<UnixStream>>,
}

impl CompletionQueue for MockPoller {
    fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        let mut state = self.fabric.lock();
        state.on_poll(self.id);
        state.poll(self.id, self.device, out)
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), PollCompletionError> {
        if self.channel.is_none() {
            return Err(PollCompletionError::NoChannel);
        }
        self.fabric.lock().arm(self.id, self.device, solicited_only)
    }

    fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(|c| c.as_fd())
    }

    fn take_events(&mut self) -> Result<u32, PollCompletionError> {
        self.channel.as_ref().map(|c| fabric::take_events(c)).ok_or(PollCompletionError::NoChannel)
    }
}

/// A registration with a mock device.
#[derive(Debug)]
pub struct MockRegistration {
    fabric: Fabric,
    device: u16,
    lkey: u32,
    rkey: u32,
    base: u64,
}

// SAFETY: see the module; `Ok` only once the region has left the key table.
unsafe impl Registration for MockRegistration {
    fn lkey(&self) -> u32 {
        self.lkey
    }
    fn rkey(&self) -> u32 {
        self.rkey
    }
    fn iova(&self) -> u64 {
        self.base
    }
    fn deregister(&mut self) -> Result<(), Error> {
        self.fabric.lock().deregister(self.device, self.lkey)
    }
}
