//! What makes the devices go: explicit steps with a seed and a virtual clock, or a thread with the machine's clock. Also the
//! one lock of the process. What a unit of work is, is the engine's.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use crate::fabric::session::Session;
use crate::host::Host;
use crate::quiet;

static HOST: Mutex<Option<Host>> = Mutex::new(None);

/// Locks the machine. A panic of another thread does not make it unusable: every command leaves it consistent enough to
/// be closed.
pub fn lock() -> MutexGuard<'static, Option<Host>> {
    HOST.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks the machine for a command. The device's thread lets commands go first: it would take the lock again at once, and
/// a busy device would shut its own program out.
pub fn command() -> MutexGuard<'static, Option<Host>> {
    COMMANDS.fetch_add(1, Ordering::Relaxed);
    let host = lock();
    COMMANDS.fetch_sub(1, Ordering::Relaxed);
    host
}

/// Commands that wait for the lock.
static COMMANDS: AtomicU32 = AtomicU32::new(0);

/// In a forked child: the threads that waited are the parent's.
pub(crate) fn forget_commands() {
    COMMANDS.store(0, Ordering::Relaxed);
}

/// Lets waiting commands in, for a bounded while.
fn let_commands_in() {
    for _ in 0..COURTESY {
        if COMMANDS.load(Ordering::Relaxed) == 0 {
            return;
        }
        std::thread::yield_now();
    }
}

/// Yields in favour of waiting commands.
const COURTESY: u32 = 100;

/// A small generator of choices (SplitMix64): the same seed makes the same choices.
#[derive(Debug, Clone)]
pub struct Choices(u64);

impl Choices {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `n`; 0 if there is none.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// A number from 0 up to 1, without 1.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A unit of work.
    Worked,
    /// Nothing was to be done; the virtual clock moved to the next timer.
    Waited,
    /// Nothing is to be done, and no timer runs.
    Idle,
}

/// Does one unit of work, chosen by `choices`; the clock is virtual and moves only when nothing else is to be done.
pub fn step(host: &mut Host, choices: &mut Choices) -> Step {
    host.scan_some();
    let chosen = host.choose(choices).or_else(|| {
        host.scan();
        host.look_everywhere();
        host.choose(choices)
    });
    if let Some(unit) = chosen {
        host.perform(unit);
        host.send_events();
        return Step::Worked;
    }
    if host.send_events() {
        return Step::Worked;
    }
    host.engine.check_idle();
    match host.next_time() {
        Some(time) => {
            host.engine.shared.set_time(time);
            host.run_timers();
            Step::Waited
        }
        None => Step::Idle,
    }
}

/// Does what is there, up to a bound; the clock is the machine's. `everywhere`: not only where a sign was given. True if anything was there.
fn pass(host: &mut Host, now: u64, everywhere: bool) -> bool {
    host.engine.shared.set_time(now);
    if everywhere || host.engine.qps.len() <= FEW {
        host.look_everywhere();
    }
    let mut any = host.scan();
    any |= host.run_timers();
    for _ in 0..PASS_ROUNDS {
        let units = host.units();
        if units.is_empty() {
            break;
        }
        any = true;
        units.into_iter().for_each(|unit| host.perform(unit));
    }
    any |= host.send_events();
    host.engine.shared.trace.flush();
    any
}

/// So few queue pairs are looked at in every pass, and more every so many passes.
const FEW: usize = 64;
const EVERYWHERE: u32 = 64;
/// Rounds over all units in one pass under the lock.
const PASS_ROUNDS: usize = 64;
/// Passes without work before the thread naps longer.
const EAGER_NAPS: u32 = 2000;
/// The nap of a device that had work lately, and of one that had none. Short spins would starve two cores of programs that
/// poll; the naps let them run.
const NAP: Duration = Duration::from_micros(20);
const LONG_NAP: Duration = Duration::from_micros(500);

/// The thread that drives the devices.
#[derive(Debug)]
pub struct Thread {
    stop: Arc<AtomicBool>,
    handle: Option<std::thread::JoinHandle<()>>,
}

impl Thread {
    /// Starts it.
    pub fn start() -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let handle = std::thread::Builder::new().name("softnic".into()).spawn(move || run(&seen))?;
        Ok(Self { stop, handle: Some(handle) })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(handle) = self.handle.take() {
            // A panic of the thread was reported where it happened.
            let _ = handle.join();
        }
    }
}

fn run(stop: &AtomicBool) {
    quiet::prepare_thread();
    let start = Instant::now();
    let waiter = lock().as_ref().and_then(|h| h.engine.shared.fabric.session().map(Session::waiter));
    let (mut idle, mut passes) = (0u32, 0u32);
    while !stop.load(Ordering::Relaxed) {
        let_commands_in();
        passes = passes.wrapping_add(1);
        let everywhere = idle == 1 || passes.is_multiple_of(EVERYWHERE);
        let now = start.elapsed().as_nanos() as u64;
        let any = lock().as_mut().is_some_and(|host| pass(host, now, everywhere));
        idle = if any { 0 } else { idle.saturating_add(1) };
        if !any {
            nap(waiter.as_deref(), if idle < EAGER_NAPS { NAP } else { LONG_NAP });
        }
    }
}

/// Sleeps until a peer's bytes come, or its socket has room again, but not longer than `limit`.
fn nap(waiter: Option<&OwnedFd>, limit: Duration) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: limit.as_nanos() as i64 };
    let Some(waiter) = waiter else { return std::thread::sleep(limit) };
    let mut events = [MaybeUninit::<epoll::Event>::uninit(); 16];
    // An interrupted nap is a short one.
    let _ = epoll::wait(waiter, &mut events, Some(&timeout));
}
