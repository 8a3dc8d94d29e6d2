//! Moving bytes by whatever a device has, for cases that are about the transport and not about one verb. A case that
//! is about a verb names it instead, among its needs and in its body.

use crate::{
    ctx::{Ctx, Link, Region, Say, ensure_pattern},
    pattern::{difference, pattern, touched_byte, wrong_byte},
    peer::{Limits, PeerQp, PeerRegion, RangeOf},
};
use ibv_core::{
    Batch, Caps, Connected, Error, IbvConfig, IbvDomainImpl, IbvMemoryRegionView, IbvQueuePair,
    IbvRemoteMemoryRegionView, Op, PostError, Request, WcStatus, WrIds,
};
use std::{ops::Range, slice};

/// How a case's bytes travel: the first of these that both ends offer. With gets the two ends change roles: end a
/// still posts, and end b's memory is where the bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Put,
    Get,
    Send,
}

/// Bytes at one end and room for them at the other.
pub(crate) struct Transfer<D: IbvDomainImpl> {
    pub(crate) way: Way,
    /// End a's: the source, or the target of gets.
    pub(crate) near: Region<D>,
    /// End b's: the target, or the source of gets.
    pub(crate) far: PeerRegion,
}

/// One transfer, or a piece of it: what a request names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'t> {
    way: Way,
    near: IbvMemoryRegionView<'t>,
    far: IbvRemoteMemoryRegionView,
    /// Where a message has to land; one made from bare views lands nowhere.
    landing: Option<RangeOf>,
}

impl Way {
    /// The way of a device that offers `caps`, those of both ends.
    pub(crate) fn of(caps: &Caps) -> Self {
        match (caps.write.present(), caps.read.present()) {
            (true, _) => Self::Put,
            (false, true) => Self::Get,
            (false, false) => Self::Send,
        }
    }

    /// A request of several ranges of end a.
    pub(crate) fn request<'r>(
        self,
        near: &'r [IbvMemoryRegionView<'r>],
        far: IbvRemoteMemoryRegionView,
    ) -> Request<'r> {
        match self {
            Self::Put => Request::put(far, near),
            Self::Get => Request::get(near, far),
            Self::Send => Request::send(near),
        }
    }

    /// The status of a part that is [`astray`](Part::astray).
    pub(crate) fn refusal(self) -> WcStatus {
        if self == Self::Send { WcStatus::LOC_PROT_ERR } else { WcStatus::REM_ACCESS_ERR }
    }

    fn verb(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Send => "send",
        }
    }
}

