//! The bytes our rings hold are those that libmlx5 writes for the same requests on a twin queue pair, and
//! those that the C header writes; our completions say what `ibv_poll_cq` says.
//!
//! What may differ from libmlx5 is masked, and this is all of it: the queue pair's number and the keys,
//! because the twin has its own; and what libmlx5 leaves as an older WQE wrote it and we zero: the bytes
//! behind inline data up to the next segment, and the operand that a fetch-add does not have.
#![allow(unsafe_code)]

mod common;
#[path = "golden/failures.rs"]
mod failures;
#[path = "golden/receives.rs"]
mod receives;

use common::{dv_qp, nic, seed_domain};
use ibv_core::{
    Access, Connected, IbvConfig, IbvDomain, IbvMemoryRegion, IbvMemoryRegionView, IbvWc, Op, Payload,
    Poller, Request, Transport, negotiate,
    verbs::{self, Context, Cq, LocalEndpoint, Mr, Pd, Qp, state},
};
use ibv_sys as sys;
use proptest::{prelude::*, test_runner::TestRunner};
use provider_mlx5::{IbvQueuePair, SeedDomain, decode};
use rdmaxcel_sys as shim;
use std::{
    mem,
    ptr::{self, NonNull},
    sync::Arc,
};

const REGION: usize = 4096;
const DEPTH: u32 = 32;
const RANGES: u32 = 4;
const INLINE: u32 = 100;

/// A request by its parts; ranges are offsets into the region's first half, the remote side its second.
#[derive(Clone, Debug)]
struct Spec {
    op: Op,
    ranges: Vec<(u16, u16)>,
    inline: Option<Vec<u8>>,
    remote: u16,
    signaled: bool,
    fence: bool,
    solicited: bool,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        Just(Op::Write),
        any::<u32>().prop_map(Op::WriteWithImm),
        Just(Op::Read),
        Just(Op::Send),
        any::<u32>().prop_map(Op::SendWithImm),
        any::<(u64, u64)>().prop_map(|(compare, swap)| Op::CompareSwap { compare, swap }),
        any::<u64>().prop_map(Op::FetchAdd),
    ]
}

fn spec() -> impl Strategy<Value = Spec> {
    let ranges = prop::collection::vec((0u16..1900, 1u16..100), 0..=RANGES as usize);
    let inline = prop::option::of(prop::collection::vec(any::<u8>(), 0..=INLINE as usize));
    (op(), ranges, inline, 0u16..200, any::<[bool; 3]>()).prop_map(|(op, ranges, inline, remote, flags)| {
        let atomic = matches!(op, Op::CompareSwap { .. } | Op::FetchAdd(_));
        Spec {
            op,
            ranges: if atomic { vec![(8, 8)] } else { ranges },
            inline: inline.filter(|_| !op.fills_local()),
            remote: if atomic { remote * 8 } else { remote },
            signaled: flags[0],
            fence: flags[1],
            solicited: flags[2] && !op.fills_local() && op != Op::Write,
        }
    })
}

impl Spec {
    fn len(&self) -> usize {
        self.inline.as_ref().map_or_else(|| self.ranges.iter().map(|r| usize::from(r.1)).sum(), Vec::len)
    }

    fn takes_receive(&self) -> bool {
        matches!(self.op, Op::WriteWithImm(_) | Op::Send | Op::SendWithImm(_))
    }
}

/// Ours: the struct that shows its rings.
struct Ours {
    qp: Connected<IbvQueuePair>,
    pollers: [Poller<SeedDomain>; 2],
    region: IbvMemoryRegion<SeedDomain>,
    receive: IbvMemoryRegion<SeedDomain>,
    /// Basic blocks built before the present batch.
    at: u64,
}

