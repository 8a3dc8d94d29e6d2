//! What a post and a poll cost, for callgrind: `cost CLIENT OP ROUNDS`. Only what runs inside the `op_`
//! functions counts; the software device works between them. `cargo xtask bench --instructions` runs it.
//!
//! Clients: `static` and `dyn` are this crate through the safe API; `post_send` is libmlx5 by
//! `ibv_post_send` and `ibv_poll_cq`, `wr` by `ibv_wr_*` and an extended completion queue.
#![allow(unsafe_code)]
//! # Safety
//! Libmlx5's side is raw verbs on objects that live to the end of the process, posted to and polled by one
//! thread.

use ibv_core::{
    Access, AnyDomain, Connected, IbvConfig, IbvDomain, IbvDomainImpl, IbvMemoryRegion, IbvMemoryRegionView,
    IbvRemoteMemoryRegionView, IbvWc, Poller, Provider, Transport, negotiate,
    verbs::{self, Context, Cq, LocalEndpoint, Mr, Pd, Qp, state},
};
use ibv_sys as sys;
use provider_mlx5::Mlx5Provider;
use softnic::{Config, Softnic};
use std::{env, hint::black_box, mem, process::ExitCode, ptr, ptr::NonNull, sync::Arc};

const DEPTH: u32 = 64;

/// Addresses and keys of one 8-byte write.
#[derive(Clone, Copy)]
struct Put {
    local: u64,
    lkey: u32,
    remote: u64,
    rkey: u32,
}

trait Client {
    fn target(&self) -> Put;
    fn post_one(&mut self, put: Put);
    fn post_batch16(&mut self, put: Put);
    /// Takes one, if there is one.
    fn poll_one(&mut self) -> usize;
    /// Takes up to 16.
    fn poll_16(&mut self) -> usize;
}

// The measured operations: from addresses and keys to returned.

#[inline(never)]
fn op_post_one(client: &mut impl Client, put: Put) {
    client.post_one(put);
}
#[inline(never)]
fn op_post_batch16(client: &mut impl Client, put: Put) {
    client.post_batch16(put);
}
#[inline(never)]
fn op_poll_one(client: &mut impl Client) -> usize {
    client.poll_one()
}
#[inline(never)]
fn op_poll_16(client: &mut impl Client) -> usize {
    client.poll_16()
}
#[inline(never)]
fn op_poll_empty(client: &mut impl Client) -> usize {
    // Another constant, or the compiler makes one function of this and the poll of one.
    client.poll_one() + 1000
}

