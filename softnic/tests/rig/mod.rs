//! A C-free client of libibverbs and libmlx5 on a software device in the same process: two connected queue pairs and the
//! means to post, poll and wait. Every wait is bounded. What is asserted is in the tests.
//!
//! # Safety
//!
//! The raw objects live in [`Rig`] and [`End`], which outlive every call that names them and are destroyed once, in order.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::missing_panics_doc)]

mod end;
mod memory;
pub mod raw;

pub use end::*;
pub use memory::Memory;

use std::ffi::CStr;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use ibv_sys::*;
use softnic::{Config, Drive, Softnic};

pub const LOCAL: u32 = IBV_ACCESS_LOCAL_WRITE;
pub const ALL: u32 = LOCAL | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// Bytes of each end's buffer.
pub const LEN: usize = 1 << 16;

/// The machine, an open device and a protection domain.
#[derive(Debug)]
pub struct Rig {
    pub nic: Softnic,
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    threaded: bool,
}

/// libibverbs, or `None` with a printed reason. `IBV_REQUIRE=softnic-tools` makes its absence a failure.
pub fn verbs() -> Option<&'static Library<Verbs>> {
    match ibv_sys::verbs() {
        Ok(verbs) => Some(verbs),
        Err(error) => {
            let required = std::env::var("IBV_REQUIRE").is_ok_and(|v| v.contains("softnic-tools"));
            assert!(!required, "IBV_REQUIRE=softnic-tools: {error}");
            println!("skipped: {error} (install ibverbs-providers and libibverbs1)");
            None
        }
    }
}

/// Runs a test under both drives.
pub fn both(test: impl Fn(&mut Rig)) {
    for config in [Config::steps(1), Config::thread()] {
        with(config, &test);
    }
}

/// Runs a test on a machine.
pub fn with(config: Config, test: impl FnOnce(&mut Rig)) {
    if let Some(mut rig) = Rig::start(config) {
        test(&mut rig);
        assert_eq!(rig.nic.take_breaches(), [], "the test itself breaks no rule of the hardware");
    }
}

impl Rig {
    /// Starts the machine and opens its first device.
    pub fn start(config: Config) -> Option<Self> {
        Self::open(config, 0)
    }

    /// Starts the machine and opens one of its devices.
    pub fn open(config: Config, index: usize) -> Option<Self> {
        let v = verbs()?;
        let threaded = config.drive == Drive::Thread;
        let nic = Softnic::start(config).unwrap();
        let (context, pd) = open_device(v, index);
        Some(Self { nic, context, pd, threaded })
    }

    /// Opens another device and lets `make` make objects on it, as if it were the rig's own.
    pub fn on_device<T>(&mut self, index: usize, make: impl FnOnce(&mut Self) -> T) -> (T, Opened) {
        let mut other = open_device(self.v(), index);
        let mut swap = |rig: &mut Self| {
            std::mem::swap(&mut rig.context, &mut other.0);
            std::mem::swap(&mut rig.pd, &mut other.1);
        };
        swap(self);
        let made = make(self);
        swap(self);
        (made, Opened(other.0, other.1))
    }

