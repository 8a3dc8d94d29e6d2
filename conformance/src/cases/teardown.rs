//! How things end: closing in two phases, and dropping in any state and any order.

use super::prelude::*;
use crate::wait::Look;
use ibv_core::{Closed, Connected, ErrorKind, IbvCq, IbvWc, PollTarget, QpState, WcStatus};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A queue pair whose completion queue nobody polls but itself, with its region and peer.
struct Own<D: IbvDomainImpl> {
    qp: Connected<D::QueuePair>,
    _cq: Arc<IbvCq<D>>,
    peer: PeerQp,
    t: Transfer<D>,
}

fn own<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Result<Own<D>, String> {
    let config = c.config();
    let cq = c.a.create_cq(depth_of(&config)).say("create_cq")?;
    let (qp, peer) = c.connect_on(&cq, &config, &config)?;
    Ok(Own { qp, _cq: cq, peer, t: c.transfer(256, 1)? })
}

/// What end b posts the same way, at end a's memory.
fn back<D: IbvDomainImpl>(way: Way, ours: &Region<D>, theirs: PeerRegion) -> WireRequest {
    match way {
        Way::Get => WireRequest::get(theirs.whole(), ours.remote()),
        _ => WireRequest::put(ours.remote(), theirs.whole()),
    }
}

/// Closes, at the latest in `wait`'s time; a simulated fabric runs beforehand, since `close` can not.
fn close<D: IbvDomainImpl>(c: &Ctx<'_, D>, qp: Connected<D::QueuePair>) -> Result<Closed, String> {
    c.wait.settle();
    qp.close(Instant::now() + c.wait.deadline).map_err(|(_, e)| format!("close: {e}"))
}

/// Row 36: `close` moves to ERR and waits until nothing is in flight.
pub(crate) fn close_drains_what_is_in_flight<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    for requests in [0, 1, 20] {
        let mut own = own(c)?;
        own.qp.post_recv(&[]).say("post_recv")?;
        for _ in 0..requests {
            let _ids = c.post_on(&mut own.qp, own.peer, own.t.all())?;
        }
        ensure_eq!(
            close(c, own.qp)?,
            Closed::Drained,
            "close with {requests} requests and a receive in flight"
        );
    }
    Ok(())
}

/// Unsignaled successes stay silent in ERR too; `close` knows when they are through.
pub(crate) fn close_drains_an_unsignaled_tail<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    for tail in [1, 5] {
        let mut own = own(c)?;
        let (part, mut batch) = (own.t.all(), own.qp.batch());
        let _ids = batch.push(&part.request()).say("push")?;
        c.meet(own.peer, part)?;
        for _ in 0..tail {
            let _ids = batch.push(&part.request().unsignaled()).say("unsignaled request")?;
            c.meet(own.peer, part)?;
        }
        batch.ring().say("ring")?;
        ensure_eq!(close(c, own.qp)?, Closed::Drained, "close with {tail} silent requests at the end");
    }
    Ok(())
}

/// Whoever can not poll waits no longer than asked, and says what it left.
pub(crate) fn close_gives_up_at_its_deadline<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (Link { mut qp, poller, cq, peer, .. }, t) = (c.link()?, c.transfer(8, 2)?);
    qp.post_recv(&[]).say("post_recv")?;
    for _ in 0..3 {
        let _ids = c.post_on(&mut qp, peer, t.all())?;
    }
    // The poller is claimed here, and nobody polls.
    let closed =
        qp.close(Instant::now() + Duration::from_millis(20)).map_err(|(_, e)| format!("close: {e}"))?;
    ensure_eq!(closed, Closed::Abandoned { sends: 3, recvs: 1 }, "close beside an idle poller");
    drop((poller, cq));
    Ok(())
}

/// Two phases beside one's own polling: ERR first, then everything reports, then it is drained.
pub(crate) fn two_phase_close_beside_ones_own_poller<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (Link { mut qp, mut poller, cq: _cq, peer, .. }, t) = (c.link()?, c.transfer(8, 3)?);
    let recv = qp.post_recv(&[]).say("post_recv")?;
    let mut want = vec![recv];
    for _ in 0..4 {
        want.extend(c.post_on(&mut qp, peer, t.all())?.iter());
    }
    let mut closing = qp.start_close().map_err(|(_, e)| format!("start_close: {e}"))?;
    ensure_eq!(closing.state().say("state")?, QpState::ERR, "state after the first phase");
    let wcs = wait_on(&c.wait, &mut poller, 5)?;
    let mut got: Vec<_> = wcs.iter().map(|wc| wc.wr_id).collect();
    got.sort_unstable();
    want.sort_unstable();
    ensure_eq!(got, want, "ids that report");
    let ends = [WcStatus::SUCCESS, WcStatus::WR_FLUSH_ERR];
    ensure!(wcs.iter().all(|wc| ends.contains(&wc.status)), "neither done nor flushed: {}", list(&wcs));
    ensure!(closing.is_drained(), "every request reported, and it is not drained");
    ensure_eq!(closing.finish(), Closed::Drained, "close");
    Ok(())
}

