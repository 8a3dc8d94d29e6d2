//! The inline functions that compute: the same bytes and numbers as C, over many arguments.

use std::ffi::{c_int, c_void};
use std::mem::transmute;

use ibv_sys::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::with_c;

/// The names that this file compares, for the coverage test.
pub const COMPARED: [&str; 19] = [
    "ibv_inc_rkey",
    "ibv_is_qpt_supported",
    "ibv_flow_label_to_udp_sport",
    "mlx5dv_get_cqe_owner",
    "mlx5dv_set_cqe_owner",
    "mlx5dv_get_cqe_se",
    "mlx5dv_get_cqe_format",
    "mlx5dv_get_cqe_opcode",
    "mlx5dv_set_ctrl_seg",
    "mlx5dv_x86_set_ctrl_seg",
    "mlx5dv_set_dgram_seg",
    "mlx5dv_set_data_seg",
    "mlx5dv_x86_set_data_seg",
    "mlx5dv_set_eth_seg",
    "mlx5dv_ts_to_ns",
    "_devx_set",
    "_devx_get",
    "_devx_set64",
    "_devx_get64",
];

/// Runs a property over random values of a strategy, and fails with the least value that breaks it.
fn check<S: Strategy>(strategy: S, property: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config).run(&strategy, property).unwrap();
}

fn bytes<T: Copy>(value: &T) -> Vec<u8> {
    // SAFETY: the WQE segments have no padding.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) }.to_vec()
}

/// Looks a C function up with its type; a function that the headers lack ends the comparison.
macro_rules! c_function {
    ($c:expr, $name:literal, $ty:ty) => {{
        assert!(COMPARED.contains(&$name), "{} is not in COMPARED", $name);
        match $c.function($name) {
            // SAFETY: the function's own type.
            Some(function) => unsafe { transmute::<*mut c_void, $ty>(function) },
            None => return println!("{} is not in these headers", $name),
        }
    }};
}

#[test]
fn numbers_are_those_of_c() {
    with_c(|_, _, c| {
        let inc = c_function!(c, "ibv_inc_rkey", unsafe extern "C" fn(u32) -> u32);
        let sport = c_function!(c, "ibv_flow_label_to_udp_sport", unsafe extern "C" fn(u32) -> u16);
        let supported =
            c_function!(c, "ibv_is_qpt_supported", unsafe extern "C" fn(u32, ibv_qp_type) -> c_int);
        check((any::<u32>(), 0u32..32), |(number, bit)| {
            // SAFETY: pure functions of integers.
            unsafe {
                prop_assert_eq!(ibv_inc_rkey(number), inc(number));
                prop_assert_eq!(ibv_flow_label_to_udp_sport(number), sport(number));
                let qpt = ibv_qp_type(bit);
                prop_assert_eq!(c_int::from(ibv_is_qpt_supported(number, qpt)), supported(number, qpt));
            }
            Ok(())
        });
        assert!(!ibv_is_qpt_supported(u32::MAX, IBV_QPT_DRIVER), "C shifts by more than the width");
    });
}

#[test]
fn control_segments_are_those_of_c() {
    type Set = unsafe extern "C" fn(*mut mlx5_wqe_ctrl_seg, u16, u8, u8, u32, u8, u8, u8, u32);
    with_c(|_, _, c| {
        let set = c_function!(c, "mlx5dv_set_ctrl_seg", Set);
        let sse = c.function("mlx5dv_x86_set_ctrl_seg");
        let arguments = any::<(u16, u8, u8, u32, u8, u8, u8, u32)>();
        check(arguments, |(pi, opcode, opmod, qpn, fm_ce_se, ds, signature, imm)| {
            let (mut ours, mut theirs) = (mlx5_wqe_ctrl_seg::default(), mlx5_wqe_ctrl_seg::default());
            mlx5dv_set_ctrl_seg(&mut ours, pi, opcode, opmod, qpn, fm_ce_se, ds, signature, imm);
            // SAFETY: the segment is valid.
            unsafe { set(&mut theirs, pi, opcode, opmod, qpn, fm_ce_se, ds, signature, imm) };
            prop_assert_eq!(bytes(&ours), bytes(&theirs));
            if let Some(sse) = sse {
                let mut theirs = Aligned::<mlx5_wqe_ctrl_seg>::default();
                // SAFETY: as above, with the alignment that a 16-byte store needs.
                unsafe {
                    transmute::<*mut c_void, Set>(sse)(
                        &mut theirs.0,
                        pi,
                        opcode,
                        opmod,
                        qpn,
                        fm_ce_se,
                        ds,
                        signature,
                        imm,
                    )
                };
                prop_assert_eq!(bytes(&ours), bytes(&theirs.0));
            }
            Ok(())
        });
    });
}

