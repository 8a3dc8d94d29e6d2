//! The answering half of EFA queue pairs: checks a request, lands its bytes, tells the program and the sender. Requests come
//! in any order, from anybody who knows the key. What the sender makes of an answer is in `requester`.

use provider_mock::model::Want;

use crate::efa::Engine;
use crate::efa::cqe::{NO_HANDLE, Received, Side, Status};
use crate::efa::landing::{Landed, Landing, Place, Taken, Then};
use crate::efa::message::{Asked, Operation, Outcome, Reply, qpn};
use crate::efa::qp::{Receive, Service, receive_id};
use crate::efa::wqe::{Op, Piece};
use crate::mlx5::qp::Shared;

/// Bytes before a datagram in its receive, as verbs keep for the global route header. EFA has no such header; libfabric skips
/// them all the same. Assumed: they are zeros, and count as received.
pub const HEADER_ROOM: usize = 40;

/// What a request came to so far.
enum Course {
    /// It has its answer.
    Answered(Reply),
    /// It is landing; the answer comes later.
    Landing,
}

impl From<Status> for Outcome {
    fn from(status: Status) -> Self {
        if status == Status::Ok { Self::Done } else { Self::Refused(status) }
    }
}

impl Engine {
    /// A request arrived.
    pub(super) fn on_request(&mut self, asked: Asked, data: Vec<u8>, shared: &mut Shared) {
        if !asked.reliable {
            return self.on_datagram(asked, data, shared);
        }
        if !self.devices.iter().any(|d| asked.to.gid.is_some_and(|gid| d.answers_at(&gid))) {
            // Nobody has this address, or a device that failed.
            return shared.send(asked.answer(Reply::new(asked.token, Outcome::Silence)));
        }
        if let Some(outcome) = self.remembered(&asked) {
            return self.answer(&asked, Reply::new(asked.token, outcome), shared);
        }
        match self.carry_out(&asked, data, shared) {
            Ok(Course::Landing) => {}
            Ok(Course::Answered(reply)) => self.answer(&asked, reply, shared),
            Err(outcome) => self.answer(&asked, Reply::new(asked.token, outcome), shared),
        }
    }

    /// A datagram arrived. Its receive has room for a header before the bytes; nobody is told if it finds no taker.
    fn on_datagram(&mut self, mut asked: Asked, mut data: Vec<u8>, shared: &mut Shared) {
        data.splice(..0, [0; HEADER_ROOM]);
        asked.len = data.len() as u32;
        let _ = self.carry_out(&asked, data, shared);
    }

    /// The outcome of a request that was carried out before: its answer was lost. Reading again does no harm.
    fn remembered(&self, asked: &Asked) -> Option<Outcome> {
        self.executed.find((asked.source, asked.target), asked.token)
    }

    fn answer(&mut self, asked: &Asked, reply: Reply, shared: &mut Shared) {
        let there = qpn(asked.target).is_some_and(|number| self.qps.contains_key(&number));
        let lasting = there && !matches!(reply.outcome, Outcome::NotReady) && reply.data.is_empty();
        if lasting {
            self.executed.add((asked.source, asked.target), reply.token, reply.outcome);
        }
        shared.send(asked.answer(reply));
    }

    fn carry_out(&mut self, asked: &Asked, data: Vec<u8>, shared: &mut Shared) -> Result<Course, Outcome> {
        let number = self.taker(asked).ok_or(Status::RemoteBadDestQpn)?;
        let (pd, device) = self.qps.get(&number).map(|q| (q.pd, q.device)).ok_or(Status::RemoteBadDestQpn)?;
        if !matches!(asked.operation, Operation::Send) && self.handle_of(device, asked) == NO_HANDLE {
            return Err(Status::RemoteUnknownPeer.into());
        }
        match asked.operation {
            Operation::Read { .. } if self.devices[device].limits.in_order => {
                self.land_later(Landing::turn(number, Then::Read(*asked)));
                Ok(Course::Landing)
            }
            Operation::Read { addr, rkey, len } => {
                read(pd, (addr, rkey, len), asked.token, shared).map(Course::Answered)
            }
            Operation::Write { addr, rkey } => {
                let span = shared.regions.span(rkey, pd, Want::RemoteWrite, addr, asked.len.into());
                span.map_err(|_| Outcome::from(Status::RemoteBadAddress))?;
                let receive = match asked.imm {
                    Some(_) => Some(self.take_for_imm(number, shared)?),
                    None => None,
                };
                let pieces = vec![Piece { addr, len: asked.len, key: rkey }];
                let place = Place { pd, want: Want::RemoteWrite, pieces };
                self.land(number, place, data, Then::Answer { asked: *asked, receive });
                Ok(Course::Landing)
            }
            Operation::Send => {
                let qp = self.qps.get_mut(&number).ok_or(Outcome::NotReady)?;
                let receive = qp.take_receive(shared).ok_or(Outcome::NotReady)?;
                self.accept(number, pd, asked, &receive, shared)?;
                let place = Place { pd, want: Want::LocalWrite, pieces: receive.pieces };
                self.land(number, place, data, Then::Answer { asked: *asked, receive: Some(receive.taken) });
                Ok(Course::Landing)
            }
        }
    }

    /// The queue pair that takes a request: it must be there, listen, give the same service, and have the key.
    fn taker(&self, asked: &Asked) -> Option<u16> {
        let number = qpn(asked.target)?;
        let qp = self.qps.get(&number)?;
        let gid = asked.to.gid?;
        let service = if asked.reliable { Service::Srd } else { Service::Ud };
        let fits = qp.listens()
            && self.devices[qp.device].owns(&gid)
            && qp.service == service
            && qp.attr.qkey == asked.qkey;
        fits.then_some(number)
    }

