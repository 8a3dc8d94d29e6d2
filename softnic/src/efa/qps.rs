//! All queue pairs of EFA in the process, by number: which were touched, and which can do something. Each costs the same for
//! one queue pair and for a thousand. What they do is not known here.

use std::ops::Bound::{Excluded, Included, Unbounded};
use std::ops::{Deref, DerefMut};

use crate::efa::qp::Qp;
use crate::mlx5::transition::QpState;
use crate::ready::Ready;
use crate::touched::Touched;

/// The queue pairs.
#[derive(Debug, Default)]
pub struct Qps {
    all: Touched<u16, Qp>,
    /// Those that can send or flush.
    ready: Ready<u16>,
    /// The one that was looked at last, by [`Qps::look_some`].
    seen: u16,
}

impl Deref for Qps {
    type Target = Touched<u16, Qp>;

    fn deref(&self) -> &Touched<u16, Qp> {
        &self.all
    }
}

impl DerefMut for Qps {
    fn deref_mut(&mut self) -> &mut Touched<u16, Qp> {
        &mut self.all
    }
}

impl Qps {
    /// Takes one away.
    pub fn remove(&mut self, qpn: &u16) -> Option<Qp> {
        self.ready.remove(*qpn);
        self.all.take(qpn)
    }

    /// Shows all of them to `look`, which says whether it found anything; true if it did.
    pub fn look(&mut self, mut look: impl FnMut(&mut Qp) -> bool) -> bool {
        let ready = &mut self.ready;
        self.all.range_mut(..).fold(false, |any, (_, qp)| look_at(ready, qp, &mut look) | any)
    }

    /// Shows `n` of them to `look`, each in its turn.
    pub fn look_some(&mut self, n: usize, mut look: impl FnMut(&mut Qp) -> bool) {
        let (ready, last) = (&mut self.ready, self.seen);
        let mut left = n;
        for range in [(Excluded(last), Unbounded), (Unbounded, Included(last))] {
            for (qpn, qp) in self.all.range_mut(range).take(left) {
                self.seen = *qpn;
                left -= 1;
                look_at(ready, qp, &mut look);
            }
        }
    }

    /// Looks again at those that were touched.
    pub fn settle(&mut self) {
        while let Some(qpn) = self.all.pop_touched() {
            if let Some(qp) = self.all.get(&qpn) {
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
