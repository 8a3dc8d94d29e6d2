//! Requests built and not yet rung, in memory laid out once. How they are rung is `session.rs`'s.

use ibv_core::{Op, Payload, WorkRequest};

/// What a request does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Write,
    WriteWithImm,
    Read,
    Send,
    SendWithImm,
}

/// One request. Its local side is a range, or bytes of the ring's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Built {
    /// As libefa is to report it: see [`GET`].
    pub(crate) id: u64,
    pub(crate) remote_addr: u64,
    pub(crate) local_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) lkey: u32,
    pub(crate) len: u32,
    /// In network order.
    pub(crate) imm: u32,
    pub(crate) peer: u32,
    pub(crate) kind: Kind,
    pub(crate) inline: bool,
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

    /// The requests in order.
    #[inline]
    pub(crate) fn requests(&self) -> &[Built] {
        &self.built[..self.len]
    }

    /// Builds one request. `None`, and nothing built, if core had promised room or an operation that is not
    /// there.
    #[inline]
    pub(crate) fn push(&mut self, wr: &WorkRequest<'_>) -> Option<()> {
        let i = self.len;
        let (kind, imm, mark) = match wr.op {
            Op::Write => (Kind::Write, 0, 0),
            Op::Read => (Kind::Read, 0, GET),
            Op::WriteWithImm(imm) => (Kind::WriteWithImm, imm, 0),
            Op::Send => (Kind::Send, 0, 0),
            Op::SendWithImm(imm) => (Kind::SendWithImm, imm, 0),
            _ => return None,
        };
        let (lkey, local_addr, len, inline) = match wr.local {
            Payload::Sges([one]) => (one.lkey(), one.addr(), one.len() as u32, false),
            Payload::Sges(_) => (self.nothing.0, self.nothing.1, 0, false),
            Payload::Inline(data) => (0, self.copy(i, data)?, data.len() as u32, true),
        };
        *self.built.get_mut(i)? = Built {
            id: wr.id | mark,
            remote_addr: wr.remote.addr,
            local_addr,
            rkey: wr.remote.rkey,
            lkey,
            len,
            imm: imm.to_be(),
            peer: self.aim,
            kind,
            inline,
        };
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
