//! Asynchronous event types, as verbs numbers them (`enum ibv_event_type`). Who raises them is not here.

/// A completion queue overran.
pub const CQ_ERR: u32 = 0;
/// A queue pair failed of itself.
pub const QP_FATAL: u32 = 1;
/// An invalid request arrived.
pub const QP_REQ_ERR: u32 = 2;
/// A request without permission arrived.
pub const QP_ACCESS_ERR: u32 = 3;
/// The connection was established by the first message.
pub const COMM_EST: u32 = 4;
/// The send queue ran dry on request.
pub const SQ_DRAINED: u32 = 5;
/// The device failed.
pub const DEVICE_FATAL: u32 = 8;
/// A port came up.
pub const PORT_ACTIVE: u32 = 9;
/// A port went down.
pub const PORT_ERR: u32 = 10;
/// A shared receive queue holds fewer receives than its limit.
pub const SRQ_LIMIT_REACHED: u32 = 15;
/// A queue pair in the error state took its last receive from its shared queue.
pub const QP_LAST_WQE_REACHED: u32 = 16;
/// A port's address table changed.
pub const GID_CHANGE: u32 = 18;
