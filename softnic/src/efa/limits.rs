//! What an EFA device offers: sizes, and capabilities that can be switched off, as older generations lack them. Plain data,
//! part of the device description.

use serde::Deserialize;

use crate::efa::abi::caps;
use crate::efa::cqe::PLAIN_ENTRY;

/// What a device offers. The default is the newest generation, with everything on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// RDMA READ.
    pub read: bool,
    /// RDMA WRITE.
    pub write: bool,
    /// `modify_qp` takes a number of retries for a receiver that is not ready.
    pub rnr_retry: bool,
    /// Completion channels.
    pub notifications: bool,
    /// Completion entries name the sender's GID where no address handle is known.
    pub sender_gid: bool,
    /// WRITE with immediate data may come without a receive.
    pub unsolicited: bool,
    /// Requests of 128 bytes, with up to 80 inline.
    pub wide_requests: bool,
    /// Requests carry the program's whole 64-bit id.
    pub long_ids: bool,
    /// Messages to the device's own address are carried; else they find nobody.
    pub loopback: bool,
    /// Messages, and the parts of each, arrive in the order in which they were posted.
    pub in_order: bool,
    /// Seed of the order in which messages and their parts arrive otherwise.
    pub seed: u64,
    /// Most bytes of requests between two doorbells, in units of 64; 0 is no limit.
    pub max_tx_batch: u16,
    /// Fewest requests of a send queue; then a doorbell may not cover the whole queue. 0 is no limit.
    pub min_sq_wr: u16,
    /// Completion rings in each completion queue.
    pub sub_cqs: u16,
    /// Most requests of a send queue.
    pub max_sq_wr: u32,
    /// Most receives of a receive queue.
    pub max_rq_wr: u32,
    /// Most pieces of a send request.
    pub max_sq_sge: u16,
    /// Most pieces of a receive.
    pub max_rq_sge: u16,
    /// Longest READ or WRITE in bytes.
    pub max_rdma_size: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            read: true,
            write: true,
            rnr_retry: true,
            notifications: true,
            sender_gid: true,
            unsolicited: true,
            wide_requests: true,
            long_ids: true,
            loopback: true,
            in_order: false,
            seed: 0,
            max_tx_batch: 0,
            min_sq_wr: 0,
            sub_cqs: 1,
            max_sq_wr: 4096,
            max_rq_wr: 32768,
            max_sq_sge: 2,
            max_rq_sge: 3,
            max_rdma_size: 1 << 30,
        }
    }
}

impl Limits {
    /// The first generation: READ, and nothing that came later.
    pub fn first_generation() -> Self {
        Self {
            write: false,
            rnr_retry: false,
            notifications: false,
            sender_gid: false,
            unsolicited: false,
            wide_requests: false,
            long_ids: false,
            ..Self::default()
        }
    }

    /// Checks the sizes; the error names the one that can't be.
    ///
    /// # Errors
    ///
    /// A size is zero where there must be some, or more than the formats carry.
    pub fn check(&self) -> Result<(), String> {
        let within = |what: &str, value: u64, least: u64, most: u64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("{what} {value} is not {least} to {most}")),
        };
        within("max_sq_wr", self.max_sq_wr.into(), 1, 32768)?;
        within("min_sq_wr", self.min_sq_wr.into(), 0, self.max_sq_wr.into())?;
        within("max_rq_wr", self.max_rq_wr.into(), 1, 32768)?;
        within("max_sq_sge", self.max_sq_sge.into(), 1, 2)?;
        within("max_rq_sge", self.max_rq_sge.into(), 1, 16)?;
        within("sub_cqs", self.sub_cqs.into(), 1, 8)?;
        within("max_rdma_size", self.max_rdma_size.into(), 1, 1 << 30)
    }

    /// The capabilities as libefa reads them.
    pub fn caps(&self) -> u32 {
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        bit(self.read, caps::RDMA_READ)
            | bit(self.write, caps::RDMA_WRITE)
            | bit(self.rnr_retry, caps::RNR_RETRY)
            | bit(self.notifications, caps::CQ_NOTIFICATIONS)
            | bit(self.sender_gid, caps::CQ_WITH_SGID)
            | bit(self.unsolicited, caps::UNSOLICITED_WRITE_RECV)
            | bit(self.long_ids, caps::SQ_64_BIT_REQ_ID)
            | caps::DATA_POLLING_128
    }

    /// Most inline bytes of a request of 64 bytes, and of the widest that there is.
    pub fn inline(&self) -> (u16, u16) {
        if self.wide_requests { (32, 80) } else { (32, 32) }
    }

    /// Bytes of the memory for send queues.
    pub fn max_llq_size(&self) -> u32 {
        self.max_sq_wr * 64
    }

    /// Most requests that one doorbell of a send queue may cover, by its entries and their bytes.
    pub fn max_batch(&self, (entries, entry_size): (u32, usize)) -> u32 {
        let whole = if self.min_sq_wr == 0 { entries } else { entries.saturating_sub(1) };
        match self.max_tx_batch {
            0 => whole,
            units => whole.min(u32::from(units) * 64 / entry_size.max(1) as u32),
        }
    }

    /// Whether a completion entry may have this size.
    pub fn takes_entry(size: u32) -> bool {
        matches!(size as usize, PLAIN_ENTRY | crate::efa::cqe::LONG_ENTRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_switched_one_by_one() {
        let all = Limits::default().caps();
        let no_write = Limits { write: false, ..Limits::default() };
        assert_eq!(all & !no_write.caps(), caps::RDMA_WRITE);
        assert_eq!(Limits::first_generation().caps(), caps::RDMA_READ | caps::DATA_POLLING_128);
    }

    #[test]
    fn a_doorbell_covers_what_the_limits_say() {
        let most = |max_tx_batch, min_sq_wr, size| {
            Limits { max_tx_batch, min_sq_wr, ..Limits::default() }.max_batch((64, size))
        };
        assert_eq!([most(0, 0, 64), most(0, 16, 64), most(8, 0, 64), most(8, 0, 128)], [64, 63, 8, 4]);
        assert_eq!([most(200, 0, 64), most(200, 16, 128)], [64, 63]);
    }

    #[test]
    fn an_impossible_size_is_named() {
        assert!(Limits::default().check().is_ok());
        let error = Limits { max_sq_sge: 3, ..Limits::default() }.check().unwrap_err();
        assert_eq!(error, "max_sq_sge 3 is not 1 to 2");
    }
}