impl Ours {
    fn new(domain: &IbvDomain<SeedDomain>) -> Self {
        let cqs = [domain.create_cq(DEPTH).unwrap(), domain.create_cq(DEPTH).unwrap()];
        let mut qp = domain.create_queue_pair(config(), &cqs[0], &cqs[1]).unwrap();
        let info = qp.get_qp_info().unwrap();
        let qp = qp.connect(&info).map_err(|(_, e)| e).unwrap();
        let region = domain.alloc(REGION).unwrap();
        region.write_at(0, &(0..REGION).map(|i| i as u8).collect::<Vec<_>>()).unwrap();
        let pollers = cqs.map(|cq| cq.poller().unwrap());
        Self { qp, pollers, region, receive: domain.alloc(1024).unwrap(), at: 0 }
    }

    fn post(&mut self, specs: &[Spec]) {
        specs.iter().filter(|s| s.takes_receive()).for_each(|_| {
            self.qp.post_recv(&[self.receive.view()]).unwrap();
        });
        let mut batch = self.qp.batch();
        for spec in specs {
            let views: Vec<_> = spec.ranges.iter().map(|r| view(&self.region, *r)).collect();
            let local = spec.inline.as_ref().map_or(Payload::Sges(&views), |bytes| Payload::Inline(bytes));
            let remote =
                self.region.remote().slice(2048 + usize::from(spec.remote), remote_len(spec)).unwrap();
            let mut request = Request::new(spec.op, remote, local);
            if !spec.signaled {
                request = request.unsignaled();
            }
            if spec.fence {
                request = request.fenced();
            }
            if spec.solicited {
                request = request.solicited();
            }
            let _ids = batch.push(&request).unwrap();
        }
        batch.ring().unwrap();
    }

    fn ring(&mut self) -> &sys::mlx5dv_qp {
        dv_qp(self.qp.queue_pair())
    }

    fn poll(&mut self) -> [Vec<IbvWc>; 2] {
        self.pollers.each_mut().map(|poller| {
            let mut wcs = [IbvWc::default(); DEPTH as usize];
            let n = poller.poll(&mut wcs).unwrap();
            wcs[..n].to_vec()
        })
    }
}

fn view(region: &IbvMemoryRegion<SeedDomain>, (at, len): (u16, u16)) -> IbvMemoryRegionView<'_> {
    region.view().slice(at.into(), len.into()).unwrap()
}

fn remote_len(spec: &Spec) -> usize {
    if matches!(spec.op, Op::CompareSwap { .. } | Op::FetchAdd(_)) { 8 } else { spec.len() }
}

fn config() -> IbvConfig {
    let mut config = IbvConfig::default();
    (config.max_send_wr, config.max_recv_wr, config.psn) = (DEPTH, DEPTH, Some(5));
    (config.max_send_sge, config.max_recv_sge, config.max_inline) = (RANGES, 2, INLINE);
    config
}

/// A queue pair that libmlx5 posts to and polls. Fields in the order in which they go.
struct Twin {
    qp: Qp,
    cqs: [Arc<Cq>; 2],
    mr: Mr,
    receive: Mr,
    buf: *const u8,
    blocks: u64,
}

impl Twin {
    /// Over the memory of `ours`, so that addresses are the same.
    fn new(ours: &Ours) -> Self {
        let context = Context::open(verbs::load().unwrap(), "mlx5_0").unwrap();
        let pd = Pd::alloc(&context).unwrap();
        let cqs = [Cq::create(&context, DEPTH, false).unwrap(), Cq::create(&context, DEPTH, false).unwrap()];
        let mut qp = Self::create(&pd, &cqs);
        let config = config();
        let endpoint = LocalEndpoint::discover(&context, &config).unwrap();
        let info = endpoint.info(Transport::RC, qp.qp_num(), &config);
        let (path, facts) = (negotiate(&info, &info).unwrap(), endpoint.facts(&context).unwrap());
        state::rc_to_init(&mut qp, &config, Access::ALL.bits(), &facts).unwrap();
        state::rc_to_rts(&mut qp, &config, &path, &facts).unwrap();
        let register = |region: &IbvMemoryRegion<SeedDomain>| {
            let at = NonNull::new(region.view().addr() as *mut u8).unwrap();
            // SAFETY: the region outlives the twin.
            unsafe { Mr::register(&pd, NonNull::slice_from_raw_parts(at, region.len()), Access::ALL) }
                .unwrap()
        };
        let (mut dv, mut obj) = (sys::mlx5dv_qp::default(), sys::mlx5dv_obj::default());
        (obj.qp.in_, obj.qp.out) = (qp.as_ptr(), &mut dv);
        // SAFETY: a live queue pair and a writable struct.
        let code = unsafe { sys::mlx5dv().unwrap().mlx5dv_init_obj(&mut obj, u64::from(sys::MLX5DV_OBJ_QP)) };
        assert_eq!(code, 0);
        let (buf, blocks) = (dv.sq.buf.cast_const().cast(), dv.sq.wqe_cnt.into());
        let (mr, receive) = (register(&ours.region), register(&ours.receive));
        Self { qp, cqs, mr, receive, buf, blocks }
    }

