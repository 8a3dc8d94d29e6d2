//! Objects of one kind by the numbers that programs know them by: from 1 on, the lowest free one first. What the objects are
//! is not known here.

use std::collections::{BTreeMap, BTreeSet};

/// The objects.
#[derive(Debug)]
pub struct Numbered<T> {
    list: BTreeMap<u32, T>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { list: BTreeMap::new() }
    }
}

impl<T> Numbered<T> {
    /// Adds an object; answers its number.
    pub fn insert(&mut self, object: T) -> u32 {
        let number = (1..).find(|n| !self.list.contains_key(n)).expect("fewer than 2^32 objects");
        self.list.insert(number, object);
        number
    }

    /// An object.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.list.get(&number)
    }

    /// An object, to change it.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.list.get_mut(&number)
    }

    /// Removes an object.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        self.list.remove(&number)
    }

    /// Keeps those that `keep` says.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.list.retain(|_, object| keep(object));
    }

    /// Keeps those of `some` that are there and that `keep` says.
    pub fn retain_in(&mut self, some: &mut BTreeSet<u32>, mut keep: impl FnMut(&mut T) -> bool) {
        some.retain(|number| self.get_mut(*number).is_some_and(&mut keep));
    }

    /// All of them, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&u32, &T)> {
        self.list.iter()
    }

    /// All of them.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.list.values()
    }

    /// All of them, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.list.values_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_given_first() {
        let mut list = Numbered::default();
        assert_eq!(["a", "b", "c"].map(|object| list.insert(object)), [1, 2, 3]);
        assert_eq!((list.remove(2), list.remove(2)), (Some("b"), None));
        assert_eq!([list.insert("d"), list.insert("e")], [2, 4]);
        list.retain(|object| *object > "c");
        assert_eq!(list.iter().collect::<Vec<_>>(), [(&2, &"d"), (&4, &"e")]);
        assert_eq!(list.get(1), None);
        assert_eq!(list.insert("f"), 1);
    }
}
