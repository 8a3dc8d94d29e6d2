//! Completion entries of 128 bytes, which libmlx5 uses if its environment says so: a binary of its own, since the variable
//! counts for the whole process.

mod rig;

use ibv_sys::*;
use rig::*;

#[test]
fn entries_of_128_bytes_carry_completions_too() {
    // SAFETY: the only test of this binary, before any other thread.
    unsafe { std::env::set_var("MLX5_CQE_SIZE", "128") };
    both(|rig| {
        let (a, b) = rig.pair(Shape { cq_depth: 8, depth: 4, ..Shape::default() });
        assert_eq!(raw::Raw::of(&rig.end(Shape::default())).cq_entry, 128);
        for id in 0..100 {
            b.recv(id, &[(0, 8)]);
            a.post(&a.request(id, IBV_WR_SEND_WITH_IMM, 0, 8, &b, 0));
            rig.expect(b.cq, id, IBV_WC_SUCCESS);
            rig.expect(a.cq, id, IBV_WC_SUCCESS);
        }
    });
}