/// Rounds of `op`, each with what has to happen around it.
fn rounds(nic: &mut Softnic, client: &mut impl Client, op: &str, rounds: u32) -> Option<()> {
    let put = black_box(client.target());
    for _ in 0..rounds {
        let many = matches!(op, "post_batch16" | "poll_16");
        match op {
            "post_one" => op_post_one(client, put),
            "post_batch16" => op_post_batch16(client, put),
            "poll_one" => client.post_one(put),
            "poll_16" => client.post_batch16(put),
            "poll_empty" => assert_eq!(op_poll_empty(client), 1000),
            "warm" => client.post_one(put),
            _ => return None,
        }
        nic.run();
        nic.take_trace();
        let got = match op {
            "poll_one" => op_poll_one(client),
            "poll_16" => op_poll_16(client),
            _ if many => client.poll_16(),
            _ => client.poll_one(),
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
}

impl<D: IbvDomainImpl> Ours<D> {
    fn new(wrap: impl FnOnce(provider_mlx5::Mlx5Domain) -> D) -> Result<Self, ibv_core::Error> {
        let device = Mlx5Provider.devices()?.remove(0);
        let domain = IbvDomain::new(wrap(Mlx5Provider.open(&device)?), device);
        let cq = domain.create_cq(2 * DEPTH)?;
        let mut qp = domain.create_queue_pair(config(), &cq, &cq)?;
        let info = qp.get_qp_info()?;
        let qp = qp.connect(&info).map_err(|(_, e)| e)?;
        let regions = [domain.alloc(8)?, domain.alloc(8)?];
        Ok(Self { qp, poller: cq.poller()?, regions, wcs: [IbvWc::default(); 16] })
    }
}

impl<D: IbvDomainImpl> Client for Ours<D> {
    fn target(&self) -> Put {
        let (l, r) = (self.regions[0].view(), self.regions[1].remote());
        Put { local: l.addr(), lkey: l.lkey(), remote: r.addr, rkey: r.rkey }
    }
    #[inline(always)]
    fn post_one(&mut self, put: Put) {
        let (remote, local) = views(put);
        let _ids = self.qp.put(remote, local).expect("room");
    }
    #[inline(always)]
    fn post_batch16(&mut self, put: Put) {
        let mut batch = self.qp.batch();
        for _ in 0..16 {
            let (remote, local) = views(put);
            let _ids = batch.put(remote, local).expect("room");
        }
        batch.ring().expect("a device");
    }
    #[inline(always)]
    fn poll_one(&mut self) -> usize {
        self.poller.poll(&mut self.wcs[..1]).expect("a sound queue")
    }
    #[inline(always)]
    fn poll_16(&mut self) -> usize {
        self.poller.poll(&mut self.wcs).expect("a sound queue")
    }
}

#[inline]
fn views(put: Put) -> (IbvRemoteMemoryRegionView, IbvMemoryRegionView<'static>) {
    let remote = IbvRemoteMemoryRegionView { addr: put.remote, len: 8, rkey: put.rkey };
    (remote, IbvMemoryRegionView::from_raw_parts(put.local, 8, put.lkey))
}

fn config() -> IbvConfig {
    let mut config = IbvConfig::default();
    (config.max_send_wr, config.max_recv_wr, config.psn) = (DEPTH, DEPTH, Some(1));
    config
}

/// libmlx5's queue pair, its queue and its memory; alive to the end of the process.
struct Theirs {
    qp: *mut sys::ibv_qp,
    cq: *mut sys::ibv_cq_ex,
    put: Put,
    wcs: Vec<sys::ibv_wc>,
}

impl Theirs {
    fn new() -> Result<Self, ibv_core::Error> {
        let context = Context::open(verbs::load()?, "mlx5_0")?;
        let pd = Pd::alloc(&context)?;
        let mut attr = sys::ibv_cq_init_attr_ex {
            cqe: 2 * DEPTH,
            cq_context: ptr::null_mut(),
            channel: ptr::null_mut(),
            comp_vector: 0,
            wc_flags: 0,
            comp_mask: 0,
            flags: 0,
            parent_domain: ptr::null_mut(),
        };
        // SAFETY: the context is open and the attributes are read only.
        let cq = unsafe { sys::ibv_create_cq_ex(context.as_ptr(), &mut attr) };
        assert!(!cq.is_null());
        let mut qp = Self::create(&pd, sys::ibv_cq_ex_to_cq(cq))?;
        let endpoint = LocalEndpoint::discover(&context, &config())?;
        let info = endpoint.info(Transport::RC, qp.qp_num(), &config());
        let (path, facts) = (negotiate(&info, &info)?, endpoint.facts(&context)?);
        state::rc_to_init(&mut qp, &config(), Access::ALL.bits(), &facts)?;
        state::rc_to_rts(&mut qp, &config(), &path, &facts)?;
        let memory = NonNull::from(Box::leak(Box::new([0u8; 16])));
        // SAFETY: the memory is never freed.
        let mr = unsafe { Mr::register(&pd, memory, Access::ALL) }?;
        // SAFETY: a live registration.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        let local = memory.as_ptr().cast::<u8>() as u64;
        let this = Self {
            qp: qp.as_ptr(),
            cq,
            put: Put { local, lkey, remote: local + 8, rkey },
            // SAFETY: zeroes are a completion.
            wcs: vec![unsafe { mem::zeroed() }; 16],
        };
        mem::forget((qp, mr));
        Ok(this)
    }

    fn create(pd: &Arc<Pd>, cq: *mut sys::ibv_cq) -> Result<Qp, ibv_core::Error> {
        let config = config();
        let mut attr = sys::ibv_qp_init_attr_ex {
            send_cq: cq,
            recv_cq: cq,
            cap: sys::ibv_qp_cap {
                max_send_wr: config.max_send_wr,
                max_recv_wr: config.max_recv_wr,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: sys::IBV_QPT_RC,
            comp_mask: (sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) as _,
            pd: pd.as_ptr(),
            send_ops_flags: sys::IBV_QP_EX_WITH_RDMA_WRITE.into(),
            ..Default::default()
        };
        // SAFETY: live objects, a writable struct.
        let qp = unsafe { pd.context().verbs().ibv_create_qp_ex(pd.context().as_ptr(), &mut attr) };
        let qp = NonNull::new(qp).expect("a queue pair");
        let keep = Cq::create(pd.context(), 1, false)?;
        // SAFETY: just created, nobody else's, and never destroyed: its queue outlives the process's use.
        Ok(unsafe { Qp::from_raw(qp, pd.clone(), keep.clone(), keep) })
    }

    fn request(put: Put, sge: &mut sys::ibv_sge) -> sys::ibv_send_wr {
        *sge = sys::ibv_sge { addr: put.local, length: 8, lkey: put.lkey };
        // SAFETY: zeroes are a request of nothing.
        let mut wr: sys::ibv_send_wr = unsafe { mem::zeroed() };
        (wr.wr_id, wr.sg_list, wr.num_sge) = (1, sge, 1);
        (wr.opcode, wr.send_flags) = (sys::IBV_WR_RDMA_WRITE, sys::IBV_SEND_SIGNALED);
        wr.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: put.remote, rkey: put.rkey };
        wr
    }
}

struct PostSend(Theirs);

impl PostSend {
    #[inline]
    fn poll(&mut self, n: i32) -> usize {
        // SAFETY: 16 are writable.
        unsafe { sys::ibv_poll_cq(sys::ibv_cq_ex_to_cq(self.0.cq), n, self.0.wcs.as_mut_ptr()) as usize }
    }
}

impl Client for PostSend {
    fn target(&self) -> Put {
        self.0.put
    }
    #[inline]
    fn post_one(&mut self, put: Put) {
        let (mut sge, mut bad) = (sys::ibv_sge::default(), ptr::null_mut());
        let mut wr = Theirs::request(put, &mut sge);
        // SAFETY: the request lives through the call.
        assert_eq!(unsafe { sys::ibv_post_send(self.0.qp, &mut wr, &mut bad) }, 0);
    }
    #[inline]
    fn post_batch16(&mut self, put: Put) {
        let (mut sges, mut bad) = ([sys::ibv_sge::default(); 16], ptr::null_mut());
        let mut wrs = sges.each_mut().map(|sge| Theirs::request(put, sge));
        for i in 1..16 {
            wrs[i - 1].next = &raw mut wrs[i];
        }
        // SAFETY: the requests live through the call.
        assert_eq!(unsafe { sys::ibv_post_send(self.0.qp, &mut wrs[0], &mut bad) }, 0);
    }
    #[inline]
    fn poll_one(&mut self) -> usize {
        self.poll(1)
    }
    #[inline]
    fn poll_16(&mut self) -> usize {
        self.poll(16)
    }
}

struct Wr(Theirs, *mut sys::ibv_qp_ex);

impl Wr {
    #[inline]
    fn post(&mut self, put: Put, n: usize) {
        // SAFETY: a live queue pair, created for these calls.
        unsafe {
            let _ = sys::ibv_wr_start(self.1);
            for _ in 0..n {
                ((*self.1).wr_id, (*self.1).wr_flags) = (1, sys::IBV_SEND_SIGNALED);
                let _ = sys::ibv_wr_rdma_write(self.1, put.rkey, put.remote);
                let _ = sys::ibv_wr_set_sge(self.1, put.lkey, put.local, 8);
            }
            assert_eq!(sys::ibv_wr_complete(self.1), 0);
        }
    }
}

impl Client for Wr {
    fn target(&self) -> Put {
        self.0.put
    }
    #[inline]
    fn post_one(&mut self, put: Put) {
        self.post(put, 1);
    }
    #[inline]
    fn post_batch16(&mut self, put: Put) {
        self.post(put, 16);
    }
    #[inline]
    fn poll_one(&mut self) -> usize {
        self.poll(1)
    }
    #[inline]
    fn poll_16(&mut self) -> usize {
        self.poll(16)
    }
}

impl Wr {
    #[inline]
    fn poll(&mut self, most: usize) -> usize {
        let mut n = 0;
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
    let mut nic = Softnic::start(Config::steps(1))?;
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
        "post_send" => {
            let mut c = PostSend(Theirs::new()?);
            go(&mut |nic, op, n| rounds(nic, &mut c, op, n))
        }
        "wr" => {
            let theirs = Theirs::new()?;
            // SAFETY: a live queue pair.
            let ex = unsafe { verbs::load()?.ibv_qp_to_qp_ex(theirs.qp) };
            let mut c = Wr(theirs, ex);
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
        _ => Err("usage: cost CLIENT OP ROUNDS".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
