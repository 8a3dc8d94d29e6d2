//! Small messages inside completion entries ("scatter to CQE"), and entries in blocks ("compressed"): formats that a queue
//! may only have if its program asked for it, and that a device can be told to use regardless, to see that a program
//! refuses them. What an entry says otherwise is in `cqe`.

use crate::description::CqeFormat;
use crate::mlx5::abi::qp_flag;
use crate::mlx5::cqe::Side;
use crate::mlx5::qp::{Qp, Shared};
use crate::mlx5::transition::Transport;

/// `MLX5_INLINE_SCATTER_32`: the data is in the first half of the entry itself.
const IN_ENTRY: u8 = 4;
/// `MLX5_INLINE_SCATTER_64`: the data is in the first half of an entry of 128 bytes.
const BEFORE_ENTRY: u8 = 8;
/// Both bits: the entry starts a block.
const COMPRESSED: u8 = 12;

/// What a queue pair puts into entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScatterToCqe {
    receives: bool,
    requests: bool,
}

impl ScatterToCqe {
    /// For a queue pair created with these `flags`; `all_signalled` says that each of its requests reports.
    pub fn new(format: CqeFormat, transport: Transport, flags: u32, all_signalled: bool) -> Self {
        let always = format == CqeFormat::InlineAlways;
        let asked = |flag| format == CqeFormat::Inline && flags & flag != 0;
        let requests = asked(qp_flag::ALLOW_SCATTER_CQE) || asked(qp_flag::SCATTER_CQE) && all_signalled;
        Self {
            receives: transport != Transport::Ud && (always || asked(qp_flag::SCATTER_CQE)),
            requests: transport == Transport::Rc && (always || requests),
        }
    }
}

/// The data of a small message, on its way into an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scattered([u8; 64]);

impl Scattered {
    /// Puts it into the 64 bytes of an entry, or answers what goes before them in one of 128.
    pub fn put(&self, entry: &mut [u8; 64], entry_size: u32) -> Option<[u8; 64]> {
        if entry_size == 128 {
            entry[63] |= BEFORE_ENTRY;
            return Some(self.0);
        }
        entry[63] |= IN_ENTRY;
        entry[..32].copy_from_slice(&self.0[..32]);
        None
    }
}

impl Qp {
    /// Takes data into a completion entry, if it is small enough and this queue pair does that.
    pub(crate) fn scatter_to_cqe(&self, side: Side, data: &[u8], shared: &Shared) -> Option<Scattered> {
        let (on, cqn) = match side {
            Side::Send => (self.scatter.requests, self.send_cq),
            Side::Receive => (self.scatter.receives, self.receive_cq),
        };
        let room = shared.cqs.get(cqn).map_or(0, |cq| cq.entry_size() as usize / 2);
        if !on || data.is_empty() || data.len() > room {
            return None;
        }
        let mut bytes = [0; 64];
        bytes[..data.len()].copy_from_slice(data);
        Some(Scattered(bytes))
    }
}

/// Makes a success entry the title of a compressed block, and answers the block's array: here of one completion, where a
/// real device would wait for more.
pub fn compress(title: &mut [u8; 64]) -> [u8; 64] {
    let mut array = [0; 64];
    array[4..8].copy_from_slice(&title[44..48]);
    title[44..48].copy_from_slice(&1u32.to_be_bytes());
    title[63] |= COMPRESSED;
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_used_only_if_asked_for_or_always() {
        let new = |format, transport, flags, all| {
            let s = ScatterToCqe::new(format, transport, flags, all);
            (s.receives, s.requests)
        };
        let (asked, allowed) = (qp_flag::SCATTER_CQE, qp_flag::ALLOW_SCATTER_CQE);
        assert_eq!(new(CqeFormat::Plain, Transport::Rc, asked | allowed, true), (false, false));
        assert_eq!(new(CqeFormat::Inline, Transport::Rc, 0, true), (false, false));
        assert_eq!(new(CqeFormat::Inline, Transport::Rc, asked, false), (true, false));
        assert_eq!(new(CqeFormat::Inline, Transport::Rc, asked, true), (true, true));
        assert_eq!(new(CqeFormat::Inline, Transport::Rc, asked | allowed, false), (true, true));
        assert_eq!(new(CqeFormat::InlineAlways, Transport::Rc, 0, false), (true, true));
        assert_eq!(new(CqeFormat::InlineAlways, Transport::Uc, 0, false), (true, false));
        assert_eq!(new(CqeFormat::InlineAlways, Transport::Ud, 0, false), (false, false));
    }

    #[test]
    fn data_goes_where_libmlx5_looks_for_it() {
        let scattered = Scattered([7; 64]);
        let mut entry = [1; 64];
        assert_eq!(scattered.put(&mut entry, 64), None);
        assert_eq!((entry[..32].to_vec(), entry[32], entry[63]), (vec![7; 32], 1, 5));
        let mut entry = [1; 64];
        assert_eq!(scattered.put(&mut entry, 128), Some([7; 64]));
        assert_eq!((entry[0], entry[63]), (1, 9));
    }
}
