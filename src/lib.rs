//! Move bytes between the registered memory of two machines with one-sided put and get, through
//! whichever RDMA provider the host has. This crate is the facade: it holds the list of providers that
//! the features chose and re-exports [`ibv_core`]; it holds no logic.
//!
//! With feature `mock`, on any machine:
#![cfg_attr(feature = "mock", doc = "```")]
#![cfg_attr(not(feature = "mock"), doc = "```no_run")]
//! use ibv::{IbvConfig, IbvWc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let providers = ibv::registry();
//! let (here, there) = (providers.open("mock0")?, providers.open("mock1")?);
//! let (src, dst) = (here.alloc(21)?, there.alloc(21)?);
//! src.write_at(0, b"hello, remote memory!")?;
//! let (cq, far_cq) = (here.create_cq(256)?, there.create_cq(256)?);
//! let mut near = here.create_queue_pair(IbvConfig::default(), &cq, &cq)?;
//! let mut far = there.create_queue_pair(IbvConfig::default(), &far_cq, &far_cq)?;
//! let (a, b) = (near.get_qp_info()?, far.get_qp_info()?); // these travel between real hosts
//! let _far = far.connect(&a).map_err(|(_, e)| e)?;
//! let mut near = near.connect(&b).map_err(|(_, e)| e)?;
//! near.put(dst.remote(), src.view())?;
//! let (mut poller, mut wc) = (cq.poller()?, [IbvWc::default()]);
//! while poller.poll(&mut wc)? == 0 {}
//! wc[0].result()?;
//! assert_eq!(dst.to_vec(), b"hello, remote memory!");
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! A feature adds a provider or a capability of the core; none changes what the others do, and none is
//! on by default. `mock` adds the in-process fabric, `mlx5` NVIDIA ConnectX, `efa` AWS EFA, `verbs` every
//! other device that libibverbs drives. `topology` adds which device is near which GPU, without any provider. `serde`,
//! `tokio`, `tracing` and `recorder` are `ibv-core`'s.
//!
//! # Somebody else's provider
//!
//! The traits are open and the list is a value: `ibv::registry().with(Mine)` puts a provider of one's
//! own behind those built in, and `ibv::Registry::default().with(Mine)` uses it alone.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

// The trait `IbvQueuePair` comes from here; a provider's struct of that name stays in its own module.
#[doc(inline)]
pub use ibv_core::*;

#[cfg(feature = "mock")]
#[cfg_attr(docsrs, doc(cfg(feature = "mock")))]
#[doc(inline)]
pub use providers::mock;

/// Which RDMA device is near which GPU, NUMA node and processors.
#[cfg(feature = "topology")]
#[cfg_attr(docsrs, doc(cfg(feature = "topology")))]
#[doc(inline)]
pub use ibv_topology as topology;

/// The provider crates that the features chose, for what only one of them offers.
pub mod providers {
    /// AWS Elastic Fabric Adapter: scalable reliable datagrams.
    #[cfg(feature = "efa")]
    #[cfg_attr(docsrs, doc(cfg(feature = "efa")))]
    pub use provider_efa as efa;
    /// NVIDIA ConnectX, driven directly.
    #[cfg(feature = "mlx5")]
    #[cfg_attr(docsrs, doc(cfg(feature = "mlx5")))]
    pub use provider_mlx5 as mlx5;
    /// The in-process fabric: moves bytes, keeps a virtual clock, breaks rules on purpose.
    #[cfg(feature = "mock")]
    #[cfg_attr(docsrs, doc(cfg(feature = "mock")))]
    pub use provider_mock as mock;
    /// Any device of the InfiniBand specification's transport, through plain libibverbs.
    #[cfg(feature = "verbs")]
    #[cfg_attr(docsrs, doc(cfg(feature = "verbs")))]
    pub use provider_verbs as verbs;
}

/// The providers this build has, in order of preference: what knows a device best comes first. Each call
/// makes new ones; two domains that should meet on the mock's fabric come from one registry.
pub fn registry() -> Registry {
    let registry = Registry::default();
    #[cfg(feature = "efa")]
    let registry = registry.with(providers::efa::EfaProvider::default());
    #[cfg(feature = "mlx5")]
    let registry = registry.with(providers::mlx5::Mlx5Provider);
    #[cfg(feature = "verbs")]
    let registry = registry.with(providers::verbs::VerbsProvider::default());
    #[cfg(feature = "mock")]
    let registry = registry.with(providers::mock::MockProvider::default());
    registry
}

/// The README's examples are tests.
#[cfg(all(doctest, feature = "mock"))]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct Readme;
