//! A C-free client of libibverbs and libefa on a software EFA device in the same process: queue pairs of scalable reliable
//! datagrams and what they post. Every wait is the rig's, and bounded. What is asserted is in the tests.
//!
//! # Safety
//!
//! A [`Srd`] owns its objects: they are alive until it is dropped, which destroys each once, users first.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::missing_panics_doc)]

use std::ptr::null_mut;

use ibv_sys::*;
use softnic::Config;
use softnic::description::Description;
use softnic::efa::limits::Limits;

use super::rig::{self, LEN, Memory, Rig, attr, sges};

/// What EFA regions may allow, on a device with everything.
pub const EFA_ALL: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
/// The kernel's masks on the way up.
pub const TO_INIT: u32 = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
pub const TO_RTR: u32 = IBV_QP_STATE;
pub const TO_RTS: u32 = IBV_QP_STATE | IBV_QP_SQ_PSN;

/// One EFA device with these limits, under both drives.
pub fn both(limits: Limits, test: impl Fn(&mut Rig)) {
    for config in [Config::steps(1), Config::thread()] {
        with(config, limits.clone(), &test);
    }
}

/// One EFA device under explicit steps with a seed.
pub fn steps(seed: u64, limits: Limits, test: impl FnOnce(&mut Rig)) {
    with(Config::steps(seed), limits, test);
}

pub fn with(config: Config, limits: Limits, test: impl FnOnce(&mut Rig)) {
    let mut description = Description::efa(2);
    for device in &mut description.devices {
        device.efa = limits.clone();
    }
    let config = Config { description, ..config };
    // In this order: libefa must not be loaded before there are devices to be seen.
    if let Some(mut rig) = Rig::start(config)
        && efa().is_some()
    {
        test(&mut rig);
    }
}

/// libefa, or `None` with a printed reason, as for libibverbs.
pub fn efa() -> Option<&'static Library<Efadv>> {
    match ibv_sys::efadv() {
        Ok(efa) => Some(efa),
        Err(error) => {
            let required = std::env::var("IBV_REQUIRE").is_ok_and(|v| v.contains("softnic-tools"));
            assert!(!required, "IBV_REQUIRE=softnic-tools: {error}");
            println!("skipped: {error} (install ibverbs-providers)");
            None
        }
    }
}

/// What the library says of the device.
pub fn device(rig: &Rig) -> efadv_device_attr {
    // SAFETY: all-zero is a valid structure, of the length that is passed.
    unsafe {
        let mut attr: efadv_device_attr = std::mem::zeroed();
        let len = size_of_val(&attr) as u32;
        assert_eq!(efa().unwrap().efadv_query_device(rig.context, &mut attr, len), 0);
        attr
    }
}

/// Whether library and device have WRITE; else says so. libefa 44 has none.
pub fn writes(rig: &Rig) -> bool {
    let has = device(rig).device_caps & EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE != 0;
    if !has {
        println!("skipped: this libefa has no RDMA write, which came with rdma-core 46");
    }
    has
}

/// How a queue pair is made.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub depth: u32,
    pub inline: u32,
    pub flags: u32,
    pub qkey: u32,
    pub cq_depth: i32,
    pub access: u32,
    /// `None` asks for no number of retries.
    pub rnr_retry: Option<u8>,
    pub ud: bool,
}

impl Default for Shape {
    fn default() -> Self {
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
        Self {
            depth: 64,
            inline: 0,
            flags: 0,
            qkey: 0x1111,
            cq_depth: 256,
            access,
            rnr_retry: None,
            ud: false,
        }
    }
}

/// A queue pair with a completion queue, a registered buffer and an address handle to the first device.
#[derive(Debug)]
pub struct Srd {
    pub qp: *mut ibv_qp,
    pub cq: *mut ibv_cq,
    pub mr: *mut ibv_mr,
    pub ah: *mut ibv_ah,
    pub memory: Memory,
    pub qkey: u32,
    ex: *mut ibv_qp_ex,
    verbs: &'static Library<Verbs>,
}

/// A request.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    Send,
    SendImm(u32),
    Read { addr: u64, rkey: u32 },
    Write { addr: u64, rkey: u32 },
    WriteImm { addr: u64, rkey: u32, imm: u32 },
}

