//! All queue pairs of the process, by number: which were touched, which can do something, whose timer is next, and whose
//! doorbell is on a page. Each costs the same for one queue pair and for thousands. What they do is not known here.

use std::collections::{BTreeMap, BTreeSet};

use crate::mlx5::qp::Qp;
use crate::ready::Ready;

/// The queue pairs.
#[derive(Debug, Default)]
pub struct Qps {
    map: BTreeMap<u32, Qp>,
    /// Numbers of those that may have changed since they were last looked at.
    touched: Vec<u32>,
    /// Those that can send or flush.
    ready: Ready<u32>,
    timers: BTreeSet<(u64, u32)>,
    timer_of: BTreeMap<u32, u64>,
    /// By context and register page.
    pages: BTreeMap<(u32, usize), Vec<u32>>,
}

impl Qps {
    /// A queue pair.
    pub fn get(&self, qpn: &u32) -> Option<&Qp> {
        self.map.get(qpn)
    }

    /// A queue pair, to change it.
    pub fn get_mut(&mut self, qpn: &u32) -> Option<&mut Qp> {
        self.touch(*qpn);
        self.map.get_mut(qpn)
    }

    /// Has it looked at again.
    pub fn touch(&mut self, qpn: u32) {
        if self.touched.last() != Some(&qpn) {
            self.touched.push(qpn);
        }
    }

    /// Has all of them looked at again: some things change without a sign, such as receives posted in the error state.
    pub fn touch_all(&mut self) {
        self.touched.clear();
        self.touched.extend(self.map.keys());
    }

    /// Whether there is one of this number.
    pub fn contains_key(&self, qpn: &u32) -> bool {
        self.map.contains_key(qpn)
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
    pub fn values(&self) -> impl Iterator<Item = &Qp> {
        self.map.values()
    }

    /// All of them, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.touch_all();
        self.map.values_mut()
    }

    /// Adds one, whose page and context are set.
    pub fn insert(&mut self, qpn: u32, qp: Qp) {
        self.pages.entry((qp.context, qp.page)).or_default().push(qpn);
        self.map.insert(qpn, qp);
        self.touch(qpn);
    }

    /// Takes one away.
    pub fn remove(&mut self, qpn: &u32) -> Option<Qp> {
        let qp = self.map.remove(qpn)?;
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
        let gone: Vec<u32> = self.map.iter_mut().filter_map(|(n, qp)| (!keep(n, qp)).then_some(*n)).collect();
        gone.iter().for_each(|n| drop(self.remove(n)));
    }

    /// The numbers of those whose doorbell is on a page.
    pub fn on_page(&self, context: u32, page: usize) -> &[u32] {
        self.pages.get(&(context, page)).map_or(&[], Vec::as_slice)
    }

    /// The numbers of those that were touched; they are to be told by [`Qps::settle`].
    pub fn take_touched(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.touched)
    }

    /// What one that was touched can do now, and when its timer is due.
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
