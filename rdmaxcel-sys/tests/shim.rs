//! The shim by itself, over rings in ordinary memory: what it refuses, what it counts, what it reads.

use rdmaxcel_sys::*;
use std::{ffi::CStr, ptr};

/// Rings in ordinary memory, and the block that describes them.
struct Rings {
    sq: Vec<u64>,
    cq: Vec<u64>,
    dbrec: Box<[u32; 2]>,
    bf: Vec<u64>,
}

impl Rings {
    fn new(blocks: usize, entries: usize, words: usize) -> Self {
        let cq = vec![0xf0u64 << 56; entries * words];
        Self { sq: vec![0; blocks * 8], cq, dbrec: Box::default(), bf: vec![0; 8] }
    }

    fn describe(&mut self, words: usize) -> rdmaxcel_qp {
        let none = ptr::null_mut();
        let (dbrec, wqe_cnt) = (self.dbrec.as_mut_ptr(), self.sq.len() as u32 / 8);
        let bf_reg = self.bf.as_mut_ptr().cast();
        let sq = rdmaxcel_send_ring {
            buf: self.sq.as_mut_ptr(),
            dbrec,
            bf_reg,
            wqe_cnt,
            bf_size: 32,
            bf_offset: 0,
            qp_num: 0x1234,
        };
        let cqe_cnt = (self.cq.len() / words) as u32;
        let cq = rdmaxcel_cq_ring { buf: self.cq.as_mut_ptr(), dbrec, cqe_cnt, cqe_size: words as u32 * 8 };
        rdmaxcel_qp {
            ibv_qp: none,
            send_cq: none,
            recv_cq: none,
            sq,
            rq: rdmaxcel_recv_ring { buf: ptr::null_mut(), wqe_cnt: 0, stride: 0 },
            send_ring: cq,
            recv_ring: cq,
            send_wqe_idx: 7.into(),
            send_db_idx: 7.into(),
            send_cq_idx: 7.into(),
            recv_wqe_idx: 7.into(),
            recv_db_idx: 7.into(),
            recv_cq_idx: 7.into(),
            send_last_idx: 7.into(),
            send_done_idx: 7.into(),
            rts_timestamp: 7.into(),
            send_cache: ptr::null_mut(),
            recv_cache: ptr::null_mut(),
        }
    }
}

fn write(sges: &[rdmaxcel_sge]) -> rdmaxcel_wr {
    rdmaxcel_wr {
        raddr: 64,
        operand: 0,
        compare: 0,
        sges: sges.as_ptr(),
        inline_data: ptr::null(),
        rkey: 5,
        imm: 0,
        num_sge: sges.len() as u32,
        inline_len: 0,
        opcode: 8,
        flags: RDMAXCEL_SIGNALED,
        reserved: [0; 6],
    }
}

fn with_qp(blocks: usize, entries: usize, words: usize, test: impl FnOnce(&mut Rings, *mut rdmaxcel_qp)) {
    let mut rings = Rings::new(blocks, entries, words);
    let from = rings.describe(words);
    // SAFETY: the rings outlive the block, which is destroyed once.
    unsafe {
        let qp = rdmaxcel_qp_create(&from);
        assert!(!qp.is_null());
        test(&mut rings, qp);
        rdmaxcel_qp_destroy(qp);
    }
}

#[test]
fn a_new_block_counts_from_zero_and_has_not_reached_rts() {
    // SAFETY: the block lives through the test.
    with_qp(4, 4, 8, |_, qp| unsafe {
        assert_eq!(rdmaxcel_qp_load_rts_timestamp(qp), u64::MAX);
        assert_eq!(rdmaxcel_qp_fetch_add_send_wqe_idx(qp), 0);
        assert_eq!(rdmaxcel_qp_load_send_wqe_idx(qp), 1);
        assert_eq!([rdmaxcel_qp_load_send_db_idx(qp), rdmaxcel_qp_load_recv_wqe_idx(qp)], [0, 0]);
        rdmaxcel_qp_reached_rts(qp);
        let first = rdmaxcel_qp_load_rts_timestamp(qp);
        rdmaxcel_qp_reached_rts(qp);
        assert!(first < u64::MAX && rdmaxcel_qp_load_rts_timestamp(qp) >= first);
        assert_eq!(rdmaxcel_qp_load_rts_timestamp(ptr::null()), u64::MAX);
        assert_eq!(rdmaxcel_qp_load_send_wqe_idx(ptr::null()), 0);
    });
}

