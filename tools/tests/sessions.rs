//! Two ends that only share a TCP connection and a fabric: whole transfers, and every kind of bad peer.
//! The fabric is the mock's under another name, so that the command takes it for one that joins processes.

mod posing;

use ibv::{
    IbvConfig, IbvDomain, IbvQpInfo, Provider,
    mock::{Fabric, FabricConfig, MockProvider, Schedule},
};
use ibv_tools::{Failure, run, transfer};
use posing::{Posing, number};
use std::{
    ffi::OsString,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// A fabric, a folder, and a file in it.
struct Lab {
    fabric: Fabric,
    folder: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        Self { fabric: Fabric::default(), folder: tempfile::tempdir().unwrap() }
    }

    fn source(&self, bytes: usize) -> PathBuf {
        let path = self.folder.path().join("source.bin");
        let content: Vec<u8> = (0..bytes).map(|i| ((i * 7919) >> 5) as u8).collect();
        fs::write(&path, content).unwrap();
        path
    }

    /// A place of its own, so that whatever is left behind is seen.
    fn target(&self) -> PathBuf {
        let folder = self.folder.path().join("received");
        fs::create_dir_all(&folder).unwrap();
        folder.join("target.bin")
    }

    fn left_behind(&self) -> Vec<OsString> {
        let folder = self.folder.path().join("received");
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    /// `ibv transfer`, in this process; the exit code.
    fn transfer(&self, path: &Path, device: &str, options: &[&str]) -> u8 {
        let words = ["ibv", "transfer", "--timeout", "5", "--device", device, "--json"];
        let args = words.iter().chain(options).map(OsString::from).chain([path.into()]);
        number(run(args.collect::<Vec<_>>(), &|| Posing::on(&self.fabric)))
    }

    fn domain(&self, device: &str) -> IbvDomain<ibv::AnyDomain> {
        Posing::on(&self.fabric).open(device).unwrap()
    }

    /// What the command that sends `bytes` bytes makes of `peer`.
    fn sender_meets(&self, bytes: usize, peer: impl FnOnce(&Self, TcpStream) + Send) -> u8 {
        let (source, listener) = (self.source(bytes), TcpListener::bind("127.0.0.1:0").unwrap());
        let addr = listener.local_addr().unwrap().to_string();
        thread::scope(|scope| {
            scope.spawn(move || peer(self, listener.accept().unwrap().0));
            self.transfer(&source, "mock0", &["--to", &addr])
        })
    }

    /// What the command that receives makes of `peer`.
    fn receiver_meets(&self, peer: impl FnOnce(&Self, TcpStream) + Send) -> u8 {
        let (target, addr) = (self.target(), free_address());
        thread::scope(|scope| {
            scope.spawn(move || peer(self, reach(addr)));
            self.transfer(&target, "mock1", &["--listen", &addr.to_string()])
        })
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Connects as soon as somebody listens.
fn reach(addr: SocketAddr) -> TcpStream {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpStream::connect(addr) {
            Ok(link) => return link,
            Err(e) if Instant::now() > deadline => panic!("waited 10 s for a listener at {addr}: {e}"),
            Err(_) => thread::yield_now(),
        }
    }
}

/// The protocol from its description: a peer that is right until it chooses not to be.
struct Peer {
    link: TcpStream,
    qp: ibv::Connected<Box<dyn ibv::IbvQueuePair>>,
    domain: IbvDomain<ibv::AnyDomain>,
}

const HELLO: u8 = 0;
const OFFER: u8 = 1;
const GRANT: u8 = 2;
const PLACED: u8 = 3;
const VERDICT: u8 = 4;

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32 + 1).to_be_bytes();
    [b"ibvT\x01\0\0\0".as_slice(), &len, &[kind], payload].concat()
}

fn endpoint(bytes: &[u8]) -> Vec<u8> {
    frame(HELLO, &[&[bytes.len() as u8], bytes].concat())
}

