//! Making, changing and destroying the objects of EFA devices: completion queues, queue pairs, address handles. Arguments are
//! typed here; decoding the common part of them is in [`crate::uverbs`].

use ibv_core::Access;

use crate::efa::abi::{self, cq_flag, qp_flag};
use crate::efa::cq::{Cq, CqLayout};
use crate::efa::limits::Limits;
use crate::efa::pages::DeviceMemory;
use crate::efa::qp::{Qp, QpFacts, Ring, Service};
use crate::efa::query::{MAX_CQE, MAX_MR};
use crate::efa::requester::RNR_FOREVER;
use crate::efa::transition::{Refused, check};
use crate::efa::wqe::{PLAIN_REQUEST, RECEIVE_PIECE, WIDE_REQUEST};
use crate::host::Host;
use crate::mlx5::transition::{QpState, mask};
use crate::uverbs::Errno;
use crate::uverbs::abi::{CreateAh, CreateCqResp, CreateQpResp, DestroyCqResp, ModifyQp, QpCap, QueryQpResp};
use crate::uverbs::objects::{NewCq, NewQp, NewRegion, OPTIONAL_ACCESS};

/// `IB_QPT_DRIVER` and datagrams, as verbs numbers the types; and the driver's own number of SRD.
const QPT_DRIVER: u8 = 0xff;
const QPT_UD: u8 = 4;
const DRIVER_SRD: u32 = 0;

impl Host {
    /// Makes a completion queue with its memory.
    pub fn create_efa_cq(
        &mut self,
        context: u32,
        new: NewCq,
        driver: &abi::CreateCq,
    ) -> Result<(CreateCqResp, abi::CreateCqResp), Errno> {
        let limits = &self.device(context)?.efa;
        check_cq(limits, &new, driver)?;
        let opened = self.context(context)?;
        if new.channel.is_some_and(|fd| opened.channel(fd).is_none()) {
            return Err(Errno::INVAL);
        }
        let layout = CqLayout {
            entries: new.cqe.next_power_of_two(),
            entry_size: driver.cq_entry_size as usize,
            rings: driver.num_sub_cqs,
        };
        let len = layout.entries as usize * layout.entry_size * usize::from(layout.rings);
        let memory = opened.memory()?;
        let block = memory.allocate(len).ok_or(Errno::NOMEM)?;
        let doorbell = match driver.flags & cq_flag::COMPLETION_CHANNEL {
            0 => None,
            _ => Some(memory.allocate_doorbell().ok_or(Errno::NOMEM)?),
        };
        let mut answer =
            abi::CreateCqResp { q_mmap_key: block.key, q_mmap_size: block.len as u64, ..Default::default() };
        if let Some(doorbell) = &doorbell {
            answer.comp_mask = abi::CQ_RESP_DB_OFF;
            (answer.db_off, answer.db_mmap_key) = (doorbell.offset, doorbell.key);
        }
        let mut cq = Cq::new(context, layout, block, doorbell);
        (cq.user_handle, cq.channel) = (new.user_handle, new.channel);
        let cq_handle = self.efa.cqs.insert(cq);
        answer.cq_idx = cq_handle as u16;
        Ok((CreateCqResp { cq_handle, cqe: layout.entries }, answer))
    }

    /// Destroys a completion queue; answers how many of its events the program has read.
    pub fn destroy_efa_cq(&mut self, context: u32, cqn: u32) -> Result<DestroyCqResp, Errno> {
        self.check_efa_cq(context, cqn)?;
        if self.efa.qps.values().any(|q| q.send_cq.0 == cqn || q.receive_cq.0 == cqn) {
            return Err(Errno::BUSY);
        }
        let mut cq = self.efa.cqs.remove(cqn).ok_or(Errno::INVAL)?;
        cq.tell_rung(cqn, &mut self.engine.shared.trace);
        let opened = self.context(context)?;
        let unread = cq.channel.and_then(|fd| opened.channel(fd)).map_or(0, |c| c.take_back(cq.user_handle));
        let memory = opened.memory()?;
        memory.free(&cq.block);
        cq.doorbell.iter().for_each(|d| memory.free_doorbell(d));
        Ok(DestroyCqResp { comp_events_reported: cq.events.saturating_sub(unread), async_events_reported: 0 })
    }

