//! Opening a library at run time. Does not keep it: `load` does.
//!
//! # Safety
//!
//! See the parent module. Addresses come from `dlvsym` with the version that the table names.

use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Library, Loadable, mismatch, verbs};
use crate::error::{Attempt, LoadError};
use crate::plugin;
use crate::table::Symbol;

/// Opens a library: the file that the environment names, else the one that libibverbs uses, else by its soname.
pub fn open<T: Loadable>() -> Result<Library<T>, LoadError> {
    let chosen = std::env::var_os(T::VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let plugin = match T::PLUGIN {
        Some(prefix) => plugin::of_libibverbs(verbs()?, prefix),
        None => None,
    };
    if let (Some(loaded), Some(plugin)) = (&chosen, &plugin)
        && is_path(loaded)
        && !plugin::same_file(loaded, plugin)
    {
        return Err(mismatch::<T>(loaded, plugin));
    }
    let file = chosen.or(plugin).unwrap_or_else(|| PathBuf::from(T::SONAME));
    let handle = dlopen(&file).map_err(|answer| LoadError::LibraryNotFound {
        library: T::SONAME,
        variable: T::VARIABLE,
        tried: vec![Attempt { file: file.clone(), answer }],
    })?;
    // SAFETY: the handle is open and is never closed; dlvsym gives the named version of the named function.
    unsafe { Library::resolve(&file, |symbol| lookup(handle, symbol)) }
}

/// True for what the dynamic linker opens as it is, without a search.
fn is_path(file: &Path) -> bool {
    file.as_os_str().as_bytes().contains(&b'/')
}

fn dlopen(file: &Path) -> Result<NonNull<c_void>, String> {
    let name =
        CString::new(file.as_os_str().as_bytes()).map_err(|_| "the path has a zero byte".to_owned())?;
    // SAFETY: the name is a C string; RTLD_LOCAL keeps the library's names from changing anyone else's.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    NonNull::new(handle).ok_or_else(dlerror)
}

fn dlerror() -> String {
    // SAFETY: dlerror gives null or a C string that lives until this thread's next dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the dynamic linker does not say why".to_owned();
    }
    // SAFETY: as above; it is copied before any other call.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The address of one version of a symbol, and of no other.
fn lookup(handle: NonNull<c_void>, symbol: &Symbol) -> Option<NonNull<c_void>> {
    let name = CString::new(symbol.name).ok()?;
    #[cfg(target_env = "gnu")]
    let address = {
        let version = CString::new(symbol.version).ok()?;
        // SAFETY: an open handle and two C strings.
        unsafe { libc::dlvsym(handle.as_ptr(), name.as_ptr(), version.as_ptr()) }
    };
    // musl resolves no versions by name; dlsym takes the default one, which is the newest.
    #[cfg(not(target_env = "gnu"))]
    // SAFETY: an open handle and a C string.
    let address = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
    NonNull::new(address)
}
