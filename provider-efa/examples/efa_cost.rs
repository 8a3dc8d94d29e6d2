//! What a post and a poll cost, for callgrind: `efa_cost CLIENT OP ROUNDS`. Only what runs inside the `op_`
//! functions counts; the software adapter works between them. `cargo xtask bench --instructions` runs it.
//!
//! Clients: `static` and `dyn` are this crate through the safe API; `poll_cq` and `cq_ex` are libefa by `ibv_wr_*`,
//! polled by `ibv_poll_cq` and through an extended completion queue. Requests are 8-byte puts, or gets where libefa
//! has no RDMA write.
#![allow(unsafe_code)]
//! # Safety
//! Libefa's side is raw verbs on objects that live to the end of the process, posted to and polled by one thread.

use ibv_core::{
    Access, AnyDomain, Connected, IbvConfig, IbvDomain, IbvDomainImpl, IbvMemoryRegion, IbvMemoryRegionView,
    IbvRemoteMemoryRegionView, IbvWc, Poller, Provider, QpState,
    verbs::{self, Ah, Context, Mr, Pd},
};
use ibv_sys as sys;
use provider_efa::{EfaDomain, EfaProvider};
use softnic::{Config, Softnic, description::Description};
use std::{env, hint::black_box, mem, process::ExitCode, ptr::NonNull};

const DEPTH: u32 = 64;

/// Addresses and keys of one 8-byte request.
#[derive(Clone, Copy)]
struct Request {
    local: u64,
    lkey: u32,
    remote: u64,
    rkey: u32,
    /// Gets stand in for puts.
    get: bool,
}

trait Client {
    fn target(&self) -> Request;
    fn post_one(&mut self, request: Request);
    fn post_batch16(&mut self, request: Request);
    /// Takes up to 16, or up to one.
    fn poll(&mut self, sixteen: bool) -> usize;
}

// The measured operations: from addresses and keys to returned.

#[inline(never)]
fn op_post_one(client: &mut impl Client, request: Request) {
    client.post_one(request);
}
#[inline(never)]
fn op_post_batch16(client: &mut impl Client, request: Request) {
    client.post_batch16(request);
}
#[inline(never)]
fn op_poll_one(client: &mut impl Client) -> usize {
    client.poll(false)
}
#[inline(never)]
fn op_poll_16(client: &mut impl Client) -> usize {
    client.poll(true)
}
#[inline(never)]
fn op_poll_empty(client: &mut impl Client) -> usize {
    // Another constant, or the compiler makes one function of this and the poll of one.
    client.poll(false) + 1000
}

/// Rounds of `op`, each with what has to happen around it.
fn rounds(nic: &mut Softnic, client: &mut impl Client, op: &str, rounds: u32) -> Option<()> {
    let request = black_box(client.target());
    for _ in 0..rounds {
        let many = matches!(op, "post_batch16" | "poll_16");
        match op {
            "post_one" => op_post_one(client, request),
            "post_batch16" => op_post_batch16(client, request),
            "poll_one" | "warm" => client.post_one(request),
            "poll_16" => client.post_batch16(request),
            "poll_empty" => assert_eq!(op_poll_empty(client), 1000),
            _ => return None,
        }
        nic.run();
        let got = match op {
            "poll_one" => op_poll_one(client),
            "poll_16" => op_poll_16(client),
            _ => client.poll(many),
        };
        assert_eq!(got, if many { 16 } else { usize::from(op != "poll_empty") });
    }
    Some(())
}

struct Ours<D: IbvDomainImpl> {
    qp: Connected<D::QueuePair>,
    poller: Poller<D>,
    regions: [IbvMemoryRegion<D>; 2],
    wcs: [IbvWc; 16],
    get: bool,
}

impl<D: IbvDomainImpl> Ours<D> {
    fn new(wrap: impl FnOnce(EfaDomain) -> D) -> Result<Self, ibv_core::Error> {
        let provider = EfaProvider::default();
        let device = provider.devices()?.remove(0);
        let domain = IbvDomain::new(wrap(provider.open(&device)?), device);
        let cq = domain.create_cq(2 * DEPTH)?;
        let mut config = IbvConfig::default();
        (config.max_send_wr, config.max_recv_wr) = (DEPTH, DEPTH);
        let mut qp = domain.create_queue_pair(config, &cq, &cq)?;
        let info = qp.get_qp_info()?;
        let qp = qp.connect(&info).map_err(|(_, e)| e)?;
        let (regions, get) = ([domain.alloc(8)?, domain.alloc(8)?], !domain.caps().write.present());
        Ok(Self { qp, poller: cq.poller()?, regions, wcs: [IbvWc::default(); 16], get })
    }
}

#[inline(always)]
fn views(r: Request) -> (IbvRemoteMemoryRegionView, IbvMemoryRegionView<'static>) {
    let remote = IbvRemoteMemoryRegionView { addr: r.remote, len: 8, rkey: r.rkey };
    (remote, IbvMemoryRegionView::from_raw_parts(r.local, 8, r.lkey))
}

