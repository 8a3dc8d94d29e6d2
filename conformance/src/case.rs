//! What a case is, and the capabilities that cases name. Their bodies are in `cases/`.

use crate::ctx::Ctx;
use ibv_core::{Caps, IbvDomainImpl};

/// One case: a sentence that holds of every provider which has what it needs.
pub(crate) struct Case<D: IbvDomainImpl> {
    pub(crate) name: &'static str,
    pub(crate) group: &'static str,
    /// `Err` names the capability that is missing.
    pub(crate) needs: fn(&Caps) -> Result<(), String>,
    /// It handles both ends itself, so it can not run in two processes.
    pub(crate) one_process: bool,
    pub(crate) body: fn(&mut Ctx<'_, D>) -> Result<(), String>,
}

/// The capabilities that cases may name: each answers with what is missing.
pub(crate) mod need {
    use super::Caps;

    fn one(has: bool, missing: &str) -> Result<(), String> {
        if has { Ok(()) } else { Err(format!("needs {missing}")) }
    }

    macro_rules! present {
        ($($field:ident)*) => { $(
            pub(crate) fn $field(caps: &Caps) -> Result<(), String> {
                one(caps.$field.present(), concat!("capability ", stringify!($field)))
            }
        )* };
    }
    macro_rules! true_fact {
        ($($field:ident)*) => { $(
            pub(crate) fn $field(caps: &Caps) -> Result<(), String> {
                one(caps.$field, concat!("capability ", stringify!($field)))
            }
        )* };
    }
    present! { write read write_with_imm send send_with_imm atomics fence cq_channel }
    true_fact! { solicited completions_in_order messages_in_order bytes_in_order loopback rnr_retry }

    /// Bytes move, whichever way: see [`Transfer`](crate::transfer::Transfer).
    pub(crate) fn moves(caps: &Caps) -> Result<(), String> {
        one(one_sided(caps).is_ok() || caps.send.present(), "capability write, read or send")
    }
    /// The same where several have targets of their own at once: a message lands in whichever receive it meets.
    pub(crate) fn moves_apart(caps: &Caps) -> Result<(), String> {
        let in_turn = caps.send.present() && caps.messages_in_order;
        one(one_sided(caps).is_ok() || in_turn, "capability write, read, or send with messages_in_order")
    }
    /// Bytes move to or from an address that the request names: what is checked has no like among messages.
    pub(crate) fn one_sided(caps: &Caps) -> Result<(), String> {
        one(caps.write.present() || caps.read.present(), "capability write or read")
    }
    /// Something can carry inline bytes; a get can not.
    pub(crate) fn carries_inline(caps: &Caps) -> Result<(), String> {
        one(caps.write.present() || caps.send.present(), "capability write or send")
    }
    pub(crate) fn several_send_ranges(caps: &Caps) -> Result<(), String> {
        one(caps.max_send_sge >= 2, "capability max_send_sge of at least 2")
    }
    pub(crate) fn several_recv_ranges(caps: &Caps) -> Result<(), String> {
        one(caps.max_recv_sge >= 2, "capability max_recv_sge of at least 2")
    }
    pub(crate) fn inline(caps: &Caps) -> Result<(), String> {
        one(caps.max_inline >= 8, "capability max_inline of at least 8")
    }
    /// Ten times as much has to be copied and compared, perhaps on an emulated processor.
    pub(crate) fn splits(caps: &Caps) -> Result<(), String> {
        one(
            caps.max_msg_size <= 1 << 20,
            "capability max_msg_size of at most 1 MiB, to test splitting by copying",
        )
    }
}
