//! Immediates: they arrive as they were sent, once, in one receive.

use super::prelude::*;
use ibv_core::{IbvWc, Request, WcOpcode};

/// Each byte differs, so a swapped order shows.
const ASYMMETRIC: u32 = 0x0102_0304;

/// Row 5: the value does not depend on either end's byte order.
pub(crate) fn immediate_of_a_put_arrives_as_it_was_sent<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(8, 1)?, c.b.alloc(8)?);
    for imm in [ASYMMETRIC, 0, 1, 0x8000_0000, u32::MAX] {
        let recv = c.b.post_recv(link.peer, &[])?;
        let ids = link.qp.put_with_imm(dst.remote, src.view(), imm).say("put_with_imm")?;
        c.finish(&mut link, ids)?;
        let wc = c.b.wait(link.peer, 1)?[0];
        ensure_eq!((wc.wr_id, wc.imm()), (recv, Some(imm)), "id and immediate of the receive");
    }
    Ok(())
}

/// The same for sends.
pub(crate) fn immediate_of_a_send_arrives_as_it_was_sent<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(8, 2)?, c.b.alloc(8)?);
    for imm in [ASYMMETRIC, 0, u32::MAX] {
        let recv = c.b.post_recv(link.peer, &[dst.whole()])?;
        let ids = link.qp.post(&Request::send_with_imm(&[src.view()], imm)).say("send_with_imm")?;
        c.finish(&mut link, ids)?;
        let wc = c.b.wait(link.peer, 1)?[0];
        ensure_eq!((wc.wr_id, wc.imm()), (recv, Some(imm)), "id and immediate of the receive");
        c.b.expect_pattern_now(dst, 2)?;
    }
    Ok(())
}

/// A put with an immediate moves its bytes, takes one receive, and does not write where that points.
pub(crate) fn put_with_immediate_takes_one_receive_and_writes_elsewhere<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
) -> Done {
    let (mut link, src, dst, decoy) = (c.link()?, c.patterned(100, 3)?, c.b.alloc(100)?, c.b.alloc(100)?);
    let first = c.b.post_recv(link.peer, &[decoy.whole()])?;
    let second = c.b.post_recv(link.peer, &[decoy.whole()])?;
    for recv in [first, second] {
        let ids = link.qp.put_with_imm(dst.remote, src.view(), 7).say("put_with_imm")?;
        c.finish(&mut link, ids)?;
        ensure_eq!(ids_of(&c.b.wait(link.peer, 1)?)?, [recv], "receives taken");
    }
    c.b.expect_pattern(dst, 3)?;
    c.b.expect_untouched(decoy, 0, &[0; 100])
}

/// The receive's completion says what came: opcode, length, flag.
pub(crate) fn receive_of_an_immediate_tells_length_and_kind<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(61, 4)?, c.b.alloc(61)?);
    c.b.post_recv(link.peer, &[])?;
    let ids = link.qp.put_with_imm(dst.remote, src.view(), 9).say("put_with_imm")?;
    c.finish(&mut link, ids)?;
    let wc = c.b.wait(link.peer, 1)?[0];
    ensure_eq!(wc.opcode, WcOpcode::RECV_RDMA_WITH_IMM, "opcode of the receive");
    ensure_eq!(wc.byte_len, 61, "byte_len of the receive");
    ensure!(wc.wc_flags & IbvWc::WITH_IMM != 0, "the receive's flags lack WITH_IMM: {:#x}", wc.wc_flags);
    Ok(())
}

/// A put without an immediate is silent at the peer.
pub(crate) fn plain_put_takes_no_receive<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(32, 5)?, c.b.alloc(32)?);
    let recv = c.b.post_recv(link.peer, &[])?;
    let ids = link.qp.put(dst.remote, src.view()).say("put")?;
    c.finish(&mut link, ids)?;
    c.b.expect_pattern(dst, 5)?;
    c.wait.settle();
    let early = c.b.poll(link.peer, 4)?;
    ensure!(early.is_empty(), "a plain put completed at the peer: {}", list(&early));
    let ids = link.qp.put_with_imm(dst.remote, src.view(), 1).say("put_with_imm")?;
    c.finish(&mut link, ids)?;
    ensure_eq!(ids_of(&c.b.wait(link.peer, 1)?)?, [recv], "receives taken");
    Ok(())
}

