//! The queue pair: builds requests privately, and hands them to the fabric at the doorbell. What they do
//! there is `fabric.rs`'s; ids, credits and limits are core's and were checked before anything arrives
//! here.

use crate::fabric::{Fabric, Flight, Recv};
use ibv_core::{
    Error, ErrorKind, FromCore, IbvConfig, IbvPath, IbvQpInfo, IbvQueuePair, PostError, QpAttributes, QpCore,
    QpState, RecvRequest, Transport, WorkRequest,
};

/// Any number from `Transport::PRIVATE` on is free to use: it keeps this provider's endpoints from being
/// taken for another's.
const TRANSPORT: Transport = Transport(Transport::PRIVATE.0 + 7);

/// A queue pair of the fabric.
#[derive(Debug)]
pub struct ShmQueuePair {
    device: Device,
    info: IbvQpInfo,
    /// Built, but not rung: the fabric can not see these.
    built: Vec<Flight>,
    /// Last, so that the device object is gone before the credits and both queues are.
    core: QpCore,
}

/// The device object. Dropping it is what "no completion after a queue pair's drop" rests on.
#[derive(Debug)]
struct Device {
    fabric: Fabric,
    qp_num: u32,
}

impl Drop for Device {
    fn drop(&mut self) {
        self.fabric.lock().destroy_qp(self.qp_num);
    }
}

impl ShmQueuePair {
    pub(crate) fn new(fabric: Fabric, qp_num: u32, config: &IbvConfig, core: QpCore) -> Self {
        let built = Vec::with_capacity(config.max_send_wr as usize);
        let info = endpoint(&fabric, qp_num, config);
        Self { device: Device { fabric, qp_num }, info, built, core }
    }
}

/// The GID is the fabric's: it tells a peer of this process from one that merely has the same number.
fn endpoint(fabric: &Fabric, qp_num: u32, config: &IbvConfig) -> IbvQpInfo {
    let mut info = IbvQpInfo::new(TRANSPORT, qp_num);
    info.gid = Some(fabric.gid());
    info.psn = config.psn.unwrap_or_default();
    (info.mtu, info.qkey) = (config.path_mtu, config.qkey.unwrap_or_default());
    (info.max_rd_atomic, info.max_dest_rd_atomic) = (config.max_rd_atomic, config.max_dest_rd_atomic);
    info
}

impl IbvQueuePair for ShmQueuePair {
    fn core(&self) -> &QpCore {
        &self.core
    }

    fn core_mut(&mut self, _: FromCore) -> &mut QpCore {
        &mut self.core
    }

    /// As it was when created: core's configuration changes with `connect`, an endpoint must not.
    fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error> {
        Ok(self.info)
    }

    fn establish(&mut self, path: &IbvPath, _: FromCore) -> Result<(), Error> {
        let (ours, theirs) = (self.device.fabric.gid(), path.remote.gid.unwrap_or_default());
        if ours != theirs {
            let detail = format!(
                "the peer is on another fabric: ours {ours}, theirs {theirs}; shm reaches one process only"
            );
            return Err(Error::new(ErrorKind::Incompatible, "modify_qp", detail));
        }
        self.device.fabric.lock().connect(self.device.qp_num, &path.remote)
    }

    fn state(&mut self) -> Result<QpState, Error> {
        Ok(self.device.fabric.lock().state(self.device.qp_num))
    }

    fn attributes(&mut self) -> Result<QpAttributes, Error> {
        let mut attributes = QpAttributes::new(self.state()?, self.core.config().clone());
        if let Some(peer) = self.device.fabric.lock().peer(self.device.qp_num) {
            (attributes.dest_qp_num, attributes.rq_psn) = (Some(peer.qp_num), Some(peer.psn));
        }
        Ok(attributes)
    }

    fn enter_error(&mut self) -> Result<(), Error> {
        self.device.fabric.lock().enter_error(self.device.qp_num);
        Ok(())
    }

    /// Room was checked by core and set aside in `new`: this neither fails nor allocates.
    fn enqueue(&mut self, wr: &WorkRequest<'_>) -> Result<(), PostError> {
        self.built.push(Flight::new(wr)?);
        Ok(())
    }

    fn ring_doorbell(&mut self, _: FromCore) -> Result<(), PostError> {
        self.device.fabric.lock().post(self.device.qp_num, &mut self.built);
        Ok(())
    }

    fn discard(&mut self, _: FromCore) {
        self.built.clear();
    }

    fn enqueue_recv(&mut self, wr: &RecvRequest<'_>) -> Result<(), PostError> {
        self.device.fabric.lock().post_recv(self.device.qp_num, Recv::new(wr)?);
        Ok(())
    }
}
