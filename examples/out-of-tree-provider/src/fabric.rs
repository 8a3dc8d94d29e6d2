//! The device: live keys, queue pairs, and what becomes of a request once it was rung. It copies only
//! under its lock, and only through keys that are live. What a provider owes core is in `domain.rs` and
//! `queue_pair.rs`.
//!
//! A request is executed by the thread that rings it. Where the peer is not ready it waits at the head
//! of its queue, and whatever may help tries again: the peer connecting, the peer posting a receive, any
//! poll. Waiting ends as on a reliable connection, by the retry counts of `IbvConfig`.

use ibv_core::{
    Access, Error, ErrorKind, Gid, IbvConfig, IbvMemoryRegionView, IbvQpInfo, IbvWc, Op, Payload, PostError,
    QpState, RecvRequest, SharedBytes, WcOpcode, WcStatus, WorkRequest,
};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::atomic::{Ordering::Release, fence},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// What the devices of a process share.
#[derive(Clone, Debug)]
pub struct Fabric {
    /// Random, so that a peer in another process is refused instead of mistaken for one here.
    gid: Gid,
    state: Arc<Mutex<State>>,
}

impl Default for Fabric {
    fn default() -> Self {
        let random = RandomState::new();
        let [a, b] = [0u8, 1].map(|n| u128::from(random.hash_one(n)));
        Self { gid: Gid((a << 64 | b).to_ne_bytes()), state: Arc::default() }
    }
}

impl Fabric {
    pub(crate) fn gid(&self) -> Gid {
        self.gid
    }
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A completion queue. Its lock is taken after the fabric's, or alone.
#[derive(Clone, Debug)]
pub(crate) struct Completions(Arc<Mutex<VecDeque<IbvWc>>>);

impl Completions {
    pub(crate) fn new(depth: u32) -> Self {
        Self(Arc::new(Mutex::new(VecDeque::with_capacity(depth as usize))))
    }
    fn lock(&self) -> MutexGuard<'_, VecDeque<IbvWc>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn take(&self, out: &mut [IbvWc]) -> usize {
        let mut queue = self.lock();
        let n = out.len().min(queue.len());
        out.iter_mut().zip(queue.drain(..n)).for_each(|(slot, wc)| *slot = wc);
        n
    }
}

/// One side of a request, by value: nothing of the caller's is borrowed once it is built.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    key: u32,
    addr: u64,
    len: usize,
}

impl Range {
    /// `caps()` admits one range, and core hands out none for zero bytes.
    fn local(views: &[IbvMemoryRegionView<'_>]) -> Result<Self, PostError> {
        match views {
            [] => Ok(Self::default()),
            [one] => Ok(Self { key: one.lkey(), addr: one.addr(), len: one.len() }),
            _ => Err(PostError::TooManySge),
        }
    }
}

/// A send-queue request. The fence bit needs no place: one request is over before the next begins.
#[derive(Debug)]
pub(crate) struct Flight {
    id: u64,
    op: Op,
    signaled: bool,
    local: Range,
    remote: Range,
    /// When it first found its peer not ready.
    waits_since: Option<Instant>,
}

impl Flight {
    pub(crate) fn new(wr: &WorkRequest<'_>) -> Result<Self, PostError> {
        // `caps()` admits no inline data, but a request of no bytes may still come as such.
        let local = match wr.local {
            Payload::Sges(views) => Range::local(views)?,
            Payload::Inline([]) => Range::default(),
            Payload::Inline(_) => return Err(PostError::InlineTooLong),
        };
        let remote = Range { key: wr.remote.rkey, addr: wr.remote.addr, len: local.len };
        Ok(Self { id: wr.id, op: wr.op, signaled: wr.signaled, local, remote, waits_since: None })
    }

    /// Whether it may go on waiting; the first time, the waiting begins.
    fn is_patient(&mut self, patience: Option<Duration>) -> bool {
        let since = *self.waits_since.get_or_insert_with(Instant::now);
        patience.is_none_or(|most| since.elapsed() < most)
    }
}

/// A receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recv {
    id: u64,
    local: Range,
}