/// T13: a transfer of several work requests announces itself once. Where messages are in order, its
/// bytes are there by then.
pub(crate) fn split_put_delivers_its_immediate_once<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let len = 2 * c.caps().max_msg_size + 9;
    let (mut link, src, dst) = (c.link()?, c.patterned(len, 6)?, c.b.alloc(len)?);
    let recvs = [c.b.post_recv(link.peer, &[])?, c.b.post_recv(link.peer, &[])?];
    let ids = link.qp.put_with_imm(dst.remote, src.view(), ASYMMETRIC).say("put_with_imm")?;
    ensure_eq!(ids.count, 3, "work requests");
    if c.caps().messages_in_order && c.b.caps.messages_in_order {
        let wc = c.b.wait(link.peer, 1)?[0];
        ensure_eq!((wc.wr_id, wc.imm()), (recvs[0], Some(ASYMMETRIC)), "id and immediate");
        c.b.expect_pattern_now(dst, 6)?;
        c.finish(&mut link, ids)?;
    } else {
        c.finish(&mut link, ids)?;
        let wc = c.b.wait(link.peer, 1)?[0];
        ensure_eq!((wc.wr_id, wc.imm()), (recvs[0], Some(ASYMMETRIC)), "id and immediate");
        c.b.expect_pattern(dst, 6)?;
    }
    c.wait.settle();
    let more = c.b.poll(link.peer, 4)?;
    ensure!(more.is_empty(), "one transfer took another receive: {}", list(&more));
    Ok(())
}

/// T13: whatever the order of messages, an immediate comes after the bytes of its own work request.
pub(crate) fn bytes_are_there_when_their_own_immediate_is<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let len = c.one_request(4096);
    let (mut link, src, dst) = (c.link()?, c.region(len)?, c.b.alloc(len)?);
    for round in 0..8 {
        src.write_at(0, &pattern(round, len)).say("fill")?;
        c.b.post_recv(link.peer, &[])?;
        let ids = link.qp.put_with_imm(dst.remote, src.view(), ASYMMETRIC).say("put_with_imm")?;
        ensure_eq!(ids.count, 1, "work requests");
        ensure_eq!(c.b.wait(link.peer, 1)?[0].imm(), Some(ASYMMETRIC), "immediate");
        c.b.expect_pattern_now(dst, round).map_err(|e| format!("round {round}: {e}"))?;
        c.finish(&mut link, ids)?;
    }
    Ok(())
}

/// T11: nothing but the immediate.
pub(crate) fn put_of_no_bytes_delivers_its_immediate<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.region(8)?, c.b.alloc(8)?);
    c.b.write(dst, 0, &[0x99; 8])?;
    c.b.post_recv(link.peer, &[])?;
    let none = src.view().slice(0, 0).say("slice")?;
    let ids = link.qp.put_with_imm(dst.remote, none, ASYMMETRIC).say("put_with_imm")?;
    c.finish(&mut link, ids)?;
    let wc = c.b.wait(link.peer, 1)?[0];
    ensure_eq!((wc.imm(), wc.byte_len), (Some(ASYMMETRIC), 0), "immediate and length");
    c.b.expect_untouched(dst, 0, &[0x99; 8])
}

/// A plain send carries none, whatever the one before it did.
pub(crate) fn send_without_an_immediate_reports_none<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(8, 7)?, c.b.alloc(8)?);
    for imm in [Some(5), None] {
        c.b.post_recv(link.peer, &[dst.whole()])?;
        let src = [src.view()];
        let request = match imm {
            Some(imm) => Request::send_with_imm(&src, imm),
            None => Request::send(&src),
        };
        let ids = link.qp.post(&request).say("send")?;
        c.finish(&mut link, ids)?;
        ensure_eq!(c.b.wait(link.peer, 1)?[0].imm(), imm, "immediate");
    }
    Ok(())
}

/// The peer's immediate arrives at end a in just the same way.
pub(crate) fn immediates_come_from_the_peer_too<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, dst, src) = (c.link()?, c.region(24)?, c.b.alloc(24)?);
    c.b.fill(src, 8)?;
    let recv = link.qp.post_recv(&[]).say("post_recv")?;
    let mut put = WireRequest::put(dst.remote(), src.whole());
    put.op = WireOp::WriteWithImm(ASYMMETRIC);
    c.b.post(link.peer, put)?;
    let wc = c.completions(&mut link, 1)?[0];
    ensure_eq!((wc.wr_id, wc.imm(), wc.byte_len), (recv, Some(ASYMMETRIC), 24), "id, immediate and length");
    ids_of(&c.b.wait(link.peer, 1)?)?;
    c.wait.until(|| "end b's bytes".into(), || Ok(ensure_pattern(&dst, 8).ok()))
}
