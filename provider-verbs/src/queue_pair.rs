//! A reliable connection over plain verbs. Ids, credits and bounds are core's; building and publishing
//! are `work.rs`'s and `session.rs`'s.
#![allow(unsafe_code)]
//! # Safety
//! The extended part points into the queue pair that the first field owns, so it is used only while that
//! lives; the queue pair is destroyed before anything else here drops.

use crate::{
    create::{Created, Posting},
    session::{publish_list, publish_session},
    work::SendList,
};
use ibv_core::{
    Caps, Error, FromCore, IbvConfig, IbvPath, IbvQpInfo, IbvQueuePair, PostError, QpAttributes, QpCore,
    QpState, RecvRequest, Transport, WorkRequest,
    verbs::{
        LocalEndpoint, Qp, RankedGid, Receives,
        rc::{QpAttrMask, attr_at_init},
        state::{rc_attributes, rc_to_init, rc_to_rts},
    },
};
use ibv_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
    ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_state,
};
use std::ptr::NonNull;

/// The queue pair of [`VerbsDomain`](crate::VerbsDomain).
///
/// The verbs object in it is nobody else's: whoever could exchange it, or change its state, would have two owners
/// for one queue pair, or a peer that `connect` never checked. What can be looked at is a method:
///
/// ```
/// fn look(qp: &provider_verbs::VerbsQueuePair) -> provider_verbs::Posting {
///     qp.posting()
/// }
/// ```
///
/// ```compile_fail,E0599
/// fn take(qp: &mut provider_verbs::VerbsQueuePair) {
///     let _ = qp.qp();
/// }
/// ```
///
/// ```compile_fail,E0616
/// fn take(qp: &mut provider_verbs::VerbsQueuePair) {
///     let _ = &mut qp.qp;
/// }
/// ```
#[derive(Debug)]
pub struct VerbsQueuePair {
    qp: Qp,
    ex: Option<NonNull<ibv_qp_ex>>,
    sends: SendList,
    receives: Receives,
    end: LocalEndpoint,
    access: u32,
    half_posted: Option<HalfPosted>,
    core: QpCore,
}

// SAFETY: the extended part is of the queue pair, which may be used from any thread, by one at a time.
unsafe impl Send for VerbsQueuePair {}

/// A batch that the library took in part; see [`VerbsQueuePair::half_posted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfPosted {
    /// The library's number for the request that it refused.
    pub errno: i32,
    /// Requests before that one, which the device had.
    pub taken: usize,
    /// Requests in the batch.
    pub of: usize,
    /// The rest could not even be flushed: the queue pair takes no more.
    pub lost: bool,
}

impl VerbsQueuePair {
    pub(crate) fn new(made: Created, end: LocalEndpoint, caps: &Caps, core: QpCore) -> Self {
        let config = core.config();
        // What was asked for, not what the device made of it: more is never used.
        let cap = ibv_qp_cap {
            max_send_wr: config.max_send_wr,
            max_send_sge: config.max_send_sge,
            max_inline_data: config.max_inline,
            ..ibv_qp_cap::default()
        };
        let mut access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        if caps.atomics.present() {
            access |= IBV_ACCESS_REMOTE_ATOMIC;
        }
        Self {
            qp: made.qp.of(&core),
            ex: made.ex,
            sends: SendList::new(&cap),
            receives: Receives::new(config),
            end,
            access,
            half_posted: None,
            core,
        }
    }

    /// How its requests are posted.
    pub fn posting(&self) -> Posting {
        if self.ex.is_some() { Posting::Builders } else { Posting::List }
    }

    /// The GID it uses, and why that one.
    pub fn gid(&self) -> Option<&RankedGid> {
        self.end.gid()
    }

    /// The batch that the library took in part, if that ever happened.
    ///
    /// `ibv_post_send` may refuse a request in the middle of a list, and has published those before it;
    /// nothing takes them back. Core never posts what a library has reason to refuse (sizes, slots and
    /// state are checked before), so this says that the device or the library is failing. The queue pair
    /// goes to the error state, the rest of the batch is posted there, and every request of the batch
    /// reports itself: the first ones as they ended, the rest as flushed. So `ring` answers `Ok`, no id is
    /// left without a completion, and this is where the cause is. With the extended interface it can not
    /// happen.
    ///
    /// If even that fails (`lost`), `ring` answers `Err` though some requests may have had an effect, and
    /// the queue pair takes no more; close it.
    pub fn half_posted(&self) -> Option<HalfPosted> {
        self.half_posted
    }