impl Recv {
    pub(crate) fn new(wr: &RecvRequest<'_>) -> Result<Self, PostError> {
        Ok(Self { id: wr.id, local: Range::local(wr.local)? })
    }
}

#[derive(Debug)]
struct Region {
    domain: u32,
    base: u64,
    bytes: SharedBytes,
    access: Access,
}

#[derive(Debug)]
struct Qp {
    domain: u32,
    config: IbvConfig,
    state: QpState,
    peer: Option<IbvQpInfo>,
    send_cq: Completions,
    recv_cq: Completions,
    sq: VecDeque<Flight>,
    rq: VecDeque<Recv>,
}

/// Everything on the fabric.
#[derive(Debug, Default)]
pub(crate) struct State {
    domains: u32,
    regions: HashMap<u32, Region>,
    last_key: u32,
    qps: BTreeMap<u32, Qp>,
    last_qp_num: u32,
}

/// Control: what the verbs do.
impl State {
    pub(crate) fn create_domain(&mut self) -> u32 {
        self.domains += 1;
        self.domains
    }

    /// No key is given out twice: a peer may still hold an old one, and must not reach new memory with it.
    pub(crate) fn register(
        &mut self,
        domain: u32,
        base: u64,
        bytes: SharedBytes,
        access: Access,
    ) -> Result<u32, Error> {
        let full = || Error::new(ErrorKind::OutOfResources, "reg_mr", "this fabric has given out every key");
        self.last_key = self.last_key.checked_add(1).ok_or_else(full)?;
        self.regions.insert(self.last_key, Region { domain, base, bytes, access });
        Ok(self.last_key)
    }

    pub(crate) fn deregister(&mut self, key: u32) {
        self.regions.remove(&key);
    }

    pub(crate) fn create_qp(
        &mut self,
        domain: u32,
        config: &IbvConfig,
        send_cq: Completions,
        recv_cq: Completions,
    ) -> Result<u32, Error> {
        let full = || Error::new(ErrorKind::OutOfResources, "create_qp", "this fabric has no number left");
        let qp_num = Some(self.last_qp_num + 1).filter(|n| *n < 1 << 24).ok_or_else(full)?;
        let sq = VecDeque::with_capacity(config.max_send_wr as usize);
        let rq = VecDeque::with_capacity(config.max_recv_wr as usize);
        let (config, state) = (config.clone(), QpState::RESET);
        self.qps.insert(qp_num, Qp { domain, config, state, peer: None, send_cq, recv_cq, sq, rq });
        self.last_qp_num = qp_num;
        Ok(qp_num)
    }

    pub(crate) fn destroy_qp(&mut self, qp_num: u32) {
        self.qps.remove(&qp_num);
    }

    pub(crate) fn connect(&mut self, qp_num: u32, peer: &IbvQpInfo) -> Result<(), Error> {
        let not_reset = || Error::new(ErrorKind::InvalidState, "modify_qp", "the queue pair is not in RESET");
        let qp = self.qps.get_mut(&qp_num).filter(|qp| qp.state == QpState::RESET).ok_or_else(not_reset)?;
        (qp.peer, qp.state) = (Some(*peer), QpState::RTS);
        self.run(peer.qp_num);
        Ok(())
    }

    pub(crate) fn state(&self, qp_num: u32) -> QpState {
        self.qps.get(&qp_num).map_or(QpState::ERR, |qp| qp.state)
    }

    pub(crate) fn peer(&self, qp_num: u32) -> Option<IbvQpInfo> {
        self.qps.get(&qp_num)?.peer
    }