impl<D: IbvDomainImpl> Client for Ours<D> {
    fn target(&self) -> Request {
        let (l, r) = (self.regions[0].view(), self.regions[1].remote());
        Request { local: l.addr(), lkey: l.lkey(), remote: r.addr, rkey: r.rkey, get: self.get }
    }
    #[inline(always)]
    fn post_one(&mut self, request: Request) {
        let (remote, local) = views(request);
        let ids = if request.get { self.qp.get(local, remote) } else { self.qp.put(remote, local) };
        let _ids = ids.expect("room");
    }
    #[inline(always)]
    fn post_batch16(&mut self, request: Request) {
        let mut batch = self.qp.batch();
        for _ in 0..16 {
            let (remote, local) = views(request);
            let ids = if request.get { batch.get(local, remote) } else { batch.put(remote, local) };
            let _ids = ids.expect("room");
        }
        batch.ring().expect("a device");
    }
    #[inline(always)]
    fn poll(&mut self, sixteen: bool) -> usize {
        let wcs = if sixteen { &mut self.wcs[..] } else { &mut self.wcs[..1] };
        self.poller.poll(wcs).expect("a sound queue")
    }
}

/// Libefa's queue pair, its queue and its memory; alive to the end of the process.
struct Theirs {
    qp: *mut sys::ibv_qp_ex,
    cq: *mut sys::ibv_cq_ex,
    ah: *mut sys::ibv_ah,
    number: u32,
    request: Request,
    wcs: Vec<sys::ibv_wc>,
}

const QKEY: u32 = 0x1234;

impl Theirs {
    fn new() -> Result<Self, ibv_core::Error> {
        let library = verbs::load()?;
        let name = verbs::list(library)?.remove(0).name;
        let context = Context::open(library, &name)?;
        let pd = Pd::alloc(&context)?;
        let efadv = sys::efadv().expect("libefa");
        let mut device = sys::efadv_device_attr::default();
        let len = size_of::<sys::efadv_device_attr>() as u32;
        // SAFETY: the device is open, the struct writable.
        assert_eq!(unsafe { efadv.efadv_query_device(context.as_ptr(), &mut device, len) }, 0);
        let get = device.device_caps & sys::EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE == 0;
        let mut attr = sys::ibv_cq_init_attr_ex { cqe: 2 * DEPTH, ..Default::default() };
        // SAFETY: the context is open and the attributes are read only.
        let cq = unsafe { sys::ibv_create_cq_ex(context.as_ptr(), &mut attr) };
        assert!(!cq.is_null());
        let qp = Self::create(efadv, &pd, sys::ibv_cq_ex_to_cq(cq), get);
        let gid = verbs::Port::query(&context, 1)?.gids.entries[0].gid;
        let grh =
            sys::ibv_global_route { dgid: sys::ibv_gid { raw: gid.0 }, ..sys::ibv_global_route::default() };
        let mut to = sys::ibv_ah_attr { grh, is_global: 1, port_num: 1, ..sys::ibv_ah_attr::default() };
        let ah = Ah::create(&pd, &mut to)?;
        Self::connect(library, qp);
        let memory = NonNull::from(Box::leak(Box::new([0u8; 16])));
        // SAFETY: the memory is never freed.
        let mr = unsafe { Mr::register(&pd, memory, Access::ALL - Access::REMOTE_ATOMIC) }?;
        // SAFETY: a live registration, and a live queue pair.
        let (lkey, rkey, number) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey, (*qp).qp_num) };
        let local = memory.as_ptr().cast::<u8>() as u64;
        // SAFETY: a live queue pair.
        let ex = unsafe { library.ibv_qp_to_qp_ex(qp) };
        let this = Self {
            qp: ex,
            cq,
            ah: ah.as_ptr(),
            number,
            request: Request { local, lkey, remote: local + 8, rkey, get },
            // SAFETY: zeroes are a completion.
            wcs: vec![unsafe { mem::zeroed() }; 16],
        };
        mem::forget((mr, ah));
        Ok(this)
    }

    fn create(efadv: &sys::Efadv, pd: &Pd, cq: *mut sys::ibv_cq, get: bool) -> *mut sys::ibv_qp {
        let ops = if get { sys::IBV_QP_EX_WITH_RDMA_READ } else { sys::IBV_QP_EX_WITH_RDMA_WRITE };
        let mut attr = sys::ibv_qp_init_attr_ex {
            send_cq: cq,
            recv_cq: cq,
            cap: sys::ibv_qp_cap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: sys::IBV_QPT_DRIVER,
            comp_mask: sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: pd.as_ptr(),
            send_ops_flags: ops.into(),
            ..Default::default()
        };
        let mut efa = sys::efadv_qp_init_attr::default();
        // SAFETY: live objects, writable structs; the second one to the length that every libefa knows.
        let qp = unsafe { efadv.efadv_create_qp_ex(pd.context().as_ptr(), &mut attr, &mut efa, 16) };
        assert!(!qp.is_null());
        qp
    }

    fn connect(library: verbs::VerbsLibrary, qp: *mut sys::ibv_qp) {
        let steps = [(QpState::INIT, 0x71), (QpState::RTR, 1), (QpState::RTS, 0x1_0001)];
        for (state, mask) in steps {
            let mut attr =
                sys::ibv_qp_attr { qp_state: sys::ibv_qp_state(state.0), port_num: 1, ..Default::default() };
            attr.qkey = QKEY;
            // SAFETY: a live queue pair, and attributes.
            assert_eq!(unsafe { library.ibv_modify_qp(qp, &mut attr, mask) }, 0);
        }
    }

    #[inline]
    fn post(&mut self, r: Request, n: usize) {
        let qp = self.qp;
        // SAFETY: a live queue pair, created for these calls.
        unsafe {
            let _ = sys::ibv_wr_start(qp);
            for _ in 0..n {
                ((*qp).wr_id, (*qp).wr_flags) = (1, sys::IBV_SEND_SIGNALED);
                let _ = if r.get {
                    sys::ibv_wr_rdma_read(qp, r.rkey, r.remote)
                } else {
                    sys::ibv_wr_rdma_write(qp, r.rkey, r.remote)
                };
                let _ = sys::ibv_wr_set_sge(qp, r.lkey, r.local, 8);
                let _ = sys::ibv_wr_set_ud_addr(qp, self.ah, self.number, QKEY);
            }
            assert_eq!(sys::ibv_wr_complete(qp), 0);
        }
    }
}

