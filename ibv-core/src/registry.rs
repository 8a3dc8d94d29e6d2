//! An explicit list of providers, in order of preference. Nothing registers itself.

use crate::{
    any::AnyDomain,
    device::IbvDeviceInfo,
    domain::IbvDomain,
    error::{Error, ErrorKind},
    provider::{Claim, Provider},
    trace::step,
};
use std::fmt;

/// `Registry::default().with(Mlx5).with(Efa)`: a readable list, in order of preference.
#[derive(Debug, Default)]
pub struct Registry(Vec<Box<dyn DynProvider>>);

trait DynProvider: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;
    fn devices(&self) -> Result<Vec<IbvDeviceInfo>, Error>;
    fn claim(&self, device: &IbvDeviceInfo) -> Claim;
    fn open(&self, device: &IbvDeviceInfo) -> Result<AnyDomain, Error>;
}

impl<P: Provider> DynProvider for P {
    fn name(&self) -> &'static str {
        P::name(self)
    }
    fn devices(&self) -> Result<Vec<IbvDeviceInfo>, Error> {
        P::devices(self)
    }
    fn claim(&self, device: &IbvDeviceInfo) -> Claim {
        P::claim(self, device)
    }
    fn open(&self, device: &IbvDeviceInfo) -> Result<AnyDomain, Error> {
        P::open(self, device).map(AnyDomain::new)
    }
}

/// What one provider found.
#[derive(Debug)]
pub struct ProviderDevices {
    /// The provider.
    pub provider: &'static str,
    /// The devices it sees with its claim to each, or why it could not look.
    pub devices: Result<Vec<(IbvDeviceInfo, Claim)>, Error>,
}

impl Registry {
    /// The list with `provider` behind those already in it.
    pub fn with(mut self, provider: impl Provider) -> Self {
        self.0.push(Box::new(provider));
        self
    }

    /// The providers' names, in order.
    pub fn providers(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|p| p.name())
    }

    /// The list without every provider but `name`.
    ///
    /// # Errors
    /// `NoDevice` with the names there are.
    pub fn only(mut self, name: &str) -> Result<Self, Error> {
        if !self.providers().any(|p| p == name) {
            return Err(self.no_provider(name));
        }
        self.0.retain(|p| p.name() == name);
        Ok(self)
    }

    /// What each provider sees, claims and does not claim, and why.
    pub fn survey(&self) -> Vec<ProviderDevices> {
        let look = |p: &dyn DynProvider| {
            let claimed = |d: IbvDeviceInfo| {
                let claim = p.claim(&d);
                (d, claim)
            };
            Ok(p.devices()?.into_iter().map(claimed).collect())
        };
        self.0.iter().map(|p| ProviderDevices { provider: p.name(), devices: look(&**p) }).collect()
    }

    /// Opens a device with the first provider that claims it.
    ///
    /// # Errors
    /// `NoDevice` with each provider's reason, where nobody claims it; else the provider's own.
    pub fn open(&self, device: &str) -> Result<IbvDomain<AnyDomain>, Error> {
        self.try_open(device).inspect_err(|e| step("open_device", format_args!("{device}"), Some(e)))
    }

    /// Opens a device with the provider of that name, though another may claim it first. The list stays whole, so
    /// that domains of several providers come from one.
    ///
    /// # Errors
    /// `NoDevice` with the names there are, where no provider is called so, or with its reason, where it does not
    /// claim the device; else the provider's own.
    pub fn open_with(&self, provider: &str, device: &str) -> Result<IbvDomain<AnyDomain>, Error> {
        let object = format_args!("{device} with {provider}");
        self.try_open_with(provider, device).inspect_err(|e| step("open_device", object, Some(e)))
    }

    fn try_open_with(&self, provider: &str, device: &str) -> Result<IbvDomain<AnyDomain>, Error> {
        let Some(found) = self.0.iter().find(|p| p.name() == provider) else {
            return Err(self.no_provider(provider));
        };
        look(&**found, device)?.map_err(|why| {
            let detail = format!("provider {provider} does not claim {device} ({why})");
            Error::new(ErrorKind::NoDevice, "open", detail)
        })
    }

    fn no_provider(&self, name: &str) -> Error {
        let known = self.providers().collect::<Vec<_>>().join(", ");
        Error::new(ErrorKind::NoDevice, "open", format!("no provider {name}; this build has: {known}"))
    }

    fn try_open(&self, device: &str) -> Result<IbvDomain<AnyDomain>, Error> {
        let mut reasons = Vec::new();
        for provider in &self.0 {
            match look(&**provider, device)? {
                Ok(domain) => return Ok(domain),
                Err(why_not) => reasons.push(format!("{}: {why_not}", provider.name())),
            }
        }
        let reasons =
            if reasons.is_empty() { "no provider was registered".into() } else { reasons.join("; ") };
        Err(Error::new(ErrorKind::NoDevice, "open", format!("no provider claims {device} ({reasons})")))
    }

    /// Opens the first device that a provider claims.
    ///
    /// # Errors
    /// `NoDevice` with each provider's reason.
    pub fn open_any(&self) -> Result<IbvDomain<AnyDomain>, Error> {
        let mut reasons = Vec::new();
        for ProviderDevices { provider, devices } in self.survey() {
            match devices {
                Err(e) => reasons.push(format!("{provider}: {e}")),
                Ok(list) if list.is_empty() => reasons.push(format!("{provider}: sees no device")),
                Ok(list) => match list.into_iter().find(|(_, claim)| matches!(claim, Claim::Yes(_))) {
                    Some((info, _)) => return self.open(&info.name),
                    None => reasons.push(format!("{provider}: claims none of the devices it sees")),
                },
            }
        }
        Err(Error::new(ErrorKind::NoDevice, "open", format!("no device to open ({})", reasons.join("; "))))
    }
}

/// Opens the device if the provider claims it; else says why it does not.
///
/// # Errors
/// What the provider answers when it opens what it claims.
fn look(provider: &dyn DynProvider, device: &str) -> Result<Result<IbvDomain<AnyDomain>, String>, Error> {
    let list = match provider.devices() {
        Err(e) => return Ok(Err(e.to_string())),
        Ok(list) => list,
    };
    let Some(info) = list.into_iter().find(|d| d.name == device) else {
        return Ok(Err("sees no device of that name".into()));
    };
    match provider.claim(&info) {
        Claim::Yes(_) => Ok(Ok(IbvDomain::new(provider.open(&info)?, info))),
        Claim::No(why) => Ok(Err(why)),
    }
}
