//! Which provider and which device a command runs on: what was asked for, else the first that will do.

use crate::Failure;
use ibv::{AnyDomain, Claim, DeviceKind, Error, ErrorKind, IbvDeviceInfo, IbvDomain, Registry};

/// A device that another process can reach; the provider's name and the open domain.
pub(super) fn one_end(
    provider: Option<&str>,
    device: Option<&str>,
    registry: Registry,
) -> Result<(&'static str, IbvDomain<AnyDomain>), Failure> {
    let reachable = |d: &IbvDeviceInfo| d.kind != DeviceKind::Mock;
    // Without a choice, whatever can be reached; but if there is only a mock, say what is wrong with it.
    let open = provider.is_some() || device.is_some() || !any(&registry, reachable);
    let chosen = Chosen::new(registry, provider, device, |d| open || reachable(d))?;
    if !reachable(&chosen.device) {
        return Err(Failure::OneProcess(chosen.provider.into()));
    }
    let domain = chosen.open(&chosen.device.name)?;
    Ok((chosen.provider, domain))
}

fn any(registry: &Registry, wanted: impl Fn(&IbvDeviceInfo) -> bool) -> bool {
    claimed(registry).iter().any(|(_, d)| wanted(d))
}

/// Every device with the provider that claims it, in order of preference.
fn claimed(registry: &Registry) -> Vec<(&'static str, IbvDeviceInfo)> {
    let mut all = Vec::new();
    for found in registry.survey() {
        for (device, claim) in found.devices.unwrap_or_default() {
            if matches!(claim, Claim::Yes(_)) {
                all.push((found.provider, device));
            }
        }
    }
    all
}

/// One provider and one of its devices.
pub(super) struct Chosen {
    registry: Registry,
    pub(super) provider: &'static str,
    pub(super) device: IbvDeviceInfo,
}

impl Chosen {
    pub(super) fn new(
        registry: Registry,
        provider: Option<&str>,
        device: Option<&str>,
        wanted: impl Fn(&IbvDeviceInfo) -> bool,
    ) -> Result<Self, Failure> {
        let registry = match provider {
            Some(name) => registry.only(name)?,
            None => registry,
        };
        let fits = |d: &IbvDeviceInfo| device.map_or_else(|| wanted(d), |name| d.name == name);
        let found = claimed(&registry).into_iter().find(|(_, d)| fits(d));
        let Some((provider, device)) = found else { return Err(nothing(&registry, device)) };
        Ok(Self { registry: registry.only(provider)?, provider, device })
    }

    pub(super) fn open(&self, device: &str) -> Result<IbvDomain<AnyDomain>, Failure> {
        Ok(self.registry.open(device)?)
    }

    /// Where the other end goes by default: a mock has a second device to talk to, and elsewhere the one
    /// port that is sure to reach a device is its own.
    pub(super) fn opposite(&self) -> String {
        let others = claimed(&self.registry).into_iter().map(|(_, d)| d);
        let mut mocks = others.filter(|d| d.kind == DeviceKind::Mock && d.name != self.device.name);
        match self.device.kind {
            DeviceKind::Mock => mocks.next().unwrap_or(self.device.clone()).name,
            _ => self.device.name.clone(),
        }
    }
}

/// The registry's own words for having nothing to open.
fn nothing(registry: &Registry, device: Option<&str>) -> Failure {
    let opened = device.map_or_else(|| registry.open_any(), |name| registry.open(name));
    match opened {
        Err(e) => e.into(),
        Ok(_) => Error::new(ErrorKind::NoDevice, "open", "no suitable device").into(),
    }
}
