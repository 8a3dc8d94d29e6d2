//! What goes wrong on a reliable connection, and what each side is told: statuses, vendor errors, flushes, limits.

mod rig;

use ibv_sys::*;
use rig::raw::Raw;
use rig::*;
use softnic::Config;
use softnic::fault::Fault;

const OK: ibv_wc_status = IBV_WC_SUCCESS;
const FLUSHED: ibv_wc_status = IBV_WC_WR_FLUSH_ERR;

/// Posts a doomed request with two behind it, and a receive at both sides; checks what both queues say.
fn dooms(
    rig: &mut Rig,
    shape: Shape,
    status: ibv_wc_status,
    spoil: impl Fn(&mut Rig, &End, &End, &mut Send),
) {
    let (a, b) = rig.pair(shape);
    b.recv(70, &[(0, 64)]);
    a.recv(80, &[(0, 64)]);
    let mut send = a.request(1, IBV_WR_RDMA_WRITE, 0, 64, &b, 0);
    spoil(rig, &a, &b, &mut send);
    send.flags = 0;
    a.post(&send);
    let mut silent = a.request(2, IBV_WR_RDMA_WRITE, 0, 8, &b, 0);
    silent.flags = 0;
    a.post(&silent);
    a.post(&a.request(3, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
    let wc = rig.expect(a.cq, 1, status);
    assert_ne!(wc.vendor_err, 0);
    // Sends in order; the receive anywhere among them, for the device may have stopped before they were posted.
    let flushed: Vec<_> = (0..3).map(|_| rig.wait(a.cq)).collect();
    assert!(flushed.iter().all(|wc| wc.status == FLUSHED));
    let sends: Vec<u64> = flushed.iter().map(|wc| wc.wr_id).filter(|id| *id != 80).collect();
    assert_eq!(sends, [2, 3]);
    assert_eq!(a.state(), IBV_QPS_ERR);
    // What is posted to a dead queue pair is flushed too.
    a.post(&a.request(4, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
    rig.expect(a.cq, 4, FLUSHED);
}

#[test]
fn a_wrong_remote_key_ends_both_sides() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        b.recv(70, &[(0, 64)]);
        let mut send = a.request(1, IBV_WR_RDMA_WRITE, 0, 64, &b, 0);
        send.remote.1 ^= 0x7f;
        a.post(&send);
        rig.expect(a.cq, 1, IBV_WC_REM_ACCESS_ERR);
        rig.expect(b.cq, 70, FLUSHED);
        assert_eq!((a.state(), b.state()), (IBV_QPS_ERR, IBV_QPS_ERR));
    });
}

#[test]
fn remote_ranges_are_checked_to_the_byte() {
    both(|rig| {
        for (to, len) in [(LEN as u64 - 8, 9), (u64::MAX - 4, 8), (u64::MAX, 8)] {
            dooms(rig, Shape::default(), IBV_WC_REM_ACCESS_ERR, |_, _, b, send| {
                send.pieces[0].1 = len;
                send.remote.0 = if to < LEN as u64 { b.at(0) + to } else { to };
            });
        }
        let (a, b) = rig.pair(Shape::default());
        a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, LEN - 8));
        rig.expect(a.cq, 1, OK);
    });
}

#[test]
fn each_remote_access_needs_its_flag_of_region_and_queue_pair() {
    let operations = [
        (IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE),
        (IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC),
    ];
    both(|rig| {
        for (opcode, flag) in operations {
            let without = ALL & !flag;
            for shape in [
                Shape { region_access: without, ..Shape::default() },
                Shape { qp_access: without, ..Shape::default() },
            ] {
                dooms(rig, shape, IBV_WC_REM_ACCESS_ERR, |_, _, _, send| {
                    send.opcode = opcode;
                    send.pieces[0].1 = 8;
                });
            }
        }
    });
}

#[test]
fn another_protection_domain_is_refused_at_either_side() {
    both(|rig| {
        let v = rig.v();
        // SAFETY: the context is alive; the domain is destroyed below.
        let other = unsafe { v.ibv_alloc_pd(rig.context) };
        let memory = Memory::new(4096);
        // SAFETY: as above.
        let mr = unsafe { v.ibv_reg_mr(other, memory.addr() as *mut _, 4096, ALL) };
        assert!(!mr.is_null());
        // SAFETY: the region is alive.
        let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
        dooms(rig, Shape::default(), IBV_WC_REM_ACCESS_ERR, |_, _, _, send| {
            send.remote = (memory.addr(), rkey);
        });
        dooms(rig, Shape::default(), IBV_WC_LOC_PROT_ERR, |_, _, _, send| {
            send.pieces[0] = (memory.addr(), 64, lkey);
        });
        // SAFETY: each is destroyed once.
        unsafe {
            assert_eq!(v.ibv_dereg_mr(mr), 0);
            assert_eq!(v.ibv_dealloc_pd(other), 0);
        }
    });
}

