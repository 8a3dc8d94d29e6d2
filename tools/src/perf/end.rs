//! One end of a measurement: its queue pairs, connected, and the memory behind them. What is posted is
//! `bandwidth.rs`'s and `latency.rs`'s.

use super::{Operation, Settings, wire::Message};
use crate::{
    Failure,
    transfer::out_of_range,
    wire::{Channel, Link, Protocol},
};
use ibv::{
    Access, Caps, Connected, GidChoice, HeapMemory, IbvConfig, IbvCq, IbvDomain, IbvDomainImpl,
    IbvMemoryRegion, IbvMemoryRegionView, IbvQpInfo, IbvRemoteMemoryRegionView, Poller, PostError, QueuePair,
};
use std::{slice, sync::Arc};

/// What lanes are aligned to: a cache line, so that the last byte of one is not in the next.
const ALIGN: usize = 64;
/// `rnr_retry` for ever, as perftest has it: a sender that is faster than the receiver waits.
const WITHOUT_END: u8 = 7;

/// The options that the fields of a configuration come from.
const OPTIONS: [(&str, &str); 6] = [
    ("max_send_wr", "--tx-depth"),
    ("max_recv_wr", "--rx-depth"),
    ("max_inline", "--inline"),
    ("port_num", "--ib-port"),
    ("path_mtu", "--mtu"),
    ("gid", "--gid-index"),
];

/// Connected queue pairs and the only poller of the queue they report to.
#[derive(Debug)]
pub(super) struct End<I: IbvDomainImpl> {
    pub(super) lanes: Vec<Lane<I>>,
    pub(super) poller: Poller<I>,
    pub(super) region: IbvMemoryRegion<I>,
    pub(super) caps: Caps,
    /// Bytes of a lane's source, and of its destination behind it.
    stride: usize,
}

/// A queue pair, and the peer's memory that belongs to it: source, then destination.
#[derive(Debug)]
pub(super) struct Lane<I: IbvDomainImpl> {
    pub(super) qp: Connected<I::QueuePair>,
    pub(super) peer: IbvRemoteMemoryRegionView,
}

/// Where a lane's bytes are, for messages of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'r> {
    pub(super) src: IbvMemoryRegionView<'r>,
    pub(super) dst: IbvMemoryRegionView<'r>,
    /// What a receive takes: the destination for messages of any size.
    pub(super) receive: IbvMemoryRegionView<'r>,
    /// For a read, the peer's source, else its destination.
    pub(super) remote: IbvRemoteMemoryRegionView,
    /// The last byte of source and of destination, as offsets into the region.
    pub(super) last: [usize; 2],
}

/// An end taken apart for a hot loop.
pub(super) struct Parts<'e, I: IbvDomainImpl> {
    pub(super) lanes: &'e mut [Lane<I>],
    pub(super) poller: &'e mut Poller<I>,
    pub(super) region: &'e IbvMemoryRegion<I>,
    pub(super) places: Vec<Place<'e>>,
}

impl<I: IbvDomainImpl> Parts<'_, I> {
    /// Posts receives, as many as there is room for.
    pub(super) fn fill_receives(&mut self) -> Result<(), PostError> {
        for (lane, place) in self.lanes.iter_mut().zip(&self.places) {
            while lane.qp.free_recv_slots() > 0 {
                lane.qp.post_recv(slice::from_ref(&place.receive))?;
            }
        }
        Ok(())
    }
}

impl<I: IbvDomainImpl> End<I> {
    /// Creates the queue pairs, exchanges endpoints and connects. `largest` is the longest message, bytes.
    pub(super) fn open<L: Link>(
        domain: &IbvDomain<I>,
        channel: &mut Channel<L, Message>,
        settings: &Settings,
        largest: usize,
    ) -> Result<Self, Failure> {
        let caps = domain.caps();
        let stride = largest.next_multiple_of(ALIGN);
        let region = region(domain, settings, stride)?;
        let config = config(settings, &caps);
        let depth = settings.qps.saturating_mul(config.max_send_wr.saturating_add(config.max_recv_wr));
        let cq = domain.create_cq(depth)?;
        let poller = cq.poller()?;
        let mut lanes = Vec::new();
        let unconnected = queue_pairs(domain, &cq, &config, settings.qps)?;
        for (i, mut qp) in unconnected.into_iter().enumerate() {
            let own = region.remote().slice(i * 2 * stride, 2 * stride).ok_or(PostError::OutOfBounds)?;
            let (info, peer) = exchange(channel, &mut qp, own)?;
            let qp = qp.connect(&info).map_err(|(_, e)| e)?;
            lanes.push(Lane { qp, peer });
        }
        Ok(Self { lanes, poller, region, caps, stride })
    }