#[test]
fn rings_that_can_not_be_are_refused() {
    type Damage = fn(&mut rdmaxcel_qp);
    let damages: [Damage; 6] = [
        |q| q.sq.wqe_cnt = 3,
        |q| q.sq.buf = ptr::null_mut(),
        |q| q.sq.bf_reg = ptr::null_mut(),
        |q| q.send_ring.cqe_size = 32,
        |q| q.recv_ring.cqe_cnt = 0,
        |q| (q.rq.wqe_cnt, q.rq.buf) = (4, ptr::null_mut()),
    ];
    for (i, damage) in damages.into_iter().enumerate() {
        let mut rings = Rings::new(4, 4, 8);
        let mut from = rings.describe(8);
        damage(&mut from);
        // SAFETY: the description is only read.
        assert!(unsafe { rdmaxcel_qp_create(&from) }.is_null(), "damage {i}");
    }
}

#[test]
fn lengths_are_validated_before_anything_is_written() {
    // SAFETY: the block lives through the test, as do the ranges.
    with_qp(4, 4, 8, |rings, qp| unsafe {
        let range = |length| rdmaxcel_sge { addr: 1, length, lkey: 2 };
        for bad in [[range(0)], [range(1 << 31)]] {
            assert_eq!(rdmaxcel_host_enqueue(qp, &write(&bad)), RDMAXCEL_INVALID);
        }
        let many = [range(1); 62];
        assert_eq!(rdmaxcel_host_enqueue(qp, &write(&many)), RDMAXCEL_INVALID);
        let long = [range(1); 20];
        assert_eq!(rdmaxcel_host_wqe_build(&(*qp).sq, 0, &write(&long)), RDMAXCEL_INVALID, "6 blocks of 4");
        let one = [range(8)];
        assert_eq!(
            rdmaxcel_host_enqueue(qp, &rdmaxcel_wr { opcode: 0x7f, ..write(&one) }),
            RDMAXCEL_UNSUPPORTED_OP
        );
        assert_eq!(
            rdmaxcel_host_enqueue(qp, &rdmaxcel_wr { opcode: 0x12, raddr: 4, ..write(&one) }),
            RDMAXCEL_INVALID
        );
        assert!(rings.sq.iter().all(|w| *w == 0) && rdmaxcel_qp_load_send_wqe_idx(qp) == 0);
    });
}

#[test]
fn a_full_ring_refuses_and_overwrites_nothing() {
    // SAFETY: as above.
    with_qp(4, 4, 8, |rings, qp| unsafe {
        let one = [rdmaxcel_sge { addr: 1, length: 8, lkey: 2 }];
        (0..4).for_each(|_| assert_eq!(rdmaxcel_host_enqueue(qp, &write(&one)), 1));
        let before = rings.sq.clone();
        assert_eq!(rdmaxcel_host_enqueue(qp, &write(&one)), RDMAXCEL_QUEUE_FULL);
        assert_eq!(rings.sq, before);
        assert_eq!(*rings.dbrec, [0, 0], "nothing is visible before the ring");
        rdmaxcel_host_ring_all(qp);
        rdmaxcel_host_ring_all(qp);
        assert_eq!(*rings.dbrec, [0, 4u32.to_be()]);
        assert_eq!(rings.bf, [rings.sq[24], 0, 0, 0, 0, 0, 0, 0], "the last WQE's control, once");
    });
}

/// The last 16 bytes of an entry.
fn entry(rings: &mut Rings, at: usize, words: usize, bytes: [u8; 16]) {
    let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|b| bytes[i * 8 + b]));
    let end = (at + 1) * words;
    (rings.cq[end - 2], rings.cq[end - 1]) = (word(0), word(1));
}

#[test]
fn a_poll_tells_empty_success_and_error_apart_and_keeps_the_error() {
    for words in [8, 16] {
        // SAFETY: as above.
        with_qp(4, 4, words, |rings, qp| unsafe {
            let (one, mut wc) = ([rdmaxcel_sge { addr: 1, length: 8, lkey: 2 }], rdmaxcel_wc::default());
            (0..3).for_each(|_| assert_eq!(rdmaxcel_host_enqueue(qp, &write(&one)), 1));
            assert_eq!(rdmaxcel_host_poll_send(qp, &mut wc), 0);
            entry(rings, 0, words, [0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0x12, 0x34, 0, 1, 0, 0]);
            assert_eq!(rdmaxcel_host_poll_send(qp, &mut wc), 1);
            assert_eq!((wc.qp_num, wc.wqe_counter, wc.send_opcode, wc.syndrome), (0x1234, 1, 8, 0));
            assert_eq!(
                (*qp).send_done_idx.load(std::sync::atomic::Ordering::Relaxed),
                2,
                "and what it retires"
            );
            entry(rings, 1, words, [0, 0, 0, 0, 0, 0, 0x88, 0x13, 8, 0, 0x12, 0x34, 0, 2, 0, 0xd0]);
            assert_eq!(rdmaxcel_host_poll_send(qp, &mut wc), RDMAXCEL_COMPLETION_FAILED);
            assert_eq!((wc.wqe_counter, wc.syndrome, wc.vendor_err), (2, 0x13, 0x88));
            assert_eq!(rings.dbrec[0], 2u32.to_be(), "both were taken");
            entry(rings, 2, words, [0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0x12, 0x34, 0, 3, 0, 0x0c]);
            assert_eq!(rdmaxcel_host_poll_send(qp, &mut wc), RDMAXCEL_CQ_POLL_FAILED, "a compressed entry");
            assert_eq!(rdmaxcel_qp_load_send_cq_idx(qp), 2);
        });
    }
}

