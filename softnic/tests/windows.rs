//! Memory windows of both types through unmodified libibverbs and libmlx5: bound, used, bound anew, taken back.

mod rig;

use ibv_sys::*;
use rig::*;

const OK: ibv_wc_status = IBV_WC_SUCCESS;
const BIND: u32 = ALL | IBV_ACCESS_MW_BIND;

/// A part of an end's buffer, with rights.
fn part(end: &End, at: usize, len: u64, access: u32) -> ibv_mw_bind_info {
    ibv_mw_bind_info { mr: end.mr, addr: end.at(at), length: len, mw_access_flags: access }
}

/// # Safety
///
/// The domain of the rig is alive; the window is destroyed once.
unsafe fn alloc(rig: &Rig, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller's.
    let mw = unsafe { ibv_alloc_mw(rig.pd, kind) };
    assert!(!mw.is_null(), "{}", std::io::Error::last_os_error());
    mw
}

/// Posts the binding of a window of type 2 under a new key.
fn bind(end: &End, mw: *mut ibv_mw, rkey: u32, info: ibv_mw_bind_info) {
    // SAFETY: the queue pair and the window are alive; all-zero is a valid request.
    unsafe {
        let mut wr: ibv_send_wr = std::mem::zeroed();
        (wr.wr_id, wr.opcode, wr.send_flags) = (50, IBV_WR_BIND_MW, IBV_SEND_SIGNALED);
        wr.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey, bind_info: info };
        let mut bad = std::ptr::null_mut();
        assert_eq!(ibv_post_send(end.qp, &mut wr, &mut bad), 0);
    }
}

/// Writes 8 bytes through a key; the status.
fn write(rig: &mut Rig, a: &End, remote: (u64, u32)) -> ibv_wc_status {
    let mut send = a.request(1, IBV_WR_RDMA_WRITE, 0, 8, a, 0);
    send.remote = remote;
    a.post(&send);
    rig.wait(a.cq).status
}

/// A window of type 2 on 16 bytes of `b`, from byte 64 on, through which `a` has written, and its key.
///
/// # Safety
///
/// As [`alloc`].
unsafe fn bound(rig: &mut Rig, a: &End, b: &End) -> (*mut ibv_mw, u32) {
    // SAFETY: the caller's; the window is alive.
    let (mw, key) = unsafe {
        let mw = alloc(rig, IBV_MW_TYPE_2);
        (mw, ibv_inc_rkey((*mw).rkey))
    };
    bind(b, mw, key, part(b, 64, 16, IBV_ACCESS_REMOTE_WRITE));
    rig.expect(b.cq, 50, OK);
    assert_eq!(write(rig, a, (b.at(64), key)), OK);
    (mw, key)
}

#[test]
fn a_window_of_type_1_is_bound_by_its_own_call_and_anew() {
    both(|rig| {
        let (a, b) = rig.pair(Shape { region_access: BIND, ..Shape::default() });
        // SAFETY: what is made is destroyed once; all-zero requests are valid.
        unsafe {
            let mw = alloc(rig, IBV_MW_TYPE_1);
            let ask = |info| {
                let mut request: ibv_mw_bind = std::mem::zeroed();
                (request.wr_id, request.send_flags, request.bind_info) = (50, IBV_SEND_SIGNALED, info);
                assert_eq!(ibv_bind_mw(b.qp, mw, &mut request), 0);
            };
            ask(part(&b, 64, 16, IBV_ACCESS_REMOTE_WRITE));
            assert_eq!(rig.expect(b.cq, 50, OK).opcode, IBV_WC_BIND_MW);
            let first = (*mw).rkey;
            a.memory.put(0, &[9; 8]);
            assert_eq!(write(rig, &a, (b.at(72), first)), OK);
            assert_eq!(b.memory.get(72, 8), [9; 8]);
            ask(part(&b, 128, 16, IBV_ACCESS_REMOTE_WRITE));
            rig.expect(b.cq, 50, OK);
            assert_ne!((*mw).rkey, first);
            assert_eq!(write(rig, &a, (b.at(128), (*mw).rkey)), OK);
            assert_eq!(rig.v().ibv_dereg_mr(b.mr), libc::EBUSY, "a window is bound to it");
            for (what, access) in [(IBV_REREG_MR_CHANGE_TRANSLATION, 0), (IBV_REREG_MR_CHANGE_ACCESS, LOCAL)]
            {
                let (addr, len) = (b.at(0) as *mut _, LEN);
                let changed = rig.v().ibv_rereg_mr(b.mr, what as i32, rig.pd, addr, len, access as i32);
                assert_ne!(changed, 0, "what the window reaches would no longer be registered");
            }
            assert_eq!(write(rig, &a, (b.at(72), first)), IBV_WC_REM_ACCESS_ERR, "the old key is dead");
            assert_eq!(ibv_dealloc_mw(mw), 0);
        }
    });
}

