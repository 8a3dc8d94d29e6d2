//! Structs that grow at their end from one rdma-core to the next: how much of one to pass, and what came back.
//! Does not know which bit of a `comp_mask` stands for which field: the constants of the struct say so.
//!
//! Three ways exist, and each has one rule:
//!
//! * *A length goes with the struct* (`inlen`, `attr_size`) *and the library fills it.* Pass the full length of a
//!   zeroed struct, as [`query`] does: an older library writes less, a newer one no more than the length.
//! * *A length goes with it and the library reads it.* Pass [`Extensible::used_len`]: an older library refuses
//!   bytes that it does not know, unless they are zero, and some refuse the length itself.
//! * *Only `comp_mask` goes with it.* Set the bits of exactly the fields that are set; after a query, read only
//!   the fields whose bits came back ([`Extensible::has`]).

use core::ffi::c_int;
use core::mem::{MaybeUninit, size_of};

/// A struct that has grown, or may grow, at its end.
///
/// # Safety
///
/// All bytes zero is a value of the type.
pub unsafe trait Extensible: Sized {
    /// The struct's name in C.
    const NAME: &'static str;
    /// Its size in bytes at each rdma-core version, of those looked at, that changed it; oldest first.
    const SIZES: &'static [(&'static str, usize)];

    /// The struct with all fields zero, from which to set what is wanted.
    fn zeroed() -> Self {
        // SAFETY: the trait's promise.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// The struct's `comp_mask`, if it has one.
    fn comp_mask(&self) -> Option<u64>;

    /// True if every bit of `mask` is set in `comp_mask`.
    fn has(&self, mask: impl Into<u64>) -> bool {
        let mask = mask.into();
        self.comp_mask().is_some_and(|set| set & mask == mask)
    }

    /// The least length in bytes, among those that a version of the struct had, that holds every field which is
    /// not zero: what an older library can still accept.
    fn used_len(&self) -> usize;
}

/// What is done for every extensible struct by [`each_extensible`](crate::each_extensible).
pub trait Visitor {
    /// Called once for each struct.
    fn visit<T: Extensible>(&mut self);
}

/// Calls a query with a zeroed struct and its full length, and gives what the library filled in.
///
/// # Errors
///
/// The error number that `call` returned.
pub fn query<T: Extensible>(call: impl FnOnce(*mut T, usize) -> c_int) -> Result<T, c_int> {
    // In place: a move of the value would not keep its padding zero.
    let mut attr = MaybeUninit::<T>::zeroed();
    match call(attr.as_mut_ptr(), size_of::<T>()) {
        // SAFETY: zero bytes are a value of the type, and what the library writes into a C struct is one too.
        0 => Ok(unsafe { attr.assume_init() }),
        code => Err(code),
    }
}

/// True if a field, which is an integer or a pointer and so has no padding, is not zero.
pub(crate) fn is_nonzero<F: Copy>(field: &F) -> bool {
    // SAFETY: integers, pointers and arrays of them, the only leaves of these structs, have no padding bytes.
    let bytes = unsafe { core::slice::from_raw_parts((&raw const *field).cast::<u8>(), size_of::<F>()) };
    bytes.iter().any(|byte| *byte != 0)
}
