//! Bytes on their way into memory: a message is put there in parts of the MTU, in an order of the device's choice, and other
//! work comes between. What happens when the last part is there is not here.

use provider_mock::model::Want;

use crate::drive::Choices;
use crate::efa::message::Asked;
use crate::efa::wqe::Piece;
use crate::memory;
use crate::mlx5::region::Regions;

/// A message takes about so many steps, however long it is.
const STEPS: usize = 16;

/// A message that lands.
#[derive(Debug)]
pub struct Landing {
    /// The queue pair of this process whose memory it is.
    pub qpn: u16,
    /// What is to be done afterwards.
    pub then: Then,
    pd: u32,
    want: Want,
    pieces: Vec<Piece>,
    data: Vec<u8>,
    mtu: usize,
    /// Parts that are still to land; the last one is next.
    parts: Vec<u32>,
}

/// What is to be done once all is there.
#[derive(Debug)]
pub enum Then {
    /// Answer a request, which took this receive.
    Answer {
        /// The request.
        asked: Asked,
        /// The receive's id, and whether it stands for one at all.
        receive: Option<Taken>,
    },
    /// Complete the request of this queue pair with this token.
    Complete(u64),
    /// Read memory for a request, and answer it: on a device that keeps order, not before what landed first.
    Read(Asked),
}

/// What a message took, or was allowed not to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// The receive's id.
    pub id: u16,
    /// It took none.
    pub unsolicited: bool,
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landed {
    /// More is to come.
    Partly,
    /// All is there.
    Wholly,
    /// The memory is gone, or is no longer allowed.
    Lost,
}

/// Where bytes go.
#[derive(Debug)]
pub struct Place {
    /// Protection domain of the queue pair.
    pub pd: u32,
    /// The right that the memory must have.
    pub want: Want,
    /// The memory.
    pub pieces: Vec<Piece>,
}

impl Landing {
    /// Bytes that are to land. `order` shuffles the parts.
    pub fn new(
        qpn: u16,
        place: Place,
        data: Vec<u8>,
        mtu: u32,
        order: Option<&mut Choices>,
        then: Then,
    ) -> Self {
        let mtu = mtu.max(1) as usize;
        let mut parts: Vec<u32> = (0..data.len().div_ceil(mtu) as u32).rev().collect();
        if let Some(choices) = order {
            // Fisher and Yates.
            (1..parts.len()).rev().for_each(|i| parts.swap(i, choices.below(i + 1)));
        }
        Self { qpn, then, pd: place.pd, want: place.want, pieces: place.pieces, data, mtu, parts }
    }

    /// Nothing lands: this only waits for its turn.
    pub fn turn(qpn: u16, then: Then) -> Self {
        let place = Place { pd: 0, want: Want::LocalRead, pieces: Vec::new() };
        Self::new(qpn, place, Vec::new(), 1, None, then)
    }

    /// Puts the next parts into memory.
    pub fn step(&mut self, regions: &Regions) -> Landed {
        let all = self.data.len().div_ceil(self.mtu);
        for _ in 0..(all / STEPS).max(1) {
            let Some(part) = self.parts.pop() else { break };
            if self.put(part as usize, regions).is_none() {
                return Landed::Lost;
            }
        }
        if self.parts.is_empty() { Landed::Wholly } else { Landed::Partly }
    }

    /// Puts a part into memory, looking at keys and ranges again: a region may have gone.
    fn put(&self, part: usize, regions: &Regions) -> Option<()> {
        let mut at = part * self.mtu;
        let end = (at + self.mtu).min(self.data.len());
        let mut start = 0;
        for piece in &self.pieces {
            let stop = start + piece.len as usize;
            if at < stop.min(end) {
                let n = stop.min(end) - at;
                let addr = piece.addr.wrapping_add((at - start) as u64);
                let span = regions.span(piece.key, self.pd, self.want, addr, n as u64).ok()?;
                memory::write(span.addr, &self.data[at..at + n]).ok()?;
                at += n;
            }
            start = stop;
        }
        (at == end).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlx5::region::Region;
    use ibv_core::Access;
    use provider_mock::model;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn regions(base: u64, len: u64) -> (Regions, u32) {
        let mut regions = Regions::default();
        let facts = model::Region { lkey: 0, rkey: 0, pd: 1, base, len, access: Access::LOCAL_WRITE };
        let key = regions.insert(Region { context: 1, facts, base, mapping: None, window: None });
        (regions, key)
    }

    #[test]
    fn parts_land_in_any_order_and_over_pieces() {
        let words: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
        let base = words.as_ptr() as u64;
        let (regions, key) = regions(base, 128);
        let pieces = vec![Piece { addr: base, len: 10, key }, Piece { addr: base + 32, len: 90, key }];
        let data: Vec<u8> = (1..=90).collect();
        let place = Place { pd: 1, want: Want::LocalWrite, pieces };
        let mut choices = Choices::new(3);
        let mut landing = Landing::new(1, place, data.clone(), 16, Some(&mut choices), Then::Complete(0));
        let mut steps = 1;
        while landing.step(&regions) == Landed::Partly {
            steps += 1;
        }
        assert_eq!(steps, 6);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect();
        assert_eq!((&bytes[..10], &bytes[32..112]), (&data[..10], &data[10..]));
        assert_eq!(bytes[10..32], [0; 22]);
    }

    #[test]
    fn memory_that_went_away_is_noticed() {
        let (mut regions, key) = regions(0x1000, 128);
        regions.remove(key);
        let place =
            Place { pd: 1, want: Want::LocalWrite, pieces: vec![Piece { addr: 0x1000, len: 8, key }] };
        let mut landing = Landing::new(1, place, vec![1; 8], 16, None, Then::Complete(0));
        assert_eq!(landing.step(&regions), Landed::Lost);
    }
}
