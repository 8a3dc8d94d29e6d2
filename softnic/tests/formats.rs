//! Completion entries that carry data, and compressed ones: made if asked for, or on order, and never else.

mod rig;

use ibv_sys::*;
use rig::raw::Raw;
use rig::*;
use softnic::Config;
use softnic::description::CqeFormat;

const OK: ibv_wc_status = IBV_WC_SUCCESS;

fn config(format: CqeFormat) -> Config {
    let mut config = Config::steps(1);
    config.description.devices[0].cqe = format;
    config
}

/// Sends `len` bytes; answers what is in the receive's buffer before and after the completion is polled.
fn send(rig: &mut Rig, a: &End, b: &End, len: u32) -> (Vec<u8>, Vec<u8>) {
    a.memory.put(0, &[9; 64]);
    b.memory.put(0, &[0; 64]);
    b.recv(70, &[(0, 20), (20, 44)]);
    a.post(&a.request(1, IBV_WR_SEND, 0, len, b, 0));
    rig.expect(a.cq, 1, OK);
    rig.fill(b.cq, 1);
    let before = b.memory.get(0, len as usize);
    assert_eq!(rig.expect(b.cq, 70, OK).byte_len, len);
    (before, b.memory.get(0, len as usize))
}

#[test]
fn small_messages_come_in_the_entry_if_they_may_and_libmlx5_takes_them_out() {
    for (format, len, in_entry) in [
        (CqeFormat::Plain, 32, false),
        (CqeFormat::Inline, 1, true),
        (CqeFormat::Inline, 32, true),
        (CqeFormat::Inline, 33, false),
        (CqeFormat::InlineAlways, 32, true),
    ] {
        with(config(format), |rig| {
            let (a, b) = rig.pair(Shape::default());
            let (before, after) = send(rig, &a, &b, len);
            let expected = if in_entry { 0 } else { 9 };
            assert_eq!(before, vec![expected; len as usize], "{format:?} {len}");
            assert_eq!(after, vec![9; len as usize], "{format:?} {len}");
        });
    }
}

#[test]
fn shared_receives_are_filled_from_entries_too() {
    with(config(CqeFormat::Inline), |rig| {
        let srq = rig.srq(8, 1);
        let (a, b) = (rig.end(Shape::default()), rig.end(Shape { srq, ..Shape::default() }));
        rig.connect(&a, &b, Shape::default());
        assert_eq!(recv_shared(srq, 70, (b.at(8), 24, b.lkey())), 0);
        a.memory.put(0, &[9; 24]);
        a.post(&a.request(1, IBV_WR_SEND, 0, 24, &b, 0));
        rig.expect(a.cq, 1, OK);
        rig.expect(b.cq, 70, OK);
        assert_eq!(b.memory.get(8, 24), [9; 24]);
        drop((a, b));
        assert_eq!(rig.destroy_srq(srq), 0);
    });
}

#[test]
fn results_of_reads_and_atomics_come_in_the_entry_only_on_order() {
    for (format, in_entry) in [(CqeFormat::Inline, false), (CqeFormat::InlineAlways, true)] {
        with(config(format), |rig| {
            let (a, b) = rig.pair(Shape::default());
            b.memory.put(0, &7u64.to_ne_bytes());
            for (id, opcode) in [(1, IBV_WR_RDMA_READ), (2, IBV_WR_ATOMIC_FETCH_AND_ADD)] {
                a.memory.put(0, &[0; 8]);
                a.post(&a.request(id, opcode, 0, 8, &b, 0));
                rig.fill(a.cq, 1);
                assert_eq!(a.memory.get(0, 8) == [0; 8], in_entry, "{format:?} {id}");
                rig.expect(a.cq, id, OK);
                assert_eq!(a.memory.get(0, 8), 7u64.to_ne_bytes());
            }
        });
    }
}

#[test]
fn entries_say_what_they_are() {
    for (format, bits) in [(CqeFormat::Plain, 0), (CqeFormat::InlineAlways, 4), (CqeFormat::Compressed, 12)] {
        let Some(mut rig) = Rig::start(config(format)) else { return };
        let (a, b) = rig.pair(Shape::default());
        let mut raw = Raw::of(&b);
        b.recv(70, &[(0, 8)]);
        a.post(&a.request(1, IBV_WR_SEND, 0, 8, &b, 0));
        let entry = rig.until("an entry", |_| raw.take());
        assert_eq!((entry[63] >> 4, entry[63] & 12), (2, bits), "{format:?}");
        let count = u32::from_be_bytes([entry[44], entry[45], entry[46], entry[47]]);
        assert_eq!(count, if bits == 12 { 1 } else { 8 }, "bytes, or entries of the block");
    }
}
