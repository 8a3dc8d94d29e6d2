//! What the facts mean: from a [`Snapshot`] to findings, each with a cause, what was found, what was needed
//! and what to do. Pure: looks at nothing but the facts, so a file from elsewhere is judged the same way.
//!
//! An error keeps every device from being used. What is wrong with one device or port while another one
//! works is a warning, and so is what works but slower, or not everywhere.

mod device;
mod host;
mod node;
mod one_sided;

use super::snapshot::Snapshot;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Nothing can be used before this is put right.
    Error,
    /// Something can be used; this can not, or costs something.
    Warning,
}

impl Severity {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// What is wrong, for programs; the words are for people and may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cause {
    LibraryMissing,
    LibraryUnusable,
    TwoCopies,
    ModuleMissing,
    AdapterWithoutDriver,
    NoDevice,
    NodeMissing,
    NodePermission,
    MemlockTooLow,
    RingVariable,
    ProviderBlind,
    NotClaimed,
    DoesNotOpen,
    NoOneSided,
    NoPort,
    PortDown,
    NoSubnetManager,
    NoGid,
    LinkLocalGidOnly,
    RoceV1Only,
    MtuAgainstNetdev,
    MtuBetweenPorts,
    GpuMemory,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    pub(crate) cause: Cause,
    /// What it is about: a device, a port, a file.
    pub(crate) about: String,
    pub(crate) found: String,
    pub(crate) wanted: String,
    /// What to do.
    pub(crate) action: String,
}

impl Finding {
    fn error(cause: Cause, about: impl Into<String>) -> Self {
        let (found, wanted, action) = Default::default();
        Self { severity: Severity::Error, cause, about: about.into(), found, wanted, action }
    }

    fn warning(cause: Cause, about: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(cause, about) }
    }

    fn found(self, found: impl Into<String>) -> Self {
        Self { found: found.into(), ..self }
    }

    fn wanted(self, wanted: impl Into<String>) -> Self {
        Self { wanted: wanted.into(), ..self }
    }

    fn action(self, action: impl Into<String>) -> Self {
        Self { action: action.into(), ..self }
    }
}

/// Everything that is wrong, what stops everything first.
pub(crate) fn diagnose(facts: &Snapshot) -> Vec<Finding> {
    let mut findings = host::diagnose(facts);
    let devices: Vec<_> = facts.real_devices().map(|d| device::diagnose(facts, d)).collect();
    let one_works = devices.iter().any(device::Verdict::works);
    for finding in findings.iter_mut().filter(|f| one_works && is_vendor_library(f)) {
        finding.severity = Severity::Warning;
    }
    for finding in devices.into_iter().flat_map(device::Verdict::into_findings) {
        let severity = if one_works { Severity::Warning } else { finding.severity };
        findings.push(Finding { severity, ..finding });
    }
    findings.extend(device::mtu_between_ports(facts));
    findings.sort_by_key(|f| f.severity);
    findings
}

/// Without libibverbs nothing works; without a vendor's, only that vendor's devices do not.
fn is_vendor_library(finding: &Finding) -> bool {
    let library = matches!(finding.cause, Cause::LibraryMissing | Cause::LibraryUnusable | Cause::TwoCopies);
    library && !finding.about.starts_with("libibverbs")
}

/// Whether some device of these facts can be used.
pub(crate) fn usable(findings: &[Finding]) -> bool {
    findings.iter().all(|f| f.severity != Severity::Error)
}

#[cfg(test)]
mod tests;
