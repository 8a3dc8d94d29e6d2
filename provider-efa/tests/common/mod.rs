//! What the tests share: software EFA adapters that go by steps, domains on them, and calls of libibverbs that
//! are written down on their way.
#![allow(unsafe_code, dead_code)]
//! # Safety
//! The library under test is the real one but for functions that write down their name and forward the call.

use ibv_core::{
    Connected, Error, IbvConfig, IbvCq, IbvDomain, IbvDomainImpl, IbvQueuePair, IbvWc, Poller, Provider,
    QueuePair,
};
use ibv_sys::{
    Verbs, ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr,
};
use provider_efa::{EfaDomain, EfaProvider, EfaQueuePair, VerbsLibrary};
use softnic::{Config, Softnic, description::Description, efa::limits::Limits};
use std::{
    ffi::{c_int, c_void},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

/// `count` adapters that shuffle, driven by steps.
pub fn nic_with(count: u16, change: impl Fn(&mut Limits)) -> Softnic {
    Softnic::start(config(count, change)).unwrap()
}

/// The same, with every write of a doorbell counted.
pub fn counting_nic(count: u16, change: impl Fn(&mut Limits)) -> Softnic {
    Softnic::start(Config { count_doorbells: true, ..config(count, change) }).unwrap()
}

fn config(count: u16, change: impl Fn(&mut Limits)) -> Config {
    let mut description = Description::efa(count);
    for device in &mut description.devices {
        (device.efa.max_sq_wr, device.efa.max_rq_wr, device.efa.seed) = (512, 1024, 5);
        change(&mut device.efa);
    }
    Config { description, record: false, ..Config::steps(7) }
}

pub fn nic(count: u16) -> Softnic {
    nic_with(count, |_| {})
}

/// A domain on the adapter of that number.
pub fn domain_of(provider: &EfaProvider, index: usize) -> IbvDomain<EfaDomain> {
    let device = provider.devices().unwrap().remove(index);
    IbvDomain::new(provider.open(&device).unwrap(), device)
}

pub fn domain(index: usize) -> IbvDomain<EfaDomain> {
    domain_of(&EfaProvider::default(), index)
}

/// Whether the loaded libefa has RDMA write; says so where it has not.
pub fn writes(d: &IbvDomain<EfaDomain>) -> bool {
    let has = d.caps().write.present();
    if !has {
        eprintln!("without puts: {}", d.imp().lacks().unwrap_or("unknown why"));
    }
    has
}

pub type Cq = Arc<IbvCq<EfaDomain>>;

pub fn shallow(depth: u32) -> IbvConfig {
    let mut config = IbvConfig::default();
    (config.max_send_wr, config.max_recv_wr) = (depth, depth);
    config
}

/// A queue pair in RESET with a completion queue of its own.
pub fn fresh(d: &IbvDomain<EfaDomain>, config: IbvConfig) -> (QueuePair<EfaQueuePair>, Cq) {
    let cq = d.create_cq(config.max_send_wr + config.max_recv_wr).unwrap();
    let qp = d.create_queue_pair(config, &cq, &cq).unwrap();
    (qp, cq)
}

/// A connected queue pair.
pub struct End {
    pub qp: Connected<EfaQueuePair>,
    pub poller: Poller<EfaDomain>,
}

/// Two queue pairs, connected to each other.
pub fn pair(a: &IbvDomain<EfaDomain>, b: &IbvDomain<EfaDomain>, config: &IbvConfig) -> [End; 2] {
    let ((mut near, near_cq), (mut far, far_cq)) = (fresh(a, config.clone()), fresh(b, config.clone()));
    let (ours, theirs) = (near.get_qp_info().unwrap(), far.get_qp_info().unwrap());
    [(near, near_cq, theirs), (far, far_cq, ours)].map(|(qp, cq, peer)| {
        let qp = qp.connect(&peer).map_err(|(_, e): (_, Error)| e).unwrap();
        End { qp, poller: cq.poller().unwrap() }
    })
}

/// Lets the adapters work until `n` completions came, and nothing more is to come.
pub fn completions<D: IbvDomainImpl>(nic: &mut Softnic, poller: &mut Poller<D>, n: usize) -> Vec<IbvWc> {
    let (mut seen, mut wcs) = (Vec::new(), [IbvWc::default(); 16]);
    // Idle twice: what a poll has freed may let the adapter go on.
    for _ in 0..4 {
        nic.run();
        loop {
            match poller.poll(&mut wcs).unwrap() {
                0 => break,
                got => seen.extend(&wcs[..got]),
            }
        }
    }
    assert_eq!(seen.len(), n, "completions: {seen:?}");
    seen
}

/// Drops while the adapters work, which flush what a queue pair has in flight.
pub fn drop_beside(nic: &mut Softnic, what: impl Send) {
    thread::scope(|s| {
        let dropped = s.spawn(move || drop(what));
        while !dropped.is_finished() {
            nic.run();
            thread::yield_now();
        }
    });
}

/// The same through the seeds' tier.
pub fn all_by_poll_completion<Q: IbvQueuePair>(nic: &mut Softnic, qp: &mut Q) -> Vec<u64> {
    nic.run();
    let mut ids = Vec::new();
    while let Some(done) = qp.poll_completion(ibv_core::PollTarget::Send).unwrap() {
        ids.push(done.unwrap().wr_id());
        nic.run();
    }
    ids.sort_unstable();
    ids
}

static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static REFUSE_AH: AtomicBool = AtomicBool::new(false);

fn calls() -> MutexGuard<'static, Vec<String>> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was called since the last time. One machine runs at a time, so tests do not mix.
pub fn take_calls() -> Vec<String> {
    std::mem::take(&mut calls())
}

/// The next address handle is refused.
pub fn refuse_address_handle() {
    REFUSE_AH.store(true, SeqCst);
}

fn real() -> &'static Verbs {
    ibv_sys::verbs().unwrap()
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    calls().push(format!("modify {mask:#x}"));
    // SAFETY: the caller's arguments.
    unsafe { real().ibv_modify_qp(qp, attr, mask) }
}
unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    calls().push("destroy_qp".into());
    // SAFETY: as above.
    unsafe { real().ibv_destroy_qp(qp) }
}
unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    if REFUSE_AH.swap(false, SeqCst) {
        return std::ptr::null_mut();
    }
    calls().push("create_ah".into());
    // SAFETY: as above.
    unsafe { real().ibv_create_ah(pd, attr) }
}
unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    calls().push("destroy_ah".into());
    // SAFETY: as above.
    unsafe { real().ibv_destroy_ah(ah) }
}
unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cookie: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    calls().push("create_cq".into());
    // SAFETY: as above.
    unsafe { real().ibv_create_cq(context, cqe, cookie, channel, vector) }
}
unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    calls().push("destroy_cq".into());
    // SAFETY: as above.
    unsafe { real().ibv_destroy_cq(cq) }
}
unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    calls().push("dealloc_pd".into());
    // SAFETY: as above.
    unsafe { real().ibv_dealloc_pd(pd) }
}

/// The provider over the real library, whose calls are written down.
pub fn watched() -> EfaProvider {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    let table = TABLE.get_or_init(|| Verbs {
        ibv_modify_qp: modify_qp,
        ibv_destroy_qp: destroy_qp,
        ibv_create_ah: create_ah,
        ibv_destroy_ah: destroy_ah,
        ibv_create_cq: create_cq,
        ibv_destroy_cq: destroy_cq,
        ibv_dealloc_pd: dealloc_pd,
        ..*real()
    });
    take_calls();
    // SAFETY: the real functions, some of them through a function that forwards.
    EfaProvider::over(unsafe { VerbsLibrary::from_table(table) })
}

unsafe extern "C" fn no_builders(_: *mut ibv_qp) -> *mut ibv_sys::ibv_qp_ex {
    std::ptr::null_mut()
}

/// The provider over a library whose queue pairs have no builders.
pub fn without_builders() -> EfaProvider {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    let table = TABLE.get_or_init(|| Verbs { ibv_qp_to_qp_ex: no_builders, ..*real() });
    // SAFETY: the real functions but for one, which says that a queue pair is of the plain kind.
    EfaProvider::over(unsafe { VerbsLibrary::from_table(table) })
}
