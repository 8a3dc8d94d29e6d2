//! The buffers of one command: what the program passed, and where the answer goes. Lengths are the program's and only
//! bound the copies: structures grow at their end.

use bytemuck::Pod;

use crate::memory;
use crate::uverbs::{Errno, abi};

/// Longest input that any command takes.
const MAX_INPUT: usize = 64 << 10;

/// A place in the program's memory for an answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Output {
    /// Address; 0 if there is none.
    pub addr: u64,
    /// Room in bytes.
    pub len: usize,
}

impl Output {
    /// Writes as much of `value` as fits.
    pub fn put<T: Pod>(&self, value: &T) -> Result<(), Errno> {
        let bytes = bytemuck::bytes_of(value);
        self.put_bytes(&bytes[..bytes.len().min(self.len)])
    }

    /// Writes bytes.
    pub fn put_bytes(&self, bytes: &[u8]) -> Result<(), Errno> {
        if self.addr == 0 || bytes.is_empty() {
            return Ok(());
        }
        if bytes.len() > self.len {
            return Err(Errno::NOSPC);
        }
        Ok(memory::write(self.addr, bytes)?)
    }
}

/// Input and output of a command, the common part and the driver's.
#[derive(Debug, Default)]
pub struct Call {
    /// The common input.
    pub input: Vec<u8>,
    /// Where the common output goes.
    pub output: Output,
    /// The driver's input (`UHW_IN`).
    pub driver_input: Vec<u8>,
    /// Where the driver's output goes (`UHW_OUT`).
    pub driver_output: Output,
}

impl Call {
    /// The common input as a structure.
    pub fn input<T: Pod>(&self) -> T {
        abi::decode(&self.input)
    }

    /// The driver's input as a structure.
    pub fn driver<T: Pod>(&self) -> T {
        abi::decode(&self.driver_input)
    }
}

/// Reads input bytes.
pub fn read_input(addr: u64, len: usize) -> Result<Vec<u8>, Errno> {
    if len > MAX_INPUT {
        return Err(Errno::INVAL);
    }
    Ok(memory::read_vec(addr, len, MAX_INPUT)?)
}
