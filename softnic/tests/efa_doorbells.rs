//! Doorbells that are counted: how often unmodified libefa rings for what it is asked to post, exactly, and what the device
//! says of it. The last test runs all of this on the newer libraries that are built.
//!
//! # Safety
//!
//! As for the rig: objects are alive while they are named.
#![cfg(target_arch = "x86_64")]

mod rig;
mod srd;

use std::ptr::null_mut;

use ibv_sys::*;
use rig::{Rig, sges};
use softnic::Config;
use softnic::description::Description;
use softnic::efa::limits::Limits;
use softnic::trace::{Breach, Event, Queue};
use srd::{Op, Shape, Srd};

/// Two EFA devices whose doorbells are counted; answers the breaches.
fn counted(config: Config, limits: Limits, test: impl FnOnce(&mut Rig)) -> Vec<Breach> {
    let mut description = Description::efa(2);
    description.devices.iter_mut().for_each(|d| d.efa = limits.clone());
    let config = Config { description, count_doorbells: true, ..config };
    let Some(mut rig) = Rig::start(config).filter(|_| srd::efa().is_some()) else { return Vec::new() };
    test(&mut rig);
    rig.nic.take_breaches()
}

fn both(limits: &Limits, test: impl Fn(&mut Rig)) {
    for config in [Config::steps(3), Config::thread()] {
        assert_eq!(counted(config, limits.clone(), &test), []);
    }
}

/// How often a queue was rung, and how much one doorbell covered at most.
fn rung(rig: &Rig, queue: Queue, number: u32) -> (u32, u16) {
    let all = rig.nic.doorbells();
    let it = all.iter().find(|r| (r.queue, r.number) == (queue, number));
    it.map(|r| (r.times, r.widest)).expect("the queue has a counted doorbell")
}

fn sends(rig: &Rig, end: &Srd) -> u32 {
    rung(rig, Queue::Send, end.qpn()).0
}

#[test]
fn a_batch_rings_as_often_as_the_device_makes_it_and_no_more() {
    for (max_tx_batch, most) in [(0u16, 64u32), (1, 1), (3, 3), (7, 7), (16, 16), (64, 64), (1000, 64)] {
        let limits = Limits { max_tx_batch, wide_requests: false, ..Limits::default() };
        let breaches = counted(Config::steps(u64::from(max_tx_batch)), limits, |rig| {
            let a = Srd::new(rig, Shape::default());
            let sizes = [1, 2, most - 1, most, most + 1, 2 * most, 2 * most + 1, 16, 63, 64];
            for n in sizes.into_iter().filter(|n| (1..=64).contains(n)) {
                let before = sends(rig, &a);
                assert_eq!(a.post_batch(0, &vec![a.read_of(&a, 8192); n as usize], a.to()), 0);
                let times = sends(rig, &a) - before;
                assert_eq!(times, n.div_ceil(most), "{n} requests, at most {most} at once");
                (0..n).for_each(|_| assert_eq!(rig.wait(a.cq).status, IBV_WC_SUCCESS));
            }
            assert_eq!(u32::from(rung(rig, Queue::Send, a.qpn()).1), most);
        });
        assert_eq!(breaches, []);
    }
}

#[test]
fn a_device_that_takes_no_whole_queue_gets_the_rest_with_another_doorbell() {
    let limits = Limits { min_sq_wr: 16, wide_requests: false, ..Limits::default() };
    both(&limits, |rig| {
        let a = Srd::new(rig, Shape::default());
        assert_eq!(a.post_batch(0, &[a.read_of(&a, 8192); 64], a.to()), 0);
        assert_eq!(rung(rig, Queue::Send, a.qpn()), (2, 63));
        (0..64).for_each(|_| assert_eq!(rig.wait(a.cq).status, IBV_WC_SUCCESS));
    });
}