    fn check_efa_cq(&self, context: u32, cqn: u32) -> Result<(), Errno> {
        match self.efa.cqs.get(cqn) {
            Some(cq) if cq.context == context => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    /// Makes a queue pair with its memory.
    pub fn create_efa_qp(
        &mut self,
        context: u32,
        new: NewQp,
        driver: &abi::CreateQp,
    ) -> Result<(CreateQpResp, abi::CreateQpResp), Errno> {
        let service = match new.kind {
            QPT_DRIVER if driver.driver_qp_type == DRIVER_SRD => Service::Srd,
            QPT_UD => Service::Ud,
            _ => return Err(Errno::OPNOTSUPP),
        };
        self.check_pd(context, new.pd)?;
        self.check_efa_cq(context, new.send_cq)?;
        self.check_efa_cq(context, new.receive_cq)?;
        let limits = &self.device(context)?.efa;
        let sizes = check_qp(limits, &new, driver)?;
        let max_batch = limits.max_batch(sizes[0]);
        let qpn = self.efa.free_qpn(self.engine.shared.fabric.slot()).ok_or(Errno::NOMEM)?;
        let opened = self.context(context)?;
        let device = opened.device;
        let (send, receive) = rings(opened.memory()?, sizes)?;
        let facts = QpFacts { context, device, pd: new.pd, service };
        let mut qp = Qp::new(qpn, facts, send, receive);
        qp.max_batch = max_batch;
        // Queue pairs take turns with the rings of a completion queue.
        let ring = |cqn: u32| self.efa.cqs.get(cqn).map_or(0, |cq| qpn % cq.rings());
        qp.send_cq = (new.send_cq, ring(new.send_cq));
        qp.receive_cq = (new.receive_cq, ring(new.receive_cq));
        qp.unsolicited = driver.flags & qp_flag::UNSOLICITED_WRITE_RECV != 0;
        qp.attr.rnr_retry = RNR_FOREVER;
        (qp.user_handle, qp.all_signalled) = (new.user_handle, new.all_signalled);
        let cap = new.cap;
        qp.caps = [cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data];
        let answer = describe_rings(&qp);
        self.efa.qps.add(qpn, qp);
        let qpn = u32::from(qpn);
        Ok((CreateQpResp { qp_handle: qpn, qpn, cap, reserved: 0 }, answer))
    }

    /// Destroys a queue pair; answers how many of its asynchronous events the program has read.
    pub fn destroy_efa_qp(&mut self, context: u32, handle: u32) -> Result<u32, Errno> {
        let qpn = self.efa_qp(context, handle)?.qpn;
        let mut qp = self.efa.qps.remove(&qpn).ok_or(Errno::INVAL)?;
        qp.tell_rung(&mut self.engine.shared.trace);
        self.efa.forget(qpn, &mut self.engine.shared);
        self.send_events();
        let opened = self.context(context)?;
        let unread = opened.async_channel.as_mut().map_or(0, |c| c.take_back(qp.user_handle));
        let memory = opened.memory()?;
        for ring in qp.send.iter().chain(&qp.receive) {
            memory.free(&ring.block);
            memory.free_doorbell(&ring.doorbell);
        }
        Ok(qp.async_events.saturating_sub(unread))
    }

    fn efa_qp(&mut self, context: u32, handle: u32) -> Result<&mut Qp, Errno> {
        let qpn = u16::try_from(handle).map_err(|_| Errno::INVAL)?;
        self.efa.qps.get_mut(&qpn).filter(|q| q.context == context).ok_or(Errno::INVAL)
    }

    /// Changes a queue pair.
    pub fn modify_efa_qp(&mut self, context: u32, new: &ModifyQp) -> Result<(), Errno> {
        let retries = self.device(context)?.efa.rnr_retry;
        let qp = self.efa_qp(context, new.qp_handle)?;
        let (qpn, from, service) = (qp.qpn, qp.state, qp.service);
        let has = |bit| new.attr_mask & bit != 0;
        let to = match has(mask::STATE) {
            false => from,
            true => QpState::from_code(new.qp_state).ok_or(Errno::INVAL)?,
        };
        check(from, to, new.attr_mask, retries && service == Service::Srd).map_err(|refused| {
            crate::log::debug(|| format!("queue pair {qpn:#x}: {refused}"));
            if matches!(refused, Refused::Unknown(_)) { Errno::OPNOTSUPP } else { Errno::INVAL }
        })?;
        let wrong = has(mask::CUR_STATE) && new.cur_qp_state != from as u8
            || has(mask::PORT) && new.port_num != 1
            || has(mask::PKEY_INDEX) && new.pkey_index != 0
            || has(mask::RNR_RETRY) && new.rnr_retry > RNR_FOREVER;
        if wrong {
            return Err(Errno::INVAL);
        }
        let shared = &mut self.engine.shared;
        if to == QpState::Reset {
            self.efa.forget(qpn, shared);
        }
        let qp = self.efa.qps.get_mut(&qpn).ok_or(Errno::INVAL)?;
        // What was rung before belongs to the old state.
        qp.fetch(shared);
        qp.set_state(to, shared);
        if to == QpState::Reset {
            qp.attr.rnr_retry = RNR_FOREVER;
        }
        set_attributes(qp, new);
        if to == QpState::Error {
            self.efa.drop_landings(qpn, shared);
        }
        Ok(())
    }

    /// Answers `QUERY_QP`.
    pub fn query_efa_qp(&mut self, context: u32, handle: u32) -> Result<QueryQpResp, Errno> {
        let qp = self.efa_qp(context, handle)?;
        let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data] = qp.caps;
        Ok(QueryQpResp {
            cap: QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data },
            qkey: qp.attr.qkey,
            sq_psn: qp.attr.sq_psn,
            pkey_index: qp.attr.pkey_index,
            qp_state: qp.state as u8,
            cur_qp_state: qp.state as u8,
            port_num: qp.attr.port,
            rnr_retry: qp.attr.rnr_retry,
            sq_sig_all: u8::from(qp.all_signalled),
            ..Default::default()
        })
    }

