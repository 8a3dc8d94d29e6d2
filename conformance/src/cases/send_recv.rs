//! Two-sided messages: one send, one receive. Immediates are `immediate`'s.

use super::prelude::*;
use ibv_core::{IbvRemoteMemoryRegionView, Op, Payload, PostError, Request, WcOpcode, WcStatus};

/// The receive reports what it took: id, length, opcode; and the bytes are there with it.
pub(crate) fn send_fills_a_receive_and_tells_its_length<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(77, 1)?, c.b.alloc(77)?);
    let recv = c.b.post_recv(link.peer, &[dst.whole()])?;
    let ids = link.qp.send(src.view()).say("send")?;
    c.finish(&mut link, ids)?;
    let wc = c.b.wait(link.peer, 1)?[0];
    ensure_eq!((wc.wr_id, wc.byte_len), (recv, 77), "id and length of the receive");
    ensure_eq!(
        (wc.status, wc.opcode),
        (WcStatus::SUCCESS, WcOpcode::RECV),
        "status and opcode of the receive"
    );
    c.b.expect_pattern_now(dst, 1)
}

/// A receive longer than the message keeps its tail.
pub(crate) fn send_into_a_longer_receive_leaves_the_rest<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(50, 2)?, c.b.alloc(82)?);
    c.b.write(dst, 0, &[0x44; 82])?;
    c.b.post_recv(link.peer, &[dst.whole()])?;
    let ids = link.qp.send(src.view()).say("send")?;
    c.finish(&mut link, ids)?;
    ensure_eq!(c.b.wait(link.peer, 1)?[0].byte_len, 50, "length of the receive");
    c.b.expect_bytes(dst, 0, &pattern(2, 50))?;
    c.b.expect_untouched(dst, 50, &[0x44; 32])
}

/// The n-th message meets the n-th receive.
pub(crate) fn sends_meet_receives_in_posting_order<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    const N: usize = 24;
    let (mut link, dst) = (c.link()?, c.b.alloc(N * 16)?);
    let src = c.patterned(N * 16, 3)?;
    let mut recvs = Vec::new();
    for i in 0..N {
        recvs.push(c.b.post_recv(link.peer, &[dst.range(i * 16, 16)])?);
    }
    for i in 0..N {
        let _ids = link.qp.send(src.view().slice(i * 16, 16).say("slice")?).say("send")?;
    }
    c.ids(&mut link, N)?;
    ensure_eq!(ids_of(&c.b.wait(link.peer, N)?)?, recvs, "receives in order of completion");
    c.b.expect_pattern_now(dst, 3)
}

/// A message of several ranges fills a receive of several others.
pub(crate) fn send_gathers_and_receive_scatters<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let config = several_ranges(c);
    let (mut link, src) = (c.link_with(&config, &config)?, c.patterned(64, 4)?);
    let (x, y) = (c.b.alloc(25)?, c.b.alloc(40)?);
    c.b.post_recv(link.peer, &[x.whole(), y.whole()])?;
    let cut = [src.view().slice(40, 24).say("slice")?, src.view().slice(0, 30).say("slice")?];
    let ids = link.qp.post(&Request::send(&cut)).say("send")?;
    c.finish(&mut link, ids)?;
    ensure_eq!(c.b.wait(link.peer, 1)?[0].byte_len, 54, "length of the receive");
    let p = pattern(4, 64);
    let want = [&p[40..], &p[..30]].concat();
    c.b.expect_bytes(x, 0, &want[..25])?;
    c.b.expect_bytes(y, 0, &want[25..])?;
    c.b.expect_untouched(y, 29, &[0; 11])
}

/// T11: a message of no bytes is a message.
pub(crate) fn send_of_no_bytes_completes_at_both_ends<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, dst) = (c.link()?, c.b.alloc(8)?);
    for ranges in [vec![], vec![dst.whole()]] {
        let recv = c.b.post_recv(link.peer, &ranges)?;
        let ids = link.qp.post(&Request::send(&[])).say("send")?;
        ensure_eq!(ids.count, 1, "work requests");
        c.finish(&mut link, ids)?;
        let wc = c.b.wait(link.peer, 1)?[0];
        ensure_eq!((wc.wr_id, wc.byte_len, wc.status), (recv, 0, WcStatus::SUCCESS), "the receive");
    }
    c.b.expect_untouched(dst, 0, &[0; 8])
}

