//! All messages of the process that land, and which of them may go on: each costs the same among few and among thousands. How
//! one of them lands is in `landing`.

use std::collections::{BTreeMap, BTreeSet};

use crate::efa::landing::Landing;
use crate::ready::Ready;

/// The messages, by numbers that grow.
#[derive(Debug, Default)]
pub struct Landings {
    map: BTreeMap<u64, Landing>,
    next: u64,
    /// Those of each queue pair, and whether only its oldest may go on.
    of: BTreeMap<u16, (BTreeSet<u64>, bool)>,
    free: Ready<u64>,
}

impl Landings {
    /// Adds one. `in_order`: it goes on only once those of its queue pair that came before are gone.
    pub fn insert(&mut self, landing: Landing, in_order: bool) {
        let (id, qpn) = (self.next, landing.qpn);
        self.next += 1;
        let (ids, keeps) = self.of.entry(qpn).or_default();
        *keeps = in_order;
        if !in_order || ids.is_empty() {
            self.free.insert(id);
        }
        ids.insert(id);
        self.map.insert(id, landing);
    }

    /// One of them, to go on.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Landing> {
        self.map.get_mut(&id)
    }

    /// Takes one away.
    pub fn remove(&mut self, id: u64) -> Option<Landing> {
        let landing = self.map.remove(&id)?;
        self.free.remove(id);
        if let Some((ids, _)) = self.of.get_mut(&landing.qpn) {
            ids.remove(&id);
            match ids.first() {
                Some(next) => self.free.insert(*next),
                None => drop(self.of.remove(&landing.qpn)),
            }
        }
        Some(landing)
    }

    /// Takes all of a queue pair away, oldest first.
    pub fn take_of(&mut self, qpn: u16) -> Vec<Landing> {
        let ids = self.of.get(&qpn).map(|(ids, _)| ids.iter().copied().collect::<Vec<_>>());
        ids.unwrap_or_default().into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Those that may go on.
    pub fn free(&self) -> &[u64] {
        self.free.list()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::efa::landing::Then;
    use proptest::prelude::*;

    fn landing(qpn: u16) -> Landing {
        Landing::turn(qpn, Then::Complete(0))
    }

    /// What may go on, as a set.
    fn free(landings: &Landings) -> BTreeSet<u64> {
        landings.free().iter().copied().collect()
    }

    proptest! {
        #[test]
        fn the_oldest_of_each_or_all_may_go_on(in_order: bool, steps in proptest::collection::vec((0u16..4, 0u8..4), 1..80)) {
            let (mut landings, mut model) = (Landings::default(), Vec::<(u64, u16)>::new());
            for (number, (qpn, what)) in steps.into_iter().enumerate() {
                match what {
                    0 if !model.is_empty() => {
                        let (id, qpn) = model.remove(number % model.len());
                        prop_assert_eq!(landings.remove(id).map(|l| l.qpn), Some(qpn));
                    }
                    1 if number % 5 == 0 => {
                        let of = model.iter().filter(|(_, n)| *n == qpn).count();
                        prop_assert_eq!(landings.take_of(qpn).len(), of);
                        model.retain(|(_, n)| *n != qpn);
                    }
                    _ => {
                        model.push((landings.next, qpn));
                        landings.insert(landing(qpn), in_order);
                    }
                }
                let oldest = |(i, (_, n)): &(usize, &(u64, u16))| !in_order || !model[..*i].iter().any(|(_, m)| m == n);
                let expected: BTreeSet<u64> = model.iter().enumerate().filter(oldest).map(|(_, (id, _))| *id).collect();
                prop_assert_eq!(free(&landings), expected);
            }
        }
    }
}
