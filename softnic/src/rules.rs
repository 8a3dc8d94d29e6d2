//! What the transport needs beyond the rule-book that it shares with the in-process fabric ([`provider_mock::model`]):
//! sequence numbers and negative acknowledgements, which that fabric has no use for. Pure functions of values.

use ibv_core::WcStatus;
use provider_mock::model;

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

/// How many packets a message of `len` bytes takes on a path of `mtu` bytes; a sequence number has 24 bits, so at most 2^23.
pub fn packet_count(len: u64, mtu: u32) -> u32 {
    model::packets(len, mtu).size_hint().0.clamp(1, 1 << 23) as u32
}

/// Bytes of the verbs MTU code (1 is 256, 5 is 4096).
pub fn mtu_bytes(code: u8) -> Option<u32> {
    (1..=5).contains(&code).then(|| 128 << code)
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

impl Nak {
    /// The requester's completion status, for those that end the connection.
    pub fn status(self) -> Option<WcStatus> {
        match self {
            Self::ReceiverNotReady(_) | Self::Sequence => None,
            Self::InvalidRequest => Some(WcStatus::REM_INV_REQ_ERR),
            Self::RemoteAccess => Some(WcStatus::REM_ACCESS_ERR),
            Self::RemoteOperation => Some(WcStatus::REM_OP_ERR),
        }
    }

    /// The answer that makes the requester's completion say this.
    pub fn for_status(status: WcStatus) -> Self {
        match status {
            WcStatus::REM_INV_REQ_ERR => Self::InvalidRequest,
            WcStatus::REM_ACCESS_ERR => Self::RemoteAccess,
            _ => Self::RemoteOperation,
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_mtu_codes_are_those_of_the_verbs() {
        assert_eq!(
            (mtu_bytes(0), mtu_bytes(1), mtu_bytes(5), mtu_bytes(6)),
            (None, Some(256), Some(4096), None)
        );
    }

    #[test]
    fn refusals_and_statuses_translate_both_ways() {
        for nak in [Nak::InvalidRequest, Nak::RemoteAccess, Nak::RemoteOperation] {
            assert_eq!(nak.status().map(Nak::for_status), Some(nak));
        }
        assert_eq!(Nak::Sequence.status(), None);
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
            let n = packet_count(len, mtu);
            prop_assert!(n >= 1);
            prop_assert!(u64::from(n) * u64::from(mtu) >= len);
            prop_assert!(u64::from(n - 1) * u64::from(mtu) < len.max(1));
        }
    }
}
