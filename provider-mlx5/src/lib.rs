//! mlx5 devices (ConnectX) driven directly: this crate builds WQEs, rings doorbells and reads CQEs by
//! itself; libmlx5 only creates objects and moves states.
//!
//! Who does what: `wqe.rs` and `cqe.rs` know the bytes, `ring.rs` the counters, `doorbell.rs` the order
//! towards the device, `poller.rs` the order from it, `dv.rs` calls libmlx5, `seed.rs` is the seeds' struct over all of it.
//! `decode.rs` reads the same bytes for people and tests, apart from all of these.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

pub mod cqe;
pub mod decode;
pub mod doorbell;
pub mod ring;
pub mod seed;
pub mod wqe;

mod completion_queue;
mod domain;
mod dv;
mod mapped;
mod poller;
mod queue_pair;
mod state;

pub use crate::{
    completion_queue::Mlx5Cq,
    domain::{Mlx5Domain, Mlx5Options, Mlx5Provider},
    poller::Mlx5Poller,
    queue_pair::Mlx5QueuePair,
    seed::{IbvQueuePair, SeedDomain},
};