/// Closing is no failure: no root cause is kept of flushes, and the receive it flushed says so.
pub(crate) fn closing_flushes_receives_and_blames_nobody<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (Link { mut qp, mut poller, cq: _cq, .. }, mine) = (c.link()?, c.region(8)?);
    let recv = qp.post_recv(&[mine.view()]).say("post_recv")?;
    qp.queue_pair().enter_error().say("enter_error")?;
    let wc = wait_on(&c.wait, &mut poller, 1)?[0];
    ensure_eq!((wc.wr_id, wc.status), (recv, WcStatus::WR_FLUSH_ERR), "the receive");
    ensure_eq!(qp.first_error(), None, "root cause of a closed queue pair");
    Ok(())
}

/// The peer may go on writing, or reading, while this end closes.
pub(crate) fn closing_while_the_peer_writes_is_quiet<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let n = c.one_request(4096);
    let (mut config, ours, theirs) = (c.config(), c.region(n)?, c.b.alloc(n)?);
    (config.retry_cnt, config.timeout) = (1, 10);
    let Link { qp, poller, cq, peer, .. } = c.link_with(&config, &config)?;
    for _ in 0..8 {
        c.b.post(peer, back(c.way(), &ours, theirs))?;
    }
    (c.wait.progress)();
    let closing = qp.start_close().map_err(|(_, e)| format!("start_close: {e}"))?;
    (c.wait.progress)();
    ensure_eq!(closing.finish(), Closed::Drained, "close of a queue pair that had posted nothing");
    drop((poller, cq, ours));
    let wcs = c.b.wait(peer, 8)?;
    ensure_eq!(wcs.len(), 8, "end b's completions");
    Ok(())
}

/// T9, row 14: dropping is safe in RESET, RTS, with work in flight, in ERR, and while closing.
pub(crate) fn queue_pairs_drop_in_every_state<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let t = c.transfer(64, 4)?;
    drop(c.unconnected(&c.config())?);
    drop(c.link()?);
    for steps in 0..4 {
        let mut link = c.link()?;
        link.qp.post_recv(&[t.near.view()]).say("post_recv")?;
        for _ in 0..5 {
            let _ids = c.post(&mut link, t.all())?;
        }
        for _ in 0..steps {
            (c.wait.progress)();
        }
        drop(link);
    }
    let mut link = c.link()?;
    let ids = t.all().astray().post(&mut link.qp).say("post")?;
    c.failure(&mut link, ids.first)?;
    drop(link);
    let mut link = c.link()?;
    let _ids = c.post(&mut link, t.all())?;
    drop(link.qp.start_close().map_err(|(_, e)| format!("start_close: {e}"))?);
    works(c)
}

/// T9: whatever goes first, nothing breaks: queue pair, poller, completion queue, region, batch.
pub(crate) fn handles_drop_in_every_order<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    for order in orders() {
        let (Link { mut qp, poller, cq, peer, .. }, t) = (c.link()?, c.transfer(64, 5)?);
        for _ in 0..3 {
            let _ids = c.post_on(&mut qp, peer, t.all())?;
        }
        let (mut qp, mut poller, mut cq, mut near) = (Some(qp), Some(poller), Some(cq), Some(t.near));
        for what in order {
            match what {
                0 => drop(qp.take()),
                1 => drop(poller.take()),
                2 => drop(cq.take()),
                _ => drop(near.take()),
            }
            (c.wait.progress)();
        }
        c.wait.settle();
    }
    works(c)
}

/// All orders of four.
fn orders() -> Vec<Vec<u8>> {
    let pick = |(from, done): (Vec<u8>, Vec<u8>)| {
        (0..from.len()).map(move |i| {
            let (mut from, mut done) = (from.clone(), done.clone());
            done.push(from.remove(i));
            (from, done)
        })
    };
    let mut all = vec![(vec![0, 1, 2, 3], vec![])];
    for _ in 0..4 {
        all = all.into_iter().flat_map(pick).collect();
    }
    all.into_iter().map(|(_, done)| done).collect()
}

/// A new connection of the same domains moves bytes: nothing before has broken them.
fn works<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(32, 6)?);
    let ids = c.post(&mut link, t.all())?;
    c.finish(&mut link, ids)?;
    t.expect(c, 6)
}

