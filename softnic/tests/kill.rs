//! Processes that are killed under load: the survivor gets its errors in time, nothing hangs, nothing stays behind, and the
//! next two start as if nothing had been.
//!
//! `SOFTNIC_KILLS` is how often; the ordinary number is small.

mod peer;
mod rig;

use std::time::{Duration, Instant};

use ibv_sys::*;
use peer::{DEADLINE, Peer};
use rig::*;
use softnic::Config;
use softnic::drive::Choices;

/// Requests under way at each side.
const WINDOW: u64 = 24;
/// Receives posted at each side.
const RECEIVES: u64 = 16;

fn shape() -> Shape {
    // A receive that is not there is waited for without limit, a peer that is not there for 4 · 4 ms.
    Shape { timeout: 10, retry: 3, rnr_retry: 7, depth: 64, cq_depth: 512, ..Shape::default() }
}

/// The other side's queue pair and memory.
struct Remote {
    qpn: u32,
    addr: u64,
    rkey: u32,
}

fn exchange(end: &End) -> Remote {
    peer::tell(&format!("{} {} {}", end.qpn(), end.at(0), end.rkey()));
    let words: Vec<u64> = peer::hear().split(' ').map(|w| w.parse().unwrap()).collect();
    Remote { qpn: words[0] as u32, addr: words[1], rkey: words[2] as u32 }
}

/// The `id`th request: all operations in turn, of changing lengths.
fn request(end: &End, to: &Remote, id: u64) -> Send {
    let (opcode, len) = match id % 4 {
        0 => (IBV_WR_RDMA_WRITE, 8 + id % 4000),
        1 => (IBV_WR_RDMA_READ, 8 + id % 3000),
        2 => (IBV_WR_ATOMIC_FETCH_AND_ADD, 8),
        _ => (IBV_WR_SEND, 1 + id % 1000),
    };
    Send {
        id,
        opcode,
        flags: IBV_SEND_SIGNALED,
        pieces: vec![(end.at(0), len as u32, end.lkey())],
        remote: (to.addr + 8192, to.rkey),
        imm: 0,
        operands: (1, 0),
    }
}

/// What a side counts.
#[derive(Default)]
struct Counts {
    posted: u64,
    done: u64,
    received: u64,
    flushed: u64,
    first_error: Option<ibv_wc_status>,
}

const IS_RECEIVE: u64 = 1 << 32;

impl Counts {
    fn count(&mut self, wc: &ibv_wc) {
        let receive = wc.wr_id & IS_RECEIVE != 0;
        match wc.status {
            IBV_WC_SUCCESS if receive => self.received += 1,
            IBV_WC_SUCCESS => {
                assert_eq!(wc.wr_id, self.done, "completions of sends come in order");
                self.done += 1;
            }
            IBV_WC_WR_FLUSH_ERR if self.first_error.is_some() => self.flushed += 1,
            status => assert_eq!(self.first_error.replace(status), None, "one error, and flushes"),
        }
    }
}

/// Both sides do the same until the other one is gone.
fn load(session: &str) {
    let config = Config { session: Some(session.to_owned()), ..Config::thread() };
    let Some(mut rig) = Rig::start(config) else { return peer::tell("skipped") };
    let end = rig.end(shape());
    end.to_init(shape());
    let receive = |id: u64| end.recv(id | IS_RECEIVE, &[(32768 + (id % RECEIVES) as usize * 1024, 1024)]);
    (0..RECEIVES).for_each(receive);
    let remote = exchange(&end);
    assert_eq!((end.to_rtr(remote.qpn, shape()), end.to_rts(shape())), (0, 0));
    // A request that meets a queue pair that is not ready for it is as lost as one to nobody.
    peer::tell("ready");
    assert_eq!(peer::hear(), "go");
    let mut counts = Counts::default();
    let start = Instant::now();
    while counts.first_error.is_none() {
        while counts.posted - counts.done < WINDOW {
            end.post(&request(&end, &remote, counts.posted));
            counts.posted += 1;
        }
        let before = (counts.done, counts.received);
        match poll(end.cq) {
            Some(wc) => counts.count(&wc),
            None => std::thread::yield_now(),
        }
        if counts.received > before.1 {
            receive(before.1 + RECEIVES);
        }
        if counts.done == 100 && before.0 == 99 {
            peer::tell("running");
        }
        assert!(start.elapsed() < DEADLINE, "{} done of {}", counts.done, counts.posted);
    }
    let open = counts.posted - counts.done - 1 + RECEIVES;
    rig.until("all flushes", |_| {
        poll(end.cq).into_iter().for_each(|wc| counts.count(&wc));
        (counts.flushed == open).then_some(())
    });
    drop(end);
    drop(rig);
    peer::tell(&format!("{:?} after {} of {}", counts.first_error.unwrap(), counts.done, counts.posted));
}

/// How many requests each of two that race has to finish, and how often it says how far it is.
const RACE: u64 = 6000;
const STAGE: u64 = 100;

