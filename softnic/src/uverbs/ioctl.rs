//! The ioctl interface: attributes and methods. Methods that are not listed answer `EPROTONOSUPPORT`, upon which libibverbs
//! falls back to the older commands in `invoke`.

use std::os::fd::RawFd;

use bytemuck::Pod;

use crate::description::{Abi, Kind};
use crate::efa::abi::ioctl as efa;
use crate::host::Host;
use crate::memory;
use crate::mlx5::abi as mlx5;
use crate::mlx5::uar::PAGE;
use crate::uverbs::abi::{self, ioctl};
use crate::uverbs::call::{Call, Output, read_input};
use crate::uverbs::objects::{Backing, NewCq, NewQp, NewRegion};
use crate::uverbs::{Errno, query};

/// Most attributes of a call; the kernel's own limit is of this order.
const MAX_ATTRIBUTES: u16 = 64;
/// `IB_UVERBS_QP_CREATE_SQ_SIG_ALL`.
const SQ_SIG_ALL: u64 = 1 << 12;

/// The attributes of one call.
pub(crate) struct Attributes {
    /// Address in the program of the first one.
    base: u64,
    list: Vec<abi::IoctlAttr>,
}

impl Attributes {
    fn read(addr: u64) -> Result<(abi::IoctlHdr, Self), Errno> {
        let header: abi::IoctlHdr = abi::decode(&read_input(addr, size_of::<abi::IoctlHdr>())?);
        let len = usize::from(header.num_attrs) * size_of::<abi::IoctlAttr>();
        if header.num_attrs > MAX_ATTRIBUTES || usize::from(header.length) != size_of::<abi::IoctlHdr>() + len
        {
            return Err(Errno::INVAL);
        }
        let base = addr.wrapping_add(size_of::<abi::IoctlHdr>() as u64);
        let list =
            read_input(base, len)?.chunks_exact(size_of::<abi::IoctlAttr>()).map(abi::decode).collect();
        Ok((header, Self { base, list }))
    }

    fn find(&self, id: u16) -> Option<(usize, &abi::IoctlAttr)> {
        self.list.iter().enumerate().find(|(_, a)| a.attr_id == id)
    }

    /// Refuses mandatory attributes that the method doesn't know; drivers' own buffers are always known.
    pub(crate) fn only(&self, known: &[u16]) -> Result<(), Errno> {
        let strange = |a: &&abi::IoctlAttr| {
            let id = a.attr_id;
            a.flags & ioctl::MANDATORY != 0
                && !known.contains(&id)
                && !matches!(id, ioctl::UHW_IN | ioctl::UHW_OUT)
        };
        if self.list.iter().any(|a| strange(&a)) { Err(Errno::PROTONOSUPPORT) } else { Ok(()) }
    }

    /// A small value, or a handle.
    pub(crate) fn value(&self, id: u16) -> Option<u64> {
        self.find(id).map(|(_, a)| a.data)
    }

    pub(crate) fn need(&self, id: u16) -> Result<u64, Errno> {
        self.value(id).ok_or(Errno::INVAL)
    }

    /// Input bytes: in the attribute itself up to 8, else where it points.
    pub(crate) fn input(&self, id: u16) -> Result<Vec<u8>, Errno> {
        match self.find(id) {
            None => Ok(Vec::new()),
            Some((_, a)) if a.len <= 8 => Ok(a.data.to_ne_bytes()[..usize::from(a.len)].to_vec()),
            Some((_, a)) => read_input(a.data, usize::from(a.len)),
        }
    }

    fn output(&self, id: u16) -> Output {
        self.find(id).map_or(Output::default(), |(_, a)| Output { addr: a.data, len: usize::from(a.len) })
    }

    /// Writes an output and marks it as written.
    pub(crate) fn put<T: Pod>(&self, id: u16, value: &T) -> Result<(), Errno> {
        let Some((at, attr)) = self.find(id) else { return Ok(()) };
        self.output(id).put(value)?;
        self.mark(at, attr)
    }

    fn put_bytes(&self, id: u16, bytes: &[u8]) -> Result<(), Errno> {
        let Some((at, attr)) = self.find(id) else { return Ok(()) };
        self.output(id).put_bytes(bytes)?;
        self.mark(at, attr)
    }

