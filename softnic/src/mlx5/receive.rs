//! The receives of a queue pair, from its own queue or from a shared one: which is next, where it puts a message, and its
//! completion. Why a message is taken or refused is in `responder` and `unreliable`.

use ibv_core::{Op, WcStatus};
use provider_mock::model::{self, Refused, Want};

use crate::mlx5::async_event;
use crate::mlx5::cqe::{Kind, Side};
use crate::mlx5::qp::{Qp, Shared};
use crate::mlx5::region::{Span, scatter};
use crate::mlx5::responder::Refusal;
use crate::mlx5::scatter::Scattered;
use crate::mlx5::srq::Receive;
use crate::mlx5::wqe::decode_receive;
use crate::rules::Nak;
use crate::trace::{Kind as Device, Queue};

impl Qp {
    /// Whether a receive is there.
    pub(crate) fn has_receive(&self, shared: &Shared) -> bool {
        match self.srq {
            Some(number) => shared.srqs.get(number).is_some_and(|srq| srq.available() != 0),
            None => self.untaken() != 0,
        }
    }

    fn next_receive(&self, shared: &Shared) -> Option<Receive> {
        if let Some(number) = self.srq {
            return shared.srqs.get(number)?.peek();
        }
        let ring = self.receive.as_ref().filter(|_| self.untaken() != 0)?;
        let pieces = decode_receive(&ring.copy(self.taken, ring.entry_size()));
        Some(Receive { counter: self.taken, pd: self.pd, pieces })
    }

    /// Takes the next receive; answers what its completion calls it.
    fn take_receive(&mut self, shared: &mut Shared) -> u16 {
        let Some(srq) = self.srq.and_then(|number| shared.srqs.get_mut(number)) else {
            let counter = self.taken;
            self.taken = counter.wrapping_add(1);
            if let Some(ring) = &self.receive {
                let entry = || ring.copy(counter, ring.entry_size());
                shared.trace.wqe(Device::Mlx5, self.qpn, Queue::Receive, counter, entry);
            }
            return counter;
        };
        let counter = srq.peek().map_or(0, |receive| receive.counter);
        shared.trace.wqe(Device::Mlx5, self.qpn, Queue::Shared, counter, || srq.entry());
        if srq.take() {
            srq.async_events += 1;
            let event = (srq.context, srq.user_handle, async_event::SRQ_LIMIT_REACHED);
            shared.async_events.push(event);
        }
        counter
    }

    /// Where a message of `len` bytes goes: the pieces of the next receive.
    pub(crate) fn receive_spans(&self, len: u64, shared: &Shared) -> Result<Vec<Span>, Refusal> {
        let Some(receive) = self.next_receive(shared) else {
            return Err(Nak::ReceiverNotReady(self.attr.min_rnr_timer).into());
        };
        let room: u64 = receive.pieces.iter().map(|s| u64::from(s.len)).sum();
        model::accept(Op::Send, len, room)?;
        let spans = shared.regions.spans(&receive.pieces, receive.pd, Want::LocalWrite, len);
        Ok(spans.map_err(|_| Refused::PROTECTED)?)
    }

    /// Puts a message into the pieces of the next receive, or into the completion entry to come.
    pub(crate) fn fill(
        &self,
        spans: &[Span],
        data: &[u8],
        shared: &Shared,
    ) -> Result<Option<Scattered>, Refusal> {
        let scattered = self.scatter_to_cqe(Side::Receive, data, shared);
        if scattered.is_none() {
            scatter(spans, data).map_err(|_| Refused::PROTECTED)?;
        }
        Ok(scattered)
    }

    /// Completes the next receive.
    pub(crate) fn complete_receive(
        &mut self,
        arrival: Kind,
        scattered: Option<Scattered>,
        shared: &mut Shared,
    ) {
        let counter = self.take_receive(shared);
        self.complete_with(Side::Receive, counter, arrival, scattered, shared);
    }

    /// Completes the next receive with an error.
    pub(crate) fn fail_receive(&mut self, status: WcStatus, shared: &mut Shared) {
        let counter = self.take_receive(shared);
        self.complete_error(Side::Receive, counter, 0, status, shared);
    }
}