    fn create(pd: &Arc<Pd>, cqs: &[Arc<Cq>; 2]) -> Qp {
        let config = config();
        let mut attr = sys::ibv_qp_init_attr {
            send_cq: cqs[0].as_ptr(),
            recv_cq: cqs[1].as_ptr(),
            cap: sys::ibv_qp_cap {
                max_send_wr: config.max_send_wr,
                max_recv_wr: config.max_recv_wr,
                max_send_sge: config.max_send_sge,
                max_recv_sge: config.max_recv_sge,
                max_inline_data: config.max_inline,
            },
            qp_type: sys::IBV_QPT_RC,
            ..Default::default()
        };
        // SAFETY: live objects, a writable struct; the handle becomes the queue pair's only owner.
        unsafe {
            let raw = NonNull::new(pd.context().verbs().ibv_create_qp(pd.as_ptr(), &mut attr)).unwrap();
            Qp::from_raw(raw, pd.clone(), cqs[0].clone(), cqs[1].clone())
        }
    }

    fn post(&mut self, specs: &[Spec]) {
        for _ in specs.iter().filter(|s| s.takes_receive()) {
            self.post_recv();
        }
        let base = self.range((0, 0)).addr;
        let mut ranges: Vec<Vec<sys::ibv_sge>> = specs.iter().map(|spec| self.ranges(spec)).collect();
        let mut wrs: Vec<_> =
            specs.iter().zip(&mut ranges).map(|(spec, sges)| self.request(spec, sges, base)).collect();
        for i in 1..wrs.len() {
            wrs[i - 1].next = &mut wrs[i];
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the list and its ranges live through the call.
        let code = unsafe { sys::ibv_post_send(self.qp.as_ptr(), &mut wrs[0], &mut bad) };
        assert_eq!(code, 0);
    }

    fn post_recv(&mut self) {
        // SAFETY: live registrations; the request lives through the call.
        unsafe {
            let mr = &*self.receive.as_ptr();
            let mut sge = sys::ibv_sge { addr: mr.addr as u64, length: 1024, lkey: mr.lkey };
            let mut wr = sys::ibv_recv_wr { wr_id: 0, next: ptr::null_mut(), sg_list: &mut sge, num_sge: 1 };
            let mut bad = ptr::null_mut();
            assert_eq!(sys::ibv_post_recv(self.qp.as_ptr(), &mut wr, &mut bad), 0);
        }
    }

    fn range(&self, (at, len): (u16, u16)) -> sys::ibv_sge {
        // SAFETY: a live registration.
        let mr = unsafe { &*self.mr.as_ptr() };
        sys::ibv_sge { addr: mr.addr as u64 + u64::from(at), length: len.into(), lkey: mr.lkey }
    }

    fn ranges(&self, spec: &Spec) -> Vec<sys::ibv_sge> {
        match &spec.inline {
            Some(bytes) => {
                vec![sys::ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 }]
            }
            None => spec.ranges.iter().map(|r| self.range(*r)).collect(),
        }
    }