    /// Flushes both queues: every request in them reports, signaled or not, in order.
    pub(crate) fn enter_error(&mut self, qp_num: u32) {
        let Some(qp) = self.qps.get_mut(&qp_num) else { return };
        qp.state = QpState::ERR;
        let flush = |wr_id| IbvWc { wr_id, status: WcStatus::WR_FLUSH_ERR, qp_num, ..IbvWc::default() };
        qp.send_cq.lock().extend(qp.sq.drain(..).map(|f| flush(f.id)));
        qp.recv_cq.lock().extend(qp.rq.drain(..).map(|r| flush(r.id)));
    }
}

/// Data: which request is next, and how it ends.
impl State {
    pub(crate) fn post(&mut self, qp_num: u32, built: &mut Vec<Flight>) {
        let Some(qp) = self.qps.get_mut(&qp_num) else { return };
        qp.sq.extend(built.drain(..));
        self.run(qp_num);
    }

    pub(crate) fn post_recv(&mut self, qp_num: u32, recv: Recv) {
        let Some(qp) = self.qps.get_mut(&qp_num) else { return };
        qp.rq.push_back(recv);
        match (qp.state, qp.peer) {
            (QpState::ERR, _) => self.enter_error(qp_num),
            (_, Some(peer)) => self.run(peer.qp_num),
            _ => {}
        }
    }

    /// Runs every queue pair that has something left to do.
    pub(crate) fn run_waiting(&mut self) {
        let mut from = 0;
        while let Some((&qp_num, _)) = self.qps.range(from..).find(|(_, qp)| !qp.sq.is_empty()) {
            self.run(qp_num);
            from = qp_num + 1;
        }
    }

    fn run(&mut self, qp_num: u32) {
        while self.step(qp_num) {}
    }

    /// Executes the request at the head of the queue; `false` if there is none or it has to wait.
    fn step(&mut self, qp_num: u32) -> bool {
        if self.state(qp_num) == QpState::ERR {
            self.enter_error(qp_num);
            return false;
        }
        let next = self.qps.get_mut(&qp_num).and_then(|qp| qp.sq.pop_front());
        let Some(mut flight) = next else { return false };
        // `messages_in_order`, also for a peer that watches its memory instead of its completions.
        fence(Release);
        match self.execute(qp_num, &flight) {
            Ok(()) => self.succeed(qp_num, &flight),
            Err(Stop::Wait(_, patience)) if flight.is_patient(patience) => {
                self.qps.entry(qp_num).and_modify(|qp| qp.sq.push_front(flight));
                return false;
            }
            Err(Stop::Fail(status) | Stop::Wait(status, _)) => self.fail(qp_num, flight.id, status),
        }
        true
    }

    fn succeed(&mut self, qp_num: u32, flight: &Flight) {
        if let (true, Some(qp)) = (flight.signaled, self.qps.get(&qp_num)) {
            let (wr_id, byte_len) = (flight.id, flight.local.len as u32);
            let wc = IbvWc { wr_id, opcode: opcode(flight.op), byte_len, qp_num, ..IbvWc::default() };
            qp.send_cq.lock().push_back(wc);
        }
    }

    /// The cause reports first, then everything behind it flushes. What the peer objected to ends the
    /// connection there too (IB specification vol. 1, 9.9.3: responder errors of class C).
    fn fail(&mut self, qp_num: u32, wr_id: u64, status: WcStatus) {
        let Some(qp) = self.qps.get(&qp_num) else { return };
        let peer = qp.peer.map_or(0, |p| p.qp_num);
        qp.send_cq.lock().push_back(IbvWc { wr_id, status, qp_num, ..IbvWc::default() });
        self.enter_error(qp_num);
        if [WcStatus::REM_ACCESS_ERR, WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR].contains(&status) {
            self.enter_error(peer);
        }
    }
}

/// Why a request did not succeed.
enum Stop {
    Fail(WcStatus),
    /// Not yet; fails with this status after so long, or never.
    Wait(WcStatus, Option<Duration>),
}

impl From<WcStatus> for Stop {
    fn from(status: WcStatus) -> Self {
        Self::Fail(status)
    }
}

