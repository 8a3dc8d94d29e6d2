//! What a case body works with: end a's domain, end b, connected queue pairs, waits. What is checked is
//! the cases' own business.

use crate::{
    fixture::{Pair, Unavailable},
    pattern::pattern,
    peer::{PeerEnd, PeerQp},
    transfer::Way,
    wait::{Look, Waiter},
};
use ibv_core::{
    Access, Caps, Connected, HeapMemory, IbvConfig, IbvCq, IbvDomain, IbvDomainImpl, IbvMemoryRegion,
    IbvQpInfo, IbvQueuePair, IbvWc, Poller, QueuePair, WcStatus, WrIds,
};
use std::{fmt::Display, sync::Arc};

/// A region of end a.
pub(crate) type Region<D> = IbvMemoryRegion<D, HeapMemory>;

/// What a case body is given.
pub(crate) struct Ctx<'c, D: IbvDomainImpl> {
    pub(crate) a: &'c IbvDomain<D>,
    pub(crate) b: PeerEnd<'c>,
    /// End b's domain, where it is in this process.
    pub(crate) here: Option<&'c IbvDomain<D>>,
    pub(crate) wait: Waiter,
    pub(crate) base: IbvConfig,
    /// Opens another pair.
    pub(crate) open: &'c dyn Fn() -> Result<Pair<D>, Unavailable>,
    pub(crate) skipped: Option<String>,
}

/// A connected queue pair of end a with its own completion queue, and its peer.
pub(crate) struct Link<D: IbvDomainImpl> {
    pub(crate) qp: Connected<D::QueuePair>,
    pub(crate) poller: Poller<D>,
    pub(crate) cq: Arc<IbvCq<D>>,
    pub(crate) peer: PeerQp,
    pub(crate) info: IbvQpInfo,
    /// End b's endpoint.
    pub(crate) theirs: IbvQpInfo,
}

/// A queue pair that has not met its peer, and its completion queue, or why not.
type Unconnected<D> = Result<(QueuePair<<D as IbvDomainImpl>::QueuePair>, Arc<IbvCq<D>>), String>;

/// Returns `Err` with a message where the condition does not hold.
macro_rules! ensure {
    ($cond:expr $(,)?) => { if !$cond { return Err(format!("not so: {}", stringify!($cond))); } };
    ($cond:expr, $($arg:tt)+) => { if !$cond { return Err(format!($($arg)+)); } };
}

/// Returns `Err` with both values where they differ; the text says what they are.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($arg:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return Err(format!("{}: {left:?} where {right:?} was due", format_args!($($arg)+)));
        }
    }};
}
pub(crate) use {ensure, ensure_eq};

/// Puts what was being done in front of an error.
pub(crate) trait Say<T> {
    fn say(self, what: &str) -> Result<T, String>;
}

impl<T, E: Display> Say<T> for Result<T, E> {
    fn say(self, what: &str) -> Result<T, String> {
        self.map_err(|e| format!("{what}: {e}"))
    }
}

impl<T> Say<T> for Option<T> {
    fn say(self, what: &str) -> Result<T, String> {
        self.ok_or_else(|| what.to_owned())
    }
}

/// Completions in words, short.
pub(crate) fn list(wcs: &[IbvWc]) -> String {
    let words: Vec<_> = wcs.iter().take(8).map(|wc| format!("{:#x} {:?}", wc.wr_id, wc.status)).collect();
    let more = if wcs.len() > 8 { ", …" } else { "" };
    format!("[{}{more}]", words.join(", "))
}

/// All of them successful; their ids.
pub(crate) fn ids_of(wcs: &[IbvWc]) -> Result<Vec<u64>, String> {
    match wcs.iter().find(|wc| wc.status != WcStatus::SUCCESS) {
        None => Ok(wcs.iter().map(|wc| wc.wr_id).collect()),
        Some(wc) => {
            Err(format!("request {:#x} failed: {} (vendor error {:#x})", wc.wr_id, wc.status, wc.vendor_err))
        }
    }
}

/// Polls until exactly `n` completions came, whatever their status.
pub(crate) fn wait_on<D: IbvDomainImpl>(
    wait: &Waiter,
    poller: &mut Poller<D>,
    n: usize,
) -> Result<Vec<IbvWc>, String> {
    let mut seen: Vec<IbvWc> = Vec::with_capacity(n);
    let mut out = [IbvWc::default(); 16];
    let done = wait.until_all(
        || format!("{n} completions"),
        || {
            let got = poller.poll(&mut out).say("poll")?;
            seen.extend(&out[..got]);
            Ok(Look::counted(got, seen.len(), n))
        },
    );
    done.map_err(|e| format!("{e}; {} came: {}", seen.len(), list(&seen)))?;
    let got = poller.poll(&mut out).say("poll")?;
    seen.extend(&out[..got]);
    ensure!(seen.len() == n, "{} completions where {n} were due: {}", seen.len(), list(&seen));
    Ok(seen)
}

