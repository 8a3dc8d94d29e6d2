//! Walking a queue pair through its states and asking where it is. Which attributes a transition takes is
//! `rc.rs`'s; a datagram provider brings its own.
#![allow(unsafe_code)]
//! # Safety
//! The queue pair is alive while its handle is, and `&mut` keeps two calls on it apart: the library writes
//! the state into its struct without a lock.

use crate::{
    config::IbvConfig,
    endpoint::IbvPath,
    error::{Error, ErrorKind},
    gid::Mtu,
    queue_pair::{QpAttributes, QpState},
    verbs::{
        device::mtu_of,
        handles::Qp,
        rc::{self, PathFacts, QpAttrMask as M},
    },
};
use ibv_sys::{ibv_qp_attr, ibv_qp_init_attr, ibv_qp_state};

impl Qp {
    /// Calls `ibv_modify_qp`.
    ///
    /// # Errors
    /// The device's, not explained; see [`walk`].
    pub fn modify(&mut self, attr: &mut ibv_qp_attr, mask: M) -> Result<(), Error> {
        let verbs = self.pd().context().verbs();
        // SAFETY: the queue pair is alive and exclusively borrowed; the attributes are read only.
        match unsafe { verbs.ibv_modify_qp(self.as_ptr(), attr, mask.bits() as i32) } {
            0 => Ok(()),
            code => Err(Error::from_errno("modify_qp", code)),
        }
    }

    /// Calls `ibv_query_qp`. Attributes beyond `mask` may be filled in or not.
    ///
    /// # Errors
    /// The device's.
    pub fn query(&mut self, mask: M) -> Result<(ibv_qp_attr, ibv_qp_init_attr), Error> {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let verbs = self.pd().context().verbs();
        // SAFETY: as above; both structs are writable.
        match unsafe { verbs.ibv_query_qp(self.as_ptr(), &mut attr, mask.bits() as i32, &mut init) } {
            0 => Ok((attr, init)),
            code => {
                Err(Error::from_errno("query_qp", code).context(format!("queue pair {:#x}", self.qp_num())))
            }
        }
    }

    /// Asks the device for the state.
    ///
    /// # Errors
    /// The device's.
    pub fn state(&mut self) -> Result<QpState, Error> {
        Ok(QpState(self.query(M::STATE)?.0.qp_state.0))
    }

    /// Moves to ERR, from any state. A queue pair in RESET goes through INIT, since no device takes the
    /// direct way; `at_init` are its attributes there.
    ///
    /// # Errors
    /// The device's.
    pub fn fail(&mut self, at_init: (ibv_qp_attr, M)) -> Result<(), Error> {
        if self.state()? == QpState::RESET {
            let (mut attr, mask) = at_init;
            self.modify(&mut attr, mask)
                .map_err(|e| named(e, self.qp_num(), QpState::RESET, QpState::INIT))?;
        }
        let mut attr = ibv_qp_attr { qp_state: ibv_qp_state(QpState::ERR.0), ..ibv_qp_attr::default() };
        self.modify(&mut attr, M::STATE)
            .map_err(|e| e.context(format!("queue pair {:#x} to ERR", self.qp_num())))
    }
}

fn named(e: Error, qp_num: u32, from: QpState, to: QpState) -> Error {
    e.context(format!("queue pair {qp_num:#x} from {from} to {to}"))
}

/// Makes one transition of a reliable connection.
///
/// # Errors
/// `InvalidState` where `mask` does not suit the transition, before the device is asked. Else the
/// device's, with the transition and, where it answered EINVAL, with the attribute that is wrong.
pub fn walk(
    qp: &mut Qp,
    from: QpState,
    (mut attr, mask): (ibv_qp_attr, M),
    facts: &PathFacts,
) -> Result<(), Error> {
    let to = QpState(attr.qp_state.0);
    if let Err(wrong) = rc::check(from, to, mask) {
        let e = Error::new(ErrorKind::InvalidState, "modify_qp", wrong.to_string());
        return Err(named(e, qp.qp_num(), from, to));
    }
    let Err(e) = qp.modify(&mut attr, mask) else { return Ok(()) };
    let why = match rc::wrong_value(&attr, mask, facts) {
        Some(why) => why,
        None if e.errno() == Some(libc::EINVAL) => format!("the device refused one of {}", mask - M::STATE),
        None => return Err(named(e, qp.qp_num(), from, to)),
    };
    Err(named(e.context(why), qp.qp_num(), from, to))
}

