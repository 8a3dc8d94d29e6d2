// A closing one has them no more.
use ibv_core::{Closing, IbvQueuePair};

fn late<Q: IbvQueuePair>(closing: &mut Closing<Q>) {
    let _ = closing.batch();
}

fn main() {}
