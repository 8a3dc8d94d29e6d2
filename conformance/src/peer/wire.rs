//! The commands that end b takes and its answers, as data, and what a well-behaved peer stays within.
//! How they travel is `tcp.rs`'s.

use ibv_core::{Caps, IbvConfig, IbvRemoteMemoryRegionView, IbvWc, Op};
use serde::{Deserialize, Serialize};

/// Bounds on what an agent does for whoever is connected: commands are untrusted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits;

impl Limits {
    /// Bytes in one frame.
    pub(crate) const FRAME: usize = 1 << 20;
    /// Bytes of registered memory.
    pub(crate) const MEMORY: u64 = 1 << 30;
    /// Regions, and queue pairs.
    pub(crate) const OBJECTS: usize = 4096;
    /// Ranges of a request.
    pub(crate) const RANGES: usize = 64;
    /// Completions, or bytes, in one answer.
    pub(crate) const POLL: u32 = 1024;
    /// Bytes in one read.
    pub(crate) const READ: u64 = 64 * 1024;
}

/// A range of one of end b's regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RangeOf {
    pub(crate) region: u32,
    pub(crate) at: u64,
    pub(crate) len: u64,
}

/// `ibv_core::Op`, for the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireOp {
    Write,
    WriteWithImm(u32),
    Read,
    Send,
    SendWithImm(u32),
}

impl From<WireOp> for Op {
    fn from(op: WireOp) -> Self {
        match op {
            WireOp::Write => Self::Write,
            WireOp::WriteWithImm(imm) => Self::WriteWithImm(imm),
            WireOp::Read => Self::Read,
            WireOp::Send => Self::Send,
            WireOp::SendWithImm(imm) => Self::SendWithImm(imm),
        }
    }
}

/// One request of end b.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireRequest {
    pub(crate) op: WireOp,
    pub(crate) local: Vec<RangeOf>,
    pub(crate) remote: IbvRemoteMemoryRegionView,
    pub(crate) solicited: bool,
}

impl WireRequest {
    pub(crate) fn put(remote: IbvRemoteMemoryRegionView, local: RangeOf) -> Self {
        Self { op: WireOp::Write, local: vec![local], remote, solicited: false }
    }
    pub(crate) fn get(local: RangeOf, remote: IbvRemoteMemoryRegionView) -> Self {
        Self { op: WireOp::Read, local: vec![local], remote, solicited: false }
    }
    pub(crate) fn send(local: RangeOf) -> Self {
        Self {
            op: WireOp::Send,
            local: vec![local],
            remote: IbvRemoteMemoryRegionView::default(),
            solicited: false,
        }
    }
    pub(crate) fn solicited(self) -> Self {
        Self { solicited: true, ..self }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Drops everything, opens the device afresh.
    Open,
    Alloc {
        len: u64,
        access: u32,
    },
    Deregister {
        region: u32,
    },
    Write {
        region: u32,
        at: u64,
        bytes: Vec<u8>,
    },
    Read {
        range: RangeOf,
    },
    Fill {
        range: RangeOf,
        seed: u64,
    },
    Compare {
        range: RangeOf,
        seed: u64,
        from: u64,
    },
    CreateQp {
        config: Box<IbvConfig>,
        channel: bool,
    },
    /// The endpoint in its byte form.
    Connect {
        qp: u32,
        info: Vec<u8>,
    },
    PostRecv {
        qp: u32,
        ranges: Vec<RangeOf>,
    },
    Post {
        qp: u32,
        request: Box<WireRequest>,
    },
    Poll {
        qp: u32,
        max: u32,
    },
    State {
        qp: u32,
    },
    Config {
        qp: u32,
    },
    Endpoint {
        qp: u32,
    },
    StartClose {
        qp: u32,
    },
    DropQp {
        qp: u32,
    },
    Arm {
        qp: u32,
        solicited_only: bool,
    },
    TakeEvents {
        qp: u32,
    },
    /// The run is over.
    Bye,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Opened(Box<Caps>),
    Done,
    Region {
        id: u32,
        remote: IbvRemoteMemoryRegionView,
    },
    Bytes(Vec<u8>),
    /// The first difference in words.
    Differs(Option<String>),
    Qp {
        id: u32,
        info: Vec<u8>,
    },
    Id(u64),
    Ids {
        first: u64,
        count: u32,
    },
    Completions(Vec<IbvWc>),
    State(u32),
    Config(Box<IbvConfig>),
    Count(u32),
    Failed(String),
}
