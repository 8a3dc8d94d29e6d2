//! The queue pair: what is built and not rung lives here, everything rung in the fabric.

use crate::{
    Fabric, Verb,
    fabric::{Built, QpRef, Sizes, parse_gid},
};
use ibv_core::{
    Error, ErrorKind, FromCore, IbvConfig, IbvPath, IbvQpInfo, IbvQueuePair, PostError, QpAttributes, QpCore,
    QpState, RecvRequest, Transport, WorkRequest,
};

/// A queue pair of a mock device.
#[derive(Debug)]
pub struct MockQueuePair {
    device: DeviceHalf,
    /// Last: the device's half is gone before core returns its credits.
    core: QpCore,
}

/// Dropping it destroys the device's queue pair.
#[derive(Debug)]
struct DeviceHalf {
    fabric: Fabric,
    at: QpRef,
    built: Built,
}

impl Drop for DeviceHalf {
    fn drop(&mut self) {
        self.fabric.lock().destroy_qp(self.at);
    }
}

impl MockQueuePair {
    pub(crate) fn new(fabric: Fabric, at: QpRef, config: &IbvConfig, core: QpCore) -> Self {
        let built = Built::new(Sizes::of(config));
        Self { device: DeviceHalf { fabric, at, built }, core }
    }

    /// The fabric it is on.
    pub fn fabric(&self) -> &Fabric {
        &self.device.fabric
    }

    /// Whether the endpoint is one of this very fabric.
    fn check_fabric(&self, remote: &IbvQpInfo) -> Result<(), Error> {
        let ours = self.device.fabric.lock().id;
        let theirs = remote.gid.and_then(parse_gid).map(|(fabric, _)| fabric);
        if theirs == Some(ours) {
            return Ok(());
        }
        let theirs = theirs.map_or("none".into(), |id| format!("{id:016x}"));
        let detail = format!(
            "the endpoint is not of this mock fabric: ours {ours:016x}, theirs {theirs}; a mock fabric lives in one process, so clone the Fabric for the other end, or use a provider with a network"
        );
        Err(Error::new(ErrorKind::Incompatible, "connect", detail))
    }
}

impl IbvQueuePair for MockQueuePair {
    #[inline]
    fn core(&self) -> &QpCore {
        &self.core
    }

    #[inline]
    fn core_mut(&mut self, _: FromCore) -> &mut QpCore {
        &mut self.core
    }

    fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error> {
        let state = self.device.fabric.lock();
        let qp = state.qp(self.device.at).ok_or_else(|| Error::from_errno("query_qp", 22))?;
        let mut info = IbvQpInfo::new(Transport::MOCK, self.device.at.num());
        info.gid = Some(qp.gid);
        // What this end was created with, not what it agreed on: the endpoint is stable.
        let config = &qp.offered;
        info.psn = config.psn.unwrap_or(0);
        info.qkey = config.qkey.unwrap_or(0);
        info.mtu = config.path_mtu;
        info.max_rd_atomic = config.max_rd_atomic;
        info.max_dest_rd_atomic = config.max_dest_rd_atomic;
        Ok(info)
    }

    fn establish(&mut self, path: &IbvPath, _: FromCore) -> Result<(), Error> {
        self.check_fabric(&path.remote)?;
        let mut state = self.device.fabric.lock();
        state.establish(self.device.at, path)?;
        self.device.fabric.kick(&mut state);
        Ok(())
    }

    fn state(&mut self) -> Result<QpState, Error> {
        let mut state = self.device.fabric.lock();
        state.call(Verb::QueryQp, "query_qp", self.device.at.device)?;
        Ok(state.qp(self.device.at).map_or(QpState::ERR, |qp| qp.state))
    }

    fn attributes(&mut self) -> Result<QpAttributes, Error> {
        let mut state = self.device.fabric.lock();
        state.call(Verb::QueryQp, "query_qp", self.device.at.device)?;
        let qp = state.qp(self.device.at).ok_or_else(|| Error::from_errno("query_qp", 22))?;
        let mut attributes = QpAttributes::new(qp.state, qp.config.clone());
        attributes.dest_qp_num = qp.path.map(|p| p.remote.qp_num);
        attributes.rq_psn = qp.path.map(|p| p.remote.psn);
        Ok(attributes)
    }

    fn enter_error(&mut self) -> Result<(), Error> {
        let mut state = self.device.fabric.lock();
        state.call(Verb::ModifyQp, "modify_qp", self.device.at.device)?;
        state.enter_error(self.device.at);
        self.device.fabric.kick(&mut state);
        Ok(())
    }

    fn can_reset(&self) -> bool {
        true
    }

    fn to_reset(&mut self, _: FromCore) -> Result<(), Error> {
        let mut state = self.device.fabric.lock();
        self.device.at = state.reset_qp(self.device.at)?;
        Ok(())
    }

    #[inline]
    fn enqueue(&mut self, wr: &WorkRequest<'_>) -> Result<(), PostError> {
        self.device.fabric.enqueue_fault(self.device.at.device)?;
        self.device.built.push(wr)
    }

    #[inline]
    fn ring_doorbell(&mut self, _: FromCore) -> Result<(), PostError> {
        let mut state = self.device.fabric.lock();
        state.ring(self.device.at, &mut self.device.built)?;
        self.device.fabric.kick(&mut state);
        Ok(())
    }

    fn discard(&mut self, _: FromCore) {
        self.device.built.clear();
    }

    fn enqueue_recv(&mut self, wr: &RecvRequest<'_>) -> Result<(), PostError> {
        let mut state = self.device.fabric.lock();
        state.post_recv(self.device.at, wr)?;
        self.device.fabric.kick(&mut state);
        Ok(())
    }
}
