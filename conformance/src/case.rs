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