#[test]
fn local_keys_and_ranges_are_checked() {
    both(|rig| {
        dooms(rig, Shape::default(), IBV_WC_LOC_PROT_ERR, |_, _, _, send| send.pieces[0].2 ^= 1);
        dooms(rig, Shape::default(), IBV_WC_LOC_PROT_ERR, |_, a, _, send| send.pieces[0].0 = a.at(LEN - 63));
        let shape = Shape { region_access: IBV_ACCESS_REMOTE_READ, ..Shape::default() };
        dooms(rig, shape, IBV_WC_LOC_PROT_ERR, |_, _, _, send| send.opcode = IBV_WR_RDMA_READ);
    });
}

#[test]
fn a_key_is_dead_once_its_region_is_gone_even_if_the_slot_is_used_again() {
    both(|rig| {
        let memory = Memory::new(4096);
        let first = rig.reg(memory.addr(), 4096, ALL);
        // SAFETY: alive until the next line, which destroys it once.
        let old = unsafe { (*first).rkey };
        // SAFETY: destroyed once.
        assert_eq!(unsafe { rig.v().ibv_dereg_mr(first) }, 0);
        let second = rig.reg(memory.addr(), 4096, ALL);
        // SAFETY: alive until the end of the test.
        let new = unsafe { (*second).rkey };
        assert_eq!(old >> 8, new >> 8, "the slot is used again");
        dooms(rig, Shape::default(), IBV_WC_REM_ACCESS_ERR, |_, _, _, send| {
            send.remote = (memory.addr(), old)
        });
        let (a, b) = rig.pair(Shape::default());
        let mut send = a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0);
        send.remote = (memory.addr(), new);
        a.post(&send);
        rig.expect(a.cq, 1, OK);
        // SAFETY: destroyed once.
        assert_eq!(unsafe { rig.v().ibv_dereg_mr(second) }, 0);
    });
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    both(|rig| {
        dooms(rig, Shape::default(), IBV_WC_REM_INV_REQ_ERR, |_, _, b, send| {
            send.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
            send.pieces[0].1 = 8;
            send.remote.0 = b.at(4);
        });
    });
}

#[test]
fn a_message_longer_than_its_receive_fails_at_both_sides() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        b.recv(7, &[(0, 10), (20, 10)]);
        a.post(&a.request(1, IBV_WR_SEND, 0, 21, &b, 0));
        rig.expect(b.cq, 7, IBV_WC_LOC_LEN_ERR);
        rig.expect(a.cq, 1, IBV_WC_REM_INV_REQ_ERR);
        assert_eq!((a.state(), b.state()), (IBV_QPS_ERR, IBV_QPS_ERR));
    });
}

#[test]
fn a_receive_with_a_bad_key_fails_at_both_sides() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        b.recv_raw(7, &[(b.at(0), 64, 0xdead00)]);
        a.post(&a.request(1, IBV_WR_SEND, 0, 21, &b, 0));
        rig.expect(b.cq, 7, IBV_WC_LOC_PROT_ERR);
        rig.expect(a.cq, 1, IBV_WC_REM_OP_ERR);
    });
}

#[test]
fn a_late_receive_is_waited_for() {
    both(|rig| {
        let (a, b) = rig.pair(Shape { rnr_retry: 7, ..Shape::default() });
        a.post(&a.request(1, IBV_WR_SEND, 0, 8, &b, 0));
        for _ in 0..200 {
            rig.work();
        }
        assert!(poll(a.cq).is_none());
        b.recv(7, &[(0, 8)]);
        rig.expect(b.cq, 7, OK);
        rig.expect(a.cq, 1, OK);
    });
}

