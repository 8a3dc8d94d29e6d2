//! The transport's rule-book: sequence numbers, timers, and what a reliable connection grants or refuses.
//! Pure functions of values; no bytes of any device, no memory, no clock.

/// A packet sequence number: 24 bits, compared modulo 2^24.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Psn(u32);

impl Psn {
    /// Takes the low 24 bits.
    pub fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }

    /// The number `n` packets later.
    pub fn plus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// How far `self` is ahead of `other`; negative if behind (at most 2^23 either way).
    pub fn ahead_of(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }
}

/// How many packets a message of `len` bytes takes on a path of `mtu` bytes; an empty one takes one.
pub fn packets(len: u64, mtu: u32) -> u32 {
    len.div_ceil(u64::from(mtu.max(1))).clamp(1, 1 << 23) as u32
}

/// Bytes of the verbs MTU code (1 is 256, 5 is 4096).
pub fn mtu_bytes(code: u8) -> Option<u32> {
    (1..=5).contains(&code).then(|| 128 << code)
}

/// Local ACK timeout in nanoseconds: 4.096 µs · 2^code; 0 means never (IB spec vol. 1, 9.7.6.1.3).
pub fn ack_timeout_ns(code: u8) -> Option<u64> {
    (code & 31 != 0).then(|| 4096u64 << (code & 31))
}

/// RNR NAK timer in nanoseconds by its 5-bit code (IB spec vol. 1, table "Encoding for RNR NAK Timer Field").
pub fn rnr_timer_ns(code: u8) -> u64 {
    const UNITS_OF_10_US: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    u64::from(UNITS_OF_10_US[usize::from(code & 31)]) * 10_000
}

/// What a request does at its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteAccess {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// An atomic.
    Atomic,
}

/// Access flags of regions and queue pairs, as verbs numbers them.
pub mod access {
    /// Local writes (receives, READ results, atomic results).
    pub const LOCAL_WRITE: u32 = 1;
    /// Remote WRITE.
    pub const REMOTE_WRITE: u32 = 2;
    /// Remote READ.
    pub const REMOTE_READ: u32 = 4;
    /// Remote atomics.
    pub const REMOTE_ATOMIC: u32 = 8;
    /// Addresses of the region start at 0.
    pub const ZERO_BASED: u32 = 32;
}

impl RemoteAccess {
    /// The flag that both the queue pair and the region must have.
    pub fn flag(self) -> u32 {
        match self {
            Self::Write => access::REMOTE_WRITE,
            Self::Read => access::REMOTE_READ,
            Self::Atomic => access::REMOTE_ATOMIC,
        }
    }
}

/// The facts of a region that decide an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionFacts {
    /// Protection domain.
    pub pd: u32,
    /// Access flags.
    pub access: u32,
    /// First address by which it is reached.
    pub iova: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Why an access to a region was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// The key names no region, or an earlier one.
    Key,
    /// Another protection domain.
    Domain,
    /// A missing access flag.
    Flag,
    /// Outside of the region, or past the end of the address space.
    Range,
}

/// Whether `len` bytes at `addr` of a region may be accessed; answers the offset into the region.
pub fn check_region(
    region: Option<RegionFacts>,
    pd: u32,
    need: u32,
    addr: u64,
    len: u64,
) -> Result<u64, Denied> {
    let region = region.ok_or(Denied::Key)?;
    if region.pd != pd {
        return Err(Denied::Domain);
    }
    if region.access & need != need {
        return Err(Denied::Flag);
    }
    let offset = addr.checked_sub(region.iova).ok_or(Denied::Range)?;
    let end = offset.checked_add(len).ok_or(Denied::Range)?;
    if addr.checked_add(len).is_none() || end > region.len {
        return Err(Denied::Range);
    }
    Ok(offset)
}

/// Negative acknowledgements of a responder (IB spec vol. 1, 9.7.5.2.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Nak {
    /// No receive is posted; try again after the timer with this code.
    ReceiverNotReady(u8),
    /// A packet is missing: send again from the expected number.
    Sequence,
    /// The request can't be carried out as it is.
    InvalidRequest,
    /// Key, domain, flag or range.
    RemoteAccess,
    /// The responder failed.
    RemoteOperation,
}

/// What a completion says, in the verbs' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Status {
    /// Done.
    Success,
    /// A message longer than its receive, or than the device allows.
    LocalLength,
    /// A malformed request.
    LocalQpOperation,
    /// A local key, domain, flag or range.
    LocalProtection,
    /// Never executed: the queue pair was in error.
    Flushed,
    /// The responder refused the request as invalid.
    RemoteInvalidRequest,
    /// The responder refused access.
    RemoteAccess,
    /// The responder failed.
    RemoteOperation,
    /// Nobody answered.
    RetryExceeded,
    /// The peer never posted a receive.
    RnrRetryExceeded,
}

