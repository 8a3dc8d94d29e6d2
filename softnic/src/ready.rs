//! A set of things that can be done now, from which any one can be taken by its position: adding, removing and choosing cost
//! the same for one thing and for thousands. The order depends on what was added and removed, and on nothing else.

use std::collections::BTreeMap;

/// The set.
#[derive(Debug, Clone)]
pub struct Ready<T> {
    list: Vec<T>,
    places: BTreeMap<T, usize>,
}

impl<T> Default for Ready<T> {
    fn default() -> Self {
        Self { list: Vec::new(), places: BTreeMap::new() }
    }
}

impl<T: Copy + Ord> Ready<T> {
    /// Adds or removes.
    pub fn set(&mut self, item: T, ready: bool) {
        if ready { self.insert(item) } else { self.remove(item) }
    }

    /// Adds; nothing if it is there.
    pub fn insert(&mut self, item: T) {
        if let std::collections::btree_map::Entry::Vacant(place) = self.places.entry(item) {
            place.insert(self.list.len());
            self.list.push(item);
        }
    }

    /// Removes, if it is there. The last one takes its place.
    pub fn remove(&mut self, item: T) {
        if let Some(at) = self.places.remove(&item) {
            self.list.swap_remove(at);
            if let Some(moved) = self.list.get(at) {
                self.places.insert(*moved, at);
            }
        }
    }

    /// All of them.
    pub fn list(&self) -> &[T] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_holds_what_a_set_would(steps in proptest::collection::vec((0u8..20, any::<bool>()), 0..200)) {
            let (mut ready, mut set) = (Ready::default(), BTreeSet::new());
            for (item, there) in steps {
                ready.set(item, there);
                if there { set.insert(item) } else { set.remove(&item) };
                let mut sorted = ready.list().to_vec();
                sorted.sort_unstable();
                prop_assert_eq!(sorted, set.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