    fn take_for_imm(&mut self, number: u16, shared: &mut Shared) -> Result<Taken, Outcome> {
        let qp = self.qps.get_mut(&number).ok_or(Outcome::NotReady)?;
        if qp.unsolicited {
            return Ok(Taken { id: 0, unsolicited: true });
        }
        qp.take_receive(shared).map(|r| r.taken).ok_or(Outcome::NotReady)
    }

    /// Whether a receive can hold a message. If not, it is spent: both sides are told.
    fn accept(
        &mut self,
        number: u16,
        pd: u32,
        asked: &Asked,
        receive: &Receive,
        shared: &mut Shared,
    ) -> Result<(), Outcome> {
        let mut left = u64::from(asked.len);
        let room: u64 = receive.pieces.iter().map(|p| u64::from(p.len)).sum();
        let allowed = receive.pieces.iter().all(|piece| {
            let n = u64::from(piece.len).min(left);
            left -= n;
            shared.regions.span(piece.key, pd, Want::LocalWrite, piece.addr, n).is_ok()
        });
        let (own, senders) = match () {
            () if u64::from(asked.len) > room => (Status::BadLength, Status::RemoteBadLength),
            () if !allowed => (Status::InvalidLkey, Status::RemoteBadStatus),
            () => return Ok(()),
        };
        self.complete_receive(number, asked, receive.taken, own, shared);
        Err(senders.into())
    }

    /// Starts the landing of a request's bytes.
    fn land(&mut self, number: u16, place: Place, data: Vec<u8>, then: Then) {
        let Some(device) = self.qps.get(&number).map(|q| &self.devices[q.device]) else { return };
        let order = (!device.limits.in_order).then_some(&mut self.choices);
        let landing = Landing::new(number, place, data, device.mtu, order, then);
        self.land_later(landing);
    }

    /// A step of a landing came to this.
    pub(super) fn landed(&mut self, landing: Landing, landed: Landed, shared: &mut Shared) {
        match (landing.then, landed) {
            (Then::Complete(token), Landed::Wholly) => self.finish(landing.qpn, token, Status::Ok, shared),
            (Then::Complete(token), _) => self.finish(landing.qpn, token, Status::InvalidLkey, shared),
            (Then::Read(asked), _) => self.read_late(landing.qpn, &asked, shared),
            (Then::Answer { asked, receive }, landed) => {
                let ok = landed == Landed::Wholly;
                let (own, senders) = match (ok, &receive) {
                    (true, _) => (Status::Ok, Status::Ok),
                    (false, Some(_)) => (Status::InvalidLkey, Status::RemoteBadStatus),
                    (false, None) => (Status::Ok, Status::RemoteBadAddress),
                };
                if let Some(taken) = receive {
                    self.complete_receive(landing.qpn, &asked, taken, own, shared);
                }
                self.answer_status(&asked, senders, shared);
            }
        }
    }

    /// A READ has its turn.
    fn read_late(&mut self, number: u16, asked: &Asked, shared: &mut Shared) {
        let Operation::Read { addr, rkey, len } = asked.operation else { return };
        let Some(pd) = self.qps.get(&number).map(|q| q.pd) else { return };
        let reply = read(pd, (addr, rkey, len), asked.token, shared)
            .unwrap_or_else(|outcome| Reply::new(asked.token, outcome));
        self.answer(asked, reply, shared);
    }

    /// Answers a request that has landed, or whose queue pair has gone meanwhile.
    pub(super) fn answer_status(&mut self, asked: &Asked, status: Status, shared: &mut Shared) {
        if asked.reliable {
            self.answer(asked, Reply::new(asked.token, status.into()), shared);
        }
    }

    fn complete_receive(
        &mut self,
        number: u16,
        asked: &Asked,
        taken: Taken,
        status: Status,
        shared: &mut Shared,
    ) {
        let Some(qp) = self.qps.get(&number) else { return };
        let received = Received {
            len: if status == Status::Ok { asked.len } else { 0 },
            imm: asked.imm.filter(|_| status == Status::Ok),
            handle: self.handle_of(qp.device, asked),
            source_qpn: qpn(asked.source).unwrap_or(0),
            source_gid: asked.from.gid.unwrap_or_default(),
            unsolicited: taken.unsolicited,
        };
        let op = if matches!(asked.operation, Operation::Write { .. }) { Op::Write } else { Op::Send };
        self.complete(number, receive_id(taken.id), op as u8, status, Side::Receive(received), shared);
    }

    /// The number of the sender's address handle. To its own address a device has one: the sender used it.
    fn handle_of(&self, device: usize, asked: &Asked) -> u16 {
        let Some(gid) = asked.from.gid else { return NO_HANDLE };
        match self.addresses.number(device, &gid) {
            Some(number) => number,
            None if self.devices[device].owns(&gid) => {
                self.addresses.place(device, &gid).unwrap_or(NO_HANDLE)
            }
            None => NO_HANDLE,
        }
    }
}

/// Reads memory for a request: address, key, length.
fn read(pd: u32, (addr, rkey, len): (u64, u32, u32), token: u64, shared: &Shared) -> Result<Reply, Outcome> {
    let refused = || Outcome::from(Status::RemoteBadAddress);
    let span = shared.regions.span(rkey, pd, Want::RemoteRead, addr, len.into()).map_err(|_| refused())?;
    let mut reply = Reply::new(token, Outcome::Done);
    span.append_to(&mut reply.data).map_err(|_| refused())?;
    Ok(reply)
}
