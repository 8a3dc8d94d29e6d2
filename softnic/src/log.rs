//! Messages to standard error: warnings always, details if `SOFTNIC_DEBUG` is 1. No policy.

use std::{
    fmt::{Arguments, Display},
    io::{self, Write},
    sync::OnceLock,
};

/// Something that the user should know.
pub fn warn(message: &dyn Display) {
    tell(format_args!("softnic: {message}\n"));
}

/// Without a panic, which could not leave a function that C called: the program may have closed its standard error.
fn tell(what: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(what);
}

/// A detail, made only if it will be shown.
pub fn debug(message: impl FnOnce() -> String) {
    static ON: OnceLock<bool> = OnceLock::new();
    if *ON.get_or_init(|| crate::environment::is_on("SOFTNIC_DEBUG")) {
        tell(format_args!("softnic[{}]: {}\n", std::process::id(), message()));
    }
}
