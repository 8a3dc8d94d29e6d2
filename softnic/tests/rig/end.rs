//! One end of a connection: its queue pair, queue and memory, how it is shaped, and what it posts.
//!
//! # Safety
//!
//! An [`End`] owns its objects: they are alive until it is dropped, which destroys each once, users first.

use std::ptr::null_mut;

use ibv_sys::*;

use super::{ALL, Memory, sges};

/// How queue pairs are made and connected.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub kind: ibv_qp_type,
    /// A shared receive queue, or null.
    pub srq: *mut ibv_srq,
    pub depth: u32,
    pub cq_depth: u32,
    pub region_access: u32,
    pub qp_access: u32,
    pub rd_atomic: u8,
    pub retry: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub timeout: u8,
    pub psn: u32,
    pub mtu: ibv_mtu,
}

/// The key of datagram queue pairs.
pub const QKEY: u32 = 0x1111_1111;

impl Default for Shape {
    fn default() -> Self {
        Self {
            kind: IBV_QPT_RC,
            srq: null_mut(),
            depth: 64,
            cq_depth: 256,
            region_access: ALL,
            qp_access: ALL,
            rd_atomic: 4,
            retry: 2,
            rnr_retry: 2,
            rnr_timer: 1,
            timeout: 1,
            psn: 0xff_fffe,
            mtu: IBV_MTU_1024,
        }
    }
}

/// A queue pair with a completion queue and a registered buffer of its own.
#[derive(Debug)]
pub struct End {
    pub qp: *mut ibv_qp,
    pub cq: *mut ibv_cq,
    pub mr: *mut ibv_mr,
    pub memory: Memory,
    pub(super) verbs: &'static Library<Verbs>,
}

/// A send request.
#[derive(Debug, Clone)]
pub struct Send {
    pub id: u64,
    pub opcode: ibv_wr_opcode,
    pub flags: u32,
    /// Address, length, key.
    pub pieces: Vec<(u64, u32, u32)>,
    pub remote: (u64, u32),
    pub imm: u32,
    pub operands: (u64, u64),
}

impl End {
    pub fn qpn(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { (*self.qp).qp_num }
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

    /// A signalled request from `from..from+len` of the own buffer to `to` of the peer's.
    pub fn request(
        &self,
        id: u64,
        opcode: ibv_wr_opcode,
        from: usize,
        len: u32,
        peer: &End,
        to: usize,
    ) -> Send {
        Send {
            id,
            opcode,
            flags: IBV_SEND_SIGNALED,
            pieces: vec![(self.at(from), len, self.lkey())],
            remote: (peer.at(to), peer.rkey()),
            imm: 0x1122_3344,
            operands: (0, 0),
        }
    }

    /// Posts; 0 or an errno.
    pub fn try_post(&self, send: &Send) -> i32 {
        self.post_to(send, |wr| {
            if matches!(send.opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD) {
                wr.wr.atomic.remote_addr = send.remote.0;
                wr.wr.atomic.rkey = send.remote.1;
                (wr.wr.atomic.compare_add, wr.wr.atomic.swap) = send.operands;
            } else {
                wr.wr.rdma.remote_addr = send.remote.0;
                wr.wr.rdma.rkey = send.remote.1;
            }
        })
    }

    pub fn post(&self, send: &Send) {
        assert_eq!(self.try_post(send), 0, "post_send");
    }

    /// Posts a datagram; 0 or an errno.
    pub fn try_post_to(&self, send: &Send, ah: *mut ibv_ah, qpn: u32, qkey: u32) -> i32 {
        self.post_to(send, |wr| {
            wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah, remote_qpn: qpn, remote_qkey: qkey };
        })
    }

    /// Posts a request to where `address` says; 0 or an errno.
    fn post_to(&self, send: &Send, address: impl FnOnce(&mut ibv_send_wr)) -> i32 {
        let mut list = sges(&send.pieces);
        // SAFETY: all-zero is a valid request.
        let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
        (wr.wr_id, wr.opcode, wr.send_flags) = (send.id, send.opcode, send.flags);
        (wr.sg_list, wr.num_sge) = (list.as_mut_ptr(), list.len() as i32);
        wr.__bindgen_anon_1.imm_data = send.imm.to_be();
        address(&mut wr);
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive; the list lives through the call, an address handle longer.
        unsafe { ibv_post_send(self.qp, &mut wr, &mut bad) }
    }