struct PollCq(Theirs);

impl Client for PollCq {
    fn target(&self) -> Request {
        self.0.request
    }
    #[inline]
    fn post_one(&mut self, request: Request) {
        self.0.post(request, 1);
    }
    #[inline]
    fn post_batch16(&mut self, request: Request) {
        self.0.post(request, 16);
    }
    #[inline]
    fn poll(&mut self, sixteen: bool) -> usize {
        let (n, wcs) = (if sixteen { 16 } else { 1 }, self.0.wcs.as_mut_ptr());
        // SAFETY: 16 are writable.
        unsafe { sys::ibv_poll_cq(sys::ibv_cq_ex_to_cq(self.0.cq), n, wcs) as usize }
    }
}

struct CqEx(Theirs);

impl Client for CqEx {
    fn target(&self) -> Request {
        self.0.request
    }
    #[inline]
    fn post_one(&mut self, request: Request) {
        self.0.post(request, 1);
    }
    #[inline]
    fn post_batch16(&mut self, request: Request) {
        self.0.post(request, 16);
    }
    #[inline]
    fn poll(&mut self, sixteen: bool) -> usize {
        let (most, mut n) = (if sixteen { 16 } else { 1 }, 0);
        let (cq, mut attr) = (self.0.cq, sys::ibv_poll_cq_attr::default());
        // SAFETY: a live queue, polled by this thread alone.
        unsafe {
            if sys::ibv_start_poll(cq, &mut attr) != 0 {
                return 0;
            }
            loop {
                let wc = &mut self.0.wcs[n];
                (wc.wr_id, wc.status) = ((*cq).wr_id, (*cq).status);
                wc.opcode = sys::ibv_wc_read_opcode(cq).expect("a reader");
                n += 1;
                if n == most || sys::ibv_next_poll(cq) != 0 {
                    break;
                }
            }
            sys::ibv_end_poll(cq);
        }
        n
    }
}

fn run(client: &str, op: &str, n: u32) -> Result<(), Box<dyn std::error::Error>> {
    let config = Config { description: Description::efa(1), record: false, ..Config::steps(1) };
    let mut nic = Softnic::start(config)?;
    let mut go = |client: &mut dyn FnMut(&mut Softnic, &str, u32) -> Option<()>| {
        client(&mut nic, "warm", 20)?;
        client(&mut nic, op, n)
    };
    let done = match client {
        "static" => {
            let mut c = Ours::new(|d| d)?;
            go(&mut |nic, op, n| rounds(nic, &mut c, op, n))
        }
        "dyn" => {
            let mut c = Ours::new(AnyDomain::new)?;
            go(&mut |nic, op, n| rounds(nic, &mut c, op, n))
        }
        "poll_cq" => {
            let mut c = PollCq(Theirs::new()?);
            go(&mut |nic, op, n| rounds(nic, &mut c, op, n))
        }
        "cq_ex" => {
            let mut c = CqEx(Theirs::new()?);
            go(&mut |nic, op, n| rounds(nic, &mut c, op, n))
        }
        _ => None,
    };
    done.ok_or_else(|| format!("no client {client} or no operation {op}").into())
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().collect();
    let done = match &args[..] {
        [_, client, op, n] => n.parse().map_err(Into::into).and_then(|n| run(client, op, n)),
        _ => Err("usage: efa_cost CLIENT OP ROUNDS".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
