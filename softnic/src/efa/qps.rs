//! All queue pairs of EFA in the process, by number: which were touched, and which can do something. Each costs the same for
//! one queue pair and for a thousand. What they do is not known here.

use std::collections::BTreeMap;
use std::collections::btree_map::Values;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::ops::Index;

use crate::efa::qp::Qp;
use crate::mlx5::transition::QpState;
use crate::ready::Ready;

/// The queue pairs.
#[derive(Debug, Default)]
pub struct Qps {
    map: BTreeMap<u16, Qp>,
    /// Numbers of those that may have changed since they were last looked at.
    touched: Vec<u16>,
    /// Those that can send or flush.
    ready: Ready<u16>,
    /// The one that was looked at last, by [`Qps::look_some`].
    seen: u16,
}

impl Qps {
    /// A queue pair.
    pub fn get(&self, qpn: &u16) -> Option<&Qp> {
        self.map.get(qpn)
    }

    /// A queue pair, to change it.
    pub fn get_mut(&mut self, qpn: &u16) -> Option<&mut Qp> {
        if self.touched.last() != Some(qpn) {
            self.touched.push(*qpn);
        }
        self.map.get_mut(qpn)
    }

    /// Whether there is one of this number.
    pub fn contains_key(&self, qpn: &u16) -> bool {
        self.map.contains_key(qpn)
    }

    /// All of them.
    pub fn values(&self) -> Values<'_, u16, Qp> {
        self.map.values()
    }

    /// All of them, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.touched.clear();
        self.touched.extend(self.map.keys());
        self.map.values_mut()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Adds one.
    pub fn insert(&mut self, qpn: u16, qp: Qp) {
        self.map.insert(qpn, qp);
        self.touched.push(qpn);
    }

    /// Takes one away.
    pub fn remove(&mut self, qpn: &u16) -> Option<Qp> {
        self.ready.remove(*qpn);
        self.map.remove(qpn)
    }

    /// Shows all of them to `look`, which says whether it found anything; true if it did.
    pub fn look(&mut self, mut look: impl FnMut(&mut Qp) -> bool) -> bool {
        let ready = &mut self.ready;
        self.map.values_mut().fold(false, |any, qp| look_at(ready, qp, &mut look) | any)
    }

    /// Shows `n` of them to `look`, each in its turn.
    pub fn look_some(&mut self, n: usize, mut look: impl FnMut(&mut Qp) -> bool) {
        let (ready, last) = (&mut self.ready, self.seen);
        let mut left = n;
        for range in [(Excluded(last), Unbounded), (Unbounded, Included(last))] {
            for (qpn, qp) in self.map.range_mut(range).take(left) {
                self.seen = *qpn;
                left -= 1;
                look_at(ready, qp, &mut look);
            }
        }
    }

    /// Looks again at those that were touched.
    pub fn settle(&mut self) {
        while let Some(qpn) = self.touched.pop() {
            if let Some(qp) = self.map.get(&qpn) {
                self.ready.set(qpn, qp.can_send() || qp.must_flush());
            }
        }
    }

    /// Those that can do something now, as far as they were looked at.
    pub fn ready(&self) -> &[u16] {
        self.ready.list()
    }
}

/// Looks at one. Receives that are posted in the error state give no sign, so those are looked at always.
fn look_at(ready: &mut Ready<u16>, qp: &mut Qp, look: &mut impl FnMut(&mut Qp) -> bool) -> bool {
    let found = look(qp);
    if found || qp.state == QpState::Error {
        ready.set(qp.qpn, qp.can_send() || qp.must_flush());
    }
    found
}

impl Index<&u16> for Qps {
    type Output = Qp;

    fn index(&self, qpn: &u16) -> &Qp {
        &self.map[qpn]
    }
}
