//! Objects by number, with those noted that may have changed: whoever gets one to change it has it looked at again, so that
//! looking costs the same among few and among thousands. What is looked at is not known here.

use std::collections::BTreeMap;
use std::collections::btree_map::Values;
use std::ops::{Index, RangeBounds};

/// The objects.
#[derive(Debug)]
pub struct Touched<K, T> {
    map: BTreeMap<K, T>,
    /// Numbers of those that may have changed since they were last looked at.
    touched: Vec<K>,
}

impl<K, T> Default for Touched<K, T> {
    fn default() -> Self {
        Self { map: BTreeMap::new(), touched: Vec::new() }
    }
}

impl<K: Copy + Ord, T> Touched<K, T> {
    /// An object.
    pub fn get(&self, number: &K) -> Option<&T> {
        self.map.get(number)
    }

    /// An object, to change it.
    pub fn get_mut(&mut self, number: &K) -> Option<&mut T> {
        self.touch(*number);
        self.map.get_mut(number)
    }

    /// Has it looked at again.
    pub fn touch(&mut self, number: K) {
        if self.touched.last() != Some(&number) {
            self.touched.push(number);
        }
    }

    /// Has all of them looked at again: some things change without a sign, such as receives posted in the error state.
    pub fn touch_all(&mut self) {
        self.touched.clear();
        self.touched.extend(self.map.keys());
    }

    /// Whether there is one of this number.
    pub fn contains_key(&self, number: &K) -> bool {
        self.map.contains_key(number)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// All of them.
    pub fn values(&self) -> Values<'_, K, T> {
        self.map.values()
    }

    /// All of them, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.touch_all();
        self.map.values_mut()
    }

    /// Those with such numbers; whoever changes one says so itself.
    pub fn range_mut(&mut self, numbers: impl RangeBounds<K>) -> impl Iterator<Item = (&K, &mut T)> {
        self.map.range_mut(numbers)
    }

    /// Adds one.
    pub fn add(&mut self, number: K, object: T) {
        self.map.insert(number, object);
        self.touch(number);
    }

    /// Takes one away.
    pub fn take(&mut self, number: &K) -> Option<T> {
        self.map.remove(number)
    }

    /// One of those that were touched, the last first; some are gone by now.
    pub fn pop_touched(&mut self) -> Option<K> {
        self.touched.pop()
    }

    /// All of those that were touched, the first first.
    pub fn take_touched(&mut self) -> Vec<K> {
        std::mem::take(&mut self.touched)
    }
}

impl<K: Ord, T> Index<&K> for Touched<K, T> {
    type Output = T;

    fn index(&self, number: &K) -> &T {
        &self.map[number]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_may_have_changed_is_noted_and_who_was_only_read_is_not() {
        let mut all = Touched::default();
        (1..4).for_each(|n| all.add(n, 10 * n));
        assert_eq!(all.take_touched(), [1, 2, 3]);
        assert_eq!((all.get(&2), all.values().sum::<i32>(), all.contains_key(&9)), (Some(&20), 60, false));
        all.range_mut(2..).for_each(|(_, object)| *object += 1);
        assert!(all.take_touched().is_empty());
        *all.get_mut(&3).unwrap() = 5;
        *all.get_mut(&3).unwrap() += 1;
        assert_eq!((all.take(&1), all.len(), all.take_touched()), (Some(10), 2, vec![3]));
        assert_eq!(all.values_mut().map(|object| *object).collect::<Vec<_>>(), [21, 6]);
        assert_eq!((all.pop_touched(), all.pop_touched(), all.pop_touched()), (Some(3), Some(2), None));
    }
}