    fn request(&self, spec: &Spec, sges: &mut [sys::ibv_sge], base: u64) -> sys::ibv_send_wr {
        // SAFETY: zeroes are a request of nothing.
        let mut wr: sys::ibv_send_wr = unsafe { mem::zeroed() };
        (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), sges.len() as i32);
        let bit = |on: bool, flag: u32| if on { flag } else { 0 };
        wr.send_flags = bit(spec.signaled, sys::IBV_SEND_SIGNALED)
            | bit(spec.fence, sys::IBV_SEND_FENCE)
            | bit(spec.solicited, sys::IBV_SEND_SOLICITED)
            | bit(spec.inline.is_some(), sys::IBV_SEND_INLINE);
        wr.__bindgen_anon_1.imm_data = spec.op.imm().unwrap_or(0).to_be();
        // SAFETY: a live registration.
        let rkey = unsafe { (*self.mr.as_ptr()).rkey };
        let remote_addr = base + 2048 + u64::from(spec.remote);
        wr.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        let atomic = |compare_add, swap| sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr,
            compare_add,
            swap,
            rkey,
        };
        wr.opcode = match spec.op {
            Op::WriteWithImm(_) => sys::IBV_WR_RDMA_WRITE_WITH_IMM,
            Op::Read => sys::IBV_WR_RDMA_READ,
            Op::Send => sys::IBV_WR_SEND,
            Op::SendWithImm(_) => sys::IBV_WR_SEND_WITH_IMM,
            Op::CompareSwap { compare, swap } => {
                wr.wr.atomic = atomic(compare, swap);
                sys::IBV_WR_ATOMIC_CMP_AND_SWP
            }
            Op::FetchAdd(add) => {
                wr.wr.atomic = atomic(add, 0);
                sys::IBV_WR_ATOMIC_FETCH_AND_ADD
            }
            _ => sys::IBV_WR_RDMA_WRITE,
        };
        wr
    }

    fn poll(&mut self) -> [Vec<sys::ibv_wc>; 2] {
        self.cqs.each_ref().map(|cq| {
            // SAFETY: zeroes are a completion; the array is writable.
            unsafe {
                let mut wcs: [sys::ibv_wc; DEPTH as usize] = mem::zeroed();
                let n = sys::ibv_poll_cq(cq.as_ptr(), wcs.len() as i32, wcs.as_mut_ptr());
                wcs[..usize::try_from(n).unwrap()].to_vec()
            }
        })
    }
}

/// The WQE at basic block `at`: its segments, and the blocks that it takes.
fn wqe(buf: *const u8, blocks: u64, at: u64) -> (Vec<u8>, u64) {
    // SAFETY: inside the ring, whatever the index; nothing runs beside this.
    let byte = |i: u64| unsafe { buf.add(((at * 64 + i) % (blocks * 64)) as usize).read_volatile() };
    let ds = u64::from(byte(7) & 0x3f);
    ((0..ds * 16).map(byte).collect(), ds.div_ceil(4))
}

/// Blanks what differs between two queue pairs; see the top of the file.
fn masked(mut wqe: Vec<u8>, spec: &Spec) -> Vec<u8> {
    wqe[4..7].fill(0);
    let fixed = match spec.op {
        Op::Write | Op::WriteWithImm(_) | Op::Read => 1,
        Op::CompareSwap { .. } | Op::FetchAdd(_) => 2,
        _ => 0,
    };
    if fixed > 0 {
        wqe[24..28].fill(0);
    }
    if let Op::FetchAdd(_) = spec.op {
        wqe[40..48].fill(0);
    }
    let data = 16 * (1 + fixed);
    match &spec.inline {
        Some(bytes) if !bytes.is_empty() => wqe[data + 4 + bytes.len()..].fill(0),
        Some(_) => {}
        None => wqe[data..].chunks_mut(16).for_each(|segment| segment[4..8].fill(0)),
    }
    wqe
}

