//! All queue pairs of the process, by number: which were touched, which can do something, whose timer is next, and whose
//! doorbell is on a page. Each costs the same for one queue pair and for thousands. What they do is not known here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use crate::mlx5::qp::Qp;
use crate::ready::Ready;
use crate::touched::Touched;

/// The queue pairs.
#[derive(Debug, Default)]
pub struct Qps {
    all: Touched<u32, Qp>,
    /// Those that can send or flush.
    ready: Ready<u32>,
    timers: BTreeSet<(u64, u32)>,
    timer_of: BTreeMap<u32, u64>,
    /// By context and register page.
    pages: BTreeMap<(u32, usize), Vec<u32>>,
}

impl Deref for Qps {
    type Target = Touched<u32, Qp>;

    fn deref(&self) -> &Touched<u32, Qp> {
        &self.all
    }
}

impl DerefMut for Qps {
    fn deref_mut(&mut self) -> &mut Touched<u32, Qp> {
        &mut self.all
    }
}

impl Qps {
    /// Adds one, whose page and context are set.
    pub fn insert(&mut self, qpn: u32, qp: Qp) {
        self.pages.entry((qp.context, qp.page)).or_default().push(qpn);
        self.all.add(qpn, qp);
    }

    /// Takes one away.
    pub fn remove(&mut self, qpn: &u32) -> Option<Qp> {
        let qp = self.all.take(qpn)?;
        if let std::collections::btree_map::Entry::Occupied(mut list) =
            self.pages.entry((qp.context, qp.page))
        {
            list.get_mut().retain(|n| n != qpn);
            if list.get().is_empty() {
                list.remove();
            }
        }
        self.ready.remove(*qpn);
        self.set_timer(*qpn, None);
        Some(qp)
    }

    /// Keeps those that `keep` says.
    pub fn retain(&mut self, mut keep: impl FnMut(&u32, &mut Qp) -> bool) {
        let gone = self.all.range_mut(..).filter_map(|(n, qp)| (!keep(n, qp)).then_some(*n));
        gone.collect::<Vec<_>>().iter().for_each(|n| drop(self.remove(n)));
    }

    /// The numbers of those whose doorbell is on a page.
    pub fn on_page(&self, context: u32, page: usize) -> &[u32] {
        self.pages.get(&(context, page)).map_or(&[], Vec::as_slice)
    }

    /// What one that was touched ([`Touched::take_touched`]) can do now, and when its timer is due.
    pub fn settle(&mut self, qpn: u32, ready: bool, timer: Option<u64>) {
        self.ready.set(qpn, ready);
        self.set_timer(qpn, timer);
    }

    fn set_timer(&mut self, qpn: u32, timer: Option<u64>) {
        let before = match timer {
            Some(t) => self.timer_of.insert(qpn, t),
            None => self.timer_of.remove(&qpn),
        };
        if before == timer {
            return;
        }
        if let Some(t) = before {
            self.timers.remove(&(t, qpn));
        }
        if let Some(t) = timer {
            self.timers.insert((t, qpn));
        }
    }

    /// Those that can do something now, as far as they were looked at.
    pub fn ready(&self) -> &[u32] {
        self.ready.list()
    }

    /// Those whose timers are due.
    pub fn due(&self, now: u64) -> Vec<u32> {
        self.timers.range(..=(now, u32::MAX)).map(|(_, qpn)| *qpn).collect()
    }

    /// When a timer is next due after `now`.
    pub fn next_timer(&self, now: u64) -> Option<u64> {
        self.timers.range((now + 1, 0)..).next().map(|(t, _)| *t)
    }
}
