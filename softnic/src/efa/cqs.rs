//! All completion queues of EFA in the process: by number, those that have doorbells, and those of which an event may be due.
//! What a queue does is in `cq`.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use crate::efa::cq::Cq;
use crate::efa::cqe::Cqe;
use crate::numbered::Numbered;
use crate::trace::Trace;

/// The completion queues.
#[derive(Debug, Default)]
pub struct Cqs {
    list: Numbered<Cq>,
    /// Those with a doorbell.
    rung: BTreeSet<u32>,
    /// The one whose doorbell was looked at last.
    seen: u32,
    /// Those that are armed, or perhaps are.
    alert: BTreeSet<u32>,
}

impl Cqs {
    /// Adds a queue; answers its number.
    pub fn insert(&mut self, cq: Cq) -> u32 {
        let has_doorbell = cq.doorbell.is_some();
        let number = self.list.insert(cq);
        if has_doorbell {
            self.rung.insert(number);
        }
        number
    }

    /// A queue.
    pub fn get(&self, number: u32) -> Option<&Cq> {
        self.list.get(number)
    }

    /// All of them, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&u32, &Cq)> {
        self.list.iter()
    }

    /// Removes a queue.
    pub fn remove(&mut self, number: u32) -> Option<Cq> {
        self.rung.remove(&number);
        self.alert.remove(&number);
        self.list.remove(number)
    }

    /// Removes those of a context.
    pub fn remove_context(&mut self, context: u32) {
        let of: Vec<u32> = self.iter().filter(|(_, cq)| cq.context == context).map(|(n, _)| *n).collect();
        of.into_iter().for_each(|number| drop(self.remove(number)));
    }

    /// Writes a completion to a ring of a queue, if there is one of this number.
    pub fn push(&mut self, number: u32, ring: u16, cqe: &Cqe, trace: &mut Trace) {
        let Some(cq) = self.list.get_mut(number) else { return };
        cq.push(number, ring, cqe, trace);
        if cq.is_alert() {
            self.alert.insert(number);
        }
    }

    /// Looks at all doorbells.
    pub fn look(&mut self, trace: &mut Trace) {
        for number in &self.rung {
            Self::look_at(&mut self.list, &mut self.alert, *number, trace);
        }
    }

    /// Looks at `n` doorbells, each in its turn.
    pub fn look_some(&mut self, n: usize, trace: &mut Trace) {
        let later = self.rung.range((Excluded(self.seen), Unbounded));
        for number in later.chain(self.rung.range(..=self.seen)).take(n) {
            self.seen = *number;
            Self::look_at(&mut self.list, &mut self.alert, *number, trace);
        }
    }

    fn look_at(list: &mut Numbered<Cq>, alert: &mut BTreeSet<u32>, number: u32, trace: &mut Trace) {
        let Some(cq) = list.get_mut(number) else { return };
        cq.tell_rung(number, trace);
        cq.look();
        if cq.is_alert() {
            alert.insert(number);
        }
    }

    /// Shows those of which an event may be due to `tell`, and forgets those of which none may any more.
    pub fn tell_alert(&mut self, mut tell: impl FnMut(&mut Cq)) {
        self.list.retain_in(&mut self.alert, |cq| {
            tell(cq);
            cq.is_alert()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::efa::cq::CqLayout;
    use crate::efa::pages::DeviceMemory;

    fn cq(memory: &mut DeviceMemory, doorbell: bool) -> Cq {
        let block = memory.allocate(8 * 16).unwrap();
        let doorbell = if doorbell { memory.allocate_doorbell() } else { None };
        Cq::new(1, CqLayout { entries: 8, entry_size: 16, rings: 1 }, block, doorbell)
    }

    /// Arms a queue as its program does.
    fn arm(cqs: &Cqs, number: u32) {
        cqs.get(number).unwrap().doorbell.as_ref().unwrap().store(0x8000_0000);
    }

    #[test]
    fn each_has_its_turn_and_an_armed_one_is_found() {
        let (mut memory, mut cqs) = (DeviceMemory::new().unwrap(), Cqs::default());
        let numbers: Vec<u32> = (0..10).map(|i| cqs.insert(cq(&mut memory, i != 4))).collect();
        let mut trace = Trace::default();
        arm(&cqs, numbers[9]);
        let mut looks = 1;
        while cqs.alert.is_empty() {
            cqs.look_some(3, &mut trace);
            looks += 1;
            assert!(looks < 5, "nine of them, three at a time");
        }
        cqs.remove(numbers[2]);
        arm(&cqs, numbers[0]);
        cqs.look(&mut trace);
        let mut told = 0;
        cqs.tell_alert(|_| told += 1);
        assert_eq!(told, 2);
        cqs.remove_context(1);
        assert!(cqs.alert.is_empty() && cqs.rung.is_empty() && cqs.get(numbers[0]).is_none());
    }
}
