//! An RDMA fabric inside the process: devices that move real bytes between registered memory, keep a
//! virtual clock, and break on request. For tests of code over `ibv-core`, and the reference that other
//! providers are compared with. No verbs types, no C.
#![deny(unsafe_code)]

mod domain;
mod fabric;
mod faults;
pub mod model;
mod queue_pair;
mod schedule;
mod tap;
mod trace;

pub use domain::{MockCq, MockDomain, MockPoller, MockProvider, MockRegistration};
pub use fabric::{Drive, Events, Fabric, FabricConfig};
pub use faults::{Faults, Verb};
pub use queue_pair::MockQueuePair;
pub use schedule::Schedule;
pub use tap::{Tap, TapRequest, Verdict};
pub use trace::Counters;