/// Finishes its requests, telling how far it is, and serves the other one until it is told to stop.
fn race(session: &str) {
    let config = Config { session: Some(session.to_owned()), ..Config::thread() };
    let Some(mut rig) = Rig::start(config) else { return peer::tell("skipped") };
    let end = rig.end(shape());
    end.to_init(shape());
    let remote = exchange(&end);
    assert_eq!((end.to_rtr(remote.qpn, shape()), end.to_rts(shape())), (0, 0));
    peer::tell("ready");
    assert_eq!(peer::hear(), "go");
    let mut counts = Counts::default();
    while counts.done < RACE {
        while counts.posted < RACE && counts.posted - counts.done < WINDOW {
            // Neither waits for the other's receives.
            let id = counts.posted;
            end.post(&Send { id, ..request(&end, &remote, id - id % 4) });
            counts.posted += 1;
        }
        let before = counts.done;
        match poll(end.cq) {
            Some(wc) => counts.count(&wc),
            None => std::thread::yield_now(),
        }
        assert_eq!(counts.first_error, None);
        if counts.done > before && counts.done % STAGE == 0 {
            peer::tell(&counts.done.to_string());
        }
    }
    assert_eq!(peer::hear(), "stop");
    drop(end);
    rig.settle();
}

#[test]
fn two_busy_processes_both_get_on() {
    let session = format!("race-{}", std::process::id());
    let mut peers = [(); 2].map(|()| Peer::start("race", &session, &[]));
    let [a, b] = peers.each_mut().map(|p| p.heard("its queue pair"));
    if a == "skipped" {
        return;
    }
    peers[0].say(&b);
    peers[1].say(&a);
    peers.iter_mut().for_each(|p| assert_eq!(p.heard("that it is ready"), "ready"));
    peers.iter_mut().for_each(|p| p.say("go"));
    let start = Instant::now();
    let mut far = [0u64; 2];
    while far.iter().all(|n| *n < RACE) {
        for (peer, far) in peers.iter_mut().zip(&mut far) {
            while let Some(line) = peer.heard_already() {
                *far = line.parse().unwrap();
            }
        }
        assert!(start.elapsed() < DEADLINE, "{far:?} of {RACE}");
        std::thread::sleep(Duration::from_millis(1));
    }
    let [ahead, behind] = [far[0].max(far[1]), far[0].min(far[1])];
    println!("{behind} while the other one finished {ahead}");
    assert!(behind >= RACE / 20, "{behind} while the other one finished {ahead}");
    for (peer, mut far) in peers.iter_mut().zip(far) {
        while far < RACE {
            far = peer.heard("how far it is").parse().unwrap();
        }
    }
    peers.iter_mut().for_each(|p| p.say("stop"));
    peers.iter_mut().for_each(|p| assert!(p.wait().success(), "{}", p.noise));
}

/// Not a test of its own: what a peer runs. Alone, it shows that no role is set.
#[test]
fn the_other_process() {
    match peer::role() {
        None => assert_eq!(std::env::var("SOFTNIC_TEST_ROLE").ok(), None),
        Some((role, session)) if role == "load" => load(&session),
        Some((role, session)) if role == "race" => race(&session),
        Some((role, _)) => panic!("no role {role}"),
    }
}

/// Starts two that load each other; `None` where there is no libibverbs.
fn pair(session: &str) -> Option<[Peer; 2]> {
    let mut peers = [(); 2].map(|()| Peer::start("load", session, &[]));
    let [a, b] = peers.each_mut().map(|p| p.heard("its queue pair"));
    if a == "skipped" {
        return None;
    }
    let mut slots = [&a, &b].map(|l| l.split(' ').next().unwrap().parse::<u32>().unwrap() >> 16);
    slots.sort_unstable();
    assert_eq!(slots, [0, 1], "the session has nobody else in it");
    peers[0].say(&b);
    peers[1].say(&a);
    peers.iter_mut().for_each(|p| assert_eq!(p.heard("that it is ready"), "ready"));
    peers.iter_mut().for_each(|p| p.say("go"));
    peers.iter_mut().for_each(|p| assert_eq!(p.heard("that it runs"), "running"));
    Some(peers)
}

fn kills() -> u64 {
    std::env::var("SOFTNIC_KILLS").map_or(20, |n| n.parse().expect("SOFTNIC_KILLS is a number"))
}

#[test]
fn killed_at_any_moment_under_load() {
    let session = format!("kill-{}", std::process::id());
    let mut choices = Choices::new(u64::from(std::process::id()));
    for round in 0..kills() {
        let Some([mut a, mut b]) = pair(&session) else { return };
        let (victim, survivor) = if round % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        std::thread::sleep(Duration::from_micros(choices.below(20_000) as u64));
        victim.kill();
        let told = survivor.heard("how it ended");
        println!("round {round}: {told}");
        assert!(told.starts_with(&format!("{IBV_WC_RETRY_EXC_ERR:?} ")), "round {round}: {told}");
        assert!(survivor.wait().success(), "round {round}: {}", survivor.noise);
        let left = peer::left_behind(&[a.pid(), b.pid()], &session);
        assert_eq!(left, Vec::<String>::new(), "round {round}");
    }
}

#[test]
fn when_all_are_killed_the_next_start_cleans_up() {
    let session = format!("kill-all-{}", std::process::id());
    let Some([mut a, mut b]) = pair(&session) else { return };
    let dead = [a.pid(), b.pid()];
    a.kill();
    b.kill();
    assert_eq!(peer::left_behind(&[], &session), Vec::<String>::new(), "the kernel took the names back");
    let Some([c, _d]) = pair(&session) else { return };
    assert_eq!(peer::left_behind(&dead, &format!("not {session}")), Vec::<String>::new());
    drop(c);
}