    /// EFA knows fewer rights, and each only where the operation exists; optional flags may be ignored.
    pub(crate) fn check_efa_region(&self, context: u32, new: &NewRegion) -> Result<(), Errno> {
        let limits = &self.device(context)?.efa;
        let right = |on, right| if on { right } else { Access::empty() };
        let known = Access::LOCAL_WRITE
            | right(limits.read, Access::REMOTE_READ)
            | right(limits.write, Access::REMOTE_WRITE);
        if new.access & !OPTIONAL_ACCESS & !known.bits() != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if self.engine.shared.regions.len() >= MAX_MR as usize - 2 {
            return Err(Errno::NOMEM);
        }
        Ok(())
    }

    /// Sends the events of EFA's completion queues that are due; true if there were any, or may be soon.
    pub(crate) fn send_efa_events(&mut self) -> bool {
        let mut any = false;
        let contexts = &mut self.contexts;
        self.efa.cqs.tell_alert(|cq| {
            let context = contexts.get_mut(&cq.context);
            let Some(channel) = cq.channel.and_then(|fd| context?.channel(fd)) else { return };
            any |= cq.is_patient();
            if cq.take_event(channel.has_unread()) {
                any = true;
                channel.send(&cq.user_handle.to_ne_bytes());
                cq.events += 1;
            }
        });
        any
    }

    /// A context closes: its objects go.
    pub(crate) fn close_efa(&mut self, context: u32) {
        let qpns: Vec<u16> = self.efa.qps.values().filter(|q| q.context == context).map(|q| q.qpn).collect();
        for qpn in qpns {
            self.efa.qps.remove(&qpn);
            self.efa.forget(qpn, &mut self.engine.shared);
        }
        self.efa.cqs.remove_context(context);
        let Some(device) = self.contexts.get(&context).map(|c| c.device) else { return };
        for handle in self.addresses.values().filter(|a| a.context == context) {
            self.efa.addresses.remove(device, &handle.to.dgid, handle.pd);
        }
    }

    /// Makes the device's side of an address handle; answers its number.
    pub fn create_efa_ah(&mut self, context: u32, to: &CreateAh) -> Result<abi::CreateAhResp, Errno> {
        let device = self.context(context)?.device;
        if to.is_global == 0 || to.dgid == [0; 16] {
            return Err(Errno::INVAL);
        }
        let number = self.efa.addresses.insert(device, to.dgid, to.pd_handle).ok_or(Errno::NOMEM)?;
        Ok(abi::CreateAhResp { efa_address_handle: number, ..Default::default() })
    }
}

fn check_cq(limits: &Limits, new: &NewCq, driver: &abi::CreateCq) -> Result<(), Errno> {
    let known = cq_flag::COMPLETION_CHANNEL | cq_flag::SGID | cq_flag::LONG_REQUEST_ID;
    if driver.comp_mask != 0 || driver.flags & !known != 0 {
        return Err(Errno::INVAL);
    }
    if driver.flags & cq_flag::SGID != 0 && !limits.sender_gid
        || driver.flags & cq_flag::COMPLETION_CHANNEL != 0 && !limits.notifications
        || new.flags != 0
    {
        return Err(Errno::OPNOTSUPP);
    }
    let fits = new.cqe >= 1 && new.cqe <= MAX_CQE && Limits::takes_entry(driver.cq_entry_size);
    let rings = driver.num_sub_cqs == limits.sub_cqs;
    if fits && rings && new.vector == 0 { Ok(()) } else { Err(Errno::INVAL) }
}

