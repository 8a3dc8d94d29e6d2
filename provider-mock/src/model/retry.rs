//! Timers and retry counts.

use ibv_core::WcStatus;
use std::time::Duration;

/// What a requester does about a missing or a negative answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// Tries again after this pause.
    After(Duration),
    /// Tries again for ever, this pause apart; only the queue pair's end ends it.
    Forever(Duration),
    /// Waits for an answer without a limit.
    Hang,
    /// Gives up; the request fails with this.
    GiveUp(WcStatus),
}

/// The local ACK timeout of its 5-bit code: 4.096 µs · 2^code; 0 is none (9.7.6.1.3).
pub fn ack_timeout(code: u8) -> Option<Duration> {
    match code & 31 {
        0 => None,
        n => Some(Duration::from_nanos(4096 << n)),
    }
}

/// The RNR NAK timer of its 5-bit code (9.7.5.2.8 and the table there): 0 is the longest.
pub fn rnr_timer(code: u8) -> Duration {
    const TENS_OF_MICROSECONDS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(10 * TENS_OF_MICROSECONDS[usize::from(code & 31)])
}

/// Nobody answered a request that went out `sent` times by now, the first included (9.7.6.1.3, 9.9.2):
/// it goes out `retry_cnt` times more, one timeout apart, and fails one timeout after the last.
pub fn on_no_answer(sent: u32, retry_cnt: u8, timeout: u8) -> Retry {
    match ack_timeout(timeout) {
        None => Retry::Hang,
        Some(_) if sent > u32::from(retry_cnt) => Retry::GiveUp(WcStatus::RETRY_EXC_ERR),
        Some(pause) => Retry::After(pause),
    }
}

/// The peer answered "receiver not ready" for the `naks`th time (9.7.5.2.8): the request is repeated at
/// most `rnr_retry` times, 7 meaning for ever, with the pause that the *peer* asked for in `timer`.
pub fn on_not_ready(naks: u32, rnr_retry: u8, timer: u8) -> Retry {
    match rnr_retry {
        7.. => Retry::Forever(rnr_timer(timer)),
        most if naks > u32::from(most) => Retry::GiveUp(WcStatus::RNR_RETRY_EXC_ERR),
        _ => Retry::After(rnr_timer(timer)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_timers_are_those_of_the_specification() {
        assert_eq!(rnr_timer(0), Duration::from_micros(655_360));
        assert_eq!(rnr_timer(1), Duration::from_micros(10));
        assert_eq!(rnr_timer(12), Duration::from_micros(640));
        assert_eq!(rnr_timer(31), Duration::from_micros(491_520));
        assert_eq!((ack_timeout(0), ack_timeout(14)), (None, Some(Duration::from_nanos(67_108_864))));
        assert_eq!(ack_timeout(31), Some(Duration::from_nanos(4096 << 31)));
    }

    proptest! {
        #[test]
        fn every_code_but_zero_is_a_longer_pause_than_the_one_before(code in 2u8..32) {
            prop_assert!(rnr_timer(code) > rnr_timer(code - 1) && rnr_timer(code) < rnr_timer(0));
            prop_assert!(ack_timeout(code) > ack_timeout(code - 1));
        }

        #[test]
        fn a_request_goes_out_once_and_then_as_often_as_allowed(retries in 0u8..8) {
            let sent = (1..).take_while(|&n| !matches!(on_no_answer(n, retries, 14), Retry::GiveUp(_))).count();
            prop_assert_eq!(sent, usize::from(retries));
        }

        #[test]
        fn seven_is_for_ever_and_less_is_not(naks in 1u32.., retries in 0u8..8) {
            let gives_up = matches!(on_not_ready(naks, retries, 12), Retry::GiveUp(_));
            prop_assert_eq!(gives_up, retries < 7 && naks > u32::from(retries));
        }
    }
}