/// What the SSE setters store 16 bytes to at once.
#[derive(Default)]
#[repr(C, align(16))]
struct Aligned<T>(T);

#[test]
fn data_segments_are_those_of_c() {
    type Set = unsafe extern "C" fn(*mut mlx5_wqe_data_seg, u32, u32, usize);
    with_c(|_, _, c| {
        let set = c_function!(c, "mlx5dv_set_data_seg", Set);
        // SAFETY: the function's own type.
        let sse =
            c.function("mlx5dv_x86_set_data_seg").map(|sse| unsafe { transmute::<*mut c_void, Set>(sse) });
        check(any::<(u32, u32, usize)>(), |(length, lkey, address)| {
            let mut ours = mlx5_wqe_data_seg::default();
            mlx5dv_set_data_seg(&mut ours, length, lkey, address);
            for set in [Some(set), sse].into_iter().flatten() {
                let mut theirs = Aligned::<mlx5_wqe_data_seg>::default();
                // SAFETY: the segment is valid and aligned for a 16-byte store.
                unsafe { set(&mut theirs.0, length, lkey, address) };
                prop_assert_eq!(bytes(&ours), bytes(&theirs.0));
            }
            Ok(())
        });
    });
}

#[test]
fn datagram_segments_are_those_of_c() {
    type Set = unsafe extern "C" fn(
        *mut mlx5_wqe_datagram_seg,
        u64,
        u32,
        u8,
        u8,
        u8,
        u16,
        *const u8,
        u8,
        u8,
        u32,
        *const u8,
    );
    with_c(|_, _, c| {
        let set = c_function!(c, "mlx5dv_set_dgram_seg", Set);
        let arguments = (any::<(u64, u32, u8, u8, u8, u16)>(), any::<([u8; 6], u8, u8, u32, [u8; 16])>());
        check(arguments, |((key, dqp, ext, rate, mlid, rlid), (rmac, tclass, hops, fl, rgid))| {
            let (mut ours, mut theirs) = (mlx5_wqe_datagram_seg::default(), mlx5_wqe_datagram_seg::default());
            mlx5dv_set_dgram_seg(&mut ours, key, dqp, ext, rate, mlid, rlid, &rmac, tclass, hops, fl, &rgid);
            // SAFETY: segment and arrays are valid.
            unsafe {
                set(
                    &mut theirs,
                    key,
                    dqp,
                    ext,
                    rate,
                    mlid,
                    rlid,
                    rmac.as_ptr(),
                    tclass,
                    hops,
                    fl,
                    rgid.as_ptr(),
                );
            }
            prop_assert_eq!(bytes(&ours), bytes(&theirs));
            Ok(())
        });
    });
}

#[test]
fn ethernet_segments_are_those_of_c_and_never_overrun() {
    type Set = unsafe extern "C" fn(*mut mlx5_wqe_eth_seg, u8, u16, u16, *const u8);
    with_c(|_, _, c| {
        let set = c_function!(c, "mlx5dv_set_eth_seg", Set);
        check((any::<(u8, u16)>(), prop::collection::vec(any::<u8>(), 0..=18)), |((flags, mss), header)| {
            let (mut ours, mut theirs) = (mlx5_wqe_eth_seg::default(), mlx5_wqe_eth_seg::default());
            prop_assert!(mlx5dv_set_eth_seg(&mut ours, flags, mss, &header));
            // SAFETY: the header fits behind the segment's start.
            unsafe { set(&mut theirs, flags, mss, header.len() as u16, header.as_ptr()) };
            prop_assert_eq!(bytes(&ours), bytes(&theirs));
            Ok(())
        });
    });
    let mut untouched = mlx5_wqe_eth_seg::default();
    assert!(!mlx5dv_set_eth_seg(&mut untouched, 1, 2, &[0xff; 19]));
    assert_eq!(bytes(&untouched), bytes(&mlx5_wqe_eth_seg::default()));
}

