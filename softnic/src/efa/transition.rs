//! Which `modify_qp` an EFA queue pair accepts: the state table of the kernel driver for SRD (`efa_verbs.c`), as data. That of
//! datagrams is the same, without the retries. Values of attributes are checked elsewhere.

use crate::mlx5::transition::mask::{CUR_STATE, EN_SQD_ASYNC, PKEY_INDEX, PORT, QKEY, SQ_PSN, STATE};
use crate::mlx5::transition::{self, QpState, compare};

/// `IB_QP_RNR_RETRY`.
pub use crate::mlx5::transition::mask::RNR_RETRY;

/// What the driver knows; anything else is "not supported".
const KNOWN: u32 = STATE | CUR_STATE | EN_SQD_ASYNC | PKEY_INDEX | PORT | QKEY | SQ_PSN | RNR_RETRY;

/// Why a modification was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// EFA does not have these attributes.
    #[error("modify_qp: an EFA queue pair has no attributes {0:#x}")]
    Unknown(u32),
    /// The transition does not exist, or not with these attributes.
    #[error(transparent)]
    Transition(#[from] transition::Refused),
}

/// Checks a modification from `from` to `to` with `attributes`; `retries` says whether there is a number of retries.
pub fn check(from: QpState, to: QpState, attributes: u32, retries: bool) -> Result<(), Refused> {
    let known = if retries { KNOWN } else { KNOWN & !RNR_RETRY };
    if attributes & !known != 0 {
        return Err(Refused::Unknown(attributes & !known));
    }
    Ok(compare(from, to, row(from, to), attributes)?)
}

/// Required and optional attributes of a transition.
fn row(from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::*;
    Some(match (from, to) {
        (_, Reset) => (0, 0),
        (Reset, Error) => return None,
        (_, Error) => (0, 0),
        (Reset, Init) => (PKEY_INDEX | PORT | QKEY, 0),
        (Init, Init) => (0, PKEY_INDEX | PORT | QKEY),
        (Init, Rtr) => (0, PKEY_INDEX | QKEY),
        (Rtr, Rts) => (SQ_PSN, CUR_STATE | QKEY | RNR_RETRY),
        (Rts | Sqd | Sqe, Rts) => (0, CUR_STATE | QKEY),
        (Rts, Sqd) => (0, EN_SQD_ASYNC),
        (Sqd, Sqd) => (0, PKEY_INDEX | QKEY),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use QpState::*;
    use transition::Refused::{Missing, Transition, Unwanted};

    #[test]
    fn the_usual_way_up_has_the_masks_that_programs_use() {
        for (from, to, mask) in
            [(Reset, Init, 0x71), (Init, Rtr, 0x1), (Rtr, Rts, 0x1_0001), (Rtr, Rts, 0x1_0801)]
        {
            assert_eq!(check(from, to, mask, true), Ok(()));
        }
    }

    #[test]
    fn what_a_reliable_connection_needs_is_refused() {
        assert_eq!(check(Init, Rtr, STATE | 1 << 7 | 1 << 20, true), Err(Refused::Unknown(1 << 7 | 1 << 20)));
        assert_eq!(check(Rtr, Rts, 0x1_0801, false), Err(Refused::Unknown(RNR_RETRY)));
        assert_eq!(check(Rtr, Rts, STATE, true), Err(Missing(Rtr, Rts, SQ_PSN).into()));
        assert_eq!(check(Rts, Init, 0x71, true), Err(Transition(Rts, Init).into()));
        assert_eq!(check(Init, Rtr, STATE | PORT, true), Err(Unwanted(Init, Rtr, PORT).into()));
    }

    #[test]
    fn the_table_is_that_of_the_shared_rule_book_but_for_the_error_state_of_a_new_queue_pair() {
        use ibv_core::QpState as Shared;
        for (from, to) in (0..7u8).flat_map(|f| (0..7u8).map(move |t| (f, t))) {
            let (a, b) = (QpState::from_code(from).unwrap(), QpState::from_code(to).unwrap());
            let shared = provider_mock::model::may_change(Shared(from.into()), Shared(to.into()));
            assert_eq!(row(a, b).is_some(), shared && (a, b) != (Reset, Error), "{a:?} to {b:?}");
        }
    }
}
