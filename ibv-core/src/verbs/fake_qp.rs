//! The queue-pair half of the fake library: states, sessions of an extended queue pair, lists, polling.
//!
//! # Safety
//! As in the parent module.

use super::{Library as _, Posted, create, decide, destroy, with};
use ibv_sys::*;
use std::{
    ffi::{c_int, c_void},
    ptr::{self, NonNull},
    slice,
};

/// Every queue pair is made as the extended kind, whichever way it was asked for.
fn queue_pair(verb: &'static str, pd: *mut ibv_pd, cap: ibv_qp_cap, cqs: [*mut ibv_cq; 2]) -> *mut ibv_qp {
    // SAFETY: the domain is alive.
    let context = unsafe { (*pd).context };
    let raw = create(verb, "qp", || {
        let base =
            ibv_qp { context, pd, qp_num: 0x77, send_cq: cqs[0], recv_cq: cqs[1], ..ibv_qp::default() };
        let mut qp = ibv_qp_ex { qp_base: base, ..ibv_qp_ex::default() };
        fill(&mut qp);
        qp
    });
    with(|f| f.cap = cap);
    raw.cast()
}

pub unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: valid for the call.
    let attr = unsafe { &*attr };
    queue_pair("create_qp", pd, attr.cap, [attr.send_cq, attr.recv_cq])
}

pub unsafe extern "C" fn create_qp_ex(_: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: valid for the call.
    let attr = unsafe { &*attr };
    queue_pair("create_qp_ex", attr.pd, attr.cap, [attr.send_cq, attr.recv_cq])
}

pub unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    if with(|f| f.no_builders) { ptr::null_mut() } else { qp.cast() }
}

pub unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    destroy("destroy_qp", "qp", qp.cast::<ibv_qp_ex>())
}

pub unsafe extern "C" fn modify_qp(_: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    let code = decide("modify_qp");
    if code == 0 {
        // SAFETY: valid for the call.
        let attr = unsafe { *attr };
        with(|f| {
            f.queried.qp_state = attr.qp_state;
            f.modified.push((attr, mask as u32));
        });
    }
    code
}

pub unsafe extern "C" fn query_qp(
    _: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let code = decide("query_qp");
    // SAFETY: writable for the call.
    unsafe {
        *attr = with(|f| f.queried);
        (*init).cap = with(|f| f.cap);
    }
    code
}

pub unsafe extern "C" fn poll_cq(_: *mut ibv_cq, room: c_int, out: *mut ibv_wc) -> c_int {
    let code = with(|f| f.library.call("poll_cq"));
    if code != 0 {
        return -code;
    }
    with(|f| {
        let n = f.completions.len().min(room as usize);
        for (i, wc) in f.completions.drain(..n).enumerate() {
            // SAFETY: `out` has room for `room`.
            unsafe { out.add(i).write(wc) };
        }
        n as c_int
    })
}

pub unsafe extern "C" fn req_notify_cq(_: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let code = decide("req_notify_cq");
    with(|f| f.armed.push(solicited_only));
    code
}

pub unsafe extern "C" fn post_send(
    _: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let code = decide("post_send");
    let refuse = with(|f| f.refuse_at.take()).or((code != 0).then_some((0, code)));
    let (mut list, mut next) = (Vec::new(), wr);
    while let Some(wr) = NonNull::new(next) {
        if let Some((at, code)) = refuse
            && at == list.len()
        {
            // SAFETY: writable for the call.
            unsafe { *bad = next };
            with(|f| f.sends.push(list));
            return code;
        }
        // SAFETY: a well-formed list, by the caller's promise.
        let wr = unsafe { wr.as_ref() };
        // SAFETY: as above.
        list.push(unsafe { from_list(wr) });
        next = wr.next;
    }
    with(|f| f.sends.push(list));
    0
}

pub unsafe extern "C" fn post_recv(
    _: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let code = decide("post_recv");
    if code != 0 {
        // SAFETY: writable for the call.
        unsafe { *bad = wr };
        return code;
    }
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: a well-formed list, by the caller's promise.
        let wr = unsafe { *next };
        // SAFETY: as above.
        let sges = unsafe { sges(wr.sg_list, wr.num_sge as usize) };
        with(|f| f.recvs.push(Posted { wr_id: wr.wr_id, sges, ..blank() }));
        next = wr.next;
    }
    0
}

pub fn blank() -> Posted {
    Posted {
        wr_id: 0,
        opcode: ibv_wr_opcode(u32::MAX),
        flags: 0,
        remote: (0, 0),
        operands: (0, 0),
        imm: 0,
        sges: Vec::new(),
        inline: Vec::new(),
    }
}

/// # Safety
/// `list` has `n` entries.
pub unsafe fn sges(list: *const ibv_sge, n: usize) -> Vec<(u64, u32, u32)> {
    if n == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(list, n) }.iter().map(|s| (s.addr, s.length, s.lkey)).collect()
}

