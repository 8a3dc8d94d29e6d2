//! What requests were carried out, so that one whose answer was lost is answered again and not carried out twice. What is
//! answered is in [`crate::efa::responder`].

use std::collections::{BTreeMap, VecDeque};

use crate::efa::message::Outcome;

/// Outcomes of one source at one target: more than a send queue has on the wire.
const EACH: usize = 256;
/// Pairs of source and target: more than the queue pairs of a process have peers that all wait for an answer. Beyond that the
/// pair that was quiet longest is forgotten, for whoever sends may name any source.
const PAIRS: usize = 8192;

/// Outcomes by source and target, in fabric numbers.
#[derive(Debug, Default)]
pub(super) struct Executed {
    pairs: BTreeMap<(u32, u32), Answers>,
    /// Pairs by when they were last added to.
    quiet: BTreeMap<u64, (u32, u32)>,
    added: u64,
}

#[derive(Debug, Default)]
struct Answers {
    /// The key in `quiet`.
    last: u64,
    /// By token, newest last.
    outcomes: VecDeque<(u64, Outcome)>,
}

impl Executed {
    pub(super) fn find(&self, pair: (u32, u32), token: u64) -> Option<Outcome> {
        let answers = self.pairs.get(&pair)?;
        answers.outcomes.iter().find(|(t, _)| *t == token).map(|(_, outcome)| *outcome)
    }

    pub(super) fn add(&mut self, pair: (u32, u32), token: u64, outcome: Outcome) {
        if self.pairs.len() >= PAIRS
            && !self.pairs.contains_key(&pair)
            && let Some((_, oldest)) = self.quiet.pop_first()
        {
            self.pairs.remove(&oldest);
        }
        self.added += 1;
        let answers = self.pairs.entry(pair).or_default();
        self.quiet.remove(&answers.last);
        answers.last = self.added;
        self.quiet.insert(self.added, pair);
        if answers.outcomes.len() == EACH {
            answers.outcomes.pop_front();
        }
        answers.outcomes.push_back((token, outcome));
    }

    /// Forgets all that was carried out at a target.
    pub(super) fn forget(&mut self, target: u32) {
        self.pairs.retain(|pair, _| pair.1 != target);
        self.quiet.retain(|_, pair| pair.1 != target);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.pairs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_that_nobody_bounds_push_out_the_quietest_and_no_more() {
        let mut executed = Executed::default();
        for source in 0..3 * PAIRS as u32 {
            executed.add((source, 7), u64::from(source), Outcome::Done);
            // One that goes on is remembered, whatever others invent.
            if source % 1000 == 0 {
                executed.add((u32::MAX, 7), u64::from(source), Outcome::Done);
            }
        }
        assert_eq!((executed.len(), executed.quiet.len()), (PAIRS, PAIRS));
        assert!(executed.find((u32::MAX, 7), 0).is_some());
        assert!(executed.find((0, 7), 0).is_none());
        executed.forget(7);
        assert_eq!((executed.len(), executed.quiet.len()), (0, 0));
    }

    #[test]
    fn of_one_source_the_newest_are_remembered() {
        let mut executed = Executed::default();
        (0..EACH as u64 + 1).for_each(|token| executed.add((1, 2), token, Outcome::Done));
        assert!(executed.find((1, 2), 0).is_none() && executed.find((1, 2), 1).is_some());
        assert!(executed.find((2, 1), 1).is_none());
    }
}