/// Whom a request is for.
#[derive(Debug, Clone, Copy)]
pub struct To {
    pub qpn: u32,
    pub qkey: u32,
}

impl Srd {
    /// A queue pair in RTS, which can also write where library and device can.
    pub fn new(rig: &Rig, shape: Shape) -> Self {
        let end = Self::unready(rig, shape);
        end.up(shape);
        end
    }

    /// A queue pair in RESET.
    pub fn unready(rig: &Rig, shape: Shape) -> Self {
        let v = rig.v();
        // SAFETY: the rig's context is alive.
        let cq = unsafe { v.ibv_create_cq(rig.context, shape.cq_depth, null_mut(), null_mut(), 0) };
        assert!(!cq.is_null());
        Self::on_cq(rig, shape, cq)
    }

    /// A queue pair in RESET, with this queue, which it owns from now on.
    pub fn on_cq(rig: &Rig, shape: Shape, cq: *mut ibv_cq) -> Self {
        let memory = Memory::new(LEN);
        let write = device(rig).device_caps & EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE != 0;
        let access = shape.access | if write { IBV_ACCESS_REMOTE_WRITE } else { 0 };
        let mr = rig.reg(memory.addr(), LEN, access);
        let qp = create_qp(rig, shape, cq, write);
        assert!(!qp.is_null(), "create_qp: {}", std::io::Error::last_os_error());
        // SAFETY: the queue pair was just made with extended operations.
        let ex = unsafe { rig.v().ibv_qp_to_qp_ex(qp) };
        let ah = handle(rig, 0);
        assert!(!ah.is_null());
        Self { qp, cq, mr, ah, memory, qkey: shape.qkey, ex, verbs: rig.v() }
    }

    /// To RTS, by the kernel's masks.
    pub fn up(&self, shape: Shape) {
        let mut a = attr(IBV_QPS_INIT);
        (a.port_num, a.qkey) = (1, shape.qkey);
        assert_eq!(self.modify(&mut a, TO_INIT), 0);
        assert_eq!(self.modify(&mut attr(IBV_QPS_RTR), TO_RTR), 0);
        let mut a = attr(IBV_QPS_RTS);
        let retry = shape.rnr_retry.map_or(0, |n| {
            a.rnr_retry = n;
            IBV_QP_RNR_RETRY
        });
        assert_eq!(self.modify(&mut a, TO_RTS | retry), 0);
    }

    pub fn modify(&self, attr: &mut ibv_qp_attr, mask: u32) -> i32 {
        // SAFETY: the queue pair is alive.
        unsafe { self.verbs.ibv_modify_qp(self.qp, attr, mask as i32) }
    }

    pub fn qpn(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { (*self.qp).qp_num }
    }

    pub fn to(&self) -> To {
        To { qpn: self.qpn(), qkey: self.qkey }
    }

    pub fn lkey(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { (*self.mr).lkey }
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: the region is alive.
        unsafe { (*self.mr).rkey }
    }

    pub fn at(&self, offset: usize) -> u64 {
        self.memory.addr() + offset as u64
    }

    /// A READ of another end's memory.
    pub fn read_of(&self, peer: &Self, offset: usize) -> Op {
        let _ = self;
        Op::Read { addr: peer.at(offset), rkey: peer.rkey() }
    }

    /// A WRITE to another end's memory.
    pub fn write_to(&self, peer: &Self, offset: usize) -> Op {
        let _ = self;
        Op::Write { addr: peer.at(offset), rkey: peer.rkey() }
    }

    /// Posts a request over `pieces` of the own buffer (offset, length); 0 or an errno.
    pub fn try_post(&self, id: u64, op: Op, to: To, pieces: &[(usize, u32)]) -> i32 {
        let list: Vec<_> = pieces.iter().map(|(at, len)| (self.at(*at), *len, self.lkey())).collect();
        self.try_post_raw(id, op, to, &list)
    }

