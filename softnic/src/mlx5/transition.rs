//! Which `modify_qp` a queue pair accepts: the state table of the verbs specification (IB spec vol. 1, 11.2.4.2), as data.
//! Values of attributes are checked elsewhere.

/// What service a queue pair gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
}

impl Transport {
    /// By its verbs number (`IBV_QPT_*`); `None` for types that the device doesn't have.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            2 => Some(Self::Rc),
            3 => Some(Self::Uc),
            4 => Some(Self::Ud),
            _ => None,
        }
    }

    /// Whether messages are answered, and sent again.
    pub fn is_reliable(self) -> bool {
        self == Self::Rc
    }
}

/// Queue-pair states, as verbs numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the specification's own names")]
pub enum QpState {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Error = 6,
}

impl QpState {
    /// By its verbs number.
    pub fn from_code(code: u8) -> Option<Self> {
        use QpState::*;
        [Reset, Init, Rtr, Rts, Sqd, Sqe, Error].get(usize::from(code)).copied()
    }
}

/// Bits of the attribute mask.
pub mod mask {
    #![allow(missing_docs, reason = "the verbs' own names")]
    pub const STATE: u32 = 1 << 0;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const EN_SQD_ASYNC: u32 = 1 << 2;
    pub const ACCESS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG: u32 = 1 << 18;
    pub const DEST_QPN: u32 = 1 << 20;
}

use mask::*;

/// Why a modification was refused; each maps to `EINVAL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No such transition.
    #[error("modify_qp: no transition from {0:?} to {1:?}")]
    Transition(QpState, QpState),
    /// A required attribute is missing.
    #[error("modify_qp: {0:?} to {1:?} needs attributes {2:#x}")]
    Missing(QpState, QpState, u32),
    /// An attribute that this transition doesn't take.
    #[error("modify_qp: {0:?} to {1:?} does not take attributes {2:#x}")]
    Unwanted(QpState, QpState, u32),
}

/// Checks a modification of a queue pair from `from` to `to` with `attributes`.
pub fn check(transport: Transport, from: QpState, to: QpState, attributes: u32) -> Result<(), Refused> {
    compare(from, to, row(transport, from, to), attributes)
}

/// Compares `attributes` with the required and the optional ones of a transition; `None` stands for no such transition.
pub fn compare(from: QpState, to: QpState, row: Option<(u32, u32)>, attributes: u32) -> Result<(), Refused> {
    let (required, optional) = row.ok_or(Refused::Transition(from, to))?;
    let missing = required & !attributes;
    if missing != 0 {
        return Err(Refused::Missing(from, to, missing));
    }
    let unwanted = attributes & !(required | optional | STATE);
    if unwanted != 0 {
        return Err(Refused::Unwanted(from, to, unwanted));
    }
    Ok(())
}

/// Required and optional attributes of a transition.
fn row(transport: Transport, from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::*;
    // What each service calls its permission: a datagram queue pair has a key, a connection rights.
    let own = if transport == Transport::Ud { QKEY } else { ACCESS };
    Some(match (from, to) {
        (_, Reset | Error) => (0, 0),
        (Reset, Init) => (PKEY_INDEX | PORT | own, 0),
        (Init, Init) => (0, PKEY_INDEX | PORT | own),
        (Init, Rtr) => to_rtr(transport),
        (Rtr, Rts) => (to_rts(transport), resume(transport)),
        (Rts, Rts) | (Sqd, Rts) => (0, resume(transport)),
        (Sqe, Rts) if !transport.is_reliable() => (0, CUR_STATE | own),
        (Rts, Sqd) => (0, EN_SQD_ASYNC),
        (Sqd, Sqd) => (0, while_drained(transport)),
        _ => return None,
    })
}

fn to_rtr(transport: Transport) -> (u32, u32) {
    const CONNECTED: u32 = AV | PATH_MTU | DEST_QPN | RQ_PSN;
    match transport {
        Transport::Rc => (CONNECTED | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, ALT_PATH | ACCESS | PKEY_INDEX),
        Transport::Uc => (CONNECTED, ALT_PATH | ACCESS | PKEY_INDEX),
        Transport::Ud => (0, PKEY_INDEX | QKEY),
    }
}

fn to_rts(transport: Transport) -> u32 {
    match transport {
        Transport::Rc => TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_RD_ATOMIC,
        Transport::Uc | Transport::Ud => SQ_PSN,
    }
}

fn resume(transport: Transport) -> u32 {
    match transport {
        Transport::Rc => CUR_STATE | ALT_PATH | ACCESS | MIN_RNR_TIMER | PATH_MIG,
        Transport::Uc => CUR_STATE | ALT_PATH | ACCESS | PATH_MIG,
        Transport::Ud => CUR_STATE | QKEY,
    }
}

