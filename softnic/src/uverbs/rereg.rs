//! Registered memory changed in place: another range, domain or rights under the same key. First registration is in
//! `objects`.

use crate::host::Host;
use crate::uverbs::Errno;
use crate::uverbs::abi::{ReregMr, ReregMrResp};
use crate::uverbs::call::Call;
use crate::uverbs::objects::{Backing, NewRegion, check_access};

/// `IB_MR_REREG_TRANS`, `_PD` and `_ACCESS`.
const TRANSLATION: u32 = 1;
const DOMAIN: u32 = 2;
const ACCESS: u32 = 4;

impl Host {
    pub(crate) fn rereg_mr_call(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        let request: ReregMr = call.input();
        self.rereg_mr(context, &request)?;
        call.output.put(&ReregMrResp { lkey: request.mr_handle, rkey: request.mr_handle })
    }

    /// Changes a region. A change that is refused leaves it as it was. Windows keep what they reach, so there may be none.
    pub fn rereg_mr(&mut self, context: u32, new: &ReregMr) -> Result<(), Errno> {
        self.only_mlx5(context)?;
        if new.flags == 0 || new.flags & !(TRANSLATION | DOMAIN | ACCESS) != 0 {
            return Err(Errno::INVAL);
        }
        let old = self.engine.shared.regions.get(new.mr_handle).filter(|r| r.context == context);
        let facts = old.ok_or(Errno::INVAL)?.facts;
        if self.engine.shared.regions.has_windows(new.mr_handle) {
            return Err(Errno::BUSY);
        }
        let pd = if new.flags & DOMAIN != 0 { new.pd_handle } else { facts.pd };
        let flags = if new.flags & ACCESS != 0 { new.access_flags } else { facts.access.bits() };
        if new.flags & TRANSLATION != 0 {
            let backing = Backing::Address(new.start);
            let region = NewRegion { pd, backing, len: new.length, iova: new.hca_va, access: flags };
            let region = self.new_region(context, region)?;
            return self.engine.shared.regions.replace(new.mr_handle, region).ok_or(Errno::INVAL);
        }
        self.check_pd(context, pd)?;
        let access = check_access(flags)?;
        let region = self.engine.shared.regions.get_mut(new.mr_handle).ok_or(Errno::INVAL)?;
        (region.facts.pd, region.facts.access) = (pd, access);
        Ok(())
    }
}