/// Sends are never split: up to the limit they go, one byte more is refused before anything is posted.
pub(crate) fn send_goes_up_to_its_limit_and_no_further<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let max = c.caps().max_send_size.min(16 << 20);
    let (mut link, src, dst) = (c.link()?, c.patterned(max + 1, 5)?, c.b.alloc(max)?);
    c.b.post_recv(link.peer, &[dst.whole()])?;
    if max == c.caps().max_send_size {
        let refused = link.qp.send(src.view());
        ensure_eq!(refused, Err(PostError::MessageTooLong), "a send of {} bytes", max + 1);
    }
    let ids = link.qp.send(src.view().slice(0, max).say("slice")?).say("send")?;
    ensure_eq!(ids.count, 1, "work requests");
    c.finish(&mut link, ids)?;
    ensure_eq!(c.b.wait(link.peer, 1)?[0].byte_len as usize, max, "length of the receive");
    c.b.expect_pattern_now(dst, 5)
}

/// A message that does not fit its receive fails at both ends, and writes nothing beyond the receive.
pub(crate) fn send_too_long_for_its_receive_fails_at_both_ends<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(64, 6)?, c.b.alloc(64)?);
    let recv = c.b.post_recv(link.peer, &[dst.range(0, 63)])?;
    let ids = link.qp.send(src.view()).say("send")?;
    let wc = c.failure(&mut link, ids.first)?;
    ensure_eq!(wc.status, WcStatus::REM_INV_REQ_ERR, "status at the sender");
    let wc = c.b.wait(link.peer, 1)?[0];
    ensure_eq!((wc.wr_id, wc.status), (recv, WcStatus::LOC_LEN_ERR), "id and status at the receiver");
    c.b.expect_untouched(dst, 63, &[0])
}

/// T12: a send that finds no receive waits, and goes through once there is one.
pub(crate) fn late_receive_lets_a_waiting_send_through<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut config = c.config();
    config.rnr_retry = 7;
    let (mut link, src, dst) = (c.link_with(&config, &config)?, c.patterned(40, 7)?, c.b.alloc(40)?);
    let ids = link.qp.send(src.view()).say("send")?;
    // Not until the fabric is idle: a sender that retries for ever never is.
    for _ in 0..64 {
        (c.wait.progress)();
        let early = c.b.poll(link.peer, 1)?;
        ensure!(early.is_empty(), "a receive completed before it was posted: {}", list(&early));
    }
    let recv = c.b.post_recv(link.peer, &[dst.whole()])?;
    c.finish(&mut link, ids)?;
    ensure_eq!(ids_of(&c.b.wait(link.peer, 1)?)?, [recv], "receives taken");
    c.b.expect_pattern_now(dst, 7)
}

/// T12: where nobody ever receives, the sender learns it; with the default configuration too, because
/// retrying for ever has to be asked for.
pub(crate) fn missing_receive_ends_in_an_error<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    for rnr_retry in [0, 3, IbvConfig::default().rnr_retry] {
        let mut config = c.config();
        (config.rnr_retry, config.min_rnr_timer) = (rnr_retry, 1);
        let (mut link, src) = (c.link_with(&config, &config)?, c.patterned(8, 8)?);
        let ids = link.qp.send(src.view()).say("send")?;
        let wc = c.failure(&mut link, ids.first)?;
        ensure_eq!(wc.status, WcStatus::RNR_RETRY_EXC_ERR, "status with rnr_retry {rnr_retry}");
        let cause = link.qp.first_error().say("no root cause was kept")?;
        ensure_eq!((cause.wr_id, cause.status), (ids.first, wc.status), "root cause");
    }
    Ok(())
}

