//! Forked children: the parent's device is not theirs, they disturb nobody, and the parent goes on.
//!
//! # Safety
//!
//! The children call nothing that another thread's lock could stop: what they use was made before, or is async-signal-safe.

mod peer;
mod rig;

use ibv_sys::*;
use rig::*;
use softnic::{Config, Softnic};

/// Runs `child` in a forked process; answers its exit code.
fn forked(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: see the module; the child ends here.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(child()),
            pid => {
                assert!(pid > 0, "{}", std::io::Error::last_os_error());
                let mut status = 0;
                assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
                assert!(libc::WIFEXITED(status), "status {status:#x}");
                libc::WEXITSTATUS(status)
            }
        }
    }
}

#[test]
fn a_child_has_no_device_and_the_parent_goes_on() {
    // SAFETY: before any registration, as the manual page asks.
    rig::verbs().into_iter().for_each(|v| assert_eq!(unsafe { v.ibv_fork_init() }, 0));
    both(|rig| {
        let (a, b) = rig.pair(Shape::default());
        let (v, context, pd) = (rig.v(), rig.context, rig.pd);
        a.memory.put(0, &[5; 8]);
        a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
        let code = forked(|| {
            // SAFETY: the objects are the parent's; each call is refused.
            unsafe {
                let refused = v.ibv_alloc_pd(context).is_null();
                let why = std::io::Error::last_os_error().raw_os_error();
                let same = v.ibv_dealloc_pd(pd);
                if refused && why == Some(libc::EIO) && same == libc::EIO { 7 } else { same.max(1) }
            }
        });
        assert_eq!(code, 7, "the child's commands answer EIO");
        rig.expect(a.cq, 1, IBV_WC_SUCCESS);
        a.post(&a.request(2, IBV_WR_RDMA_WRITE, 0, 8, &b, 8));
        rig.expect(a.cq, 2, IBV_WC_SUCCESS);
        assert_eq!(b.memory.get(8, 8), [5; 8]);
    });
}

#[test]
fn a_child_may_start_a_machine_of_its_own() {
    let Some(mut rig) = Rig::start(Config::steps(3)) else { return };
    let (a, b) = rig.pair(Shape::default());
    let code = forked(|| {
        let mut nic = Softnic::start(Config::steps(1)).unwrap();
        let idle = nic.step() == softnic::drive::Step::Idle;
        let empty = nic.with(|host| host.engine.qps.values().count() == 0);
        drop(nic);
        if idle && empty { 9 } else { 1 }
    });
    assert_eq!(code, 9);
    a.post(&a.request(1, IBV_WR_RDMA_WRITE, 0, 8, &b, 0));
    rig.expect(a.cq, 1, IBV_WC_SUCCESS);
}

#[test]
fn a_child_that_lives_on_does_not_hide_its_parents_death() {
    let session = format!("fork-{}", std::process::id());
    let Some(mut rig) = Rig::start(Config { session: Some(session.clone()), ..Config::thread() }) else {
        return;
    };
    let shape = Shape { timeout: 10, retry: 2, ..Shape::default() };
    let end = rig.end(shape);
    let mut parent = peer::Peer::start("fork", &session, &[]);
    let told = parent.heard("its queue pair");
    let words: Vec<u64> = told.split(' ').map(|w| w.parse().unwrap()).collect();
    end.to_init(shape);
    assert_eq!((end.to_rtr(words[0] as u32, shape), end.to_rts(shape)), (0, 0));
    parent.say(&end.qpn().to_string());
    assert_eq!(parent.heard("that it forked"), "forked");
    let write = |id| Send {
        id,
        opcode: IBV_WR_RDMA_WRITE,
        flags: IBV_SEND_SIGNALED,
        pieces: vec![(end.at(0), 8, end.lkey())],
        remote: (words[1], words[2] as u32),
        imm: 0,
        operands: (0, 0),
    };
    end.post(&write(1));
    rig.expect(end.cq, 1, IBV_WC_SUCCESS);
    parent.kill();
    end.post(&write(2));
    rig.expect(end.cq, 2, IBV_WC_RETRY_EXC_ERR);
    drop(end);
}

/// Connects to the test's queue pair, forks a child that sleeps, and waits to be killed.
fn fork_and_wait(session: &str) {
    let config = Config { session: Some(session.to_owned()), ..Config::thread() };
    let Some(mut rig) = Rig::start(config) else { return };
    let shape = Shape::default();
    let end = rig.end(shape);
    end.to_init(shape);
    peer::tell(&format!("{} {} {}", end.qpn(), end.at(0), end.rkey()));
    assert_eq!(end.to_rtr(peer::hear().parse().unwrap(), shape), 0);
    // SAFETY: the child only waits, for much longer than the test takes, and ends.
    unsafe {
        if libc::fork() == 0 {
            // Not the parent's output: whoever reads it waits for its end.
            for fd in 0..3 {
                libc::close(fd);
            }
            libc::sleep(20);
            libc::_exit(0);
        }
    }
    peer::tell("forked");
    rig.until::<()>("the end", |_| None);
}

/// Not a test of its own: what a peer runs. Alone, it shows that no role is set.
#[test]
fn the_other_process() {
    match peer::role() {
        None => assert_eq!(std::env::var("SOFTNIC_TEST_ROLE").ok(), None),
        Some((role, session)) if role == "fork" => fork_and_wait(&session),
        Some((role, _)) => panic!("no role {role}"),
    }
}