#[test]
fn wide_requests_fill_a_batch_with_half_as_many() {
    let limits = Limits { max_tx_batch: 8, ..Limits::default() };
    both(&limits, |rig| {
        let wide = srd::device(rig).inline_buf_size_ex > 32;
        let a = Srd::new(rig, Shape { inline: if wide { 80 } else { 32 }, ..Shape::default() });
        assert_eq!(a.post_batch(0, &[a.read_of(&a, 8192); 16], a.to()), 0);
        let expected = if wide { (4, 4) } else { (2, 8) };
        assert_eq!(rung(rig, Queue::Send, a.qpn()), expected);
        (0..16).for_each(|_| assert_eq!(rig.wait(a.cq).status, IBV_WC_SUCCESS));
    });
}

/// Posts `n` receives as one list.
fn recv_list(end: &Srd, n: usize) {
    let mut sge = sges(&[(end.at(0), 8, end.lkey())]);
    let one = |i| ibv_recv_wr { wr_id: i, next: null_mut(), sg_list: sge.as_mut_ptr(), num_sge: 1 };
    let mut list: Vec<ibv_recv_wr> = (0..n as u64).map(one).collect();
    for i in 1..n {
        list[i - 1].next = &raw mut list[i];
    }
    let mut bad = null_mut();
    // SAFETY: the queue pair is alive; the list is linked, ends, and lives through the call.
    assert_eq!(unsafe { ibv_post_recv(end.qp, list.as_mut_ptr(), &mut bad) }, 0);
}

#[test]
fn a_list_of_receives_rings_once() {
    both(&Limits::default(), |rig| {
        let a = Srd::new(rig, Shape::default());
        recv_list(&a, 40);
        assert_eq!(rung(rig, Queue::Receive, a.qpn()), (1, 40));
        (0..5).for_each(|i| a.recv(i, &[(0, 8), (16, 8)]));
        assert_eq!(rung(rig, Queue::Receive, a.qpn()), (6, 40), "each of its own rings, for all its pieces");
        assert_eq!(sends(rig, &a), 0);
    });
}

#[test]
fn threads_that_ring_at_once_are_all_counted() {
    let breaches = counted(Config::thread(), Limits::default(), |rig| {
        let ends: Vec<Srd> = (0..4).map(|_| Srd::new(rig, Shape::default())).collect();
        let posts: Vec<_> = ends.iter().map(|e| Poster { qp: e.qp, sge: (e.at(0), 8, e.lkey()) }).collect();
        std::thread::scope(|scope| {
            posts.iter().for_each(|poster| drop(scope.spawn(move || poster.post(60))));
        });
        for end in &ends {
            assert_eq!(rung(rig, Queue::Receive, end.qpn()), (60, 1));
        }
    });
    assert_eq!(breaches, []);
}

/// What a thread needs to post receives.
struct Poster {
    qp: *mut ibv_qp,
    sge: (u64, u32, u32),
}

// SAFETY: verbs objects may be used from any thread, and each of these is used by one.
unsafe impl Sync for Poster {}

impl Poster {
    fn post(&self, n: u64) {
        (0..n).for_each(|id| rig::recv_raw(self.qp, id, &[self.sge]));
    }
}

/// A queue with a channel.
fn with_channel(rig: &Rig) -> (*mut ibv_cq, *mut ibv_comp_channel) {
    // SAFETY: the context is alive.
    unsafe {
        let channel = rig.v().ibv_create_comp_channel(rig.context);
        assert!(!channel.is_null());
        let cq = rig.v().ibv_create_cq(rig.context, 64, null_mut(), channel, 0);
        assert!(!cq.is_null());
        (cq, channel)
    }
}

#[test]
fn every_arming_is_counted_though_the_device_sees_the_last_alone() {
    counted(Config::steps(2), Limits::default(), |rig| {
        let (cq, channel) = with_channel(rig);
        let told = rig.nic.doorbells();
        let [of_cq] = told[..] else { panic!("one queue with a doorbell: {told:?}") };
        assert_eq!((of_cq.queue, of_cq.times), (Queue::Completion, 0));
        // SAFETY: the queue is alive, and destroyed once, before its channel.
        unsafe {
            (0..5).for_each(|_| assert_eq!(ibv_req_notify_cq(cq, 0), 0));
            assert_eq!(rung(rig, Queue::Completion, of_cq.number).0, 5);
            assert_eq!(rig.v().ibv_destroy_cq(cq), 0);
            assert_eq!(rig.v().ibv_destroy_comp_channel(channel), 0);
        }
        assert_eq!(rig.nic.doorbells(), []);
        let trace = rig.nic.take_trace();
        let armed = Event::Rung { queue: Queue::Completion, number: of_cq.number, times: 5 };
        assert!(trace.contains(&armed), "told when the queue went: {trace:?}");
    });
}

