//! The older commands: by number, as `INVOKE_WRITE` and `write(2)` carry them. The newer methods are in `ioctl`.

use std::os::fd::RawFd;

use bytemuck::Pod;

use crate::description::{Abi, Kind, Uar};
use crate::efa::abi as efa;
use crate::efa::query as efa_query;
use crate::host::Host;
use crate::mlx5::abi as mlx5;
use crate::mlx5::uar::STATIC_DYNAMIC_PAGES;
use crate::mlx5::wqe::MAX_DESCRIPTOR;
use crate::uverbs::abi::{self, cmd};
use crate::uverbs::call::{Call, Output, read_input};
use crate::uverbs::objects::{Backing, NewCq, NewQp, NewRegion};
use crate::uverbs::{Errno, query};

/// Sizes of the common input and output of each command of `write(2)`, whose headers don't say where the driver's part starts.
fn core_sizes(command: u32) -> Option<(usize, usize)> {
    fn sizes<I: Pod, O: Pod>() -> Option<(usize, usize)> {
        Some((size_of::<I>(), size_of::<O>()))
    }
    match command {
        cmd::GET_CONTEXT => sizes::<u64, abi::GetContextResp>(),
        cmd::QUERY_DEVICE => sizes::<u64, abi::QueryDeviceResp>(),
        cmd::QUERY_PORT => sizes::<abi::QueryPort, abi::QueryPortResp>(),
        cmd::ALLOC_PD => sizes::<u64, abi::AllocPdResp>(),
        cmd::DEALLOC_PD => sizes::<abi::DeallocPd, ()>(),
        cmd::CREATE_AH => sizes::<abi::CreateAh, abi::CreateAhResp>(),
        cmd::DESTROY_AH => sizes::<abi::DestroyAh, ()>(),
        cmd::REG_MR => sizes::<abi::RegMr, abi::RegMrResp>(),
        cmd::REREG_MR => sizes::<abi::ReregMr, abi::ReregMrResp>(),
        cmd::DEREG_MR => sizes::<abi::DeregMr, ()>(),
        cmd::ALLOC_MW => sizes::<abi::AllocMw, abi::AllocMwResp>(),
        cmd::DEALLOC_MW => sizes::<abi::DeallocMw, ()>(),
        cmd::CREATE_COMP_CHANNEL => sizes::<u64, abi::CreateCompChannelResp>(),
        cmd::CREATE_CQ => sizes::<abi::CreateCq, abi::CreateCqResp>(),
        cmd::RESIZE_CQ => sizes::<abi::ResizeCq, abi::ResizeCqResp>(),
        cmd::DESTROY_CQ => sizes::<abi::DestroyCq, abi::DestroyCqResp>(),
        cmd::CREATE_QP => sizes::<abi::CreateQp, abi::CreateQpResp>(),
        cmd::QUERY_QP => sizes::<abi::QueryQp, abi::QueryQpResp>(),
        cmd::MODIFY_QP => sizes::<abi::ModifyQp, ()>(),
        cmd::DESTROY_QP => sizes::<abi::DestroyQp, abi::DestroyQpResp>(),
        cmd::CREATE_SRQ => sizes::<abi::CreateSrq, abi::CreateSrqResp>(),
        cmd::MODIFY_SRQ => sizes::<abi::ModifySrq, ()>(),
        cmd::QUERY_SRQ => sizes::<abi::QuerySrq, abi::QuerySrqResp>(),
        cmd::DESTROY_SRQ => sizes::<abi::DestroySrq, abi::DestroySrqResp>(),
        _ => None,
    }
}

