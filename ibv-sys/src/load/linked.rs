//! Taking a library that the linker bound. Does not look for one: a process without it does not start.
//!
//! # Safety
//!
//! See the parent module. The linker binds a name to the default version that the library defines, which is the
//! version that the table names; a function that the library lacked when linking has the address zero.

use std::path::Path;

use super::{Library, Loadable};
use crate::error::LoadError;

/// Fills the table from the linked symbols.
pub fn open<T: Loadable>() -> Result<Library<T>, LoadError> {
    let mut addresses = T::addresses().into_iter();
    // SAFETY: addresses come in the table's order, each of the symbol that is asked for.
    unsafe { Library::resolve(Path::new(T::SONAME), |_| addresses.next().flatten()) }
}