/// A number as the messages have it: seven bits a byte, low ones first.
fn varint(mut n: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

fn read_frame(link: &mut TcpStream) -> Vec<u8> {
    let mut head = [0; 12];
    link.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    link.read_exact(&mut head).expect("a message within 10 s");
    let mut body = vec![0; u32::from_be_bytes(head[8..].try_into().unwrap()) as usize];
    link.read_exact(&mut body).unwrap();
    body
}

impl Peer {
    fn meet(lab: &Lab, mut link: TcpStream, device: &str) -> Self {
        let domain = lab.domain(device);
        let cq = domain.create_cq(256).unwrap();
        let mut qp = domain.create_queue_pair(IbvConfig::default(), &cq, &cq).unwrap();
        qp.post_recv(&[]).unwrap();
        link.write_all(&endpoint(&qp.get_qp_info().unwrap().to_bytes())).unwrap();
        let hello = read_frame(&mut link);
        assert_eq!(hello[..2], [HELLO, IbvQpInfo::ENCODED_LEN as u8]);
        let qp = qp.connect(&IbvQpInfo::from_bytes(&hello[2..]).unwrap()).map_err(|(_, e)| e).unwrap();
        Self { link, qp, domain }
    }

    fn say(&mut self, kind: u8, payload: &[u8]) {
        self.link.write_all(&frame(kind, payload)).unwrap();
    }

    fn hear(&mut self, kind: u8) {
        assert_eq!(read_frame(&mut self.link)[0], kind);
    }

    fn grant(&mut self, addr: u64, len: u64, rkey: u32) {
        self.say(GRANT, &[varint(addr), varint(len), varint(rkey.into())].concat());
    }

    fn offer(&mut self, bytes: u64) {
        self.say(OFFER, &[varint(bytes), vec![7; 32]].concat());
    }

    /// What the other end says when it gives up.
    fn last_words(&mut self) -> String {
        let body = read_frame(&mut self.link);
        String::from_utf8_lossy(&body[2..]).into_owned()
    }
}

#[test]
fn a_file_crosses_and_replaces_what_was_there() {
    let lab = Lab::new();
    let (source, target, addr) = (lab.source(3_000_001), lab.target(), free_address());
    fs::write(&target, "older").unwrap();
    let codes = thread::scope(|scope| {
        let receiver = scope.spawn(|| lab.transfer(&target, "mock1", &["--listen", &addr.to_string()]));
        let send = || lab.transfer(&source, "mock0", &["--to", &addr.to_string(), "--chunk", "64K"]);
        (once_reachable(send), receiver.join().unwrap())
    });
    assert_eq!(codes, (0, 0));
    assert_eq!(fs::read(&target).unwrap(), fs::read(&source).unwrap());
    assert_eq!(lab.left_behind(), ["target.bin"]);
}

/// The exit code of `send` once somebody listens.
fn once_reachable(send: impl Fn() -> u8) -> u8 {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match send() {
            20 if Instant::now() < deadline => thread::yield_now(),
            code => return code,
        }
    }
}

#[test]
fn the_library_moves_files_over_any_schedule_and_by_static_dispatch() {
    for schedule in [Schedule::InOrder, Schedule::Unordered { seed: 7, chunk: 100 }] {
        let fabric = Fabric::new(FabricConfig { schedule, ..FabricConfig::default() });
        let provider = MockProvider::new(fabric);
        let open = |i: usize| {
            let info = provider.devices().unwrap().swap_remove(i);
            IbvDomain::new(provider.open(&info).unwrap(), info)
        };
        let (lab, settings) = (Lab::new(), transfer::Settings { chunk: 1000, ..Default::default() });
        let report =
            transfer::both_ends(&open(0), &open(1), &lab.source(54_321), &settings, &mut ()).unwrap();
        assert!(report.equal && report.put.unwrap().requests == 55, "{report}");
    }
}

#[test]
fn a_device_without_immediates_or_sends_is_enough() {
    let absent = ibv::Support::Absent;
    let fabric = Fabric::new(FabricConfig { write_with_imm: absent, ..FabricConfig::default() });
    let lab = Lab { fabric, ..Lab::new() };
    let (near, far) = (lab.domain("mock0"), lab.domain("mock1"));
    let report = transfer::both_ends(&near, &far, &lab.source(99), &Default::default(), &mut ()).unwrap();
    assert!(report.equal);
}

