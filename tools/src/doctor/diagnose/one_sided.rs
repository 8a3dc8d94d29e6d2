//! Devices that open and can not put or get: which of library, kernel driver and device is to blame. Devices that do
//! not open at all are `device.rs`'s.

use super::{Cause, Finding};
use crate::doctor::snapshot::{Device, LibraryState, Snapshot};

/// The rdma-core whose libefa has RDMA write. It came with a field of a structure, so no missing function tells.
const EFA_WRITE: u32 = 46;

/// Of the provider that would open it, what it lacks of puts and gets.
pub(super) fn of(facts: &Snapshot, device: &Device) -> Option<Finding> {
    let opener = device.claims.iter().find(|c| c.claimed && c.open_error.is_none())?;
    let lacks = |what: &str| opener.absent.iter().any(|name| name == what);
    let (write, read) = (lacks("write"), lacks("read"));
    let missing = match (write, read) {
        (true, true) => "neither RDMA write nor RDMA read",
        (true, false) => "no RDMA write",
        (false, true) => "no RDMA read",
        (false, false) => return None,
    };
    let can = match (write, read) {
        (true, true) => "sends only",
        (true, false) => "gets and sends only",
        _ => "puts and sends only",
    };
    let by_efa = device.driver.as_deref() == Some("efa") || opener.provider == "efa";
    let old = by_efa.then(|| efa_library(facts)).flatten();
    let old = old.filter(|version| write && *version < EFA_WRITE);
    let (wanted, action) = match old {
        Some(_) => (
            format!("libefa of rdma-core {EFA_WRITE} or newer, the first that asks for RDMA write"),
            "install a newer rdma-core, or Amazon's EFA installer, which brings one",
        ),
        None => (
            "puts and gets; a newer kernel driver may offer what the device has".into(),
            "update the kernel driver (EFA: Amazon's EFA installer), or use a newer device or instance type",
        ),
    };
    let library = old.map(|version| format!(", with libefa of rdma-core {version}")).unwrap_or_default();
    Some(
        Finding::warning(Cause::NoOneSided, &device.name)
            .found(format!("{missing} by provider {}{library}: {can}", opener.provider))
            .wanted(wanted)
            .action(action),
    )
}

/// The rdma-core that libefa is of: `1.2.44.0` is of 44.
fn efa_library(facts: &Snapshot) -> Option<u32> {
    match &facts.library("libefa")?.state {
        LibraryState::Loaded { file_version, .. } => file_version.as_ref()?.split('.').nth(2)?.parse().ok(),
        _ => None,
    }
}
