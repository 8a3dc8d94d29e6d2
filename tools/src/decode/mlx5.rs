//! Entries of mlx5 devices: what `provider_mlx5::decode` says, as this command prints it.

use super::{Entries, Entry, Field, Format, Kind, hex_of, trace::Queue};
use ibv::providers::mlx5::decode::{self, Listing, Slot};

/// Bytes of a basic block.
const BLOCK: usize = 64;
/// Bytes of a completion, at the end of its slot.
const COMPLETION: usize = 64;

/// Everything in `bytes`.
pub(super) fn entries(bytes: &[u8], format: Format) -> Entries<'_> {
    match format.kind {
        Kind::Wqe => Box::new(requests(bytes)),
        Kind::Ring => Box::new(ring(bytes).into_iter()),
        Kind::Cqe => slots(bytes, format.slot.unwrap_or(COMPLETION), |slot, at| {
            let skip = slot.len().saturating_sub(COMPLETION);
            decode::completion(&slot[skip..], at + skip).into()
        }),
        Kind::Receive => {
            slots(bytes, format.slot.unwrap_or(bytes.len()), |slot, at| decode::receive(slot, at).into())
        }
    }
}

/// The bytes of one entry out of a trace.
pub(super) fn traced(queue: Queue, bytes: &[u8]) -> Entry {
    match queue {
        Queue::Send => decode::request(bytes, 0).into(),
        Queue::Receive => decode::receive(bytes, 0).into(),
        Queue::Completion => decode::completion(bytes, 0).into(),
    }
}

fn requests(bytes: &[u8]) -> impl Iterator<Item = Entry> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let (at, rest) = (next, bytes.get(next..).filter(|rest| !rest.is_empty())?);
        let listing = decode::request(rest, at);
        let segments = listing.value.as_ref().map_or(1, |request| usize::from(request.segments));
        next += (segments * 16).next_multiple_of(BLOCK);
        Some(listing.into())
    })
}

fn slots<'b>(bytes: &'b [u8], slot: usize, entry: impl Fn(&[u8], usize) -> Entry + 'b) -> Entries<'b> {
    let slots = bytes.chunks(slot.max(1)).enumerate();
    Box::new(slots.map(move |(i, bytes)| entry(bytes, i * slot)))
}

fn ring(bytes: &[u8]) -> Vec<Entry> {
    let ring = decode::ring(bytes);
    let title = format!("send queue of {} basic blocks", ring.blocks);
    let mut entries = vec![remark(0, title)];
    if ring.trailing > 0 {
        let what = format!("{} bytes behind the last whole block", ring.trailing);
        entries[0].faults.push(what.clone());
        entries[0].text += &format!("  wrong: {what}\n");
    }
    entries.extend(ring.slots.into_iter().map(|slot| match slot {
        Slot::Empty { block, count } => {
            remark(block * BLOCK, format!("{count} empty blocks from slot {block} on"))
        }
        Slot::Producer { block } => {
            remark(block * BLOCK, format!("the next entry goes to slot {block}; older ones follow"))
        }
        Slot::Entry(listing) => listing.into(),
    }));
    entries
}

fn remark(at: usize, title: String) -> Entry {
    let text = format!("{at:#06x}: {title}\n");
    Entry { at, title, fields: Vec::new(), faults: Vec::new(), text }
}

impl<T> From<Listing<T>> for Entry {
    fn from(listing: Listing<T>) -> Self {
        let text = listing.to_string();
        let Listing { at, title, fields, faults, .. } = listing;
        let fields = fields.into_iter().map(|field| Field {
            at: field.at,
            segment: field.segment,
            name: field.name,
            bytes: hex_of(&field.bytes),
            meaning: field.meaning,
        });
        let faults = faults.iter().map(ToString::to_string).collect();
        Self { at, title, fields: fields.collect(), faults, text }
    }
}
