//! Completion channels: an armed queue wakes its waiter once, and nothing falls between arming and
//! waiting.

use super::prelude::*;
use ibv_core::{PollCompletionError, Request};

/// Takes events until there is one.
fn event<D: IbvDomainImpl>(c: &Ctx<'_, D>, link: &mut Link<D>) -> Result<u32, String> {
    c.wait.until(
        || "an event at the completion channel".into(),
        || Ok(Some(link.poller.take_events().say("take_events")?).filter(|n| *n > 0)),
    )
}

/// Armed, then a completion: one event, and the descriptor is there to wait on.
pub(crate) fn armed_queue_tells_of_the_next_completion<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link_with_channel()?, c.transfer(8, 1)?);
    ensure!(link.poller.channel().is_some(), "the queue has a channel and no descriptor for it");
    for _ in 0..3 {
        link.poller.arm(false).say("arm")?;
        c.wait.settle();
        ensure_eq!(link.poller.take_events().say("take_events")?, 0, "events before any completion");
        let ids = c.post(&mut link, t.all())?;
        ensure_eq!(event(c, &mut link)?, 1, "events");
        c.finish(&mut link, ids)?;
    }
    Ok(())
}

/// T14: what completes between arming and waiting is found by the poll in between, or wakes the waiter.
pub(crate) fn nothing_falls_between_arming_and_waiting<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link_with_channel()?, c.transfer(8, 2)?);
    for round in 0..12 {
        let ids = c.post(&mut link, t.all())?;
        if round % 3 == 0 {
            c.wait.settle();
        }
        link.poller.arm(false).say("arm")?;
        if round % 3 == 1 {
            c.wait.settle();
        }
        let mut one = [ibv_core::IbvWc::default(); 2];
        let mut n = link.poller.poll(&mut one).say("poll")?;
        if n == 0 {
            event(c, &mut link).map_err(|e| format!("round {round}: {e}"))?;
            n = link.poller.poll(&mut one).say("poll")?;
        }
        ensure_eq!((n, one[0].wr_id), (1, ids.first), "completions and id in round {round}");
        link.poller.take_events().say("take_events")?;
    }
    Ok(())
}

/// An event is for one arming: without arming again, further completions are silent.
pub(crate) fn unarmed_queue_tells_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link_with_channel()?, c.transfer(8, 3)?);
    let ids = c.post(&mut link, t.all())?;
    c.finish(&mut link, ids)?;
    ensure_eq!(link.poller.take_events().say("take_events")?, 0, "events of a queue never armed");
    link.poller.arm(false).say("arm")?;
    for _ in 0..3 {
        let ids = c.post(&mut link, t.all())?;
        c.finish(&mut link, ids)?;
    }
    ensure_eq!(event(c, &mut link)?, 1, "events of three completions after one arming");
    Ok(())
}

/// Armed for solicited completions only, a queue sleeps through the others.
pub(crate) fn solicited_only_sleeps_through_the_rest<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let config = c.config();
    let (src, dst) = (c.patterned(8, 4)?, c.b.alloc(8)?);
    let cq = c.a.create_cq(depth_of(&config)).say("create_cq")?;
    let mut qp = c.a.create_queue_pair(config.clone(), &cq, &cq).say("create_qp")?;
    let info = qp.get_qp_info().say("get_qp_info")?;
    let (peer, their_info) = c.b.create_qp(&config, true)?;
    c.b.connect(peer, &info)?;
    let mut qp = qp.connect(&their_info).map_err(|(_, e)| format!("connect: {e}"))?;
    c.b.post_recv(peer, &[dst.whole()])?;
    c.b.post_recv(peer, &[dst.whole()])?;
    c.b.arm(peer, true)?;
    let _ids = qp.send(src.view()).say("send")?;
    c.wait.settle();
    ensure_eq!(c.b.take_events(peer)?, 0, "events of a message that was not solicited");
    let _ids = qp.post(&Request::send(&[src.view()]).solicited()).say("solicited send")?;
    c.wait.until(
        || "the event of a solicited message".into(),
        || Ok(Some(c.b.take_events(peer)?).filter(|n| *n > 0)),
    )?;
    ids_of(&c.b.wait(peer, 2)?)?;
    Ok(())
}

/// A failure is told of even to those who wait for solicited completions only.
pub(crate) fn failure_wakes_whoever_waits_for_solicited_ones<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link_with_channel()?, c.transfer(8, 5)?);
    link.poller.arm(true).say("arm")?;
    let ids = t.all().astray().post(&mut link.qp).say("post")?;
    event(c, &mut link)?;
    c.failure(&mut link, ids.first).map(drop)
}

/// A queue created without a channel can not be armed, and says what to do.
pub(crate) fn queue_without_a_channel_is_not_armed<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut link = c.link()?;
    ensure_eq!(link.poller.arm(false), Err(PollCompletionError::NoChannel), "arming");
    ensure_eq!(link.poller.take_events(), Err(PollCompletionError::NoChannel), "taking events");
    ensure!(link.poller.channel().is_none(), "a descriptor of a channel that was not asked for");
    Ok(())
}

/// The peer's solicited message wakes end a, armed for those only; its plain one before did not.
pub(crate) fn solicited_message_of_the_peer_wakes<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, dst, src) = (c.link_with_channel()?, c.region(8)?, c.b.alloc(8)?);
    for _ in 0..2 {
        link.qp.post_recv(&[dst.view()]).say("post_recv")?;
    }
    link.poller.arm(true).say("arm")?;
    c.b.post(link.peer, WireRequest::send(src.whole()))?;
    c.wait.settle();
    ensure_eq!(
        link.poller.take_events().say("take_events")?,
        0,
        "events of a message that was not solicited"
    );
    c.b.post(link.peer, WireRequest::send(src.whole()).solicited())?;
    event(c, &mut link)?;
    c.ids(&mut link, 2).map(drop)
}
