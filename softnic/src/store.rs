//! Which x86-64 instructions store 32 bits to memory, how long they are, and where the value comes from: what a doorbell is
//! written by. Pure; who asks is in [`crate::trap`].

/// A store of 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Store {
    /// Bytes of the instruction.
    pub len: usize,
    /// What is stored.
    pub source: Source,
    /// Whether the register takes what was in memory before.
    pub exchanges: bool,
}

/// Where a stored value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The low half of a register, by its number in the encoding (0 is `rax`, 15 is `r15`).
    Register(u8),
    /// The instruction itself.
    Immediate(u32),
}

/// Bytes of the longest instruction (Intel SDM vol. 2, 2.3.11).
const LONGEST: usize = 15;

/// Reads the instruction whose byte `n` is `byte(n)`; asks for no byte behind its end. `None` if it stores no 32 bits, or in
/// a way that neither compilers nor vendor libraries use for registers of devices: `mov`, `movnti` and `xchg` are known.
pub fn decode(byte: impl Fn(usize) -> u8) -> Option<Store> {
    let (rex, mut at) = prefixes(&byte)?;
    let opcode = byte(at);
    at += 1;
    let wide = rex & 8 != 0;
    let (movnti, immediate) = (opcode == 0x0f && byte(at) == 0xc3, opcode == 0xc7);
    if wide || !(movnti || immediate || matches!(opcode, 0x87 | 0x89)) {
        return None;
    }
    at += usize::from(movnti);
    let modrm = byte(at);
    let register = modrm >> 3 & 7 | (rex & 4) << 1;
    at += operand(modrm, |n| byte(at + n))?;
    if !immediate {
        let source = Source::Register(register);
        return Some(Store { len: at, source, exchanges: opcode == 0x87 }).filter(|s| s.len <= LONGEST);
    }
    let value = u32::from_le_bytes(std::array::from_fn(|n| byte(at + n)));
    let known = modrm >> 3 & 7 == 0 && at + 4 <= LONGEST;
    known.then_some(Store { len: at + 4, source: Source::Immediate(value), exchanges: false })
}

/// The extension of the registers, 0 if there is none, and where the opcode is. `None` if the operand has 16 bits, or if
/// there is no end to the prefixes.
fn prefixes(byte: impl Fn(usize) -> u8) -> Option<(u8, usize)> {
    for at in 0..LONGEST {
        match byte(at) {
            // Segments and address sizes: the fault says what address they made. Hints and locks change nothing here.
            0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x67 | 0xf0 | 0xf2 | 0xf3 => {}
            0x66 => return None,
            rex @ 0x40..=0x4f => return Some((rex, at + 1)),
            _ => return Some((0, at)),
        }
    }
    None
}

/// Bytes of a memory operand: its first byte, which is `modrm`, a scaled index, a displacement. `None` for a register.
fn operand(modrm: u8, byte: impl Fn(usize) -> u8) -> Option<usize> {
    let (mode, base) = (modrm >> 6, modrm & 7);
    let (index, base) = if base == 4 { (1, byte(1) & 7) } else { (0, base) };
    let displacement = match mode {
        0 if base == 5 => 4,
        0 => 0,
        1 => 1,
        2 => 4,
        _ => return None,
    };
    Some(1 + index + displacement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(bytes: &[u8]) -> Option<Store> {
        decode(|n| bytes[n])
    }

    #[test]
    fn stores_are_read_to_their_ends() {
        let register = |len, n| Some(Store { len, source: Source::Register(n), exchanges: false });
        let immediate = |len, n| Some(Store { len, source: Source::Immediate(n), exchanges: false });
        assert_eq!(of(&[0x89, 0x10]), register(2, 2), "mov %edx,(%rax)");
        assert_eq!(of(&[0x44, 0x89, 0x00]), register(3, 8), "mov %r8d,(%rax)");
        assert_eq!(of(&[0x41, 0x89, 0x4d, 0x00]), register(4, 1), "mov %ecx,0x0(%r13)");
        assert_eq!(of(&[0x43, 0x89, 0x34, 0xa0]), register(4, 6), "mov %esi,(%r8,%r12,4)");
        assert_eq!(of(&[0x89, 0x04, 0x25, 1, 2, 3, 4]), register(7, 0), "mov %eax,0x4030201");
        assert_eq!(of(&[0x89, 0x3d, 1, 2, 3, 4]), register(6, 7), "mov %edi,0x4030201(%rip)");
        assert_eq!(of(&[0x44, 0x89, 0xbc, 0x24, 0, 1, 0, 0]), register(8, 15), "mov %r15d,0x100(%rsp)");
        assert_eq!(of(&[0x0f, 0xc3, 0x07]), register(3, 0), "movnti %eax,(%rdi)");
        assert_eq!(of(&[0xc7, 0x00, 7, 0, 0, 0]), immediate(6, 7), "movl $7,(%rax)");
        assert_eq!(of(&[0x41, 0xc7, 0x40, 8, 1, 0, 0, 0x80]), immediate(8, 0x8000_0001));
        let exchange = Store { len: 2, source: Source::Register(1), exchanges: true };
        assert_eq!(of(&[0x87, 0x08]), Some(exchange), "xchg %ecx,(%rax)");
    }

    #[test]
    fn other_instructions_and_other_sizes_are_not_taken_for_stores() {
        for bytes in [
            &[0x48, 0x89, 0x10][..], // 64 bits
            &[0x66, 0x89, 0x10],     // 16 bits
            &[0x88, 0x10],           // 8 bits
            &[0x89, 0xd0],           // to a register
            &[0x8b, 0x10],           // a load
            &[0x0f, 0x29, 0x00],     // 128 bits
            &[0xc7, 0x08, 0, 0, 0, 0],
            &[0xf0; 15],
        ] {
            assert_eq!(of(bytes), None, "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn no_byte_behind_the_end_is_asked_for(bytes in any::<[u8; 32]>()) {
            let furthest = std::cell::Cell::new(0);
            let found = decode(|n| {
                furthest.set(furthest.get().max(n));
                bytes[n]
            });
            if let Some(store) = found {
                prop_assert!(store.len <= LONGEST && furthest.get() < store.len, "{store:?}");
            }
        }
    }
}
