//! Completions: one for each request, with its own id; polling in any portion. Sharing a queue is
//! `sharing`'s, waiting for events `channel`'s.

use super::prelude::*;
use crate::wait::Look;
use ibv_core::{IbvWc, PollCompletionError, PollTarget, Transport, WcOpcode, WcStatus};

/// A17, B10: none is lost, none comes twice, each names its request.
pub(crate) fn every_request_completes_once_with_its_own_id<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(64, 1)?);
    let (mut want, mut got) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        for i in 0..40 {
            let len = [64, 1, 0, 33][i % 4];
            want.extend(c.post(&mut link, t.part(0..64, 0..len)?)?.iter());
        }
        got.extend(c.ids(&mut link, 40)?);
    }
    c.no_completion(&mut link)?;
    got.sort_unstable();
    ensure_eq!(got, want, "ids of the completions");
    Ok(())
}

/// Users may route by queue pair number.
pub(crate) fn completions_name_their_queue_pair<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut links = [c.link()?, c.link()?];
    let t = c.transfer(8, 2)?;
    for i in [0, 1, 0] {
        let link = &mut links[i];
        let _ids = c.post(link, t.all())?;
        let wc = c.completions(link, 1)?[0];
        ensure_eq!((wc.qp_num, wc.status), (link.info.qp_num, WcStatus::SUCCESS), "number and status");
    }
    Ok(())
}

/// The opcode says what completed, and a get how much.
pub(crate) fn completions_tell_what_was_done<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, mine, theirs) = (c.link()?, c.patterned(40, 3)?, c.b.alloc(40)?);
    if c.caps().write.present() {
        let _ids = link.qp.put(theirs.remote, mine.view()).say("put")?;
        ensure_eq!(c.completions(&mut link, 1)?[0].opcode, WcOpcode::RDMA_WRITE, "opcode of a put");
    }
    if c.caps().read.present() {
        let _ids = link.qp.get(mine.view(), theirs.remote).say("get")?;
        let wc = c.completions(&mut link, 1)?[0];
        ensure_eq!(wc.opcode, WcOpcode::RDMA_READ, "opcode of a get");
        if link.info.transport != Transport::SRD {
            ensure_eq!(wc.byte_len, 40, "length of a get");
        }
    }
    Ok(())
}

/// The same for messages.
pub(crate) fn completions_of_messages_tell_what_was_done<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(12, 4)?, c.b.alloc(12)?);
    c.b.post_recv(link.peer, &[dst.whole()])?;
    let _ids = link.qp.send(src.view()).say("send")?;
    ensure_eq!(c.completions(&mut link, 1)?[0].opcode, WcOpcode::SEND, "opcode of a send");
    let wc = c.b.wait(link.peer, 1)?[0];
    ensure_eq!((wc.opcode, wc.byte_len), (WcOpcode::RECV, 12), "opcode and length of a receive");
    Ok(())
}

/// T14: portions of 1, 7 and 64 lose nothing, and never fill more than they were given.
pub(crate) fn polling_in_portions_loses_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(8, 5)?);
    for portion in [1, 7, 64] {
        let mut want = Vec::new();
        for _ in 0..64 {
            want.extend(c.post(&mut link, t.all())?.iter());
        }
        let (mut seen, mut out) = (Vec::new(), vec![IbvWc::default(); portion]);
        c.wait.until_all(
            || format!("64 completions in portions of {portion}"),
            || {
                let n = link.poller.poll(&mut out).say("poll")?;
                seen.extend(&out[..n]);
                Ok(Look::counted(n, seen.len(), 64))
            },
        )?;
        let mut got = ids_of(&seen)?;
        got.sort_unstable();
        ensure_eq!(got, want, "ids of the completions, in portions of {portion}");
    }
    Ok(())
}

/// Nothing is what an empty queue has, and no room takes nothing.
pub(crate) fn empty_queue_polls_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(8, 6)?);
    c.no_completion(&mut link)?;
    let ids = c.post(&mut link, t.all())?;
    c.wait.settle();
    ensure_eq!(link.poller.poll(&mut []).say("poll into nothing")?, 0, "completions into no room");
    c.finish(&mut link, ids)?;
    c.no_completion(&mut link)
}

