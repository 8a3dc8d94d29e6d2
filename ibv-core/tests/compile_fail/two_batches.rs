// A queue pair has one batch at a time.
use ibv_core::{Connected, IbvQueuePair, PostError};

fn two<Q: IbvQueuePair>(qp: &mut Connected<Q>) -> Result<(), PostError> {
    let first = qp.batch();
    let second = qp.batch();
    first.ring()?;
    second.ring()
}

fn main() {}
