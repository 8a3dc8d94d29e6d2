//! What goes to standard output, and what becomes of it where nobody takes it.

use crate::Failure;
use serde::Serialize;
use std::{
    fmt::Display,
    io::{self, Write},
};

/// As a table, or as one JSON object.
pub(super) fn show(what: &(impl Display + Serialize), json: bool) -> Result<(), Failure> {
    if json {
        let text = serde_json::to_string_pretty(what).map_err(|e| Failure::output(e.into()))?;
        return write(&(text + "\n"));
    }
    write(&format!("{what}\n"))
}

/// At once, since each line by itself would be a system call.
pub(super) fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
}

/// What clap has to say: help and versions, to standard output, or usage errors. The exit code.
pub(super) fn answer(said: &clap::Error) -> Result<u8, Failure> {
    match said.print() {
        // Of what standard error does not take, the exit code says enough.
        Err(e) if !said.use_stderr() => Err(Failure::output(e)),
        _ => Ok(said.exit_code() as u8),
    }
}
