//! The states of a queue pair (10.3.1).

use ibv_core::QpState;

/// Whether a queue pair may be moved from one state to another (10.3.1): up the ladder one rung at a
/// time, and from anywhere to RESET or ERR.
pub fn may_change(from: QpState, to: QpState) -> bool {
    let up: &[QpState] = match from {
        QpState::RESET => &[QpState::INIT],
        QpState::INIT => &[QpState::INIT, QpState::RTR],
        QpState::RTR => &[QpState::RTS],
        QpState::RTS => &[QpState::RTS, QpState::SQD],
        QpState::SQD => &[QpState::SQD, QpState::RTS],
        QpState::SQE => &[QpState::RTS],
        _ => &[],
    };
    matches!(to, QpState::RESET | QpState::ERR) || up.contains(&to)
}

/// Whether receives may be posted: from INIT on; in ERR they flush (10.3.1).
pub fn takes_receives(state: QpState) -> bool {
    state != QpState::RESET
}

/// Whether sends may be posted: from RTS on; in SQE and ERR they flush (10.3.1).
pub fn takes_sends(state: QpState) -> bool {
    matches!(state, QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR)
}

/// Whether messages from the peer are taken: RTR, RTS, and while the send queue alone has stopped.
pub fn works(state: QpState) -> bool {
    matches!(state, QpState::RTR | QpState::RTS | QpState::SQD | QpState::SQE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_has_no_short_cuts_and_every_state_can_fail() {
        let up = [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS];
        for (i, &from) in up.iter().enumerate() {
            for (j, &to) in up.iter().enumerate().skip(1) {
                let same = i == j && matches!(from, QpState::INIT | QpState::RTS);
                assert_eq!(may_change(from, to), j == i + 1 || same, "{from} to {to}");
            }
            assert!(may_change(from, QpState::ERR) && may_change(from, QpState::RESET));
        }
        assert!(!may_change(QpState::ERR, QpState::RTS));
    }

    #[test]
    fn an_unconnected_queue_pair_takes_receives_but_no_messages() {
        assert!(takes_receives(QpState::INIT) && !works(QpState::INIT) && !takes_sends(QpState::RTR));
        assert!(takes_sends(QpState::ERR) && !works(QpState::ERR));
    }
}
