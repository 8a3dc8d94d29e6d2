// A queue has one poller, so a poller has no copies.
use ibv_core::{IbvDomainImpl, Poller};

fn twice<I: IbvDomainImpl>(poller: &Poller<I>) -> (Poller<I>, Poller<I>) {
    (poller.clone(), poller.clone())
}

fn main() {}
