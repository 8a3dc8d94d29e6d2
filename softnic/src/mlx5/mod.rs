//! The engine of the software ConnectX: finds work (doorbells, packets, timers, flushes, arms) and does it, one unit at a
//! time. How units are chosen (a seed, or a thread) is in [`crate::drive`]; commands come from [`crate::uverbs`].

pub mod abi;
pub mod async_event;
pub mod cq;
pub mod cqe;
pub mod cqs;
pub mod moderation;
pub mod operation;
pub mod port;
pub mod qp;
pub mod qps;
pub mod receive;
pub mod region;
pub mod requester;
pub mod responder;
pub mod ring;
pub mod scatter;
pub mod srq;
pub mod transition;
pub mod uar;
pub mod unreliable;
pub mod window;
pub mod wqe;

use crate::fabric::INDEX_BITS;
use crate::fabric::packet::{Body, Packet};
use crate::memory;
use crate::mlx5::cq::Cq;
use crate::mlx5::qp::{Qp, Shared};
use crate::mlx5::qps::Qps;
use crate::mlx5::transition::QpState;
use crate::mlx5::uar::UarPages;
use crate::mlx5::wqe::Control;
use crate::trace::{Action, Breach};

/// One thing that the engine can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// Deliver the first packet of a flow.
    Deliver(u32, u32),
    /// Send, or report as flushed, one request of a queue pair.
    Work(u32),
}

/// All queue pairs of the process and what they share.
#[derive(Debug, Default)]
pub struct Engine {
    /// Queue pairs by number.
    pub qps: Qps,
    /// Everything else.
    pub shared: Shared,
}

impl Engine {
    /// The lowest free queue-pair number: numbers are reused at once, as clients must survive.
    pub fn free_qpn(&self) -> Option<u32> {
        let base = self.shared.fabric.base();
        (0x100..1 << INDEX_BITS).map(|i| base + i).find(|n| !self.qps.contains_key(n))
    }

    /// Looks at the register pages of a context; true if any was written.
    pub fn scan(&mut self, context: u32, pages: &UarPages) -> bool {
        pages.in_use().fold(false, |any, page| self.scan_page(context, pages, page) | any)
    }

    /// Looks at one page.
    pub fn scan_page(&mut self, context: u32, pages: &UarPages, page: usize) -> bool {
        let written = pages.take_doorbells(page);
        if !written.is_empty() {
            self.ring_page(context, page, &written);
        }
        let armed = pages.take_arm(page);
        if armed {
            self.shared.cqs.arm_page(context, page);
        }
        armed || !written.is_empty()
    }

