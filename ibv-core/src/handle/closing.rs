//! Closing a queue pair in two phases: to the error state first, destroyed when nothing is in flight, or reset.

use super::{Connected, QueuePair};
use crate::{
    core::FromCore,
    error::{Error, ErrorKind},
    memory::IbvRemoteMemoryRegionView,
    post,
    queue_pair::{IbvQueuePair, QpState},
    trace::step,
    wc::{IbvWc, PollTarget},
    wr::{Op, Payload, Request},
};
use std::{thread, time::Instant};

impl<Q: IbvQueuePair> Connected<Q> {
    /// First phase of closing: to the error state, and no more posts. The completions still have to
    /// be polled, by whoever polls.
    ///
    /// # Errors
    /// The device's; the queue pair comes back, unchanged.
    pub fn start_close(mut self) -> Result<Closing<Q>, (Self, Error)> {
        post::discard(&mut self.0);
        let done = self.0.enter_error();
        step("modify_qp", format_args!("to ERR"), done.as_ref().err());
        match done {
            Ok(()) => {
                self.0.core_mut(FromCore(())).close();
                Ok(Closing(self.0))
            }
            Err(e) => Err((self, e)),
        }
    }

    /// Closes and waits until nothing is in flight, at most until `deadline`. Polls by itself where
    /// this queue pair may (`poll_completion` would work); elsewhere it waits for the other poller,
    /// which must run on another thread. Completions it polls are dropped.
    ///
    /// # Errors
    /// The device's, before anything was closed; the queue pair comes back.
    pub fn close(self, deadline: Instant) -> Result<Closed, (Self, Error)> {
        let mut closing = self.start_close()?;
        closing.drain(deadline);
        Ok(closing.finish())
    }

    /// Takes the connection apart and keeps the queue pair: to the error state, until nothing is in flight, as
    /// [`close`](Self::close) does, then back to where it was after creation. It can take receives and be
    /// connected, to the same peer or another, with the same endpoint as before. Ids go on counting, and no
    /// completion of before comes after. A poller that it claims meanwhile goes back to its queue.
    ///
    /// # Errors
    /// `Unsupported`, and nothing has changed, where the provider can not. `InvalidState` where something was in
    /// flight still at `deadline`: the queue pair comes back, failed and empty but for that; poll its
    /// queue, and reset it again, or close it. Else the device's, likewise.
    pub fn reset(self, deadline: Instant) -> Result<QueuePair<Q>, (Self, Error)> {
        if !self.0.can_reset() {
            let detail = "this provider does not reset queue pairs; close it and create another";
            return Err((self, Error::new(ErrorKind::Unsupported, "modify_qp", detail)));
        }
        let claims = self.0.core().claims();
        let mut closing = self.start_close()?;
        let drained = closing.drain(deadline);
        closing.0.core_mut(FromCore(())).give_back(claims);
        let done = if drained { closing.0.to_reset(FromCore(())) } else { Err(closing.late()) };
        step("modify_qp", format_args!("to RESET"), done.as_ref().err());
        match done {
            Ok(()) => {
                closing.0.core_mut(FromCore(())).restart();
                Ok(QueuePair(closing.0))
            }
            Err(e) => Err((Self(closing.0), e)),
        }
    }
}

/// A queue pair in the error state that waits for its last completions.
#[derive(Debug)]
#[must_use = "dropping it abandons what is in flight"]
pub struct Closing<Q: IbvQueuePair>(Q);

/// How a close ended. The queue pair is destroyed either way, and no memory is at stake: a region
/// deregisters before it frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Every request has reported.
    Drained,
    /// These many had not.
    Abandoned {
        /// Requests of the send queue.
        sends: u32,
        /// Receives.
        recvs: u32,
    },
}

impl<Q: IbvQueuePair> Closing<Q> {
    /// Whether nothing is in flight. Never blocks.
    ///
    /// Unsignaled requests that succeeded stay silent in the error state too, so a send queue that
    /// ends in them gets one signaled marker behind them: it can only flush, and it does so last.
    pub fn is_drained(&mut self) -> bool {
        if self.0.core().send.in_flight() > 0 && self.0.core().send.ends_silent() {
            self.post_marker();
        }
        let core = self.0.core();
        core.send.in_flight() == 0 && core.recv.in_flight() == 0
    }

    /// A run of unsignaled requests is shorter than the queue, so there is room for one more, unless
    /// completions are due that will make some. It carries nothing and reaches nobody; what it is
    /// depends on what the device takes.
    fn post_marker(&mut self) {
        let caps = self.0.core().limits();
        let op = match (caps.write.present(), caps.send.present()) {
            (true, _) => Op::Write,
            (false, true) => Op::Send,
            (false, false) => Op::Read,
        };
        let marker = Request::new(op, IbvRemoteMemoryRegionView::default(), Payload::Sges(&[]));
        self.0.core_mut(FromCore(())).send.admit();
        if post::enqueue(&mut self.0, &marker).is_ok() {
            let _ = post::ring(&mut self.0);
        }
        self.0.core_mut(FromCore(())).send.refuse();
    }

    /// Asks the device for the state.
    ///
    /// # Errors
    /// The device's.
    pub fn state(&mut self) -> Result<QpState, Error> {
        self.0.state()
    }

    /// Destroys the queue pair, drained or not.
    pub fn finish(self) -> Closed {
        let core = self.0.core();
        let closed = match (core.send.in_flight(), core.recv.in_flight()) {
            (0, 0) => Closed::Drained,
            (sends, recvs) => Closed::Abandoned { sends, recvs },
        };
        step("destroy_qp", format_args!("{closed:?}"), None);
        closed
    }

    #[cfg(feature = "recorder")]
    pub(super) fn qp(&self) -> &Q {
        &self.0
    }

    /// Polls or waits until nothing is in flight, which it answers, or until `deadline`.
    fn drain(&mut self, deadline: Instant) -> bool {
        loop {
            self.poll_own();
            if self.is_drained() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            thread::yield_now();
        }
    }

    fn late(&self) -> Error {
        let (sends, recvs) = (self.0.core().send.in_flight(), self.0.core().recv.in_flight());
        let detail = format!(
            "{sends} requests and {recvs} receives in flight at the deadline; poll their queues and reset again"
        );
        Error::new(ErrorKind::InvalidState, "modify_qp", detail)
    }

    fn poll_own(&mut self) {
        let mut wcs = [IbvWc::default(); 16];
        for target in [PollTarget::Send, PollTarget::Recv] {
            if let Ok(poller) = self.0.core_mut(FromCore(())).sole_poller(target) {
                while matches!(poller.poll(&mut wcs), Ok(1..)) {}
            }
        }
    }
}
