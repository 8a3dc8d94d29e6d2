//! What a request becomes. Core alone makes `WorkRequest`s, so they come by way of a queue pair in the tests
//! beside the crate; here is the ring's own arithmetic.

use super::*;

fn ring(depth: u32, max_inline: u32) -> SendRing {
    SendRing::new(depth, max_inline, (7, 0x1000))
}

#[test]
fn a_ring_starts_and_ends_empty_and_aims_at_the_first_peer() {
    let mut ring = ring(4, 0);
    assert_eq!(ring.requests().map(<[_]>::len), Some(0));
    (ring.len, ring.aim) = (3, 5);
    assert_eq!(ring.requests().map(<[_]>::len), Some(3));
    ring.len = 5;
    assert!(ring.requests().is_none(), "more than it has room for");
    ring.clear();
    assert_eq!((ring.requests().map(<[_]>::len), ring.aim), (Some(0), 0));
}

#[test]
fn inline_bytes_stay_in_their_requests_own_place() {
    let mut ring = ring(3, 4);
    let start = ring.inline.as_ptr() as u64;
    for (i, data) in [&b"abcd"[..], b"", b"xy"].iter().enumerate() {
        assert_eq!(ring.copy(i, data), Some(start + 4 * i as u64));
    }
    assert_eq!(&ring.inline[..], b"abcd\0\0\0\0xy\0\0");
    assert_eq!(ring.copy(0, b"12345"), None, "more than a request has room for");
    assert_eq!(ring.copy(3, b"1"), None, "a request too many");
}

#[test]
fn a_built_request_is_a_cache_line_at_most() {
    assert!(size_of::<Built>() <= 64, "{}", size_of::<Built>());
}