impl<D: IbvDomainImpl> Transfer<D> {
    /// `to` of the target, `from` of the source: as long, or shorter.
    pub(crate) fn part(&self, to: Range<usize>, from: Range<usize>) -> Result<Part<'_>, String> {
        let (near, far) = if self.way == Way::Get { (to, from) } else { (from, to) };
        let cut = || format!("the case cut bytes {near:?} of {}", self.near.len());
        Ok(Part {
            way: self.way,
            near: self.near.view().slice(near.start, near.len()).ok_or_else(cut)?,
            far: self.far.at(far.start, far.len())?,
            landing: Some(self.far.range(far.start, far.len())),
        })
    }

    /// The same bytes of both.
    pub(crate) fn piece(&self, at: usize, len: usize) -> Result<Part<'_>, String> {
        self.part(at..at + len, at..at + len)
    }

    /// All of the source into the target.
    pub(crate) fn all(&self) -> Part<'_> {
        Part { way: self.way, near: self.near.view(), far: self.far.remote, landing: Some(self.far.whole()) }
    }

    /// Fills the source with the pattern of `seed`.
    pub(crate) fn load(&self, c: &mut Ctx<'_, D>, seed: u64) -> Result<(), String> {
        match self.way {
            Way::Get => c.b.fill(self.far, seed),
            _ => self.near.write_at(0, &pattern(seed, self.near.len())).say("fill"),
        }
    }

    /// Makes the target other than anything that is loaded.
    pub(crate) fn clear(&self, c: &mut Ctx<'_, D>) -> Result<(), String> {
        match self.way {
            Way::Get => self.near.write_at(0, &vec![0; self.near.len()]).say("clear"),
            _ => c.b.fill(self.far, 0),
        }
    }

    /// Waits until the target holds the pattern of `seed`.
    pub(crate) fn expect(&self, c: &mut Ctx<'_, D>, seed: u64) -> Result<(), String> {
        match self.way {
            Way::Get => self.until_near(c, || Ok(ensure_pattern(&self.near, seed).err())),
            _ => c.b.expect_pattern(self.far, seed),
        }
    }

    /// The same for bytes `at` of the target, which hold the pattern's from `from` on.
    pub(crate) fn expect_range(
        &self,
        c: &mut Ctx<'_, D>,
        at: Range<usize>,
        seed: u64,
        from: u64,
    ) -> Result<(), String> {
        match self.way {
            Way::Get => self.until_near(c, || {
                let wrong = difference(&self.near_bytes(at.start, at.len())?, seed, from);
                Ok(wrong.map(|why| format!("end a's memory: {why}")))
            }),
            _ => c.b.expect_range(self.far.range(at.start, at.len()), seed, from),
        }
    }

    /// Waits until the target's bytes from `at` on are `want`.
    pub(crate) fn expect_bytes(&self, c: &mut Ctx<'_, D>, at: usize, want: &[u8]) -> Result<(), String> {
        match self.way {
            Way::Get => {
                self.until_near(c, || Ok(wrong_byte("end a", at, &self.near_bytes(at, want.len())?, want)))
            }
            _ => c.b.expect_bytes(self.far, at, want),
        }
    }

    /// The target's bytes from `at` on must be `want` once the fabric has come to rest.
    pub(crate) fn expect_untouched(&self, c: &mut Ctx<'_, D>, at: usize, want: &[u8]) -> Result<(), String> {
        match self.way {
            Way::Get => {
                c.wait.settle();
                touched_byte("end a", at, &self.near_bytes(at, want.len())?, want).map_or(Ok(()), Err)
            }
            _ => c.b.expect_untouched(self.far, at, want),
        }
    }

    fn near_bytes(&self, at: usize, len: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len];
        self.near.read_at(at, &mut bytes).say("read")?;
        Ok(bytes)
    }

    /// Looks until end a's memory is as it should be; not every case has polled a completion before.
    fn until_near(
        &self,
        c: &Ctx<'_, D>,
        look: impl FnMut() -> Result<Option<String>, String>,
    ) -> Result<(), String> {
        c.wait.until_right(look).map_err(|why| format!("what was got never arrived: {why}"))
    }
}

impl<'t> Part<'t> {
    /// A part between views that the case has made by itself, where no message needs to land.
    pub(crate) fn between(way: Way, near: IbvMemoryRegionView<'t>, far: IbvRemoteMemoryRegionView) -> Self {
        Self { way, near, far, landing: None }
    }

    /// The same through a key that opens nothing: end b's, or the sender's own of a message.
    pub(crate) fn astray(self) -> Self {
        let (near, far) = (self.near, self.far);
        match self.way {
            Way::Send => {
                let near = IbvMemoryRegionView::from_raw_parts(near.addr(), near.len(), !near.lkey());
                Self { near, ..self }
            }
            _ => Self { far: IbvRemoteMemoryRegionView { rkey: !far.rkey, ..far }, ..self },
        }
    }

    /// As a request, for those with flags.
    pub(crate) fn request(&self) -> Request<'_> {
        self.way.request(slice::from_ref(&self.near), self.far)
    }

    /// Posts it, and no receive for a message: [`Ctx::post`] does both.
    pub(crate) fn post<Q: IbvQueuePair>(self, qp: &mut Connected<Q>) -> Result<WrIds, PostError> {
        match self.way {
            Way::Put => qp.put(self.far, self.near),
            Way::Get => qp.get(self.near, self.far),
            Way::Send => qp.send(self.near),
        }
    }

    /// Adds it to a batch; a message has to be [met](Ctx::meet) before the ring.
    pub(crate) fn push<Q: IbvQueuePair>(self, batch: &mut Batch<'_, Q>) -> Result<WrIds, PostError> {
        match self.way {
            Way::Put => batch.put(self.far, self.near),
            Way::Get => batch.get(self.near, self.far),
            Way::Send => batch.push(&self.request()),
        }
    }

    /// Posts it through the seeds' tier, which has no messages: cases that use it need `one_sided`.
    pub(crate) fn post_by_trait<Q: IbvQueuePair>(self, qp: &mut Q) -> Result<Vec<u64>, Error> {
        match self.way {
            Way::Get => qp.get(self.near, self.far),
            _ => qp.put(self.far, self.near),
        }
    }
}

