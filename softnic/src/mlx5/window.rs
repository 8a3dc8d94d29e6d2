//! Memory windows of mlx5: keys that a queue pair binds to a part of a region, and that are taken back without a command.
//! What an access through a key may do is in `region`.
//!
//! Layouts: `mlx5_wqe_umr_ctrl_seg`, `mlx5_wqe_mkey_context_seg` and `mlx5_wqe_umr_klm_seg` of rdma-core's `mlx5dv.h`.

use ibv_core::{Access, WcStatus};
use provider_mock::model;

use crate::mlx5::qp::{Qp, Shared};
use crate::mlx5::region::{Region, Regions};
use crate::mlx5::requester::{Outstanding, done};
use crate::mlx5::wqe::{Control, DataSegment, SendWqe, be32, be64, data_segment};

/// `MLX5_WQE_MKEY_CONTEXT_FREE`: the window is taken back.
const FREE: u8 = 1 << 6;
/// The queue-pair field of a window that is open to all of its domain.
const ANY_QUEUE_PAIR: u32 = 0xff_ffff;
/// `IBV_ACCESS_MW_BIND`.
pub const MW_BIND: u32 = 1 << 4;

/// What a window is, beside a key with a range and rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Whether it is of type 2: bound once at a time, and open to one queue pair.
    pub second: bool,
    /// Key of the region that it is bound to.
    pub parent: Option<u32>,
    /// The queue pair that alone may use it.
    pub qpn: Option<u32>,
}

/// A request to bind a window, or to take it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bind {
    /// The window's key so far; its tag does not count.
    pub key: u32,
    /// The tag of its next key.
    pub tag: u8,
    /// The queue pair that alone may use it.
    pub qpn: Option<u32>,
    /// Rights.
    pub access: Access,
    /// First address by which it is reached.
    pub start: u64,
    /// The part of a region; `None` takes the window back.
    pub part: Option<DataSegment>,
}

impl Bind {
    /// Reads a key-changing request; `None` if it is too short.
    pub fn decode(control: &Control, bytes: &[u8]) -> Option<Self> {
        let context = bytes.get(64..128)?;
        let (qpn_key, len) = (be32(&context[4..]), be64(&context[24..]));
        let qpn = qpn_key >> 8;
        let part = match context[0] & FREE != 0 || len == 0 {
            true => None,
            false => Some(DataSegment { len: len.min(1 << 31) as u32, ..data_segment(bytes.get(128..144)?) }),
        };
        Some(Self {
            key: u32::from_be_bytes(control.imm),
            tag: qpn_key as u8,
            qpn: (qpn != ANY_QUEUE_PAIR).then_some(qpn),
            access: access(context[2]),
            start: be64(&context[16..]),
            part,
        })
    }
}

/// `MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_*` as rights.
fn access(flags: u8) -> Access {
    let pairs = [
        (3, Access::LOCAL_WRITE),
        (4, Access::REMOTE_READ),
        (5, Access::REMOTE_WRITE),
        (6, Access::REMOTE_ATOMIC),
    ];
    pairs
        .iter()
        .filter(|(bit, _)| flags >> bit & 1 == 1)
        .fold(Access::empty(), |all, (_, right)| all | *right)
}

/// A window can't be bound, or taken back, like this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

impl Regions {
    /// Adds a window that is not bound; answers its key.
    pub fn insert_window(&mut self, context: u32, pd: u32, second: bool) -> u32 {
        let facts = model::Region { lkey: 0, rkey: 0, pd, base: 0, len: 0, access: Access::empty() };
        let window = Some(Window { second, parent: None, qpn: None });
        self.insert(Region { context, facts, base: 0, mapping: None, window })
    }

    /// Binds a window for queue pair `qpn`, or takes it back.
    pub fn bind(&mut self, bind: &Bind, qpn: u32, pd: u32) -> Result<(), Refused> {
        let (facts, window) = self.window(bind.key).ok_or(Refused)?;
        let foreign = bind.qpn.is_some_and(|n| n != qpn) || facts.pd != pd;
        let taken = window.second && window.parent.is_some();
        let bound = match &bind.part {
            _ if foreign => return Err(Refused),
            None if window.second && (window.qpn != Some(qpn) || !taken) => return Err(Refused),
            None => (model::Region { len: 0, access: Access::empty(), ..facts }, 0, None),
            Some(_) if taken => return Err(Refused),
            Some(part) => {
                let base = self.part(part, bind.access, pd).ok_or(Refused)?;
                let len = u64::from(part.len);
                (model::Region { base: bind.start, len, access: bind.access, ..facts }, base, Some(part.lkey))
            }
        };
        self.set_window(bind.key, bind.tag, bound, bind.qpn);
        Ok(())
    }

