//! Many queue pairs on many devices of one machine, and traffic between all of them whose every byte and count is known.
#![allow(dead_code, reason = "each binary uses a part")]
#![allow(clippy::missing_panics_doc)]

use ibv_sys::*;
use softnic::Config;
use softnic::description::{Description, Link};

use super::rig::*;

/// Requests that a queue pair has under way at most.
const DEPTH: u32 = 16;
/// Where things are in each end's buffer: what peers write, count and read.
const WRITTEN: usize = 0;
const COUNTED: usize = 8;
const FETCHED: usize = 16;
const RECEIVED: usize = 64;
const SOURCE: usize = 1024;
const PATTERN: usize = 2048;

/// Devices with queue pairs.
#[derive(Debug)]
pub struct Mesh {
    pub ends: Vec<End>,
    /// The number of each end's device.
    places: Vec<usize>,
    shape: Shape,
    devices: Vec<Opened>,
    /// Completions that were polled and not yet looked for, and whose they are.
    arrived: Vec<Arrived>,
    pub rig: Rig,
}

/// A completion.
#[derive(Debug, PartialEq)]
struct Arrived {
    end: usize,
    receive: bool,
    status: ibv_wc_status,
    wr_id: u64,
}

/// `count` devices, driven by steps, quietly: neither a trace nor the strict mode's copies are kept.
pub fn machine(count: u16) -> Config {
    let description = Description::standard(Link::Ib, count);
    Config { description, strict: false, record: false, ..Config::steps(11) }
}

impl Mesh {
    /// `each` queue pairs on each of the devices; `None` without libibverbs.
    pub fn new(config: Config, each: usize, shape: Shape) -> Option<Self> {
        let count = config.description.devices.len();
        let mut rig = Rig::start(config)?;
        let shape = Shape { depth: DEPTH, cq_depth: 4 * DEPTH, mtu: IBV_MTU_4096, ..shape };
        let (mut ends, mut places, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        // The rig opens them in the order of their names, in which 10 comes before 2.
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|n| n.to_string());
        for (device, place) in order.into_iter().enumerate() {
            let (made, opened) =
                rig.on_device(device, |rig| (0..each).map(|_| rig.end(shape)).collect::<Vec<_>>());
            places.extend(made.iter().map(|_| place));
            ends.extend(made);
            devices.push(opened);
        }
        for (i, end) in ends.iter().enumerate() {
            end.memory.put(PATTERN, &(i as u64 ^ 0x5eed).to_ne_bytes());
        }
        Some(Self { ends, places, shape, devices, arrived: Vec::new(), rig })
    }

    /// Connects two ends, from whatever state they are in. An end may be its own peer.
    pub fn connect(&self, a: usize, b: usize) {
        let both = if a == b { vec![(a, b)] } else { vec![(a, b), (b, a)] };
        for (own, peer) in &both {
            let end = &self.ends[*own];
            assert_eq!(end.modify(&mut attr(IBV_QPS_RESET), IBV_QP_STATE), 0);
            end.to_init(self.shape);
            let (mut a, mask) = rtr(self.ends[*peer].qpn(), self.shape);
            a.ah_attr.dlid = self.places[*peer] as u16 + 1;
            assert_eq!(end.modify(&mut a, mask), 0);
            assert_eq!(end.to_rts(self.shape), 0);
        }
    }

    /// Every end of `from` sends a request to its peer, of the kind that `round` says; all complete.
    pub fn round(&mut self, pairs: &[(usize, usize)], round: u64) {
        for (from, to) in pairs {
            self.post(*from, *to, round);
        }
        self.rig.nic.run();
        for (from, to) in pairs {
            self.take(*from, round, false);
            if round % 4 == 3 {
                self.take(*to, round, true);
                assert_eq!(self.number(*to, RECEIVED), stamp(*from, round), "{from} sent to {to}");
            }
        }
        assert_eq!(self.arrived, [], "nothing else completed");
    }

    /// Takes the completion of this round from an end's queue, which the device has written.
    fn take(&mut self, end: usize, round: u64, receive: bool) {
        let of = |wc: ibv_wc| {
            let receive = wc.opcode == IBV_WC_RECV;
            Arrived { end, receive, status: wc.status, wr_id: wc.wr_id }
        };
        self.arrived.extend(std::iter::from_fn(|| poll(self.ends[end].cq)).map(of));
        let wanted = Arrived { end, receive, status: IBV_WC_SUCCESS, wr_id: round };
        let at = self.arrived.iter().position(|a| *a == wanted);
        let at = at.unwrap_or_else(|| panic!("no {wanted:?} among {:?}", self.arrived));
        self.arrived.swap_remove(at);
    }

    fn post(&self, from: usize, to: usize, round: u64) {
        let (end, peer) = (&self.ends[from], &self.ends[to]);
        end.memory.put(SOURCE, &stamp(from, round).to_ne_bytes());
        let request = match round % 4 {
            0 => end.request(round, IBV_WR_RDMA_WRITE, SOURCE, 8, peer, WRITTEN),
            1 => Send {
                operands: (1, 0),
                ..end.request(round, IBV_WR_ATOMIC_FETCH_AND_ADD, FETCHED, 8, peer, COUNTED)
            },
            2 => end.request(round, IBV_WR_RDMA_READ, FETCHED, 8, peer, PATTERN),
            _ => {
                peer.recv(round, &[(RECEIVED, 8)]);
                end.request(round, IBV_WR_SEND, SOURCE, 8, peer, 0)
            }
        };
        end.post(&request);
    }

    fn number(&self, end: usize, at: usize) -> u64 {
        u64::from_ne_bytes(self.ends[end].memory.get(at, 8).try_into().unwrap())
    }

    /// Checks what `rounds` rounds from `from` left at both sides, of which each fourth was of one kind.
    pub fn check(&self, (from, to): (usize, usize), rounds: std::ops::Range<u64>, counted_before: u64) {
        let of_kind = |kind| rounds.clone().filter(move |r| r % 4 == kind);
        if let Some(last) = of_kind(0).next_back() {
            assert_eq!(self.number(to, WRITTEN), stamp(from, last), "{from} wrote to {to}");
        }
        assert_eq!(self.counted(to), counted_before + of_kind(1).count() as u64, "{from} counted at {to}");
        if of_kind(2).next_back() > of_kind(1).next_back() {
            assert_eq!(self.number(from, FETCHED), to as u64 ^ 0x5eed, "{from} read from {to}");
        }
    }

    pub fn counted(&self, end: usize) -> u64 {
        self.number(end, COUNTED)
    }
}

/// What end `from` sends in a round.
fn stamp(from: usize, round: u64) -> u64 {
    (from as u64) << 40 | round
}
