//! What all objects of one mutant share: what they have seen, and a device of their own to do wrong with
//! it. Everything here happens under one lock.

use crate::hooks::Hooks;
use ibv_core::{IbvMemoryRegionView, IbvWc, Payload, SharedBytes};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Hooks and memory of one mutant provider.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) hooks: Hooks,
    pub(crate) world: Mutex<World>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A live region: its keys, and its bytes until it is deregistered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) end: End,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) base: u64,
    pub(crate) bytes: SharedBytes,
}

/// Part of a live region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) region: Region,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// What a client that assumes an order knows of a request.
#[derive(Clone, Debug)]
pub(crate) struct Belief {
    /// The completion that it expects.
    pub(crate) wc: IbvWc,
    /// Where the last byte goes, and what it is.
    pub(crate) last: Option<(Span, u8)>,
}

/// One of the two ends of a case. Devices number their queue pairs and keys by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum End {
    #[default]
    A,
    B,
}

impl End {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// A queue pair: its end and its number there.
pub(crate) type Qp = (End, u32);

/// What mutants remember. Each uses what it needs.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) live: Vec<Region>,
    /// Remote keys whose region is gone, and their end.
    pub(crate) dead: Vec<(End, u32)>,
    /// Whose completion queue is being polled.
    pub(crate) polling: End,
    /// Sizes of the receives that each queue pair has posted and nobody has taken.
    pub(crate) rooms: HashMap<Qp, VecDeque<usize>>,
    /// Gets under way.
    pub(crate) gets: HashSet<(Qp, u64)>,
    /// What to add to a range once the request completes.
    pub(crate) adds: HashMap<(Qp, u64), (Span, u64)>,
    /// What to store in a range once the request completes.
    pub(crate) stores: HashMap<(Qp, u64), (Span, u64)>,
    /// Copies to make later.
    pub(crate) late: Vec<(Span, Vec<u8>)>,
    /// Requests that a client of ours believes to be under way, in posting order.
    pub(crate) believed: VecDeque<Belief>,
    /// Ids that it has reported without waiting for the device.
    pub(crate) told: Vec<u64>,
    /// The first failure of each queue pair.
    pub(crate) causes: HashMap<Qp, IbvWc>,
    /// Whatever is counted.
    pub(crate) count: u64,
}

impl World {
    /// Counts, from 1.
    pub(crate) fn tick(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// The first `len` bytes of `remote`, where a live region covers them, whatever the key.
    pub(crate) fn at(&self, addr: u64, len: usize) -> Option<Span> {
        self.live.iter().find_map(|region| {
            let at = usize::try_from(addr.checked_sub(region.base)?).ok()?;
            (at.checked_add(len)? <= region.bytes.len()).then_some(Span { region: *region, at, len })
        })
    }

    /// The live region under the remote key that a request of `end` names.
    pub(crate) fn keyed(&self, end: End, rkey: u32) -> Option<&Region> {
        self.live.iter().find(|r| r.rkey == rkey && r.end == end.other())
    }

    /// The bytes of a request's local side, as they are now.
    pub(crate) fn gather(&self, local: Payload<'_>) -> Option<Vec<u8>> {
        match local {
            Payload::Inline(data) => Some(data.to_vec()),
            Payload::Sges(views) => views
                .iter()
                .map(|v| self.at(v.addr(), v.len())?.read())
                .collect::<Option<Vec<_>>>()
                .map(|v| v.concat()),
        }
    }
}

impl Span {
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        let mut out = vec![0; self.len];
        self.region.bytes.read(self.at, &mut out).ok().map(|()| out)
    }

    pub(crate) fn write(&self, bytes: &[u8]) {
        let _ = self.region.bytes.write(self.at, bytes);
    }

    pub(crate) fn word(&self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.read()?.try_into().ok()?))
    }
}

/// The length of a request's local side.
pub(crate) fn len(local: Payload<'_>) -> usize {
    match local {
        Payload::Inline(data) => data.len(),
        Payload::Sges(views) => views.iter().map(IbvMemoryRegionView::len).sum(),
    }
}
