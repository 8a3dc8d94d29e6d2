//! libibverbs, libmlx5 and libefa for Rust: their types, their functions found at run time, and the functions
//! that their headers define inline. No policy and no `Drop`: who owns what is for the crates above.
//!
//! Building needs a Rust toolchain and a linker, nothing of rdma-core. [`verbs()`], [`mlx5dv()`] and [`efadv()`]
//! open the libraries on first use and answer with a typed [`LoadError`] where there are none:
//!
//! ```
//! match ibv_sys::verbs() {
//!     Ok(verbs) => {
//!         let mut count = 0;
//!         // SAFETY: `count` is valid for the call; the list is freed once, below.
//!         let list = unsafe { verbs.ibv_get_device_list(&mut count) };
//!         println!("{count} devices through {}", verbs.path().display());
//!         if !list.is_null() {
//!             // SAFETY: the list came from ibv_get_device_list and is not used again.
//!             unsafe { verbs.ibv_free_device_list(list) };
//!         }
//!     }
//!     Err(error) => println!("{error}"),
//! }
//! ```
//!
//! Names are those of the C headers. Enums of values are newtypes with constants ([`ibv_qp_state`],
//! [`IBV_QPS_RTS`]); masks and numbered constants are integers. Functions that a library exports are methods of
//! its table ([`Verbs`], [`Mlx5dv`], [`Efadv`]); so are the header's inline functions that call an exported one
//! ([`Verbs::ibv_query_port`]). The other inline functions are free functions here ([`ibv_post_send`]).
//!
//! # Differences from C
//!
//! * An operation that the device or the library lacks answers EOPNOTSUPP; nothing calls through null.
//!   Therefore the `ibv_wr_*` builders, void in C, return 0 or EOPNOTSUPP, and the readers of an extended
//!   completion queue return `Result<value, errno>`.
//! * `ibv_query_port` is the header's: the symbol of that name fills a struct frozen long ago, and is only
//!   there as [`Verbs::compat_ibv_query_port`].
//! * `mlx5_wqe_ctrl_seg::dci_stream_channel_id` is two big-endian bytes, since it lies at an odd offset.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[path = "generated/efadv.rs"]
pub mod efadv_types;
#[path = "generated/mlx5dv.rs"]
pub mod mlx5dv_types;
#[path = "generated/verbs.rs"]
pub mod verbs_types;

#[path = "generated/efadv_symbols.rs"]
mod efadv_symbols;
#[path = "generated/mlx5dv_symbols.rs"]
mod mlx5dv_symbols;
#[path = "generated/verbs_symbols.rs"]
mod verbs_symbols;

// Other targets have the same C declarations; their layouts are just not asserted here.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg(target_pointer_width = "64")]
#[path = "generated/layout.rs"]
mod layout;
// musl's pthread types are smaller, in its libibverbs too.
#[cfg(all(target_arch = "aarch64", target_env = "gnu", target_pointer_width = "64"))]
#[path = "generated/layout_aarch64.rs"]
mod layout_aarch64;
#[cfg(all(target_arch = "x86_64", target_env = "gnu", target_pointer_width = "64"))]
#[path = "generated/layout_x86_64.rs"]
mod layout_x86_64;

#[path = "generated/sizes.rs"]
mod sizes;

mod environment;
mod error;
pub mod extend;
mod inline;
mod load;
mod macros;
mod plugin;
#[cfg(feature = "rdma-sys")]
mod rdma_sys_bridge;
pub mod table;

pub use efadv_symbols::Efadv;
pub use efadv_types::*;
pub use environment::{RingVariable, ring_variables, ring_variables_in};
pub use error::{Attempt, LoadError};
pub use extend::Extensible;
pub use inline::*;
pub use load::{Library, LibraryVersion, efadv, mlx5dv, verbs, versions};
pub use mlx5dv_symbols::Mlx5dv;
pub use mlx5dv_types::*;
#[cfg(feature = "rdma-sys")]
#[cfg_attr(docsrs, doc(cfg(feature = "rdma-sys")))]
pub use rdma_sys_bridge::*;
pub use sizes::{RDMA_CORE_VERSION, each_extensible};
pub use table::Symbol;
pub use verbs_symbols::Verbs;
pub use verbs_types::*;

pub(crate) use macros::{extensible, layout, symbols, zeroed_default};
