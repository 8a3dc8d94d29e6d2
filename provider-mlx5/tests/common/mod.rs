//! What the tests share: a software ConnectX that goes by steps, a domain on it, and a look at the rings.
#![allow(unsafe_code, dead_code)]

use ibv_core::{IbvDomain, IbvDomainImpl, Provider};
use ibv_sys as sys;
use provider_mlx5::{IbvQueuePair, Mlx5Domain, Mlx5Provider, SeedDomain};
use softnic::{Config, Softnic};

/// One device, driven by steps, which reports breaches of the hardware's rules.
pub fn nic() -> Softnic {
    Softnic::start(Config::steps(7)).unwrap()
}

pub fn domain_as<D: IbvDomainImpl>(wrap: impl FnOnce(Mlx5Domain) -> D) -> IbvDomain<D> {
    let device = Mlx5Provider.devices().unwrap().remove(0);
    IbvDomain::new(wrap(Mlx5Provider.open(&device).unwrap()), device)
}

pub fn domain() -> IbvDomain<Mlx5Domain> {
    domain_as(|d| d)
}

/// A domain whose queue pairs show their rings.
pub fn seed_domain() -> IbvDomain<SeedDomain> {
    domain_as(SeedDomain)
}

/// A description that libmlx5 made.
pub fn dv_qp(qp: &IbvQueuePair) -> &sys::mlx5dv_qp {
    // SAFETY: the address is the struct's own, and borrowed with it.
    unsafe { &*(qp.dv_qp as *const sys::mlx5dv_qp) }
}

/// Word `word` of basic block `block` of the send ring, as the device would fetch it.
pub fn ring_word(qp: &IbvQueuePair, block: usize, word: usize) -> u64 {
    // SAFETY: the ring is mapped while the struct lives; nothing runs beside this.
    u64::from_be(unsafe { dv_qp(qp).sq.buf.cast::<u64>().add(block * 8 + word).read_volatile() })
}

/// The record: receives, send blocks.
pub fn record(qp: &IbvQueuePair) -> [u32; 2] {
    // SAFETY: as above.
    unsafe { dv_qp(qp).dbrec.cast::<[u32; 2]>().read_volatile() }.map(u32::from_be)
}