#[test]
fn the_trace_tells_every_doorbell() {
    counted(Config::steps(4), Limits { max_tx_batch: 2, ..Limits::default() }, |rig| {
        let a = Srd::new(rig, Shape::default());
        let number = a.qpn();
        for n in [1, 5, 8] {
            a.recv(n, &[(0, 8)]);
            assert_eq!(a.post_batch(0, &vec![a.read_of(&a, 8192); n as usize], a.to()), 0);
            (0..n).for_each(|_| assert_eq!(rig.wait(a.cq).status, IBV_WC_SUCCESS));
        }
        assert_eq!(a.post_batch(0, &[Op::Send; 3], a.to()), 0);
        // Nobody looked at the last ones before the queue pair went.
        drop(a);
        let mut told = [0; 2];
        for event in rig.nic.take_trace() {
            match event {
                Event::Rung { queue: Queue::Send, number: n, times } if n == number => told[0] += times,
                Event::Rung { queue: Queue::Receive, number: n, times } if n == number => told[1] += times,
                _ => {}
            }
        }
        assert_eq!(told, [1 + 3 + 4 + 2, 3]);
    });
}

#[test]
fn a_doorbell_for_more_than_the_device_takes_is_a_breach() {
    let limits = Limits { max_tx_batch: 4, wide_requests: false, ..Limits::default() };
    let mut expected = Vec::new();
    let breaches = counted(Config::steps(6), limits, |rig| {
        let a = Srd::new(rig, Shape::default());
        // libefa takes its own limit from the device: rung by hand, through a mapping as a program has it.
        // SAFETY: the device's file is open; the mapping is the test's own, and used while it is there.
        unsafe {
            let (key, offset) = rig.nic.with(|host| {
                let doorbell = &host.efa.qps[&(a.qpn() as u16)].send.as_ref().unwrap().doorbell;
                (doorbell.key, doorbell.offset)
            });
            let fd = (*rig.context).cmd_fd;
            let page = libc::mmap(null_mut(), 4096, libc::PROT_WRITE, libc::MAP_SHARED, fd, key as i64);
            assert_ne!(page, libc::MAP_FAILED);
            page.byte_add(offset as usize).cast::<u32>().write_volatile(5);
            assert_eq!(libc::munmap(page, 4096), 0);
        }
        assert_eq!(rung(rig, Queue::Send, a.qpn()), (1, 5));
        rig.nic.run();
        expected.push(Breach::Batch { qpn: a.qpn(), requests: 5, most: 4 });
    });
    assert_eq!(breaches, expected);
}

#[test]
fn nothing_is_counted_unless_it_is_asked_for() {
    srd::steps(1, Limits::default(), |rig| {
        let a = Srd::new(rig, Shape::default());
        a.recv(1, &[(0, 8)]);
        assert_eq!(rig.nic.doorbells(), []);
    });
}

#[test]
fn a_device_that_opens_and_closes_leaves_no_page_behind() {
    counted(Config::steps(1), Limits::default(), |rig| {
        for _ in 0..20 {
            let ends: Vec<Srd> = (0..8).map(|_| Srd::new(rig, Shape::default())).collect();
            ends.iter().for_each(|e| e.recv(1, &[(0, 8)]));
            assert!(ends.iter().all(|e| rung(rig, Queue::Receive, e.qpn()) == (1, 1)));
        }
        assert_eq!(rig.nic.doorbells(), []);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let pages = maps.lines().filter(|l| l.contains("softnic-efa")).count();
        assert!(pages < 8, "{pages} mappings of the device's file");
    });
}

#[test]
fn all_of_this_on_newer_rdma_cores() {
    srd::on_newer_rdma_cores();
}
