//! What a provider supplies to be tested: two ends that can reach each other. Which cases there are, and
//! how they are run, is nothing a fixture knows.

use ibv_core::{
    AnyDomain, Claim, Error, ErrorKind, IbvConfig, IbvDeviceInfo, IbvDomain, IbvDomainImpl, Provider,
};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// What a provider supplies to be tested.
///
/// Only [`provider`](Self::provider) and [`pair`](Self::pair) have to be written; for a provider whose
/// devices can be opened twice or in pairs, [`Devices`] is a fixture already.
pub trait Fixture: Send + Sync {
    /// The domain under test; [`AnyDomain`] to test through run-time dispatch.
    type Domain: IbvDomainImpl;

    /// The provider's name, as reports and `--require` use it.
    fn provider(&self) -> &str;

    /// `static`, or `dyn` where [`Self::Domain`] is [`AnyDomain`].
    fn dispatch(&self) -> &str {
        if std::any::TypeId::of::<Self::Domain>() == std::any::TypeId::of::<AnyDomain>() {
            "dyn"
        } else {
            "static"
        }
    }

    /// How a simulated fabric orders things, where it can be told; empty for hardware.
    fn schedule(&self) -> String {
        String::new()
    }

    /// Opens two ends afresh that can reach each other. Called once for each case.
    ///
    /// # Errors
    /// [`Unavailable`]: why there are none. It skips the case or fails it, as it says.
    fn pair(&self) -> Result<Pair<Self::Domain>, Unavailable>;

    /// Opens one end, for runs in two processes. By default one of the pair.
    ///
    /// # Errors
    /// As [`pair`](Self::pair), and where the provider lives in one process only.
    fn end(&self, side: Side) -> Result<End<Self::Domain>, Unavailable> {
        let pair = self.pair()?;
        let domain = if side == Side::A { pair.a } else { pair.b };
        Ok(End { domain, progress: pair.progress })
    }

    /// What every queue pair is created with, but for what a case is about: the place for a port, a GID,
    /// a partition key.
    fn config(&self) -> IbvConfig {
        IbvConfig::default()
    }

    /// Versions of what lies below, for the report. The suite adds its own and the kernel's.
    fn versions(&self) -> Versions {
        Versions::default()
    }
}

/// Which end: A starts every transfer that a case does not say otherwise about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end under the case's own hands.
    A,
    /// Its peer.
    B,
}

/// How a simulated fabric answers when it is asked to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It did something.
    Moved,
    /// Nothing is left to do, and nothing will happen until somebody posts: a wait can give up at once.
    Idle,
    /// It moves by itself, as hardware does; a wait ends at its deadline.
    Unknown,
}

type Progressing = Arc<dyn Fn() -> Progress + Send + Sync>;

/// Two ends that can reach each other.
pub struct Pair<D: IbvDomainImpl> {
    pub(crate) a: IbvDomain<D>,
    pub(crate) b: IbvDomain<D>,
    pub(crate) progress: Progressing,
}

impl<D: IbvDomainImpl> Pair<D> {
    /// Two ends that move bytes by themselves.
    pub fn new(a: IbvDomain<D>, b: IbvDomain<D>) -> Self {
        Self { a, b, progress: Arc::new(|| Progress::Unknown) }
    }

    /// Two ends of a simulated fabric: every wait calls `progress` between polls.
    pub fn with_progress(self, progress: impl Fn() -> Progress + Send + Sync + 'static) -> Self {
        Self { progress: Arc::new(progress), ..self }
    }
}

impl<D: IbvDomainImpl> fmt::Debug for Pair<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("a", &self.a).field("b", &self.b).finish_non_exhaustive()
    }
}

/// One end, for runs in two processes.
pub struct End<D: IbvDomainImpl> {
    pub(crate) domain: IbvDomain<D>,
    pub(crate) progress: Progressing,
}

