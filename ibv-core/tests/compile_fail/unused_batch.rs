// A batch that is not rung, a request that is not pushed and ids that nobody looks at warn.
#![deny(unused_must_use)]
use ibv_core::{Connected, IbvQueuePair, PostError, Request};

fn unused<Q: IbvQueuePair>(qp: &mut Connected<Q>) -> Result<(), PostError> {
    qp.batch();
    Request::send(&[]);
    qp.post(&Request::send(&[]))?;
    Ok(())
}

fn main() {}
