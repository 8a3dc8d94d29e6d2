//! Messages to standard error: warnings always, details if `SOFTNIC_DEBUG` is set. No policy.

use std::fmt::Display;
use std::sync::OnceLock;

/// Something that the user should know.
pub fn warn(message: &dyn Display) {
    eprintln!("softnic: {message}");
}

/// A detail, made only if it will be shown.
pub fn debug(message: impl FnOnce() -> String) {
    static ON: OnceLock<bool> = OnceLock::new();
    if *ON.get_or_init(|| std::env::var_os("SOFTNIC_DEBUG").is_some()) {
        eprintln!("softnic[{}]: {}", std::process::id(), message());
    }
}