impl<D: IbvDomainImpl> Ctx<'_, D> {
    /// How this case's bytes travel.
    pub(crate) fn way(&self) -> Way {
        Way::of(&common(&self.caps(), &self.b.caps))
    }

    /// `len` bytes of the pattern of `seed`, and as much room for them.
    pub(crate) fn transfer(&mut self, len: usize, seed: u64) -> Result<Transfer<D>, String> {
        self.transfer_into(len, seed, len)
    }

    /// The same with another amount of room.
    pub(crate) fn transfer_into(
        &mut self,
        len: usize,
        seed: u64,
        room: usize,
    ) -> Result<Transfer<D>, String> {
        let way = self.way();
        if way != Way::Get {
            return Ok(Transfer { way, near: self.patterned(len, seed)?, far: self.b.alloc(room)? });
        }
        let made = Transfer { way, near: self.region(room)?, far: self.b.alloc(len)? };
        made.load(self, seed).map(|()| made)
    }

    /// What carries inline bytes: a put where both ends have it, else a send.
    pub(crate) fn inline_op(&self) -> Option<Op> {
        let both = common(&self.caps(), &self.b.caps);
        let put = both.write.present().then_some(Op::Write);
        put.or(both.send.present().then_some(Op::Send))
    }

    /// As many of `len` bytes as go at once: puts and gets of any length are split, messages are not.
    pub(crate) fn at_once(&self, len: usize) -> usize {
        if self.way() == Way::Send { len.min(self.caps().max_send_size) } else { len }
    }

    /// `config` for end b, with receives for `n` transfers in flight where those are messages.
    pub(crate) fn receiving(&self, mut config: IbvConfig, n: u32) -> IbvConfig {
        if self.way() == Way::Send {
            config.max_recv_wr = config.max_recv_wr.max(n);
        }
        config
    }

    /// Posts one part now.
    pub(crate) fn post(&mut self, link: &mut Link<D>, part: Part<'_>) -> Result<WrIds, String> {
        self.post_on(&mut link.qp, link.peer, part)
    }

    /// The same on a queue pair without a [`Link`].
    pub(crate) fn post_on(
        &mut self,
        qp: &mut Connected<D::QueuePair>,
        peer: PeerQp,
        part: Part<'_>,
    ) -> Result<WrIds, String> {
        self.try_post(qp, peer, part)?.say(part.way.verb())
    }

    /// The same where a refusal is something to look at.
    pub(crate) fn try_post(
        &mut self,
        qp: &mut Connected<D::QueuePair>,
        peer: PeerQp,
        part: Part<'_>,
    ) -> Result<Result<WrIds, PostError>, String> {
        if part.way != Way::Send {
            return Ok(part.post(qp));
        }
        // The receive of a message that is refused would be met by the next one.
        let mut batch = qp.batch();
        let ids = match part.push(&mut batch) {
            Ok(ids) => ids,
            Err(refused) => return Ok(Err(refused)),
        };
        self.meet(peer, part)?;
        batch.ring().say("ring")?;
        Ok(Ok(ids))
    }

    /// Posts the receive that a message needs; nothing for a put or a get. What has been received before is
    /// polled first, for its room.
    pub(crate) fn meet(&mut self, peer: PeerQp, part: Part<'_>) -> Result<(), String> {
        if part.way != Way::Send {
            return Ok(());
        }
        self.b.poll(peer, Limits::POLL)?;
        let landing = part.landing.say("the case sends to no range of end b")?;
        self.b.post_recv(peer, &[landing]).map(drop)
    }
}

/// What both ends can start, of puts, gets and sends.
pub(crate) fn common(a: &Caps, b: &Caps) -> Caps {
    use ibv_core::Support::Absent;
    let mut both = a.clone();
    for (ours, theirs) in [(&mut both.write, b.write), (&mut both.read, b.read), (&mut both.send, b.send)] {
        *ours = if theirs.present() { *ours } else { Absent };
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibv_core::Support::{Absent, Native};

    fn caps(write: bool, read: bool, send: bool) -> Caps {
        let mut caps = Caps::default();
        let support = |has| if has { Native } else { Absent };
        (caps.write, caps.read, caps.send) = (support(write), support(read), support(send));
        caps
    }

    #[test]
    fn puts_come_before_gets_and_gets_before_messages() {
        for (write, read, send, way) in [
            (true, true, true, Way::Put),
            (true, false, true, Way::Put),
            (false, true, true, Way::Get),
            (false, false, true, Way::Send),
        ] {
            assert_eq!(Way::of(&caps(write, read, send)), way);
        }
    }

    #[test]
    fn what_one_end_lacks_is_not_common() {
        let both = common(&caps(true, true, true), &caps(false, true, false));
        assert_eq!((both.write, both.read, both.send), (Absent, Native, Absent));
        let both = common(&caps(false, true, true), &caps(true, false, true));
        assert_eq!(Way::of(&both), Way::Send);
    }
}
