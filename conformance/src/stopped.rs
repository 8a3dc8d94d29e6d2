//! What keeps a run from taking place, or ends one across two processes midway: said once, not for every case.

use crate::fixture::Unavailable;
use serde::Serialize;
use std::fmt;

/// Why no case was run, or none from some case on, or why end b stopped serving. Prints in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stopped {
    /// The kind, for programs.
    pub kind: StopKind,
    /// The reason in words.
    pub why: String,
}

/// Kinds of [`Stopped`]; each has an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopKind {
    /// There is a device and it does not work, or something else of the operating system's.
    Broken,
    /// What should be an address is none.
    NoAddress,
    /// The provider was required and has no device, or none that reaches another.
    NoDevice,
    /// Nobody is at the address.
    Unreachable,
    /// Who is there speaks something else.
    Stranger,
    /// It is another release.
    Version,
    /// It went away.
    Vanished,
    /// It said nothing for too long.
    Silent,
    /// It can not take part.
    Refused,
    /// It has another provider.
    Differs,
    /// The provider's two ends are always in one process.
    OneProcess,
}

impl StopKind {
    /// The exit code of a command that ends so.
    pub fn code(self) -> u8 {
        match self {
            Self::Broken => 1,
            Self::NoAddress => 2,
            Self::NoDevice => 3,
            Self::Unreachable => 20,
            Self::Stranger => 21,
            Self::Version => 22,
            Self::Vanished => 23,
            Self::Silent => 24,
            Self::Refused => 25,
            Self::Differs => 26,
            Self::OneProcess => 30,
        }
    }

    pub(crate) fn because(self, why: impl Into<String>) -> Stopped {
        Stopped { kind: self, why: why.into() }
    }
}

impl Stopped {
    /// Of a fixture without an end to test; `whose` stands before it.
    pub(crate) fn of(e: &Unavailable, whose: &str) -> Self {
        let kind = match e {
            Unavailable::Skip(_) => StopKind::NoDevice,
            Unavailable::OneProcess(_) => StopKind::OneProcess,
            Unavailable::Fail(_) => StopKind::Broken,
        };
        kind.because(format!("{whose}{}", e.reason()))
    }

    pub(crate) fn during(self, case: &str) -> Self {
        Self { why: format!("{} (during {case})", self.why), ..self }
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Stopped {}

impl From<Stopped> for String {
    fn from(stopped: Stopped) -> Self {
        stopped.why
    }
}
