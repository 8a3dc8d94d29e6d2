//! A program, or a peer, that writes nonsense where the device reads by itself: records, and packets from another process. No
//! library in between.

use std::sync::atomic::{AtomicU64, Ordering};

use softnic::description::{Abi, Description, Link};
use softnic::drive::{self, Choices, Step};
use softnic::fabric::Fabric;
use softnic::fabric::packet::{Address, Body, Datagram, Packet, Route};
use softnic::host::Host;
use softnic::mlx5::abi::{CreateCq, CreateQp};
use softnic::mlx5::port::Port;
use softnic::mlx5::transition::QpState;
use softnic::uverbs::abi::{QpCap, cmd};
use softnic::uverbs::call::Call;
use softnic::uverbs::objects::{Backing, NewCq, NewQp, NewRegion};

const RC: u8 = 2;
const UD: u8 = 4;
/// Where things are in the program's memory: the completion queue, its records, a queue pair's receives, its records, a buffer.
const CQ: u64 = 0;
const CQ_RECORDS: u64 = 4096;
const RING: u64 = 4160;
const RECORDS: u64 = 4224;
const BUFFER: u64 = 8192;
const BUFFER_LEN: u64 = 100_000;

/// A machine with one queue pair of the type, over memory of its own.
struct Machine {
    host: Host,
    cqn: u32,
    qpn: u32,
    lkey: u32,
    memory: Vec<AtomicU64>,
}

impl Machine {
    fn new(kind: u8, requests: u32, receives: u32) -> Self {
        let memory: Vec<_> = (0..(BUFFER + BUFFER_LEN) / 8).map(|_| AtomicU64::new(0)).collect();
        let at = |offset| memory.as_ptr() as u64 + offset;
        let mut description = Description::standard(Link::Roce, 1);
        description.abi = Abi::Write;
        let port = Port::of(&description.devices[0].ports[0]);
        let mut host = Host::new(description, Fabric::default());
        let fd = host.open(0).unwrap();
        let context = host.context_of(fd).unwrap();
        host.command(context, cmd::GET_CONTEXT, &Call::default()).unwrap();
        let pd = host.alloc_pd(context);
        let region = NewRegion {
            pd,
            backing: Backing::Address(at(BUFFER)),
            len: BUFFER_LEN,
            iova: at(BUFFER),
            access: 1,
        };
        let lkey = host.reg_mr(context, region).unwrap();
        let new = NewCq { user_handle: 0, cqe: 63, channel: None, vector: 0, flags: 0 };
        let driver =
            CreateCq { buf_addr: at(CQ), db_addr: at(CQ_RECORDS), cqe_size: 64, ..CreateCq::default() };
        let cqn = host.create_cq(context, new, &driver).unwrap();
        let new = NewQp {
            user_handle: 0,
            pd,
            send_cq: cqn,
            receive_cq: cqn,
            cap: QpCap::default(),
            all_signalled: true,
            kind,
            srq: None,
        };
        let driver = CreateQp {
            buf_addr: at(RING),
            db_addr: at(RECORDS),
            sq_wqe_count: requests,
            rq_wqe_count: receives,
            rq_wqe_shift: 4,
            ..CreateQp::default()
        };
        let (qpn, _) = host.create_qp(context, new, &driver).unwrap();
        let qp = host.engine.qps.get_mut(&qpn).unwrap();
        (qp.state, qp.port, qp.attr.qkey) = (QpState::Rts, port, 0x11);
        Self { host, cqn, qpn, lkey, memory }
    }

    fn at(&self, offset: u64) -> u64 {
        self.memory.as_ptr() as u64 + offset
    }

    fn put(&self, offset: u64, bytes: [u8; 8]) {
        self.memory[offset as usize / 8].store(u64::from_ne_bytes(bytes), Ordering::Release);
    }

    /// Lets the device work; it must come to rest.
    fn rest(&mut self) {
        let mut choices = Choices::new(1);
        let idle = (0..1000).any(|_| drive::step(&mut self.host, &mut choices) == Step::Idle);
        assert!(idle, "the device comes to rest");
    }

    fn completions(&self) -> u32 {
        self.host.engine.shared.cqs.get(self.cqn).unwrap().pending()
    }
}

#[test]
fn a_queue_pair_without_requests_has_nothing_to_ring() {
    for kind in [RC, UD] {
        let mut machine = Machine::new(kind, 0, 1);
        // Four requests, by the record: the second of the two.
        machine.put(RECORDS, [0, 0, 0, 0, 0, 0, 0, 4]);
        machine.host.engine.qps.get_mut(&machine.qpn).unwrap().doorbell(&mut machine.host.engine.shared);
        machine.rest();
        assert_eq!(machine.completions(), 0);
    }
}

#[test]
fn a_datagram_that_is_too_long_for_any_port_is_dropped() {
    let mut machine = Machine::new(UD, 0, 1);
    let mut piece = [(BUFFER_LEN as u32).to_be_bytes(), machine.lkey.to_be_bytes()].concat();
    piece.extend(machine.at(BUFFER).to_be_bytes());
    machine.put(RING, piece[..8].try_into().unwrap());
    machine.put(RING + 8, piece[8..].try_into().unwrap());
    machine.put(RECORDS, [0, 0, 0, 1, 0, 0, 0, 0]);
    // An IPv4 address: its header has room for a length of 16 bits.
    let gid = machine.host.engine.qps.get(&machine.qpn).unwrap().port.gid(3).unwrap().raw;
    let address = Address { lid: 0, gid: Some(gid) };
    let route = Some(Route { udp: true, ..Route::default() });
    for (len, completions) in [(65_500, 0), (4097, 0), (4096, 1)] {
        let datagram = Datagram { qkey: 0x11, imm: None, solicited: false, sl: 0, route, data: vec![0; len] };
        let (from, to, target) = (address, address, machine.qpn);
        machine.host.engine.shared.send(Packet {
            from,
            to,
            source: 9,
            target,
            body: Body::Datagram(datagram),
        });
        machine.rest();
        assert_eq!(machine.completions(), completions, "{len} bytes");
    }
}
