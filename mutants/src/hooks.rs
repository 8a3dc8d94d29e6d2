//! Where a mutant can differ from the honest wrapper: one function for each thing a provider does. What
//! the mutants put there is in `mutations/`.

use crate::{
    domain::MutantRegistration,
    queue_pair::MutantQueuePair,
    world::{World, lock},
};
use ibv_core::{
    Access, Caps, Error, FromCore, IbvConfig, IbvQpInfo, IbvQueuePair, IbvWc, PostError, QpAttributes,
    QpState, RecvRequest, Registration, WorkRequest,
};
use provider_mock::Fabric;

/// One behaviour of a whole provider. [`HONEST`] forwards everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hooks {
    /// What the domain says it can do, over what the device can.
    pub(crate) caps: fn(&mut World, &mut Caps),
    /// What is registered of `len` bytes for what is asked.
    pub(crate) register: fn(usize, Access) -> (usize, Access),
    pub(crate) deregister: fn(&mut MutantRegistration) -> Result<(), Error>,
    /// What a queue pair is created with.
    pub(crate) config: fn(&mut IbvConfig),
    /// Whether the two completion queues of a queue pair change places.
    pub(crate) cqs_swapped: bool,
    /// Whether dropping a queue pair leaves it on the device.
    pub(crate) outlives_drop: bool,
    pub(crate) info: fn(&mut MutantQueuePair, IbvQpInfo) -> IbvQpInfo,
    pub(crate) connect: fn(&mut MutantQueuePair, &IbvQpInfo) -> Result<(), Error>,
    pub(crate) state: fn(&mut MutantQueuePair, QpState) -> QpState,
    pub(crate) attributes: fn(QpAttributes) -> QpAttributes,
    pub(crate) enter_error: fn(&mut MutantQueuePair) -> Result<(), Error>,
    pub(crate) max_msg_size: fn(usize) -> usize,
    pub(crate) enqueue: fn(&mut MutantQueuePair, &WorkRequest<'_>) -> Result<(), PostError>,
    pub(crate) recv: fn(&mut MutantQueuePair, &RecvRequest<'_>) -> Result<(), PostError>,
    pub(crate) ring: fn(&mut MutantQueuePair, FromCore) -> Result<(), PostError>,
    pub(crate) discard: fn(&mut MutantQueuePair, FromCore),
    /// What becomes of the completions that a poll found.
    pub(crate) polled: fn(&mut World, &mut Vec<IbvWc>),
    /// Whether arming a completion queue reaches the device.
    pub(crate) arms: bool,
    /// Whether the device below mixes up the order of things.
    pub(crate) shuffled: bool,
    /// Whether the device below can get and send, and neither put nor do atomics.
    pub(crate) read_only: bool,
    /// What is wrong with the device below.
    pub(crate) fabric: fn(&Fabric),
}

/// The wrapper that changes nothing: the control, which must pass every case.
pub(crate) const HONEST: Hooks = Hooks {
    caps: |_, _| {},
    register: |len, access| (len, access),
    deregister: |reg| reg.inner.deregister(),
    config: |_| {},
    cqs_swapped: false,
    outlives_drop: false,
    info: |_, info| info,
    connect: |qp, info| qp.inner.connect(info),
    state: |_, state| state,
    attributes: |attributes| attributes,
    enter_error: |qp| qp.inner.enter_error(),
    max_msg_size: |len| len,
    enqueue: |qp, wr| qp.inner.enqueue(wr),
    recv: |qp, wr| qp.inner.enqueue_recv(wr),
    ring: |qp, by| qp.inner.ring_doorbell(by),
    discard: |qp, by| qp.inner.discard(by),
    polled: |_, _| {},
    arms: true,
    shuffled: false,
    read_only: false,
    fabric: |_| {},
};

/// Runs `f` on what all objects of the mutant share.
pub(crate) fn with_world<T>(qp: &MutantQueuePair, f: impl FnOnce(&mut World) -> T) -> T {
    f(&mut lock(&qp.shared.world))
}
