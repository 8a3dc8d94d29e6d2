//! The fabric: every device, queue and region of one imagined network, behind one lock. What it does is
//! in the files below `fabric/`; this one is the handle, and who turns the crank.

mod config;
mod cq;
mod device;
mod engine;
mod execute;
mod in_order;
mod state;
mod transfer;
mod unordered;
mod work;

pub use config::{Drive, FabricConfig};
pub use device::Events;

pub(crate) use cq::{CqId, channel, take_events};
pub(crate) use device::{Device, QpRef};
pub(crate) use state::{State, parse_gid};
pub(crate) use work::{Built, Sizes};

use crate::{faults::Faults, tap::Tap, trace::Counters};
use ibv_core::PostError;
use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// A network of mock devices inside this process. Cloning it shares it; two fabrics know nothing of
/// each other.
///
/// Everything that happens on it is decided by its configuration and by the calls made: the same program
/// with the same seed runs the same way, as long as one thread makes the calls and
/// [`Drive::Thread`] is not used.
#[derive(Clone)]
pub struct Fabric(Arc<Handle>);

/// Ends the fabric's thread with the last handle.
struct Handle {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

struct Core {
    state: Mutex<State>,
    wake: Condvar,
    /// Building a request may be made to fail; elsewhere it takes no lock.
    enqueue_fails: AtomicBool,
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fabric {
    /// A fabric of its own devices.
    pub fn new(config: FabricConfig) -> Self {
        let threaded = config.drive == Drive::Thread;
        let core = Arc::new(Core {
            state: Mutex::new(State::new(config)),
            wake: Condvar::new(),
            enqueue_fails: AtomicBool::new(false),
        });
        let thread = threaded.then(|| {
            let core = core.clone();
            thread::spawn(move || core.crank())
        });
        Self(Arc::new(Handle { core, thread }))
    }

    /// Does one thing: starts a request, moves a piece, lets an answer arrive. Where nothing is due, the
    /// clock moves to the next timer first. False where nothing is left to do.
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Steps until nothing is left to do; the number of steps. Requests that wait for ever do not count
    /// as something to do.
    pub fn run(&self) -> u64 {
        let mut steps = 0;
        while self.step() {
            steps += 1;
        }
        steps
    }

    /// The fabric's clock: virtual time since it was made.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.lock().engine.now)
    }

    /// Moves the clock, and does everything that is due now and on the way.
    pub fn advance(&self, by: Duration) {
        let mut state = self.lock();
        let until = state.engine.now.saturating_add(engine::nanos(by));
        state.settle();
        while let Some(at) = state.engine.next_timer().filter(|at| *at <= until) {
            state.engine.jump(at);
            state.settle();
        }
        state.engine.jump(until);
    }

    /// What the fabric did, one line an event, oldest first; the last `FabricConfig::trace` of them.
    pub fn trace(&self) -> String {
        self.lock().trace.text()
    }

    /// The counters of all devices together.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.lock().devices.iter().for_each(|d| sum.add(&d.counters));
        sum
    }

    /// The counters of the device `mock{index}`; `None` where there is none.
    pub fn device_counters(&self, index: u16) -> Option<Counters> {
        self.lock().devices.get(usize::from(index)).map(|d| d.counters)
    }

    /// What to break, and when.
    pub fn faults(&self) -> Faults {
        Faults::new(self.clone())
    }

    /// Shows every request and every completion to `tap` from now on, instead of to an earlier one.
    pub fn set_tap(&self, tap: impl Tap + 'static) {
        // The old one drops outside the lock: it may own what takes it.
        let old = self.lock().tap.replace(Box::new(tap));
        drop(old);
    }

    /// Takes the tap off.
    pub fn clear_tap(&self) {
        let old = self.lock().tap.take();
        drop(old);
    }

    /// The configuration it was made with.
    pub fn config(&self) -> FabricConfig {
        self.lock().config.clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.core.lock()
    }

    /// Whether a fault meets the building of a request; those that are set from now on may.
    #[inline]
    pub(crate) fn enqueue_fault(&self, device: u16) -> Result<(), PostError> {
        if self.0.core.enqueue_fails.load(Relaxed) { self.lock().enqueue_fault(device) } else { Ok(()) }
    }

    pub(crate) fn expect_enqueue_faults(&self) {
        self.0.core.enqueue_fails.store(true, Relaxed);
    }

    /// Lets whoever drives know that there is something to do.
    pub(crate) fn kick(&self, state: &mut State) {
        match state.config.drive {
            Drive::Manual => {}
            Drive::OnPoll => {
                if state.engine.armed > 0 {
                    state.settle();
                }
            }
            Drive::Thread => self.0.core.wake.notify_one(),
        }
    }
}

impl Core {
    /// The thread: works while there is something to do, in short bursts so that others get the lock,
    /// then sleeps until the next timer or a kick. Its clock is the host's.
    fn crank(&self) {
        const BURST: usize = 32;
        let start = Instant::now();
        let mut state = self.lock();
        while !state.engine.stop {
            let now = engine::nanos(start.elapsed()).saturating_add(state.engine.skew);
            state.engine.now = state.engine.now.max(now);
            if (0..BURST).all(|_| state.work()) {
                drop(state);
                thread::yield_now();
                state = self.lock();
                continue;
            }
            state = match state.engine.next_timer() {
                Some(at) => {
                    let pause = Duration::from_nanos(at.saturating_sub(now));
                    self.wake.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Default for Fabric {
    fn default() -> Self {
        Self::new(FabricConfig::default())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.core.lock().engine.stop = true;
            self.core.wake.notify_one();
            // A tap that panicked has ended the thread early; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").field("at", &Arc::as_ptr(&self.0.core)).finish_non_exhaustive()
    }
}