/// T9: the peer goes first, with bytes on their way both ways.
pub(crate) fn peer_may_go_first<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let n = c.one_request(4096);
    let mut config = c.config();
    (config.retry_cnt, config.timeout) = (1, 10);
    let (mut link, mine, theirs) = (c.link_with(&config, &config)?, c.region(n)?, c.b.alloc(n)?);
    for _ in 0..4 {
        let part = Part::between(c.way(), mine.view(), theirs.remote);
        let _ids = part.post(&mut link.qp).say("post")?;
        c.b.post(link.peer, back(c.way(), &mine, theirs))?;
    }
    (c.wait.progress)();
    c.b.drop_qp(link.peer)?;
    let wcs = c.completions(&mut link, 4)?;
    ensure_eq!(wcs.len(), 4, "completions of what was in flight");
    drop(link);
    works(c)
}

/// No completion of a queue pair is written once it is gone.
pub(crate) fn nothing_completes_after_a_drop<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (Link { mut qp, mut poller, cq: _cq, peer, .. }, t) = (c.link()?, c.transfer(64, 7)?);
    for _ in 0..6 {
        let _ids = c.post_on(&mut qp, peer, t.all())?;
    }
    qp.post_recv(&[t.near.view()]).say("post_recv")?;
    drop(qp);
    let mut out = [IbvWc::default(); 16];
    while poller.poll(&mut out).say("poll")? > 0 {}
    c.wait.settle();
    let late = poller.poll(&mut out).say("poll")?;
    ensure!(late == 0, "a completion of a queue pair that is gone: {}", list(&out[..late]));
    Ok(())
}

/// A completion queue serves one connection after the other.
pub(crate) fn completion_queue_outlives_its_queue_pairs<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (config, t) = (c.config(), c.transfer(16, 8)?);
    let cq = c.a.create_cq(depth_of(&config)).say("create_cq")?;
    let mut poller = cq.poller().say("poller")?;
    for round in 0..8 {
        let (mut qp, peer) =
            c.connect_on(&cq, &config, &config).map_err(|e| format!("round {round}: {e}"))?;
        let ids = c.post_on(&mut qp, peer, t.all())?;
        let got = ids_of(&wait_on(&c.wait, &mut poller, 1)?)?;
        ensure_eq!(got, Vec::from(ids), "ids in round {round}");
        drop(qp);
        // The share of the dead one returns once the queue was seen empty.
        poller.poll(&mut [IbvWc::default()]).say("poll")?;
    }
    Ok(())
}

/// `mem::forget` of a poller is safe code: the queue is polled no more, nothing else happens.
pub(crate) fn forgotten_poller_harms_nobody<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (Link { mut qp, poller, cq, peer, .. }, t) = (c.link()?, c.transfer(16, 9)?);
    let _ids = c.post_on(&mut qp, peer, t.all())?;
    std::mem::forget(poller);
    let e = cq.poller().err().say("a second poller was handed out")?;
    ensure_eq!(e.kind(), ErrorKind::InUse, "kind of the error");
    t.expect(c, 9)?;
    drop((qp, cq));
    works(c)
}

/// A reset queue pair is as a new one: it keeps its endpoint, connects again, to another peer, and moves bytes;
/// nothing of a life before completes in the next.
pub(crate) fn a_reset_queue_pair_connects_again<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (config, mut own) = (c.config(), own(c)?);
    for life in 1..4 {
        own.qp.post_recv(&[]).say("post_recv")?;
        for _ in 0..life * 3 {
            let _ids = c.post_on(&mut own.qp, own.peer, own.t.all())?;
        }
        c.wait.settle();
        let before = own.qp.queue_pair().get_qp_info().say("get_qp_info")?;
        let mut qp = match own.qp.reset(Instant::now() + c.wait.deadline) {
            Ok(qp) => qp,
            Err((_, e)) if e.kind() == ErrorKind::Unsupported => return Err(c.skip(e.to_string())),
            Err((_, e)) => return Err(format!("reset: {e}")),
        };
        ensure_eq!(qp.state().say("state")?, QpState::RESET, "state after reset");
        ensure_eq!(qp.get_qp_info().say("get_qp_info")?, before, "endpoint after reset");
        let (peer, theirs) = c.b.create_qp(&config, false)?;
        c.b.connect(peer, &before)?;
        own.peer = peer;
        own.qp = qp.connect(&theirs).map_err(|(_, e)| format!("connect after reset: {e}"))?;
        ensure_eq!((own.qp.in_flight(), own.qp.first_error()), (0, None), "in flight, and what failed");
        let t = c.transfer(256, 1)?;
        let mut want = Vec::from(c.post_on(&mut own.qp, peer, t.all())?);
        let mut got = Vec::new();
        let look = || {
            let next = own.qp.queue_pair().poll_completion(PollTarget::Send).say("poll_completion")?;
            let next = next.transpose().say("the request after reset")?;
            let n = next.map_or(0, |wc| {
                got.push(wc.wr_id);
                1
            });
            Ok(Look::counted(n, got.len(), want.len()))
        };
        c.wait.until_all(|| "the request after reset".into(), look)?;
        got.sort_unstable();
        want.sort_unstable();
        ensure_eq!(got, want, "ids in life {life}");
        t.expect(c, 1)?;
    }
    Ok(())
}
