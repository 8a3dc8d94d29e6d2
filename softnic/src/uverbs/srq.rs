//! Shared receive queues: made, limited, asked and destroyed. How receives are taken is in [`crate::mlx5::srq`].

use crate::description::Kind;
use crate::host::Host;
use crate::mlx5::abi as mlx5;
use crate::mlx5::async_event;
use crate::mlx5::srq::{Srq, SrqLayout};
use crate::uverbs::Errno;
use crate::uverbs::abi::{self, DestroySrqResp, ModifySrq, QuerySrqResp};
use crate::uverbs::call::Call;
use crate::uverbs::ioctl::Attributes;
use crate::uverbs::query::{MAX_QP_WR, MAX_SRQ_SGE};

/// `IBV_SRQ_MAX_WR` and `IBV_SRQ_LIMIT`.
const MAX_WR: u32 = 1;
const LIMIT: u32 = 2;
/// `MLX5_SRQ_FLAG_SIGNATURE`.
const SIGNATURE: u32 = 1;
/// `IB_SRQT_BASIC`.
const BASIC: u32 = 0;

/// A queue to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewSrq {
    /// The program's name for it.
    pub user_handle: u64,
    /// Protection domain.
    pub pd: u32,
    /// Receives, less one.
    pub max_wr: u32,
    /// Pieces of each.
    pub max_sge: u32,
    /// The limit.
    pub limit: u32,
}

impl Host {
    /// Makes a shared receive queue; answers its number, which is also its handle, and its sizes.
    pub fn create_srq(
        &mut self,
        context: u32,
        new: NewSrq,
        driver: &mlx5::CreateSrq,
    ) -> Result<abi::CreateSrqResp, Errno> {
        self.only_mlx5(context)?;
        self.check_pd(context, new.pd)?;
        if driver.flags & SIGNATURE != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if new.max_wr == 0 || new.max_wr >= MAX_QP_WR || new.max_sge > MAX_SRQ_SGE || new.limit > new.max_wr {
            return Err(Errno::INVAL);
        }
        // A link of 16 bytes and pieces of 16, in a slot of a power of two and at least 32 (`mlx5_alloc_srq_buf`).
        let entry_size = (16 + 16 * new.max_sge).max(32).next_power_of_two();
        let entries = (new.max_wr + 1).next_power_of_two();
        let layout = SrqLayout { buffer: driver.buf_addr, record: driver.db_addr, entries, entry_size };
        let mut srq = Srq::new(context, layout)?.ok_or(Errno::INVAL)?;
        let (max_wr, max_sge) = (entries - 1, entry_size / 16 - 1);
        (srq.pd, srq.user_handle, srq.caps, srq.limit) =
            (new.pd, new.user_handle, (max_wr, max_sge), new.limit);
        let srqn = self.engine.shared.srqs.insert(srq);
        Ok(abi::CreateSrqResp { srq_handle: srqn, max_wr, max_sge, srqn })
    }

    pub(crate) fn create_srq_call(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        let request: abi::CreateSrq = call.input();
        let new = NewSrq {
            user_handle: request.user_handle,
            pd: request.pd_handle,
            max_wr: request.max_wr,
            max_sge: request.max_sge,
            limit: request.srq_limit,
        };
        let answer = self.create_srq(context, new, &call.driver())?;
        call.driver_output.put(&mlx5::CreateSrqResp { srqn: answer.srqn, reserved: 0 })?;
        call.output.put(&answer)
    }

    pub(crate) fn create_srq_native(&mut self, context: u32, a: &Attributes) -> Result<(), Errno> {
        a.only(&[0, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13])?;
        if a.need(9)? as u32 != BASIC {
            return Err(Errno::OPNOTSUPP);
        }
        let new = NewSrq {
            user_handle: a.need(4)?,
            pd: a.need(1)? as u32,
            max_wr: a.need(5)? as u32,
            max_sge: a.need(6)? as u32,
            limit: a.need(7)? as u32,
        };
        let call = a.driver_call()?;
        let answer = self.create_srq(context, new, &call.driver())?;
        call.driver_output.put(&mlx5::CreateSrqResp { srqn: answer.srqn, reserved: 0 })?;
        a.put(11, &answer.max_wr)?;
        a.put(12, &answer.max_sge)?;
        a.put_handle(0, u64::from(answer.srq_handle))
    }

    /// Sets the limit. Queues of this device are not resized.
    pub fn modify_srq(&mut self, context: u32, new: &ModifySrq) -> Result<(), Errno> {
        self.check_srq(context, new.srq_handle)?;
        if new.attr_mask & (MAX_WR | !LIMIT) != 0 {
            return Err(Errno::INVAL);
        }
        let shared = &mut self.engine.shared;
        let srq = shared.srqs.get_mut(new.srq_handle).ok_or(Errno::INVAL)?;
        if new.srq_limit > srq.caps.0 {
            return Err(Errno::INVAL);
        }
        if new.attr_mask & LIMIT != 0 && srq.set_limit(new.srq_limit) {
            srq.async_events += 1;
            let event = (context, srq.user_handle, async_event::SRQ_LIMIT_REACHED);
            shared.async_events.push(event);
        }
        Ok(())
    }

    /// Answers `QUERY_SRQ`.
    pub fn query_srq(&mut self, context: u32, number: u32) -> Result<QuerySrqResp, Errno> {
        self.check_srq(context, number)?;
        let srq = self.engine.shared.srqs.get(number).ok_or(Errno::INVAL)?;
        let (max_wr, max_sge) = srq.caps;
        Ok(QuerySrqResp { max_wr, max_sge, srq_limit: srq.limit, reserved: 0 })
    }

    /// Destroys a shared receive queue; answers how many of its asynchronous events the program has read.
    pub fn destroy_srq(&mut self, context: u32, number: u32) -> Result<DestroySrqResp, Errno> {
        self.check_srq(context, number)?;
        if self.engine.qps.values().any(|qp| qp.srq == Some(number)) {
            return Err(Errno::BUSY);
        }
        let srq = self.engine.shared.srqs.remove(number).ok_or(Errno::INVAL)?;
        self.send_events();
        let unread =
            self.context(context)?.async_channel.as_mut().map_or(0, |c| c.take_back(srq.user_handle));
        Ok(DestroySrqResp { events_reported: srq.async_events.saturating_sub(unread) })
    }

    /// What devices of other kinds don't have.
    pub(crate) fn only_mlx5(&self, context: u32) -> Result<(), Errno> {
        if self.kind(context)? == Kind::Mlx5 { Ok(()) } else { Err(Errno::OPNOTSUPP) }
    }

    pub(crate) fn check_srq(&self, context: u32, number: u32) -> Result<(), Errno> {
        match self.engine.shared.srqs.get(number) {
            Some(srq) if srq.context == context => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }
}