/// Part of a region that passed every check; of no bytes there is none.
type Span = Option<(SharedBytes, usize, usize)>;

/// Data: what one request does.
impl State {
    /// Checks everything, then copies: a request that fails has changed nothing.
    fn execute(&mut self, qp_num: u32, f: &Flight) -> Result<(), Stop> {
        let (us, peer) = self.ends(qp_num)?;
        let (domain, theirs, number) = (us.domain, peer.domain, us.peer.map_or(0, |p| p.qp_num));
        let rnr = Stop::Wait(WcStatus::RNR_RETRY_EXC_ERR, rnr_time(&us.config, &peer.config));
        let recv = match f.op {
            Op::WriteWithImm(_) | Op::Send | Op::SendWithImm(_) => peer.rq.front().copied().ok_or(rnr)?,
            _ => Recv { id: 0, local: Range::default() },
        };
        let need = if f.op.fills_local() { Access::LOCAL_WRITE } else { Access::empty() };
        let local = self.span(domain, f.local, need).ok_or(WcStatus::LOC_PROT_ERR)?;
        let remote = |need| self.span(theirs, f.remote, need).ok_or(WcStatus::REM_ACCESS_ERR);
        match f.op {
            Op::Write => copy(remote(Access::REMOTE_WRITE)?, local)?,
            Op::WriteWithImm(_) => {
                copy(remote(Access::REMOTE_WRITE)?, local)?;
                self.received(number, f, WcOpcode::RECV_RDMA_WITH_IMM, WcStatus::SUCCESS);
            }
            Op::Read => copy(local, remote(Access::REMOTE_READ)?)?,
            Op::Send | Op::SendWithImm(_) => {
                let (status, refusal) = self.deliver(theirs, recv.local, local, f.local.len);
                self.received(number, f, WcOpcode::RECV, status);
                refusal?;
            }
            Op::FetchAdd(add) => update(local, remote(Access::REMOTE_ATOMIC)?, |old| old.wrapping_add(add))?,
            Op::CompareSwap { compare, swap } => {
                let target = remote(Access::REMOTE_ATOMIC)?;
                update(local, target, |old| if old == compare { swap } else { old })?;
            }
            _ => return Err(WcStatus::LOC_QP_OP_ERR.into()),
        }
        Ok(())
    }

    /// This end and its peer, once that one is there and connected to this one.
    fn ends(&self, qp_num: u32) -> Result<(&Qp, &Qp), Stop> {
        let gone = WcStatus::RETRY_EXC_ERR;
        let us = self.qps.get(&qp_num).ok_or(gone)?;
        let peer = us.peer.and_then(|p| self.qps.get(&p.qp_num)).ok_or(gone)?;
        match (peer.state, peer.peer) {
            (QpState::RTS, Some(back)) if back.qp_num == qp_num => Ok((us, peer)),
            (QpState::RESET, _) => Err(Stop::Wait(gone, retry_time(&us.config))),
            _ => Err(gone.into()),
        }
    }

    /// The range, if a live key of `domain` covers all of it and allows `need`. Of no bytes the key is not
    /// looked at (IB specification vol. 1, 9.7.4.1.5: nor does a responder).
    fn span(&self, domain: u32, range: Range, need: Access) -> Option<Span> {
        if range.len == 0 {
            return Some(None);
        }
        let region = self.regions.get(&range.key)?;
        let at = usize::try_from(range.addr.checked_sub(region.base)?).ok()?;
        let inside = at.checked_add(range.len)? <= region.bytes.len();
        let allowed = inside && region.domain == domain && region.access.contains(need);
        allowed.then_some(Some((region.bytes, at, range.len)))
    }

    /// How a send into `room` ends there, and here.
    fn deliver(&self, domain: u32, room: Range, src: Span, len: usize) -> (WcStatus, Result<(), WcStatus>) {
        match self.span(domain, room, Access::LOCAL_WRITE) {
            None => (WcStatus::LOC_PROT_ERR, Err(WcStatus::REM_OP_ERR)),
            Some(_) if room.len < len => (WcStatus::LOC_LEN_ERR, Err(WcStatus::REM_INV_REQ_ERR)),
            Some(dst) => (WcStatus::SUCCESS, copy(dst, src)),
        }
    }

