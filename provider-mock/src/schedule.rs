//! In which order the fabric does things: the schedules, and the seeded arithmetic behind the unordered
//! one. Nothing here knows what is being ordered.

/// The order in which requests take effect and complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// As a reliable connection: requests of a queue pair start, take effect and complete in posting
    /// order. Answers to gets and atomics arrive as late as the rules allow, so that a put of what an
    /// unfenced earlier get fetches does send stale bytes.
    #[default]
    InOrder,
    /// As a scalable reliable datagram: requests of all queue pairs are shuffled, each in pieces of
    /// `chunk` bytes that are shuffled too, and so are completions. The ordering capabilities are all
    /// false. A completion still comes after all bytes of its own request.
    Unordered {
        /// The same seed, program and configuration give the same run.
        seed: u64,
        /// Bytes in one piece; 0 counts as 1.
        chunk: usize,
    },
}

/// SplitMix64: a small generator with a fixed sequence for every seed, on every platform.
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `n`; 0 where `n` is 0. The bias of the multiplication is below one in 2^32 for what it picks.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The `i`th of `0..n` in the order that `seed` shuffles them to: a permutation without a table, by a
/// Feistel network over the next power of four that is walked until it lands inside.
pub(crate) fn shuffled(i: u64, n: u64, seed: u64) -> u64 {
    if n < 2 {
        return i;
    }
    let half = (64 - (n - 1).leading_zeros()).div_ceil(2);
    let mask = (1u64 << half) - 1;
    let mut x = i;
    loop {
        for round in 0..4 {
            let (left, right) = (x >> half, x & mask);
            x = right << half | (left ^ mix(right ^ seed.wrapping_add(round)) & mask);
        }
        if x < n {
            return x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_shuffle_visits_everything_once(n in 0u64..3000, seed: u64) {
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                let at = shuffled(i, n, seed) as usize;
                prop_assert!(!std::mem::replace(&mut seen[at], true));
            }
        }

        #[test]
        fn a_pick_is_below_its_bound(seed: u64, n in 1usize..1000) {
            prop_assert!(Rng(seed).below(n) < n);
        }
    }

    #[test]
    fn seeds_differ_and_repeat() {
        let order = |seed| (0..64).map(|i| shuffled(i, 64, seed)).collect::<Vec<_>>();
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        assert_ne!(order(1), (0..64).collect::<Vec<_>>());
        assert_eq!(Rng(0).below(0), 0);
    }
}
