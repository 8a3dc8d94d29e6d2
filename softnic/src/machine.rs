//! Starting and stopping the machine, in a test or under `LD_PRELOAD`. What it does while it runs is in [`crate::drive`].

use std::path::PathBuf;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::description::{Description, DescriptionError, Link, PortDescription};
use crate::drive::{self, Choices, Step, Thread};
use crate::efa::rung::Rung;
use crate::fabric::Fabric;
use crate::fabric::session::Session;
use crate::fabric::wire::Wires;
use crate::fault::Fault;
use crate::host::Host;
use crate::incident::Incident;
use crate::trace::{Breach, Event, Format, Sink};
use crate::{fork, preload, sysfs, trap, tree};

/// What makes the devices go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drive {
    /// Calls of [`Softnic::step`], which choose by this seed.
    Steps {
        /// The seed.
        seed: u64,
    },
    /// A thread.
    Thread,
}

/// How to start.
#[derive(Debug, Clone)]
pub struct Config {
    /// The devices.
    pub description: Description,
    /// What makes them go.
    pub drive: Drive,
    /// The session whose fabric they share; `None` for a fabric of this process alone.
    pub session: Option<String>,
    /// Whether breaches of the hardware's rules are looked for.
    pub strict: bool,
    /// Whether every write of EFA's doorbells is counted ([`Softnic::doorbells`]). It costs each a page fault, and works on
    /// x86-64 only.
    pub count_doorbells: bool,
    /// Whether a trace is kept.
    pub record: bool,
    /// Files to which the trace is appended, and in which form; `-` is standard error.
    pub traces: Vec<(Format, PathBuf)>,
}

impl Config {
    /// One InfiniBand device, driven by steps with a seed, strict, with a trace, on a fabric of its own.
    pub fn steps(seed: u64) -> Self {
        Self {
            description: Description::standard(Link::Ib, 1),
            drive: Drive::Steps { seed },
            session: None,
            strict: true,
            count_doorbells: false,
            record: true,
            traces: Vec::new(),
        }
    }

    /// One InfiniBand device, driven by a thread, strict as far as that goes, on a fabric of its own.
    pub fn thread() -> Self {
        Self { drive: Drive::Thread, record: false, ..Self::steps(0) }
    }

    /// One EFA device of the newest generation instead.
    #[must_use]
    pub fn with_efa(self) -> Self {
        Self { description: Description::efa(1), ..self }
    }
}

