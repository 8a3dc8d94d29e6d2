//! What the two ends of a measurement tell each other; the frames are `crate::wire`'s. Endpoints travel
//! inside in their own versioned form.

use super::settings::Terms;
use crate::wire::{Aside, Protocol};
use serde::{Deserialize, Serialize};

/// One message. The order is: both `Hello`, both a `Lane` for each queue pair, and for each row both `Ready`,
/// `Finished` from whoever posted, both `Verdict`; `Alive` and `Abort` at any time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// What this end was told to measure, the largest message that its device takes, bytes, and whether that
    /// delivers messages in order.
    Hello { terms: Terms, limit: u64, in_order: bool, device: String },
    /// A queue pair's endpoint in its byte form, and the memory that belongs to it.
    Lane { endpoint: Vec<u8>, addr: u64, len: u64, rkey: u32 },
    /// Memory is prepared and receives are posted.
    Ready,
    /// So many messages completed in so long.
    Finished { messages: u64, nanos: u64 },
    /// The bytes that arrived are right, or what is wrong with them.
    Verdict { wrong: Option<String> },
    /// Busy.
    Alive,
    /// The sender of this has given up.
    Abort { reason: String },
}

impl Protocol for Message {
    const MAGIC: [u8; 4] = *b"ibvP";
    const VERSION: u8 = 2;
    const COMMAND: &'static str = "ibv perf";
    fn alive() -> Self {
        Self::Alive
    }
    fn abort(reason: String) -> Self {
        Self::Abort { reason }
    }
    fn aside(self) -> Aside<Self> {
        match self {
            Self::Alive => Aside::Alive,
            Self::Abort { reason } => Aside::Abort(reason),
            message => Aside::None(message),
        }
    }
    fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Lane { .. } => "lane",
            Self::Ready => "ready",
            Self::Finished { .. } => "finished",
            Self::Verdict { .. } => "verdict",
            Self::Alive => "alive",
            Self::Abort { .. } => "abort",
        }
    }
}
