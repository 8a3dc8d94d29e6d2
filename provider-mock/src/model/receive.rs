//! What a message that needs a receive does to it.

use ibv_core::{Op, WcOpcode, WcStatus};

/// Whether a request takes one of the peer's receives: sends, and puts with an immediate.
pub const fn consumes_receive(op: Op) -> bool {
    matches!(op, Op::Send | Op::SendWithImm(_) | Op::WriteWithImm(_))
}

/// The opcode of the receive that `op` took (11.4.2.1).
pub const fn recv_opcode(op: Op) -> WcOpcode {
    match op {
        Op::WriteWithImm(_) => WcOpcode::RECV_RDMA_WITH_IMM,
        _ => WcOpcode::RECV,
    }
}

/// A receive that could not take its message, and what each end's completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refused {
    /// The receiver's.
    pub receiver: WcStatus,
    /// The sender's.
    pub sender: WcStatus,
}

impl Refused {
    /// The receive is too short (9.7.4.1, 11.6.2): a local length error there, an invalid request at
    /// the sender.
    pub const TOO_LONG: Self = Self { receiver: WcStatus::LOC_LEN_ERR, sender: WcStatus::REM_INV_REQ_ERR };

    /// The receive's own ranges do not hold (9.9.3): a local protection error there, and all the
    /// sender learns is that the peer could not.
    pub const PROTECTED: Self = Self { receiver: WcStatus::LOC_PROT_ERR, sender: WcStatus::REM_OP_ERR };
}

/// Whether a message fits: sends fill the receive from its front and may leave room; a put with an
/// immediate uses none of it.
///
/// # Errors
/// [`Refused::TOO_LONG`]; nothing is written then.
pub fn accept(op: Op, message: u64, room: u64) -> Result<(), Refused> {
    match op {
        Op::Send | Op::SendWithImm(_) if message > room => Err(Refused::TOO_LONG),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_fits_up_to_the_last_byte_and_an_immediate_needs_no_room() {
        assert_eq!(accept(Op::Send, 8, 8), Ok(()));
        assert_eq!(accept(Op::SendWithImm(1), 9, 8), Err(Refused::TOO_LONG));
        assert_eq!(accept(Op::WriteWithImm(1), 9, 0), Ok(()));
        assert!(!consumes_receive(Op::Write) && consumes_receive(Op::WriteWithImm(0)));
        assert_eq!(recv_opcode(Op::WriteWithImm(0)), WcOpcode::RECV_RDMA_WITH_IMM);
    }
}
