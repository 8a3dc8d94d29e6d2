//! Completion status and opcode: newtypes over the verbs ABI's numbers, not enums, because a device may
//! report values this crate predates. Nothing here decides anything.

use std::fmt;

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $code:ident = $n:expr, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            $($(#[$doc])* pub const $code: Self = Self($n);)*

            /// Every value the verbs ABI names, in numeric order.
            pub const KNOWN: &'static [Self] = &[$(Self::$code),*];

            /// The name in the verbs ABI, without its prefix.
            pub fn name(self) -> Option<&'static str> {
                Some(match self { $(Self::$code => stringify!($code),)* _ => return None })
            }

            fn text(self) -> Option<&'static str> {
                Some(match self { $(Self::$code => $text,)* _ => return None })
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({})"), self.0),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.text() {
                    Some(text) => f.write_str(text),
                    None => write!(f, "code {}", self.0),
                }
            }
        }
    };
}

codes! {
    /// A completion's status: `enum ibv_wc_status` (libibverbs/verbs.h).
    WcStatus {
        /// The request did what it should.
        SUCCESS = 0, "success";
        /// A receive was too short for the send that met it, or a local length is wrong.
        LOC_LEN_ERR = 1, "local length error";
        /// The queue pair's own state or a malformed request.
        LOC_QP_OP_ERR = 2, "local queue pair operation error";
        /// End-to-end context error; of no transport here.
        LOC_EEC_OP_ERR = 3, "local end-to-end context operation error";
        /// A local range is not covered by its `lkey`, or the region is gone.
        LOC_PROT_ERR = 4, "local protection error";
        /// Flushed: the queue pair had failed before. A consequence, never a cause.
        WR_FLUSH_ERR = 5, "flushed after an earlier error";
        /// A memory window could not be bound.
        MW_BIND_ERR = 6, "memory window bind error";
        /// The peer's answer made no sense.
        BAD_RESP_ERR = 7, "bad response";
        /// The peer may not write where it was told to, locally.
        LOC_ACCESS_ERR = 8, "local access error";
        /// The peer could not take the request: too long for its receive, malformed, or not enabled.
        REM_INV_REQ_ERR = 9, "remote invalid request";
        /// The remote range is not covered by its `rkey`, or the access is not allowed.
        REM_ACCESS_ERR = 10, "remote access error";
        /// The peer failed while it worked on the request.
        REM_OP_ERR = 11, "remote operation error";
        /// No answer: peer gone, path down, or attributes that do not match.
        RETRY_EXC_ERR = 12, "transport retry counter exceeded";
        /// The peer had no receive posted, more often than allowed.
        RNR_RETRY_EXC_ERR = 13, "receiver-not-ready retry counter exceeded";
        /// Of no transport here.
        LOC_RDD_VIOL_ERR = 14, "local reliable datagram domain violation";
        /// Of no transport here.
        REM_INV_RD_REQ_ERR = 15, "remote invalid reliable datagram request";
        /// The peer aborted the request.
        REM_ABORT_ERR = 16, "remote aborted";
        /// Of no transport here.
        INV_EECN_ERR = 17, "invalid end-to-end context number";
        /// Of no transport here.
        INV_EEC_STATE_ERR = 18, "invalid end-to-end context state";
        /// The device or its port is gone.
        FATAL_ERR = 19, "fatal error";
        /// No response in time.
        RESP_TIMEOUT_ERR = 20, "response timeout";
        /// Anything else.
        GENERAL_ERR = 21, "general error";
        /// Tag matching failed.
        TM_ERR = 22, "tag matching error";
        /// Tag matching: the message went through the rendezvous path but is incomplete.
        TM_RNDV_INCOMPLETE = 23, "tag matching rendezvous incomplete";
    }
}

codes! {
    /// What completed: `enum ibv_wc_opcode` (libibverbs/verbs.h). Undefined where the status is not success.
    WcOpcode {
        /// A send, with or without an immediate.
        SEND = 0, "send";
        /// A put, with or without an immediate.
        RDMA_WRITE = 1, "put";
        /// A get.
        RDMA_READ = 2, "get";
        /// A compare-and-swap.
        COMP_SWAP = 3, "compare and swap";
        /// A fetch-and-add.
        FETCH_ADD = 4, "fetch and add";
        /// A receive that a send consumed.
        RECV = 128, "receive";
        /// A receive that a put with an immediate consumed.
        RECV_RDMA_WITH_IMM = 129, "receive of a put with immediate";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_statuses_are_numbered_without_a_gap_and_named() {
        for (n, status) in (0u32..).zip(WcStatus::KNOWN) {
            assert_eq!(status.0, n);
            assert!(status.name().is_some());
        }
        assert_eq!(WcStatus::KNOWN.len(), 24);
    }

    #[test]
    fn unknown_codes_print_their_number() {
        assert_eq!(
            (format!("{:?}", WcStatus(77)), WcStatus(77).to_string()),
            ("WcStatus(77)".into(), "code 77".into())
        );
    }
}
