//! The inline functions that choose between two calls, in Rust and in C, for every way to choose.
//!
//! # Safety
//!
//! Every function of C that is called has the type that it is called by, and no recorder follows a pointer.
#![allow(clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)] // The paragraph above holds for all.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr;

use ibv_sys::*;

use super::bench::{Bench, C};
use super::recorder::{Call, Recorder, Word, id, take_calls};
use super::with_c;

type Seen = (u64, Vec<Call>);

/// Asserts that C, if it has the function, sees what Rust sees, and gives that.
fn both(name: &str, c: &C, theirs: impl FnOnce(*mut c_void) -> u64, ours: impl FnOnce() -> u64) -> Seen {
    let ours: Seen = (ours(), take_calls());
    if let Some(function) = c.function(name) {
        assert_eq!((theirs(function), take_calls()), ours, "{name}");
    }
    ours
}

#[test]
fn registration_goes_by_the_optional_access_bits() {
    with_c(|_, bench, c| {
        let (verbs, pd) = (bench.verbs, &raw mut *bench.pd);
        let addr = 0x7000 as *mut c_void;
        for (access, wrapper, op) in [
            (IBV_ACCESS_LOCAL_WRITE, "reg_mr_plain", id("ibv_reg_mr")),
            (IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_LOCAL_WRITE, "reg_mr_plain", id("ibv_reg_mr_iova2")),
            (IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_LOCAL_WRITE, "reg_mr", id("ibv_reg_mr_iova2")),
        ] {
            type Function = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_uint) -> *mut ibv_mr;
            let (_, calls) = both(
                wrapper,
                c,
                |function| {
                    unsafe { transmute::<*mut c_void, Function>(function)(pd, addr, 64, access) }.word()
                },
                || unsafe { verbs.ibv_reg_mr(pd, addr, 64, access) }.word(),
            );
            assert_eq!(calls[0].0, op, "access {access:#x}");

            type FunctionIova =
                unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
            both(
                &wrapper.replace("reg_mr", "reg_mr_iova"),
                c,
                |function| {
                    unsafe { transmute::<*mut c_void, FunctionIova>(function)(pd, addr, 64, 9, access) }
                        .word()
                },
                || unsafe { verbs.ibv_reg_mr_iova(pd, addr, 64, 9, access) }.word(),
            );
        }
    });
}

#[test]
fn a_library_without_optional_access_gets_the_access_without_it() {
    let mut bench = Bench::new();
    bench.verbs.ibv_reg_mr_iova2 = Verbs::unsupported().ibv_reg_mr_iova2;
    let access = IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_REMOTE_READ;
    unsafe { bench.verbs.ibv_reg_mr(&mut *bench.pd, ptr::null_mut(), 8, access) };
    let calls = take_calls();
    assert_eq!((calls[0].0, calls[0].1[3]), (id("ibv_reg_mr"), u64::from(IBV_ACCESS_REMOTE_READ)));
}

#[test]
fn queue_pairs_and_receive_queues_use_the_plain_call_where_it_is_enough() {
    with_c(|_, bench, c| {
        let (verbs, context) = (bench.verbs, bench.context());
        let mut attr = Box::<ibv_qp_init_attr_ex>::default();
        for (mask, op) in [
            (IBV_QP_INIT_ATTR_PD, id("ibv_create_qp")),
            (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, id("create_qp_ex")),
            (0, id("create_qp_ex")),
        ] {
            attr.comp_mask = mask;
            let attr = &raw mut *attr;
            type Function = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
            let (_, calls) = both(
                "ibv_create_qp_ex",
                c,
                |function| unsafe { transmute::<*mut c_void, Function>(function)(context, attr) }.word(),
                || unsafe { verbs.ibv_create_qp_ex(context, attr) }.word(),
            );
            assert_eq!(calls[0].0, op, "mask {mask:#x}");
        }
        for mask in 0..16 {
            for srq_type in [IBV_SRQT_BASIC, IBV_SRQT_XRC] {
                let mut attr =
                    Box::new(ibv_srq_init_attr_ex { comp_mask: mask, srq_type, ..Default::default() });
                let attr = &raw mut *attr;
                type Function =
                    unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;
                both(
                    "ibv_create_srq_ex",
                    c,
                    |function| unsafe { transmute::<*mut c_void, Function>(function)(context, attr) }.word(),
                    || unsafe { verbs.ibv_create_srq_ex(context, attr) }.word(),
                );
            }
        }
    });
}

unsafe extern "C" fn refuses(
    _: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    _: *mut ibv_device_attr_ex,
    _: usize,
) -> c_int {
    libc::EOPNOTSUPP
}

