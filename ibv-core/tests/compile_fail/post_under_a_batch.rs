// Nor does anything else post while a batch is open.
use ibv_core::{Connected, IbvMemoryRegionView, IbvQueuePair, IbvRemoteMemoryRegionView, PostError};

fn under<Q: IbvQueuePair>(
    qp: &mut Connected<Q>,
    dst: IbvRemoteMemoryRegionView,
    src: IbvMemoryRegionView<'_>,
) -> Result<(), PostError> {
    let batch = qp.batch();
    let _ids = qp.put(dst, src)?;
    batch.ring()
}

fn main() {}
