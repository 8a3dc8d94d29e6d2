// Only core makes the requests that a provider need not check again.
use ibv_core::{IbvRemoteMemoryRegionView, Op, Payload, RecvRequest, WorkRequest};

fn forged() -> (WorkRequest<'static>, RecvRequest<'static>) {
    let send = WorkRequest {
        id: 0,
        op: Op::Write,
        signaled: true,
        fence: false,
        solicited: false,
        local: Payload::Sges(&[]),
        remote: IbvRemoteMemoryRegionView::default(),
    };
    (send, RecvRequest { id: 0, local: &[] })
}

fn main() {}
