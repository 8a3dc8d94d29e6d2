//! Bytes out of what people have: `xxd`, `hexdump -C`, `od -tx1`, a debugger's bytes, plain hexadecimal, or
//! the bytes themselves. Words in the host's order are refused, because they would be guessed at.

/// The bytes of a dump, or why it is none.
pub(super) fn bytes(content: &[u8]) -> Result<Vec<u8>, String> {
    let text = match std::str::from_utf8(content) {
        Ok(text) if !text.contains('\0') => text,
        // Not text, so the bytes themselves.
        _ => return Ok(content.to_vec()),
    };
    let mut dump = Dump::default();
    for (number, line) in (1..).zip(text.lines()) {
        dump.line(line.trim()).map_err(|why| format!("line {number}: {why}"))?;
    }
    if dump.bytes.is_empty() { Err("there is no byte in it".into()) } else { Ok(dump.bytes) }
}

#[derive(Default)]
struct Dump {
    bytes: Vec<u8>,
    /// Of the first byte, where lines have addresses.
    base: Option<u64>,
    /// Bytes of the last line, which `*` repeats.
    last: usize,
    repeats: bool,
}

/// Longest stretch that `*` may stand for.
const LONGEST: u64 = 64 << 20;

impl Dump {
    fn line(&mut self, line: &str) -> Result<(), String> {
        match line {
            "" => return Ok(()),
            "*" if self.last > 0 => self.repeats = true,
            _ if line.starts_with('#') => return Ok(()),
            _ => {
                let (address, rest) = address(line, self.base.is_some());
                if let Some(address) = address {
                    self.arrive(address)?;
                }
                let found = tokens(rest)?;
                if !found.is_empty() {
                    self.last = found.len();
                }
                self.bytes.extend(found);
            }
        }
        Ok(())
    }

    /// A line at `address` begins: where the last ended, or behind what `*` stands for.
    fn arrive(&mut self, address: u64) -> Result<(), String> {
        let base = *self.base.get_or_insert(address);
        let gap = address.checked_sub(base).and_then(|at| at.checked_sub(self.bytes.len() as u64));
        match (gap, self.repeats) {
            (Some(0), _) => {}
            (Some(gap), true) if gap <= LONGEST => {
                let from = self.bytes.len() - self.last;
                for i in 0..gap as usize {
                    self.bytes.push(self.bytes[from + i % self.last]);
                }
            }
            _ => return Err(format!("address {address:#x} does not follow the line before")),
        }
        self.repeats = false;
        Ok(())
    }
}

