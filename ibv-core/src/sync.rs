//! The atomics and the lock under completion queues and credits: the standard library's, or, under
//! `cfg(loom)`, loom's, which run every interleaving of a small model. What they are used for is in
//! `cq.rs` and `core/`; the models are in `sync/loom.rs`:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p ibv-core --release --lib loom
//! ```

#[cfg(all(feature = "recorder", not(loom)))]
pub(crate) use std::sync::atomic::fence;
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

#[cfg(all(feature = "recorder", loom))]
pub(crate) use ::loom::sync::atomic::fence;
#[cfg(loom)]
pub(crate) use ::loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

#[cfg(all(test, loom))]
mod loom;