#[test]
fn a_window_of_type_2_is_bound_once_and_taken_back_by_a_send() {
    both(|rig| {
        let (a, b) = rig.pair(Shape { region_access: BIND, ..Shape::default() });
        // SAFETY: what is made is destroyed once.
        unsafe {
            let (mw, key) = bound(rig, &a, &b);
            b.recv(70, &[(1000, 8)]);
            let mut send = a.request(2, IBV_WR_SEND_WITH_INV, 0, 8, &b, 0);
            send.imm = key.to_be();
            a.post(&send);
            rig.expect(a.cq, 2, OK);
            let wc = rig.expect(b.cq, 70, OK);
            assert_ne!(wc.wc_flags & IBV_WC_WITH_INV, 0);
            assert_eq!(wc.__bindgen_anon_1.invalidated_rkey, key);
            assert_eq!(write(rig, &a, (b.at(64), key)), IBV_WC_REM_ACCESS_ERR);
            assert_eq!(ibv_dealloc_mw(mw), 0);
        }
    });
}

#[test]
fn a_window_of_type_2_goes_with_its_queue_pair() {
    both(|rig| {
        let shape = Shape { region_access: BIND, ..Shape::default() };
        let (a, mut b) = rig.pair(shape);
        let (other, same_number) = (rig.end(shape), |end: &End| end.qpn() & 0xffff);
        // SAFETY: what is made is destroyed once.
        unsafe {
            let (mw, key) = bound(rig, &a, &b);
            assert_eq!(rig.v().ibv_dereg_mr(b.mr), libc::EBUSY, "a window is bound to it");
            let gone = same_number(&b);
            b.destroy_qp();
            // The next one gets the number, and not the window.
            let next = rig.end(shape);
            assert_eq!(same_number(&next), gone);
            rig.connect(&other, &next, shape);
            assert_eq!(write(rig, &other, (b.at(64), key)), IBV_WC_REM_ACCESS_ERR);
            let mr = std::mem::replace(&mut b.mr, std::ptr::null_mut());
            assert_eq!(rig.v().ibv_dereg_mr(mr), 0, "nothing is bound to the region any more");
            assert_eq!(ibv_dealloc_mw(mw), 0);
        }
    });
}

#[test]
fn bindings_that_can_not_be_are_errors_of_the_binder() {
    both(|rig| {
        type Spoil = fn(&End, &End) -> ibv_mw_bind_info;
        let cases: [(u32, Spoil); 4] = [
            (ALL, |b, _| part(b, 0, 16, IBV_ACCESS_REMOTE_WRITE)),
            (BIND, |b, _| part(b, LEN - 8, 16, IBV_ACCESS_REMOTE_WRITE)),
            (BIND & !IBV_ACCESS_REMOTE_ATOMIC & !LOCAL & !IBV_ACCESS_REMOTE_WRITE, |b, _| {
                part(b, 0, 16, IBV_ACCESS_REMOTE_WRITE)
            }),
            (BIND, |b, _| ibv_mw_bind_info { addr: 8, ..part(b, 0, 16, IBV_ACCESS_REMOTE_READ) }),
        ];
        for (region_access, spoil) in cases {
            let (a, b) = rig.pair(Shape { region_access, ..Shape::default() });
            // SAFETY: what is made is destroyed once.
            unsafe {
                let mw = alloc(rig, IBV_MW_TYPE_2);
                bind(&b, mw, ibv_inc_rkey((*mw).rkey), spoil(&b, &a));
                rig.expect(b.cq, 50, IBV_WC_MW_BIND_ERR);
                assert_eq!(ibv_dealloc_mw(mw), 0);
            }
        }
    });
}