impl<D: IbvDomainImpl> Ctx<'_, D> {
    /// The capabilities of end a.
    pub(crate) fn caps(&self) -> Caps {
        self.a.caps()
    }

    /// At most `len` bytes, and no more than travel in one work request either way.
    pub(crate) fn one_request(&self, len: usize) -> usize {
        match self.way() {
            Way::Send => self.at_once(len),
            _ => len.min(self.caps().max_msg_size).min(self.b.caps.max_msg_size),
        }
    }

    /// Ends the case as skipped: for what no capability tells beforehand.
    pub(crate) fn skip(&mut self, why: impl Into<String>) -> String {
        let why = why.into();
        self.skipped = Some(why.clone());
        why
    }

    /// The fixture's configuration.
    pub(crate) fn config(&self) -> IbvConfig {
        self.base.clone()
    }

    /// The same with shallow queues, for cases that fill them.
    pub(crate) fn shallow(&self, depth: u32) -> IbvConfig {
        let mut config = self.config();
        config.max_send_wr = depth;
        config
    }

    /// Two connected queue pairs, and end a's poller claimed.
    pub(crate) fn link(&mut self) -> Result<Link<D>, String> {
        let config = self.config();
        self.link_with(&config, &config)
    }

    pub(crate) fn link_with(&mut self, ours: &IbvConfig, theirs: &IbvConfig) -> Result<Link<D>, String> {
        let cq = self.a.create_cq(depth_of(ours)).say("create_cq")?;
        self.link_on(cq, ours, theirs)
    }

    /// The same with a completion channel.
    pub(crate) fn link_with_channel(&mut self) -> Result<Link<D>, String> {
        let config = self.config();
        let cq = self.a.create_cq_with_channel(depth_of(&config)).say("create_cq")?;
        self.link_on(cq, &config, &config)
    }

    fn link_on(
        &mut self,
        cq: Arc<IbvCq<D>>,
        ours: &IbvConfig,
        theirs: &IbvConfig,
    ) -> Result<Link<D>, String> {
        let (mut qp, peer) = self.connect_on(&cq, ours, theirs)?;
        let info = qp.queue_pair().get_qp_info().say("get_qp_info")?;
        let theirs = self.b.endpoint(peer)?;
        let poller = cq.poller().say("poller")?;
        Ok(Link { qp, poller, cq, peer, info, theirs })
    }

    /// A connected queue pair that reports to `cq`; whether its poller is claimed is the caller's.
    pub(crate) fn connect_on(
        &mut self,
        cq: &Arc<IbvCq<D>>,
        ours: &IbvConfig,
        theirs: &IbvConfig,
    ) -> Result<(Connected<D::QueuePair>, PeerQp), String> {
        let mut qp = self.a.create_queue_pair(ours.clone(), cq, cq).say("create_qp")?;
        let info = qp.get_qp_info().say("get_qp_info")?;
        let (peer, theirs) = self.b.create_qp(theirs, false)?;
        // The responder first: it has to be ready before the first request arrives.
        self.b.connect(peer, &info)?;
        let qp = qp.connect(&theirs).map_err(|(_, e)| format!("connect: {e}"))?;
        Ok((qp, peer))
    }

    /// A queue pair that has not met its peer, and its completion queue.
    pub(crate) fn unconnected(&self, config: &IbvConfig) -> Unconnected<D> {
        let cq = self.a.create_cq(depth_of(config)).say("create_cq")?;
        let qp = self.a.create_queue_pair(config.clone(), &cq, &cq).say("create_qp")?;
        Ok((qp, cq))
    }

    /// `len` zero bytes of end a.
    pub(crate) fn region(&self, len: usize) -> Result<Region<D>, String> {
        self.a.alloc(len).say("reg_mr")
    }

    /// The same for less than everything.
    pub(crate) fn region_for(&self, len: usize, access: Access) -> Result<Region<D>, String> {
        self.a.register_with(HeapMemory::zeroed(len).say("alloc")?, access).say("reg_mr")
    }

    /// A region of end a that holds the pattern of `seed`.
    pub(crate) fn patterned(&self, len: usize, seed: u64) -> Result<Region<D>, String> {
        let region = self.region(len)?;
        region.write_at(0, &pattern(seed, len)).say("fill")?;
        Ok(region)
    }

    /// Waits for exactly `n` completions of `link`, successful or not.
    pub(crate) fn completions(&self, link: &mut Link<D>, n: usize) -> Result<Vec<IbvWc>, String> {
        wait_on(&self.wait, &mut link.poller, n)
    }

    /// Waits for exactly `n` successes; their ids in order of arrival.
    pub(crate) fn ids(&self, link: &mut Link<D>, n: usize) -> Result<Vec<u64>, String> {
        ids_of(&self.completions(link, n)?)
    }

    /// Waits until each of `ids` completed successfully, once, and nothing else did.
    pub(crate) fn finish(&self, link: &mut Link<D>, ids: WrIds) -> Result<(), String> {
        let mut got = self.ids(link, ids.count as usize)?;
        got.sort_unstable();
        ensure_eq!(got, Vec::from(ids), "ids of the completions");
        Ok(())
    }

    /// Waits for the one completion of `id`, which has to be a failure.
    pub(crate) fn failure(&self, link: &mut Link<D>, id: u64) -> Result<IbvWc, String> {
        let wc = self.completions(link, 1)?[0];
        ensure_eq!(wc.wr_id, id, "id of the completion");
        ensure!(wc.status != WcStatus::SUCCESS, "request {id:#x} succeeded and should have failed");
        Ok(wc)
    }

    /// Nothing may complete, even after the fabric has come to rest.
    pub(crate) fn no_completion(&self, link: &mut Link<D>) -> Result<(), String> {
        let mut out = [IbvWc::default(); 16];
        self.wait.settle();
        let got = link.poller.poll(&mut out).say("poll")?;
        ensure!(got == 0, "a completion of nothing: {}", list(&out[..got]));
        Ok(())
    }
}

/// Completion-queue entries that a queue pair of this configuration needs.
pub(crate) fn depth_of(config: &IbvConfig) -> u32 {
    config.max_send_wr.saturating_add(config.max_recv_wr).max(1)
}

/// Bytes of a region of end a must be the pattern of `seed` from its byte `from` on.
pub(crate) fn ensure_pattern<D: IbvDomainImpl>(region: &Region<D>, seed: u64) -> Result<(), String> {
    match crate::pattern::difference(&region.to_vec(), seed, 0) {
        None => Ok(()),
        Some(why) => Err(format!("end a's memory: {why}")),
    }
}
