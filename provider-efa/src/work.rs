//! Requests built and not yet rung, in memory laid out once. How they are rung is `session.rs`'s.

use ibv_core::{Op, Payload, WorkRequest};

/// What a request does; immediates are in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Write,
    WriteWithImm(u32),
    Read,
    Send,
    SendWithImm(u32),
}

impl Kind {
    /// `None` where EFA has no such operation.
    #[inline(always)]
    pub(crate) fn of(op: Op) -> Option<Self> {
        match op {
            Op::Write => Some(Self::Write),
            Op::Read => Some(Self::Read),
            Op::WriteWithImm(imm) => Some(Self::WriteWithImm(imm.to_be())),
            Op::Send => Some(Self::Send),
            Op::SendWithImm(imm) => Some(Self::SendWithImm(imm.to_be())),
            _ => None,
        }
    }
}

/// What a request does, and whether its local side is a range or bytes of the ring's: one comparison tells both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// A put of a range, the commonest.
    #[default]
    Put,
    /// A get into a range.
    Get,
    /// Whatever else of a range.
    Range(Kind),
    /// Of bytes.
    Inline(Kind),
}

impl Form {
    const fn of_range(kind: Kind) -> Self {
        match kind {
            Kind::Write => Self::Put,
            Kind::Read => Self::Get,
            other => Self::Range(other),
        }
    }
}

/// One request. Its local side is a range, or bytes of the ring's. As long as a line of the cache, so that it is
/// found by a shift.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Built {
    /// As libefa is to report it: see [`GET`].
    pub(crate) id: u64,
    pub(crate) remote_addr: u64,
    pub(crate) local_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) lkey: u32,
    pub(crate) len: u32,
    pub(crate) peer: u32,
    pub(crate) form: Form,
}

impl Built {
    /// The request of one range; `None` for any other.
    #[inline(always)]
    pub(crate) fn of_range(wr: &WorkRequest<'_>, peer: u32) -> Option<Self> {
        let (Payload::Sges([one]), Some(kind)) = (wr.local, Kind::of(wr.op)) else { return None };
        Some(Self {
            id: mark(wr.id, kind),
            remote_addr: wr.remote.addr,
            local_addr: one.addr(),
            rkey: wr.remote.rkey,
            lkey: one.lkey(),
            len: one.len() as u32,
            peer,
            form: Form::of_range(kind),
        })
    }
}

#[inline(always)]
fn mark(id: u64, kind: Kind) -> u64 {
    if kind == Kind::Read { id | GET } else { id }
}

/// Marks the id of a get, whose completion libefa reports as a send's (`efa_process_cqe`). Core's ids do not
/// reach this bit: `queue_pair.rs` checks it.
pub(crate) const GET: u64 = 1 << 63;

/// The requests since the last ring, in order.
#[derive(Debug)]
pub(crate) struct SendRing {
    built: Box<[Built]>,
    inline: Box<[u8]>,
    max_inline: usize,
    len: usize,
    /// The peer of requests that come next.
    pub(crate) aim: u32,
    /// Key and address of a region of the domain's, for requests of no bytes.
    nothing: (u32, u64),
}

impl SendRing {
    /// Room for `depth` requests with `max_inline` bytes each.
    pub(crate) fn new(depth: u32, max_inline: u32, nothing: (u32, u64)) -> Self {
        let (depth, max_inline) = (depth as usize, max_inline as usize);
        Self {
            built: vec![Built::default(); depth].into(),
            inline: vec![0; depth * max_inline].into(),
            max_inline,
            len: 0,
            aim: 0,
            nothing,
        }
    }

    /// Forgets all requests.
    #[inline]
    pub(crate) fn clear(&mut self) {
        (self.len, self.aim) = (0, 0);
    }

    /// The requests in order; `None` if there was no room for all of them.
    #[inline]
    pub(crate) fn requests(&self) -> Option<&[Built]> {
        self.built.get(..self.len)
    }

    /// Builds one request. `None`, and nothing built, if core had promised an operation that is not there. Had it
    /// promised room that is not, the ring holds nothing that could be rung.
    #[inline(always)]
    pub(crate) fn push(&mut self, wr: &WorkRequest<'_>) -> Option<()> {
        let Some(request) = Built::of_range(wr, self.aim) else { return self.push_other(wr) };
        let i = self.len;
        // Room is asked for when it is rung: that is once, and here nothing can fail.
        if let Some(place) = self.built.get_mut(i) {
            *place = request;
        }
        self.len = i + 1;
        Some(())
    }

    /// One of bytes, or of none.
    #[inline(never)]
    fn push_other(&mut self, wr: &WorkRequest<'_>) -> Option<()> {
        let i = self.len;
        let kind = Kind::of(wr.op)?;
        let (lkey, local_addr, len, form) = match wr.local {
            Payload::Sges(_) => (self.nothing.0, self.nothing.1, 0, Form::of_range(kind)),
            Payload::Inline(data) => (0, self.copy(i, data)?, data.len() as u32, Form::Inline(kind)),
        };
        let (id, peer) = (mark(wr.id, kind), self.aim);
        let (remote_addr, rkey) = (wr.remote.addr, wr.remote.rkey);
        *self.built.get_mut(i)? = Built { id, remote_addr, local_addr, rkey, lkey, len, peer, form };
        self.len = i + 1;
        Some(())
    }

    /// A ring that holds this request.
    #[cfg(test)]
    pub(crate) fn of_one(request: Built) -> Self {
        Self { built: [request].into(), len: 1, ..Self::new(0, 0, (0, 0)) }
    }

    /// Copies a request's bytes to its own place, and says where that is: in a block that never moves.
    fn copy(&mut self, i: usize, data: &[u8]) -> Option<u64> {
        if data.len() > self.max_inline {
            return None;
        }
        let at = i * self.max_inline;
        let place = self.inline.get_mut(at..at + data.len())?;
        place.copy_from_slice(data);
        Some(place.as_ptr() as u64)
    }
}

#[cfg(test)]
mod tests;
