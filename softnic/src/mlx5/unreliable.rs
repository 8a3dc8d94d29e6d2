//! Unreliable connections and datagrams: a request is done once it left, nobody answers, and what does not fit or does not
//! belong here is dropped without a word. Reliable connections are in `requester` and `responder`.

use ibv_core::WcStatus;
use provider_mock::model::Refused;

use crate::fabric::packet::{Address, Body, Datagram, Operation, Packet, Request, Route};
use crate::mlx5::cqe::{Kind, Side, Source};
use crate::mlx5::port::Gid;
use crate::mlx5::qp::{Qp, Shared};
use crate::mlx5::region::{behind, scatter};
use crate::mlx5::responder::Refusal;
use crate::mlx5::transition::{QpState, Transport};
use crate::mlx5::wqe::{AddressVector, Opcode, SendWqe, decode_send};
use crate::trace::{Kind as Device, Queue};

/// Bytes before a datagram in its receive: the global route header, or nothing if it came without one.
pub const ROUTE_HEADER: usize = 40;
/// Set in a request's queue key: use the queue pair's own (IB spec vol. 1, 10.2.5).
const OWN_QKEY: u32 = 1 << 31;

impl Qp {
    /// Sends one request, and completes it.
    pub(crate) fn send_unreliable(&mut self, shared: &mut Shared) {
        let index = self.fetched;
        let Some((control, bytes)) = self.fetch_bytes(index) else { return };
        self.fetched = index.wrapping_add(control.basic_blocks().min(self.unfetched()));
        shared.trace.wqe(Device::Mlx5, self.qpn, Queue::Send, index, || bytes.clone());
        let sent = decode_send(&bytes, self.qpn, index, self.transport)
            .map_err(|malformed| {
                crate::log::debug(|| format!("queue pair {:#x} request {index}: {malformed}", self.qpn));
                WcStatus::LOC_QP_OP_ERR
            })
            .and_then(|wqe| self.launch(&wqe, shared));
        match sent {
            Ok(len) if control.signalled() => {
                self.complete(Side::Send, index, Kind::Request { opcode: control.opcode, len }, shared);
            }
            Ok(_) if shared.trace.strict => self.check_unchanged(index, true, &mut shared.trace),
            Ok(_) => {}
            // Only the send queue stops: receives go on (IB spec vol. 1, 10.3.1.7).
            Err(status) => {
                self.complete_error(Side::Send, index, control.opcode, status, shared);
                self.set_state(QpState::Sqe, shared);
            }
        }
    }

    /// Puts a request on its way; answers its length.
    fn launch(&mut self, wqe: &SendWqe, shared: &mut Shared) -> Result<u32, WcStatus> {
        let limit = if self.transport == Transport::Ud { self.port.mtu } else { self.port.max_message };
        if wqe.len() > u64::from(limit) {
            return Err(WcStatus::LOC_LEN_ERR);
        }
        if wqe.opcode == Opcode::Nop {
            return Ok(0);
        }
        let mut data = Vec::new();
        self.gather(&wqe.segments, &mut data, shared)?;
        let len = data.len() as u32;
        let packet = match wqe.address {
            Some(address) => self.datagram(wqe, &address, data)?,
            None => self.one_way(wqe, data),
        };
        self.trace_sent(wqe.control.index, shared);
        shared.send(packet);
        Ok(len)
    }

    fn one_way(&mut self, wqe: &SendWqe, data: Vec<u8>) -> Packet {
        let request = self.next_request(wqe, data);
        Packet {
            from: self.local,
            to: self.remote,
            source: self.qpn,
            target: self.attr.dest_qpn,
            body: Body::OneWay(request),
        }
    }

    fn datagram(&self, wqe: &SendWqe, to: &AddressVector, data: Vec<u8>) -> Result<Packet, WcStatus> {
        let routed = self.port.roce || to.global;
        let own = match routed {
            true => Some(self.port.gid(to.sgid_index).ok_or(WcStatus::LOC_QP_OP_ERR)?),
            false => None,
        };
        let route = own.map(|gid| Route {
            traffic_class: to.traffic_class,
            flow_label: to.flow_label,
            hop_limit: to.hop_limit,
            udp: gid.udp,
        });
        let datagram = Datagram {
            qkey: if to.qkey & OWN_QKEY != 0 { self.attr.qkey } else { to.qkey },
            imm: (wqe.opcode == Opcode::SendImm).then_some(wqe.control.imm),
            solicited: wqe.control.solicited(),
            sl: to.sl,
            route,
            data,
        };
        Ok(Packet {
            from: Address { lid: self.port.lid, gid: own.map(|g: Gid| g.raw) },
            to: Address { lid: if self.port.roce { 0 } else { to.rlid }, gid: routed.then_some(to.gid) },
            source: self.qpn,
            target: to.qpn,
            body: Body::Datagram(datagram),
        })
    }

    /// A message of an unreliable connection arrived. A gap in the numbers is what was lost.
    pub(crate) fn on_one_way(&mut self, packet: &Packet, request: &Request, shared: &mut Shared) {
        if self.transport != Transport::Uc || !self.listens_to(packet) {
            return;
        }
        if let Err(refusal) = self.accept_one_way(packet, request, shared) {
            self.drop_message(&refusal, shared);
        }
    }

