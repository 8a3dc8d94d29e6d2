//! A libibverbs for unit tests: every function that this project calls, over objects that keep count of
//! themselves. Whether a call succeeds is decided by a `mockall` mock, so a test can fail each in turn and
//! demand an order. It moves no bytes. Test modules of the provider crates include this file by path.
#![allow(unsafe_code, dead_code, missing_docs)]
#![allow(clippy::missing_safety_doc)] // The paragraph below is every function's.
//! # Safety
//! The functions are called by the code under test with the pointers they handed out; each object is a
//! leaked box, reclaimed where it is destroyed. State is per thread, so tests do not meet.

use ibv_sys::*;
use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    ffi::{c_char, c_int, c_uint, c_void},
    mem::offset_of,
    ptr,
};

/// Decides what a call answers: 0 for success, else the errno to fail with.
#[mockall::automock]
pub trait Library {
    fn call(&self, verb: &'static str) -> c_int;
}

/// A request as the device would have seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    pub wr_id: u64,
    pub opcode: ibv_wr_opcode,
    pub flags: u32,
    pub remote: (u64, u32),
    pub operands: (u64, u64),
    pub imm: u32,
    pub sges: Vec<(u64, u32, u32)>,
    pub inline: Vec<u8>,
}

/// The books of one thread's library.
pub struct Fake {
    pub library: MockLibrary,
    /// Calls that succeeded, in order.
    pub log: Vec<&'static str>,
    /// Objects alive, by address.
    pub alive: BTreeMap<usize, &'static str>,
    /// What no correct caller does.
    pub misuse: Vec<String>,
    pub device: ibv_device_attr,
    pub port: ibv_port_attr,
    pub gids: Vec<ibv_gid_entry>,
    /// Each session or list as it was published.
    pub sends: Vec<Vec<Posted>>,
    pub recvs: Vec<Posted>,
    pub completions: VecDeque<ibv_wc>,
    pub modified: Vec<(ibv_qp_attr, u32)>,
    pub queried: ibv_qp_attr,
    /// `post_send` refuses the request at this position of a list, once.
    pub refuse_at: Option<(usize, c_int)>,
    /// Extended creation gives a queue pair without builders.
    pub no_builders: bool,
    pub acked_cq_events: u32,
    pub acked_async_events: u32,
    pub armed: Vec<c_int>,
    /// Where to write events, by the descriptor that they are read from.
    pub pipes: BTreeMap<c_int, c_int>,
    open_session: Option<Vec<Posted>>,
    cap: ibv_qp_cap,
}

thread_local! {
    static FAKE: RefCell<Fake> = RefCell::new(Fake::new());
}

