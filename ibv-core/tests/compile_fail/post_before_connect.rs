// An unconnected queue pair has neither `put` nor `batch`.
use ibv_core::{IbvMemoryRegionView, IbvQueuePair, IbvRemoteMemoryRegionView, QueuePair};

fn early<Q: IbvQueuePair>(qp: &mut QueuePair<Q>, dst: IbvRemoteMemoryRegionView, src: IbvMemoryRegionView<'_>) {
    let _ = qp.put(dst, src);
    let _ = qp.batch();
}

fn main() {}
