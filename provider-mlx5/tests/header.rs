//! C code compiled against `rdmaxcel.h` alone posts and polls through the state block of the seeds' struct.
#![allow(unsafe_code)]

mod common;

use common::{domain, nic};
use ibv_core::{IbvConfig, IbvMemoryRegion};
use provider_mlx5::{IbvQueuePair, Mlx5Domain};
use rdmaxcel_sys as shim;
use std::{
    ffi::{CString, c_int, c_void},
    path::{Path, PathBuf},
    process::Command,
    ptr,
};

type Post = unsafe extern "C" fn(*mut shim::rdmaxcel_qp, *const shim::rdmaxcel_wr, u32) -> c_int;
type Poll = unsafe extern "C" fn(*mut shim::rdmaxcel_qp, *mut shim::rdmaxcel_wc) -> c_int;

/// `tests/c/post.c` as a library of this process.
fn compiled() -> (Post, Poll) {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("post-{}.so", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/post.c");
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", shim::INCLUDE]);
    assert!(cc.arg(source).arg("-o").arg(&out).status().unwrap().success());
    let path = CString::new(out.to_str().unwrap()).unwrap();
    // SAFETY: the library was just built, and has two functions of these types; it is never closed.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null());
        std::fs::remove_file(out).unwrap();
        let symbol = |name: &std::ffi::CStr| libc::dlsym(library, name.as_ptr());
        (
            std::mem::transmute::<*mut c_void, Post>(symbol(c"post")),
            std::mem::transmute::<*mut c_void, Poll>(symbol(c"poll")),
        )
    }
}

fn request(
    local: &shim::rdmaxcel_sge,
    remote: &IbvMemoryRegion<Mlx5Domain>,
    opcode: u8,
) -> shim::rdmaxcel_wr {
    shim::rdmaxcel_wr {
        raddr: remote.remote().addr,
        operand: 0,
        compare: 0,
        sges: local,
        inline_data: ptr::null(),
        rkey: remote.remote().rkey,
        imm: 0,
        num_sge: 1,
        inline_len: 0,
        opcode,
        flags: shim::RDMAXCEL_SIGNALED,
        reserved: [0; 6],
    }
}

#[test]
fn c_code_posts_and_polls_through_the_state_block() {
    let mut nic = nic();
    let d = domain();
    let (post, poll) = compiled();
    let mut config = IbvConfig::default();
    config.max_send_wr = 16;
    let mut qp = IbvQueuePair::new(&d, config).unwrap();
    let info = qp.get_qp_info().unwrap();
    qp.connect(&info).unwrap();
    let [from, to] = [1u8, 0].map(|fill| {
        let region = d.alloc(64).unwrap();
        region.write_at(0, &[fill; 64]).unwrap();
        region
    });
    let range = |r: &IbvMemoryRegion<Mlx5Domain>, length| shim::rdmaxcel_sge {
        addr: r.view().addr(),
        length,
        lkey: r.view().lkey(),
    };
    let (whole, half) = (range(&from, 64), range(&from, 32));
    let mut wc = shim::rdmaxcel_wc::default();
    // SAFETY: the struct lives, and nothing is posted or polled through it here; the requests live too.
    unsafe {
        let block = qp.as_ptr();
        assert_eq!(poll(block, &mut wc), 0);
        for round in 0..100u32 {
            from.write_at(0, &[round as u8; 64]).unwrap();
            assert_eq!(post(block, [request(&half, &to, 8), request(&whole, &to, 8)].as_ptr(), 2), 2);
            nic.run();
            for i in 0..2 {
                assert_eq!(poll(block, &mut wc), 1);
                assert_eq!((u32::from(wc.wqe_counter), wc.send_opcode), (round * 2 + i, 8));
            }
            assert_eq!(to.to_vec(), [round as u8; 64]);
        }
        assert_eq!(post(block, &request(&range(&from, 0), &to, 8), 1), shim::RDMAXCEL_INVALID);
        let many = [request(&half, &to, 0x10); 17];
        assert_eq!(post(block, many.as_ptr(), 17), shim::RDMAXCEL_QUEUE_FULL);
    }
    assert_eq!(nic.take_breaches(), []);
}

#[test]
fn an_error_keeps_its_syndrome() {
    let mut nic = nic();
    let d = domain();
    let (post, poll) = compiled();
    let mut both = [(); 2].map(|()| IbvQueuePair::new(&d, IbvConfig::default()).unwrap());
    let infos = both.each_mut().map(|qp| qp.get_qp_info().unwrap());
    both[0].connect(&infos[1]).unwrap();
    both[1].connect(&infos[0]).unwrap();
    let region = d.alloc(64).unwrap();
    let range = shim::rdmaxcel_sge { addr: region.view().addr(), length: 8, lkey: region.view().lkey() };
    let wrong = shim::rdmaxcel_wr { rkey: !0, ..request(&range, &region, 8) };
    let mut wc = shim::rdmaxcel_wc::default();
    // SAFETY: as above.
    unsafe {
        let block = both[0].as_ptr();
        assert_eq!(post(block, [wrong, request(&range, &region, 8)].as_ptr(), 2), 2);
        nic.run();
        assert_eq!(poll(block, &mut wc), shim::RDMAXCEL_COMPLETION_FAILED);
        assert_eq!((wc.wqe_counter, wc.syndrome), (0, 0x13), "remote access error");
        assert_eq!(poll(block, &mut wc), shim::RDMAXCEL_COMPLETION_FAILED);
        assert_eq!((wc.wqe_counter, wc.syndrome), (1, 0x05), "flushed");
    }
}