impl Nak {
    /// The requester's completion status, for those that end the connection.
    pub fn status(self) -> Option<Status> {
        match self {
            Self::ReceiverNotReady(_) | Self::Sequence => None,
            Self::InvalidRequest => Some(Status::RemoteInvalidRequest),
            Self::RemoteAccess => Some(Status::RemoteAccess),
            Self::RemoteOperation => Some(Status::RemoteOperation),
        }
    }
}

/// Where an arriving request stands in the responder's sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The expected one.
    Expected,
    /// Already executed: acknowledge again, without executing.
    Duplicate,
    /// Something before it was lost.
    Ahead,
}

/// Compares an arriving number with the expected one.
pub fn arrival(psn: Psn, expected: Psn) -> Arrival {
    match psn.ahead_of(expected) {
        0 => Arrival::Expected,
        d if d < 0 => Arrival::Duplicate,
        _ => Arrival::Ahead,
    }
}

/// A retry budget: what is left of it, with 7 meaning "for ever" where `endless` says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    limit: u8,
    left: u8,
    endless: bool,
}

impl Retries {
    /// A budget of transport retries: `limit` more attempts.
    pub fn transport(limit: u8) -> Self {
        Self { limit, left: limit, endless: false }
    }

    /// A budget of receiver-not-ready retries, where 7 never runs out.
    pub fn rnr(limit: u8) -> Self {
        Self { limit, left: limit, endless: limit == 7 }
    }

    /// Takes one; false if none is left.
    pub fn take(&mut self) -> bool {
        if self.endless {
            return true;
        }
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        some
    }

    /// Progress was made: the full budget again.
    pub fn refill(&mut self) {
        self.left = self.limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REGION: RegionFacts = RegionFacts { pd: 1, access: 7, iova: 0x1000, len: 0x100 };

    #[test]
    fn a_region_grants_its_own_bytes_and_no_other() {
        let check = |pd, need, addr, len| check_region(Some(REGION), pd, need, addr, len);
        assert_eq!(check(1, 2, 0x1000, 0x100), Ok(0));
        assert_eq!(check(1, 2, 0x1100, 0), Ok(0x100));
        assert_eq!(check(1, 2, 0x1001, 0x100), Err(Denied::Range));
        assert_eq!(check(1, 2, 0xfff, 1), Err(Denied::Range));
        assert_eq!(check(1, 2, 0x1010, u64::MAX), Err(Denied::Range));
        assert_eq!(check(1, 8, 0x1000, 8), Err(Denied::Flag));
        assert_eq!(check(2, 2, 0x1000, 8), Err(Denied::Domain));
        assert_eq!(check_region(None, 1, 2, 0x1000, 8), Err(Denied::Key));
    }

    #[test]
    fn retries_run_out_unless_they_are_endless() {
        let mut three = Retries::transport(2);
        assert_eq!([three.take(), three.take(), three.take()], [true, true, false]);
        three.refill();
        assert!(three.take());
        let mut seven = Retries::rnr(7);
        assert!((0..1000).all(|_| seven.take()));
        assert!(!Retries::rnr(0).take());
    }

    #[test]
    fn timers_follow_the_specification() {
        assert_eq!(rnr_timer_ns(0), 655_360_000);
        assert_eq!(rnr_timer_ns(1), 10_000);
        assert_eq!(rnr_timer_ns(12), 640_000);
        assert_eq!(rnr_timer_ns(31), 491_520_000);
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        assert_eq!(
            (mtu_bytes(0), mtu_bytes(1), mtu_bytes(5), mtu_bytes(6)),
            (None, Some(256), Some(4096), None)
        );
    }

    proptest! {
        #[test]
        fn sequence_numbers_wrap(start in 0u32..1 << 24, step in 0u32..1 << 23) {
            let a = Psn::new(start);
            let b = a.plus(step);
            prop_assert_eq!(b.ahead_of(a), step as i32);
            prop_assert_eq!(a.ahead_of(b), -(step as i32));
            prop_assert_eq!(arrival(b, a) == Arrival::Expected, step == 0);
        }

        #[test]
        fn a_message_takes_at_least_one_packet(len in 0u64..1 << 31, code in 1u8..6) {
            let mtu = mtu_bytes(code).unwrap();
            let n = packets(len, mtu);
            prop_assert!(n >= 1);
            prop_assert!(u64::from(n) * u64::from(mtu) >= len);
            prop_assert!(u64::from(n - 1) * u64::from(mtu) < len.max(1));
        }
    }
}