/// A line's address, if it has one, and its bytes without the characters that some programs show behind.
fn address(line: &str, had_one: bool) -> (Option<u64>, &str) {
    // The characters of hexdump -C, which may be any.
    let shown = line.ends_with('|').then(|| line.split_once('|')).flatten();
    let line = shown.map_or(line, |(bytes, _)| bytes).trim_end();
    if let Some((before, rest)) = line.split_once(':') {
        // A debugger puts the symbol behind the address.
        let number = before.split_whitespace().next().unwrap_or_default();
        // xxd's characters follow two spaces.
        let rest = rest.trim_start();
        let rest = rest.split_once("  ").map_or(rest, |(bytes, _)| bytes);
        return (hex(number), rest);
    }
    let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
    let long = (6..=16).contains(&first.len()) && hex(first).is_some();
    let pairs = rest.split_whitespace().all(|token| token.len() == 2);
    match rest.is_empty() {
        // The end of `hexdump -C` is an address alone.
        true if long && had_one => (hex(first), ""),
        false if long && pairs => (hex(first), rest),
        _ => (None, line),
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

fn tokens(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    for token in text.split(|c: char| c.is_whitespace() || c == ',').filter(|token| !token.is_empty()) {
        if let Some(number) = token.strip_prefix("0x") {
            match (number.len(), u8::from_str_radix(number, 16)) {
                (1 | 2, Ok(byte)) => bytes.push(byte),
                _ => {
                    return Err(format!(
                        "{token} is no byte; words are in the host's order, so dump bytes (x/64xb)"
                    ));
                }
            }
            continue;
        }
        let found = digits(token)
            .ok_or_else(|| format!("\"{}\" is no hexadecimal of whole bytes", token.escape_debug()))?;
        bytes.extend(found);
    }
    Ok(bytes)
}

/// Two digits a byte, in the order of memory.
pub(super) fn digits(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| (c as char).to_digit(16).map(|d| d as u8);
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{
        io::Write,
        process::{Command, Stdio},
    };

    #[test]
    fn every_way_to_write_bytes_is_read() {
        let wanted: Vec<u8> = (0..20).collect();
        for text in [
            "000102030405060708090a0b0c0d0e0f10111213",
            "00 01 02 03 04 05 06 07\n08 09 0a 0b 0c 0d 0e 0f\n\n# the rest\n10 11 12 13\n",
            "00010203 04050607 08090a0b 0c0d0e0f 10111213",
            "00000000: 0001 0203 0405 0607 0809 0a0b 0c0d 0e0f  ................\n00000010: 1011 1213                                ....\n",
            "00000000  00 01 02 03 04 05 06 07  08 09 0a 0b 0c 0d 0e 0f  |................|\n00000010  10 11 12 13                                       |....|\n00000014\n",
            "0x7ffff7fb4000 <ring>:\t0x00\t0x01\t0x02\t0x03\t0x04\t0x05\t0x06\t0x07\n0x7ffff7fb4008 <ring+8>:\t0x08\t0x09\t0x0a\t0x0b\t0x0c\t0x0d\t0x0e\t0x0f\n0x7ffff7fb4010:\t0x10\t0x11\t0x12\t0x13\n",
            "0x0, 0x1, 2,3"
                .replace(
                    "2,3",
                    "0x2,0x03,0x4,0x5,0x6,0x7,0x8,0x9,0xa,0xb,0xc,0xd,0xe,0xf,0x10,0x11,0x12,0x13",
                )
                .as_str(),
        ] {
            assert_eq!(bytes(text.as_bytes()).as_deref(), Ok(&wanted[..]), "{text}");
        }
        assert_eq!(bytes(&[0, 1, 0xff]).unwrap(), [0, 1, 0xff]);
    }

    #[test]
    fn what_would_be_guessed_at_is_refused() {
        for (text, why) in [
            ("", "no byte"),
            ("hello", "\"hello\" is no hexadecimal"),
            ("012", "whole bytes"),
            ("0x00000708 0x00123403", "dump bytes"),
            ("0000000 0000 0807 1200 0334\n0000010 0000 0000\n", "whole bytes"),
            ("00000000  00 01\n00000020  02 03\n", "does not follow"),
            ("00000010: 0001\n00000000: 0203\n", "does not follow"),
            ("00000000  00 01\n*\nffffffffffff  02\n", "does not follow"),
        ] {
            let said = bytes(text.as_bytes()).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    /// The programs themselves, where they are installed; with lines that repeat.
    #[test]
    fn the_usual_programs_dumps_are_read() {
        let wanted: Vec<u8> = [vec![7; 64], (0..50).collect(), vec![0; 48], vec![1]].concat();
        for line in [&["xxd"][..], &["hexdump", "-C"], &["od", "-Ax", "-tx1"]] {
            let child =
                Command::new(line[0]).args(&line[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let Ok(mut child) = child else {
                println!("skipped: {} is not installed", line[0]);
                continue;
            };
            child.stdin.take().unwrap().write_all(&wanted).unwrap();
            let out = child.wait_with_output().unwrap();
            assert_eq!(bytes(&out.stdout).as_deref(), Ok(&wanted[..]), "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn any_content_is_bytes_or_a_reason(content in prop::collection::vec(any::<u8>(), 0..200), text in "[0-9a-fx:*| \n]{0,80}") {
            let _ = bytes(&content);
            let _ = bytes(text.as_bytes());
        }
    }
}
