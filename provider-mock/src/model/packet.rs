//! How a message becomes packets.

/// The packets of one message: offset and length of each payload, in bytes.
#[derive(Clone, Debug)]
pub struct Packets {
    at: u64,
    len: u64,
    mtu: u64,
    done: bool,
}

/// Cuts `len` bytes into payloads of `mtu` bytes, the last one shorter; an empty message is one empty
/// packet (9.7). An `mtu` of 0 counts as 1.
pub fn packets(len: u64, mtu: u32) -> Packets {
    Packets { at: 0, len, mtu: u64::from(mtu.max(1)), done: false }
}

impl Iterator for Packets {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        if self.done {
            return None;
        }
        let (at, n) = (self.at, self.mtu.min(self.len - self.at));
        self.at += n;
        self.done = self.at == self.len;
        Some((at, n))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = if self.done { 0 } else { (self.len - self.at).div_ceil(self.mtu).max(1) };
        (usize::try_from(left).unwrap_or(usize::MAX), usize::try_from(left).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packets_cover_the_message_once_and_only_the_last_is_short(len in 0u64..100_000, mtu in 1u32..5000) {
            let all: Vec<_> = packets(len, mtu).collect();
            prop_assert_eq!(all.len() as u64, len.div_ceil(u64::from(mtu)).max(1));
            prop_assert_eq!(packets(len, mtu).size_hint(), (all.len(), Some(all.len())));
            let mut at = 0;
            for (i, &(start, n)) in all.iter().enumerate() {
                prop_assert_eq!(start, at);
                prop_assert!(n == u64::from(mtu) || i + 1 == all.len());
                at += n;
            }
            prop_assert_eq!(at, len);
        }
    }

    #[test]
    fn the_largest_message_does_not_overflow() {
        assert_eq!(packets(u64::MAX, 4096).size_hint().0 as u64, u64::MAX.div_ceil(4096));
        assert_eq!(packets(0, 0).collect::<Vec<_>>(), [(0, 0)]);
    }
}