    fn config(&self) -> &IbvConfig {
        self.core.config()
    }

    fn post_list(&mut self) -> Result<(), PostError> {
        match publish_list(&mut self.qp, &mut self.sends, 0) {
            Ok(()) => Ok(()),
            Err((errno, 0)) => Err(PostError::Device(errno)),
            Err((errno, taken)) => self.flush_the_rest(errno, taken),
        }
    }

    #[cold]
    fn flush_the_rest(&mut self, errno: i32, taken: usize) -> Result<(), PostError> {
        let failed =
            self.enter_error().is_err() || publish_list(&mut self.qp, &mut self.sends, taken).is_err();
        self.half_posted = Some(HalfPosted { errno, taken, of: self.sends.len(), lost: failed });
        if failed { Err(PostError::Device(errno)) } else { Ok(()) }
    }

    /// The errno that makes further posts pointless.
    #[inline]
    fn lost(&self) -> Result<(), PostError> {
        match self.half_posted {
            Some(HalfPosted { errno, lost: true, .. }) => Err(PostError::Device(errno)),
            _ => Ok(()),
        }
    }
}

impl IbvQueuePair for VerbsQueuePair {
    #[inline]
    fn core(&self) -> &QpCore {
        &self.core
    }

    #[inline]
    fn core_mut(&mut self, _: FromCore) -> &mut QpCore {
        &mut self.core
    }

    fn get_qp_info(&mut self) -> Result<IbvQpInfo, Error> {
        Ok(self.end.info(Transport::RC, self.qp.qp_num(), self.core.config()))
    }

    fn establish(&mut self, path: &IbvPath, _: FromCore) -> Result<(), Error> {
        self.receives.check_fresh()?;
        let facts = self.end.facts(self.qp.pd().context())?;
        let config = self.core.config().clone();
        rc_to_init(&mut self.qp, &config, self.access, &facts)?;
        self.receives.start(&mut self.qp)?;
        rc_to_rts(&mut self.qp, &config, path, &facts)
    }

    fn state(&mut self) -> Result<QpState, Error> {
        self.qp.state()
    }

    fn attributes(&mut self) -> Result<QpAttributes, Error> {
        rc_attributes(&mut self.qp, self.core.config())
    }

    /// From RESET by way of INIT, so that receives which waited flush like any other.
    fn enter_error(&mut self) -> Result<(), Error> {
        let at_init = attr_at_init(self.config(), self.access);
        if self.receives.is_fresh() {
            let (mut attr, mask) = at_init;
            self.qp
                .modify(&mut attr, mask)
                .map_err(|e| e.context("from RESET to INIT, on the way to ERR"))?;
            self.receives.start(&mut self.qp)?;
        }
        self.qp.fail(at_init)
    }

    fn can_reset(&self) -> bool {
        true
    }

    fn to_reset(&mut self, _: FromCore) -> Result<(), Error> {
        let mut attr = ibv_qp_attr { qp_state: ibv_qp_state(QpState::RESET.0), ..ibv_qp_attr::default() };
        let done = self.qp.modify(&mut attr, QpAttrMask::STATE);
        done.map_err(|e| e.context(format!("queue pair {:#x} to RESET", self.qp.qp_num())))?;
        self.receives.reset();
        self.half_posted = None;
        Ok(())
    }

    #[inline]
    fn enqueue(&mut self, wr: &WorkRequest<'_>) -> Result<(), PostError> {
        self.sends.push(wr).ok_or(PostError::QueueFull)
    }

    #[inline]
    fn ring_doorbell(&mut self, _: FromCore) -> Result<(), PostError> {
        let done = match (self.lost(), self.ex) {
            (Err(e), _) => Err(e),
            (Ok(()), None) => self.post_list(),
            // SAFETY: the queue pair is alive, and `&mut self` keeps everybody else from posting to it.
            (Ok(()), Some(ex)) => unsafe { publish_session(ex, &self.sends) }.map_err(PostError::Device),
        };
        self.sends.clear();
        done
    }

    fn discard(&mut self, _: FromCore) {
        self.sends.clear();
    }

    fn enqueue_recv(&mut self, wr: &RecvRequest<'_>) -> Result<(), PostError> {
        self.receives.take(&mut self.qp, wr.id, wr.local)
    }
}