impl Host {
    /// A command by `write(2)` of `len` bytes at `addr`.
    pub fn write(&mut self, context: u32, addr: u64, len: usize) -> Result<(), Errno> {
        let bytes = read_input(addr, len)?;
        let header: abi::CmdHdr = abi::decode(&bytes);
        let body = bytes.get(size_of::<abi::CmdHdr>()..).ok_or(Errno::INVAL)?;
        let command = header.command & 0xff;
        if header.command & cmd::EXTENDED != 0 {
            let call = extended_call(&header, body)?;
            return self.command(context, command | cmd::EXTENDED, &call);
        }
        let call = plain_call(command, &header, body)?;
        self.command(context, command, &call)
    }

    /// A command by number.
    pub fn command(&mut self, context: u32, command: u32, call: &Call) -> Result<(), Errno> {
        if let Some(errno) = self.engine.shared.faults.on_command() {
            return Err(Errno(errno));
        }
        let result = match takes_away(command) {
            true => self.dispatch(context, command, call),
            false => self.check_alive(context).and_then(|()| self.dispatch(context, command, call)),
        };
        crate::log::debug(|| format!("command {command:#x}: {result:?}"));
        result
    }

    fn dispatch(&mut self, context: u32, command: u32, call: &Call) -> Result<(), Errno> {
        const EX_QUERY_DEVICE: u32 = cmd::QUERY_DEVICE | cmd::EXTENDED;
        const EX_CREATE_CQ: u32 = cmd::CREATE_CQ | cmd::EXTENDED;
        const EX_CREATE_QP: u32 = cmd::CREATE_QP | cmd::EXTENDED;
        const EX_MODIFY_QP: u32 = cmd::MODIFY_QP | cmd::EXTENDED;
        match command {
            cmd::GET_CONTEXT => self.get_context(context, call),
            cmd::QUERY_DEVICE => call.output.put(&query::device(self.device(context)?)),
            EX_QUERY_DEVICE => self.query_device_ex(context, call),
            cmd::QUERY_PORT => {
                let number = call.input::<abi::QueryPort>().port_num;
                call.output.put(&query::port(self.port(context, u32::from(number))?))
            }
            cmd::ALLOC_PD => self.alloc_pd_call(context, call),
            cmd::DEALLOC_PD => self.dealloc_pd(context, call.input::<abi::DeallocPd>().pd_handle),
            cmd::CREATE_AH => self.create_ah(context, call),
            cmd::DESTROY_AH => self.destroy_ah(context, call.input::<abi::DestroyAh>().ah_handle),
            cmd::REG_MR => self.reg_mr_call(context, call),
            cmd::REREG_MR => self.rereg_mr_call(context, call),
            cmd::DEREG_MR => self.dereg_mr(context, call.input::<abi::DeregMr>().mr_handle),
            cmd::ALLOC_MW => self.alloc_mw(context, call),
            cmd::DEALLOC_MW => self.dealloc_mw(context, call.input::<abi::DeallocMw>().mw_handle),
            cmd::CREATE_COMP_CHANNEL => {
                let fd = self.context(context)?.open_channel()? as u32;
                call.output.put(&abi::CreateCompChannelResp { fd })
            }
            cmd::CREATE_CQ => self.create_cq_call(context, call),
            EX_CREATE_CQ => self.create_cq_ex(context, call),
            cmd::RESIZE_CQ => self.resize_cq_call(context, call),
            cmd::EX_MODIFY_CQ => self.modify_cq(context, &call.input()),
            cmd::DESTROY_CQ => {
                let answer = self.destroy_cq(context, call.input::<abi::DestroyCq>().cq_handle)?;
                call.output.put(&answer)
            }
            cmd::CREATE_QP => self.create_qp_call(context, call),
            EX_CREATE_QP => self.create_qp_ex(context, call),
            cmd::QUERY_QP => {
                let answer = self.query_qp(context, call.input::<abi::QueryQp>().qp_handle)?;
                call.output.put(&answer)
            }
            cmd::MODIFY_QP | EX_MODIFY_QP => self.modify_qp_call(context, call, command & cmd::EXTENDED != 0),
            cmd::DESTROY_QP => {
                let events_reported = self.destroy_qp(context, call.input::<abi::DestroyQp>().qp_handle)?;
                call.output.put(&abi::DestroyQpResp { events_reported })
            }
            cmd::CREATE_SRQ => self.create_srq_call(context, call),
            cmd::MODIFY_SRQ => self.modify_srq(context, &call.input()),
            cmd::QUERY_SRQ => {
                let answer = self.query_srq(context, call.input::<abi::QuerySrq>().srq_handle)?;
                call.output.put(&answer)
            }
            cmd::DESTROY_SRQ => {
                let answer = self.destroy_srq(context, call.input::<abi::DestroySrq>().srq_handle)?;
                call.output.put(&answer)
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Which kind of device a context is of.
    pub(crate) fn kind(&self, context: u32) -> Result<Kind, Errno> {
        Ok(self.device(context)?.kind)
    }

    /// A port by number.
    pub(crate) fn port(
        &self,
        context: u32,
        number: u32,
    ) -> Result<&crate::description::PortDescription, Errno> {
        let index = (number as usize).checked_sub(1).ok_or(Errno::INVAL)?;
        self.device(context)?.ports.get(index).ok_or(Errno::INVAL)
    }

    fn get_context(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        self.get_driver_context(context, call)?;
        let async_fd = self.context(context)?.open_async()? as u32;
        call.output.put(&abi::GetContextResp { async_fd, num_comp_vectors: 1 })
    }

    /// The driver's part of opening: register pages and limits.
    pub(crate) fn get_driver_context(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        if self.kind(context)? == Kind::Efa {
            let known = call.driver::<efa::AllocUcontext>().supported_caps;
            return call.driver_output.put(&efa_query::ucontext(self.device(context)?, known)?);
        }
        let request: mlx5::AllocUcontextReqV2 = call.driver();
        if request.flags & mlx5::UCTX_DEVX != 0 {
            // No DEVX: libmlx5 asks again without it.
            return Err(Errno::INVAL);
        }
        let wanted = self.device(context)?.uar;
        let fixed = wanted == Uar::Static
            || self.description.abi == Abi::Write
            || request.lib_caps & mlx5::LIB_CAP_DYN_UAR == 0;
        let ports = self.device(context)?.ports.len() as u16;
        let registers =
            if fixed { self.context(context)?.fix_registers(request.total_num_bfregs) } else { 0 };
        call.driver_output.put(&ucontext(registers, ports))
    }

    fn query_device_ex(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        let mut answer = query::device_ex(self.device(context)?);
        answer.response_length = call.output.len.min(size_of_val(&answer)) as u32;
        call.output.put(&answer)?;
        if self.kind(context)? == Kind::Efa {
            return call.driver_output.put(&efa_query::device_ex(self.device(context)?));
        }
        // `mlx5_ib_query_device_resp`: no offloads; only its length is said.
        let len = call.driver_output.len.min(104);
        let mut driver = [0u8; 104];
        driver[4..8].copy_from_slice(&(len as u32).to_ne_bytes());
        call.driver_output.put_bytes(&driver[..len])
    }

    fn alloc_pd_call(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        let pd_handle = self.alloc_pd(context);
        match self.kind(context)? {
            Kind::Mlx5 => call.driver_output.put(&mlx5::AllocPdResp { pdn: pd_handle })?,
            Kind::Efa => {
                let pdn = pd_handle as u16;
                call.driver_output.put(&efa::AllocPdResp { pdn, ..Default::default() })?;
            }
        }
        call.output.put(&abi::AllocPdResp { pd_handle })
    }

    fn reg_mr_call(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        let request: abi::RegMr = call.input();
        let new = NewRegion {
            pd: request.pd_handle,
            backing: Backing::Address(request.start),
            len: request.length,
            iova: request.hca_va,
            access: request.access_flags,
        };
        let key = self.reg_mr(context, new)?;
        call.output.put(&abi::RegMrResp { mr_handle: key, lkey: key, rkey: key })
    }

    fn create_cq_call(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        let request: abi::CreateCq = call.input();
        let new = NewCq {
            user_handle: request.user_handle,
            cqe: request.cqe,
            channel: channel(request.comp_channel),
            vector: request.comp_vector,
            flags: 0,
        };
        let answer = self.create_cq_driver(context, new, call)?;
        call.output.put(&answer)
    }

    fn create_cq_ex(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        let request: abi::ExCreateCq = call.input();
        let new = NewCq {
            user_handle: request.user_handle,
            cqe: request.cqe,
            channel: channel(request.comp_channel),
            vector: request.comp_vector,
            flags: request.flags,
        };
        let base = self.create_cq_driver(context, new, call)?;
        let response_length = size_of::<abi::ExCreateCqResp>() as u32;
        call.output.put(&abi::ExCreateCqResp { base, comp_mask: 0, response_length })
    }

    pub(crate) fn create_cq_driver(
        &mut self,
        context: u32,
        new: NewCq,
        call: &Call,
    ) -> Result<abi::CreateCqResp, Errno> {
        if self.kind(context)? == Kind::Efa {
            let (answer, driver) = self.create_efa_cq(context, new, &call.driver())?;
            call.driver_output.put(&driver)?;
            return Ok(answer);
        }
        let cqn = self.create_cq(context, new, &call.driver())?;
        call.driver_output.put(&mlx5::CreateCqResp { cqn, reserved: 0 })?;
        Ok(abi::CreateCqResp { cq_handle: cqn, cqe: (new.cqe + 1).next_power_of_two() - 1 })
    }

    fn create_qp_call(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        let request: abi::CreateQp = call.input();
        let new = NewQp {
            user_handle: request.user_handle,
            pd: request.pd_handle,
            send_cq: request.send_cq_handle,
            receive_cq: request.recv_cq_handle,
            cap: request.cap,
            all_signalled: request.sq_sig_all != 0,
            kind: request.qp_type,
            srq: (request.is_srq != 0).then_some(request.srq_handle),
        };
        let answer = self.create_qp_driver(context, new, call)?;
        call.output.put(&answer)
    }

    fn create_qp_ex(&mut self, context: u32, call: &Call) -> Result<(), Errno> {
        let request: abi::ExCreateQp = call.input();
        if request.comp_mask != 0 || request.create_flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let new = NewQp {
            user_handle: request.user_handle,
            pd: request.pd_handle,
            send_cq: request.send_cq_handle,
            receive_cq: request.recv_cq_handle,
            cap: request.cap,
            all_signalled: request.sq_sig_all != 0,
            kind: request.qp_type,
            srq: (request.is_srq != 0).then_some(request.srq_handle),
        };
        let base = self.create_qp_driver(context, new, call)?;
        let response_length = size_of::<abi::ExCreateQpResp>() as u32;
        call.output.put(&abi::ExCreateQpResp { base, comp_mask: 0, response_length })
    }

    pub(crate) fn create_qp_driver(
        &mut self,
        context: u32,
        new: NewQp,
        call: &Call,
    ) -> Result<abi::CreateQpResp, Errno> {
        if self.kind(context)? == Kind::Efa {
            let (answer, driver) = self.create_efa_qp(context, new, &call.driver())?;
            call.driver_output.put(&driver)?;
            return Ok(answer);
        }
        let (qpn, driver) = self.create_qp(context, new, &call.driver())?;
        call.driver_output.put(&driver)?;
        Ok(abi::CreateQpResp { qp_handle: qpn, qpn, cap: new.cap, reserved: 0 })
    }

    fn modify_qp_call(&mut self, context: u32, call: &Call, extended: bool) -> Result<(), Errno> {
        self.modify_qp(context, &call.input())?;
        if extended {
            let response_length = size_of::<abi::ExModifyQpResp>() as u32;
            call.output.put(&abi::ExModifyQpResp { comp_mask: 0, response_length })?;
        }
        if self.kind(context)? == Kind::Efa {
            return Ok(());
        }
        let response_length = call.driver_output.len.min(size_of::<mlx5::ModifyQpResp>()) as u32;
        call.driver_output.put(&mlx5::ModifyQpResp { response_length, ..Default::default() })
    }
}

/// Commands that a failed device still carries out.
fn takes_away(command: u32) -> bool {
    matches!(
        command,
        cmd::DEALLOC_PD
            | cmd::DESTROY_AH
            | cmd::DEREG_MR
            | cmd::DEALLOC_MW
            | cmd::DESTROY_CQ
            | cmd::DESTROY_QP
            | cmd::DESTROY_SRQ
    )
}

fn channel(fd: i32) -> Option<RawFd> {
    (fd >= 0).then_some(fd)
}

/// `registers` are those on fixed pages; 0 says that pages are UAR objects.
fn ucontext(registers: u32, ports: u16) -> mlx5::AllocUcontextResp {
    mlx5::AllocUcontextResp {
        qp_tab_size: 1 << 18,
        bf_reg_size: 512,
        tot_bfregs: registers,
        cache_line_size: 64,
        max_sq_desc_sz: MAX_DESCRIPTOR as u16,
        max_rq_desc_sz: 512,
        max_send_wqebb: query::MAX_QP_WR,
        max_recv_wr: query::MAX_QP_WR,
        max_srq_recv_wr: query::MAX_QP_WR,
        num_ports: ports,
        response_length: size_of::<mlx5::AllocUcontextResp>() as u32,
        cqe_version: 1,
        // QUERY_DEVICE and CREATE_AH take the driver's part.
        cmds_supp_uhw: 3,
        eth_min_inline: mlx5::INLINE_MODE_NONE,
        log_uar_size: 12,
        num_uars_per_page: 1,
        num_dyn_bfregs: if registers != 0 { 2 * STATIC_DYNAMIC_PAGES as u32 } else { 0 },
        ..Default::default()
    }
}

fn plain_call(command: u32, header: &abi::CmdHdr, body: &[u8]) -> Result<Call, Errno> {
    let (core_in, core_out) = core_sizes(command).ok_or(Errno::OPNOTSUPP)?;
    let total = (usize::from(header.in_words) * 4).saturating_sub(size_of::<abi::CmdHdr>()).min(body.len());
    let (input, driver_input) = body[..total].split_at(core_in.min(total));
    let room = usize::from(header.out_words) * 4;
    let mut call = Call { input: input.to_vec(), driver_input: driver_input.to_vec(), ..Call::default() };
    if core_out != 0 {
        let addr = abi::decode::<u64>(input);
        call.output = Output { addr, len: core_out.min(room) };
        call.driver_output =
            Output { addr: addr.wrapping_add(core_out as u64), len: room.saturating_sub(core_out) };
    }
    Ok(call)
}

fn extended_call(header: &abi::CmdHdr, body: &[u8]) -> Result<Call, Errno> {
    let ex: abi::ExCmdHdr = abi::decode(body);
    let rest = body.get(size_of::<abi::ExCmdHdr>()..).ok_or(Errno::INVAL)?;
    let (core, driver) = (usize::from(header.in_words) * 8, usize::from(ex.provider_in_words) * 8);
    let input = rest.get(..core).ok_or(Errno::INVAL)?.to_vec();
    let driver_input = rest.get(core..core + driver).ok_or(Errno::INVAL)?.to_vec();
    let out = usize::from(header.out_words) * 8;
    let driver_output =
        Output { addr: ex.response.wrapping_add(out as u64), len: usize::from(ex.provider_out_words) * 8 };
    Ok(Call { input, driver_input, output: Output { addr: ex.response, len: out }, driver_output })
}
