//! What the three tables of functions have in common: their symbols, and how an absent function answers.
//! Does not open libraries: `load` does.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::{self, NonNull};

use crate::{IBV_FORK_DISABLED, IBV_RATE_MAX, ibv_fork_status, ibv_rate};

/// One function of a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// The name that the library exports.
    pub name: &'static str,
    /// The symbol version with the signature that is bound; it names the release that brought it.
    pub version: &'static str,
    /// False for what came after the oldest supported rdma-core: absent, it answers EOPNOTSUPP.
    pub required: bool,
}

/// A table of one library's functions.
pub trait Table: Sized + Copy + 'static {
    /// The file name that the dynamic linker knows the library by.
    const SONAME: &'static str;
    /// Every symbol, in the table's order.
    const SYMBOLS: &'static [Symbol];

    /// Fills a table from a look-up; where it finds nothing, the function answers EOPNOTSUPP.
    ///
    /// # Safety
    ///
    /// Each address that `lookup` gives is that of the named function at the named version, and stays valid
    /// for the life of the process.
    unsafe fn resolve(lookup: impl FnMut(&'static Symbol) -> Option<NonNull<c_void>>) -> Self;
}

/// A table that the linker filled.
#[cfg(feature = "link")]
pub trait Linked: Table {
    /// The address of every symbol in the table's order, `None` for an optional one that is not defined.
    fn addresses() -> Vec<Option<NonNull<c_void>>>;
}

/// How a function of C says that it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Convention {
    /// It returns the error number.
    Code,
    /// It returns −1 and sets `errno`.
    MinusOne,
    /// It returns the negated error number.
    Negated,
    /// It returns null, false or nothing, and sets `errno`.
    Nothing,
}

/// A result by which an absent function answers EOPNOTSUPP.
pub trait Absent: Sized {
    /// Sets `errno` to EOPNOTSUPP and gives the failure value of the convention.
    fn absent(convention: Convention) -> Self;
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(code: c_int) {
    // SAFETY: the C library gives a valid pointer to the calling thread's own errno.
    unsafe { *libc::__errno_location() = code };
}

fn failure(convention: Convention) -> c_int {
    set_errno(libc::EOPNOTSUPP);
    match convention {
        Convention::Code => libc::EOPNOTSUPP,
        Convention::MinusOne => -1,
        Convention::Negated => -libc::EOPNOTSUPP,
        Convention::Nothing => 0,
    }
}

impl Absent for c_int {
    fn absent(convention: Convention) -> Self {
        failure(convention)
    }
}

impl Absent for isize {
    fn absent(convention: Convention) -> Self {
        failure(convention) as isize
    }
}

impl Absent for u64 {
    fn absent(convention: Convention) -> Self {
        failure(convention);
        0
    }
}

impl Absent for bool {
    fn absent(convention: Convention) -> Self {
        failure(convention);
        false
    }
}

impl Absent for () {
    fn absent(convention: Convention) {
        failure(convention);
    }
}

impl<T> Absent for *mut T {
    fn absent(convention: Convention) -> Self {
        failure(convention);
        ptr::null_mut()
    }
}

impl Absent for *const c_char {
    /// A string: those who print what `ibv_wc_status_str` gives do not expect null.
    fn absent(convention: Convention) -> Self {
        failure(convention);
        c"unknown".as_ptr()
    }
}

impl Absent for ibv_rate {
    fn absent(convention: Convention) -> Self {
        failure(convention);
        IBV_RATE_MAX
    }
}

impl Absent for ibv_fork_status {
    fn absent(convention: Convention) -> Self {
        failure(convention);
        IBV_FORK_DISABLED
    }
}
