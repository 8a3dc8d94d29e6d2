//! The mock under another name, so that the command takes it for a device that joins processes.

use ibv::{
    Claim, DeviceKind, Error, IbvDeviceInfo, Provider, Registry,
    mock::{Fabric, MockDomain, MockProvider},
};
use std::process::ExitCode;

/// The mock, posing as a device that another process can reach.
#[derive(Debug)]
pub struct Posing(MockProvider);

impl Posing {
    /// A list of it alone.
    pub fn on(fabric: &Fabric) -> Registry {
        Registry::default().with(Self(MockProvider::new(fabric.clone())))
    }
}

impl Provider for Posing {
    type Domain = MockDomain;
    fn name(&self) -> &'static str {
        "posing"
    }
    fn devices(&self) -> Result<Vec<IbvDeviceInfo>, Error> {
        let posing = |mut info: IbvDeviceInfo| {
            info.kind = DeviceKind::SoftwareUser;
            info
        };
        Ok(self.0.devices()?.into_iter().map(posing).collect())
    }
    fn claim(&self, _: &IbvDeviceInfo) -> Claim {
        Claim::Yes("for this test".into())
    }
    fn open(&self, device: &IbvDeviceInfo) -> Result<MockDomain, Error> {
        self.0.open(device)
    }
}

/// An exit code is opaque, but comparable.
pub fn number(code: ExitCode) -> u8 {
    (0..=255).find(|n| ExitCode::from(*n) == code).unwrap()
}