/// Why the machine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The device description.
    #[error("start softnic: {0:?} (SOFTNIC_DEVICES): {1}")]
    Description(PathBuf, #[source] DescriptionError),
    /// An environment variable.
    #[error("start softnic: {name} is {value:?}, and must be {can}")]
    Environment {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        can: String,
    },
    /// The tree of files that libibverbs finds devices by.
    #[error(
        "start softnic: make {0:?} for the sysfs tree: {1}; TMPDIR names the folder that it is made in, which must exist and have room"
    )]
    Tree(PathBuf, #[source] std::io::Error),
    /// A socket or a thread.
    #[error("start softnic: {0}: {1}")]
    Io(&'static str, #[source] std::io::Error),
    /// A file of the trace.
    #[error("start softnic: trace to {0:?}: {1}")]
    Trace(PathBuf, #[source] std::io::Error),
    /// Doorbells can't be counted here.
    #[error(
        "start softnic: doorbells are counted on x86-64 only, and this machine is {0}; leave `count_doorbells` (SOFTNIC_COUNT_DOORBELLS) off"
    )]
    Doorbells(&'static str),
    /// This process's calls don't come here: libibverbs would look for the kernel's devices.
    #[error("start softnic: `{0}` is not interposed; link softnic into the executable itself")]
    NotInterposed(&'static str),
}

/// The process whose machine runs: only one runs at a time in a process, and whoever starts another waits. The number is
/// what makes a forked child free to start its own.
static RUNNING: AtomicU32 = AtomicU32::new(0);

fn wait_for_turn() {
    let me = std::process::id();
    let free = |owner| (owner != me).then_some(me);
    while RUNNING.fetch_update(Ordering::AcqRel, Ordering::Acquire, free).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The running machine. Dropping it takes everything away, whatever programs still hold.
#[derive(Debug)]
pub struct Softnic {
    thread: Option<Thread>,
    choices: Option<Choices>,
    /// The process that started it.
    owner: u32,
}

impl Softnic {
    /// Starts the machine in this process, and waits until a machine that already runs has been dropped. Sets `SYSFS_PATH`,
    /// so the first start of a process must come before other threads use the environment, and before libibverbs lists
    /// devices.
    ///
    /// # Errors
    ///
    /// Interposition does not work in this executable, or the system refuses a file, a socket or a thread.
    pub fn start(config: Config) -> Result<Self, StartError> {
        preload::check_interposed().map_err(StartError::NotInterposed)?;
        if config.count_doorbells && !trap::AVAILABLE {
            return Err(StartError::Doorbells(std::env::consts::ARCH));
        }
        wait_for_turn();
        // From here on, dropping it gives the turn back.
        let mut machine = Self { thread: None, choices: None, owner: std::process::id() };
        let drive = config.drive;
        install(config)?;
        match drive {
            Drive::Thread => machine.thread = Some(Thread::start().map_err(|e| StartError::Io("thread", e))?),
            Drive::Steps { seed } => machine.choices = Some(Choices::new(seed)),
        }
        Ok(machine)
    }

    /// Does one unit of work. Under the thread drive this only yields to the thread, and says [`Step::Waited`].
    pub fn step(&mut self) -> Step {
        match &mut self.choices {
            Some(choices) => drive::lock().as_mut().map_or(Step::Idle, |host| drive::step(host, choices)),
            None => {
                std::thread::yield_now();
                Step::Waited
            }
        }
    }

    /// Steps until nothing is to be done; answers how many steps that took. Under the thread drive, returns at once.
    pub fn run(&mut self) -> u64 {
        let mut steps = 0;
        while self.thread.is_none() && self.step() != Step::Idle {
            steps += 1;
        }
        steps
    }

    /// Orders a fault.
    pub fn inject(&self, fault: Fault) {
        self.with(|host| host.engine.shared.faults.inject(fault));
    }

    /// Forgets all faults.
    pub fn clear_faults(&self) {
        self.with(|host| host.engine.shared.faults.clear());
    }

    /// Takes a port of a device down: it carries nothing, says that it is down, and programs get an event. Ports count from 1.
    pub fn stop_port(&self, device: usize, port: u32) {
        self.with(|host| host.set_port(device, port, false));
    }

    /// Takes a port up again.
    pub fn start_port(&self, device: usize, port: u32) {
        self.with(|host| host.set_port(device, port, true));
    }

    /// Lets an incident befall a device (its index in the description).
    pub fn befall(&self, device: usize, incident: &Incident) {
        self.with(|host| host.befall(device, incident));
    }

    /// Takes the trace so far.
    pub fn take_trace(&self) -> Vec<Event> {
        self.with(|host| host.engine.shared.trace.take_events())
    }

    /// How often each EFA queue was rung since it was made, exactly; nothing unless [`Config::count_doorbells`] is on.
    pub fn doorbells(&self) -> Vec<Rung> {
        self.with(|host| host.efa.rung())
    }

    /// Takes the breaches found so far.
    pub fn take_breaches(&self) -> Vec<Breach> {
        self.with(|host| host.engine.shared.trace.take_breaches())
    }

    /// The machine itself, under its lock.
    pub fn with<T>(&self, look: impl FnOnce(&mut Host) -> T) -> T {
        look(drive::lock().as_mut().expect("the machine runs until its Softnic is dropped"))
    }
}

impl Drop for Softnic {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            // A forked child has neither the thread nor the machine, nor the turn.
            std::mem::forget(self.thread.take());
            return;
        }
        self.thread = None;
        *drive::lock() = None;
        RUNNING.store(0, Ordering::Release);
    }
}

/// Makes the machine and shows its devices in sysfs.
fn install(config: Config) -> Result<(), StartError> {
    fork::watch();
    let root = tree::sysfs_root();
    let tree_error = |e| StartError::Tree(root.clone(), e);
    if tree::claim().map_err(tree_error)? {
        sysfs::write_tree(&root, &config.description).map_err(tree_error)?;
    }
    let session = config.session.as_deref().map(Session::join).transpose();
    let fabric = Fabric::new(session.map_err(|e| StartError::Io("session", e))?);
    let slot = fabric.slot();
    let devices: Vec<String> = config.description.devices.iter().map(|d| d.name.clone()).collect();
    let ends = config
        .description
        .devices
        .iter()
        .map(|d| (d.name.clone(), d.ports.iter().flat_map(PortDescription::addresses).collect()));
    let mut fabric = fabric;
    fabric.set_wires(Wires::new(&config.description.wires, ends));
    let mut host = Host::new(config.description, fabric);
    for (format, path) in &config.traces {
        let sink =
            Sink::open(path, *format, slot, &devices).map_err(|e| StartError::Trace(path.clone(), e))?;
        host.engine.shared.trace.add_sink(sink);
    }
    host.count_doorbells = config.count_doorbells;
    if let Drive::Steps { seed } = config.drive {
        host.efa.set_seed(seed);
    }
    host.engine.shared.trace.strict = config.strict;
    host.engine.shared.trace.exact = matches!(config.drive, Drive::Steps { .. });
    host.engine.shared.trace.recording = config.record;
    *drive::lock() = Some(host);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| preload::set_sysfs_path(&root));
    Ok(())
}

/// Starts the machine that the environment describes, for the rest of the process.
pub(crate) fn start_from_environment() {
    let started = Config::from_environment().and_then(Softnic::start);
    match started {
        // It lives as long as the process.
        Ok(machine) => std::mem::forget(machine),
        Err(e) => preload::give_up(&e),
    }
}