    fn mark(&self, at: usize, attr: &abi::IoctlAttr) -> Result<(), Errno> {
        let flags = attr.flags | ioctl::VALID_OUTPUT;
        let addr = self.address(at, 4);
        Ok(memory::write(addr, &flags.to_ne_bytes())?)
    }

    /// Address in the program of a byte of an attribute.
    fn address(&self, at: usize, byte: u64) -> u64 {
        self.base.wrapping_add((at * size_of::<abi::IoctlAttr>()) as u64 + byte)
    }

    /// Answers a handle or a descriptor, in the attribute itself.
    pub(crate) fn put_handle(&self, id: u16, handle: u64) -> Result<(), Errno> {
        let (at, _) = self.find(id).ok_or(Errno::INVAL)?;
        let addr = self.address(at, 8);
        Ok(memory::write(addr, &handle.to_ne_bytes())?)
    }

    /// The driver's buffers, as the older commands have them.
    pub(crate) fn driver_call(&self) -> Result<Call, Errno> {
        Ok(Call {
            driver_input: self.input(ioctl::UHW_IN)?,
            driver_output: self.output(ioctl::UHW_OUT),
            ..Call::default()
        })
    }
}

/// Methods that make something, or ask for it: what a failed device refuses. Older commands are looked at in `invoke`.
fn makes(object: u16, method: u16) -> bool {
    match object {
        ioctl::OBJECT_DEVICE => method != 0,
        ioctl::OBJECT_MR => method != 1,
        ioctl::OBJECT_CQ | ioctl::OBJECT_QP | ioctl::OBJECT_SRQ => method == 0,
        mlx5::ioctl::OBJECT_UAR => method == mlx5::ioctl::METHOD_UAR_ALLOC,
        _ => false,
    }
}

impl Host {
    /// An ioctl whose header is at `addr` in the program.
    pub fn ioctl(&mut self, context: u32, addr: u64) -> Result<(), Errno> {
        if self.description.abi == Abi::Write {
            return Err(Errno::NOTTY);
        }
        let (header, attributes) = Attributes::read(addr)?;
        let (object, method) = (header.object_id, header.method_id);
        let result = match self.check_alive(context) {
            Err(errno) if makes(object, method) => Err(errno),
            _ => self.method(context, (object, method), &attributes),
        };
        crate::log::debug(|| format!("ioctl object {object:#x} method {method:#x}: {result:?}"));
        result
    }

    fn method(&mut self, context: u32, which: (u16, u16), a: &Attributes) -> Result<(), Errno> {
        match which {
            (ioctl::OBJECT_DEVICE, 0) => return self.invoke_write(context, a),
            (ioctl::OBJECT_DEVICE, 5) => return self.query_gid_table(context, a),
            (ioctl::OBJECT_DEVICE, 6) => return self.query_gid_entry(context, a),
            (ioctl::OBJECT_ASYNC_EVENT, 0) => {
                let fd = self.context(context)?.open_async()?;
                return a.put_handle(0, fd as u64);
            }
            (ioctl::OBJECT_MR, 4) => return self.counted(|h| h.reg_dmabuf(context, a)),
            (mlx5::ioctl::OBJECT_UAR, mlx5::ioctl::METHOD_UAR_ALLOC) => return self.alloc_uar(context, a),
            (mlx5::ioctl::OBJECT_UAR, mlx5::ioctl::METHOD_UAR_DESTROY) => {
                let page = a.need(mlx5::ioctl::ATTR_UAR_HANDLE)? as usize;
                return if self.context(context)?.pages()?.free(page) { Ok(()) } else { Err(Errno::INVAL) };
            }
            (ioctl::OBJECT_MR, efa::METHOD_MR_QUERY) if self.kind(context)? == Kind::Efa => {
                // No interconnect has a number here.
                return a.put(efa::ATTR_QUERY_MR_VALIDITY, &0u16);
            }
            (ioctl::OBJECT_PD, mlx5::ioctl::METHOD_PD_QUERY) => {
                let pdn = a.need(mlx5::ioctl::ATTR_QUERY_PD_HANDLE)? as u32;
                return a.put(mlx5::ioctl::ATTR_QUERY_PD_PDN, &pdn);
            }
            _ => {}
        }
        if self.description.abi != Abi::Native {
            return Err(Errno::PROTONOSUPPORT);
        }
        self.native(context, which, a)
    }