/// A put with immediate needs a receive as a send does.
pub(crate) fn missing_receive_fails_a_put_with_immediate<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut config = c.config();
    (config.rnr_retry, config.min_rnr_timer) = (1, 1);
    let (mut link, src, dst) = (c.link_with(&config, &config)?, c.patterned(8, 9)?, c.b.alloc(8)?);
    let ids = link.qp.put_with_imm(dst.remote, src.view(), 3).say("put_with_imm")?;
    let wc = c.failure(&mut link, ids.first)?;
    ensure_eq!(wc.status, WcStatus::RNR_RETRY_EXC_ERR, "status");
    Ok(())
}

/// Receives have credits of their own: full is full, and a completion makes room.
pub(crate) fn full_receive_queue_is_refused_and_recovers<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut config = c.config();
    config.max_recv_wr = 4;
    let (mut link, dst, src) = (c.link_with(&config, &config)?, c.region(64)?, c.b.alloc(64)?);
    for _ in 0..3 {
        let mut want = Vec::new();
        for _ in 0..4 {
            want.push(link.qp.post_recv(&[dst.view()]).say("post_recv")?);
        }
        ensure_eq!(link.qp.post_recv(&[dst.view()]), Err(PostError::QueueFull), "a receive too many");
        ensure_eq!(link.qp.free_recv_slots(), 0, "free receives");
        for _ in 0..4 {
            c.b.post(link.peer, WireRequest::send(src.whole()))?;
        }
        let mut got = c.ids(&mut link, 4)?;
        got.sort_unstable();
        ensure_eq!(got, want, "receives taken");
        ids_of(&c.b.wait(link.peer, 4)?)?;
        ensure_eq!(link.qp.free_recv_slots(), 4, "free receives");
    }
    Ok(())
}

/// More ranges than the queue pair was created for are refused.
pub(crate) fn receive_of_too_many_ranges_is_refused<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, dst) = (c.link()?, c.region(64)?);
    let limit = link.qp.config().max_recv_sge as usize;
    let ranges = vec![dst.view().slice(0, 1).say("slice")?; limit + 1];
    ensure_eq!(link.qp.post_recv(&ranges), Err(PostError::TooManySge), "a receive of {} ranges", limit + 1);
    ensure_eq!(link.qp.free_recv_slots(), link.qp.config().max_recv_wr, "free receives");
    link.qp.post_recv(&ranges[..limit]).map(drop).say("post_recv")
}

/// Both ends send at the same time, over the same connection.
pub(crate) fn sends_go_both_ways_at_once<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, ours, our_dst) = (c.link()?, c.patterned(30, 10)?, c.region(30)?);
    let (theirs, their_dst) = (c.b.alloc(30)?, c.b.alloc(30)?);
    c.b.fill(theirs, 11)?;
    let our_recv = link.qp.post_recv(&[our_dst.view()]).say("post_recv")?;
    let their_recv = c.b.post_recv(link.peer, &[their_dst.whole()])?;
    let (their_send, _) = c.b.post(link.peer, WireRequest::send(theirs.whole()))?;
    let our_send = link.qp.send(ours.view()).say("send")?.first;
    let (mut got, mut their_got) = (c.ids(&mut link, 2)?, ids_of(&c.b.wait(link.peer, 2)?)?);
    let (mut want, mut their_want) = (vec![our_recv, our_send], vec![their_recv, their_send]);
    [&mut got, &mut want, &mut their_got, &mut their_want].into_iter().for_each(|v| v.sort_unstable());
    ensure_eq!((got, their_got), (want, their_want), "ids at both ends");
    ensure_pattern(&our_dst, 11)?;
    c.b.expect_pattern_now(their_dst, 10)
}

/// Inline bytes can be sent too.
pub(crate) fn inline_bytes_can_be_sent<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut config = c.config();
    config.max_inline = 8;
    let (mut link, dst) = (c.link_with(&config, &config)?, c.b.alloc(8)?);
    c.b.post_recv(link.peer, &[dst.whole()])?;
    let request = Request::new(Op::Send, IbvRemoteMemoryRegionView::default(), Payload::Inline(b"sent raw"));
    let ids = link.qp.post(&request).say("send inline")?;
    c.finish(&mut link, ids)?;
    ensure_eq!(c.b.wait(link.peer, 1)?[0].byte_len, 8, "length of the receive");
    c.b.expect_bytes(dst, 0, b"sent raw")
}
