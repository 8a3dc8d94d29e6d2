//! Polling, the channel, and asynchronous events.

use super::*;
use crate::{
    error::{PollCompletionError, WcOpcode, WcStatus},
    event::{EventObject, EventSource, EventType},
    provider::CompletionQueue,
    wc::IbvWc,
};
use ibv_sys::{IBV_WC_RDMA_READ, IBV_WC_WR_FLUSH_ERR, ibv_event_type, ibv_wc};
use std::os::fd::AsRawFd;

fn poller(channel: bool) -> CqPoller {
    CqPoller::new(Cq::create(&open(), 16, channel).unwrap())
}

#[test]
fn completions_land_in_the_callers_slice_field_by_field() {
    fake::reset();
    let mut poller = poller(false);
    fake::with(|f| {
        let good =
            ibv_wc { wr_id: 1, opcode: IBV_WC_RDMA_READ, byte_len: 9, qp_num: 0x77, ..ibv_wc::default() };
        let bad = ibv_wc { wr_id: 2, status: IBV_WC_WR_FLUSH_ERR, vendor_err: 0xf5, ..ibv_wc::default() };
        f.completions.extend([good, bad, good]);
    });
    let mut out = [IbvWc::default(); 2];
    assert_eq!(poller.poll(&mut out), Ok(2));
    assert_eq!(
        (out[0].wr_id, out[0].opcode, out[0].byte_len, out[0].qp_num),
        (1, WcOpcode::RDMA_READ, 9, 0x77)
    );
    assert_eq!((out[1].wr_id, out[1].status, out[1].vendor_err), (2, WcStatus::WR_FLUSH_ERR, 0xf5));
    assert_eq!((poller.poll(&mut out), poller.poll(&mut out), poller.poll(&mut [])), (Ok(1), Ok(0), Ok(0)));
}

#[test]
fn a_poll_that_fails_is_a_device_error_whatever_number_says_it() {
    for (code, errno) in [(1, libc::EIO), (libc::EINVAL, libc::EINVAL)] {
        fake::install(refusing("poll_cq", code));
        let polled = poller(false).poll(&mut [IbvWc::default()]);
        assert_eq!(polled, Err(PollCompletionError::Device(errno)));
    }
}

#[test]
fn events_are_taken_without_blocking_and_acknowledged_at_once() {
    fake::reset();
    let cq = Cq::create(&open(), 16, true).unwrap();
    let mut poller = CqPoller::new(cq.clone());
    assert_eq!(poller.take_events(), Ok(0));
    let fd = poller.channel().unwrap().as_raw_fd();
    for _ in 0..3 {
        fake::raise_cq_event(fd, cq.as_ptr());
    }
    assert_eq!((poller.take_events(), poller.take_events()), (Ok(3), Ok(0)));
    fake::with(|f| assert_eq!(f.acked_cq_events, 3));
    assert_eq!((poller.arm(false), poller.arm(true)), (Ok(()), Ok(())));
    fake::with(|f| assert_eq!(f.armed, [0, 1]));
}

#[test]
fn a_queue_without_a_channel_says_so() {
    fake::reset();
    let mut poller = poller(false);
    assert!(poller.channel().is_none());
    assert_eq!(poller.arm(false), Err(PollCompletionError::NoChannel));
    assert_eq!(poller.take_events(), Err(PollCompletionError::NoChannel));
}

#[test]
fn arming_can_fail() {
    fake::install(refusing("req_notify_cq", libc::ENOMEM));
    assert_eq!(poller(true).arm(false), Err(PollCompletionError::Device(libc::ENOMEM)));
}

#[test]
fn a_device_has_one_reader_of_events_at_a_time() {
    fake::reset();
    let context = open();
    let first = AsyncEvents::subscribe(&context).unwrap();
    assert_eq!(AsyncEvents::subscribe(&context).unwrap_err().kind(), ErrorKind::InUse);
    drop(first);
    AsyncEvents::subscribe(&context).unwrap();
}

#[test]
fn events_name_their_object_and_are_acknowledged_when_taken() {
    fake::reset();
    let context = open();
    let (pd, cq) = (Pd::alloc(&context).unwrap(), Cq::create(&context, 16, false).unwrap());
    let qp = queue_pair(&pd, &cq).unwrap();
    let mut events = AsyncEvents::subscribe(&context).unwrap();
    assert_eq!(events.next_event().unwrap(), None);
    let fd = events.as_fd().as_raw_fd();
    for (kind, element, object) in [
        (EventType::QP_FATAL, qp.as_ptr() as u64, EventObject::QueuePair(0x77)),
        (EventType::PORT_ERR, 1, EventObject::Port(1)),
        (EventType::GID_CHANGE, 2, EventObject::Port(2)),
        (EventType::CQ_ERR, cq.as_ptr() as u64, EventObject::CompletionQueue),
        (EventType::DEVICE_FATAL, 0, EventObject::Device),
        (EventType(99), 0, EventObject::Other),
    ] {
        fake::raise_async_event(fd, ibv_event_type(kind.0), element);
        let event = events.next_event().unwrap().unwrap();
        assert_eq!((event.kind, event.object), (kind, object));
    }
    assert_eq!(events.next_event().unwrap(), None);
    fake::with(|f| assert_eq!(f.acked_async_events, 6));
}
