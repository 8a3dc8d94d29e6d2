//! The bytes of the receive ring: those that libmlx5 writes for the same receives, but for the keys.

use super::*;

fn dv_of(qp: &Qp) -> sys::mlx5dv_qp {
    let (mut dv, mut obj) = (sys::mlx5dv_qp::default(), sys::mlx5dv_obj::default());
    (obj.qp.in_, obj.qp.out) = (qp.as_ptr(), &mut dv);
    // SAFETY: a live queue pair and a writable struct.
    let code = unsafe { sys::mlx5dv().unwrap().mlx5dv_init_obj(&mut obj, u64::from(sys::MLX5DV_OBJ_QP)) };
    assert_eq!(code, 0);
    dv
}

/// The first `segments` of receive `n`, with the keys of its `ranges` blanked; the one that ends the list is not.
fn wqe(dv: &sys::mlx5dv_qp, n: u32, segments: u32, ranges: u32) -> Vec<[u8; 16]> {
    let at = (n % dv.rq.wqe_cnt * dv.rq.stride) as usize;
    let blank = |i: u32, mut segment: [u8; 16]| {
        if i < ranges {
            segment[4..8].fill(0);
        }
        segment
    };
    // SAFETY: inside the ring; nothing runs beside this.
    let segment =
        |i: u32| unsafe { dv.rq.buf.byte_add(at + i as usize * 16).cast::<[u8; 16]>().read_volatile() };
    (0..segments).map(|i| blank(i, segment(i))).collect()
}

#[test]
fn the_receive_ring_is_libmlx5s() {
    let _nic = nic();
    let domain = seed_domain();
    let mut ours = Ours::new(&domain);
    let twin = Twin::new(&ours);
    let theirs = dv_of(&twin.qp);
    for n in 0..DEPTH {
        let ranges = [(n as u16 * 8, 8 + n as u16), (1000, 24)];
        let (used, stride) = (n as usize % 3, ours.ring().rq.stride);
        assert_eq!(stride, theirs.rq.stride);
        let views = ranges.map(|r| view(&ours.region, r));
        ours.qp.post_recv(&views[..used]).unwrap();
        let mut sges = ranges.map(|r| twin.range(r));
        let (sg_list, num_sge) = (sges.as_mut_ptr(), used as i32);
        let mut wr = sys::ibv_recv_wr { wr_id: 0, next: ptr::null_mut(), sg_list, num_sge };
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair; the request and its ranges live through the call.
        assert_eq!(unsafe { sys::ibv_post_recv(twin.qp.as_ptr(), &mut wr, &mut bad) }, 0);
        // What is behind the end of a short list is nobody's.
        let (ranges, all) = (used as u32, (used as u32 + 1).min(stride / 16));
        assert_eq!(wqe(ours.ring(), n, all, ranges), wqe(&theirs, n, all, ranges), "receive {n}");
    }
}
