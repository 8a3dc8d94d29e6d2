//! How events of a completion queue are held back so that several completions share one. What an event is, is in `cq`.

/// When an event that is due may be sent: after so many completions, or so long after the first of them. Both 0: at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Completions; 0 for no count.
    pub count: u16,
    /// Microseconds; 0 for no limit.
    pub period_us: u16,
}

impl Moderation {
    /// Whether `n` completions, the first of them at `first`, are enough at `now`.
    pub fn lets_pass(&self, n: u32, first: u64, now: u64) -> bool {
        let off = *self == Self::default();
        off || self.count > 0 && n >= u32::from(self.count) || self.ends(first).is_some_and(|end| now >= end)
    }

    /// When the time that may pass is over.
    pub fn ends(&self, first: u64) -> Option<u64> {
        (self.period_us > 0).then(|| first + u64::from(self.period_us) * 1000)
    }
}
