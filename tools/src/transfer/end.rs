//! One end of a transfer: a queue pair connected to the peer's, and the loop that keeps its send queue
//! full until a range has moved. What is moved when is `session.rs`'s.

use super::{Cut, Moved, RECEIVES, Settings, wire::Message};
use crate::{
    Failure,
    wire::{Channel, Link, Protocol},
};
use ibv::{
    Caps, Connected, IbvConfig, IbvDomain, IbvDomainImpl, IbvMemoryRegionView, IbvQpInfo,
    IbvRemoteMemoryRegionView, IbvWc, Poller, PostError, QueuePair,
};
use std::{
    thread,
    time::{Duration, Instant},
};

/// A connected end and the only poller of its completion queue.
#[derive(Debug)]
pub(super) struct End<I: IbvDomainImpl> {
    qp: Connected<I::QueuePair>,
    poller: Poller<I>,
    caps: Caps,
    settings: Settings,
}

/// Which way bytes go, seen from the end that asks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Put,
    Get,
}

impl<I: IbvDomainImpl> End<I> {
    /// Exchanges endpoints and connects. One receive is posted before the peer can know of this end.
    pub(super) fn open<L: Link>(
        domain: &IbvDomain<I>,
        channel: &mut Channel<L, Message>,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let caps = domain.caps();
        settings.check(&domain.device_info().name, &caps)?;
        let settings = settings.on(&caps);
        let mut config = IbvConfig::default();
        config.max_send_wr = settings.depth;
        config.max_recv_wr = RECEIVES;
        let cq = domain.create_cq(settings.depth.saturating_add(RECEIVES))?;
        let poller = cq.poller()?;
        let qp = domain.create_queue_pair(config, &cq, &cq);
        let mut qp = qp.map_err(|e| Failure::of_options(e, &[("max_send_wr", "--depth")]))?;
        if caps.send.present() || caps.write_with_imm.present() {
            qp.post_recv(&[])?;
        }
        let peer = hello(&mut qp, channel)?;
        let qp = qp.connect(&peer).map_err(|(_, e)| e)?;
        Ok(Self { qp, poller, caps, settings })
    }

    /// How bytes are cut, as the device allows.
    pub(super) fn cut(&self) -> Cut {
        let Settings { chunk, depth, batch, .. } = self.settings;
        Cut { chunk, depth, batch }
    }

    fn chunk(&self) -> usize {
        self.settings.chunk
    }

    /// Moves all of `local` to or from the front of `remote`. `tick` hears of every completion.
    pub(super) fn pump(
        &mut self,
        way: Way,
        local: IbvMemoryRegionView<'_>,
        remote: IbvRemoteMemoryRegionView,
        mut tick: impl FnMut(u64) -> Result<(), Failure>,
    ) -> Result<Moved, Failure> {
        let total = local.len().div_ceil(self.chunk());
        let (mut posted, mut done, mut doorbells) = (0, 0, 0);
        let start = Instant::now();
        let mut patience = Patience::new(self.settings.timeout, "was moving bytes");
        while done < total {
            let built = self.post(way, local, remote, posted..total)?;
            posted += built;
            doorbells += u64::from(built > 0);
            match self.poll()? {
                0 => patience.wait()?,
                n => {
                    done += n;
                    patience.renew();
                    tick((done * self.chunk()).min(local.len()) as u64)?;
                }
            }
        }
        Ok(Moved::new(local.len() as u64, total as u64, doorbells, start.elapsed()))
    }

    /// Posts the next chunks with one doorbell, as many as there is room for; returns how many.
    fn post(
        &mut self,
        way: Way,
        local: IbvMemoryRegionView<'_>,
        remote: IbvRemoteMemoryRegionView,
        chunks: std::ops::Range<usize>,
    ) -> Result<usize, Failure> {
        let room = self.qp.free_slots().min(self.settings.batch) as usize;
        let count = room.min(chunks.len());
        if count == 0 {
            return Ok(0);
        }
        let chunk = self.chunk();
        let mut batch = self.qp.batch();
        for i in chunks.take(count) {
            let (at, len) = (i * chunk, chunk.min(local.len() - i * chunk));
            let (local, remote) = (local.slice(at, len), remote.slice(at, len));
            let (local, remote) = local.zip(remote).ok_or(PostError::OutOfBounds)?;
            let _ids = match way {
                Way::Put => batch.put(remote, local)?,
                Way::Get => batch.get(local, remote)?,
            };
        }
        batch.ring()?;
        Ok(count)
    }

    /// Completes a receive at the peer, behind everything that has completed here; whether this device
    /// can.
    pub(super) fn notify(
        &mut self,
        local: IbvMemoryRegionView<'_>,
        remote: IbvRemoteMemoryRegionView,
    ) -> Result<bool, Failure> {
        let none = local.slice(0, 0).zip(remote.slice(0, 0));
        let (local, remote) = none.ok_or(PostError::OutOfBounds)?;
        let _ids = match (self.caps.write_with_imm.present(), self.caps.send.present()) {
            (true, _) => self.qp.put_with_imm(remote, local, 0)?,
            (false, true) => self.qp.send(local)?,
            (false, false) => return Ok(false),
        };
        self.one_completion("was notifying the peer")?;
        Ok(true)
    }

    /// Waits for what `notify` does at the other end: from then on the processor sees what was put.
    pub(super) fn notified(&mut self) -> Result<(), Failure> {
        self.one_completion("waited for the notification behind the last put")
    }

    fn one_completion(&mut self, during: &'static str) -> Result<(), Failure> {
        let patience = Patience::new(self.settings.timeout, during);
        while self.poll()? == 0 {
            patience.wait()?;
        }
        Ok(())
    }

    /// Takes completions; how many, all of them good.
    fn poll(&mut self) -> Result<usize, Failure> {
        let mut wcs = [IbvWc::default(); 64];
        let n = self.poller.poll(&mut wcs)?;
        for wc in &wcs[..n] {
            wc.result()?;
        }
        Ok(n)
    }

    /// Leaves in good order. What can not drain is abandoned; no memory is at stake.
    pub(super) fn close(self) {
        let Self { qp, mut poller, .. } = self;
        let Ok(mut closing) = qp.start_close() else { return };
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut wcs = [IbvWc::default(); 64];
        while !closing.is_drained() && Instant::now() < deadline && poller.poll(&mut wcs).is_ok() {
            thread::yield_now();
        }
        closing.finish();
    }
}

fn hello<L: Link, Q: ibv::IbvQueuePair>(
    qp: &mut QueuePair<Q>,
    channel: &mut Channel<L, Message>,
) -> Result<IbvQpInfo, Failure> {
    channel.send(&Message::Hello { endpoint: qp.get_qp_info()?.to_bytes().into() })?;
    match channel.receive("waited for its endpoint")? {
        Message::Hello { endpoint } => Ok(IbvQpInfo::from_bytes(&endpoint)?),
        other => Err(other.instead_of("an endpoint")),
    }
}

/// A deadline that every sign of life renews.
#[derive(Debug)]
struct Patience {
    limit: Duration,
    until: Instant,
    during: &'static str,
}

impl Patience {
    fn new(limit: Duration, during: &'static str) -> Self {
        Self { limit, until: Instant::now() + limit, during }
    }

    fn renew(&mut self) {
        self.until = Instant::now() + self.limit;
    }

    fn wait(&self) -> Result<(), Failure> {
        if Instant::now() >= self.until {
            return Err(Failure::Silent { during: self.during, limit: self.limit, option: "--timeout" });
        }
        thread::yield_now();
        Ok(())
    }
}