/// # Safety
/// `wr` is well formed.
pub unsafe fn from_list(wr: &ibv_send_wr) -> Posted {
    // SAFETY: the caller's promise.
    let mut sges = unsafe { sges(wr.sg_list, wr.num_sge as usize) };
    let mut inline = Vec::new();
    if wr.send_flags & IBV_SEND_INLINE != 0 {
        for (addr, len, _) in sges.drain(..) {
            // SAFETY: inline ranges are this process's memory.
            inline.extend(unsafe { slice::from_raw_parts(addr as *const u8, len as usize) });
        }
    }
    let atomic = [IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD].contains(&wr.opcode);
    // SAFETY: every member of the unions is plain integers, and the opcode says which is meant.
    let (remote, operands, imm) = unsafe {
        match atomic {
            true => {
                let a = wr.wr.atomic;
                ((a.remote_addr, a.rkey), (a.compare_add, a.swap), 0)
            }
            false => {
                let r = wr.wr.rdma;
                ((r.remote_addr, r.rkey), (0, 0), u32::from_be(wr.__bindgen_anon_1.imm_data))
            }
        }
    };
    // A send ignores what is remote.
    let sends = [IBV_WR_SEND, IBV_WR_SEND_WITH_IMM].contains(&wr.opcode);
    let remote = if sends { (0, 0) } else { remote };
    // Where the bytes lie says the same.
    let (wr_id, opcode, flags) = (wr.wr_id, wr.opcode, wr.send_flags & !IBV_SEND_INLINE);
    Posted { wr_id, opcode, flags, remote, operands, imm, sges, inline }
}

pub fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_rdma_write = Some(rdma_write);
    qp.wr_rdma_write_imm = Some(rdma_write_imm);
    qp.wr_rdma_read = Some(rdma_read);
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_atomic_cmp_swp = Some(cmp_swp);
    qp.wr_atomic_fetch_add = Some(fetch_add);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_inline_data = Some(set_inline_data);
}

fn misuse(what: &str) {
    with(|f| f.misuse.push(what.into()));
}

unsafe extern "C" fn start(_: *mut ibv_qp_ex) {
    if with(|f| f.open_session.replace(Vec::new())).is_some() {
        misuse("wr_start inside a session");
    }
}

unsafe extern "C" fn complete(_: *mut ibv_qp_ex) -> c_int {
    let Some(session) = with(|f| f.open_session.take()) else {
        misuse("wr_complete outside a session");
        return libc::EINVAL;
    };
    let code = decide("wr_complete");
    if code == 0 {
        with(|f| f.sends.push(session));
    }
    code
}

unsafe extern "C" fn abort(_: *mut ibv_qp_ex) {
    if with(|f| f.open_session.take()).is_none() {
        misuse("wr_abort outside a session");
    }
}

fn build(qp: *mut ibv_qp_ex, opcode: ibv_wr_opcode, remote: (u64, u32), operands: (u64, u64), imm: u32) {
    // SAFETY: the queue pair is alive.
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    let imm = u32::from_be(imm);
    let built = Posted { wr_id, opcode, flags, remote, operands, imm, ..blank() };
    let open = with(|f| f.open_session.as_mut().map(|s| s.push(built)).is_some());
    if !open {
        misuse("a builder outside a session");
    }
}

fn last(set: impl FnOnce(&mut Posted)) {
    let found = with(|f| f.open_session.as_mut().and_then(|s| s.last_mut()).map(set).is_some());
    if !found {
        misuse("a setter before a builder");
    }
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    build(qp, IBV_WR_RDMA_WRITE, (addr, rkey), (0, 0), 0);
}
unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    build(qp, IBV_WR_RDMA_WRITE_WITH_IMM, (addr, rkey), (0, 0), imm);
}
unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    build(qp, IBV_WR_RDMA_READ, (addr, rkey), (0, 0), 0);
}
unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    build(qp, IBV_WR_SEND, (0, 0), (0, 0), 0);
}
unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    build(qp, IBV_WR_SEND_WITH_IMM, (0, 0), (0, 0), imm);
}
unsafe extern "C" fn cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, compare: u64, swap: u64) {
    build(qp, IBV_WR_ATOMIC_CMP_AND_SWP, (addr, rkey), (compare, swap), 0);
}
unsafe extern "C" fn fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    build(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, (addr, rkey), (add, 0), 0);
}
unsafe extern "C" fn set_sge_list(_: *mut ibv_qp_ex, n: usize, list: *const ibv_sge) {
    // SAFETY: `list` has `n` entries.
    let list = unsafe { sges(list, n) };
    last(|p| p.sges = list);
}
unsafe extern "C" fn set_sge(_: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    last(|p| p.sges = vec![(addr, length, lkey)]);
}
unsafe extern "C" fn set_inline_data(_: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: readable for the call.
    let data = unsafe { slice::from_raw_parts(addr.cast::<u8>(), length) }.to_vec();
    last(|p| p.inline = data);
}