#[test]
fn the_device_query_falls_back_and_refuses_unknown_input() {
    with_c(|_, bench, c| {
        let (verbs, context) = (bench.verbs, bench.context());
        let mut attr = Box::<ibv_device_attr_ex>::default();
        let attr = &raw mut *attr;
        type Function = unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
        ) -> c_int;
        let query = move |input: *const ibv_query_device_ex_input| {
            both(
                "ibv_query_device_ex",
                c,
                |function| {
                    unsafe { transmute::<*mut c_void, Function>(function)(context, input, attr) }.word()
                },
                || unsafe { verbs.ibv_query_device_ex(context, input, attr) }.word(),
            )
        };
        assert_eq!(query(ptr::null()).1[0].0, id("query_device_ex"));
        assert_eq!(query(&ibv_query_device_ex_input { comp_mask: 1 }), (libc::EINVAL as u64, vec![]));
        bench.extended.query_device_ex = Some(refuses);
        unsafe { (*attr).xrc_odp_caps = 7 };
        assert_eq!(query(&ibv_query_device_ex_input { comp_mask: 0 }).1[0].0, id("ibv_query_device"));
        assert_eq!(unsafe { (*attr).xrc_odp_caps }, 0, "what the older call does not know is zero");
    });
}

#[test]
fn a_port_of_an_older_library_is_read_by_the_frozen_call_into_zeros() {
    let mut bench = Bench::new();
    bench.forget_extension();
    let mut attr = ibv_port_attr { active_speed_ex: 9, port_cap_flags2: 9, ..Default::default() };
    unsafe { bench.verbs.ibv_query_port(&mut bench.extended.context, 1, &mut attr) };
    assert_eq!(take_calls()[0].0, id("compat_ibv_query_port"));
    assert_eq!((attr.active_speed_ex, attr.port_cap_flags2), (0, 0));
}

#[test]
fn a_bind_is_checked_before_it_is_posted() {
    with_c(|_, bench, c| {
        let (qp, mw, bind) = (&raw mut *bench.qp, &raw mut *bench.mw, &raw mut *bench.mw_bind);
        let mut mr = Box::new(ibv_mr { pd: &raw mut *bench.pd, ..Default::default() });
        let mr = &raw mut *mr;
        type Function = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int;
        let mut outcomes = Vec::new();
        for mw_type in [IBV_MW_TYPE_1, IBV_MW_TYPE_2] {
            for (mr, addr, length) in
                [(ptr::null_mut(), 0, 0), (ptr::null_mut(), 1, 0), (ptr::null_mut(), 0, 1), (mr, 1, 1)]
            {
                for pd in [ptr::null_mut(), &raw mut *bench.pd] {
                    unsafe {
                        (*mw).type_ = mw_type;
                        (*mw).pd = pd;
                        (*bind).bind_info = ibv_mw_bind_info { mr, addr, length, ..Default::default() };
                    }
                    let seen = both(
                        "ibv_bind_mw",
                        c,
                        |function| {
                            unsafe { transmute::<*mut c_void, Function>(function)(qp, mw, bind) }.word()
                        },
                        || unsafe { ibv_bind_mw(qp, mw, bind) }.word(),
                    );
                    outcomes.push(if seen.1.is_empty() { seen.0 as c_int } else { 0 });
                }
            }
        }
        for outcome in [0, libc::EINVAL, libc::EPERM] {
            assert!(outcomes.contains(&outcome), "{outcomes:?}");
        }
    });
}

/// A work queue, for an operation that makes one.
static QUEUE: std::sync::atomic::AtomicPtr<ibv_wq> = std::sync::atomic::AtomicPtr::new(ptr::null_mut());

unsafe extern "C" fn give_queue(_: *mut ibv_context, _: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    QUEUE.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn a_new_work_queue_gets_its_context_and_locks() {
    with_c(|_, bench, c| {
        bench.extended.create_wq = Some(give_queue);
        let context = bench.context();
        let attr = &raw mut *bench.wq_init;
        type Function = unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq;
        let made = |create: &dyn Fn() -> *mut ibv_wq| {
            let mut queue = Box::new(ibv_wq { events_completed: 7, ..Default::default() });
            QUEUE.store(&raw mut *queue, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(create(), &raw mut *queue);
            (queue.wq_context, queue.events_completed)
        };
        bench.wq_init.wq_context = 0x1234 as *mut c_void;
        let ours = made(&|| unsafe { ibv_create_wq(context, attr) });
        assert_eq!(ours, (0x1234 as *mut c_void, 0));
        if let Some(function) = c.function("ibv_create_wq") {
            assert_eq!(
                made(&|| unsafe { transmute::<*mut c_void, Function>(function)(context, attr) }),
                ours
            );
        }
    });
}

#[test]
fn a_recorder_is_what_the_bench_thinks_it_is() {
    let recorder: unsafe extern "C" fn(*mut ibv_cq) -> c_int = Recorder::recorder::<5>();
    assert_eq!(unsafe { recorder(0x10 as *mut ibv_cq) }, 5);
    assert_eq!(take_calls(), [(5, vec![0x10])]);
}
