//! Address-handle numbers: one per device and GID, however many handles a program makes, and the same in every process. Who
//! is reachable is not known here.

use std::collections::BTreeMap;

/// The handles of this process on its devices.
#[derive(Debug, Default)]
pub struct Addresses {
    /// By device and number.
    list: BTreeMap<(usize, u16), Known>,
}

#[derive(Debug)]
struct Known {
    gid: [u8; 16],
    /// Protection domains of the handles, one each.
    domains: Vec<u32>,
}

/// Where the search for a number starts: the same in every process.
fn first_number(gid: &[u8; 16]) -> u16 {
    // FNV-1a, folded; 0 and 0xffff mean something else.
    let hash = gid.iter().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    (hash ^ hash >> 16) as u16 % 0xfff0 + 1
}

impl Addresses {
    /// One more handle; answers its number.
    pub fn insert(&mut self, device: usize, gid: [u8; 16], pd: u32) -> Option<u16> {
        let number = self.place(device, &gid)?;
        let known = self.list.entry((device, number)).or_insert(Known { gid, domains: Vec::new() });
        known.domains.push(pd);
        Some(number)
    }

    /// One handle less.
    pub fn remove(&mut self, device: usize, gid: &[u8; 16], pd: u32) {
        let Some(number) = self.number(device, gid) else { return };
        let Some(known) = self.list.get_mut(&(device, number)) else { return };
        if let Some(at) = known.domains.iter().position(|d| *d == pd) {
            known.domains.swap_remove(at);
        }
        if known.domains.is_empty() {
            self.list.remove(&(device, number));
        }
    }

    /// The number of a GID, if there is a handle.
    pub fn number(&self, device: usize, gid: &[u8; 16]) -> Option<u16> {
        self.place(device, gid).filter(|n| self.list.contains_key(&(device, *n)))
    }

    /// The GID of a number, for a queue pair of this domain.
    pub fn gid(&self, device: usize, number: u16, pd: u32) -> Option<[u8; 16]> {
        self.list.get(&(device, number)).filter(|k| k.domains.contains(&pd)).map(|k| k.gid)
    }

    /// The number that a GID has, or would have: the next one if another GID has it.
    pub(super) fn place(&self, device: usize, gid: &[u8; 16]) -> Option<u16> {
        let first = first_number(gid);
        let candidates = (first..0xfff1).chain(1..first);
        candidates.take(256).find(|n| self.list.get(&(device, *n)).is_none_or(|k| k.gid == *gid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_has_one_number_until_its_last_handle_goes() {
        let (mut here, mut there) = (Addresses::default(), Addresses::default());
        let number = here.insert(0, [1; 16], 5).unwrap();
        assert_eq!(here.insert(0, [1; 16], 6), Some(number));
        assert_eq!(there.insert(0, [1; 16], 9), Some(number), "another process agrees");
        assert_eq!(here.gid(0, number, 5), Some([1; 16]));
        assert_eq!((here.gid(0, number, 7), here.gid(1, number, 5)), (None, None));
        here.remove(0, &[1; 16], 5);
        assert_eq!((here.gid(0, number, 5), here.gid(0, number, 6)), (None, Some([1; 16])));
        here.remove(0, &[1; 16], 6);
        assert_eq!(here.number(0, &[1; 16]), None);
    }
}
