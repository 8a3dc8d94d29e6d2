//! AWS Elastic Fabric Adapter: scalable reliable datagrams (SRD). A queue pair is made by libefa's
//! `efadv_create_qp_ex` and driven by the extended work-request builders; what libefa and the device do not
//! have, `Caps` does not offer. Nothing here assumes an order that SRD does not keep: requests complete in
//! any order, their effects become visible in any order, and so do the bytes of one of them.
//!
//! Who does what: `version.rs` knows libefa's history, `limits.rs` turns attributes into `Caps`, `probe.rs` tries
//! what no query tells, `create.rs` makes a queue pair, `state.rs` moves it, `peers.rs` keeps address handles,
//! `work.rs` holds requests until they are rung, `session.rs` rings them, `poller.rs` completes what libefa leaves
//! out of a completion.
//!
//! ```no_run
//! use ibv_core::{IbvDomain, Provider};
//! use provider_efa::EfaProvider;
//!
//! let provider = EfaProvider::default();
//! for device in provider.devices()? {
//!     println!("{}: {:?}", device.name, provider.claim(&device));
//! }
//! # let device = provider.devices()?.remove(0);
//! let domain = IbvDomain::new(provider.open(&device)?, device);
//! # Ok::<(), ibv_core::Error>(())
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

mod create;
mod domain;
mod limits;
mod peers;
mod poller;
mod probe;
mod queue_pair;
mod session;
mod state;
mod version;
mod work;

pub use crate::{
    domain::EfaDomain,
    poller::{EfaCq, EfaPoller},
    queue_pair::EfaQueuePair,
};
pub use ibv_core::verbs::{ForkPolicy, VerbsLibrary};

use ibv_core::{
    Claim, Error, IbvDeviceInfo, Provider,
    verbs::{Device, device, load},
};

/// Amazon's PCI vendor number (`EFA_DEV` entries of rdma-core's providers/efa/efa.c).
const VENDOR: u32 = 0x1d0f;

/// The provider `efa`. `Default` opens this machine's libibverbs when first asked for devices.
#[derive(Clone, Debug, Default)]
pub struct EfaProvider {
    library: Option<VerbsLibrary>,
    fork: ForkPolicy,
    max_msg_size: Option<u32>,
}

impl EfaProvider {
    /// The provider over a libibverbs that is loaded already.
    pub fn over(library: VerbsLibrary) -> Self {
        Self { library: Some(library), ..Self::default() }
    }

    /// What to do about forks before a device is opened.
    #[must_use]
    pub fn with_fork_policy(self, fork: ForkPolicy) -> Self {
        Self { fork, ..self }
    }

    /// Splits puts and gets into work requests of at most so many bytes (at least 1), where the device
    /// would take longer ones.
    #[must_use]
    pub fn with_max_msg_size(self, bytes: u32) -> Self {
        Self { max_msg_size: Some(bytes.max(1)), ..self }
    }

    fn library(&self) -> Result<VerbsLibrary, Error> {
        self.library.map_or_else(load, Ok)
    }
}

impl Provider for EfaProvider {
    type Domain = EfaDomain;

    fn name(&self) -> &'static str {
        "efa"
    }

    fn devices(&self) -> Result<Vec<IbvDeviceInfo>, Error> {
        device::describe_all(self.library()?, self.fork)
    }

    /// libefa is asked about the device itself; the answer says what this libefa lacks.
    fn claim(&self, device: &IbvDeviceInfo) -> Claim {
        let found = match self.library().and_then(|library| device::find(library, &device.name)) {
            Ok(found) => found,
            Err(e) => return Claim::No(e.to_string()),
        };
        if let Some(why) = not_amazons(device.vendor_id, &found) {
            return Claim::No(why);
        }
        match self.library().and_then(|library| domain::query(library, &device.name)) {
            Ok((_, attr)) => Claim::Yes(format!("{} is libefa's{}", device.name, version::lacks(&attr))),
            Err(e) => Claim::No(e.to_string()),
        }
    }

    fn open(&self, device: &IbvDeviceInfo) -> Result<EfaDomain, Error> {
        let library = self.library()?;
        self.fork.apply(library)?;
        EfaDomain::open(library, &device.name, self.max_msg_size)
    }
}

/// Why a device need not be opened to know that it is another vendor's.
fn not_amazons(vendor_id: u32, device: &Device) -> Option<String> {
    if vendor_id != 0 && vendor_id != VENDOR {
        return Some(format!("vendor {vendor_id:#x} is not Amazon"));
    }
    let driver = device.dir.driver().filter(|driver| driver != "efa")?;
    Some(format!("{} is driven by {driver}, not by efa", device.name))
}
