//! What each inline function answers when the operation is not there: EOPNOTSUPP in its own way, and no call.
//!
//! # Safety
//!
//! Every function of C that is called has the type that it is called by, and no recorder follows a pointer.
#![allow(clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)] // The paragraph above holds for all.

use std::ffi::{c_int, c_uint, c_void};

use ibv_sys::*;

use super::bench::Bench;
use super::calls::inline_functions;
use super::recorder::{Word, take_calls};
use super::with_c;

fn p<T>(n: usize) -> *mut T {
    (n * 0x1000) as *mut T
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn clear_errno() {
    unsafe { *libc::__errno_location() = 0 };
}

/// EOPNOTSUPP as a code, negated, as an `Err`, or null with `errno`.
fn says_unsupported(result: u64) -> bool {
    let code = libc::EOPNOTSUPP as u64;
    result == code
        || result == code.wrapping_neg()
        || result == u64::MAX - code
        || (result == 0 && errno() == libc::EOPNOTSUPP)
}

/// Calls every function that needs no table, and gives the name and result of those that do not say EOPNOTSUPP.
fn not_refused(bench: &mut Bench) -> Vec<(&'static str, u64)> {
    let mut wrong = Vec::new();
    macro_rules! refuse {
        ($($name:ident [$($on:ident)?] fn($($ty:ty),*) -> $ret:ty = ($($arg:expr),*);)*) => {
            $(refuse!(@one [$($on)?] $name($($arg),*));)*
        };
        (@one [$on:ident] $name:ident($($arg:expr),*)) => {};
        (@one [] $name:ident($($arg:expr),*)) => {
            clear_errno();
            #[allow(unused_unsafe)] // One of them is a cast, and safe.
            let result = unsafe { $name($($arg),*) }.word();
            if !says_unsupported(result) || !take_calls().is_empty() {
                wrong.push((stringify!($name), result));
            }
        };
    }
    inline_functions!(refuse, bench);
    wrong
}

#[test]
fn a_null_operation_is_never_called() {
    assert_eq!(not_refused(&mut Bench::without_operations()), [("ibv_cq_ex_to_cq", 0x9000)]);
}

#[test]
fn a_post_that_is_not_there_refuses_the_first_request() {
    let mut bench = Bench::without_operations();
    let mut bad = std::ptr::null_mut();
    unsafe {
        assert_eq!(ibv_post_send(&mut *bench.qp, p(1), &mut bad), libc::EOPNOTSUPP);
        assert_eq!(bad, p(1));
        assert_eq!(ibv_post_recv(&mut *bench.qp, p(1), std::ptr::null_mut()), libc::EOPNOTSUPP);
    }
}

#[test]
fn a_context_that_is_not_extended_has_only_plain_operations() {
    let mut bench = Bench::new();
    bench.forget_extension();
    let works = not_refused(&mut bench).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert!(works.contains(&"ibv_post_send") && works.contains(&"ibv_wr_send"), "{works:?}");
    for extended in
        ["ibv_create_cq_ex", "ibv_alloc_td", "ibv_advise_mr", "ibv_close_xrcd", "ibv_read_counters"]
    {
        assert!(!works.contains(&extended), "{extended} called an operation of a context that has none");
    }
}

/// Those that C checks too (`verbs_get_ctx_op`) answer what C answers.
#[test]
fn an_older_library_is_refused_as_c_refuses_it() {
    with_c(|headers, _, c| {
        let mut compared = 0;
        for size in [8, size_of::<verbs_context>() - std::mem::offset_of!(verbs_context, create_cq_ex)] {
            let mut bench = Bench::new();
            bench.extended.sz = size;
            macro_rules! compare {
                ($($name:ident [$($on:ident)?] fn($($ty:ty),*) -> $ret:ty = ($($arg:expr),*);)*) => {
                    $(compare!(@one [$($on)?] $name fn($($ty),*) -> $ret = ($($arg),*));)*
                };
                (@one [$on:ident] $($rest:tt)*) => {};
                (@one [] $name:ident fn($($ty:ty),*) -> $ret:ty = ($($arg:expr),*)) => {
                    // C does not check this one operation, and would call whatever lies there.
                    let checked = stringify!($name) != "ibv_close_xrcd";
                    if let Some(function) = c.function(stringify!($name)).filter(|_| checked) {
                        let theirs = unsafe {
                            let function: unsafe extern "C" fn($($ty),*) -> $ret = std::mem::transmute(function);
                            function($($arg),*).word()
                        };
                        let their_calls = take_calls();
                        #[allow(unused_unsafe)] // One of them is a cast, and safe.
                        let ours = unsafe { $name($($arg),*) }.word();
                        assert_eq!((ours, take_calls()), (theirs, their_calls), "{}: {}", headers.label, stringify!($name));
                        compared += 1;
                    }
                };
            }
            inline_functions!(compare, bench);
        }
        assert!(compared > 150, "{}: only {compared} calls compared", headers.label);
    });
}
