//! The suite on the software ConnectX under the system's unmodified libibverbs and libmlx5: InfiniBand and
//! RoCE, by both dispatches, through the builders and through `ibv_post_send`.
#![allow(unsafe_code)]
//! # Safety
//! The library without builders differs from the real one in one function, which may always answer null.

use conformance::{DynFixture, Fixture, Pair, Progress, Unavailable};
use ibv_core::{
    AnyDomain, DeviceKind, Error, GidType, IbvConfig, IbvDomain, IbvDomainImpl, LinkLayer, PortState,
    Provider,
};
use ibv_sys::{Verbs, ibv_qp, ibv_qp_ex};
use provider_verbs::{VerbsDomain, VerbsLibrary, VerbsProvider};
use softnic::{
    Config, Softnic,
    description::{Description, Link},
    drive::{Choices, Step, lock, step},
};
use std::{
    process::ExitCode,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::{self, ThreadId},
    time::Duration,
};

/// `mlx5_0` speaks InfiniBand, `mlx5_1` RoCE.
fn machine() -> Config {
    let mut description = Description::standard(Link::Ib, 2);
    let roce = Description::standard(Link::Roce, 2).devices.remove(1);
    description.devices[1] = roce;
    // Short enough that the suite tests splitting there, by every way of posting.
    description.devices[1].ports[0].max_message = 64 << 10;
    Config { description, strict: false, record: false, ..Config::steps(1) }
}

/// The machine, for one case at a time: cases run on several threads, and one that finds nothing left to
/// do must not have had it done by another. A case may open more pairs than one.
struct Turn(Mutex<Choices>);

/// Whose turn it is, and how often taken.
static TAKEN: (Mutex<Option<(ThreadId, u32)>>, Condvar) = (Mutex::new(None), Condvar::new());

impl Turn {
    fn take() -> Self {
        let me = thread::current().id();
        let taken = TAKEN.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others = |t: &mut Option<(ThreadId, u32)>| t.is_some_and(|(whose, _)| whose != me);
        let mut taken = TAKEN.1.wait_while(taken, others).unwrap_or_else(PoisonError::into_inner);
        *taken = Some((me, taken.map_or(1, |(_, n)| n + 1)));
        Self(Mutex::new(Choices::new(1)))
    }

    /// One unit of the machine's work. Idle only if nothing was done since the case last asked: what the
    /// nudge does in between, the case has not polled for yet.
    fn go_on(&self) -> Progress {
        ASKED.fetch_add(1, SeqCst);
        let mut choices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Step::Worked | Step::Waited) = lock().as_mut().map(|host| step(host, &mut choices)) {
            return Progress::Moved;
        }
        if NUDGED.swap(false, SeqCst) { Progress::Moved } else { Progress::Idle }
    }
}

/// Counts the cases' own steps.
static ASKED: AtomicU64 = AtomicU64::new(0);
/// The nudge did something since a case last asked.
static NUDGED: AtomicBool = AtomicBool::new(false);

