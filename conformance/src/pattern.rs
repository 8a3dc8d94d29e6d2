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

/// The first byte of `got`, bytes of `whose` memory from `at` on, that is not as in `want`, in words.
pub(crate) fn wrong_byte(whose: &str, at: usize, got: &[u8], want: &[u8]) -> Option<String> {
    let (i, g, w) = first_other(got, want)?;
    Some(format!("{whose}'s byte {} is {g:#04x} and should be {w:#04x}", at + i))
}

/// The same of bytes that were `want`, and that nobody may touch.
pub(crate) fn touched_byte(whose: &str, at: usize, got: &[u8], want: &[u8]) -> Option<String> {
    let (i, g, w) = first_other(got, want)?;
    Some(format!("{whose}'s byte {} was {w:#04x} and must not be touched; it is {g:#04x} now", at + i))
}

/// Where it is, and both; bytes that one side lacks are zero.
fn first_other(got: &[u8], want: &[u8]) -> Option<(usize, u8, u8)> {
    let byte = |of: &[u8], i: usize| of.get(i).copied();
    let i = (0..got.len().max(want.len())).find(|i| byte(got, *i) != byte(want, *i))?;
    Some((i, byte(got, i).unwrap_or(0), byte(want, i).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_other_or_not_there_is_named() {
        assert_eq!(wrong_byte("end b", 8, &[1, 2], &[1, 2]), None);
        assert_eq!(
            wrong_byte("end b", 8, &[1, 3], &[1, 2]).unwrap(),
            "end b's byte 9 is 0x03 and should be 0x02"
        );
        assert_eq!(
            wrong_byte("end a", 0, &[1], &[1, 2]).unwrap(),
            "end a's byte 1 is 0x00 and should be 0x02"
        );
        let said = "end a's byte 4 was 0x00 and must not be touched; it is 0x05 now";
        assert_eq!(touched_byte("end a", 4, &[5], &[0]).unwrap(), said);
    }

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
