//! The functions that verbs.h, mlx5dv.h and efadv.h define inline, going through the operation tables as they do.
//! Holds none that a library exports: those are methods of its table.
//!
//! # Safety
//!
//! Every function here takes the pointers that its C namesake takes, and the caller promises what the manual
//! page asks: objects are alive and of this device, arrays have their stated length, out-pointers are writable.
//! What the functions themselves add is one check: an operation that is null is not called.

mod context;
mod cq_ex;
mod efadv;
mod mlx5_segments;
mod mlx5dv;
mod objects;
mod post;
mod tables;
mod wr;

pub use context::verbs_get_ctx;
pub use cq_ex::*;
pub use efadv::*;
pub use mlx5_segments::*;
pub use mlx5dv::*;
pub use objects::*;
pub use post::*;
pub use wr::*;

/// Calls an operation of an object's own table: `op!((*qp).wr_start(qp))` is 0 or EOPNOTSUPP for a void operation.
macro_rules! void_op {
    ($object:ident.$op:ident($($arg:expr),*)) => {{
        // SAFETY: the caller's promise: the object is alive; the operation is its own, with its own arguments.
        match unsafe { (*$object).$op } {
            Some(op) => {
                // SAFETY: as above.
                unsafe { op($object, $($arg),*) };
                0
            }
            None => libc::EOPNOTSUPP,
        }
    }};
}

/// Defines one builder per operation of an extended object: void in C, 0 or EOPNOTSUPP here.
macro_rules! builders {
    ($object:ty; $($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) => $op:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// Gives 0, or EOPNOTSUPP if the object was created without this operation.
            ///
            /// # Safety
            ///
            #[doc = concat!("As for `", stringify!($name), "` in C: the object is alive and between start and complete, ")]
            /// and every pointer is valid as the manual page says.
            #[inline]
            #[must_use = "EOPNOTSUPP says that nothing was built"]
            pub unsafe fn $name(object: *mut $object $(, $arg: $ty)*) -> core::ffi::c_int {
                $crate::inline::void_op!(object.$op($($arg),*))
            }
        )*
    };
}

pub(crate) use {builders, void_op};
