//! An RDMA fabric inside the process: devices that move real bytes between registered memory, keep a
//! virtual clock, and break on request. For tests of code over `ibv-core`, and the reference that other
//! providers are compared with. No verbs types, no C.
//!
//! Inside, from the top:
//!
//! ```text
//! MockQueuePair, MockDomain   queue_pair.rs domain.rs   what a provider writes; what is built, not rung
//!        │ one lock
//!        ▼
//! State                       fabric/state.rs           the verbs; devices, queues, keys
//! Engine                      fabric/engine.rs          time, completions, errors
//!   in_order.rs unordered.rs                            which request does what next
//!   execute.rs transfer.rs                              whether it may, and the bytes
//!        │ asks
//!        ▼
//! model                       model.rs                  the rules, pure
//! ```
//!
//! The rest of this page is the README.
//!
#![doc = include_str!("../README.md")]
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
