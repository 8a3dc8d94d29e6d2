//! Making and destroying objects: domains, regions, completion queues, queue pairs. Arguments are typed here; decoding them
//! from either ABI is in `invoke` and `ioctl`. Destruction runs under the machine's lock, in which all DMA runs too, so it
//! is quiet once the call returns.

use std::os::fd::RawFd;

use ibv_core::Access;
use provider_mock::model;

use crate::description::{CqeFormat, Kind};
use crate::host::Host;
use crate::memory::{self, Mapping};
use crate::mlx5::abi as mlx5;
use crate::mlx5::cq::{Cq, CqLayout};
use crate::mlx5::qp::{Qp, QpLayout};
use crate::mlx5::region::Region;
use crate::mlx5::scatter::ScatterToCqe;
use crate::mlx5::transition::Transport;
use crate::mlx5::window::MW_BIND;
use crate::mlx5::wqe::MAX_DESCRIPTOR;
use crate::uverbs::abi::{DestroyCqResp, QpCap};
use crate::uverbs::query::{MAX_CQE, MAX_QP_WR};
use crate::uverbs::{Errno, context::Context};

/// Access flags that the device takes; optional ones (from bit 20 on) may be ignored.
const KNOWN_ACCESS: u32 = 15 | MW_BIND | ZERO_BASED | HUGETLB | OPTIONAL_ACCESS;
const ZERO_BASED: u32 = 1 << 5;
const HUGETLB: u32 = 1 << 7;
/// Flags that a device may ignore (`IB_ACCESS_OPTIONAL`).
pub(crate) const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

/// `IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`.
const IGNORE_OVERRUN: u32 = 2;

/// What memory a region covers.
#[derive(Debug, Clone, Copy)]
pub enum Backing {
    /// The program's own addresses.
    Address(u64),
    /// A file that can be mapped (dma-buf, memfd), from an offset.
    File {
        /// The program's descriptor.
        fd: RawFd,
        /// Offset in bytes.
        offset: u64,
    },
}

/// A region to be registered.
#[derive(Debug, Clone, Copy)]
pub struct NewRegion {
    /// Protection domain.
    pub pd: u32,
    /// Memory.
    pub backing: Backing,
    /// Length in bytes.
    pub len: u64,
    /// First address by which it is reached.
    pub iova: u64,
    /// Access flags.
    pub access: u32,
}

/// A completion queue to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewCq {
    /// The program's name for it.
    pub user_handle: u64,
    /// Entries less one.
    pub cqe: u32,
    /// Completion channel.
    pub channel: Option<RawFd>,
    /// Interrupt vector.
    pub vector: u32,
    /// Extended creation flags.
    pub flags: u32,
}

/// A queue pair to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewQp {
    /// The program's name for it.
    pub user_handle: u64,
    /// Protection domain.
    pub pd: u32,
    /// Send completion queue.
    pub send_cq: u32,
    /// Receive completion queue.
    pub receive_cq: u32,
    /// Sizes asked for.
    pub cap: QpCap,
    /// Whether every request reports.
    pub all_signalled: bool,
    /// Type.
    pub kind: u8,
    /// The shared receive queue that it uses.
    pub srq: Option<u32>,
}

impl Host {
    /// Makes a protection domain.
    pub fn alloc_pd(&mut self, context: u32) -> u32 {
        self.domains.insert(context)
    }

    /// Destroys a protection domain.
    pub fn dealloc_pd(&mut self, context: u32, pd: u32) -> Result<(), Errno> {
        self.check_pd(context, pd)?;
        let used = self.engine.shared.regions.uses_domain(pd)
            || self.engine.qps.values().any(|q| q.pd == pd)
            || self.engine.shared.srqs.values().any(|srq| srq.pd == pd)
            || self.efa.qps.values().any(|q| q.pd == pd)
            || self.addresses.values().any(|a| a.pd == pd);
        if used {
            return Err(Errno::BUSY);
        }
        self.domains.remove(pd);
        Ok(())
    }