    /// A command that counts for [`crate::fault::Fault::FailCommand`].
    fn counted(&mut self, command: impl FnOnce(&mut Self) -> Result<(), Errno>) -> Result<(), Errno> {
        match self.engine.shared.faults.on_command() {
            Some(errno) => Err(Errno(errno)),
            None => command(self),
        }
    }

    fn native(&mut self, context: u32, which: (u16, u16), a: &Attributes) -> Result<(), Errno> {
        match which {
            (ioctl::OBJECT_DEVICE, 2) => {
                let port = self.port(context, a.need(0)? as u32)?;
                a.put(1, &query::port_ex(port))
            }
            (ioctl::OBJECT_DEVICE, 3) => self.counted(|h| h.open_native(context, a)),
            (ioctl::OBJECT_PD, 0) => self.counted(|h| h.dealloc_pd(context, a.need(0)? as u32)),
            (ioctl::OBJECT_AH, 0) => self.counted(|h| h.destroy_ah(context, a.need(0)? as u32)),
            (ioctl::OBJECT_MR, 1) => self.counted(|h| h.dereg_mr(context, a.need(0)? as u32)),
            (ioctl::OBJECT_MW, 0) => self.counted(|h| h.dealloc_mw(context, a.need(0)? as u32)),
            (ioctl::OBJECT_MR, 5) => self.counted(|h| h.reg_mr_native(context, a)),
            (ioctl::OBJECT_CQ, 0) => self.counted(|h| h.create_cq_native(context, a)),
            (ioctl::OBJECT_CQ, 1) => self.counted(|h| {
                let answer = h.destroy_cq(context, a.need(0)? as u32)?;
                a.put(1, &answer)
            }),
            (ioctl::OBJECT_SRQ, 0) => self.counted(|h| h.create_srq_native(context, a)),
            (ioctl::OBJECT_SRQ, 1) => self.counted(|h| {
                let answer = h.destroy_srq(context, a.need(0)? as u32)?;
                a.put(1, &answer)
            }),
            (ioctl::OBJECT_QP, 0) => self.counted(|h| h.create_qp_native(context, a)),
            (ioctl::OBJECT_QP, 1) => self.counted(|h| {
                let events_reported = h.destroy_qp(context, a.need(0)? as u32)?;
                a.put(1, &abi::DestroyQpResp { events_reported })
            }),
            _ => Err(Errno::PROTONOSUPPORT),
        }
    }

    fn invoke_write(&mut self, context: u32, a: &Attributes) -> Result<(), Errno> {
        let command = a.need(2)? as u32;
        let mut call = a.driver_call()?;
        (call.input, call.output) = (a.input(0)?, a.output(1));
        if a.find(0).is_none() && a.find(1).is_none() {
            // libibverbs' probe for this method: any answer but EPROTONOSUPPORT says that it exists.
            return Err(Errno::NOSPC);
        }
        self.command(context, command, &call)?;
        for id in [1, ioctl::UHW_OUT] {
            if let Some((at, attr)) = a.find(id) {
                a.mark(at, attr)?;
            }
        }
        Ok(())
    }

    fn open_native(&mut self, context: u32, a: &Attributes) -> Result<(), Errno> {
        self.get_driver_context(context, &a.driver_call()?)?;
        a.put(0, &1u32)?;
        // IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS.
        a.put(1, &1u64)
    }

    fn query_gid_table(&mut self, context: u32, a: &Attributes) -> Result<(), Errno> {
        let entry_size = a.need(0)? as usize;
        let table = query::gid_table(self.device(context)?);
        if entry_size == 0 || a.value(1).unwrap_or(0) as u32 != 0 {
            return Err(Errno::INVAL);
        }
        let len =
            table.len().checked_mul(entry_size).filter(|n| *n <= a.output(2).len).ok_or(Errno::INVAL)?;
        let mut bytes = vec![0; len];
        for (slot, entry) in bytes.chunks_exact_mut(entry_size).zip(&table) {
            let entry = bytemuck::bytes_of(entry);
            let n = entry.len().min(entry_size);
            slot[..n].copy_from_slice(&entry[..n]);
        }
        a.put_bytes(2, &bytes)?;
        a.put(3, &(table.len() as u64))
    }

