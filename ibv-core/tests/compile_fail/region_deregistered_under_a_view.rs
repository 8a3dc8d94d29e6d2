// Nor can the region be deregistered under it.
use ibv_core::{Error, IbvDomain, IbvDomainImpl};

fn pulled<I: IbvDomainImpl>(domain: &IbvDomain<I>) -> Result<usize, Error> {
    let region = domain.alloc(8)?;
    let view = region.view();
    let _memory = region.deregister();
    Ok(view.len())
}

fn main() {}
