//! Memory windows made and destroyed. How they are bound is in [`crate::mlx5::window`].

use crate::host::Host;
use crate::uverbs::Errno;
use crate::uverbs::abi::{AllocMw, AllocMwResp};
use crate::uverbs::call::Call;

impl Host {
    /// Makes a window that is not bound.
    pub(crate) fn alloc_mw(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        self.only_mlx5(context)?;
        let request: AllocMw = call.input();
        self.check_pd(context, request.pd_handle)?;
        let second = match request.mw_type {
            1 => false,
            2 => true,
            _ => return Err(Errno::INVAL),
        };
        let rkey = self.engine.shared.regions.insert_window(context, request.pd_handle, second);
        // The key changes with each binding, so the handle is its slot.
        call.output.put(&AllocMwResp { mw_handle: rkey >> 8, rkey })
    }

    /// Destroys a window.
    pub(crate) fn dealloc_mw(&mut self, context: u32, handle: u32) -> Result<(), Errno> {
        let regions = &mut self.engine.shared.regions;
        let key = regions.window_of_slot(handle, context).ok_or(Errno::INVAL)?;
        regions.remove(key);
        Ok(())
    }
}
