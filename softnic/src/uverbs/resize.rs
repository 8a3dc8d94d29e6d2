//! Completion queues changed while they are in use: another ring, and moderation. How entries move over is in
//! [`crate::mlx5::cq`].

use crate::host::Host;
use crate::mlx5::abi as mlx5;
use crate::mlx5::moderation::Moderation;
use crate::uverbs::Errno;
use crate::uverbs::abi::{self, ExModifyCq};
use crate::uverbs::call::Call;
use crate::uverbs::query::{MAX_CQE, MAX_PERIOD_US};

/// `IBV_CQ_ATTR_MODERATE`.
const MODERATE: u32 = 1;

impl Host {
    pub(crate) fn resize_cq_call(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        let request: abi::ResizeCq = call.input();
        let cqe = self.resize_cq(context, request.cq_handle, request.cqe, &call.driver())?;
        call.output.put(&abi::ResizeCqResp { cqe, reserved: 0 })
    }

    /// Gives a completion queue another ring; answers its entries less one. The device goes on in the new ring, and leaves
    /// an entry in the old one that says so: the program copies what lies before it.
    pub fn resize_cq(
        &mut self,
        context: u32,
        cqn: u32,
        cqe: u32,
        driver: &mlx5::ResizeCq,
    ) -> Result<u32, Errno> {
        self.only_mlx5(context)?;
        self.check_cq(context, cqn)?;
        if cqe == 0 || cqe > MAX_CQE {
            return Err(Errno::INVAL);
        }
        let shared = &mut self.engine.shared;
        let cq = shared.cqs.get_mut(cqn).ok_or(Errno::INVAL)?;
        let entries = (cqe + 1).next_power_of_two();
        if cq.dead || u32::from(driver.cqe_size) != cq.entry_size() || !cq.fits(entries) {
            return Err(Errno::INVAL);
        }
        cq.resize(driver.buf_addr, entries)?;
        Ok(entries - 1)
    }

    /// Sets the moderation of a completion queue's events.
    pub fn modify_cq(&mut self, context: u32, new: &ExModifyCq) -> Result<(), Errno> {
        self.only_mlx5(context)?;
        self.check_cq(context, new.cq_handle)?;
        if new.attr_mask & !MODERATE != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if new.period > MAX_PERIOD_US {
            return Err(Errno::INVAL);
        }
        let cq = self.engine.shared.cqs.get_mut(new.cq_handle).ok_or(Errno::INVAL)?;
        if new.attr_mask & MODERATE != 0 {
            cq.moderation = Moderation { count: new.count, period_us: new.period };
        }
        Ok(())
    }
}