impl Fake {
    fn new() -> Self {
        let mut library = MockLibrary::new();
        library.expect_call().return_const(0);
        Self {
            library,
            log: Vec::new(),
            alive: BTreeMap::new(),
            misuse: Vec::new(),
            device: ibv_device_attr {
                phys_port_cnt: 1,
                max_qp_wr: 1024,
                max_sge: 16,
                max_cqe: 4096,
                max_mr_size: 1 << 40,
                max_qp_rd_atom: 16,
                max_qp_init_rd_atom: 16,
                atomic_cap: IBV_ATOMIC_HCA,
                vendor_id: 0x1234,
                ..ibv_device_attr::default()
            },
            port: ibv_port_attr {
                state: IBV_PORT_ACTIVE,
                active_mtu: IBV_MTU_1024,
                max_msg_sz: 1 << 30,
                gid_tbl_len: 4,
                pkey_tbl_len: 1,
                link_layer: IBV_LINK_LAYER_ETHERNET as u8,
                ..ibv_port_attr::default()
            },
            gids: vec![gid_entry(
                1,
                [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
                IBV_GID_TYPE_ROCE_V2,
            )],
            sends: Vec::new(),
            recvs: Vec::new(),
            completions: VecDeque::new(),
            modified: Vec::new(),
            queried: ibv_qp_attr::default(),
            refuse_at: None,
            no_builders: false,
            acked_cq_events: 0,
            acked_async_events: 0,
            armed: Vec::new(),
            pipes: BTreeMap::new(),
            open_session: None,
            cap: ibv_qp_cap::default(),
        }
    }
}

/// Starts anew on this thread, with `library` deciding.
pub fn install(library: MockLibrary) {
    FAKE.with_borrow_mut(|f| *f = Fake { library, ..Fake::new() });
}

/// Starts anew on this thread; every call succeeds.
pub fn reset() {
    FAKE.with_borrow_mut(|f| *f = Fake::new());
}

/// Looks at the books, or cooks them.
pub fn with<R>(look: impl FnOnce(&mut Fake) -> R) -> R {
    FAKE.with_borrow_mut(look)
}

/// Fails unless every object is gone and nothing was destroyed twice.
pub fn assert_clean() {
    with(|f| {
        assert_eq!(f.misuse, Vec::<String>::new());
        assert!(f.alive.is_empty(), "left behind: {:?}", f.alive);
    });
}

pub fn gid_entry(index: u32, raw: [u8; 16], gid_type: ibv_gid_type) -> ibv_gid_entry {
    let gid = ibv_gid { raw };
    ibv_gid_entry { gid, gid_index: index, port_num: 1, gid_type: gid_type.0, ndev_ifindex: 0 }
}

/// Writes a completion event for `cq` to the channel behind `fd`.
pub fn raise_cq_event(fd: c_int, cq: *mut ibv_cq) {
    write(fd, &(cq as u64).to_ne_bytes());
}

/// Writes an asynchronous event to a device's descriptor.
pub fn raise_async_event(fd: c_int, kind: ibv_event_type, element: u64) {
    write(fd, &[u64::from(kind.0).to_ne_bytes(), element.to_ne_bytes()].concat());
}

fn write(fd: c_int, bytes: &[u8]) {
    let end = with(|f| f.pipes[&fd]);
    // SAFETY: an open descriptor and a valid buffer.
    let n = unsafe { libc::write(end, bytes.as_ptr().cast(), bytes.len()) };
    assert_eq!(n, bytes.len() as isize);
}

/// Asks the mock; logs a success, sets `errno` on failure.
fn decide(verb: &'static str) -> c_int {
    with(|f| {
        let code = f.library.call(verb);
        if code == 0 {
            f.log.push(verb);
        }
        set_errno(code);
        code
    })
}

fn set_errno(code: c_int) {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = code };
}

fn born<T>(object: T, kind: &'static str) -> *mut T {
    let raw = Box::into_raw(Box::new(object));
    with(|f| f.alive.insert(raw as usize, kind));
    raw
}

fn create<T>(verb: &'static str, kind: &'static str, make: impl FnOnce() -> T) -> *mut T {
    if decide(verb) == 0 { born(make(), kind) } else { ptr::null_mut() }
}

/// Destroys what `create` made, once.
fn destroy<T>(verb: &'static str, kind: &'static str, raw: *mut T) -> c_int {
    if with(|f| f.alive.get(&(raw as usize)) != Some(&kind)) {
        with(|f| f.misuse.push(format!("{verb} of a {kind} that is not alive")));
        return libc::EINVAL;
    }
    let code = decide(verb);
    if code == 0 {
        with(|f| f.alive.remove(&(raw as usize)));
        // SAFETY: made by `born` with this type, and alive until now.
        drop(unsafe { Box::from_raw(raw) });
    }
    code
}

fn pipe() -> c_int {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    with(|f| f.pipes.insert(ends[0], ends[1]));
    ends[0]
}

fn close_pipe(fd: c_int) {
    let end = with(|f| f.pipes.remove(&fd)).expect("a pipe of ours");
    // SAFETY: both ends are open and ours.
    unsafe {
        libc::close(fd);
        libc::close(end);
    }
}

/// The library to hand to the code under test; `VerbsLibrary` is the includer's.
pub fn library() -> super::VerbsLibrary {
    // SAFETY: every function below keeps its namesake's contract as far as the code under test can tell.
    unsafe { super::VerbsLibrary::from_table(&TABLE) }
}