    /// Queue pairs, poller, and for each lane where its messages of `size` bytes are.
    pub(super) fn parts(&mut self, op: Operation, size: usize) -> Result<Parts<'_, I>, PostError> {
        let (view, stride) = (self.region.view(), self.stride);
        let place = |(i, lane): (usize, &Lane<I>)| {
            let (src_at, dst_at) = (i * 2 * stride, (i * 2 + 1) * stride);
            let remote_at = if op == Operation::Read { 0 } else { stride };
            Some(Place {
                src: view.slice(src_at, size)?,
                dst: view.slice(dst_at, size)?,
                receive: view.slice(dst_at, stride)?,
                remote: lane.peer.slice(remote_at, size)?,
                last: [src_at, dst_at].map(|at| at + size - 1),
            })
        };
        let places: Option<Vec<_>> = self.lanes.iter().enumerate().map(place).collect();
        let places = places.ok_or(PostError::OutOfBounds)?;
        Ok(Parts { lanes: &mut self.lanes, poller: &mut self.poller, region: &self.region, places })
    }

    /// Puts this row's pattern into every source and nothing into every destination.
    pub(super) fn prepare(&self, row: u64, client: bool, size: usize) -> Result<(), Failure> {
        let nothing = vec![0; size];
        for (i, at) in (0..self.lanes.len()).map(|i| (i as u64, i * 2 * self.stride)) {
            let bytes = pattern(row, i, client, size);
            self.region.write_at(at, &bytes).map_err(out_of_range)?;
            self.region.write_at(at + self.stride, &nothing).map_err(out_of_range)?;
        }
        Ok(())
    }

    /// What a lane's destination should hold.
    pub(super) fn expected(&self, row: u64, lane: u64, client: bool, size: usize) -> Vec<u8> {
        pattern(row, lane, !client, size)
    }

    /// What is wrong with the bytes that the peer's pattern should have replaced; in latency rows all but
    /// the last, which counts. `None` where nothing is.
    pub(super) fn verify(
        &self,
        row: u64,
        client: bool,
        size: usize,
        counts: bool,
    ) -> Result<Option<String>, Failure> {
        let mut bytes = vec![0; size];
        let compared = if counts { size - 1 } else { size };
        for i in 0..self.lanes.len() {
            self.region.read_at((i * 2 + 1) * self.stride, &mut bytes).map_err(out_of_range)?;
            let expected = self.expected(row, i as u64, client, size);
            let unlike = (0..compared).find(|at| bytes[*at] != expected[*at]);
            if let Some(at) = unlike {
                let (found, wanted) = (bytes[at], expected[at]);
                return Ok(Some(format!(
                    "byte {at} of {size} of queue pair {i} is {found:#04x}, not {wanted:#04x}"
                )));
            }
        }
        Ok(None)
    }
}

/// One region for all lanes: two strides each.
fn region<I: IbvDomainImpl>(
    domain: &IbvDomain<I>,
    settings: &Settings,
    stride: usize,
) -> Result<IbvMemoryRegion<I>, Failure> {
    let need = (stride as u64).saturating_mul(2).saturating_mul(settings.qps.into());
    if let Some(available) = crate::memory::available().filter(|available| need > *available) {
        return Err(Failure::TooLarge { what: "the messages".into(), need, available });
    }
    let len = usize::try_from(need).map_err(|_| PostError::OutOfBounds)?;
    let access = Access::ALL.difference(Access::REMOTE_ATOMIC);
    Ok(domain.register_with(HeapMemory::zeroed(len)?, access)?)
}

fn config(settings: &Settings, caps: &Caps) -> IbvConfig {
    let mut config = IbvConfig::default();
    config.port_num = settings.port_num;
    if let Some(index) = settings.gid_index {
        config.gid = GidChoice::Index(index);
    }
    if let Some(mtu) = settings.mtu {
        config.path_mtu = mtu;
    }
    config.max_send_wr = settings.tx_depth;
    config.max_recv_wr = if settings.operation == Operation::Send { settings.rx_depth } else { 0 };
    let inline = [false, true].into_iter().filter(|latency| settings.has(*latency));
    config.max_inline = inline.map(|latency| settings.inline(latency, caps)).max().unwrap_or(0) as u32;
    config.rnr_retry = WITHOUT_END;
    config
}

fn queue_pairs<I: IbvDomainImpl>(
    domain: &IbvDomain<I>,
    cq: &Arc<IbvCq<I>>,
    config: &IbvConfig,
    count: u32,
) -> Result<Vec<QueuePair<I::QueuePair>>, Failure> {
    let one = || domain.create_queue_pair(config.clone(), cq, cq);
    (0..count).map(|_| one().map_err(|e| Failure::of_options(e, &OPTIONS))).collect()
}

/// This end's lane for the peer's. In turn, so that no link has to hold all of them.
fn exchange<L: Link, Q: ibv::IbvQueuePair>(
    channel: &mut Channel<L, Message>,
    qp: &mut QueuePair<Q>,
    own: IbvRemoteMemoryRegionView,
) -> Result<(IbvQpInfo, IbvRemoteMemoryRegionView), Failure> {
    let endpoint = qp.get_qp_info()?.to_bytes().into();
    let IbvRemoteMemoryRegionView { addr, len, rkey } = own;
    channel.send(&Message::Lane { endpoint, addr, len: len as u64, rkey })?;
    match channel.receive("waited for its endpoint")? {
        Message::Lane { endpoint, addr, len: theirs, rkey } if theirs == len as u64 => {
            let info = IbvQpInfo::from_bytes(&endpoint)?;
            Ok((info, IbvRemoteMemoryRegionView { addr, len, rkey }))
        }
        Message::Lane { len: theirs, .. } => {
            Err(Failure::Garbage(format!("it has {theirs} bytes for a queue pair, this end {len}")))
        }
        other => Err(other.instead_of("an endpoint")),
    }
}

/// Bytes that differ from row to row, lane to lane and end to end, and are never all zero (xorshift64).
fn pattern(row: u64, lane: u64, client: bool, size: usize) -> Vec<u8> {
    let mut state = (row << 33 | lane << 1 | u64::from(client)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8 | 1
    };
    (0..size).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn patterns_differ_by_row_lane_and_end_and_have_no_zero() {
        let of = |row, lane, client| pattern(row, lane, client, 64);
        let all = [of(0, 0, true), of(0, 0, false), of(1, 0, true), of(0, 1, true)];
        for (i, one) in all.iter().enumerate() {
            assert!(one.iter().all(|byte| *byte != 0));
            assert!(all[..i].iter().all(|other| other != one));
        }
    }
}