impl<D: IbvDomainImpl> End<D> {
    /// An end that moves bytes by itself.
    pub fn new(domain: IbvDomain<D>) -> Self {
        Self { domain, progress: Arc::new(|| Progress::Unknown) }
    }

    /// An end of a simulated fabric; see [`Pair::with_progress`].
    pub fn with_progress(self, progress: impl Fn() -> Progress + Send + Sync + 'static) -> Self {
        Self { progress: Arc::new(progress), ..self }
    }
}

impl<D: IbvDomainImpl> fmt::Debug for End<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End").field("domain", &self.domain).finish_non_exhaustive()
    }
}

/// Why a fixture has nothing to test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// There is no device, or no library for it: every case is skipped with this reason, and fails where
    /// the provider was required.
    Skip(String),
    /// There is a device and it does not work: every case fails.
    Fail(String),
    /// Both ends are always in one process: a run in two is refused.
    OneProcess(String),
}

impl Unavailable {
    /// The reason.
    pub fn reason(&self) -> &str {
        match self {
            Self::Skip(why) | Self::Fail(why) | Self::OneProcess(why) => why,
        }
    }
}

/// A missing device, library or permission skips; anything else is the provider's failure.
impl From<Error> for Unavailable {
    fn from(e: Error) -> Self {
        match e.kind() {
            ErrorKind::NoDevice | ErrorKind::LibraryMissing | ErrorKind::PermissionDenied => {
                Self::Skip(e.to_string())
            }
            _ => Self::Fail(e.to_string()),
        }
    }
}

/// Versions of everything that took part in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Versions {
    /// This suite.
    pub suite: String,
    /// The provider crate.
    pub provider: String,
    /// The library under it.
    pub library: String,
    /// The operating system's kernel.
    pub kernel: String,
    /// The device's firmware.
    pub firmware: String,
    /// The device: name, vendor and part.
    pub device: String,
}

impl Versions {
    /// Fills in what the suite can find out by itself.
    pub(crate) fn complete(mut self, device: &IbvDeviceInfo) -> Self {
        fn set(slot: &mut String, value: String) {
            if slot.is_empty() {
                *slot = value;
            }
        }
        set(&mut self.suite, env!("CARGO_PKG_VERSION").into());
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        set(&mut self.kernel, kernel.trim().into());
        set(&mut self.firmware, device.fw_ver.clone());
        let id = format!("{} ({:#06x}:{:#06x})", device.name, device.vendor_id, device.vendor_part_id);
        set(&mut self.device, id);
        self
    }
}

/// The fixture of any provider: the first device that it claims, twice; where that one has no loopback,
/// the first two; or the two that [`named`](Self::named) says. In two processes, each uses its first.
///
/// ```
/// # use provider_mock::MockProvider;
/// # use conformance::{Devices, Fixture};
/// let by_static_dispatch = Devices::of(MockProvider::default());
/// let by_dyn_dispatch = Devices::of(MockProvider::default()).erased();
/// assert_eq!((by_static_dispatch.dispatch(), by_dyn_dispatch.dispatch()), ("static", "dyn"));
/// ```
pub struct Devices<P: Provider, D: IbvDomainImpl = <P as Provider>::Domain> {
    provider: P,
    wrap: fn(P::Domain) -> D,
    names: Option<[String; 2]>,
    config: IbvConfig,
    versions: Arc<dyn Fn() -> Versions + Send + Sync>,
    progress: Progressing,
}

impl<P: Provider> Devices<P> {
    /// The provider's own devices, by static dispatch.
    pub fn of(provider: P) -> Self {
        Self {
            provider,
            wrap: |domain| domain,
            names: None,
            config: IbvConfig::default(),
            versions: Arc::new(Versions::default),
            progress: Arc::new(|| Progress::Unknown),
        }
    }
}

impl<P: Provider, D: IbvDomainImpl> Devices<P, D> {
    /// The same through [`AnyDomain`].
    pub fn erased(self) -> Devices<P, AnyDomain> {
        let Self { provider, wrap: _, names, config, versions, progress } = self;
        Devices { provider, wrap: AnyDomain::new, names, config, versions, progress }
    }

