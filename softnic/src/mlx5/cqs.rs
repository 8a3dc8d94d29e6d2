//! All completion queues of the process: by number, by the page on which they are armed, and those that are armed. What a
//! queue does is in `cq`.

use std::collections::{BTreeMap, BTreeSet};

use crate::mlx5::cq::Cq;
use crate::numbered::Numbered;

/// All completion queues of the process, by number.
#[derive(Debug, Default)]
pub struct Cqs {
    list: Numbered<Cq>,
    /// Those that are armed.
    armed: BTreeSet<u32>,
    /// By context and the register page on which they are armed.
    pages: BTreeMap<(u32, usize), BTreeSet<u32>>,
}

impl Cqs {
    /// Adds a queue, whose page is set; answers its number.
    pub fn insert(&mut self, cq: Cq) -> u32 {
        let page = (cq.context, cq.page);
        let cqn = self.list.insert(cq);
        self.pages.entry(page).or_default().insert(cqn);
        cqn
    }

    /// The register of a page was written: takes the requests of its queues.
    pub fn arm_page(&mut self, context: u32, page: usize) {
        for cqn in self.pages.get(&(context, page)).into_iter().flatten() {
            if let Some(cq) = self.list.get_mut(*cqn) {
                cq.take_arm();
                if cq.is_armed() {
                    self.armed.insert(*cqn);
                }
            }
        }
    }

    /// The armed ones.
    pub fn armed(&self) -> impl Iterator<Item = &Cq> {
        self.armed.iter().filter_map(|cqn| self.list.get(*cqn))
    }

    /// Shows the armed ones to `tell`, and forgets those that are no longer armed.
    pub fn tell_armed(&mut self, mut tell: impl FnMut(&mut Cq)) {
        self.list.retain_in(&mut self.armed, |cq| {
            tell(cq);
            cq.is_armed()
        });
    }

    /// A queue.
    pub fn get(&self, cqn: u32) -> Option<&Cq> {
        self.list.get(cqn)
    }

    /// A queue, to change it.
    pub fn get_mut(&mut self, cqn: u32) -> Option<&mut Cq> {
        self.list.get_mut(cqn)
    }

    /// Removes a queue.
    pub fn remove(&mut self, cqn: u32) -> Option<Cq> {
        let cq = self.list.remove(cqn)?;
        self.armed.remove(&cqn);
        if let std::collections::btree_map::Entry::Occupied(mut page) =
            self.pages.entry((cq.context, cq.page))
        {
            page.get_mut().remove(&cqn);
            if page.get().is_empty() {
                page.remove();
            }
        }
        Some(cq)
    }

    /// All of them, to read.
    pub fn iter(&self) -> impl Iterator<Item = (&u32, &Cq)> {
        self.list.iter()
    }
}