#[test]
fn receives_have_slots_and_short_ones_an_end() {
    let (mut memory, range) = (vec![!0u64; 2 * 4], [rdmaxcel_sge { addr: 3, length: 4, lkey: 5 }]);
    let rq = rdmaxcel_recv_ring { buf: memory.as_mut_ptr(), wqe_cnt: 2, stride: 32 };
    // SAFETY: the ring and the range live through the calls.
    unsafe {
        assert_eq!(rdmaxcel_host_recv_build(&rq, 1, range.as_ptr(), 1), 1);
        assert_eq!(rdmaxcel_host_recv_build(&rq, 2, ptr::null(), 0), 1);
        assert_eq!(rdmaxcel_host_recv_build(&rq, 3, range.as_ptr(), 3), RDMAXCEL_INVALID);
    }
    let be = u64::to_be;
    assert_eq!(memory[4..], [be(4 << 32 | 5), be(3), be(0x100), 0]);
    assert_eq!(memory[..2], [be(0x100), 0]);
}

#[test]
fn a_cache_matches_request_and_queue_pair_and_drops_nothing() {
    // SAFETY: as above.
    with_qp(4, 4, 8, |_, qp| unsafe {
        let cache = rdmaxcel_qp_get_send_cache(qp);
        let wc = |qp_num| rdmaxcel_wc { qp_num, ..rdmaxcel_wc::default() };
        (0..128).for_each(|i| assert_eq!(rdmaxcel_cache_put(cache, i, &wc(i as u32 % 2)), 0));
        assert_eq!(rdmaxcel_cache_put(cache, 128, &wc(0)), RDMAXCEL_QUEUE_FULL);
        let mut out = wc(9);
        assert_eq!(rdmaxcel_cache_take(cache, 5, 0, &mut out), 0, "another queue pair's");
        assert_eq!((rdmaxcel_cache_take(cache, 5, 1, &mut out), out.qp_num), (1, 1));
        assert_eq!(rdmaxcel_cache_take(cache, 5, 1, &mut out), 0, "once");
        assert_eq!(rdmaxcel_cache_take(cache, 127, 1, &mut out), 1);
        assert!(!rdmaxcel_qp_get_recv_cache(qp).is_null());
    });
}

#[test]
fn errors_have_words() {
    // SAFETY: the strings are static.
    let text = |e| unsafe { CStr::from_ptr(rdmaxcel_error_string(e)) }.to_str().unwrap();
    assert_eq!(text(RDMAXCEL_QUEUE_FULL), "[RdmaXcel] the queue is full");
    assert_eq!(text(77), "[RdmaXcel] unknown error");
}

/// On a GPU: a fence before the record, one before the register, one behind it.
#[cfg(feature = "cuda")]
#[test]
fn a_kernel_rings_with_a_fence_before_record_and_register() {
    let Some(ptx) = ptx() else {
        assert!(std::env::var_os("RDMAXCEL_REQUIRE").is_none(), "no PTX, though it is required");
        eprintln!("skipped: there was no nvcc when this was built; set NVCC");
        return;
    };
    let start = ptx.find(".entry rdmaxcel_cu_ring").expect("the kernel");
    let body = &ptx[start..start + ptx[start..].find("\n}").expect("its end")];
    let steps: Vec<&str> = body
        .lines()
        .filter_map(|line| match line.split_whitespace().next()? {
            "membar.sys;" => Some("fence"),
            store if store.starts_with("st.volatile") => Some(if store.ends_with("u32") { "4" } else { "8" }),
            _ => None,
        })
        .collect();
    let want = ["fence", "4", "fence", "8", "fence"];
    assert!(steps.windows(5).any(|five| five == want), "{steps:?}");
}
