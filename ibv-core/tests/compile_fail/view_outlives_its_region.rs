// A view can not outlive its region.
use ibv_core::{Error, IbvDomain, IbvDomainImpl, IbvMemoryRegionView};

fn dangling<I: IbvDomainImpl>(domain: &IbvDomain<I>) -> Result<usize, Error> {
    let view: IbvMemoryRegionView<'_>;
    {
        let region = domain.alloc(8)?;
        view = region.view();
    }
    Ok(view.len())
}

fn main() {}
