//! What the control path did, as one event a step (feature `tracing`): at level debug what succeeded, at
//! level warn what failed. Posts and polls are silent, whatever the level: they have the recorder.

use std::fmt;

use crate::error::Error;

/// One step on `object`, as the field calls the verb.
#[cfg(feature = "tracing")]
pub(crate) fn step(verb: &'static str, object: fmt::Arguments<'_>, failed: Option<&Error>) {
    match failed {
        None => tracing::debug!(verb, %object, "done"),
        Some(error) => tracing::warn!(verb, %object, kind = ?error.kind(), %error, "failed"),
    }
}

#[cfg(not(feature = "tracing"))]
#[inline]
pub(crate) fn step(_verb: &'static str, _object: fmt::Arguments<'_>, _failed: Option<&Error>) {}