#[test]
fn a_peer_that_speaks_something_else_is_code_21_on_either_side() {
    let chat = |_: &Lab, mut link: TcpStream| {
        let _ = link.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let _ = link.read_to_end(&mut Vec::new());
    };
    assert_eq!(Lab::new().sender_meets(10, chat), 21);
}

/// A port scanner, a browser and a mute one, and then the sender.
#[test]
fn a_receiver_passes_over_strangers_until_its_sender_comes() {
    let lab = Lab::new();
    let (source, target, addr) = (lab.source(5000), lab.target(), free_address());
    let codes = thread::scope(|scope| {
        let listen = ["--listen", &addr.to_string(), "--wait", "30"].map(str::to_owned);
        let (lab, target) = (&lab, &target);
        let receiver = scope
            .spawn(move || lab.transfer(target, "mock1", &listen.iter().map(|s| &**s).collect::<Vec<_>>()));
        drop(reach(addr));
        let mut browser = reach(addr);
        browser.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let _mute = reach(addr);
        // The browser is shown out, and the listener is still there.
        let mut told = Vec::new();
        browser.read_to_end(&mut told).unwrap();
        assert_eq!(told, b"ibvT");
        let sent = lab.transfer(&source, "mock0", &["--to", &addr.to_string()]);
        (sent, receiver.join().unwrap())
    });
    assert_eq!(codes, (0, 0));
    assert_eq!(fs::read(&target).unwrap(), fs::read(&source).unwrap());
}

#[test]
fn a_receiver_to_whom_nobody_comes_in_time_is_code_24() {
    let (lab, addr) = (Lab::new(), free_address().to_string());
    let listen = ["--listen", &addr, "--wait", "0.05"];
    assert_eq!((lab.transfer(&lab.target(), "mock1", &listen), lab.left_behind().len()), (24, 0));
}

#[test]
fn another_version_of_the_protocol_or_of_the_endpoint_is_code_22() {
    let protocol = |_: &Lab, mut link: TcpStream| {
        let _ = link.write_all(b"ibvT\x09\0\0\0\0\0\0\x01\x05");
        let _ = link.read_to_end(&mut Vec::new());
    };
    let form = |lab: &Lab, mut link: TcpStream| {
        let domain = lab.domain("mock1");
        let cq = domain.create_cq(256).unwrap();
        let mut qp = domain.create_queue_pair(IbvConfig::default(), &cq, &cq).unwrap();
        let mut bytes = qp.get_qp_info().unwrap().to_bytes();
        bytes[4] = 9;
        let _ = link.write_all(&endpoint(&bytes));
        let _ = link.read_to_end(&mut Vec::new());
    };
    assert_eq!(Lab::new().sender_meets(10, protocol), 22);
    assert_eq!(Lab::new().sender_meets(10, form), 22);
    assert_eq!(Lab::new().receiver_meets(protocol), 22);
    assert_eq!(Lab::new().receiver_meets(form), 22);
}

#[test]
fn an_endpoint_that_is_none_is_code_21() {
    let truncated = |_: &Lab, mut link: TcpStream| {
        let _ = link.write_all(&endpoint(b"ibvE\x01\0\0\x40"));
        let _ = link.read_to_end(&mut Vec::new());
    };
    assert_eq!(Lab::new().sender_meets(10, truncated), 21);
}

#[test]
fn a_peer_that_goes_away_is_code_23_whenever_it_goes() {
    assert_eq!(Lab::new().sender_meets(10, |_, link| drop(link)), 23);
    let after_hello = |lab: &Lab, link: TcpStream| drop(Peer::meet(lab, link, "mock1"));
    assert_eq!(Lab::new().sender_meets(10, after_hello), 23);
    let after_offer = |lab: &Lab, link: TcpStream| {
        let mut peer = Peer::meet(lab, link, "mock1");
        peer.hear(OFFER);
    };
    assert_eq!(Lab::new().sender_meets(10, after_offer), 23);
}

