//! What a request is called on the wire and in the rule-book. Pure functions of values.

use ibv_core::Op;

use crate::fabric::packet::{Function, Operation};
use crate::mlx5::wqe::{Opcode, SendWqe};

/// The rule-book's word for an operation; it has none for a NOP and for what windows need.
pub(crate) fn op(opcode: Opcode) -> Option<Op> {
    Some(match opcode {
        Opcode::Nop | Opcode::Umr => return None,
        Opcode::Write => Op::Write,
        Opcode::WriteImm => Op::WriteWithImm(0),
        Opcode::Send | Opcode::SendInvalidate => Op::Send,
        Opcode::SendImm => Op::SendWithImm(0),
        Opcode::Read => Op::Read,
        Opcode::CompareSwap => Op::CompareSwap { compare: 0, swap: 0 },
        Opcode::FetchAdd => Op::FetchAdd(0),
    })
}

/// What the responder is asked to do.
pub(crate) fn operation(wqe: &SendWqe, len: u32) -> Operation {
    let (addr, rkey) = wqe.remote;
    let (operand, compare) = wqe.operands;
    let imm = Some(wqe.control.imm);
    match wqe.opcode {
        Opcode::Write => Operation::Write { addr, rkey, imm: None },
        Opcode::WriteImm => Operation::Write { addr, rkey, imm },
        Opcode::Read => Operation::Read { addr, rkey, len },
        Opcode::FetchAdd => Operation::Atomic { addr, rkey, function: Function::Add(operand) },
        Opcode::CompareSwap => {
            Operation::Atomic { addr, rkey, function: Function::CompareSwap(compare, operand) }
        }
        Opcode::SendImm => Operation::Send { imm },
        Opcode::SendInvalidate => Operation::SendInvalidate { rkey: u32::from_be_bytes(wqe.control.imm) },
        Opcode::Send | Opcode::Nop | Opcode::Umr => Operation::Send { imm: None },
    }
}