    pub fn v(&self) -> &'static Library<Verbs> {
        verbs().expect("the rig started with it")
    }

    /// Lets the device work: a step, or a short nap under the thread.
    pub fn work(&mut self) {
        if self.threaded {
            std::thread::sleep(Duration::from_micros(50));
        } else {
            self.nic.step();
        }
    }

    /// Lets the device work until `done` answers something, for at most so many steps or half a minute.
    pub fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let start = Instant::now();
        for steps in 0u64.. {
            if let Some(found) = done(self) {
                return found;
            }
            let late =
                if self.threaded { start.elapsed() > Duration::from_secs(30) } else { steps > 2_000_000 };
            assert!(!late, "waited {steps} steps for {what}");
            self.work();
        }
        unreachable!("a step count does not end")
    }

    /// Lets the device come to rest: all steps, or a while under the thread.
    pub fn settle(&mut self) {
        if self.threaded {
            std::thread::sleep(Duration::from_millis(20));
        } else {
            self.nic.run();
        }
    }

    /// Lets the device work until so many completions are in a queue.
    pub fn fill(&mut self, cq: *mut ibv_cq, pending: u32) {
        // SAFETY: the queue is alive.
        let cqn = unsafe { (*cq).handle };
        self.until("completions", |rig| {
            let there = rig.nic.with(|host| host.engine.shared.cqs.get(cqn).map_or(0, |c| c.pending()));
            (there >= pending).then_some(())
        });
    }

    /// The next completion of a queue.
    pub fn wait(&mut self, cq: *mut ibv_cq) -> ibv_wc {
        self.until("a completion", |_| poll(cq))
    }

    /// The next completion, which must have this id and status.
    pub fn expect(&mut self, cq: *mut ibv_cq, wr_id: u64, status: ibv_wc_status) -> ibv_wc {
        let wc = self.wait(cq);
        assert_eq!((wc.wr_id, wc.status), (wr_id, status), "vendor error {:#x}", wc.vendor_err);
        wc
    }

    /// Two connected ends.
    pub fn pair(&mut self, shape: Shape) -> (End, End) {
        let (a, b) = (self.end(shape), self.end(shape));
        self.connect(&a, &b, shape);
        (a, b)
    }

    /// An unconnected end.
    pub fn end(&mut self, shape: Shape) -> End {
        let v = self.v();
        let mut memory = Memory::new(LEN);
        // SAFETY: see the module.
        unsafe {
            let cq = v.ibv_create_cq(self.context, shape.cq_depth as i32, null_mut(), null_mut(), 0);
            assert!(!cq.is_null());
            let mr = self.reg(memory.addr(), LEN, shape.region_access);
            let qp = self.qp(cq, self.pd, shape);
            assert!(!qp.is_null(), "create_qp: {}", std::io::Error::last_os_error());
            End { qp, cq, mr, memory: std::mem::take(&mut memory), verbs: v }
        }
    }

    /// A queue pair.
    ///
    /// # Safety
    ///
    /// `cq` and `pd` are alive.
    pub unsafe fn qp(&self, cq: *mut ibv_cq, pd: *mut ibv_pd, shape: Shape) -> *mut ibv_qp {
        // SAFETY: all-zero is a valid `ibv_qp_init_attr`; the rest is the caller's promise.
        unsafe {
            let mut init: ibv_qp_init_attr = std::mem::zeroed();
            (init.send_cq, init.recv_cq, init.qp_type, init.srq) = (cq, cq, shape.kind, shape.srq);
            init.cap.max_send_wr = shape.depth;
            init.cap.max_recv_wr = if shape.srq.is_null() { shape.depth } else { 0 };
            init.cap.max_send_sge = 4;
            init.cap.max_recv_sge = 4;
            init.cap.max_inline_data = 64;
            self.v().ibv_create_qp(pd, &mut init)
        }
    }

    /// Registers memory in the rig's domain.
    pub fn reg(&self, addr: u64, len: usize, access: u32) -> *mut ibv_mr {
        // SAFETY: the device checks the range by itself.
        let mr = unsafe { self.v().ibv_reg_mr(self.pd, addr as *mut _, len, access) };
        assert!(!mr.is_null(), "reg_mr: {}", std::io::Error::last_os_error());
        mr
    }

    /// The next asynchronous event, acknowledged: its type, and the address of what it is about or the port's number.
    pub fn event(&self) -> Option<(ibv_event_type, u64)> {
        // SAFETY: the context is alive; an event that is there is read without blocking, and acknowledged once.
        unsafe {
            let mut p = libc::pollfd { fd: (*self.context).async_fd, events: libc::POLLIN, revents: 0 };
            if libc::poll(&mut p, 1, 0) != 1 {
                return None;
            }
            let mut event: ibv_async_event = std::mem::zeroed();
            assert_eq!(self.v().ibv_get_async_event(self.context, &mut event), 0);
            self.v().ibv_ack_async_event(&mut event);
            let port = matches!(
                event.event_type,
                IBV_EVENT_PORT_ACTIVE | IBV_EVENT_PORT_ERR | IBV_EVENT_GID_CHANGE | IBV_EVENT_DEVICE_FATAL
            );
            let element = if port { event.element.port_num as u64 } else { event.element.qp as u64 };
            Some((event.event_type, element))
        }
    }

    /// Waits for an asynchronous event, which must be this one.
    pub fn expect_event(&mut self, event: ibv_event_type, element: u64) {
        let got = self.until("an event", |rig| rig.event());
        assert_eq!(got, (event, element));
    }

    /// What a port is like.
    pub fn port(&self, number: u8) -> ibv_port_attr {
        // SAFETY: the context is alive; an all-zero structure is valid.
        unsafe {
            let mut attr: ibv_port_attr = std::mem::zeroed();
            assert_eq!(self.v().ibv_query_port(self.context, number, &mut attr), 0);
            attr
        }
    }

    /// An address handle on port 1.
    pub fn ah(&self, fill: impl FnOnce(&mut ibv_ah_attr)) -> *mut ibv_ah {
        // SAFETY: all-zero attributes are valid; the domain is alive.
        unsafe {
            let mut attr: ibv_ah_attr = std::mem::zeroed();
            (attr.port_num, attr.dlid) = (1, 1);
            fill(&mut attr);
            let ah = self.v().ibv_create_ah(self.pd, &mut attr);
            assert!(!ah.is_null(), "create_ah: {}", std::io::Error::last_os_error());
            ah
        }
    }

    /// Destroys an address handle.
    pub fn destroy_ah(&self, ah: *mut ibv_ah) {
        // SAFETY: the caller made it with [`Rig::ah`] and destroys it once.
        assert_eq!(unsafe { self.v().ibv_destroy_ah(ah) }, 0);
    }

    /// A shared receive queue.
    pub fn srq(&self, max_wr: u32, max_sge: u32) -> *mut ibv_srq {
        // SAFETY: all-zero attributes are valid; the domain is alive.
        unsafe {
            let mut init: ibv_srq_init_attr = std::mem::zeroed();
            (init.attr.max_wr, init.attr.max_sge) = (max_wr, max_sge);
            let srq = self.v().ibv_create_srq(self.pd, &mut init);
            assert!(!srq.is_null(), "create_srq: {}", std::io::Error::last_os_error());
            srq
        }
    }

    /// Destroys a shared receive queue; 0 or an errno.
    pub fn destroy_srq(&self, srq: *mut ibv_srq) -> i32 {
        // SAFETY: the caller made it with [`Rig::srq`]; a refusal leaves it alive.
        unsafe { self.v().ibv_destroy_srq(srq) }
    }

    /// Connects two ends.
    pub fn connect(&mut self, a: &End, b: &End, shape: Shape) {
        for (own, peer) in [(a, b), (b, a)] {
            own.to_init(shape);
            assert_eq!(own.to_rtr(peer.qpn(), shape), 0);
            assert_eq!(own.to_rts(shape), 0);
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // SAFETY: see the module; the ends of a test were dropped before.
        unsafe {
            let pd = self.v().ibv_dealloc_pd(self.pd);
            let closed = self.v().ibv_close_device(self.context);
            if !std::thread::panicking() {
                assert_eq!((pd, closed), (0, 0), "nothing is left over");
            }
        }
    }
}

