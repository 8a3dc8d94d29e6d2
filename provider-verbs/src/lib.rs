//! The portable baseline: reliable connections over plain libibverbs, on every device whose transport is
//! the InfiniBand specification's: Soft-RoCE, ConnectX, irdma in RoCE mode, bnxt, hns and the rest. What a
//! vendor's own library could do better is other providers'.
//!
//! Requests are posted through the extended interface (`ibv_wr_*`) where the device has it and through
//! `ibv_post_send` elsewhere; [`VerbsQueuePair::posting`] tells which. A device says that it lacks the
//! extended interface in four ways (EOPNOTSUPP, EPROTONOSUPPORT, ENOSYS, EINVAL for a flag it does not
//! know) or by a queue pair without builders. Each leads to the plain interface, and nothing is left over.
//!
//! ```no_run
//! use ibv_core::{IbvDomain, Provider};
//! use provider_verbs::VerbsProvider;
//!
//! let provider = VerbsProvider::default();
//! for device in provider.devices()? {
//!     println!("{}: {:?}", device.name, provider.claim(&device));
//! }
//! # let device = provider.devices()?.remove(0);
//! let domain = IbvDomain::new(provider.open(&device)?, device);
//! # Ok::<(), ibv_core::Error>(())
//! ```
#![deny(unsafe_code)]

mod create;
mod domain;
mod probe;
mod queue_pair;
mod session;
mod work;

#[cfg(test)]
#[path = "../../ibv-core/src/verbs/fake.rs"]
mod fake;
#[cfg(test)]
mod tests;

pub use crate::{
    create::Posting,
    domain::VerbsDomain,
    queue_pair::{HalfPosted, VerbsQueuePair},
};
pub use ibv_core::verbs::{ForkPolicy, VerbsLibrary};

use ibv_core::{
    Claim, Error, IbvDeviceInfo, Provider,
    verbs::{Device, device, load},
};
use ibv_sys::{IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP, IBV_TRANSPORT_UNSPECIFIED};

/// The provider `verbs`. `Default` opens this machine's libibverbs when first asked for devices.
#[derive(Clone, Debug, Default)]
pub struct VerbsProvider {
    library: Option<VerbsLibrary>,
    fork: ForkPolicy,
    max_msg_size: Option<u32>,
}

impl VerbsProvider {
    /// The provider over a library that is loaded already.
    pub fn over(library: VerbsLibrary) -> Self {
        Self { library: Some(library), ..Self::default() }
    }

    /// What to do about forks before a device is opened.
    #[must_use]
    pub fn with_fork_policy(self, fork: ForkPolicy) -> Self {
        Self { fork, ..self }
    }

    /// Splits puts and gets into work requests of at most so many bytes (at least 1), where the device
    /// would take longer ones: shorter pieces of several queue pairs share a link more evenly.
    #[must_use]
    pub fn with_max_msg_size(self, bytes: u32) -> Self {
        Self { max_msg_size: Some(bytes.max(1)), ..self }
    }

    fn library(&self) -> Result<VerbsLibrary, Error> {
        self.library.map_or_else(load, Ok)
    }

    fn find(&self, name: &str) -> Result<Device, Error> {
        device::find(self.library()?, name)
    }
}

impl Provider for VerbsProvider {
    type Domain = VerbsDomain;

    fn name(&self) -> &'static str {
        "verbs"
    }

    fn devices(&self) -> Result<Vec<IbvDeviceInfo>, Error> {
        device::describe_all(self.library()?, self.fork)
    }

    fn claim(&self, device: &IbvDeviceInfo) -> Claim {
        match self.find(&device.name) {
            Ok(found) => claim(&found),
            Err(e) => Claim::No(e.to_string()),
        }
    }

    fn open(&self, device: &IbvDeviceInfo) -> Result<VerbsDomain, Error> {
        let library = self.library()?;
        self.fork.apply(library)?;
        VerbsDomain::open(library, &device.name, self.max_msg_size)
    }
}

/// By transport, which says whether queue pairs connect through `ibv_modify_qp`; and not where the
/// library writes to a receive's memory when polled.
fn claim(device: &Device) -> Claim {
    let name = &device.name;
    if device.dir.driver().is_some_and(|driver| driver.starts_with("hns")) {
        return Claim::No(format!(
            "{name} is driven by libhns, whose poll copies small receives to where they were posted, even to freed memory"
        ));
    }
    match device.transport {
        IBV_TRANSPORT_IB => {
            Claim::Yes(format!("{name} speaks the InfiniBand transport, which plain verbs connect"))
        }
        IBV_TRANSPORT_IWARP => {
            Claim::No(format!("{name} speaks iWARP, which connects through rdma_cm alone"))
        }
        IBV_TRANSPORT_UNSPECIFIED => {
            Claim::No(format!("{name} has a transport of its own, without reliable connections"))
        }
        other => Claim::No(format!("{name} speaks transport {}, without reliable connections", other.0)),
    }
}