/// Its functions.
static TABLE: Verbs = Verbs {
    ibv_get_device_list: get_device_list,
    ibv_free_device_list: free_device_list,
    ibv_open_device: open_device,
    ibv_close_device: close_device,
    ibv_query_device: query_device,
    ibv_query_gid: query_gid,
    _ibv_query_gid_table: query_gid_table,
    ibv_alloc_pd: alloc_pd,
    ibv_dealloc_pd: dealloc_pd,
    ibv_reg_mr: reg_mr,
    ibv_reg_mr_iova2: reg_mr_iova2,
    ibv_reg_dmabuf_mr: reg_dmabuf_mr,
    ibv_dereg_mr: dereg_mr,
    ibv_create_comp_channel: create_comp_channel,
    ibv_destroy_comp_channel: destroy_comp_channel,
    ibv_create_cq: create_cq,
    ibv_destroy_cq: destroy_cq,
    ibv_get_cq_event: get_cq_event,
    ibv_ack_cq_events: ack_cq_events,
    ibv_get_async_event: get_async_event,
    ibv_ack_async_event: ack_async_event,
    ibv_create_qp: qp::create_qp,
    ibv_qp_to_qp_ex: qp::qp_to_qp_ex,
    ibv_modify_qp: qp::modify_qp,
    ibv_query_qp: qp::query_qp,
    ibv_destroy_qp: qp::destroy_qp,
    ibv_create_ah: create_ah,
    ibv_destroy_ah: destroy_ah,
    ibv_fork_init: fork_init,
    ..Verbs::unsupported()
};

/// Two devices, so that finding one by name means something.
pub const DEVICES: [&str; 2] = ["fake0", "fake1"];

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if decide("get_device_list") != 0 {
        return ptr::null_mut();
    }
    let device = |name: &str| {
        let mut device = ibv_device { node_type: IBV_NODE_CA, ..ibv_device::default() };
        for (to, from) in device.name.iter_mut().zip(name.bytes()) {
            *to = from as c_char;
        }
        Box::into_raw(Box::new(device))
    };
    // SAFETY: writable for the call.
    unsafe { *count = DEVICES.len() as c_int };
    born(DEVICES.map(device), "list").cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    let list: *mut [*mut ibv_device; 2] = list.cast();
    // SAFETY: the list of `get_device_list`, freed once.
    for device in unsafe { *list } {
        // SAFETY: boxed there.
        drop(unsafe { Box::from_raw(device) });
    }
    destroy("free_device_list", "list", list);
}

unsafe extern "C" fn open_device(_: *mut ibv_device) -> *mut ibv_context {
    let raw = create("open_device", "context", || {
        let mut context = verbs_context { sz: size_of::<verbs_context>(), ..verbs_context::default() };
        context.query_port = Some(query_port);
        context.create_qp_ex = Some(qp::create_qp_ex);
        context.context.abi_compat = usize::MAX as *mut c_void;
        context.context.num_comp_vectors = 1;
        context.context.async_fd = pipe();
        context.context.ops.poll_cq = Some(qp::poll_cq);
        context.context.ops.req_notify_cq = Some(qp::req_notify_cq);
        context.context.ops.post_send = Some(qp::post_send);
        context.context.ops.post_recv = Some(qp::post_recv);
        context
    });
    if raw.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: just made.
    unsafe { &raw mut (*raw).context }
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: alive until destroyed below.
    let fd = unsafe { (*context).async_fd };
    let whole: *mut verbs_context = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast();
    let code = destroy("close_device", "context", whole);
    if code == 0 {
        close_pipe(fd);
    }
    code
}

unsafe extern "C" fn query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    let code = decide("query_device");
    // SAFETY: writable for the call.
    unsafe { *attr = with(|f| f.device) };
    code
}

unsafe extern "C" fn query_port(_: *mut ibv_context, _: u8, attr: *mut ibv_port_attr, _: usize) -> c_int {
    let code = decide("query_port");
    // SAFETY: writable for the call.
    unsafe { *attr = with(|f| f.port) };
    code
}