    /// Runs every queue pair of the page up to its record: doorbells that overwrote each other lose nothing.
    fn ring_page(&mut self, context: u32, page: usize, written: &[uar::Doorbell]) {
        if self.shared.trace.strict {
            self.check_doorbells(context, page, written);
        }
        for qpn in self.qps.on_page(context, page).to_vec() {
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.doorbell(&mut self.shared);
            }
        }
    }

    /// One of a queue pair's writes must name the last request; others may be older ones that were overtaken.
    fn check_doorbells(&mut self, context: u32, page: usize, written: &[uar::Doorbell]) {
        let controls: Vec<Control> = written.iter().map(uar::Doorbell::control).collect();
        let here = |qpn| self.qps.get(&qpn).filter(|q: &&Qp| q.context == context && q.page == page);
        for (doorbell, control) in written.iter().zip(&controls) {
            let Some(qp) = here(control.qpn) else {
                self.shared.trace.breach(Breach::DoorbellQueuePair { qpn: control.qpn });
                continue;
            };
            let others = controls.iter().filter(|c| c.qpn == control.qpn).map(|c| c.index);
            let newest = others.max_by_key(|i| i.wrapping_sub(qp.rung)).unwrap_or(control.index);
            if control.index == newest {
                qp.check_register(control, &doorbell.bytes, qp.send_record(), &mut self.shared.trace);
            }
        }
    }

    /// Looks again at the queue pairs that were touched: what they can do, and when their timers are due.
    pub fn settle(&mut self) {
        for qpn in self.qps.take_touched() {
            let Some(qp) = self.qps.get(&qpn) else { continue };
            let ready = qp.can_send(self.shared.now) || qp.must_flush() && !self.is_dead(qp);
            let timer = qp.requester.next_timer();
            self.qps.settle(qpn, ready, timer);
        }
    }

    /// How many units there are.
    pub fn count(&self) -> usize {
        self.shared.fabric.deliverable().len() + self.qps.ready().len()
    }

    /// The unit at a place, of [`Engine::count`].
    pub fn unit(&self, at: usize) -> Option<Unit> {
        let flows = self.shared.fabric.deliverable();
        match flows.get(at) {
            Some((source, target)) => Some(Unit::Deliver(*source, *target)),
            None => self.qps.ready().get(at - flows.len()).copied().map(Unit::Work),
        }
    }

    /// Everything that could be done now. Looks at every queue pair.
    pub fn units(&mut self) -> Vec<Unit> {
        self.qps.touch_all();
        self.settle();
        (0..self.count()).filter_map(|at| self.unit(at)).collect()
    }

    fn is_dead(&self, qp: &Qp) -> bool {
        [qp.send_cq, qp.receive_cq].iter().any(|n| self.shared.cqs.get(*n).is_none_or(|c| c.dead))
    }

    /// Does one unit.
    pub fn perform(&mut self, unit: Unit) {
        match unit {
            Unit::Deliver(source, target) => {
                if let Some(packet) = self.shared.fabric.take((source, target)) {
                    self.deliver(&packet);
                }
            }
            Unit::Work(qpn) => {
                let now = self.shared.now;
                match self.qps.get_mut(&qpn) {
                    Some(qp) if qp.can_send(now) => qp.send_one(&mut self.shared),
                    Some(qp) if qp.must_flush() => qp.flush_one(&mut self.shared),
                    _ => {}
                }
            }
        }
        self.shared.land_late_payloads();
        self.kill_overrun();
    }

    fn deliver(&mut self, packet: &Packet) {
        let (source, target) = (packet.source, packet.target);
        self.shared.trace.packet(Action::Delivered, packet);
        let qp = self.qps.get_mut(&target).filter(|qp| !qp.frozen);
        match &packet.body {
            Body::Reply(reply) => {
                if let Some(qp) = qp {
                    qp.on_reply(source, reply.clone(), &mut self.shared);
                }
            }
            Body::Request(_) => {
                let answer = qp
                    .and_then(|qp| qp.on_request(packet, &mut self.shared))
                    .map_or_else(|| packet.lost(), |reply| Some(packet.answer(reply)));
                if let Some(answer) = answer {
                    self.shared.send(answer);
                }
            }
            Body::OneWay(request) => {
                if let Some(qp) = qp {
                    qp.on_one_way(packet, request, &mut self.shared);
                }
            }
            // Those go to another engine.
            Body::Efa(_) => {}
            Body::Datagram(datagram) => {
                if let Some(qp) = qp {
                    qp.on_datagram(packet, datagram, &mut self.shared);
                }
            }
        }
    }

    /// A completion queue that overran takes its queue pairs along; they can report nothing any more.
    pub(crate) fn kill_overrun(&mut self) {
        if !std::mem::take(&mut self.shared.overrun) {
            return;
        }
        let doomed: Vec<u32> = self.qps.values().filter(|q| self.is_dead(q)).map(|q| q.qpn).collect();
        for qpn in doomed {
            if let Some(qp) = self.qps.get_mut(&qpn).filter(|q| q.state != QpState::Reset) {
                qp.set_state(QpState::Error, &mut self.shared);
            }
        }
    }

    /// Runs timers that are due at the present time.
    pub fn run_timers(&mut self) -> bool {
        let now = self.shared.now;
        self.settle();
        let due = self.qps.due(now);
        for qpn in &due {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.on_time(&mut self.shared);
            }
        }
        !due.is_empty()
    }

    /// When something is due that only time brings, in nanoseconds.
    pub fn next_time(&self) -> Option<u64> {
        let timers = self.qps.next_timer(self.shared.now).into_iter();
        let events = self.shared.cqs.armed().filter_map(Cq::next_event);
        timers.chain(events).chain(self.shared.fabric.next_due()).filter(|t| *t > self.shared.now).min()
    }

    /// Looks for breaches that show only while the program is idle (strict mode).
    pub fn check_idle(&mut self) {
        if !self.shared.trace.strict {
            return;
        }
        for qp in self.qps.values() {
            qp.check_rung(&mut self.shared.trace);
        }
        let trace = &mut self.shared.trace;
        self.shared.cqs.iter().for_each(|(cqn, cq)| cq.check_consumer(*cqn, trace));
    }
}

impl Engine {
    /// A queue pair goes: what it published and never rang is lost for good.
    pub fn check_destroyed(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get(&qpn).filter(|_| self.shared.trace.strict) {
            qp.check_rung(&mut self.shared.trace);
        }
    }
}

impl Shared {
    fn land_late_payloads(&mut self) {
        let regions = &self.regions;
        self.late.retain_mut(|late| {
            if late.steps > 0 {
                late.steps -= 1;
                return true;
            }
            if regions.get(late.rkey).is_some() {
                // Memory that vanished takes the payload with it: nobody is left to be told.
                let _ = memory::write(late.addr, &late.data);
            }
            false
        });
    }
}
