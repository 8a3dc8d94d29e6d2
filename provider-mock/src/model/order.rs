//! What may start when, what reports, and what an atomic does.

use ibv_core::{Op, WcOpcode, WcStatus};

/// Whether the next request of a send queue may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// Now.
    Now,
    /// Once an earlier get or atomic has its answer.
    Wait,
    /// Never: the queue pair was set up to have no gets and atomics outstanding.
    Never,
}

/// A fenced request waits for all earlier gets and atomics; a get or an atomic waits while as many are
/// outstanding as both ends agreed on, and no longer: exceeding the limit queues and does not fail
/// (10.8.3.3).
pub fn start(op: Op, fence: bool, outstanding: u32, limit: u8) -> Start {
    match (fence && outstanding > 0, op.fills_local()) {
        (true, _) => Start::Wait,
        (false, true) if limit == 0 => Start::Never,
        (false, true) if outstanding >= u32::from(limit) => Start::Wait,
        _ => Start::Now,
    }
}

/// Whether a request of the send queue leaves a completion: a failure always does, a success where it
/// was asked for (10.8).
pub fn reports(signaled: bool, status: WcStatus) -> bool {
    signaled || status != WcStatus::SUCCESS
}

/// What a request reports that was still in a work queue when its queue pair failed (10.3.1): it is
/// flushed, in posting order, behind the one that failed.
pub const fn flushes() -> WcStatus {
    WcStatus::WR_FLUSH_ERR
}

/// The opcode of a request's own completion (11.4.2.1).
pub fn send_opcode(op: Op) -> WcOpcode {
    match op {
        Op::Write | Op::WriteWithImm(_) => WcOpcode::RDMA_WRITE,
        Op::Read => WcOpcode::RDMA_READ,
        Op::CompareSwap { .. } => WcOpcode::COMP_SWAP,
        Op::FetchAdd(_) => WcOpcode::FETCH_ADD,
        _ => WcOpcode::SEND,
    }
}

/// What an atomic leaves in its operand, given what was there (9.4.5); other requests change nothing.
pub fn update(op: Op, old: u64) -> u64 {
    match op {
        Op::FetchAdd(add) => old.wrapping_add(add),
        Op::CompareSwap { compare, swap } if compare == old => swap,
        _ => old,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_fence_waits_for_every_earlier_get_and_a_get_for_room() {
        assert_eq!(start(Op::Write, false, 3, 1), Start::Now);
        assert_eq!(start(Op::Write, true, 1, 16), Start::Wait);
        assert_eq!(start(Op::Write, true, 0, 16), Start::Now);
        assert_eq!(start(Op::Read, false, 15, 16), Start::Now);
        assert_eq!(start(Op::FetchAdd(1), false, 16, 16), Start::Wait);
        assert_eq!(start(Op::Read, false, 0, 0), Start::Never);
    }

    #[test]
    fn failures_report_whether_asked_for_or_not() {
        assert!(reports(false, flushes()) && reports(true, WcStatus::SUCCESS));
        assert!(!reports(false, WcStatus::SUCCESS));
    }

    proptest! {
        #[test]
        fn atomics_do_what_they_say(old: u64, a: u64, b: u64) {
            prop_assert_eq!(update(Op::FetchAdd(a), old), old.wrapping_add(a));
            prop_assert_eq!(update(Op::CompareSwap { compare: old, swap: b }, old), b);
            prop_assume!(a != old);
            prop_assert_eq!(update(Op::CompareSwap { compare: a, swap: b }, old), old);
        }
    }
}