/// What the C header makes of the request, at the same place.
fn by_header(ours: &mut Ours, spec: &Spec) -> Vec<u8> {
    let (at, lkey) = (ours.at, ours.region.view().lkey());
    let base = ours.region.view().addr();
    let number = ours.qp.queue_pair().get_qp_info().unwrap().qp_num;
    let sges: Vec<_> = spec
        .ranges
        .iter()
        .map(|(o, n)| shim::rdmaxcel_sge { addr: base + u64::from(*o), length: (*n).into(), lkey })
        .collect();
    let (operand, compare) = match spec.op {
        Op::CompareSwap { compare, swap } => (swap, compare),
        Op::FetchAdd(add) => (add, 0),
        _ => (0, 0),
    };
    let inline = spec.inline.as_deref();
    let bit = |on: bool, flag: u8| if on { flag } else { 0 };
    let wr = shim::rdmaxcel_wr {
        raddr: base + 2048 + u64::from(spec.remote),
        operand,
        compare,
        sges: sges.as_ptr(),
        inline_data: inline.map_or(ptr::null(), <[u8]>::as_ptr),
        rkey: ours.region.remote().rkey,
        imm: spec.op.imm().unwrap_or(0),
        num_sge: if inline.is_some() { 0 } else { sges.len() as u32 },
        inline_len: inline.map_or(0, <[u8]>::len) as u32,
        opcode: provider_mlx5::wqe::opcode(spec.op),
        flags: bit(spec.signaled, shim::RDMAXCEL_SIGNALED)
            | bit(spec.fence, shim::RDMAXCEL_FENCE)
            | bit(spec.solicited, shim::RDMAXCEL_SOLICITED),
        reserved: [0; 6],
    };
    let wqe_cnt = ours.ring().sq.wqe_cnt;
    let mut memory = vec![!0u64; wqe_cnt as usize * 8];
    let ring = shim::rdmaxcel_send_ring {
        buf: memory.as_mut_ptr(),
        dbrec: ptr::null_mut(),
        bf_reg: ptr::null_mut(),
        wqe_cnt,
        bf_size: 0,
        bf_offset: 0,
        qp_num: number,
    };
    // SAFETY: the ring is memory of this function, as are the request and what it points to.
    let blocks = unsafe { shim::rdmaxcel_host_wqe_build(&ring, at, &wr) };
    let (bytes, len) = wqe(memory.as_ptr().cast(), wqe_cnt.into(), at);
    assert_eq!(i64::from(blocks), len as i64);
    bytes
}

/// Fails with both entries in words where they differ.
fn same_entry(ours: &[u8], theirs: &[u8], what: &str) {
    let say = |bytes| decode::request(bytes, 0);
    assert!(ours == theirs, "{what}\nours:\n{}theirs:\n{}", say(ours), say(theirs));
}

/// The entry, decoded, is the request that was posted, and nothing is wrong with it.
fn asks_for(entry: &[u8], spec: &Spec, ours: &mut Ours) {
    let listing = decode::request(entry, 0);
    let (view, rkey) = (ours.region.view(), ours.region.remote().rkey);
    let range = |(at, len): &(u16, u16)| decode::Local::Range {
        addr: view.addr() + u64::from(*at),
        len: (*len).into(),
        lkey: view.lkey(),
    };
    let local = match &spec.inline {
        Some(bytes) if bytes.is_empty() => vec![],
        Some(bytes) => vec![decode::Local::Inline(bytes.clone())],
        None => spec.ranges.iter().map(range).collect(),
    };
    let sends = matches!(spec.op, Op::Send | Op::SendWithImm(_));
    let remote = if sends { (0, 0) } else { (view.addr() + 2048 + u64::from(spec.remote), rkey) };
    let wanted = decode::Request {
        op: spec.op,
        index: ours.at as u16,
        qpn: ours.qp.queue_pair().get_qp_info().unwrap().qp_num,
        segments: (entry.len() / 16) as u8,
        signaled: spec.signaled,
        solicited: spec.solicited,
        fence: spec.fence,
        remote,
        local,
    };
    assert_eq!(listing.value.as_ref(), Some(&wanted), "{spec:?}\n{listing}");
    assert_eq!(listing.faults, [], "{listing}");
}