/// RESET to INIT for a reliable connection; from here on it takes receives.
///
/// # Errors
/// As [`walk`].
pub fn rc_to_init(qp: &mut Qp, config: &IbvConfig, access: u32, facts: &PathFacts) -> Result<(), Error> {
    walk(qp, QpState::RESET, rc::attr_at_init(config, access), facts)
}

/// INIT to RTR to RTS along a negotiated path.
///
/// # Errors
/// As [`walk`], with both ends' addresses.
pub fn rc_to_rts(qp: &mut Qp, config: &IbvConfig, path: &IbvPath, facts: &PathFacts) -> Result<(), Error> {
    let ends = |e: Error| {
        let gid = |g| match g {
            Some(gid) => format!("GID {gid}"),
            None => "no GID".to_owned(),
        };
        let (ours, theirs) = (gid(facts.gid.map(|(g, _)| g)), gid(path.remote.gid));
        e.context(format!(
            "ours: {ours}, port {}; theirs: {theirs}, LID {}, queue pair {:#x}, MTU {}",
            config.port_num, path.remote.lid, path.remote.qp_num, path.remote.mtu
        ))
    };
    walk(qp, QpState::INIT, rc::attr_at_rtr(config, path, facts), facts).map_err(ends)?;
    walk(qp, QpState::RTR, rc::attr_at_rts(config, path), facts).map_err(ends)
}

/// What the device says about a reliable connection that was created with `config`: every attribute that
/// it has been given in its present state is read back; what it has not been given yet is `config`'s.
///
/// Devices round queue sizes up; then the size asked for is reported, for that is what may be used. A
/// size below what was asked for is reported as it is.
///
/// # Errors
/// The device's.
pub fn rc_attributes(qp: &mut Qp, config: &IbvConfig) -> Result<QpAttributes, Error> {
    let all = rc::TRANSITIONS.iter().fold(M::STATE | M::CAP, |m, t| m | t.required);
    let (attr, init) = qp.query(all)?;
    let state = QpState(attr.qp_state.0);
    let mut told = config.clone();
    told.max_send_wr = config.max_send_wr.min(init.cap.max_send_wr);
    told.max_recv_wr = config.max_recv_wr.min(init.cap.max_recv_wr);
    told.max_send_sge = config.max_send_sge.min(init.cap.max_send_sge);
    told.max_recv_sge = config.max_recv_sge.min(init.cap.max_recv_sge);
    told.max_inline = config.max_inline.min(init.cap.max_inline_data);
    let mut out = QpAttributes::new(state, told);
    // In ERR a device may have forgotten any of it.
    if (QpState::INIT.0..=QpState::SQE.0).contains(&state.0) {
        out.config.port_num = attr.port_num;
        out.config.pkey_index = attr.pkey_index;
    }
    if (QpState::RTR.0..=QpState::SQE.0).contains(&state.0) {
        at_rtr(&mut out, &attr);
    }
    if (QpState::RTS.0..=QpState::SQE.0).contains(&state.0) {
        at_rts(&mut out.config, &attr);
    }
    Ok(out)
}

fn at_rtr(out: &mut QpAttributes, attr: &ibv_qp_attr) {
    out.dest_qp_num = Some(attr.dest_qp_num);
    out.rq_psn = Some(attr.rq_psn);
    let config = &mut out.config;
    config.path_mtu = mtu_of(attr.path_mtu).unwrap_or(Mtu::B256);
    config.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    config.min_rnr_timer = attr.min_rnr_timer;
    config.service_level = attr.ah_attr.sl;
    if attr.ah_attr.is_global != 0 {
        config.traffic_class = attr.ah_attr.grh.traffic_class;
        config.flow_label = attr.ah_attr.grh.flow_label;
        config.hop_limit = attr.ah_attr.grh.hop_limit;
    }
}

fn at_rts(config: &mut IbvConfig, attr: &ibv_qp_attr) {
    config.psn = Some(attr.sq_psn);
    config.timeout = attr.timeout;
    config.retry_cnt = attr.retry_cnt;
    config.rnr_retry = attr.rnr_retry;
    config.max_rd_atomic = attr.max_rd_atomic;
}