/// The seeds' `poll_completion`: one entry a call, `None` when empty (A17).
pub(crate) fn poll_completion_takes_one_at_a_time<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (config, t) = (c.config(), c.transfer(8, 7)?);
    let cq = c.a.create_cq(depth_of(&config)).say("create_cq")?;
    let (mut qp, _peer) = c.connect_on(&cq, &config, &config)?;
    let poll = |qp: &mut D::QueuePair| qp.poll_completion(PollTarget::Send).say("poll_completion");
    ensure!(poll(qp.queue_pair())?.is_none(), "a completion of nothing");
    let mut want = Vec::new();
    for _ in 0..3 {
        want.extend(t.all().post_by_trait(qp.queue_pair()).say("post")?);
    }
    let mut got = Vec::new();
    c.wait.until(
        || "3 completions by poll_completion".into(),
        || {
            if let Some(one) = poll(qp.queue_pair())? {
                got.push(one.say("completion")?.wr_id());
            }
            Ok((got.len() == 3).then_some(()))
        },
    )?;
    got.sort_unstable();
    ensure_eq!(got, want, "ids of the completions");
    ensure!(poll(qp.queue_pair())?.is_none(), "a completion of nothing");
    Ok(())
}

/// A failed request is the inner error of `poll_completion`, with its id (A17).
pub(crate) fn poll_completion_reports_failures<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (config, t) = (c.config(), c.transfer(8, 8)?);
    let cq = c.a.create_cq(depth_of(&config)).say("create_cq")?;
    let (mut qp, _peer) = c.connect_on(&cq, &config, &config)?;
    let ids = t.all().astray().post_by_trait(qp.queue_pair()).say("post")?;
    let found = c.wait.until(
        || "a failure by poll_completion".into(),
        || qp.queue_pair().poll_completion(PollTarget::Send).say("poll_completion"),
    )?;
    let e = found.err().say("a request through a wrong key succeeded")?;
    ensure_eq!((Some(&e.wr_id), e.is_wr_flush_err()), (ids.first(), false), "id, and whether it is a flush");
    Ok(())
}

/// There is one poller of a queue at a time, whoever asks.
pub(crate) fn poller_is_exclusive<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(8, 9)?);
    let e = link.cq.poller().err().say("a second poller was handed out")?;
    ensure_eq!(e.kind(), ibv_core::ErrorKind::InUse, "kind of the error");
    let refused = link.qp.queue_pair().poll_completion(PollTarget::Send);
    ensure!(
        matches!(refused, Err(PollCompletionError::Claimed)),
        "poll_completion beside a poller: {refused:?}"
    );
    let ids = c.post(&mut link, t.all())?;
    c.finish(&mut link, ids)
}

/// Completions wait for whoever polls next.
pub(crate) fn poller_hands_over_what_it_left<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (Link { mut qp, mut poller, cq, peer, .. }, t) = (c.link()?, c.transfer(8, 10)?);
    let mut want = Vec::new();
    for _ in 0..6 {
        want.extend(c.post_on(&mut qp, peer, t.all())?.iter());
    }
    let mut one = [IbvWc::default()];
    c.wait.until(|| "a completion".into(), || Ok((poller.poll(&mut one).say("poll")? == 1).then_some(())))?;
    drop(poller);
    let mut next = cq.poller().say("poller after the first one dropped")?;
    let mut got = ids_of(&wait_on(&c.wait, &mut next, 5)?)?;
    got.push(one[0].wr_id);
    got.sort_unstable();
    ensure_eq!(got, want, "ids over both pollers");
    ensure_eq!(qp.in_flight(), 0, "requests in flight");
    Ok(())
}

/// Where completions are in order, a success may stay silent; its credit returns with the next signaled.
pub(crate) fn unsignaled_success_is_silent_and_gives_its_credit_back<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
) -> Done {
    let (mut link, t) = (c.link_with(&c.shallow(8), &c.config())?, c.transfer(64, 11)?);
    for round in 0..6 {
        let mut batch = link.qp.batch();
        for i in 0..7 {
            let part = t.piece(i * 8, 8)?;
            let _ids = batch.push(&part.request().unsignaled()).say("unsignaled request")?;
            c.meet(link.peer, part)?;
        }
        let part = t.piece(56, 8)?;
        let last = part.push(&mut batch).say("push")?;
        c.meet(link.peer, part)?;
        batch.ring().say("ring")?;
        ensure_eq!(c.ids(&mut link, 1)?, [last.first], "ids of the completions in round {round}");
        ensure_eq!(link.qp.free_slots(), 8, "free slots in round {round}");
        t.expect(c, 11)?;
        t.clear(c)?;
    }
    c.no_completion(&mut link)
}