/// Entries and bytes of an entry, of the send and of the receive queue.
type Sizes = [(u32, usize); 2];

fn check_qp(limits: &Limits, new: &NewQp, driver: &abi::CreateQp) -> Result<Sizes, Errno> {
    let known = qp_flag::UNSOLICITED_WRITE_RECV | qp_flag::LONG_REQUEST_ID;
    if new.srq.is_some() || driver.comp_mask != 0 || driver.flags & !known != 0 {
        return Err(Errno::INVAL);
    }
    if driver.flags & qp_flag::UNSOLICITED_WRITE_RECV != 0 && !limits.unsolicited
        || driver.flags & qp_flag::LONG_REQUEST_ID != 0 && !limits.long_ids
    {
        return Err(Errno::OPNOTSUPP);
    }
    let (cap, requests) = (&new.cap, new.cap.max_send_wr);
    let request = driver.sq_ring_size.checked_div(requests).unwrap_or(PLAIN_REQUEST as u32) as usize;
    let wide = if limits.wide_requests { WIDE_REQUEST } else { PLAIN_REQUEST };
    let pieces = driver.rq_ring_size / RECEIVE_PIECE as u32;
    let right = driver.sq_ring_size <= limits.max_llq_size()
        && (request == PLAIN_REQUEST || request == wide)
        && requests as usize * request == driver.sq_ring_size as usize
        && (requests == 0 || requests.is_power_of_two())
        && (requests == 0 || requests >= u32::from(limits.min_sq_wr))
        && pieces <= limits.max_rq_wr.next_power_of_two()
        && (pieces == 0 || pieces.is_power_of_two())
        && pieces as usize * RECEIVE_PIECE == driver.rq_ring_size as usize
        && cap.max_send_sge <= u32::from(limits.max_sq_sge)
        && cap.max_recv_sge <= u32::from(limits.max_rq_sge)
        && cap.max_inline_data <= u32::from(limits.inline().1);
    if right { Ok([(requests, request), (pieces, RECEIVE_PIECE)]) } else { Err(Errno::INVAL) }
}

fn rings(memory: &mut DeviceMemory, [send, receive]: Sizes) -> Result<(Option<Ring>, Option<Ring>), Errno> {
    let send = ring(memory, send)?;
    match ring(memory, receive) {
        Ok(receive) => Ok((send, receive)),
        Err(errno) => {
            if let Some(ring) = send {
                memory.free(&ring.block);
                memory.free_doorbell(&ring.doorbell);
            }
            Err(errno)
        }
    }
}

fn ring(memory: &mut DeviceMemory, (entries, entry_size): (u32, usize)) -> Result<Option<Ring>, Errno> {
    if entries == 0 {
        return Ok(None);
    }
    let block = memory.allocate(entries as usize * entry_size).ok_or(Errno::NOMEM)?;
    let Some(doorbell) = memory.allocate_doorbell() else {
        memory.free(&block);
        return Err(Errno::NOMEM);
    };
    Ok(Some(Ring { block, doorbell, entries, entry_size }))
}

/// Where the program finds the rings.
fn describe_rings(qp: &Qp) -> abi::CreateQpResp {
    let mut answer = abi::CreateQpResp {
        send_sub_cq_idx: qp.send_cq.1,
        recv_sub_cq_idx: qp.receive_cq.1,
        ..Default::default()
    };
    if let Some(send) = &qp.send {
        answer.llq_desc_mmap_key = send.block.key;
        (answer.sq_db_offset, answer.sq_db_mmap_key) = (send.doorbell.offset, send.doorbell.key);
    }
    if let Some(receive) = &qp.receive {
        (answer.rq_mmap_key, answer.rq_mmap_size) = (receive.block.key, receive.block.len as u64);
        (answer.rq_db_offset, answer.rq_db_mmap_key) = (receive.doorbell.offset, receive.doorbell.key);
    }
    answer
}

fn set_attributes(qp: &mut Qp, new: &ModifyQp) {
    let has = |bit| new.attr_mask & bit != 0;
    let attr = &mut qp.attr;
    if has(mask::PKEY_INDEX) {
        attr.pkey_index = new.pkey_index;
    }
    if has(mask::PORT) {
        attr.port = new.port_num;
    }
    if has(mask::QKEY) {
        attr.qkey = new.qkey;
    }
    if has(mask::SQ_PSN) {
        attr.sq_psn = new.sq_psn;
    }
    if has(mask::RNR_RETRY) {
        attr.rnr_retry = new.rnr_retry;
    }
}