    /// Uses these two devices, which may be the same one.
    pub fn named(self, a: impl Into<String>, b: impl Into<String>) -> Self {
        Self { names: Some([a.into(), b.into()]), ..self }
    }

    /// Creates queue pairs from `config`: a port, a GID, a partition key.
    pub fn with_config(self, config: IbvConfig) -> Self {
        Self { config, ..self }
    }

    /// Names versions for the report.
    pub fn with_versions(self, versions: Versions) -> Self {
        self.with_versions_by(move || versions.clone())
    }

    /// Names versions for the report that are not known before a device was opened: libraries that are loaded when
    /// first needed.
    pub fn with_versions_by(self, versions: impl Fn() -> Versions + Send + Sync + 'static) -> Self {
        Self { versions: Arc::new(versions), ..self }
    }

    /// Calls `progress` between polls; see [`Pair::with_progress`].
    pub fn with_progress(self, progress: impl Fn() -> Progress + Send + Sync + 'static) -> Self {
        Self { progress: Arc::new(progress), ..self }
    }

    /// The devices to use, in order: at least one.
    fn chosen(&self) -> Result<Vec<IbvDeviceInfo>, Unavailable> {
        let listed = self.provider.devices()?;
        let name = self.provider.name();
        if let Some(names) = &self.names {
            let find = |wanted: &String| {
                let missing = || Unavailable::Skip(format!("{name} has no device {wanted}"));
                listed.iter().find(|d| d.name == *wanted).cloned().ok_or_else(missing)
            };
            return names.iter().map(find).collect();
        }
        let claims = |d: &IbvDeviceInfo| matches!(self.provider.claim(d), Claim::Yes(_));
        let claimed: Vec<_> = listed.into_iter().filter(claims).collect();
        if claimed.is_empty() {
            return Err(Unavailable::Skip(format!("{name} claims no device on this host")));
        }
        Ok(claimed)
    }

    fn open(&self, device: IbvDeviceInfo) -> Result<IbvDomain<D>, Unavailable> {
        let domain = self.provider.open(&device)?;
        Ok(IbvDomain::new((self.wrap)(domain), device))
    }
}

impl<P: Provider, D: IbvDomainImpl> Fixture for Devices<P, D> {
    type Domain = D;

    fn provider(&self) -> &str {
        self.provider.name()
    }

    fn pair(&self) -> Result<Pair<D>, Unavailable> {
        let mut devices = self.chosen()?.into_iter();
        let first = devices.next().ok_or_else(|| Unavailable::Skip("no device was named".into()))?;
        let a = self.open(first.clone())?;
        let second = match devices.next() {
            Some(second) if self.names.is_some() || !a.caps().loopback => second,
            None if !a.caps().loopback => {
                return Err(Unavailable::Skip(format!(
                    "{} has no loopback, and there is no second device to be end b: run the ends on two hosts, with \
                     --listen there and --to here, or give a software adapter a second one (softnic --count 2)",
                    first.name
                )));
            }
            _ => first,
        };
        Ok(Pair { a, b: self.open(second)?, progress: self.progress.clone() })
    }

    fn end(&self, side: Side) -> Result<End<D>, Unavailable> {
        let devices = self.chosen()?;
        let wanted = if side == Side::A {
            devices.first()
        } else {
            devices.last().filter(|_| self.names.is_some()).or(devices.first())
        };
        let device = wanted.cloned().ok_or_else(|| Unavailable::Skip("no device was named".into()))?;
        Ok(End { domain: self.open(device)?, progress: self.progress.clone() })
    }

    fn config(&self) -> IbvConfig {
        self.config.clone()
    }

    fn versions(&self) -> Versions {
        (self.versions)()
    }
}

impl<P: Provider, D: IbvDomainImpl> fmt::Debug for Devices<P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices")
            .field("provider", &self.provider)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