    /// Posts a request over any pieces (address, length, key); 0 or an errno.
    pub fn try_post_raw(&self, id: u64, op: Op, to: To, pieces: &[(u64, u32, u32)]) -> i32 {
        let list = sges(pieces);
        // SAFETY: the queue pair is alive; one session on one thread, ended here.
        unsafe {
            assert_eq!(ibv_wr_start(self.ex), 0);
            self.build(id, op, to, self.ah);
            assert_eq!(ibv_wr_set_sge_list(self.ex, list.len(), list.as_ptr()), 0);
            ibv_wr_complete(self.ex)
        }
    }

    /// Posts a request through another address handle; 0 or an errno.
    pub fn try_post_to(&self, id: u64, op: Op, to: To, ah: *mut ibv_ah) -> i32 {
        // SAFETY: as above; the handle is alive, or was, and only its number is read.
        unsafe {
            assert_eq!(ibv_wr_start(self.ex), 0);
            self.build(id, op, to, ah);
            assert_eq!(ibv_wr_set_sge(self.ex, self.lkey(), self.at(0), 8), 0);
            ibv_wr_complete(self.ex)
        }
    }

    /// Posts a request with inline bytes; 0 or an errno.
    pub fn try_post_inline(&self, id: u64, op: Op, to: To, bytes: &[u8]) -> i32 {
        // SAFETY: as above; the bytes are copied at once.
        unsafe {
            assert_eq!(ibv_wr_start(self.ex), 0);
            self.build(id, op, to, self.ah);
            let bytes = (bytes.as_ptr().cast_mut().cast(), bytes.len());
            assert_eq!(ibv_wr_set_inline_data(self.ex, bytes.0, bytes.1), 0);
            ibv_wr_complete(self.ex)
        }
    }

    /// # Safety
    ///
    /// A session was started.
    unsafe fn build(&self, id: u64, op: Op, to: To, ah: *mut ibv_ah) {
        // SAFETY: the caller's promise, and the queue pair is alive.
        unsafe {
            ((*self.ex).wr_id, (*self.ex).wr_flags) = (id, IBV_SEND_SIGNALED);
            let built = match op {
                Op::Send => ibv_wr_send(self.ex),
                Op::SendImm(imm) => ibv_wr_send_imm(self.ex, imm.to_be()),
                Op::Read { addr, rkey } => ibv_wr_rdma_read(self.ex, rkey, addr),
                Op::Write { addr, rkey } => ibv_wr_rdma_write(self.ex, rkey, addr),
                Op::WriteImm { addr, rkey, imm } => ibv_wr_rdma_write_imm(self.ex, rkey, addr, imm.to_be()),
            };
            assert_eq!(built, 0, "the queue pair was made for {op:?}");
            assert_eq!(ibv_wr_set_ud_addr(self.ex, ah, to.qpn, to.qkey), 0);
        }
    }

    pub fn post(&self, id: u64, op: Op, to: To, at: usize, len: u32) {
        assert_eq!(self.try_post(id, op, to, &[(at, len)]), 0, "post");
    }

    /// Posts several requests in one session, each of 8 bytes from `8 · i` on.
    pub fn post_batch(&self, first: u64, ops: &[Op], to: To) -> i32 {
        // SAFETY: as for one.
        unsafe {
            assert_eq!(ibv_wr_start(self.ex), 0);
            for (i, op) in ops.iter().enumerate() {
                self.build(first + i as u64, *op, to, self.ah);
                assert_eq!(ibv_wr_set_sge(self.ex, self.lkey(), self.at(8 * i), 8), 0);
            }
            ibv_wr_complete(self.ex)
        }
    }

    /// Posts a receive into pieces of the own buffer.
    pub fn recv(&self, id: u64, pieces: &[(usize, u32)]) {
        let list: Vec<_> = pieces.iter().map(|(at, len)| (self.at(*at), *len, self.lkey())).collect();
        self.recv_raw(id, &list);
    }

    /// Posts a receive into any pieces: address, length, key.
    pub fn recv_raw(&self, id: u64, pieces: &[(u64, u32, u32)]) {
        rig::recv_raw(self.qp, id, pieces);
    }

    /// Destroys the queue pair alone.
    pub fn destroy_qp(&mut self) {
        // SAFETY: once: the pointer is cleared.
        assert_eq!(unsafe { self.verbs.ibv_destroy_qp(self.qp) }, 0);
        self.qp = null_mut();
    }

