//! Whom a queue pair can reach: address handles, one for each address of a domain however many queue pairs and
//! peers use it, and the destinations that requests name.
#![allow(unsafe_code)]
//! # Safety
//! An address handle's pointer is used only while the `Arc` beside it is held.

use ibv_core::{
    Error, Gid, IbvPath, IbvQpInfo,
    verbs::{Ah, Pd},
};
use ibv_sys::{ibv_ah, ibv_ah_attr, ibv_gid, ibv_global_route};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// How to get to a peer's adapter from one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Route {
    pub(crate) port: u8,
    pub(crate) sgid_index: u8,
    pub(crate) dgid: Gid,
}

/// Only these fields mean something to EFA; the kernel refuses most others.
fn ah_attr(route: Route) -> ibv_ah_attr {
    let grh = ibv_global_route {
        dgid: ibv_gid { raw: route.dgid.0 },
        sgid_index: route.sgid_index,
        ..ibv_global_route::default()
    };
    ibv_ah_attr { grh, is_global: 1, port_num: route.port, ..ibv_ah_attr::default() }
}

/// The address handles of a domain.
#[derive(Debug)]
pub(crate) struct AddressBook {
    known: Mutex<HashMap<Route, Weak<Ah>>>,
    pd: Arc<Pd>,
}

impl AddressBook {
    pub(crate) fn new(pd: Arc<Pd>) -> Self {
        Self { known: Mutex::default(), pd }
    }

    /// The address handle of `route`: the one there is, or a new one.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn look_up(&self, route: Route) -> Result<Arc<Ah>, Error> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ah) = known.get(&route).and_then(Weak::upgrade) {
            return Ok(ah);
        }
        known.retain(|_, ah| ah.strong_count() > 0);
        let made = Ah::create(&self.pd, &mut ah_attr(route));
        let ah = Arc::new(made.map_err(|e| {
            e.context(format!("port {}, GID index {}, to GID {}", route.port, route.sgid_index, route.dgid))
        })?);
        known.insert(route, Arc::downgrade(&ah));
        Ok(ah)
    }
}

/// Where a request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    /// Of one that the `Peers` keep.
    pub(crate) ah: *mut ibv_ah,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

/// The peers of one queue pair, by number.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    to: Vec<Destination>,
    kept: Vec<Arc<Ah>>,
}

// SAFETY: the pointers are those of the address handles beside them, which any thread may use.
unsafe impl Send for Peers {}

impl Peers {
    /// Takes in the peer at the other end of `path`; its number.
    pub(crate) fn add(&mut self, ah: Arc<Ah>, path: &IbvPath) -> u32 {
        let IbvQpInfo { qp_num, qkey, .. } = path.remote;
        self.to.push(Destination { ah: ah.as_ptr(), qp_num, qkey });
        self.kept.push(ah);
        (self.to.len() - 1) as u32
    }

    #[inline]
    pub(crate) fn at(&self, number: u32) -> Option<&Destination> {
        self.to.get(number as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_gid_and_nothing_else() {
        let attr = ah_attr(Route { port: 1, sgid_index: 0, dgid: Gid([7; 16]) });
        assert_eq!((attr.is_global, attr.port_num, attr.dlid, attr.sl), (1, 1, 0, 0));
        let grh = attr.grh;
        assert_eq!((grh.sgid_index, grh.hop_limit, grh.traffic_class, grh.flow_label), (0, 0, 0, 0));
        // SAFETY: both members of the union are 16 plain bytes.
        assert_eq!(unsafe { grh.dgid.raw }, [7; 16]);
    }
}