unsafe extern "C" fn query_gid(_: *mut ibv_context, _: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
    if decide("query_gid") != 0 {
        return -1;
    }
    let found = with(|f| f.gids.iter().find(|e| e.gid_index == index as u32).map(|e| e.gid));
    // SAFETY: writable for the call.
    unsafe { *gid = found.unwrap_or_default() };
    0
}

unsafe extern "C" fn query_gid_table(
    _: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    _: u32,
    _: usize,
) -> isize {
    match decide("query_gid_table") {
        0 => with(|f| {
            let n = f.gids.len().min(room);
            // SAFETY: `entries` has room for `room`.
            unsafe { entries.copy_from_nonoverlapping(f.gids.as_ptr(), n) };
            n as isize
        }),
        code => -(code as isize),
    }
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    create("alloc_pd", "pd", || ibv_pd { context, handle: 0 })
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    destroy("dealloc_pd", "pd", pd)
}

fn region(verb: &'static str, pd: *mut ibv_pd, addr: *mut c_void, length: usize) -> *mut ibv_mr {
    // SAFETY: the domain is alive.
    let context = unsafe { (*pd).context };
    create(verb, "mr", || ibv_mr { context, pd, addr, length, handle: 0, lkey: 0x11, rkey: 0x22 })
}

unsafe extern "C" fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, _: c_int) -> *mut ibv_mr {
    region("reg_mr", pd, addr, length)
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: u64,
    _: c_uint,
) -> *mut ibv_mr {
    region("reg_mr_iova2", pd, addr, length)
}

unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    _: u64,
    length: usize,
    _: u64,
    fd: c_int,
    _: c_int,
) -> *mut ibv_mr {
    if fd < 0 && with(|f| f.library.call("reg_dmabuf_mr")) == 0 {
        set_errno(libc::EBADF);
        return ptr::null_mut();
    }
    region("reg_dmabuf_mr", pd, ptr::null_mut(), length)
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    destroy("dereg_mr", "mr", mr)
}

unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    create("create_comp_channel", "channel", || ibv_comp_channel { context, fd: pipe(), refcnt: 0 })
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: alive until destroyed below.
    let fd = unsafe { (*channel).fd };
    let code = destroy("destroy_comp_channel", "channel", channel);
    if code == 0 {
        close_pipe(fd);
    }
    code
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    _: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    create("create_cq", "cq", || ibv_cq { context, channel, cqe, ..ibv_cq::default() })
}

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    destroy("destroy_cq", "cq", cq)
}

unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    _: *mut *mut c_void,
) -> c_int {
    let mut raw = [0u8; 8];
    // SAFETY: the channel's descriptor is open; the results are writable.
    unsafe {
        if libc::read((*channel).fd, raw.as_mut_ptr().cast(), 8) != 8 {
            return -1;
        }
        *cq = u64::from_ne_bytes(raw) as *mut ibv_cq;
    }
    0
}

unsafe extern "C" fn ack_cq_events(_: *mut ibv_cq, n: c_uint) {
    with(|f| f.acked_cq_events += n);
}

unsafe extern "C" fn get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    let mut raw = [0u64; 2];
    // SAFETY: the context's descriptor is open; the event is writable.
    unsafe {
        if libc::read((*context).async_fd, raw.as_mut_ptr().cast(), 16) != 16 {
            return -1;
        }
        (*event).event_type = ibv_event_type(raw[0] as u32);
        (*event).element.qp = raw[1] as *mut ibv_qp;
    }
    0
}

unsafe extern "C" fn ack_async_event(_: *mut ibv_async_event) {
    with(|f| f.acked_async_events += 1);
}

unsafe extern "C" fn fork_init() -> c_int {
    decide("fork_init")
}

unsafe extern "C" fn create_ah(pd: *mut ibv_pd, _: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the domain is alive.
    let context = unsafe { (*pd).context };
    create("create_ah", "ah", || ibv_ah { context, pd, handle: 0 })
}

unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    destroy("destroy_ah", "ah", ah)
}

#[path = "fake_qp.rs"]
mod qp;
