//! Which file a function or libibverbs' plugin for a device came from. Opens nothing by itself.
//!
//! # Safety
//!
//! `dladdr` and `dl_iterate_phdr` only read the dynamic linker's own lists, whose strings are copied before the
//! call returns.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::NonNull;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::{Verbs, ibv_context};

/// The file of the provider library that libibverbs has loaded as a plugin, if it has loaded it.
///
/// Listing the devices is what makes libibverbs load its plugins, and only those of drivers that it may need.
#[cfg_attr(feature = "link", allow(dead_code))] // There the linker chose the file.
pub(crate) fn of_libibverbs(verbs: &Verbs, prefix: &str) -> Option<PathBuf> {
    let mut count = 0;
    // SAFETY: `count` is valid for the call; the list is freed once and no device of it is kept.
    unsafe {
        let list = verbs.ibv_get_device_list(&mut count);
        if !list.is_null() {
            verbs.ibv_free_device_list(list);
        }
    }
    chosen(loaded_objects(), prefix)
}

/// libibverbs opens `PREFIX-rdmavNN.so`; the dynamic linker keeps the name by which a file came in first.
fn chosen(objects: Vec<PathBuf>, prefix: &str) -> Option<PathBuf> {
    let mut ours = objects.into_iter().filter(|path| file_name(path).starts_with(prefix)).collect::<Vec<_>>();
    ours.sort_by_key(|path| !file_name(path).contains("-rdmav"));
    ours.into_iter().next()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The file of the provider library that drives an open device, if its name begins with the prefix.
///
/// # Safety
///
/// `context` is an open device context.
pub(crate) unsafe fn of_device(context: *const ibv_context, prefix: &str) -> Option<PathBuf> {
    // SAFETY: the caller's promise; the table of operations is plain function pointers.
    let ops = unsafe { (&raw const (*context).ops).read() };
    let addresses = [
        ops.poll_cq.map(|op| op as *mut c_void),
        ops.post_send.map(|op| op as *mut c_void),
        ops.post_recv.map(|op| op as *mut c_void),
        ops.req_notify_cq.map(|op| op as *mut c_void),
    ];
    let files = addresses.into_iter().flatten().filter_map(NonNull::new).filter_map(file_of);
    chosen(files.collect(), prefix)
}

/// The file that has the code at an address.
pub(crate) fn file_of(address: NonNull<c_void>) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: core::ptr::null(),
        dli_fbase: core::ptr::null_mut(),
        dli_sname: core::ptr::null(),
        dli_saddr: core::ptr::null_mut(),
    };
    // SAFETY: `info` is valid for the call, and the address may be any.
    let found = unsafe { libc::dladdr(address.as_ptr(), &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr filled in a C string that lives as long as the library is loaded; it is copied here.
    Some(path(unsafe { CStr::from_ptr(info.dli_fname) }))
}

/// True if two paths lead to one file.
pub(crate) fn same_file(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => a == b,
    }
}

/// The files of every shared object in the process.
#[cfg_attr(feature = "link", allow(dead_code))]
fn loaded_objects() -> Vec<PathBuf> {
    extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, paths: *mut c_void) -> c_int {
        // SAFETY: the dynamic linker gives a valid entry; `paths` is the vector below, borrowed by nobody else.
        let (name, paths) = unsafe { ((*info).dlpi_name, &mut *paths.cast::<Vec<PathBuf>>()) };
        if !name.is_null() {
            // SAFETY: a C string that lives through this callback.
            paths.push(path(unsafe { CStr::from_ptr(name) }));
        }
        0
    }
    let mut paths: Vec<PathBuf> = Vec::new();
    // SAFETY: the callback has the type that is asked for, does not unwind but on exhausted memory, and its
    // data is the vector, which lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut paths).cast()) };
    paths
}

fn path(name: &CStr) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(name.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_name_wins_over_the_soname() {
        let objects =
            ["/a/libmlx5.so.1", "/b/libibverbs/libmlx5-rdmav34.so", "/c/libefa.so.1"].map(PathBuf::from);
        assert_eq!(chosen(objects.to_vec(), "libmlx5"), Some("/b/libibverbs/libmlx5-rdmav34.so".into()));
        assert_eq!(chosen(objects.to_vec(), "libefa"), Some("/c/libefa.so.1".into()));
        assert_eq!(chosen(objects.to_vec(), "libbnxt"), None);
    }

    #[test]
    fn the_c_library_is_found_by_a_function_of_it_and_in_the_list() {
        let file = file_of(NonNull::new(libc::getpid as *mut c_void).unwrap()).unwrap();
        assert!(file_name(&file).starts_with("libc"), "{file:?}");
        assert!(loaded_objects().iter().any(|object| same_file(object, &file)), "{file:?}");
    }
}