/// Moves the machine while nobody steps it, as `close` does not: it polls by itself, and knows no machine.
/// The clock is left alone, so no timer runs out behind a case's back.
fn nudge() -> ! {
    let (mut seen, mut quiet, mut choices) = (0, 0, Choices::new(2));
    loop {
        thread::sleep(Duration::from_millis(1));
        let asked = ASKED.load(SeqCst);
        quiet = if asked == seen { quiet + 1 } else { 0 };
        seen = asked;
        if quiet < 20 {
            continue;
        }
        while let Some(host) = lock().as_mut() {
            host.scan();
            if host.engine.units().is_empty() {
                break;
            }
            step(host, &mut choices);
            NUDGED.store(true, SeqCst);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut taken = TAKEN.0.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = taken.and_then(|(whose, n)| (n > 1).then_some((whose, n - 1)));
        TAKEN.1.notify_one();
    }
}

/// A device of the machine, opened twice for each case.
struct OnMachine<P, D> {
    provider: P,
    device: &'static str,
    wrap: fn(VerbsDomain) -> D,
}

impl<P: Provider<Domain = VerbsDomain>, D: IbvDomainImpl> Fixture for OnMachine<P, D> {
    type Domain = D;

    fn provider(&self) -> &str {
        self.provider.name()
    }

    fn schedule(&self) -> String {
        self.device.into()
    }

    fn pair(&self) -> Result<Pair<D>, Unavailable> {
        let turn = Turn::take();
        let open = || {
            let mut list = self.provider.devices()?.into_iter();
            let info = list.find(|d| d.name == self.device);
            let info =
                info.ok_or_else(|| Unavailable::Fail(format!("the machine shows no {}", self.device)))?;
            Ok::<_, Unavailable>(IbvDomain::new((self.wrap)(self.provider.open(&info)?), info))
        };
        Ok(Pair::new(open()?, open()?).with_progress(move || turn.go_on()))
    }
}

unsafe extern "C" fn no_builders(_: *mut ibv_qp) -> *mut ibv_qp_ex {
    std::ptr::null_mut()
}

/// The real library, as if no device had the extended interface.
fn plain_only() -> Option<VerbsProvider> {
    let real: &Verbs = ibv_sys::verbs().ok()?;
    let table = Box::leak(Box::new(Verbs { ibv_qp_to_qp_ex: no_builders, ..*real }));
    // SAFETY: the real functions but for one, which says that a queue pair is of the plain kind.
    let library = unsafe { VerbsLibrary::from_table(table) };
    // Short enough that the suite tests splitting too.
    Some(VerbsProvider::over(library).with_max_msg_size(4096))
}

fn on<D: IbvDomainImpl>(
    provider: VerbsProvider,
    device: &'static str,
    wrap: fn(VerbsDomain) -> D,
) -> Box<dyn DynFixture> {
    Box::new(OnMachine { provider, device, wrap })
}

/// What the machine shows of its devices, and what is chosen there.
fn listing() -> Result<(), String> {
    let provider = VerbsProvider::default();
    let Ok(devices) = provider.devices() else { return Ok(()) };
    let expected = [(LinkLayer::InfiniBand, GidType::Ib), (LinkLayer::Ethernet, GidType::RoceV2)];
    for (device, (link, gid_type)) in devices.iter().zip(expected) {
        let port = device.port(1).ok_or("a device without a port")?;
        let kinds = (device.kind, port.link_layer, port.state);
        if kinds != (DeviceKind::SoftwareUser, link, PortState::ACTIVE) {
            return Err(format!("{} shows as {kinds:?}", device.name));
        }
        let domain = provider.open(device).map(|d| IbvDomain::new(d, device.clone())).map_err(text)?;
        let cq = domain.create_cq(256).map_err(text)?;
        let mut qp = domain.create_queue_pair(IbvConfig::default(), &cq, &cq).map_err(text)?;
        let info = qp.get_qp_info().map_err(text)?;
        let why = qp.queue_pair().gid().map_or(String::new(), |g| g.why.clone());
        if info.gid_type != gid_type
            || info.gid.is_some_and(|g| g.ipv4().is_some()) != (gid_type == GidType::RoceV2)
        {
            return Err(format!("{} chose {:?} ({why})", device.name, info.gid));
        }
        eprintln!("{}: GID {:?}, {why}", device.name, info.gid);
    }
    if devices.len() == expected.len() { Ok(()) } else { Err(format!("{} devices", devices.len())) }
}

fn text(e: Error) -> String {
    e.to_string()
}

fn main() -> ExitCode {
    match Softnic::start(machine()) {
        // For the life of the process: cases share the machine.
        Ok(nic) => std::mem::forget(nic),
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::FAILURE;
        }
    }
    if let Err(why) = listing() {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    thread::spawn(|| nudge());
    let mut fixtures = Vec::new();
    for device in ["mlx5_0", "mlx5_1"] {
        fixtures.push(on(VerbsProvider::default(), device, |domain| domain));
        fixtures.push(on(VerbsProvider::default(), device, AnyDomain::new));
        if let Some(plain) = plain_only() {
            fixtures.push(on(plain, device, |domain| domain));
        }
    }
    conformance::main(fixtures)
}
