//! From creation to use: states, endpoints, many queue pairs. What is agreed at connect is `handshake`'s,
//! how things end is `teardown`'s.

use super::prelude::*;
use ibv_core::{PostError, QpState};

/// A7, A9, A10, A19: RESET when created, RTS once connected.
pub(crate) fn queue_pair_starts_in_reset_and_reaches_rts<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut qp, _cq) = c.unconnected(&c.config())?;
    ensure_eq!(qp.state().say("state")?, QpState::RESET, "state after creation");
    let mut link = c.link()?;
    ensure_eq!(link.qp.state().say("state")?, QpState::RTS, "state after connect");
    ensure_eq!(c.b.state(link.peer)?, QpState::RTS, "end b's state after connect");
    Ok(())
}

/// A8, B8: an endpoint can be asked for in RESET, and later, and is always the same.
pub(crate) fn endpoint_is_readable_in_reset_and_stable<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut qp, _cq) = c.unconnected(&c.config())?;
    let info = qp.get_qp_info().say("get_qp_info")?;
    ensure_eq!(qp.get_qp_info().say("get_qp_info")?, info, "the endpoint asked for twice");
    let (peer, theirs) = c.b.create_qp(&c.config(), false)?;
    c.b.connect(peer, &info)?;
    let mut qp = qp.connect(&theirs).map_err(|(_, e)| format!("connect: {e}"))?;
    ensure_eq!(qp.queue_pair().get_qp_info().say("get_qp_info")?, info, "the endpoint after connect");
    ensure_eq!(c.b.endpoint(peer)?, theirs, "end b's endpoint after connect");
    Ok(())
}

/// Two live queue pairs are never one number.
pub(crate) fn live_queue_pairs_have_different_numbers<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut made = Vec::new();
    let mut numbers = Vec::new();
    for _ in 0..24 {
        let (mut qp, cq) = c.unconnected(&c.shallow(1))?;
        numbers.push(qp.get_qp_info().say("get_qp_info")?.qp_num);
        made.push((qp, cq));
    }
    numbers.sort_unstable();
    let all = numbers.len();
    numbers.dedup();
    ensure_eq!(numbers.len(), all, "different numbers of {all} live queue pairs");
    ensure!(numbers.iter().all(|n| n >> 24 == 0), "a queue pair number has more than 24 bits: {numbers:x?}");
    Ok(())
}

/// A19, T6: the seeds' tier can post before connect, and is told so.
pub(crate) fn nothing_is_posted_before_connect<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let ((mut qp, cq), mine, theirs) = (c.unconnected(&c.config())?, c.region(8)?, c.b.alloc(8)?);
    if c.caps().write.present() {
        let put = qp.queue_pair().put(theirs.remote, mine.view()).err().and_then(|e| e.post_error());
        ensure_eq!(put, Some(PostError::NotConnected), "a put before connect");
    }
    if c.caps().read.present() {
        let get = qp.queue_pair().get(mine.view(), theirs.remote).err().and_then(|e| e.post_error());
        ensure_eq!(get, Some(PostError::NotConnected), "a get before connect");
    }
    let mut poller = cq.poller().say("poller")?;
    c.wait.settle();
    ensure_eq!(poller.poll(&mut [ibv_core::IbvWc::default()]).say("poll")?, 0, "completions");
    c.b.expect_untouched(theirs, 0, &[0; 8])?;
    ensure_eq!(qp.state().say("state")?, QpState::RESET, "state");
    Ok(())
}

/// Receives that a peer may need at once are posted before connect, and count from then on.
pub(crate) fn receives_posted_before_connect_count<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (config, src, dst) = (c.config(), c.b.alloc(16)?, c.region(16)?);
    c.b.fill(src, 1)?;
    let (mut qp, cq) = c.unconnected(&config)?;
    let recv = qp.post_recv(&[dst.view()]).say("post_recv before connect")?;
    let info = qp.get_qp_info().say("get_qp_info")?;
    let (peer, their_info) = c.b.create_qp(&config, false)?;
    let theirs = c.b.alloc(16)?;
    let their_recv = c.b.post_recv(peer, &[theirs.whole()])?;
    c.b.connect(peer, &info)?;
    let mut qp = qp.connect(&their_info).map_err(|(_, e)| format!("connect: {e}"))?;
    c.b.post(peer, WireRequest::send(src.whole()))?;
    let mut poller = cq.poller().say("poller")?;
    ensure_eq!(ids_of(&wait_on(&c.wait, &mut poller, 1)?)?, [recv], "end a's receives");
    ensure_pattern(&dst, 1)?;
    ids_of(&c.b.wait(peer, 1)?)?;
    let _ids = qp.send(dst.view()).say("send")?;
    ensure_eq!(ids_of(&c.b.wait(peer, 1)?)?, [their_recv], "end b's receives");
    c.b.expect_pattern_now(theirs, 1)
}

/// Sixteen connections at once do not disturb each other.
pub(crate) fn many_queue_pairs_work_side_by_side<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut all = Vec::new();
    for seed in 0..16 {
        let mut config = c.shallow(8);
        config.max_recv_wr = 1;
        all.push((c.link_with(&config, &config)?, c.transfer(96, seed)?, seed));
    }
    let mut posted = Vec::new();
    for (link, t, _) in &mut all {
        posted.push(c.post(link, t.all())?);
    }
    for ((link, t, seed), ids) in all.iter_mut().zip(posted).rev() {
        c.finish(link, ids)?;
        t.expect(c, *seed)?;
    }
    Ok(())
}

