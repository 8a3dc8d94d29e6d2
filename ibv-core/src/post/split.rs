//! Transfers that need more than one work request, or whose ranges need trimming.

use super::{MAX_SGE, Parts, limit, void};
use crate::{
    core::FromCore,
    error::PostError,
    memory::IbvMemoryRegionView,
    queue_pair::IbvQueuePair,
    wr::{Op, Payload, Request, WrIds},
};

/// Splits on total length, across ranges; an immediate travels with the last piece.
#[inline(never)]
pub(super) fn enqueue_split<Q: IbvQueuePair + ?Sized>(
    qp: &mut Q,
    req: &Request<'_>,
    sges: &[IbvMemoryRegionView<'_>],
    len: usize,
) -> Result<WrIds, PostError> {
    let chunk = limit(qp.core().limits(), req.op).max(1);
    let count = u32::try_from(len.div_ceil(chunk).max(1)).map_err(|_| PostError::QueueFull)?;
    let ids = qp.core_mut(FromCore(())).send.reserve(count, req.signaled)?;
    let mut rest = Ranges::new(sges);
    for (i, id) in ids.iter().enumerate() {
        let (at, last) = (i * chunk, i + 1 == ids.count as usize);
        let n = chunk.min(len - at);
        let mut piece = [IbvMemoryRegionView::EMPTY; MAX_SGE];
        let used = rest.fill(&mut piece, n);
        let parts = piece_of(req, at, n, last);
        let local = Payload::Sges(&piece[..used]);
        if let Err(e) = qp.enqueue(&parts.request(id, local)) {
            // Half a transfer must never be rung, and a provider can only forget all of it.
            void(qp, Some(e));
            return Err(e);
        }
        #[cfg(feature = "recorder")]
        parts.record(qp.core_mut(FromCore(())), id, local, n);
    }
    qp.core_mut(FromCore(())).send.advance(count, req.signaled);
    Ok(ids)
}

/// One piece: `n` bytes from `at` on.
fn piece_of(req: &Request<'_>, at: usize, n: usize, last: bool) -> Parts {
    let mut parts = Parts::of(req);
    if !last {
        parts.solicited = false;
        if let Op::WriteWithImm(_) = req.op {
            parts.op = Op::Write;
        }
    }
    match req.op {
        Op::Send | Op::SendWithImm(_) => {}
        // Inside: the transfer fits its remote side, and a piece its transfer.
        _ => parts.remote = req.remote.slice(at, n).unwrap_or_default(),
    }
    parts
}

/// What is left of a range list.
pub(super) struct Ranges<'a> {
    sges: &'a [IbvMemoryRegionView<'a>],
    at: usize,
}

impl<'a> Ranges<'a> {
    pub(super) fn new(sges: &'a [IbvMemoryRegionView<'a>]) -> Self {
        Self { sges, at: 0 }
    }

    /// Moves the next `n` bytes into `out`, without empty ranges; returns how many ranges.
    pub(super) fn fill(&mut self, out: &mut [IbvMemoryRegionView<'a>; MAX_SGE], mut n: usize) -> usize {
        let mut used = 0;
        while n > 0
            && let Some((head, tail)) = self.sges.split_first()
        {
            let part = n.min(head.len() - self.at);
            if let (1.., Some(view)) = (part, head.slice(self.at, part)) {
                out[used] = view;
                used += 1;
            }
            (n, self.at) = (n - part, self.at + part);
            if self.at == head.len() {
                (self.sges, self.at) = (tail, 0);
            }
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_the_ranges_in_order_without_empty_ones(
            lens in prop::collection::vec(0usize..40, 0..MAX_SGE), chunk in 1usize..60,
        ) {
            let views: Vec<_> = lens.iter().enumerate()
                .map(|(i, n)| IbvMemoryRegionView::from_raw_parts(i as u64 * 1000, *n, i as u32)).collect();
            let total: usize = lens.iter().sum();
            let (mut rest, mut left, mut seen) = (Ranges::new(&views), total, Vec::new());
            while left > 0 {
                let mut piece = [IbvMemoryRegionView::EMPTY; MAX_SGE];
                let n = chunk.min(left);
                let used = rest.fill(&mut piece, n);
                prop_assert!(piece[..used].iter().all(|v| !v.is_empty()));
                prop_assert_eq!(piece[..used].iter().map(|v| v.len()).sum::<usize>(), n);
                seen.extend(piece[..used].iter().flat_map(|v| (0..v.len() as u64).map(|i| (v.lkey(), v.addr() + i)).collect::<Vec<_>>()));
                left -= n;
            }
            let want: Vec<_> = views.iter().flat_map(|v| (0..v.len() as u64).map(|i| (v.lkey(), v.addr() + i)).collect::<Vec<_>>()).collect();
            prop_assert_eq!(seen, want);
        }
    }
}