#[test]
fn a_peer_that_goes_away_while_bytes_move_is_code_23_not_a_riddle() {
    // The region is gone when the first put arrives, and so is the peer.
    let midway = |lab: &Lab, link: TcpStream| {
        let mut peer = Peer::meet(lab, link, "mock1");
        peer.hear(OFFER);
        let region = peer.domain.alloc(1 << 20).unwrap();
        let remote = region.remote();
        drop(region);
        peer.grant(remote.addr, 1 << 20, remote.rkey);
    };
    assert_eq!(Lab::new().sender_meets(1 << 20, midway), 23);
}

#[test]
fn a_sender_that_goes_away_midway_leaves_nothing_behind() {
    let lab = Lab::new();
    let midway = |lab: &Lab, link: TcpStream| {
        let mut peer = Peer::meet(lab, link, "mock0");
        peer.offer(100_000);
        peer.hear(GRANT);
    };
    assert_eq!((lab.receiver_meets(midway), lab.left_behind().len()), (23, 0));
}

#[test]
fn a_file_that_was_there_survives_a_transfer_that_fails() {
    let lab = Lab::new();
    fs::write(lab.target(), "older").unwrap();
    let leaves = |lab: &Lab, link: TcpStream| drop(Peer::meet(lab, link, "mock0"));
    assert_eq!(lab.receiver_meets(leaves), 23);
    assert_eq!(fs::read(lab.target()).unwrap(), b"older");
    assert_eq!(lab.left_behind().len(), 1);
}

#[test]
fn a_silent_peer_is_code_24_after_the_time_that_was_given() {
    let lab = Lab::new();
    let source = lab.source(10);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let start = Instant::now();
    assert_eq!(lab.transfer(&source, "mock0", &["--to", &addr, "--timeout", "0.5"]), 24);
    assert!(start.elapsed() >= Duration::from_millis(500));
}

#[test]
fn a_peer_that_grants_the_wrong_memory_is_told_what_happened() {
    let wrong = |lab: &Lab, link: TcpStream| {
        let mut peer = Peer::meet(lab, link, "mock1");
        peer.hear(OFFER);
        let region = peer.domain.alloc(4096).unwrap();
        let remote = region.remote();
        peer.grant(remote.addr, 4096, remote.rkey ^ 0xffff);
        let words = peer.last_words();
        assert!(words.contains("work request"), "{words}");
        assert!(peer.qp.state().is_ok());
    };
    assert_eq!(Lab::new().sender_meets(4096, wrong), 1);
}

#[test]
fn a_grant_that_is_too_small_is_code_21() {
    let small = |lab: &Lab, link: TcpStream| {
        let mut peer = Peer::meet(lab, link, "mock1");
        peer.hear(OFFER);
        peer.grant(0, 5, 0);
        assert!(peer.last_words().contains("granted 5 bytes for a file of 10"));
    };
    assert_eq!(Lab::new().sender_meets(10, small), 21);
}

#[test]
fn a_lying_checksum_is_code_40_on_either_side_and_nothing_is_kept() {
    let lies = |lab: &Lab, link: TcpStream| {
        let mut peer = Peer::meet(lab, link, "mock1");
        peer.hear(OFFER);
        let region = peer.domain.alloc(10).unwrap();
        let remote = region.remote();
        peer.grant(remote.addr, 10, remote.rkey);
        peer.hear(PLACED);
        peer.say(VERDICT, &[0; 32]);
        assert!(peer.last_words().contains("checksums differ"));
    };
    assert_eq!(Lab::new().sender_meets(10, lies), 40);
    let lab = Lab::new();
    let sends_nothing = |lab: &Lab, link: TcpStream| {
        let mut peer = Peer::meet(lab, link, "mock0");
        peer.offer(10);
        peer.hear(GRANT);
        peer.say(PLACED, &[0]);
        peer.hear(VERDICT);
        assert!(peer.last_words().contains("checksums differ"));
    };
    assert_eq!((lab.receiver_meets(sends_nothing), lab.left_behind().len()), (40, 0));
}