#[test]
fn rnr_retries_run_out() {
    both(|rig| {
        let (a, b) = rig.pair(Shape { rnr_retry: 1, ..Shape::default() });
        a.post(&a.request(1, IBV_WR_SEND, 0, 8, &b, 0));
        a.post(&a.request(2, IBV_WR_SEND, 0, 8, &b, 0));
        rig.expect(a.cq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
        rig.expect(a.cq, 2, FLUSHED);
        assert_eq!(b.state(), IBV_QPS_RTS, "the responder goes on");
    });
}

#[test]
fn the_rnr_budget_is_counted_exactly() {
    with(softnic::Config::steps(1), |rig| {
        for limit in [0u8, 1, 3, 6] {
            let (a, b) = rig.pair(Shape { rnr_retry: limit, ..Shape::default() });
            rig.nic.take_trace();
            a.post(&a.request(1, IBV_WR_SEND, 0, 8, &b, 0));
            rig.expect(a.cq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
            assert_eq!(sent(&rig.nic.take_trace(), a.qpn()), usize::from(limit) + 1);
        }
    });
}

#[test]
fn the_transport_budget_is_counted_exactly() {
    with(softnic::Config::steps(1), |rig| {
        for limit in [0u8, 1, 7] {
            let (a, mut b) = rig.pair(Shape { retry: limit, ..Shape::default() });
            b.destroy_qp();
            rig.nic.take_trace();
            a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
            rig.expect(a.cq, 1, IBV_WC_RETRY_EXC_ERR);
            assert_eq!(sent(&rig.nic.take_trace(), a.qpn()), usize::from(limit) + 1);
        }
    });
}

fn sent(trace: &[softnic::trace::Event], from: u32) -> usize {
    trace.iter().filter(|e| matches!(e, softnic::trace::Event::Sent { qpn, .. } if *qpn == from)).count()
}

#[test]
fn a_dead_or_deaf_peer_exceeds_the_retries() {
    both(|rig| {
        let (a, mut b) = rig.pair(Shape::default());
        b.destroy_qp();
        a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
        rig.expect(a.cq, 1, IBV_WC_RETRY_EXC_ERR);
        let shape = Shape::default();
        let (c, d) = (rig.end(shape), rig.end(shape));
        c.to_init(shape);
        assert_eq!((c.to_rtr(d.qpn(), Shape { psn: 5, ..shape }), c.to_rts(shape)), (0, 0));
        c.post(&c.request(1, IBV_WR_RDMA_WRITE, 0, 8, &d, 0));
        rig.expect(c.cq, 1, IBV_WC_RETRY_EXC_ERR);
    });
}

#[test]
fn lost_packets_are_sent_again() {
    both(|rig| {
        for nth in 0..6 {
            let (a, b) = rig.pair(Shape { retry: 7, ..Shape::default() });
            rig.nic.inject(Fault::DropRequest { nth });
            rig.nic.inject(Fault::DropReply { nth });
            b.memory.put(0, &10u64.to_ne_bytes());
            b.recv(7, &[(512, 64)]);
            a.memory.put(0, &[nth as u8; 64]);
            let mut add = a.request(2, IBV_WR_ATOMIC_FETCH_AND_ADD, 128, 8, &b, 0);
            add.operands = (1, 0);
            a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 64, &b, 64));
            a.post(&add);
            a.post(&a.request(3, IBV_WR_RDMA_READ, 256, 64, &b, 64));
            a.post(&a.request(4, IBV_WR_SEND, 0, 64, &b, 0));
            for id in 1..=4 {
                rig.expect(a.cq, id, OK);
            }
            rig.expect(b.cq, 7, OK);
            assert_eq!(b.memory.get(0, 8), 11u64.to_ne_bytes(), "the atomic ran once");
            assert_eq!(a.memory.get(128, 8), 10u64.to_ne_bytes());
            assert_eq!(a.memory.get(256, 64), [nth as u8; 64]);
            assert_eq!(b.memory.get(512, 64), [nth as u8; 64]);
            rig.nic.clear_faults();
        }
    });
}

#[test]
fn a_stopped_port_exceeds_the_retries_and_tells() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        rig.nic.stop_port(0, 1);
        let event = async_event(rig);
        assert_eq!((event.event_type, rig.port(1).state), (IBV_EVENT_PORT_ERR, IBV_PORT_DOWN));
        a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
        rig.expect(a.cq, 1, IBV_WC_RETRY_EXC_ERR);
        rig.nic.start_port(0, 1);
        let event = async_event(rig);
        assert_eq!((event.event_type, rig.port(1).state), (IBV_EVENT_PORT_ACTIVE, IBV_PORT_ACTIVE));
        // SAFETY: the union holds the port's number for these events.
        assert_eq!(unsafe { event.element.port_num }, 1);
        let (a, b) = rig.pair(Shape::default());
        a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
        rig.expect(a.cq, 1, OK);
    });
}

#[test]
fn memory_that_vanished_is_an_error_and_not_a_crash() {
    both(|rig| {
        for which in 0..3 {
            let file = softnic::memory::memory_file("gone", 1 << 16).unwrap();
            let map = softnic::memory::Mapping::new(&file, 0, 1 << 16).unwrap();
            let addr = map.addr();
            let mr = rig.reg(addr, 1 << 16, ALL);
            // SAFETY: alive until it is destroyed below.
            let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
            let (a, b) = rig.pair(Shape::default());
            let mut send = a.request(1, IBV_WR_RDMA_WRITE, 0, 4096, &b, 0);
            let status = match which {
                0 => IBV_WC_REM_OP_ERR,
                1 => IBV_WC_LOC_PROT_ERR,
                _ => IBV_WC_LOC_PROT_ERR,
            };
            match which {
                0 => send.remote = (addr, rkey),
                1 => send.pieces[0] = (addr, 4096, lkey),
                _ => {
                    send.opcode = IBV_WR_RDMA_READ;
                    send.pieces[0] = (addr, 4096, lkey);
                }
            }
            drop(map);
            a.post(&send);
            rig.expect(a.cq, 1, status);
            // SAFETY: destroyed once.
            assert_eq!(unsafe { rig.v().ibv_dereg_mr(mr) }, 0);
        }
    });
}