/// Queue pairs and their queues come and go: nothing runs out, and each new one works.
pub(crate) fn queue_pairs_come_and_go<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let t = c.transfer(8, 3)?;
    for round in 0..32 {
        let mut link = c.link().map_err(|e| format!("round {round}: {e}"))?;
        let ids = c.post(&mut link, t.all())?;
        c.finish(&mut link, ids).map_err(|e| format!("round {round}: {e}"))?;
        c.b.drop_qp(link.peer)?;
    }
    t.expect(c, 3)
}

/// Whatever was made from a domain keeps it alive.
pub(crate) fn objects_outlive_their_domains_handle<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut near, mut far) = self::both::open(c)?;
    let way = c.way();
    let (from, to) = if way == Way::Get { (&far.memory, &near.memory) } else { (&near.memory, &far.memory) };
    from.write_at(0, &pattern(4, 24)).say("fill")?;
    near.domain = None;
    far.domain = None;
    if way == Way::Send {
        far.qp.post_recv(&[far.memory.view()]).say("post_recv")?;
    }
    let part = Part::between(way, near.memory.view(), far.memory.remote());
    let _ids = part.post(&mut near.qp).say("post")?;
    ids_of(&wait_on(&near.wait, &mut near.poller, 1)?)?;
    near.wait.until(|| "the bytes".into(), || Ok(ensure_pattern(to, 4).ok()))
}

/// Both ends by hand: for what no peer agent would do.
mod both {
    use super::*;
    use crate::wait::Waiter;
    use ibv_core::{Connected, IbvDomain, Poller};

    pub(super) struct Side<D: IbvDomainImpl> {
        pub qp: Connected<D::QueuePair>,
        pub poller: Poller<D>,
        pub memory: Region<D>,
        pub domain: Option<IbvDomain<D>>,
        pub wait: Waiter,
    }

    pub(super) fn open<D: IbvDomainImpl>(c: &Ctx<'_, D>) -> Result<(Side<D>, Side<D>), String> {
        let pair = (c.open)().map_err(|e| e.reason().to_owned())?;
        let wait = Waiter { progress: pair.progress.clone(), ..c.wait.clone() };
        let config = c.config();
        let cqs = [pair.a.create_cq(depth_of(&config)), pair.b.create_cq(depth_of(&config))];
        let [x, y] = cqs.map(|cq| cq.say("create_cq"));
        let (x, y) = (x?, y?);
        let mut near = pair.a.create_queue_pair(config.clone(), &x, &x).say("create_qp")?;
        let mut far = pair.b.create_queue_pair(config, &y, &y).say("create_qp")?;
        let (ours, theirs) = (near.get_qp_info().say("get_qp_info")?, far.get_qp_info().say("get_qp_info")?);
        let near = near.connect(&theirs).map_err(|(_, e)| format!("connect: {e}"))?;
        let far = far.connect(&ours).map_err(|(_, e)| format!("connect: {e}"))?;
        let near = Side {
            qp: near,
            poller: x.poller().say("poller")?,
            memory: pair.a.alloc(24).say("reg_mr")?,
            domain: Some(pair.a),
            wait: wait.clone(),
        };
        let far = Side {
            qp: far,
            poller: y.poller().say("poller")?,
            memory: pair.b.alloc(24).say("reg_mr")?,
            domain: Some(pair.b),
            wait,
        };
        Ok((near, far))
    }
}

/// Handles are `Send`: a queue pair, its poller and its region move to another thread and work there.
pub(crate) fn handles_move_between_threads<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(40, 5)?);
    let wait = c.wait.clone();
    c.meet(link.peer, t.all())?;
    let (mut link, t) = std::thread::scope(|s| {
        let worker = s.spawn(move || {
            let ids = t.all().post(&mut link.qp).say("post")?;
            let got = ids_of(&wait_on(&wait, &mut link.poller, 1)?)?;
            ensure_eq!(got, Vec::from(ids), "ids of the completions");
            Ok((link, t))
        });
        worker.join().unwrap_or_else(|_| Err("the other thread panicked".into()))
    })?;
    t.expect(c, 5)?;
    let near = t.near;
    std::thread::scope(|s| {
        s.spawn(move || drop(near));
    });
    c.no_completion(&mut link)
}

/// A18, B12: printing a handle touches no device memory and says something.
pub(crate) fn handles_print_in_every_state<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (qp, cq) = c.unconnected(&c.config())?;
    let (link, region) = (c.link()?, c.region(8)?);
    let texts = [
        format!("{qp:?}"),
        format!("{cq:?}"),
        format!("{:?}", link.qp),
        format!("{:?}", link.poller),
        format!("{region:?}"),
        format!("{:?}", c.a),
    ];
    ensure!(texts.iter().all(|t| !t.is_empty()), "a handle prints as nothing");
    let closing = link.qp.start_close().map_err(|(_, e)| format!("start_close: {e}"))?;
    ensure!(!format!("{closing:?}").is_empty(), "a closing queue pair prints as nothing");
    Ok(())
}
