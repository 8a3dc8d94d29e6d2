//! What versions of libefa know, in words. Asks no device; the table of functions is `ibv-sys`'s.

use ibv_sys::{EFADV_DEVICE_ATTR_CAPS_RDMA_READ, EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE, efadv_device_attr};
use std::sync::OnceLock;

/// The rdma-core whose libefa first told of RDMA write and built it (`EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE`).
const WRITE_SINCE: u32 = 46;

/// An rdma-core whose libefa polls a completion queue whether or not a queue pair uses it: the oldest that has been
/// seen to. Up to then each part of a queue counts its queue pairs, and one without any is passed over.
const POLLS_IDLE_QUEUES: u32 = 65;

/// Whether completions that a destroyed queue pair has left can be polled, and so thrown away.
pub(crate) fn polls_idle_queues() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| loaded().as_deref().and_then(rdma_core).is_some_and(|v| v >= POLLS_IDLE_QUEUES))
}

/// What a queue pair of this device can not do with this libefa; empty where it can do all that SRD has.
/// In a form that follows a statement.
pub(crate) fn lacks(attr: &efadv_device_attr) -> String {
    missing(attr, loaded().as_deref()).map_or(String::new(), |what| format!("; {what}"))
}

/// The version in the name of libefa's file: `1.2.44.0`.
fn loaded() -> Option<String> {
    ibv_sys::versions().into_iter().find(|v| v.library == "libefa.so.1")?.file_version
}

/// rdma-core ends the version of each of its libraries with its own.
fn rdma_core(file_version: &str) -> Option<u32> {
    file_version.split('.').nth(2)?.parse().ok()
}

fn missing(attr: &efadv_device_attr, file_version: Option<&str>) -> Option<String> {
    let has = |bit| attr.device_caps & bit != 0;
    let read = has(EFADV_DEVICE_ATTR_CAPS_RDMA_READ);
    if has(EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE) {
        return (!read).then(|| "the device has no RDMA read".into());
    }
    Some(match (file_version.and_then(rdma_core), read) {
        // The bit is one that it does not pass on.
        (Some(version), _) if version < WRITE_SINCE => {
            format!("libefa {version} has no RDMA write: needs rdma-core {WRITE_SINCE} or newer")
        }
        (_, true) => "the device has no RDMA write".into(),
        (_, false) => "the device has no RDMA, only messages".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(device_caps: u32) -> efadv_device_attr {
        efadv_device_attr { device_caps, ..efadv_device_attr::default() }
    }

    #[test]
    fn an_old_library_is_told_from_an_old_device() {
        let old = missing(&attr(1), Some("1.2.44.0")).unwrap();
        assert_eq!(old, "libefa 44 has no RDMA write: needs rdma-core 46 or newer");
        assert_eq!(missing(&attr(1), Some("1.4.65.0")).unwrap(), "the device has no RDMA write");
        assert_eq!(missing(&attr(0), Some("1.4.65.0")).unwrap(), "the device has no RDMA, only messages");
        assert_eq!(missing(&attr(1), None).unwrap(), "the device has no RDMA write");
        assert_eq!(missing(&attr(8), None).unwrap(), "the device has no RDMA read");
        assert_eq!(missing(&attr(9), Some("1.4.65.0")), None);
    }

    #[test]
    fn a_file_version_that_is_none_is_unknown() {
        assert_eq!([rdma_core("1.2.44.0"), rdma_core("1"), rdma_core("1.2.x.0")], [Some(44), None, None]);
    }
}