#[test]
fn an_overrun_queue_kills_its_queue_pairs_and_tells() {
    both(|rig| {
        let shape = Shape { depth: 64, cq_depth: 4, ..Shape::default() };
        let (a, b) = rig.pair(shape);
        for id in 0..20 {
            a.post(&a.request(id, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
        }
        rig.until("the queue pair's end", |_| (a.state() == IBV_QPS_ERR).then_some(()));
        rig.settle();
        let event = async_event(rig);
        assert_eq!(event.event_type, IBV_EVENT_CQ_ERR);
        // SAFETY: the event came from the library and is acknowledged once.
        unsafe { rig.v().ibv_ack_async_event(&raw const event as *mut _) };
    });
}

#[test]
fn a_refused_access_is_told_to_the_responder() {
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        let mut send = a.request(1, IBV_WR_RDMA_WRITE, 0, 64, &b, 0);
        send.remote.1 ^= 0x7f;
        a.post(&send);
        rig.expect(a.cq, 1, IBV_WC_REM_ACCESS_ERR);
        rig.settle();
        let event = async_event(rig);
        assert_eq!(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
        // SAFETY: the union holds the queue pair for this event; acknowledged once.
        unsafe {
            assert_eq!(event.element.qp, b.qp);
            rig.v().ibv_ack_async_event(&raw const event as *mut _);
        }
    });
}

/// The next asynchronous event, which must be there.
fn async_event(rig: &Rig) -> ibv_async_event {
    // SAFETY: the context is alive; all-zero is a valid event. The descriptor has an event, so this does not block.
    unsafe {
        assert_eq!(libc_poll(rig).revents & 1, 1, "an event is there");
        let mut event: ibv_async_event = std::mem::zeroed();
        assert_eq!(rig.v().ibv_get_async_event(rig.context, &mut event), 0);
        event
    }
}

fn libc_poll(rig: &Rig) -> libc::pollfd {
    // SAFETY: the context is alive.
    let mut poll = libc::pollfd { fd: unsafe { (*rig.context).async_fd }, events: 1, revents: 0 };
    // SAFETY: one structure of this frame.
    unsafe { libc::poll(&mut poll, 1, 5000) };
    poll
}

/// What is malformed in a request that is written into the ring by hand.
#[test]
fn malformed_requests_are_refused_as_local_operation_errors() {
    let spoils: [(&str, fn(&mut [u8; 64])); 7] = [
        ("a length of 0", |w| w[7] = 0),
        ("a length too short for the opcode", |w| w[7] = 1),
        ("an unknown opcode", |w| w[3] = 0x3f),
        ("an opcode modifier", |w| w[0] = 1),
        ("another index", |w| w[2] ^= 1),
        ("another queue pair's number", |w| w[6] ^= 1),
        ("inline data past the end", |w| w[32..36].copy_from_slice(&(0x8000_0000u32 | 500).to_be_bytes())),
    ];
    // Wrong indices and numbers are breaches too, which strict mode would report on top.
    for (what, spoil) in spoils {
        let mut config = softnic::Config::steps(9);
        config.strict = false;
        with(config, |rig| {
            let (a, b) = rig.pair(Shape::default());
            let mut raw = Raw::of(&a);
            let mut wqe = raw.write(&a, &b, 0);
            spoil(&mut wqe);
            raw.put(0, &wqe);
            raw.publish(1);
            raw.doorbell(&wqe);
            let cqe = rig.until("a completion", |_| raw.take());
            let status = (cqe[63] >> 4, cqe[55]);
            assert_eq!(status, (13, 0x02), "{what}");
        });
    }
}

#[test]
fn a_receiver_that_is_late_is_waited_for_whatever_the_retry_timer_says() {
    // The wait for the receiver is much longer than the one for an answer, and requests behind the refused one are dropped.
    let Some(mut rig) = Rig::start(Config::steps(9)) else { return };
    let shape = Shape { rnr_retry: 7, rnr_timer: 31, timeout: 1, retry: 1, ..Shape::default() };
    let (a, b) = rig.pair(shape);
    (0..6).for_each(|id| a.post(&a.request(id, IBV_WR_SEND, 0, 8, &b, 0)));
    for _ in 0..200 {
        rig.nic.step();
    }
    (0..6).for_each(|id| b.recv(id, &[(0, 8)]));
    for id in 0..6 {
        rig.expect(a.cq, id, IBV_WC_SUCCESS);
    }
}
