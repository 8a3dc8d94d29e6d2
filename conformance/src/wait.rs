//! Waiting: every wait of the suite has a deadline and says what it waited for. What is waited for, the
//! callers know.

use crate::fixture::Progress;
use std::{
    fmt,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How to let time pass.
#[derive(Clone)]
pub(crate) struct Waiter {
    pub(crate) progress: Arc<dyn Fn() -> Progress + Send + Sync>,
    pub(crate) deadline: Duration,
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// What a look has found.
pub(crate) enum Look<T> {
    /// All of it.
    Found(T),
    /// A part of it: there may be more, even if the fabric is idle.
    Some,
    Nothing,
}

impl Look<()> {
    /// `n` things more make `have` of `due`.
    pub(crate) fn counted(n: usize, have: usize, due: usize) -> Self {
        match n {
            _ if have >= due => Self::Found(()),
            0 => Self::Nothing,
            _ => Self::Some,
        }
    }
}

/// How often a fabric has to say that it is idle before a wait believes it: another thread may be just
/// about to post.
const IDLE: u32 = 3;

impl Waiter {
    /// Calls `look` until it finds something, and lets the fabric go on in between. `what` completes
    /// "waited for".
    pub(crate) fn until<T>(
        &self,
        what: impl Fn() -> String,
        mut look: impl FnMut() -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        self.until_all(what, || Ok(look()?.map_or(Look::Nothing, Look::Found)))
    }

    /// The same for what is found bit by bit.
    pub(crate) fn until_all<T>(
        &self,
        what: impl Fn() -> String,
        mut look: impl FnMut() -> Result<Look<T>, String>,
    ) -> Result<T, String> {
        let (end, mut idle) = (Instant::now() + self.deadline, 0);
        loop {
            match look()? {
                Look::Found(found) => return Ok(found),
                Look::Some => idle = 0,
                Look::Nothing => {}
            }
            idle = if (self.progress)() == Progress::Idle { idle + 1 } else { 0 };
            if idle >= IDLE {
                return Err(format!("waited for {} until the fabric had nothing left to do", what()));
            }
            if Instant::now() >= end {
                return Err(format!("waited {:?} for {}", self.deadline, what()));
            }
            thread::yield_now();
        }
    }

    /// Calls `look` until it finds nothing wrong; what was wrong last, where that never was.
    pub(crate) fn until_right(
        &self,
        mut look: impl FnMut() -> Result<Option<String>, String>,
    ) -> Result<(), String> {
        let mut last = String::new();
        let seen = self.until(String::new, || {
            Ok(match look()? {
                None => Some(()),
                Some(wrong) => {
                    last = wrong;
                    None
                }
            })
        });
        seen.map_err(|_| last)
    }

    /// [`until`](Self::until) where another thread of the case acts, so that an idle fabric proves nothing.
    pub(crate) fn until_other_thread<T>(
        &self,
        what: impl Fn() -> String,
        mut look: impl FnMut() -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        let end = Instant::now() + self.deadline;
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            (self.progress)();
            if Instant::now() >= end {
                return Err(format!("waited {:?} for {}", self.deadline, what()));
            }
            thread::yield_now();
        }
    }

    /// Lets a simulated fabric run until it is idle. Hardware gets a moment.
    pub(crate) fn settle(&self) {
        let end = Instant::now() + self.deadline;
        let mut unknown = 0;
        while Instant::now() < end {
            match (self.progress)() {
                Progress::Moved => {}
                Progress::Idle => return,
                Progress::Unknown if unknown == SETTLE_LOOKS => return,
                Progress::Unknown => {
                    unknown += 1;
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
}

/// Milliseconds that hardware gets to do what it should not do.
const SETTLE_LOOKS: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(progress: Progress, millis: u64) -> Waiter {
        Waiter { progress: Arc::new(move || progress), deadline: Duration::from_millis(millis) }
    }

    #[test]
    fn an_idle_fabric_ends_a_wait_at_once_and_hardware_at_the_deadline() {
        let nothing = || Ok(None::<()>);
        let e = waiter(Progress::Idle, 1 << 30).until(|| "a sign".into(), nothing).unwrap_err();
        assert_eq!(e, "waited for a sign until the fabric had nothing left to do");
        let e = waiter(Progress::Unknown, 5).until(|| "a sign".into(), nothing).unwrap_err();
        assert_eq!(e, "waited 5ms for a sign");
    }

    #[test]
    fn what_is_there_already_needs_no_progress() {
        assert_eq!(waiter(Progress::Idle, 0).until(String::new, || Ok(Some(7))), Ok(7));
    }
}