/// A queue of silent requests alone could never drain, so the last slot has to be signaled.
pub(crate) fn queue_full_of_unsignaled_requests_is_refused<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link_with(&c.shallow(4), &c.config())?, c.transfer(8, 12)?);
    let part = t.all();
    let silent = part.request().unsignaled();
    let mut batch = link.qp.batch();
    for _ in 0..3 {
        let _ids = batch.push(&silent).say("unsignaled request")?;
        c.meet(link.peer, part)?;
    }
    ensure_eq!(batch.push(&silent), Err(ibv_core::PostError::NeedsSignal), "a fourth silent request of four");
    let last = batch.push(&part.request()).say("push")?;
    c.meet(link.peer, part)?;
    batch.ring().say("ring")?;
    ensure_eq!(c.ids(&mut link, 1)?, [last.first], "ids of the completions");
    Ok(())
}

/// Unsignaled is about success: a failure always reports.
pub(crate) fn unsignaled_failure_reports<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(8, 13)?);
    let ids = link.qp.post(&t.all().astray().request().unsignaled()).say("unsignaled request")?;
    c.failure(&mut link, ids.first).map(drop)
}

/// Sends report to one queue and receives to the other, where they are two.
pub(crate) fn sends_and_receives_report_to_their_own_queues<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (config, src, dst) = (c.config(), c.patterned(8, 14)?, c.region(8)?);
    let send_cq = c.a.create_cq(config.max_send_wr).say("create_cq")?;
    let recv_cq = c.a.create_cq(config.max_recv_wr.max(1)).say("create_cq")?;
    let mut qp = c.a.create_queue_pair(config.clone(), &send_cq, &recv_cq).say("create_qp")?;
    let info = qp.get_qp_info().say("get_qp_info")?;
    let (peer, their_info) = c.b.create_qp(&config, false)?;
    c.b.connect(peer, &info)?;
    let mut qp = qp.connect(&their_info).map_err(|(_, e)| format!("connect: {e}"))?;
    let (theirs, theirs_dst) = (c.b.alloc(8)?, c.b.alloc(8)?);
    let recv = qp.post_recv(&[dst.view()]).say("post_recv")?;
    c.b.post_recv(peer, &[theirs_dst.whole()])?;
    c.b.post(peer, WireRequest::send(theirs.whole()))?;
    let send = qp.send(src.view()).say("send")?;
    let mut sends = send_cq.poller().say("poller")?;
    let mut recvs = recv_cq.poller().say("poller")?;
    let (sent, received) = (wait_on(&c.wait, &mut sends, 1)?, wait_on(&c.wait, &mut recvs, 1)?);
    ensure_eq!(ids_of(&sent)?, [send.first], "ids on the send queue");
    ensure_eq!(ids_of(&received)?, [recv], "ids on the receive queue");
    // The first request of either queue has the same id.
    ensure_eq!((sent[0].opcode, received[0].opcode), (WcOpcode::SEND, WcOpcode::RECV), "opcodes");
    Ok(())
}

/// Poster and poller may be two threads: credits cross without a lock.
pub(crate) fn posting_and_polling_may_be_two_threads<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    const N: usize = 500;
    let (Link { mut qp, mut poller, peer, .. }, t) =
        (c.link_with(&c.shallow(8), &c.config())?, c.transfer(8, 15)?);
    let wait = c.wait.clone();
    let (posted, polled) = std::thread::scope(|s| {
        let poll = s.spawn(|| {
            let (mut seen, mut out) = (Vec::new(), [IbvWc::default(); 5]);
            let what = || format!("{N} completions on another thread");
            let done = wait.until_other_thread(what, || {
                let n = poller.poll(&mut out).say("poll")?;
                seen.extend(&out[..n]);
                Ok((seen.len() >= N).then_some(()))
            });
            done.map(|()| seen)
        });
        let mut posted = Vec::new();
        let post = wait.until_other_thread(
            || "room in the send queue".into(),
            || match c.try_post(&mut qp, peer, t.all())? {
                Ok(ids) => {
                    posted.push(ids.first);
                    Ok((posted.len() == N).then_some(()))
                }
                Err(ibv_core::PostError::QueueFull) => Ok(None),
                Err(e) => Err(format!("post: {e}")),
            },
        );
        let polled = poll.join().unwrap_or_else(|_| Err("the polling thread panicked".into()));
        (post.map(|()| posted), polled)
    });
    let (posted, mut polled) = (posted?, ids_of(&polled?)?);
    polled.sort_unstable();
    ensure_eq!(polled, posted, "ids over both threads");
    ensure_eq!(qp.free_slots(), 8, "free slots");
    Ok(())
}
