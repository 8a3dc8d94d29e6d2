//! How much memory a process may still take. Asked before a transfer allocates, because Linux grants
//! more than it has and kills whoever then uses it.

use std::fs;

/// Bytes that can still be had: the host's, or the control group's where that is less. `None` where
/// neither says.
pub(crate) fn available() -> Option<u64> {
    let host = read("/proc/meminfo").and_then(|text| meminfo_available(&text));
    [host, cgroup_v2(), cgroup_v1()].into_iter().flatten().min()
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn number(path: &str) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

fn cgroup_v2() -> Option<u64> {
    left(number("/sys/fs/cgroup/memory.max")?, number("/sys/fs/cgroup/memory.current")?)
}

fn cgroup_v1() -> Option<u64> {
    let file = |name: &str| number(&format!("/sys/fs/cgroup/memory/memory.{name}"));
    left(file("limit_in_bytes")?, file("usage_in_bytes")?)
}

fn left(limit: u64, used: u64) -> Option<u64> {
    Some(limit.saturating_sub(used))
}

/// `MemAvailable`, which is in kibibytes whatever unit the kernel prints (proc(5)).
fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_kibibytes() {
        let text = "MemTotal:       16 kB\nMemFree:  1 kB\nMemAvailable:     12 kB\n";
        assert_eq!(meminfo_available(text), Some(12 * 1024));
        assert_eq!(meminfo_available("MemTotal: 5 kB\n"), None);
        assert_eq!(meminfo_available("MemAvailable: many kB\n"), None);
        assert_eq!(meminfo_available("MemAvailable: 18446744073709551615 kB\n"), None);
    }

    #[test]
    fn this_host_says_something() {
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