    /// Destroys the address handle alone; answers its old pointer's number.
    pub fn destroy_ah(&mut self) {
        // SAFETY: once: the pointer is cleared.
        assert_eq!(unsafe { self.verbs.ibv_destroy_ah(self.ah) }, 0);
        self.ah = null_mut();
    }
}

impl Drop for Srd {
    fn drop(&mut self) {
        // SAFETY: each object is destroyed once, users first.
        unsafe {
            let v = self.verbs;
            let qp = if self.qp.is_null() { 0 } else { v.ibv_destroy_qp(self.qp) };
            let ah = if self.ah.is_null() { 0 } else { v.ibv_destroy_ah(self.ah) };
            let mr = if self.mr.is_null() { 0 } else { v.ibv_dereg_mr(self.mr) };
            let cq = if self.cq.is_null() { 0 } else { v.ibv_destroy_cq(self.cq) };
            if !std::thread::panicking() {
                assert_eq!((qp, ah, mr, cq), (0, 0, 0, 0));
            }
        }
    }
}

/// Makes a queue pair; null with an errno if it can't be.
pub fn create_qp(rig: &Rig, shape: Shape, cq: *mut ibv_cq, write: bool) -> *mut ibv_qp {
    // SAFETY: all-zero structures are valid; queue and domain are alive.
    unsafe {
        let mut init: ibv_qp_init_attr_ex = std::mem::zeroed();
        (init.send_cq, init.recv_cq, init.pd) = (cq, cq, rig.pd);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (shape.depth, shape.depth);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (2, 3);
        init.cap.max_inline_data = shape.inline;
        init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let send = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
        if shape.ud {
            init.qp_type = IBV_QPT_UD;
            init.send_ops_flags = u64::from(send);
            return rig.v().ibv_create_qp_ex(rig.context, &mut init);
        }
        let rdma = if write { IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM } else { 0 };
        init.qp_type = IBV_QPT_DRIVER;
        init.send_ops_flags = u64::from(send | IBV_QP_EX_WITH_RDMA_READ | rdma);
        let mut own: efadv_qp_init_attr = std::mem::zeroed();
        own.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD;
        own.flags = shape.flags as u16;
        // Libraries of before 56 have a structure that ends before the newer fields.
        let len = std::mem::offset_of!(efadv_qp_init_attr, wr_flags) as u32;
        efa().unwrap().efadv_create_qp_ex(rig.context, &mut init, &mut own, len)
    }
}

/// An address handle to a device of this machine, by its index.
pub fn handle(rig: &Rig, device: usize) -> *mut ibv_ah {
    let gid = Description::efa(device as u16 + 1).devices[device].ports[0].gids[0].gid;
    handle_to(rig, gid)
}

/// An address handle to any GID.
pub fn handle_to(rig: &Rig, gid: [u8; 16]) -> *mut ibv_ah {
    // SAFETY: all-zero is a valid `ibv_ah_attr`; the domain is alive.
    unsafe {
        let mut attr: ibv_ah_attr = std::mem::zeroed();
        (attr.is_global, attr.port_num) = (1, 1);
        attr.grh.dgid.raw = gid;
        rig.v().ibv_create_ah(rig.pd, &mut attr)
    }
}

/// Runs this binary's other tests again, on each rdma-core that `cargo xtask rdma-core` built.
pub fn on_newer_rdma_cores() {
    const AGAIN: &str = "SOFTNIC_TEST_AGAIN";
    if std::env::var_os(AGAIN).is_some() {
        return;
    }
    let exe = std::env::current_exe().unwrap();
    let folder = exe.ancestors().nth(3).map(|target| target.join("rdma-core")).unwrap_or_default();
    let built = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let built: Vec<_> =
        built.map(|e| e.path().join("build")).filter(|b| b.join(".built").is_file()).collect();
    if built.is_empty() {
        println!("skipped: no newer rdma-core is built: cargo xtask rdma-core");
    }
    for build in built {
        let mut command = std::process::Command::new(&exe);
        command.env(AGAIN, "1").env("LD_LIBRARY_PATH", build.join("lib"));
        let out = command.output().unwrap();
        let printed = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "on {}: {printed}", build.display());
        assert!(printed.contains("test result: ok"), "{printed}");
    }
}