    /// Takes a window back that queue pair `qpn` bound: its key is dead.
    pub fn invalidate(&mut self, key: u32, qpn: u32, pd: u32) -> Result<(), Refused> {
        self.get(key).filter(|r| r.window.is_some_and(|w| w.second)).ok_or(Refused)?;
        let bind =
            Bind { key, tag: key as u8, qpn: Some(qpn), access: Access::empty(), start: 0, part: None };
        self.bind(&bind, qpn, pd)
    }

    /// A queue pair goes, and with it what it bound: windows of type 2 belong to it, and another one may get its number.
    pub fn unbind_windows_of(&mut self, qpn: u32) {
        let bound = |r: &&(u8, Region)| r.1.window.is_some_and(|w| w.second && w.qpn == Some(qpn));
        let keys: Vec<(u32, u32)> =
            self.slots.values().filter(bound).map(|(_, r)| (r.facts.rkey, r.facts.pd)).collect();
        for (key, pd) in keys {
            // It is bound, and by this queue pair: there is nothing to refuse.
            let _ = self.invalidate(key, qpn, pd);
        }
    }

    /// Whether a queue pair may use a key at all: windows of type 2 are open to one alone.
    pub fn is_open_to(&self, key: u32, qpn: u32) -> bool {
        let owner = self.get(key).and_then(|r| r.window).and_then(|w| w.qpn);
        owner.is_none_or(|n| n == qpn)
    }

    /// Whether windows are bound to a region.
    pub fn has_windows(&self, key: u32) -> bool {
        self.slots.values().any(|(_, r)| r.window.is_some_and(|w| w.parent == Some(key)))
    }

    /// The present key of a context's window in a slot.
    pub fn window_of_slot(&self, slot: u32, context: u32) -> Option<u32> {
        let (tag, region) = self.slots.get(&slot)?;
        (region.window.is_some() && region.context == context).then(|| model::key(slot, *tag))
    }

    fn window(&self, key: u32) -> Option<(model::Region, Window)> {
        let (_, region) = self.slots.get(&model::key_index(key))?;
        region.window.map(|window| (region.facts, window))
    }

    /// Address in this process of a part of a region that allows windows with these rights.
    fn part(&self, part: &DataSegment, access: Access, pd: u32) -> Option<u64> {
        let parent = self.get(part.lkey).filter(|r| r.window.is_none() && r.facts.pd == pd)?;
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let rights = parent.facts.access;
        if rights.bits() & MW_BIND == 0 || writes && !rights.contains(Access::LOCAL_WRITE) {
            return None;
        }
        let offset = part.addr.checked_sub(parent.facts.base)?;
        let inside = offset.checked_add(u64::from(part.len)).is_some_and(|end| end <= parent.facts.len);
        inside.then(|| parent.base.wrapping_add(offset))
    }

    fn set_window(
        &mut self,
        key: u32,
        tag: u8,
        (mut facts, base, parent): (model::Region, u64, Option<u32>),
        qpn: Option<u32>,
    ) {
        let slot = model::key_index(key);
        let Some((slot_tag, region)) = self.slots.get_mut(&slot) else { return };
        let new = model::key(slot, tag);
        (facts.lkey, facts.rkey) = (new, new);
        (*slot_tag, region.facts, region.base) = (tag, facts, base);
        if let Some(window) = &mut region.window {
            window.parent = parent;
            window.qpn = qpn.filter(|_| window.second && parent.is_some());
        }
        self.tags.insert(slot, tag);
    }
}

impl Qp {
    /// Carries a bind out; it completes in its turn.
    pub(crate) fn bind_window(&self, wqe: &SendWqe, shared: &mut Shared) -> Result<Outstanding, WcStatus> {
        let bind = wqe.bind.ok_or(WcStatus::LOC_QP_OP_ERR)?;
        shared.regions.bind(&bind, self.qpn, self.pd).map_err(|Refused| WcStatus::MW_BIND_ERR)?;
        Ok(done(wqe))
    }
}
