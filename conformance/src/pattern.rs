//! Bytes that tell where they come from: a swapped, shifted or lost piece shows. Pure.

/// Byte `i` of the pattern of `seed`.
pub(crate) fn byte(seed: u64, i: u64) -> u8 {
    let mixed = (i ^ seed.rotate_left(17)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u8 ^ seed as u8
}

/// The first `len` bytes of the pattern of `seed`.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| byte(seed, i)).collect()
}

/// The first difference between `got` and the pattern of `seed` from its byte `from` on, in words.
pub(crate) fn difference(got: &[u8], seed: u64, from: u64) -> Option<String> {
    let (i, g) = (0u64..).zip(got).find(|&(i, g)| *g != byte(seed, from + i))?;
    let wrong = (0u64..).zip(got).filter(|&(i, g)| *g != byte(seed, from + i)).count();
    let want = byte(seed, from + i);
    Some(format!("byte {i} of {} is {g:#04x} and should be {want:#04x}; {wrong} bytes differ", got.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_shifts_and_seeds_differ() {
        let p = pattern(3, 4096);
        for shift in [1usize, 2, 64, 256, 1024] {
            let same = p.iter().zip(&p[shift..]).filter(|(a, b)| a == b).count();
            assert!(same < p.len() / 8, "{same} of {} bytes survive a shift by {shift}", p.len());
        }
        let q = pattern(4, 4096);
        assert!(p.iter().zip(&q).filter(|(a, b)| a == b).count() < 512);
    }

    #[test]
    fn a_difference_is_named() {
        let mut got = pattern(9, 20);
        assert_eq!(difference(&got, 9, 0), None);
        assert_eq!(difference(&got[5..], 9, 5), None);
        got[7] ^= 1;
        let why = difference(&got, 9, 0).unwrap();
        assert!(why.starts_with("byte 7 of 20 is ") && why.ends_with("; 1 bytes differ"), "{why}");
    }
}