    pub(crate) fn check_pd(&self, context: u32, pd: u32) -> Result<(), Errno> {
        if self.domains.get(pd) == Some(&context) { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Registers memory; answers its key, which is also its handle.
    pub fn reg_mr(&mut self, context: u32, new: NewRegion) -> Result<u32, Errno> {
        let region = self.new_region(context, new)?;
        Ok(self.engine.shared.regions.insert(region))
    }

    /// Checks a registration and backs it with memory.
    pub(crate) fn new_region(&self, context: u32, new: NewRegion) -> Result<Region, Errno> {
        self.check_pd(context, new.pd)?;
        let access = check_access(new.access)?;
        if self.kind(context)? == Kind::Efa {
            self.check_efa_region(context, &new)?;
        }
        let (base, mapping) = self.back(&new)?;
        if new.len == 0 || base.checked_add(new.len).is_none() {
            return Err(Errno::INVAL);
        }
        if mapping.is_none() {
            check_mapped(base, new.len)?;
        }
        let facts = model::Region { lkey: 0, rkey: 0, pd: new.pd, base: new.iova, len: new.len, access };
        Ok(Region { context, facts, base, mapping, window: None })
    }

    fn back(&self, new: &NewRegion) -> Result<(u64, Option<Mapping>), Errno> {
        match new.backing {
            Backing::Address(addr) => Ok((addr, None)),
            Backing::File { fd, offset } => {
                let end = offset.checked_add(new.len).ok_or(Errno::INVAL)?;
                let file = memory::program_file(fd)?;
                let size = rustix::fs::fstat(file).map_err(|e| Errno(e.raw_os_error()))?.st_size;
                if size != 0 && end > size as u64 || new.len == 0 {
                    return Err(Errno::INVAL);
                }
                let page = offset & !4095;
                let mapping = Mapping::new(file, page, (end - page) as usize)?;
                Ok((mapping.addr() + (offset - page), Some(mapping)))
            }
        }
    }

    /// Deregisters memory.
    pub fn dereg_mr(&mut self, context: u32, handle: u32) -> Result<(), Errno> {
        let regions = &mut self.engine.shared.regions;
        if regions.get(handle).is_none_or(|r| r.context != context || r.window.is_some()) {
            return Err(Errno::INVAL);
        }
        if regions.has_windows(handle) {
            return Err(Errno::BUSY);
        }
        regions.remove(handle);
        Ok(())
    }

    /// Makes a completion queue; answers its number, which is also its handle.
    pub fn create_cq(&mut self, context: u32, new: NewCq, driver: &mlx5::CreateCq) -> Result<u32, Errno> {
        if new.cqe == 0 || new.cqe > MAX_CQE || !matches!(driver.cqe_size, 64 | 128) || new.vector > 0 {
            return Err(Errno::INVAL);
        }
        // Compressed and padded entries are never offered in the capabilities.
        if driver.cqe_comp_en != 0 || driver.flags & !mlx5::CQ_UAR_PAGE_INDEX != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let layout = CqLayout {
            buffer: driver.buf_addr,
            records: driver.db_addr,
            entries: (new.cqe + 1).next_power_of_two(),
            entry_size: driver.cqe_size,
            ignore_overrun: new.flags & IGNORE_OVERRUN != 0,
        };
        let mut cq = Cq::new(context, layout)?;
        cq.compressed = self.device(context)?.cqe == CqeFormat::Compressed;
        let uar = self.context(context)?;
        cq.page = match driver.flags & mlx5::CQ_UAR_PAGE_INDEX {
            0 => 0,
            _ => usize::from(driver.uar_page_index),
        };
        check_page(uar, cq.page)?;
        if new.channel.is_some_and(|fd| uar.channel(fd).is_none()) {
            return Err(Errno::INVAL);
        }
        uar.pages()?.attach(cq.page);
        (cq.user_handle, cq.channel) = (new.user_handle, new.channel);
        Ok(self.engine.shared.cqs.insert(cq))
    }

    /// Destroys a completion queue; answers how many of its events the program has read.
    pub fn destroy_cq(&mut self, context: u32, cqn: u32) -> Result<DestroyCqResp, Errno> {
        if self.kind(context)? == Kind::Efa {
            return self.destroy_efa_cq(context, cqn);
        }
        self.check_cq(context, cqn)?;
        if self.engine.qps.values().any(|q| q.send_cq == cqn || q.receive_cq == cqn) {
            return Err(Errno::BUSY);
        }
        let cq = self.engine.shared.cqs.remove(cqn).ok_or(Errno::INVAL)?;
        self.send_events();
        let uar = self.context(context)?;
        uar.pages()?.detach(cq.page);
        let unread = cq.channel.and_then(|fd| uar.channel(fd)).map_or(0, |c| c.take_back(cq.user_handle));
        let unread_async = uar.async_channel.as_mut().map_or(0, |c| c.take_back(cq.user_handle));
        Ok(DestroyCqResp {
            comp_events_reported: cq.events.saturating_sub(unread),
            async_events_reported: cq.async_events.saturating_sub(unread_async),
        })
    }

    pub(crate) fn check_cq(&self, context: u32, cqn: u32) -> Result<(), Errno> {
        match self.engine.shared.cqs.get(cqn) {
            Some(cq) if cq.context == context => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    /// Makes a queue pair; answers its number, which is also its handle, and libmlx5's index of its register.
    pub fn create_qp(
        &mut self,
        context: u32,
        new: NewQp,
        driver: &mlx5::CreateQp,
    ) -> Result<(u32, mlx5::CreateQpResp), Errno> {
        let transport = Transport::from_code(new.kind).ok_or(Errno::OPNOTSUPP)?;
        self.check_new_qp(context, &new, driver)?;
        let qpn = self.engine.free_qpn().ok_or(Errno::NOMEM)?;
        let layout = QpLayout {
            buffer: driver.buf_addr,
            records: driver.db_addr,
            send_blocks: driver.sq_wqe_count,
            receive_slots: driver.rq_wqe_count,
            receive_shift: if driver.rq_wqe_count == 0 { 0 } else { driver.rq_wqe_shift },
        };
        let mut qp = Qp::new(qpn, context, layout)?;
        let format = self.device(context)?.cqe;
        let uar = self.context(context)?;
        let (register, page) = pick_page(uar, driver)?;
        check_page(uar, page)?;
        uar.pages()?.attach(page);
        (qp.device, qp.page, qp.uidx) = (uar.device, page, driver.uidx);
        (qp.pd, qp.send_cq, qp.receive_cq) = (new.pd, new.send_cq, new.receive_cq);
        (qp.transport, qp.srq) = (transport, new.srq);
        qp.scatter = ScatterToCqe::new(format, transport, driver.flags, new.all_signalled);
        (qp.user_handle, qp.all_signalled) = (new.user_handle, new.all_signalled);
        let cap = new.cap;
        qp.caps = [cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data];
        self.engine.qps.insert(qpn, qp);
        Ok((qpn, mlx5::CreateQpResp { bfreg_index: register, ..Default::default() }))
    }

    fn check_new_qp(&self, context: u32, new: &NewQp, driver: &mlx5::CreateQp) -> Result<(), Errno> {
        if driver.flags & mlx5::qp_flag::SIGNATURE != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        self.check_pd(context, new.pd)?;
        self.check_cq(context, new.send_cq)?;
        self.check_cq(context, new.receive_cq)?;
        if let Some(srq) = new.srq {
            self.check_srq(context, srq)?;
        }
        let counts = [driver.sq_wqe_count, driver.rq_wqe_count];
        let odd = counts.iter().any(|n| *n != 0 && !n.is_power_of_two() || *n > MAX_QP_WR);
        let slot = 1u64.checked_shl(driver.rq_wqe_shift).unwrap_or(u64::MAX);
        let receives = driver.rq_wqe_count != 0;
        if odd || receives && (slot < 16 || slot > MAX_DESCRIPTOR as u64) {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// Destroys a queue pair; answers how many of its asynchronous events the program has read.
    pub fn destroy_qp(&mut self, context: u32, qpn: u32) -> Result<u32, Errno> {
        if self.kind(context)? == Kind::Efa {
            return self.destroy_efa_qp(context, qpn);
        }
        self.qp(context, qpn)?;
        self.see_doorbells(context);
        self.engine.check_destroyed(qpn);
        let qp = self.engine.qps.remove(&qpn).ok_or(Errno::INVAL)?;
        self.engine.shared.regions.unbind_windows_of(qpn);
        self.send_events();
        let uar = self.context(context)?;
        uar.pages()?.detach(qp.page);
        let unread = uar.async_channel.as_mut().map_or(0, |c| c.take_back(qp.user_handle));
        Ok(qp.async_events.saturating_sub(unread))
    }

    /// A queue pair of this context.
    pub fn qp(&mut self, context: u32, qpn: u32) -> Result<&mut Qp, Errno> {
        self.engine.qps.get_mut(&qpn).filter(|q| q.context == context).ok_or(Errno::INVAL)
    }
}

/// Access flags that go together, and that the device has: on-demand paging is not among them.
pub(crate) fn check_access(flags: u32) -> Result<Access, Errno> {
    let access = Access::from_bits_retain(flags);
    let remote_write = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if flags & !KNOWN_ACCESS != 0 || remote_write && !access.contains(Access::LOCAL_WRITE) {
        return Err(Errno::INVAL);
    }
    Ok(access)
}

/// The register that libmlx5 named, or one that we pick.
fn pick_page(uar: &mut Context, driver: &mlx5::CreateQp) -> Result<(u32, usize), Errno> {
    if driver.flags & mlx5::qp_flag::UAR_PAGE_INDEX != 0 {
        return Ok((0, driver.bfreg_index as usize));
    }
    if driver.flags & mlx5::qp_flag::BFREG_INDEX != 0 {
        let page = uar.static_dynamic_page(driver.bfreg_index).ok_or(Errno::INVAL)?;
        return Ok((driver.bfreg_index, page));
    }
    uar.pick_static_register()
}

fn check_page(uar: &mut Context, page: usize) -> Result<(), Errno> {
    if uar.pages()?.exists(page) { Ok(()) } else { Err(Errno::INVAL) }
}

/// The kernel would fail to pin what isn't mapped: looks at the first and the last byte.
fn check_mapped(base: u64, len: u64) -> Result<(), Errno> {
    let mut probe = [0; 1];
    memory::read(base, &mut probe)?;
    memory::read(base + len - 1, &mut probe)?;
    Ok(())
}
