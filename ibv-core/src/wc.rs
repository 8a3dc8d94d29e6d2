//! Work completions. How they are polled is `cq.rs`'s.

use crate::error::{WcOpcode, WcStatus, WorkRequestError};

/// Which completion queue of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PollTarget {
    /// The queue that puts, gets, sends and atomics report to.
    Send,
    /// The queue that receives report to.
    Recv,
}

/// A work completion, laid out as `struct ibv_wc` (libibverbs/verbs.h) so that a provider may fill it in
/// place. Where `status` is not success, only `wr_id`, `status`, `vendor_err` and `qp_num` mean anything.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(C)]
pub struct IbvWc {
    /// The request, as it was posted.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// The device's own detail of an error.
    pub vendor_err: u32,
    /// Bytes moved: by a get, an atomic or into a receive. Undefined for puts and sends, and for gets over
    /// SRD, whose completions carry no length: a get that succeeded has fetched all of it.
    pub byte_len: u32,
    /// The immediate in network byte order; read it with [`imm`](Self::imm).
    pub imm_data: u32,
    /// The queue pair it belongs to.
    pub qp_num: u32,
    /// The peer's queue pair; datagram transports only.
    pub src_qp: u32,
    /// Bits of `enum ibv_wc_flags`.
    pub wc_flags: u32,
    /// Datagram transports only.
    pub pkey_index: u16,
    /// Datagram transports only.
    pub slid: u16,
    /// Datagram transports only.
    pub sl: u8,
    /// Datagram transports only.
    pub dlid_path_bits: u8,
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<IbvWc>() == 48 && align_of::<IbvWc>() == 8);
    assert!(offset_of!(IbvWc, status) == 8 && offset_of!(IbvWc, opcode) == 12);
    assert!(offset_of!(IbvWc, vendor_err) == 16 && offset_of!(IbvWc, byte_len) == 20);
    assert!(offset_of!(IbvWc, imm_data) == 24 && offset_of!(IbvWc, qp_num) == 28);
    assert!(offset_of!(IbvWc, src_qp) == 32 && offset_of!(IbvWc, wc_flags) == 36);
    assert!(offset_of!(IbvWc, pkey_index) == 40 && offset_of!(IbvWc, slid) == 42);
    assert!(offset_of!(IbvWc, sl) == 44 && offset_of!(IbvWc, dlid_path_bits) == 45);
};

impl IbvWc {
    /// `IBV_WC_GRH`: a global route header lies in front of the data.
    pub const GRH: u32 = 1 << 0;
    /// `IBV_WC_WITH_IMM`: an immediate came along.
    pub const WITH_IMM: u32 = 1 << 1;

    /// The request, as `put`, `get`, `push` or `post_recv` returned its id.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// Whether the request succeeded.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.status == WcStatus::SUCCESS
    }

    /// The bits in which any of `wcs` has an id other than `id`, and whether all succeeded. Asked of all at once, four
    /// at a time, which is half the work of asking each: for providers and pollers that expect the answer for all alike.
    #[inline(always)]
    pub fn differing(wcs: &[Self], id: u64) -> (u64, bool) {
        let one = |(ids, status), wc: &Self| (ids | wc.wr_id ^ id, status | wc.status.0);
        let (fours, rest) = wcs.as_chunks::<4>();
        let all = fours.iter().fold((0, 0), |all, four| four.iter().fold(all, one));
        let (ids, status) = rest.iter().fold(all, one);
        (ids, status == WcStatus::SUCCESS.0)
    }

    /// The immediate, as the peer passed it, where one came along.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        (self.wc_flags & Self::WITH_IMM != 0).then(|| u32::from_be(self.imm_data))
    }

    /// Stores an immediate: for providers, which must not set the bytes and the flag apart.
    #[inline]
    pub fn set_imm(&mut self, imm: u32) {
        self.imm_data = imm.to_be();
        self.wc_flags |= Self::WITH_IMM;
    }

    /// The completion, or what its failure amounts to.
    #[inline]
    pub fn result(&self) -> Result<&Self, WorkRequestError> {
        if self.status == WcStatus::SUCCESS {
            return Ok(self);
        }
        Err(WorkRequestError { wr_id: self.wr_id, status: self.status, vendor_err: self.vendor_err })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_immediate_travels_in_network_order_and_reads_as_given() {
        let mut wc = IbvWc { imm_data: 1, ..IbvWc::default() };
        assert_eq!(wc.imm(), None);
        wc.set_imm(0x0102_0304);
        assert_eq!((wc.imm(), wc.imm_data.to_ne_bytes()), (Some(0x0102_0304), [1, 2, 3, 4]));
    }
}
