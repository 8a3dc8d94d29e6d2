//! The way of an SRD queue pair through its states, as data: which attributes each transition takes. libefa
//! runs the driver type through the states of an unreliable datagram (`srd_qp_state_table`, Linux's
//! drivers/infiniband/hw/efa/efa_verbs.c), so there is no peer, path, time-out or access right among them.

use ibv_core::{
    Error, IbvConfig, QpAttributes, QpState,
    verbs::{Qp, rc::QpAttrMask as M},
};
use ibv_sys::{ibv_qp_attr, ibv_qp_state};

/// Attributes of a transition, and which of them are meant.
pub(crate) type Step = (ibv_qp_attr, M);

fn moving_to(state: QpState) -> ibv_qp_attr {
    ibv_qp_attr { qp_state: ibv_qp_state(state.0), ..ibv_qp_attr::default() }
}

/// RESET to INIT: port, partition key, and the key that a peer's requests must carry.
pub(crate) fn to_init(config: &IbvConfig) -> Step {
    let mut attr = moving_to(QpState::INIT);
    attr.port_num = config.port_num;
    attr.pkey_index = config.pkey_index;
    attr.qkey = config.qkey.unwrap_or(0);
    (attr, M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY)
}

/// INIT to RTR: nothing but the state.
pub(crate) fn to_rtr() -> Step {
    (moving_to(QpState::RTR), M::STATE)
}

/// RTR to RTS: the first sequence number; and how often to try where the peer has no receive, on devices that
/// can be told.
pub(crate) fn to_rts(config: &IbvConfig, rnr_retry: bool) -> Step {
    let mut attr = moving_to(QpState::RTS);
    attr.sq_psn = config.psn.unwrap_or(0);
    if !rnr_retry {
        return (attr, M::STATE | M::SQ_PSN);
    }
    attr.rnr_retry = config.rnr_retry;
    (attr, M::STATE | M::SQ_PSN | M::RNR_RETRY)
}

/// Makes one transition.
///
/// # Errors
/// The device's, with the transition.
pub(crate) fn walk(qp: &mut Qp, from: QpState, (mut attr, mask): Step) -> Result<(), Error> {
    let to = QpState(attr.qp_state.0);
    qp.modify(&mut attr, mask)
        .map_err(|e| e.context(format!("SRD queue pair {:#x} from {from} to {to} with {mask}", qp.qp_num())))
}

/// What the device says about a queue pair that was created with `config`. What it has not been given yet, and
/// what SRD does not have, is `config`'s.
///
/// # Errors
/// The device's.
pub(crate) fn attributes(qp: &mut Qp, config: &IbvConfig) -> Result<QpAttributes, Error> {
    let all = M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY | M::SQ_PSN | M::CAP;
    let (attr, _) = qp.query(all)?;
    let state = QpState(attr.qp_state.0);
    let mut out = QpAttributes::new(state, config.clone());
    // In ERR a device may have forgotten any of it.
    if (QpState::INIT.0..=QpState::SQE.0).contains(&state.0) {
        out.config.port_num = attr.port_num;
        out.config.pkey_index = attr.pkey_index;
        out.config.qkey = Some(attr.qkey);
    }
    if (QpState::RTS.0..=QpState::SQE.0).contains(&state.0) {
        out.config.psn = Some(attr.sq_psn);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> IbvConfig {
        let mut config = IbvConfig::default();
        (config.psn, config.qkey, config.rnr_retry) = (Some(0x12_3456), Some(0x77), 3);
        config
    }

    #[test]
    fn b2_the_masks_are_those_of_a_datagram() {
        let (attr, mask) = to_init(&config());
        assert_eq!((mask.bits(), attr.qkey, attr.port_num), (0x71, 0x77, 1));
        assert_eq!(attr.qp_access_flags, 0, "no access rights");
        assert_eq!(to_rtr().1.bits(), 0x1);
        let (attr, mask) = to_rts(&config(), false);
        assert_eq!((mask.bits(), attr.sq_psn), (0x1_0001, 0x12_3456));
    }

    #[test]
    fn only_a_device_that_knows_it_is_told_how_often_to_retry() {
        let (attr, mask) = to_rts(&config(), true);
        assert_eq!((mask, attr.rnr_retry), (M::STATE | M::SQ_PSN | M::RNR_RETRY, 3));
    }
}
