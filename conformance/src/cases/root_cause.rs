//! One request fails, others are flushed: which was the cause, and that each is told of once.

use super::prelude::*;
use ibv_core::{IbvRemoteMemoryRegionView, IbvWc, QpState, Transport, WcStatus};

/// `n` transfers of which the `k`-th goes through a wrong key; all completions, and the ids as posted.
fn one_of_n_fails<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
    link: &mut Link<D>,
    n: usize,
    k: usize,
) -> Result<(Vec<IbvWc>, Vec<u64>), String> {
    let t = c.transfer(8, 1)?;
    let mut batch = link.qp.batch();
    let mut ids = Vec::new();
    for i in 0..n {
        let part = if i == k { t.all().astray() } else { t.all() };
        ids.extend(part.push(&mut batch).say("push")?.iter());
        if i != k {
            c.meet(link.peer, part)?;
        }
    }
    batch.ring().say("ring")?;
    Ok((c.completions(link, n)?, ids))
}

/// Whether one failure takes the queue pair down, as connections do; datagrams fail one by one.
fn fails_as_one<D: IbvDomainImpl>(link: &Link<D>) -> bool {
    link.info.transport != Transport::SRD
}

/// T8: one cause, kept with its id; everything else succeeded or is marked as its consequence.
pub(crate) fn first_error_is_the_cause_and_flushes_its_consequences<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
) -> Done {
    let status = c.way().refusal();
    for k in [0, 3, 7] {
        let mut link = c.link()?;
        let (wcs, ids) = one_of_n_fails(c, &mut link, 8, k)?;
        let causes: Vec<_> =
            wcs.iter().filter_map(|wc| wc.result().err()).filter(|e| !e.is_wr_flush_err()).collect();
        ensure_eq!(causes.len(), 1, "root causes; {}", list(&wcs));
        ensure_eq!((causes[0].wr_id, causes[0].status), (ids[k], status), "root cause");
        ensure_eq!(link.qp.first_error(), Some(causes[0]), "the root cause that was kept");
        if c.caps().completions_in_order && fails_as_one(&link) {
            let flushed = wcs.iter().filter(|wc| wc.status == WcStatus::WR_FLUSH_ERR).count();
            ensure_eq!(flushed, 7 - k, "flushes after request {k} of 8 failed");
        }
    }
    Ok(())
}

/// T8: each id once, whatever became of it, and all credits are back.
pub(crate) fn each_id_completes_once_after_an_error<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    for k in [0, 11, 23] {
        let mut link = c.link_with(&c.shallow(24), &c.config())?;
        let (wcs, ids) = one_of_n_fails(c, &mut link, 24, k)?;
        let mut got: Vec<_> = wcs.iter().map(|wc| wc.wr_id).collect();
        got.sort_unstable();
        ensure_eq!(got, ids, "ids of the completions");
        ensure_eq!((link.qp.free_slots(), link.qp.in_flight()), (24, 0), "free slots and requests in flight");
        c.no_completion(&mut link)?;
    }
    Ok(())
}

/// T8: the queue pair is in ERR, and its peer is not harmed by it.
pub(crate) fn queue_pair_is_in_error_after_an_error<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut link = c.link()?;
    if !fails_as_one(&link) {
        return Err(c.skip("a datagram transport fails request by request"));
    }
    ensure_eq!(link.qp.state().say("state")?, QpState::RTS, "state before the error");
    one_of_n_fails(c, &mut link, 2, 0)?;
    ensure_eq!(link.qp.state().say("state")?, QpState::ERR, "state after the error");
    Ok(())
}

/// What is posted to a queue pair in error is flushed, and reported.
pub(crate) fn posting_after_an_error_flushes<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut link = c.link()?;
    if !fails_as_one(&link) {
        return Err(c.skip("a datagram transport fails request by request"));
    }
    one_of_n_fails(c, &mut link, 1, 0)?;
    let cause = link.qp.first_error();
    let t = c.transfer(8, 2)?;
    for _ in 0..3 {
        let ids = t.all().post(&mut link.qp).say("post")?;
        let wc = c.failure(&mut link, ids.first)?;
        ensure_eq!(wc.status, WcStatus::WR_FLUSH_ERR, "status of a request posted after the error");
    }
    ensure_eq!(link.qp.first_error(), cause, "the root cause after flushes");
    t.expect_untouched(c, 0, &[0; 8])
}

/// Receives are flushed too: each id once, as failures, and nothing is left in flight.
pub(crate) fn receives_are_flushed_after_an_error<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, mine) = (c.link()?, c.region(8)?);
    if !fails_as_one(&link) {
        return Err(c.skip("a datagram transport fails request by request"));
    }
    let mut recvs = Vec::new();
    for _ in 0..5 {
        recvs.push(link.qp.post_recv(&[mine.view()]).say("post_recv")?);
    }
    let t = c.transfer(8, 3)?;
    let ids = t.all().astray().post(&mut link.qp).say("post")?;
    let wcs = c.completions(&mut link, 6)?;
    let mut flushed: Vec<_> =
        wcs.iter().filter(|wc| wc.status == WcStatus::WR_FLUSH_ERR).map(|wc| wc.wr_id).collect();
    flushed.sort_unstable();
    ensure_eq!(flushed, recvs, "receives flushed");
    let cause = link.qp.first_error().say("no root cause was kept")?;
    ensure_eq!(cause.wr_id, ids.first, "the root cause's request");
    ensure_eq!(link.qp.free_recv_slots(), link.qp.config().max_recv_wr, "free receives");
    Ok(())
}

/// T8: unsignaled requests before the failure stay silent, those behind it are flushed aloud.
pub(crate) fn unsignaled_requests_are_accounted_for_after_an_error<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
) -> Done {
    let (mut link, t) = (c.link_with(&c.shallow(16), &c.config())?, c.transfer(8, 4)?);
    let mut batch = link.qp.batch();
    let mut ids = Vec::new();
    for i in 0..9 {
        let part = if i == 4 { t.all().astray() } else { t.all() };
        ids.push(batch.push(&part.request().unsignaled()).say("unsignaled request")?.first);
        if i != 4 {
            c.meet(link.peer, part)?;
        }
    }
    batch.ring().say("ring")?;
    let wcs = c.completions(&mut link, 5)?;
    let got: Vec<_> = wcs.iter().map(|wc| wc.wr_id).collect();
    ensure_eq!(got, ids[4..], "ids that report");
    ensure!(wcs[1..].iter().all(|wc| wc.status == WcStatus::WR_FLUSH_ERR), "not flushes: {}", list(&wcs));
    ensure_eq!((link.qp.free_slots(), link.qp.in_flight()), (16, 0), "free slots and requests in flight");
    Ok(())
}

/// A split transfer that fails in the middle has one cause.
pub(crate) fn split_transfer_has_one_cause<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut link = c.link()?;
    let n = 3 * link.qp.max_msg_size();
    let (near, far) = (c.patterned(n, 5)?, c.b.alloc(n - link.qp.max_msg_size())?);
    let too_long = IbvRemoteMemoryRegionView { len: n, ..far.remote };
    let ids = Part::between(c.way(), near.view(), too_long).post(&mut link.qp).say("post")?;
    let wcs = c.completions(&mut link, 3)?;
    let bad: Vec<_> =
        wcs.iter().filter_map(|wc| wc.result().err()).filter(|e| !e.is_wr_flush_err()).collect();
    ensure_eq!(bad.len(), 1, "root causes; {}", list(&wcs));
    ensure_eq!(bad[0].wr_id, ids.last(), "the piece that does not fit");
    Ok(())
}
