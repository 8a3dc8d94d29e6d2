//! The state machine of a reliable connection as data: which transition needs and takes which
//! attributes, and from that which attribute was wrong when a device answers EINVAL. What the attributes
//! are for a given path is in `rc/attributes.rs`; nothing here calls a device.
//!
//! The table is the InfiniBand specification's (vol. 1, 10.3.1 and 11.2.5.2) as `ibv_modify_qp(3)` states
//! it and Linux checks it (`qp_state_table`, drivers/infiniband/core/verbs.c), RC column.

use crate::queue_pair::QpState;
use std::fmt;

mod attributes;
pub use attributes::{PathFacts, attr_at_init, attr_at_rtr, attr_at_rts, wrong_value};

bitflags::bitflags! {
    /// Attributes of a queue pair: `enum ibv_qp_attr_mask` (libibverbs/verbs.h).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct QpAttrMask: u32 {
        /// `qp_state`.
        const STATE = 1;
        /// `cur_qp_state`.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `qp_access_flags`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port_num`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `ah_attr`: the address vector.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_ah_attr`, `alt_pkey_index`, `alt_port_num`, `alt_timeout`.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`.
        const CAP = 1 << 19;
        /// `dest_qp_num`.
        const DEST_QPN = 1 << 20;
        /// `rate_limit`.
        const RATE_LIMIT = 1 << 25;
    }
}

/// The flags' names, joined as in C.
impl fmt::Display for QpAttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// A transition that a reliable connection may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The state before.
    pub from: QpState,
    /// The state after.
    pub to: QpState,
    /// What has to be given, besides `STATE`.
    pub required: QpAttrMask,
    /// What may be given too.
    pub optional: QpAttrMask,
}

const fn mask(parts: &[QpAttrMask]) -> QpAttrMask {
    let mut all = QpAttrMask::empty();
    let mut i = 0;
    while i < parts.len() {
        all = all.union(parts[i]);
        i += 1;
    }
    all
}

const fn row(from: QpState, to: QpState, required: &[QpAttrMask], optional: &[QpAttrMask]) -> Transition {
    Transition { from, to, required: mask(required), optional: mask(optional) }
}

type M = QpAttrMask;
type S = QpState;

/// What may change while the queue pair sends.
const WHILE_SENDING: [M; 5] =
    [M::CUR_STATE, M::ACCESS_FLAGS, M::ALT_PATH, M::PATH_MIG_STATE, M::MIN_RNR_TIMER];

/// Every transition there is but those to RESET and ERR, which take `STATE` alone.
pub const TRANSITIONS: &[Transition] = &[
    row(S::RESET, S::INIT, &[M::PKEY_INDEX, M::PORT, M::ACCESS_FLAGS], &[]),
    row(S::INIT, S::INIT, &[], &[M::PKEY_INDEX, M::PORT, M::ACCESS_FLAGS]),
    row(
        S::INIT,
        S::RTR,
        &[M::AV, M::PATH_MTU, M::DEST_QPN, M::RQ_PSN, M::MAX_DEST_RD_ATOMIC, M::MIN_RNR_TIMER],
        &[M::ALT_PATH, M::ACCESS_FLAGS, M::PKEY_INDEX],
    ),
    row(
        S::RTR,
        S::RTS,
        &[M::TIMEOUT, M::RETRY_CNT, M::RNR_RETRY, M::SQ_PSN, M::MAX_QP_RD_ATOMIC],
        &WHILE_SENDING,
    ),
    row(S::RTS, S::RTS, &[], &WHILE_SENDING),
    row(S::RTS, S::SQD, &[], &[M::EN_SQD_ASYNC_NOTIFY]),
    row(S::SQD, S::RTS, &[], &WHILE_SENDING),
    row(
        S::SQD,
        S::SQD,
        &[],
        &[
            M::PORT,
            M::AV,
            M::TIMEOUT,
            M::RETRY_CNT,
            M::RNR_RETRY,
            M::MAX_QP_RD_ATOMIC,
            M::MAX_DEST_RD_ATOMIC,
            M::ALT_PATH,
            M::ACCESS_FLAGS,
            M::PKEY_INDEX,
            M::MIN_RNR_TIMER,
            M::PATH_MIG_STATE,
        ],
    ),
    row(S::SQE, S::RTS, &[], &[]),
];