    /// Consumes the next receive of `qp_num` for what `f` brought.
    fn received(&mut self, qp_num: u32, f: &Flight, opcode: WcOpcode, status: WcStatus) {
        let Some(qp) = self.qps.get_mut(&qp_num) else { return };
        let Some(recv) = qp.rq.pop_front() else { return };
        let byte_len = f.local.len as u32;
        let mut wc = IbvWc { wr_id: recv.id, status, opcode, byte_len, qp_num, ..IbvWc::default() };
        if let Some(imm) = f.op.imm() {
            wc.set_imm(imm);
        }
        qp.recv_cq.lock().push_back(wc);
    }
}

/// Both sides were checked, so a refusal by the copy itself is a bug of this file; it still is reported.
fn copy(dst: Span, src: Span) -> Result<(), WcStatus> {
    let (Some((dst, to, room)), Some((src, from, len))) = (dst, src) else { return Ok(()) };
    dst.copy_from(to, &src, from, len.min(room)).map_err(|_| WcStatus::GENERAL_ERR)
}

/// Replaces the 8 bytes of `target` by `f` of them; what they were goes to `old`.
fn update(old: Span, target: Span, f: impl FnMut(u64) -> u64) -> Result<(), WcStatus> {
    let (Some((old, at, _)), Some((target, word, _))) = (old, target) else { return Ok(()) };
    let was = target.update_u64(word, f).map_err(|_| WcStatus::REM_INV_REQ_ERR)?;
    old.write(at, &was.to_ne_bytes()).map_err(|_| WcStatus::GENERAL_ERR)
}

fn opcode(op: Op) -> WcOpcode {
    match op {
        Op::Write | Op::WriteWithImm(_) => WcOpcode::RDMA_WRITE,
        Op::Read => WcOpcode::RDMA_READ,
        Op::CompareSwap { .. } => WcOpcode::COMP_SWAP,
        Op::FetchAdd(_) => WcOpcode::FETCH_ADD,
        _ => WcOpcode::SEND,
    }
}

/// 4.096 µs · 2^timeout for each try; 0 waits for ever.
fn retry_time(ours: &IbvConfig) -> Option<Duration> {
    let tries = u32::from(ours.retry_cnt) + 1;
    (ours.timeout > 0).then(|| Duration::from_nanos(4096 << ours.timeout) * tries)
}

/// The receiver's pause, as often as the sender repeats; 7 repeats for ever. The codes run from 0.01 ms at
/// 1 to 491.52 ms at 31, alternating powers of two with one and a half times them; 0 is 655.36 ms (IB
/// specification vol. 1, table 45).
fn rnr_time(ours: &IbvConfig, theirs: &IbvConfig) -> Option<Duration> {
    let hundredths = match theirs.min_rnr_timer {
        0 => 65_536,
        1 => 1,
        n => u64::from(2 + n % 2) << (n / 2 - 1),
    };
    (ours.rnr_retry < 7).then(|| Duration::from_micros(hundredths * 10) * u32::from(ours.rnr_retry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_those_of_the_specification() {
        let known = [(0, 655_360), (1, 10), (2, 20), (3, 30), (4, 40), (5, 60), (12, 640), (31, 491_520)];
        let (mut ours, mut theirs) = (IbvConfig::default(), IbvConfig::default());
        for (code, micros) in known {
            (ours.rnr_retry, theirs.min_rnr_timer) = (1, code);
            assert_eq!(rnr_time(&ours, &theirs), Some(Duration::from_micros(micros)), "code {code}");
        }
        (ours.rnr_retry, ours.timeout) = (7, 0);
        assert_eq!((rnr_time(&ours, &theirs), retry_time(&ours)), (None, None));
    }
}