/// An open device and its domain.
#[derive(Debug)]
pub struct Opened(*mut ibv_context, *mut ibv_pd);

impl Drop for Opened {
    fn drop(&mut self) {
        let v = verbs().expect("it was opened with it");
        // SAFETY: each once; what was made on it was destroyed before.
        unsafe {
            let closed = (v.ibv_dealloc_pd(self.1), v.ibv_close_device(self.0));
            assert!(std::thread::panicking() || closed == (0, 0), "{closed:?}");
        }
    }
}

/// Opens the device of this index, in the order of names, and makes a domain.
fn open_device(v: &Library<Verbs>, index: usize) -> (*mut ibv_context, *mut ibv_pd) {
    // SAFETY: the list is freed once, after its last use.
    unsafe {
        let mut n = 0;
        let list = v.ibv_get_device_list(&mut n);
        assert!((index as i32) < n, "libibverbs found {n} devices");
        let mut devices: Vec<_> = (0..n as usize).map(|i| *list.add(i)).collect();
        devices.sort_by_key(|d| CStr::from_ptr(v.ibv_get_device_name(*d)).to_owned());
        let context = v.ibv_open_device(devices[index]);
        assert!(!context.is_null(), "open device: {}", std::io::Error::last_os_error());
        v.ibv_free_device_list(list);
        let pd = v.ibv_alloc_pd(context);
        assert!(!pd.is_null());
        (context, pd)
    }
}

/// Pieces as verbs has them, of address, length, key.
pub fn sges(pieces: &[(u64, u32, u32)]) -> Vec<ibv_sge> {
    pieces.iter().map(|(addr, length, lkey)| ibv_sge { addr: *addr, length: *length, lkey: *lkey }).collect()
}

/// Posts a receive into any pieces: address, length, key.
pub fn recv_raw(qp: *mut ibv_qp, id: u64, pieces: &[(u64, u32, u32)]) {
    let mut list = sges(pieces);
    let (sg_list, num_sge) = (list.as_mut_ptr(), list.len() as i32);
    let mut wr = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list, num_sge };
    let mut bad = null_mut();
    // SAFETY: the queue pair is alive (module's contract); the request and its list live through the call.
    assert_eq!(unsafe { ibv_post_recv(qp, &mut wr, &mut bad) }, 0, "post_recv");
}

/// Posts a shared receive into one piece: address, length, key; 0 or an errno.
pub fn recv_shared(srq: *mut ibv_srq, id: u64, piece: (u64, u32, u32)) -> i32 {
    let mut sge = ibv_sge { addr: piece.0, length: piece.1, lkey: piece.2 };
    let mut wr = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
    let mut bad = null_mut();
    // SAFETY: the queue is alive (module's contract); the request and its piece live through the call.
    unsafe { ibv_post_srq_recv(srq, &mut wr, &mut bad) }
}

/// Takes a completion, if there is one.
pub fn poll(cq: *mut ibv_cq) -> Option<ibv_wc> {
    // SAFETY: the queue is alive (module's contract); all-zero is a valid `ibv_wc`.
    unsafe {
        let mut wc: ibv_wc = std::mem::zeroed();
        match ibv_poll_cq(cq, 1, &mut wc) {
            0 => None,
            1 => Some(wc),
            n => panic!("poll_cq answered {n}"),
        }
    }
}

/// A C string of the library's.
pub fn text(s: *const std::ffi::c_char) -> String {
    assert!(!s.is_null());
    // SAFETY: the library answers C strings.
    unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned()
}

/// No input.
pub fn no<T>() -> *const T {
    null()
}
