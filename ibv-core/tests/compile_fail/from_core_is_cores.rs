// Only core calls what could upset ids and credits.
use ibv_core::{Connected, FromCore, IbvQueuePair};

fn behind<Q: IbvQueuePair>(qp: &mut Connected<Q>) {
    qp.queue_pair().discard(FromCore(()));
}

fn main() {}