fn while_drained(transport: Transport) -> u32 {
    const CONNECTED: u32 = AV | ALT_PATH | ACCESS | PKEY_INDEX | PATH_MIG;
    const RELIABLE: u32 =
        PORT | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_RD_ATOMIC | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    match transport {
        Transport::Rc => CONNECTED | RELIABLE,
        Transport::Uc => CONNECTED,
        Transport::Ud => PKEY_INDEX | QKEY,
    }
}

#[cfg(test)]
mod tests {
    use super::Transport::*;
    use super::*;
    use QpState::*;

    const TO_RTR: u32 = AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    const TO_RTS: u32 = TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_RD_ATOMIC;

    #[test]
    fn the_usual_way_up_is_open() {
        assert_eq!(check(Rc, Reset, Init, STATE | PKEY_INDEX | PORT | ACCESS), Ok(()));
        assert_eq!(check(Rc, Init, Rtr, STATE | TO_RTR), Ok(()));
        assert_eq!(check(Rc, Rtr, Rts, STATE | TO_RTS), Ok(()));
    }

    #[test]
    fn each_missing_attribute_is_named() {
        for bit in (0..21).map(|b| 1 << b).filter(|b| TO_RTR & b != 0) {
            assert_eq!(check(Rc, Init, Rtr, STATE | TO_RTR & !bit), Err(Refused::Missing(Init, Rtr, bit)));
        }
        for bit in (0..21).map(|b| 1 << b).filter(|b| TO_RTS & b != 0) {
            assert_eq!(check(Rc, Rtr, Rts, STATE | TO_RTS & !bit), Err(Refused::Missing(Rtr, Rts, bit)));
        }
    }

    #[test]
    fn shortcuts_and_ways_back_are_closed() {
        for (from, to) in
            [(Reset, Rtr), (Reset, Rts), (Init, Rts), (Rts, Init), (Rts, Rtr), (Error, Init), (Error, Rts)]
        {
            assert_eq!(check(Rc, from, to, STATE | TO_RTR | TO_RTS), Err(Refused::Transition(from, to)));
        }
    }

    #[test]
    fn reset_and_error_are_always_reachable_and_take_nothing_else() {
        for code in 0..7 {
            let from = QpState::from_code(code).unwrap();
            assert_eq!(check(Rc, from, Reset, STATE), Ok(()));
            assert_eq!(check(Rc, from, Error, STATE), Ok(()));
            assert_eq!(check(Rc, from, Error, STATE | ACCESS), Err(Refused::Unwanted(from, Error, ACCESS)));
        }
    }

    #[test]
    fn the_table_has_the_transitions_of_the_shared_rule_book_but_those_of_datagrams() {
        use ibv_core::QpState as Shared;
        for (from, to) in (0..7u8).flat_map(|f| (0..7u8).map(move |t| (f, t))) {
            let ours = row(Rc, QpState::from_code(from).unwrap(), QpState::from_code(to).unwrap()).is_some();
            let shared = provider_mock::model::may_change(Shared(from.into()), Shared(to.into()));
            // A reliable connection is never in SQE: only datagrams come back from there.
            assert_eq!(ours, shared && (from, to) != (4 + 1, 3), "{from} to {to}");
        }
    }

    #[test]
    fn each_service_takes_its_own_attributes() {
        assert_eq!(check(Ud, Reset, Init, STATE | PKEY_INDEX | PORT | QKEY), Ok(()));
        assert_eq!(
            check(Ud, Reset, Init, STATE | PKEY_INDEX | PORT | ACCESS),
            Err(Refused::Missing(Reset, Init, QKEY))
        );
        assert_eq!(check(Ud, Init, Rtr, STATE), Ok(()));
        assert_eq!(check(Ud, Init, Rtr, STATE | AV), Err(Refused::Unwanted(Init, Rtr, AV)));
        assert_eq!(check(Ud, Rtr, Rts, STATE | SQ_PSN), Ok(()));
        assert_eq!(check(Uc, Init, Rtr, STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN), Ok(()));
        assert_eq!(
            check(Uc, Init, Rtr, STATE | TO_RTR).unwrap_err(),
            Refused::Unwanted(Init, Rtr, MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER)
        );
        assert_eq!(check(Uc, Rtr, Rts, STATE | SQ_PSN), Ok(()));
        for transport in [Uc, Ud] {
            assert_eq!(check(transport, Sqe, Rts, STATE), Ok(()));
        }
        assert_eq!(check(Rc, Sqe, Rts, STATE), Err(Refused::Transition(Sqe, Rts)));
    }
}