#[test]
fn completion_entry_bits_are_those_of_c() {
    type Get = unsafe extern "C" fn(*mut mlx5_cqe64) -> u8;
    with_c(|_, _, c| {
        let owner = c_function!(c, "mlx5dv_get_cqe_owner", Get);
        let solicited = c_function!(c, "mlx5dv_get_cqe_se", Get);
        let format = c_function!(c, "mlx5dv_get_cqe_format", Get);
        let opcode = c_function!(c, "mlx5dv_get_cqe_opcode", Get);
        let set_owner = c_function!(c, "mlx5dv_set_cqe_owner", unsafe extern "C" fn(*mut mlx5_cqe64, u8));
        for op_own in 0..=u8::MAX {
            let mut cqe = mlx5_cqe64 { op_own, ..Default::default() };
            // SAFETY: the entry is valid.
            unsafe {
                assert_eq!(mlx5dv_get_cqe_owner(&cqe), owner(&mut cqe));
                assert_eq!(mlx5dv_get_cqe_se(&cqe), solicited(&mut cqe));
                assert_eq!(mlx5dv_get_cqe_format(&cqe), format(&mut cqe));
                assert_eq!(mlx5dv_get_cqe_opcode(&cqe), opcode(&mut cqe));
                for value in [0, 1, 2, 0xff] {
                    let (mut ours, mut theirs) = (cqe, cqe);
                    mlx5dv_set_cqe_owner(&mut ours, value);
                    set_owner(&mut theirs, value);
                    assert_eq!(ours.op_own, theirs.op_own);
                }
            }
        }
    });
}

#[test]
fn the_clock_is_that_of_c() {
    with_c(|_, _, c| {
        let to_ns =
            c_function!(c, "mlx5dv_ts_to_ns", unsafe extern "C" fn(*mut mlx5dv_clock_info, u64) -> u64);
        let arguments = (any::<(u64, u64, u64, u32)>(), 0u32..64, 1u32..=64, any::<u64>());
        check(arguments, |((nsec, last_cycles, frac, mult), shift, bits, timestamp)| {
            let mask = u64::MAX >> (64 - bits);
            let mut clock = mlx5dv_clock_info { nsec, last_cycles, frac, mult, shift, mask };
            // SAFETY: the clock information is valid.
            prop_assert_eq!(mlx5dv_ts_to_ns(&clock, timestamp), unsafe { to_ns(&mut clock, timestamp) });
            Ok(())
        });
    });
}

#[test]
fn devx_fields_are_those_of_c() {
    with_c(|_, _, c| {
        let set = c_function!(c, "_devx_set", unsafe extern "C" fn(*mut c_void, u32, usize, usize));
        let get = c_function!(c, "_devx_get", unsafe extern "C" fn(*const c_void, usize, usize) -> u32);
        let set64 = c_function!(c, "_devx_set64", unsafe extern "C" fn(*mut c_void, u64, usize));
        let get64 = c_function!(c, "_devx_get64", unsafe extern "C" fn(*const c_void, usize) -> u64);
        check(
            (any::<[u64; 4]>(), any::<u64>(), 0usize..8, 0usize..32, 1usize..=32),
            |(start, value, word, bit, size)| {
                let bit_off = word * 32 + bit.min(32 - size);
                let (mut ours, mut theirs) = (start, start);
                // SAFETY: field and word lie within the 32 aligned bytes.
                unsafe {
                    _devx_set(ours.as_mut_ptr().cast(), value as u32, bit_off, size);
                    set(theirs.as_mut_ptr().cast(), value as u32, bit_off, size);
                    prop_assert_eq!(ours, theirs);
                    let (ours, theirs) = (ours.as_mut_ptr().cast(), theirs.as_mut_ptr().cast());
                    prop_assert_eq!(_devx_get(ours, bit_off, size), get(theirs, bit_off, size));
                    _devx_set64(ours, value, word / 2 * 64);
                    set64(theirs, value, word / 2 * 64);
                    prop_assert_eq!(_devx_get64(ours, word / 2 * 64), get64(theirs, word / 2 * 64));
                }
                prop_assert_eq!(ours, theirs);
                Ok(())
            },
        );
    });
}
