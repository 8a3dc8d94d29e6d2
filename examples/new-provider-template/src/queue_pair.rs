//! The queue pair. Ids, credits, limits and splitting are core's, and were checked before anything
//! arrives here.

use crate::domain::{{Camel}}Cq;
use ibv_core::{
    Error, FromCore, IbvConfig, IbvPath, IbvQpInfo, IbvQueuePair, IbvWc, PostError, QpCore, QpState,
    RecvRequest, Transport, WcStatus, WorkRequest,
};
use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// Any number from `Transport::PRIVATE` on keeps these endpoints from being taken for another provider's.
const TRANSPORT: Transport = Transport(Transport::PRIVATE.0 + 1);

/// A queue pair without a data path.
#[derive(Debug)]
pub struct {{Camel}}QueuePair {
    /// What the peer is told: fixed when created, because core's configuration changes with `connect`.
    info: IbvQpInfo,
    state: QpState,
    recv_cq: {{Camel}}Cq,
    /// Ids of the receives posted.
    rq: VecDeque<u64>,
    /// Last, so that the device object is gone before the credits and both queues are.
    core: QpCore,
}

impl {{Camel}}QueuePair {
    pub(crate) fn new(config: &IbvConfig, recv_cq: {{Camel}}Cq, core: QpCore) -> Self {
        static LAST_QP_NUM: AtomicU32 = AtomicU32::new(0);
        let mut info = IbvQpInfo::new(TRANSPORT, (LAST_QP_NUM.fetch_add(1, Relaxed) + 1) & 0xff_ffff);
        (info.psn, info.mtu) = (config.psn.unwrap_or_default(), config.path_mtu);
        let rq = VecDeque::with_capacity(config.max_recv_wr as usize);
        Self { info, state: QpState::RESET, recv_cq, rq, core }
    }

    fn flush(&mut self) {
        let (status, qp_num) = (WcStatus::WR_FLUSH_ERR, self.info.qp_num);
        let flushed = self.rq.drain(..).map(|wr_id| IbvWc { wr_id, status, qp_num, ..IbvWc::default() });
        self.recv_cq.lock().extend(flushed);
    }
}

impl IbvQueuePair for {{Camel}}QueuePair {
    fn core(&self) -> &QpCore {
        &self.core
    }

    fn core_mut(&mut self, _: FromCore) -> &mut QpCore {
        &mut self.core
    }

    fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error> {
        Ok(self.info)
    }

    /// Both ends agreed on `path` before this is called.
    fn establish(&mut self, _path: &IbvPath, _: FromCore) -> Result<(), Error> {
        self.state = QpState::RTS;
        Ok(())
    }

    /// Asked of the device each time: it moves to ERR by itself.
    fn state(&mut self) -> Result<QpState, Error> {
        Ok(self.state)
    }

    fn enter_error(&mut self) -> Result<(), Error> {
        self.state = QpState::ERR;
        self.flush();
        Ok(())
    }

    /// Builds the request where the device can not see it yet. `Caps` offers no operation, so core lets
    /// none through.
    fn enqueue(&mut self, _wr: &WorkRequest<'_>) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    /// Publishes everything built, with as few device writes as can be; on `Err`, nothing.
    fn ring_doorbell(&mut self, _: FromCore) -> Result<(), PostError> {
        Ok(())
    }

    /// Forgets everything built since the last ring.
    fn discard(&mut self, _: FromCore) {}

    /// Visible to the device on return. In ERR it flushes at once.
    fn enqueue_recv(&mut self, wr: &RecvRequest<'_>) -> Result<(), PostError> {
        self.rq.push_back(wr.id);
        if self.state == QpState::ERR {
            self.flush();
        }
        Ok(())
    }
}