    fn accept_one_way(
        &mut self,
        packet: &Packet,
        request: &Request,
        shared: &mut Shared,
    ) -> Result<(), Refusal> {
        match request.operation {
            Operation::Send { imm } => self.accept_send(packet, request, imm, shared),
            Operation::Write { addr, rkey, imm } => {
                self.accept_write(packet, request, (addr, rkey), imm, shared)
            }
            // No such requests on this service: the other side's device doesn't send them.
            Operation::SendInvalidate { .. } | Operation::Read { .. } | Operation::Atomic { .. } => Ok(()),
        }
    }

    /// A datagram arrived.
    pub(crate) fn on_datagram(&mut self, packet: &Packet, datagram: &Datagram, shared: &mut Shared) {
        let listens = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        if self.transport != Transport::Ud
            || !listens
            || datagram.qkey != self.attr.qkey
            || datagram.data.len() > self.port.mtu as usize
            || !self.port.is_addressed_by(&packet.to)
        {
            return;
        }
        if let Err(refusal) = self.accept_datagram(packet, datagram, shared) {
            self.drop_message(&refusal, shared);
        }
    }

    fn accept_datagram(
        &mut self,
        packet: &Packet,
        datagram: &Datagram,
        shared: &mut Shared,
    ) -> Result<(), Refusal> {
        let len = ROUTE_HEADER + datagram.data.len();
        let spans = self.receive_spans(len as u64, shared)?;
        if let Some(header) = route_header(packet, datagram) {
            scatter(&spans, &header).map_err(|_| Refused::PROTECTED)?;
        }
        let payload = behind(&spans, ROUTE_HEADER as u64);
        scatter(&payload, &datagram.data).map_err(|_| Refused::PROTECTED)?;
        let global = datagram.route.is_some();
        let arrival = Kind::Response {
            opcode: if datagram.imm.is_some() { Opcode::SendImm } else { Opcode::Send },
            len: len as u32,
            imm: datagram.imm.unwrap_or_default(),
            source: Source { qpn: packet.source, lid: packet.from.lid, sl: datagram.sl, global },
            solicited: datagram.solicited,
        };
        self.complete_receive(arrival, None, shared);
        Ok(())
    }

    /// A message that is not taken: gone, unless its receive itself is bad, which ends the queue pair.
    fn drop_message(&mut self, refusal: &Refusal, shared: &mut Shared) {
        if let Some(status) = refusal.receive.filter(|s| *s == WcStatus::LOC_PROT_ERR) {
            self.fail_receive(status, shared);
            self.set_state(QpState::Error, shared);
        }
    }
}

/// The 40 bytes before a routed datagram: the global route header, which is an IPv6 header in all but name. A RoCE version 2
/// packet between IPv4 addresses has its IPv4 header in the last 20 bytes.
fn route_header(packet: &Packet, datagram: &Datagram) -> Option<[u8; ROUTE_HEADER]> {
    /// The next header of a global route header: InfiniBand's transport.
    const INFINIBAND: u8 = 0x1b;
    const UDP: u8 = 17;
    let (route, from, to) = (datagram.route?, packet.from.gid?, packet.to.gid?);
    if let Some((from, to)) = ipv4(&from).zip(ipv4(&to)).filter(|_| route.udp) {
        return Some(ipv4_header(&route, from, to, datagram.data.len()));
    }
    let mut header = [0; ROUTE_HEADER];
    let first = 6 << 28 | u32::from(route.traffic_class) << 20 | route.flow_label & 0xf_ffff;
    header[..4].copy_from_slice(&first.to_be_bytes());
    header[4..6].copy_from_slice(&wire_len(datagram.data.len()).to_be_bytes());
    (header[6], header[7]) = (if route.udp { UDP } else { INFINIBAND }, route.hop_limit);
    header[8..24].copy_from_slice(&from);
    header[24..].copy_from_slice(&to);
    Some(header)
}

fn ipv4_header(route: &Route, from: [u8; 4], to: [u8; 4], len: usize) -> [u8; ROUTE_HEADER] {
    let mut header = [0; ROUTE_HEADER];
    let ip = &mut header[20..];
    (ip[0], ip[1]) = (0x45, route.traffic_class);
    ip[2..4].copy_from_slice(&(20 + wire_len(len)).to_be_bytes());
    (ip[8], ip[9]) = (route.hop_limit, 17);
    ip[12..16].copy_from_slice(&from);
    ip[16..].copy_from_slice(&to);
    let sum: u32 = ip.chunks_exact(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!folded as u16).to_be_bytes());
    header
}

/// Base and datagram transport headers (12 and 8 bytes) and the trailing check (4) go with the payload, padded to 4.
fn wire_len(len: usize) -> u16 {
    (len.next_multiple_of(4) + 12 + 8 + 4) as u16
}

fn ipv4(gid: &[u8; 16]) -> Option<[u8; 4]> {
    std::net::Ipv6Addr::from(*gid).to_ipv4_mapped().map(|v4| v4.octets())
}
