//! What a measurement runs on, and how it is driven: with the provider's own types where this build knows them,
//! so that posting and polling cost no virtual call. What is measured is the other modules'.

use super::{Report, Settings, Watch, client, loopback, server};
use crate::Failure;
use ibv::{AnyDomain, Error, ErrorKind, IbvDomain, IbvDomainImpl, providers};
use std::net::TcpStream;

/// The ends of a measurement that are in this process.
#[derive(Debug)]
pub(crate) enum Ends<I: IbvDomainImpl> {
    /// The client's and the server's.
    Both(IbvDomain<I>, IbvDomain<I>),
    /// The client's, and the way to the server.
    Client(IbvDomain<I>, TcpStream),
    /// The server's, and the way to its client.
    Server(IbvDomain<I>, TcpStream),
}

impl Ends<AnyDomain> {
    /// Measures, with somebody else's provider through its erased type.
    pub(crate) fn measure(self, settings: &Settings, watch: &mut dyn Watch) -> Result<Report, Failure> {
        #[cfg(feature = "efa")]
        if self.are::<providers::efa::EfaDomain>() {
            return self.own::<providers::efa::EfaDomain>()?.run(settings, watch);
        }
        #[cfg(feature = "mlx5")]
        if self.are::<providers::mlx5::Mlx5Domain>() {
            return self.own::<providers::mlx5::Mlx5Domain>()?.run(settings, watch);
        }
        #[cfg(feature = "verbs")]
        if self.are::<providers::verbs::VerbsDomain>() {
            return self.own::<providers::verbs::VerbsDomain>()?.run(settings, watch);
        }
        if self.are::<providers::mock::MockDomain>() {
            return self.own::<providers::mock::MockDomain>()?.run(settings, watch);
        }
        self.run(settings, watch)
    }

    fn are<D: IbvDomainImpl>(&self) -> bool {
        let is = |domain: &IbvDomain<AnyDomain>| domain.imp().downcast_ref::<D>().is_some();
        match self {
            Self::Both(near, far) => is(near) && is(far),
            Self::Client(domain, _) | Self::Server(domain, _) => is(domain),
        }
    }

    fn own<D: IbvDomainImpl>(self) -> Result<Ends<D>, Failure> {
        Ok(match self {
            Self::Both(near, far) => Ends::Both(own(near)?, own(far)?),
            Self::Client(domain, link) => Ends::Client(own(domain)?, link),
            Self::Server(domain, link) => Ends::Server(own(domain)?, link),
        })
    }
}

/// The domain as its provider made it, from which nothing was made yet.
fn own<D: IbvDomainImpl>(domain: IbvDomain<AnyDomain>) -> Result<IbvDomain<D>, Failure> {
    let parts = domain.into_parts().ok().and_then(|(any, info)| Some((any.downcast::<D>().ok()?, info)));
    match parts {
        Some((imp, info)) => Ok(IbvDomain::new(imp, info)),
        None => {
            Err(Error::new(ErrorKind::ForeignHandle, "open", "a domain in use or of another type").into())
        }
    }
}

impl<I: IbvDomainImpl> Ends<I> {
    fn run(self, settings: &Settings, watch: &mut dyn Watch) -> Result<Report, Failure> {
        match self {
            Self::Both(near, far) => loopback(&near, &far, settings, watch),
            Self::Client(domain, link) => client(&domain, link, settings, watch),
            Self::Server(domain, link) => server(&domain, link, settings, watch),
        }
    }
}