    fn query_gid_entry(&mut self, context: u32, a: &Attributes) -> Result<(), Errno> {
        let number = a.need(0)? as u32;
        let index = a.need(1)? as u32 as usize;
        let port = self.port(context, number)?;
        if index >= crate::sysfs::gid_table_len(port) {
            return Err(Errno::INVAL);
        }
        let entry = query::gid(port, number, index).ok_or(Errno::NODATA)?;
        a.put(3, &entry)
    }

    fn alloc_uar(&mut self, context: u32, a: &Attributes) -> Result<(), Errno> {
        let pages = self.context(context)?.pages()?;
        let page = pages.allocate().ok_or(Errno::NOMEM)?;
        a.put(mlx5::ioctl::ATTR_UAR_OFFSET, &((page * PAGE) as u64))?;
        a.put(mlx5::ioctl::ATTR_UAR_LENGTH, &(PAGE as u32))?;
        a.put(mlx5::ioctl::ATTR_UAR_PAGE_ID, &(page as u32))?;
        a.put_handle(mlx5::ioctl::ATTR_UAR_HANDLE, page as u64)
    }

    fn reg_dmabuf(&mut self, context: u32, a: &Attributes) -> Result<(), Errno> {
        a.only(&[0, 1, 2, 3, 4, 5, 6, 7, 8])?;
        let new = NewRegion {
            pd: a.need(1)? as u32,
            backing: Backing::File { fd: a.need(5)? as u32 as RawFd, offset: a.need(2)? },
            len: a.need(3)?,
            iova: a.need(4)?,
            access: a.need(6)? as u32,
        };
        let key = self.reg_mr(context, new)?;
        a.put(7, &key)?;
        a.put(8, &key)?;
        a.put_handle(0, u64::from(key))
    }

    fn reg_mr_native(&mut self, context: u32, a: &Attributes) -> Result<(), Errno> {
        a.only(&[0, 1, 3, 4, 5, 6, 7, 8, 9, 10])?;
        let backing = match a.value(7) {
            Some(fd) => Backing::File { fd: fd as u32 as RawFd, offset: a.need(8)? },
            None => Backing::Address(a.need(4)?),
        };
        let iova = a.need(3)?;
        let new =
            NewRegion { pd: a.need(1)? as u32, backing, len: a.need(5)?, iova, access: a.need(6)? as u32 };
        let key = self.reg_mr(context, new)?;
        a.put(9, &key)?;
        a.put(10, &key)?;
        a.put_handle(0, u64::from(key))
    }

    fn create_cq_native(&mut self, context: u32, a: &Attributes) -> Result<(), Errno> {
        a.only(&[0, 1, 2, 3, 4, 5, 6, 7])?;
        let new = NewCq {
            user_handle: a.need(2)?,
            cqe: a.need(1)? as u32,
            channel: a.value(3).map(|fd| fd as RawFd),
            vector: a.value(4).unwrap_or(0) as u32,
            flags: a.value(5).unwrap_or(0) as u32,
        };
        let answer = self.create_cq_driver(context, new, &a.driver_call()?)?;
        a.put(6, &answer.cqe)?;
        a.put_handle(0, u64::from(answer.cq_handle))
    }

    fn create_qp_native(&mut self, context: u32, a: &Attributes) -> Result<(), Errno> {
        a.only(&[0, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 14])?;
        let flags = a.value(10).unwrap_or(0);
        if flags & !SQ_SIG_ALL != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let new = NewQp {
            user_handle: a.need(7)?,
            pd: a.need(2)? as u32,
            send_cq: a.need(4)? as u32,
            receive_cq: a.need(5)? as u32,
            cap: abi::decode(&a.input(8)?),
            all_signalled: flags & SQ_SIG_ALL != 0,
            kind: a.need(9)? as u8,
            srq: a.value(3).map(|handle| handle as u32),
        };
        let answer = self.create_qp_driver(context, new, &a.driver_call()?)?;
        a.put(13, &answer.cap)?;
        a.put(14, &answer.qpn)?;
        a.put_handle(0, u64::from(answer.qp_handle))
    }
}
