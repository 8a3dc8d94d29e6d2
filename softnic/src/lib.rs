//! Software RDMA devices behind the kernel's uverbs ABI: unmodified vendor libraries drive them, on any Linux machine.
//!
//! Two ways in: `LD_PRELOAD=libsoftnic.so` for tools that exist already (`cargo xtask softnic -- COMMAND` sets it up), and
//! linked into a test binary, where [`Softnic::start`] gives the test the device's clock, faults and reports. Never to be
//! taken for hardware: sysfs says [`sysfs::BOARD_ID`]. What is modelled, assumed and left out is listed in the `README.md`.
#![deny(unsafe_code)]

pub mod description;
pub mod drive;
pub mod efa;
pub mod event;
pub mod fabric;
pub mod fault;
pub mod host;
pub mod incident;
pub mod log;
pub mod memory;
pub mod mlx5;
pub mod numbered;
pub mod preload;
pub mod ready;
pub mod rules;
pub mod sysfs;
pub mod touched;
pub mod trace;
pub mod uverbs;

mod environment;
mod fork;
mod machine;
mod quiet;
#[cfg(any(test, target_arch = "x86_64"))]
mod store;
mod trap;
mod tree;

pub use machine::{Config, Drive, Softnic, StartError};

/// Compiles the examples of the `README.md`.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