    /// Posts a receive into pieces of the own buffer.
    pub fn recv(&self, id: u64, pieces: &[(usize, u32)]) {
        let pieces: Vec<_> = pieces.iter().map(|(at, len)| (self.at(*at), *len, self.lkey())).collect();
        self.recv_raw(id, &pieces);
    }

    /// Posts a receive into any pieces: address, length, key.
    pub fn recv_raw(&self, id: u64, pieces: &[(u64, u32, u32)]) {
        super::recv_raw(self.qp, id, pieces);
    }

    /// Changes the queue pair; 0 or an errno.
    pub fn modify(&self, attr: &mut ibv_qp_attr, mask: u32) -> i32 {
        // SAFETY: the queue pair is alive.
        unsafe { self.verbs.ibv_modify_qp(self.qp, attr, mask as i32) }
    }

    pub fn to_init(&self, shape: Shape) {
        let mut attr = attr(IBV_QPS_INIT);
        (attr.port_num, attr.qp_access_flags, attr.qkey) = (1, shape.qp_access, QKEY);
        let own = if shape.kind == IBV_QPT_UD { IBV_QP_QKEY } else { IBV_QP_ACCESS_FLAGS };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | own;
        assert_eq!(self.modify(&mut attr, mask), 0);
    }

    /// To RTR, towards a queue pair behind port 1 of the first device.
    pub fn to_rtr(&self, peer: u32, shape: Shape) -> i32 {
        let (mut attr, mask) = rtr(peer, shape);
        self.modify(&mut attr, mask)
    }

    pub fn to_rts(&self, shape: Shape) -> i32 {
        let (mut attr, mask) = rts(shape);
        self.modify(&mut attr, mask)
    }

    pub fn state(&self) -> ibv_qp_state {
        // SAFETY: the queue pair is alive; all-zero structures are valid.
        unsafe {
            let (mut attr, mut init) = (std::mem::zeroed::<ibv_qp_attr>(), std::mem::zeroed());
            assert_eq!(self.verbs.ibv_query_qp(self.qp, &mut attr, IBV_QP_STATE as i32, &mut init), 0);
            attr.qp_state
        }
    }

    /// Destroys the queue pair alone.
    pub fn destroy_qp(&mut self) {
        // SAFETY: once: the pointer is cleared.
        assert_eq!(unsafe { self.verbs.ibv_destroy_qp(self.qp) }, 0);
        self.qp = null_mut();
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: each object is destroyed once, users first.
        unsafe {
            let qp = if self.qp.is_null() { 0 } else { self.verbs.ibv_destroy_qp(self.qp) };
            let mr = if self.mr.is_null() { 0 } else { self.verbs.ibv_dereg_mr(self.mr) };
            let cq = self.verbs.ibv_destroy_cq(self.cq);
            if !std::thread::panicking() {
                assert_eq!((qp, mr, cq), (0, 0, 0));
            }
        }
    }
}

pub fn attr(state: ibv_qp_state) -> ibv_qp_attr {
    // SAFETY: all-zero is a valid `ibv_qp_attr`.
    let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = state;
    attr
}

pub fn rtr(peer: u32, shape: Shape) -> (ibv_qp_attr, u32) {
    let mut a = attr(IBV_QPS_RTR);
    (a.path_mtu, a.dest_qp_num, a.rq_psn) = (shape.mtu, peer, shape.psn);
    (a.max_dest_rd_atomic, a.min_rnr_timer) = (shape.rd_atomic, shape.rnr_timer);
    (a.ah_attr.dlid, a.ah_attr.port_num) = (1, 1);
    let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    let mask = match shape.kind {
        IBV_QPT_UD => 0,
        IBV_QPT_UC => path,
        _ => path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
    };
    (a, IBV_QP_STATE | mask)
}

pub fn rts(shape: Shape) -> (ibv_qp_attr, u32) {
    let mut a = attr(IBV_QPS_RTS);
    (a.timeout, a.retry_cnt, a.rnr_retry) = (shape.timeout, shape.retry, shape.rnr_retry);
    (a.sq_psn, a.max_rd_atomic) = (shape.psn, shape.rd_atomic);
    let mask = match shape.kind {
        IBV_QPT_RC => IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
        _ => 0,
    };
    (a, IBV_QP_STATE | IBV_QP_SQ_PSN | mask)
}