/// libmlx5's entry says the same, but for numbers and keys of its own.
fn asks_for_the_same(theirs: &[u8], ours: &[u8]) {
    let (theirs, ours) = (decode::request(theirs, 0), decode::request(ours, 0));
    let bare = |request: &Option<decode::Request>| {
        request.as_ref().map(|r| (r.op, r.segments, r.signaled, r.solicited, r.fence, r.remote.0))
    };
    assert_eq!(bare(&theirs.value), bare(&ours.value), "{theirs}{ours}");
    assert_eq!(theirs.faults, [], "{theirs}");
}

fn same_completion(ours: &IbvWc, theirs: &sys::ibv_wc) {
    assert_eq!((ours.status.0, ours.opcode.0), (theirs.status.0, theirs.opcode.0), "{ours:?}");
    // For a sender libmlx5 says that there is an immediate and stores none; then `imm` would be made up.
    let received = ours.opcode.0 & sys::IBV_WC_RECV.0 != 0;
    assert_eq!(ours.wc_flags, if received { theirs.wc_flags } else { 0 }, "{ours:?}");
    if ours.wc_flags & IbvWc::WITH_IMM != 0 {
        // SAFETY: the flag says which.
        assert_eq!(ours.imm_data, unsafe { theirs.__bindgen_anon_1.imm_data });
    }
    // Undefined for puts and sends (`ibv_poll_cq(3)`).
    if !matches!(ours.opcode.0, 0 | 1) {
        assert_eq!(ours.byte_len, theirs.byte_len, "{ours:?}");
    }
}

/// Batches of random requests, with the rings and their indices carried on from one to the next.
#[test]
fn rings_and_completions_are_libmlx5s_and_the_headers() {
    let mut nic = nic();
    let domain = seed_domain();
    let mut ours = Ours::new(&domain);
    let mut twin = Twin::new(&ours);
    let mut twin_at = 0;
    let mut runner = TestRunner::deterministic();
    let mut kinds = [0u32; 3];
    for round in 0..400 {
        let tree = prop::collection::vec(spec(), 1..12).new_tree(&mut runner).unwrap();
        let mut specs = proptest::strategy::ValueTree::current(&tree);
        specs.last_mut().unwrap().signaled = true;
        ours.post(&specs);
        twin.post(&specs);
        for spec in &specs {
            let (buf, blocks) = (ours.ring().sq.buf.cast_const().cast(), ours.ring().sq.wqe_cnt.into());
            let (mine, n) = wqe(buf, blocks, ours.at);
            let (theirs, m) = wqe(twin.buf, twin.blocks, twin_at);
            let header = by_header(&mut ours, spec);
            same_entry(&mine, &header, &format!("round {round}: the header's, {spec:?}"));
            asks_for(&mine, spec, &mut ours);
            asks_for_the_same(&theirs, &mine);
            let (mine, theirs) = (masked(mine, spec), masked(theirs, spec));
            same_entry(&mine, &theirs, &format!("round {round}: libmlx5's, {spec:?}"));
            (ours.at, twin_at) = (ours.at + n, twin_at + m);
            kinds[spec.inline.is_some() as usize] += 1;
            kinds[2] += u32::from(n > 1);
        }
        nic.run();
        nic.take_trace();
        let (mine, theirs) = (ours.poll(), twin.poll());
        for (mine, theirs) in mine.iter().zip(&theirs) {
            assert_eq!(mine.len(), theirs.len(), "round {round}");
            mine.iter().zip(theirs).for_each(|(a, b)| same_completion(a, b));
        }
    }
    assert!(kinds.iter().all(|n| *n > 100) && ours.at > 4 * DEPTH as u64, "{kinds:?}");
    assert_eq!(nic.take_breaches(), []);
}
