//! Completion queues that several queue pairs share, and the room that they reserve.

use super::prelude::*;
use ibv_core::{ErrorKind, IbvWc, PollCompletionError, PollTarget, QpState};

/// One poller serves many queue pairs; each gets its own ids and credits back.
pub(crate) fn shared_queue_gives_each_queue_pair_its_credits<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut config, t) = (c.shallow(4), c.transfer_into(8, 1, 64)?);
    config.max_recv_wr = 1;
    let theirs = c.receiving(config.clone(), 4);
    let cq = c.a.create_cq(3 * depth_of(&config)).say("create_cq")?;
    let mut qps = Vec::new();
    for _ in 0..3 {
        qps.push(c.connect_on(&cq, &config, &theirs)?);
    }
    let mut poller = cq.poller().say("poller")?;
    for round in 0..8 {
        let mut want = Vec::new();
        for (i, (qp, peer)) in qps.iter_mut().enumerate() {
            for _ in 0..=(i + round) % 4 {
                want.extend(c.post_on(qp, *peer, t.part(i * 8..i * 8 + 8, 0..8)?)?.iter());
            }
        }
        let mut got = ids_of(&wait_on(&c.wait, &mut poller, want.len())?)?;
        got.sort_unstable();
        want.sort_unstable();
        ensure_eq!(got, want, "ids in round {round}");
        let free: Vec<_> = qps.iter().map(|(qp, _)| qp.free_slots()).collect();
        ensure_eq!(free, [4, 4, 4], "free slots of each in round {round}");
    }
    Ok(())
}

/// `poll_completion` is for a queue's only user (decision 5).
pub(crate) fn poll_completion_is_refused_on_a_shared_queue<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let config = c.config();
    let cq = c.a.create_cq(2 * depth_of(&config)).say("create_cq")?;
    let (mut x, _) = c.connect_on(&cq, &config, &config)?;
    let (y, _) = c.connect_on(&cq, &config, &config)?;
    let refused = x.queue_pair().poll_completion(PollTarget::Send);
    ensure!(
        matches!(refused, Err(PollCompletionError::Shared)),
        "poll_completion on a shared queue: {refused:?}"
    );
    drop(y);
    let alone = x.queue_pair().poll_completion(PollTarget::Send);
    ensure!(matches!(alone, Ok(None)), "poll_completion once alone: {alone:?}");
    Ok(())
}

/// T14: room is reserved when a queue pair is created, so a queue can not be overrun.
pub(crate) fn queue_without_room_refuses_a_queue_pair<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let config = c.config();
    let (need, depth) = (depth_of(&config), depth_of(&config) + 1);
    let cq = c.a.create_cq(depth).say("create_cq")?;
    let (first, _) = c.connect_on(&cq, &config, &config)?;
    let e =
        c.a.create_queue_pair(config.clone(), &cq, &cq).err().say("a queue was shared beyond its depth")?;
    ensure_eq!(e.kind(), ErrorKind::OutOfResources, "kind of the error");
    let text = e.to_string();
    ensure!(text.contains(&depth.to_string()), "the error does not name the depth {depth}: {text}");
    drop(first);
    // The dead one's share returns once a poll has seen the queue empty.
    let mut poller = cq.poller().say("poller")?;
    poller.poll(&mut [IbvWc::default()]).say("poll")?;
    drop(poller);
    c.a.create_queue_pair(config, &cq, &cq)
        .map(drop)
        .map_err(|e| format!("{need} entries after the first went: {e}"))
}

/// T14: as many requests as fit into both queues, both ends, all at once, before the first poll.
pub(crate) fn full_queues_do_not_overrun_their_completion_queue<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
) -> Done {
    let mut config = c.shallow(16);
    config.max_recv_wr = 16;
    let (mut link, mine, theirs) = (c.link_with(&config, &config)?, c.region(8)?, c.b.alloc(8)?);
    for _ in 0..3 {
        for _ in 0..16 {
            link.qp.post_recv(&[mine.view()]).say("post_recv")?;
            c.b.post_recv(link.peer, &[theirs.whole()])?;
        }
        for _ in 0..16 {
            let _ids = link.qp.send(mine.view()).say("send")?;
            c.b.post(link.peer, WireRequest::send(theirs.whole()))?;
        }
        c.wait.settle();
        ids_of(&c.completions(&mut link, 32)?)?;
        ids_of(&c.b.wait(link.peer, 32)?)?;
    }
    Ok(())
}

/// Completions of a queue pair that is gone harm nobody, even if its number is used again.
pub(crate) fn stale_completions_harm_nobody<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut config, t) = (c.shallow(8), c.transfer(8, 2)?);
    config.max_recv_wr = 1;
    let theirs = c.receiving(config.clone(), 8);
    let cq = c.a.create_cq(4 * depth_of(&config)).say("create_cq")?;
    let mut poller = cq.poller().say("poller")?;
    for round in 0..6 {
        let (mut old, peer) = c.connect_on(&cq, &config, &theirs)?;
        for _ in 0..5 {
            let _ids = c.post_on(&mut old, peer, t.all())?;
        }
        if round % 2 == 0 {
            c.wait.settle();
        }
        drop(old);
        let (mut new, peer) = c.connect_on(&cq, &config, &theirs)?;
        let ids = c.post_on(&mut new, peer, t.all())?;
        let mut out = [IbvWc::default(); 4];
        c.wait.until(
            || format!("the new queue pair's completion in round {round}"),
            || {
                let n = poller.poll(&mut out).say("poll beside stale completions")?;
                Ok(out[..n].iter().any(|wc| wc.wr_id == ids.first).then_some(()))
            },
        )?;
        ensure_eq!((new.free_slots(), new.first_error()), (8, None), "credits and errors of the new one");
        ensure_eq!(new.state().say("state")?, QpState::RTS, "state of the new one");
        drop(new);
        c.wait.settle();
        while poller.poll(&mut out).say("poll")? > 0 {}
    }
    Ok(())
}

/// T9: queue pairs that share a queue come and go while one thread polls it.
pub(crate) fn queue_pairs_come_and_go_while_a_thread_polls<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut config, t) = (c.shallow(4), c.transfer(8, 3)?);
    config.max_recv_wr = 1;
    let theirs = c.receiving(config.clone(), 3);
    let cq = c.a.create_cq(16 * depth_of(&config)).say("create_cq")?;
    let mut poller = cq.poller().say("poller")?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let wait = c.wait.clone();
    std::thread::scope(|s| {
        let polling = s.spawn(|| {
            let mut out = [IbvWc::default(); 8];
            wait.until_other_thread(
                || "the other thread to finish".into(),
                || {
                    poller.poll(&mut out).say("poll")?;
                    Ok(stop.load(std::sync::atomic::Ordering::Relaxed).then_some(()))
                },
            )
        });
        let made = (|| {
            for _ in 0..40 {
                // A dead one's share of the queue returns when the other thread has seen it empty.
                let (mut qp, peer) = wait.until_other_thread(
                    || "the polling thread to give room back".into(),
                    || match c.connect_on(&cq, &config, &theirs) {
                        Err(e) if e.contains("reserved") => Ok(None),
                        made => made.map(Some),
                    },
                )?;
                for _ in 0..3 {
                    let _ids = c.post_on(&mut qp, peer, t.all())?;
                }
                drop(qp);
                c.b.drop_qp(peer)?;
            }
            Ok(())
        })();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let polled = polling.join().unwrap_or_else(|_| Err("the polling thread panicked".into()));
        made.and(polled)
    })
}
