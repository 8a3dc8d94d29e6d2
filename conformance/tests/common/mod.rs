//! A mock that breaks a rule on purpose.
#![allow(dead_code)] // Each test file uses its share.

use conformance::{Fixture, Pair, Progress, Unavailable};
use ibv_core::{IbvDomain, Provider};
use provider_mock::{Drive, Fabric, FabricConfig, Faults, MockDomain, MockProvider, Schedule};

/// Sets faults on a fabric.
pub type Break = fn(Faults) -> Faults;

/// A mock whose every fabric has these faults.
pub struct Broken {
    pub schedule: Schedule,
    pub faults: Break,
}

impl Broken {
    pub fn ordered(faults: Break) -> Self {
        Self { schedule: Schedule::InOrder, faults }
    }
}

impl Fixture for Broken {
    type Domain = MockDomain;
    fn provider(&self) -> &str {
        "broken"
    }
    fn pair(&self) -> Result<Pair<MockDomain>, Unavailable> {
        let mut config =
            FabricConfig { schedule: self.schedule, drive: Drive::Manual, ..FabricConfig::default() };
        (config.max_msg_size, config.max_send_size) = (512, 512);
        let fabric = Fabric::new(config);
        let provider = MockProvider::new(fabric.clone());
        let devices = provider.devices()?;
        let open =
            |i: usize| Ok::<_, Unavailable>(IbvDomain::new(provider.open(&devices[i])?, devices[i].clone()));
        let pair = Pair::new(open(0)?, open(1)?);
        let _set = (self.faults)(fabric.faults());
        Ok(pair.with_progress(move || if fabric.step() { Progress::Moved } else { Progress::Idle }))
    }
}

/// A provider without a device.
pub struct Absent;

impl Fixture for Absent {
    type Domain = MockDomain;
    fn provider(&self) -> &str {
        "absent"
    }
    fn pair(&self) -> Result<Pair<MockDomain>, Unavailable> {
        Err(Unavailable::Skip("libabsent.so.1 not found".into()))
    }
}

/// A provider whose device does not open.
pub struct Dead;

impl Fixture for Dead {
    type Domain = MockDomain;
    fn provider(&self) -> &str {
        "dead"
    }
    fn pair(&self) -> Result<Pair<MockDomain>, Unavailable> {
        Err(ibv_core::Error::from_errno("open_device", 5).into())
    }
}

/// A provider that panics.
pub struct Panics;

impl Fixture for Panics {
    type Domain = MockDomain;
    fn provider(&self) -> &str {
        "panics"
    }
    fn pair(&self) -> Result<Pair<MockDomain>, Unavailable> {
        panic!("no pair today")
    }
}
