//! Sessions on builders that only count: what is called, in which order, and how a session ends.
#![allow(unsafe_code)]
//! # Safety
//! The builders write to the log of the calling thread; the queue pair is a struct on the heap.

use super::*;
use crate::work::SendRing;
use std::cell::RefCell;

thread_local! {
    static LOG: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    static ANSWER: RefCell<c_int> = const { RefCell::new(0) };
}

fn note(what: &'static str) {
    LOG.with_borrow_mut(|log| log.push(what));
}

fn logged() -> Vec<&'static str> {
    LOG.with_borrow_mut(std::mem::take)
}

unsafe extern "C" fn start(_: *mut ibv_qp_ex) {
    note("start");
}
unsafe extern "C" fn complete(_: *mut ibv_qp_ex) -> c_int {
    note("complete");
    ANSWER.with_borrow(|code| *code)
}
unsafe extern "C" fn abort(_: *mut ibv_qp_ex) {
    note("abort");
}
unsafe extern "C" fn send(_: *mut ibv_qp_ex) {
    note("send");
}
unsafe extern "C" fn send_imm(_: *mut ibv_qp_ex, _: u32) {
    note("send_imm");
}
unsafe extern "C" fn rdma(_: *mut ibv_qp_ex, _: u32, _: u64) {
    note("rdma");
}
unsafe extern "C" fn set_sge(_: *mut ibv_qp_ex, _: u32, _: u64, _: u32) {
    note("set_sge");
}
unsafe extern "C" fn set_inline_data(_: *mut ibv_qp_ex, _: *mut c_void, _: usize) {
    note("set_inline_data");
}
unsafe extern "C" fn set_ud_addr(_: *mut ibv_qp_ex, _: *mut ibv_ah, _: u32, _: u32) {
    note("set_ud_addr");
}

fn table() -> Box<ibv_qp_ex> {
    Box::new(ibv_qp_ex {
        wr_start: Some(start),
        wr_complete: Some(complete),
        wr_abort: Some(abort),
        wr_send: Some(send),
        wr_send_imm: Some(send_imm),
        wr_rdma_read: Some(rdma),
        wr_set_sge: Some(set_sge),
        wr_set_inline_data: Some(set_inline_data),
        wr_set_ud_addr: Some(set_ud_addr),
        ..ibv_qp_ex::default()
    })
}

fn builders(table: &mut Box<ibv_qp_ex>, ops: u32) -> Result<Builders, Error> {
    let qp = NonNull::from(&mut **table);
    Builders::in_table(qp, table, u64::from(ops))
}

#[test]
fn b1_a_missing_builder_names_its_flag() {
    let all = IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE;
    let e = builders(&mut table(), all).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(
        e.to_string().contains("wr_rdma_write") && e.to_string().contains("IBV_QP_EX_WITH_RDMA_WRITE"),
        "{e}"
    );
    let e = builders(&mut Box::new(ibv_qp_ex::default()), 0).unwrap_err();
    assert!(e.to_string().contains("IBV_QP_INIT_ATTR_SEND_OPS_FLAGS"), "{e}");
    builders(&mut table(), IBV_QP_EX_WITH_RDMA_READ).unwrap();
}

#[test]
fn a_session_without_requests_is_started_and_completed() {
    let mut table = table();
    let builders = builders(&mut table, IBV_QP_EX_WITH_RDMA_READ).unwrap();
    let ring = SendRing::new(2, 0, (0, 0));
    // SAFETY: the table is alive and this thread's.
    assert_eq!(unsafe { builders.publish(ring.requests().unwrap(), &Peers::default()) }, Ok(()));
    assert_eq!(logged(), ["start", "complete"]);
    assert_eq!(table.wr_flags, IBV_SEND_SIGNALED, "libefa takes no request that reports nothing");
}

#[test]
fn what_complete_answers_is_the_answer() {
    let mut table = table();
    let builders = builders(&mut table, 0).unwrap();
    ANSWER.with_borrow_mut(|code| *code = libc::ENOMEM);
    // SAFETY: as above.
    let done = unsafe { builders.publish(&[], &Peers::default()) };
    ANSWER.with_borrow_mut(|code| *code = 0);
    assert_eq!((done, logged()), (Err(libc::ENOMEM), vec!["start", "complete"]));
}

#[test]
fn a_request_to_nobody_aborts_the_session() {
    let mut table = table();
    let builders = builders(&mut table, 0).unwrap();
    let ring = SendRing::of_one(Built { form: Form::Range(Kind::Send), ..Built::default() });
    // SAFETY: as above.
    assert_eq!(unsafe { builders.publish(ring.requests().unwrap(), &Peers::default()) }, Err(libc::EINVAL));
    assert_eq!(logged(), ["start", "abort"]);
    let to = Destination { ah: std::ptr::null_mut(), qp_num: 0, qkey: 0 };
    let request = Built { form: Form::Put, ..Built::default() };
    // SAFETY: as above.
    let built = unsafe { builders.build(builders.qp.as_ptr(), &request, &to) };
    assert_eq!((built, logged()), (Err(libc::EOPNOTSUPP), vec![]), "an operation that the device lacks");
}

#[test]
fn unwinding_aborts_the_session() {
    let mut table = table();
    let builders = builders(&mut table, 0).unwrap();
    let unwound = std::panic::catch_unwind(|| {
        let _session = Session(&builders);
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(unwound.is_err());
    assert_eq!(logged(), ["abort"]);
}
