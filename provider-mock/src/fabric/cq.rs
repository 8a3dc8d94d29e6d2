//! Completion queues and their channels.

use ibv_core::{IbvWc, PollCompletionError};
use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
};

/// What a poll of an overrun queue answers once it is empty: EOVERFLOW.
pub(crate) const OVERRUN: i32 = 75;

/// Names a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqId(pub usize);

/// What the consumer asked to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Any,
    Solicited,
}

#[derive(Debug)]
pub(crate) struct Cq {
    pub pd: u32,
    pub entries: VecDeque<IbvWc>,
    pub depth: usize,
    /// A completion found it full; it takes no more.
    pub overrun: bool,
    /// Its owner is gone, but it could not be destroyed.
    pub zombie: bool,
    pub armed: Armed,
    channel: Option<UnixStream>,
}

impl Cq {
    pub fn new(pd: u32, depth: u32, channel: Option<UnixStream>) -> Self {
        let entries = VecDeque::with_capacity(depth as usize);
        Self { pd, entries, depth: depth as usize, overrun: false, zombie: false, armed: Armed::No, channel }
    }

    /// Appends a completion, and an event where the consumer asked for one. False where it is full.
    pub fn push(&mut self, wc: IbvWc, solicited: bool) -> bool {
        if self.overrun || self.entries.len() >= self.depth {
            return false;
        }
        self.entries.push_back(wc);
        let wakes = match self.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => solicited || !wc.is_valid(),
        };
        if wakes {
            self.raise();
        }
        true
    }

    /// One event for one arming, whatever follows.
    pub fn raise(&mut self) {
        self.armed = Armed::No;
        if let Some(channel) = &mut self.channel {
            // A full socket is readable, which is all that an event is for.
            let _ = channel.write(&[1]);
        }
    }

    pub fn poll(&mut self, out: &mut [IbvWc]) -> Result<usize, PollCompletionError> {
        let n = out.len().min(self.entries.len());
        for (slot, wc) in out.iter_mut().zip(self.entries.drain(..n)) {
            *slot = wc;
        }
        if n == 0 && self.overrun && !out.is_empty() {
            return Err(PollCompletionError::Device(OVERRUN));
        }
        Ok(n)
    }
}

/// A channel: the end that the device writes, and the one that the poller reads.
pub(crate) fn channel() -> io::Result<(UnixStream, Arc<UnixStream>)> {
    let (device, poller) = UnixStream::pair()?;
    device.set_nonblocking(true)?;
    poller.set_nonblocking(true)?;
    Ok((device, Arc::new(poller)))
}

/// Takes every event off a channel; their number.
pub(crate) fn take_events(mut channel: &UnixStream) -> u32 {
    let (mut n, mut buf) = (0u32, [0; 64]);
    while let Ok(got @ 1..) = channel.read(&mut buf) {
        n = n.saturating_add(got as u32);
    }
    n
}