#[test]
fn an_offer_larger_than_memory_is_code_14_and_the_sender_hears_why() {
    let lab = Lab::new();
    let huge = |lab: &Lab, link: TcpStream| {
        let mut peer = Peer::meet(lab, link, "mock0");
        peer.offer(u64::MAX);
        assert!(peer.last_words().contains("registered memory are needed"));
    };
    assert_eq!((lab.receiver_meets(huge), lab.left_behind().len()), (14, 0));
}

#[test]
fn messages_out_of_turn_are_code_21() {
    let early = |lab: &Lab, link: TcpStream| {
        let mut peer = Peer::meet(lab, link, "mock0");
        peer.say(VERDICT, &[0; 32]);
        assert!(peer.last_words().contains("it sent verdict where an offer belongs"));
    };
    assert_eq!(Lab::new().receiver_meets(early), 21);
}

#[test]
fn a_place_that_can_not_be_written_is_found_before_anybody_is_waited_for() {
    let lab = Lab::new();
    let addr = free_address().to_string();
    assert_eq!(lab.transfer(Path::new("/nonexistent/folder/out"), "mock0", &["--listen", &addr]), 15);
    assert_eq!(lab.transfer(lab.folder.path(), "mock0", &["--listen", &addr]), 12);
}

#[test]
fn a_device_that_will_not_do_is_refused_before_anybody_is_waited_for() {
    let fabric = Fabric::new(FabricConfig { write: ibv::Support::Absent, ..FabricConfig::default() });
    let (able, unable, addr) = (Lab::new(), Lab { fabric, ..Lab::new() }, free_address().to_string());
    for end in [["--listen", &addr], ["--to", &addr]] {
        assert_eq!(unable.transfer(&unable.source(10), "mock0", &end), 31);
    }
    assert_eq!(able.transfer(&able.source(10), "mock0", &["--to", &addr, "--depth", "4000000000"]), 2);
}

#[test]
fn an_address_where_nobody_is_or_may_be_is_code_20() {
    let lab = Lab::new();
    let addr = free_address().to_string();
    assert_eq!(lab.transfer(&lab.source(10), "mock0", &["--to", &addr]), 20);
    for nowhere in ["192.0.2.1:99", "no address:1"] {
        assert_eq!(lab.transfer(&lab.target(), "mock0", &["--listen", nowhere]), 20);
    }
    for nonsense in ["127.0.0.1", "host:", ":7", "host:65536"] {
        assert_eq!(lab.transfer(&lab.source(10), "mock0", &["--to", nonsense]), 2);
        assert_eq!(lab.transfer(&lab.target(), "mock0", &["--listen", nonsense]), 2);
    }
}

#[test]
fn a_failure_of_both_ends_here_is_reported_by_its_cause() {
    // The far end runs out of regions, the near end only hears of it.
    let lab = Lab::new();
    let _ = lab.fabric.faults().on(1).fail_always(ibv::mock::Verb::RegMr, 12);
    let (near, far) = (lab.domain("mock0"), lab.domain("mock1"));
    let failed = transfer::both_ends(&near, &far, &lab.source(10), &Default::default(), &mut ());
    match failed.unwrap_err() {
        Failure::Rdma(e) => assert!(e.to_string().contains("reg_mr") || e.errno() == Some(12), "{e}"),
        other => panic!("{other}"),
    }
}

#[test]
fn a_fabric_that_loses_requests_is_not_waited_for_longer_than_allowed() {
    let lab = Lab::new();
    let _ = lab.fabric.faults().swallow_requests(1000);
    let (near, far) = (lab.domain("mock0"), lab.domain("mock1"));
    let settings = transfer::Settings { timeout: Duration::from_secs(1), ..Default::default() };
    let failed = transfer::both_ends(&near, &far, &lab.source(10), &settings, &mut ()).unwrap_err();
    assert_eq!(failed.code(), 24, "{failed}");
}