/// The transition from `from` to `to`, where there is one.
///
/// Anything may go back to RESET. Anything but RESET may go to ERR: Linux refuses to fail a queue pair
/// that was never started.
pub fn transition(from: QpState, to: QpState) -> Option<Transition> {
    let known = (S::RESET.0..=S::ERR.0).contains(&from.0);
    match to {
        S::RESET if known => Some(row(from, to, &[], &[])),
        S::ERR if known && from != S::RESET => Some(row(from, to, &[], &[])),
        _ => TRANSITIONS.iter().find(|t| (t.from, t.to) == (from, to)).copied(),
    }
}

/// What is wrong with a set of attributes for a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongMask {
    /// There is no such transition.
    NoTransition {
        /// The state before.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// Attributes that the transition needs were not given.
    Missing(QpAttrMask),
    /// Attributes were given that the transition does not take.
    Refused(QpAttrMask),
}

impl fmt::Display for WrongMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTransition { from, to } => {
                write!(f, "a reliable connection has no transition from {from} to {to}")
            }
            Self::Missing(attrs) => write!(f, "the transition also needs {attrs}"),
            Self::Refused(attrs) => write!(f, "the transition does not take {attrs}"),
        }
    }
}

/// Checks a set of attributes against the table, as a device would; `given` need not have `STATE`.
///
/// # Errors
/// What is wrong, the first of: no such transition, an attribute missing, an attribute refused.
pub fn check(from: QpState, to: QpState, given: QpAttrMask) -> Result<(), WrongMask> {
    let row = transition(from, to).ok_or(WrongMask::NoTransition { from, to })?;
    let missing = row.required - given;
    if !missing.is_empty() {
        return Err(WrongMask::Missing(missing));
    }
    let refused = given - row.required - row.optional - M::STATE;
    if refused.is_empty() { Ok(()) } else { Err(WrongMask::Refused(refused)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATES: [S; 7] = [S::RESET, S::INIT, S::RTR, S::RTS, S::SQD, S::SQE, S::ERR];

    #[test]
    fn the_way_up_is_the_one_the_specification_draws() {
        for (from, to) in [(S::RESET, S::INIT), (S::INIT, S::RTR), (S::RTR, S::RTS)] {
            let t = transition(from, to).unwrap();
            assert_eq!(check(from, to, t.required), Ok(()));
            assert_eq!(check(from, to, t.required | M::STATE), Ok(()));
        }
        for (from, to) in [(S::RESET, S::RTR), (S::RESET, S::RTS), (S::INIT, S::RTS), (S::RESET, S::ERR)] {
            assert_eq!(check(from, to, M::empty()), Err(WrongMask::NoTransition { from, to }));
        }
    }

    #[test]
    fn every_state_can_be_reset_and_every_started_one_can_fail() {
        for state in STATES {
            assert_eq!(check(state, S::RESET, M::STATE), Ok(()));
            assert_eq!(check(state, S::ERR, M::STATE).is_ok(), state != S::RESET);
        }
        assert!(transition(QpState(7), S::RESET).is_none());
    }

    #[test]
    fn required_and_optional_never_overlap_and_no_row_is_twice() {
        for (i, t) in TRANSITIONS.iter().enumerate() {
            assert!((t.required & t.optional).is_empty(), "{t:?}");
            assert!(!t.required.contains(M::STATE) && !t.optional.contains(M::STATE), "{t:?}");
            assert!(TRANSITIONS[..i].iter().all(|u| (u.from, u.to) != (t.from, t.to)), "{t:?}");
        }
    }

    #[test]
    fn nothing_about_datagrams_belongs_to_a_connection() {
        let all = TRANSITIONS.iter().fold(M::empty(), |m, t| m | t.required | t.optional);
        assert!(!all.intersects(M::QKEY | M::CAP | M::RATE_LIMIT));
    }

    #[test]
    fn the_messages_name_the_attributes() {
        let missing = check(S::INIT, S::RTR, M::all() - M::PATH_MTU - M::DEST_QPN).unwrap_err();
        assert_eq!(missing.to_string(), "the transition also needs PATH_MTU | DEST_QPN");
        let refused = check(S::RTR, S::RTS, transition(S::RTR, S::RTS).unwrap().required | M::QKEY);
        assert_eq!(refused.unwrap_err().to_string(), "the transition does not take QKEY");
    }

    #[test]
    fn the_masks_are_the_abis() {
        for (ours, theirs) in [
            (M::STATE, ibv_sys::IBV_QP_STATE),
            (M::CUR_STATE, ibv_sys::IBV_QP_CUR_STATE),
            (M::EN_SQD_ASYNC_NOTIFY, ibv_sys::IBV_QP_EN_SQD_ASYNC_NOTIFY),
            (M::ACCESS_FLAGS, ibv_sys::IBV_QP_ACCESS_FLAGS),
            (M::PKEY_INDEX, ibv_sys::IBV_QP_PKEY_INDEX),
            (M::PORT, ibv_sys::IBV_QP_PORT),
            (M::QKEY, ibv_sys::IBV_QP_QKEY),
            (M::AV, ibv_sys::IBV_QP_AV),
            (M::PATH_MTU, ibv_sys::IBV_QP_PATH_MTU),
            (M::TIMEOUT, ibv_sys::IBV_QP_TIMEOUT),
            (M::RETRY_CNT, ibv_sys::IBV_QP_RETRY_CNT),
            (M::RNR_RETRY, ibv_sys::IBV_QP_RNR_RETRY),
            (M::RQ_PSN, ibv_sys::IBV_QP_RQ_PSN),
            (M::MAX_QP_RD_ATOMIC, ibv_sys::IBV_QP_MAX_QP_RD_ATOMIC),
            (M::ALT_PATH, ibv_sys::IBV_QP_ALT_PATH),
            (M::MIN_RNR_TIMER, ibv_sys::IBV_QP_MIN_RNR_TIMER),
            (M::SQ_PSN, ibv_sys::IBV_QP_SQ_PSN),
            (M::MAX_DEST_RD_ATOMIC, ibv_sys::IBV_QP_MAX_DEST_RD_ATOMIC),
            (M::PATH_MIG_STATE, ibv_sys::IBV_QP_PATH_MIG_STATE),
            (M::CAP, ibv_sys::IBV_QP_CAP),
            (M::DEST_QPN, ibv_sys::IBV_QP_DEST_QPN),
            (M::RATE_LIMIT, ibv_sys::IBV_QP_RATE_LIMIT),
        ] {
            assert_eq!(ours.bits(), theirs, "{ours}");
        }
    }

    proptest! {
        #[test]
        fn check_agrees_with_the_table(from in 0u32..7, to in 0u32..7, bits in any::<u32>()) {
            let (from, to, given) = (QpState(from), QpState(to), M::from_bits_truncate(bits));
            match (transition(from, to), check(from, to, given)) {
                (None, answer) => prop_assert_eq!(answer, Err(WrongMask::NoTransition { from, to })),
                (Some(t), Ok(())) => prop_assert!(given.contains(t.required) && (t.required | t.optional | M::STATE).contains(given)),
                (Some(t), Err(WrongMask::Missing(m))) => prop_assert!(t.required.contains(m) && !given.intersects(m)),
                (Some(t), Err(WrongMask::Refused(m))) => prop_assert!(given.contains(m) && !(t.required | t.optional).intersects(m)),
                (_, answer) => prop_assert!(false, "{answer:?}"),
            }
        }
    }
}
