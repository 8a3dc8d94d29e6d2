//! T5: advertised is actual, both ways: what `Caps` offers works, and what it does not offer is refused with
//! the one name `Unsupported`, whatever number the device has for it.

use super::prelude::*;
use ibv_core::{ErrorKind, IbvRemoteMemoryRegionView, Op, Payload, PollCompletionError, PostError, Request};

/// Posts `request` where it is not offered: refused by name, and nothing is posted.
fn refused<D: IbvDomainImpl>(c: &Ctx<'_, D>, link: &mut Link<D>, what: &str, request: &Request<'_>) -> Done {
    ensure_eq!(link.qp.post(request), Err(PostError::Unsupported), "{what}, which is not offered");
    c.no_completion(link)
}

/// `Caps::write`.
pub(crate) fn put_is_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(32, 1)?, c.b.alloc(32)?);
    let view = [src.view()];
    let request = Request::put(dst.remote, &view);
    if !c.caps().write.present() {
        return refused(c, &mut link, "a put", &request);
    }
    let ids = link.qp.post(&request).say("put")?;
    c.finish(&mut link, ids)?;
    c.b.expect_pattern(dst, 1)
}

/// `Caps::read`.
pub(crate) fn get_is_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, dst, src) = (c.link()?, c.region(32)?, c.b.alloc(32)?);
    c.b.fill(src, 2)?;
    let view = [dst.view()];
    let request = Request::get(&view, src.remote);
    if !c.caps().read.present() {
        return refused(c, &mut link, "a get", &request);
    }
    let ids = link.qp.post(&request).say("get")?;
    c.finish(&mut link, ids)?;
    ensure_pattern(&dst, 2)
}

/// `Caps::write_with_imm`.
pub(crate) fn put_with_immediate_is_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(32, 3)?, c.b.alloc(32)?);
    let view = [src.view()];
    let request = Request::put_with_imm(dst.remote, &view, 77);
    if !c.caps().write_with_imm.present() {
        return refused(c, &mut link, "a put with immediate", &request);
    }
    c.b.post_recv(link.peer, &[])?;
    let ids = link.qp.post(&request).say("put_with_imm")?;
    c.finish(&mut link, ids)?;
    ensure_eq!(c.b.wait(link.peer, 1)?[0].imm(), Some(77), "immediate");
    c.b.expect_pattern(dst, 3)
}

/// `Caps::send` and `Caps::send_with_imm`.
pub(crate) fn send_is_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(32, 4)?, c.b.alloc(32)?);
    let (view, caps) = ([src.view()], c.caps());
    for (request, present, imm) in [
        (Request::send(&view), caps.send.present(), None),
        (Request::send_with_imm(&view, 78), caps.send_with_imm.present(), Some(78)),
    ] {
        if !present {
            refused(c, &mut link, "a send", &request)?;
            continue;
        }
        c.b.post_recv(link.peer, &[dst.whole()])?;
        let ids = link.qp.post(&request).say("send")?;
        c.finish(&mut link, ids)?;
        ensure_eq!(c.b.wait(link.peer, 1)?[0].imm(), imm, "immediate");
        c.b.expect_pattern_now(dst, 4)?;
    }
    Ok(())
}

/// `Caps::atomics`.
pub(crate) fn atomics_are_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, back, target) = (c.link()?, c.region(8)?, c.b.alloc(8)?);
    let view = [back.view()];
    let requests =
        [Request::fetch_add(target.remote, &view, 5), Request::compare_swap(target.remote, &view, 5, 9)];
    for request in &requests {
        if !c.caps().atomics.present() {
            refused(c, &mut link, "an atomic", request)?;
            continue;
        }
        let ids = link.qp.post(request).say("atomic")?;
        c.finish(&mut link, ids)?;
    }
    let after = if c.caps().atomics.present() { 9u64 } else { 0 };
    c.b.expect_bytes(target, 0, &after.to_ne_bytes())
}

/// `Caps::fence`.
pub(crate) fn fence_is_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(32, 5)?);
    let part = t.all();
    let request = part.request().fenced();
    if !c.caps().fence.present() {
        return refused(c, &mut link, "a fence", &request);
    }
    c.meet(link.peer, part)?;
    let ids = link.qp.post(&request).say("fenced request")?;
    c.finish(&mut link, ids)?;
    t.expect(c, 5)
}

/// `Caps::solicited`: the flag of a request, and arming for those alone.
pub(crate) fn solicited_events_are_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link_with_channel()?, c.patterned(32, 11)?, c.b.alloc(32)?);
    let view = [src.view()];
    let request = Request::send(&view).solicited();
    if !c.caps().solicited {
        let armed = link.poller.arm(true);
        ensure_eq!(armed, Err(PollCompletionError::Unsupported), "arming for solicited completions only");
        return refused(c, &mut link, "a solicited send", &request);
    }
    link.poller.arm(true).say("arm")?;
    c.b.post_recv(link.peer, &[dst.whole()])?;
    let ids = link.qp.post(&request).say("solicited send")?;
    c.finish(&mut link, ids)
}

/// `Caps::completions_in_order`: only then may a request be unsignaled.
pub(crate) fn unsignaled_requests_are_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(32, 6)?);
    let part = t.all();
    let request = part.request().unsignaled();
    if !c.caps().completions_in_order {
        return refused(c, &mut link, "an unsignaled request", &request);
    }
    c.meet(link.peer, part)?;
    let _silent = link.qp.post(&request).say("unsignaled request")?;
    let ids = c.post(&mut link, part)?;
    c.finish(&mut link, ids)?;
    t.expect(c, 6)
}

/// `Caps::max_inline`: all of it, and not one byte more.
pub(crate) fn inline_data_is_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let max = c.caps().max_inline;
    let op = c.inline_op().say("the case needs a put or a send")?;
    let mut config = c.config();
    config.max_inline = max;
    let theirs = c.config();
    let (mut link, dst) = (c.link_with(&config, &theirs)?, c.b.alloc(max as usize + 1)?);
    let data = pattern(7, max as usize + 1);
    let too_long = Request::new(op, dst.remote, Payload::Inline(&data));
    ensure_eq!(link.qp.post(&too_long), Err(PostError::InlineTooLong), "{} inline bytes", max + 1);
    let all = Request::new(op, dst.remote, Payload::Inline(&data[..max as usize]));
    if op == Op::Send {
        c.b.post_recv(link.peer, &[dst.whole()])?;
    }
    let ids = link.qp.post(&all).say("inline request")?;
    c.finish(&mut link, ids)?;
    c.b.expect_bytes(dst, 0, &data[..max as usize])?;
    c.b.expect_untouched(dst, max as usize, &[0])
}

/// Bytes that come back can not be inline.
pub(crate) fn inline_get_is_refused<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src) = (c.link()?, c.b.alloc(8)?);
    let request =
        Request::new(Op::Read, IbvRemoteMemoryRegionView { len: 0, ..src.remote }, Payload::Inline(&[]));
    ensure_eq!(link.qp.post(&request), Err(PostError::Unsupported), "an inline get");
    c.no_completion(&mut link)
}

/// `Caps::max_send_sge`: as many ranges as that in one request, and not one more.
pub(crate) fn number_of_ranges_is_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let max = c.caps().max_send_sge.min(32) as usize;
    let mut config = c.config();
    config.max_send_sge = max as u32;
    let theirs = c.config();
    let (mut link, t) = (c.link_with(&config, &theirs)?, c.transfer(64, 8)?);
    let ranges = (0..=max).map(|i| t.near.view().slice(i, 1).say("slice")).collect::<Result<Vec<_>, _>>()?;
    let too_many = t.way.request(&ranges, t.far.at(0, max + 1)?);
    ensure_eq!(link.qp.post(&too_many), Err(PostError::TooManySge), "{} ranges", max + 1);
    c.meet(link.peer, t.all())?;
    let ids = link.qp.post(&t.way.request(&ranges[..max], t.far.at(0, max)?)).say("post")?;
    c.finish(&mut link, ids)?;
    t.expect_bytes(c, 0, &pattern(8, max))?;
    t.expect_untouched(c, max, &[0; 8])
}

/// `Caps::max_send_wr`, `max_recv_wr`: a queue pair as deep as that exists, and takes as many requests.
pub(crate) fn queue_depths_are_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let caps = c.caps();
    let mut config = c.config();
    config.max_send_wr = caps.max_send_wr.min(caps.max_cqe / 2).min(1 << 14);
    config.max_recv_wr = caps.max_recv_wr.min(caps.max_cqe / 2).min(1 << 14);
    let theirs = c.config();
    let (mut link, t) = (c.link_with(&config, &theirs)?, c.transfer(8, 9)?);
    ensure_eq!(link.qp.free_slots(), config.max_send_wr, "free slots");
    ensure_eq!(link.qp.free_recv_slots(), config.max_recv_wr, "free receives");
    let mut batch = link.qp.batch();
    for i in 0..config.max_send_wr {
        let _ids = t.all().push(&mut batch).map_err(|e| format!("request {i}: {e}"))?;
    }
    ensure_eq!(t.all().push(&mut batch), Err(PostError::QueueFull), "one request more");
    batch.ring().say("ring")?;
    c.ids(&mut link, config.max_send_wr as usize)?;
    for i in 0..config.max_recv_wr {
        link.qp.post_recv(&[]).map_err(|e| format!("receive {i}: {e}"))?;
    }
    ensure_eq!(link.qp.post_recv(&[]), Err(PostError::QueueFull), "one receive more");
    Ok(())
}

/// `Caps::max_cqe`: more, or nothing at all, is refused with the limit.
pub(crate) fn completion_queue_depth_is_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let max = c.caps().max_cqe;
    for depth in [0].into_iter().chain(max.checked_add(1)) {
        let made = c.a.create_cq(depth);
        let e =
            made.err().ok_or_else(|| format!("a queue of {depth} entries was made; the limit is {max}"))?;
        ensure!(
            e.kind() == ErrorKind::InvalidConfig && e.to_string().contains(&max.to_string()),
            "not the limit: {e}"
        );
    }
    let cq = c.a.create_cq(max.min(1 << 16)).say("create_cq as deep as advertised")?;
    ensure_eq!(cq.depth(), max.min(1 << 16), "depth");
    c.a.create_cq(1).map(drop).say("create_cq of one entry")
}

/// `Caps::cq_channel`.
pub(crate) fn completion_channels_are_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let made = c.a.create_cq_with_channel(8);
    if c.caps().cq_channel.present() {
        let poller = made.say("create_cq with a channel")?.poller().say("poller")?;
        ensure!(poller.channel().is_some(), "the channel has no descriptor");
        return Ok(());
    }
    let e = made.err().say("a channel was made and is not offered")?;
    ensure_eq!(e.kind(), ErrorKind::Unsupported, "kind of the error");
    Ok(())
}

/// `Caps::events`.
pub(crate) fn asynchronous_events_are_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    match (c.a.events(), c.caps().events.present()) {
        (Ok(mut events), true) => {
            // Reading never blocks; what waits may be anything that happened to the device.
            for _ in 0..64 {
                if events.next_event().say("next_event")?.is_none() {
                    return Ok(());
                }
            }
            Err("64 events, and no end of them".into())
        }
        (Err(e), false) => {
            ensure_eq!(e.kind(), ErrorKind::Unsupported, "kind of the error");
            Ok(())
        }
        (Ok(_), false) => Err("events are reported and not offered".into()),
        (Err(e), true) => Err(format!("events are offered: {e}")),
    }
}

/// `Caps::loopback`: two queue pairs of one device reach each other.
pub(crate) fn loopback_is_as_advertised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (config, src, dst) = (c.config(), c.patterned(64, 10)?, c.region(64)?);
    let ((mut near, near_cq), (mut far, _far_cq)) = (c.unconnected(&config)?, c.unconnected(&config)?);
    let (ours, theirs) = (near.get_qp_info().say("get_qp_info")?, far.get_qp_info().say("get_qp_info")?);
    let mut far = far.connect(&ours).map_err(|(_, e)| format!("connect: {e}"))?;
    let mut near = near.connect(&theirs).map_err(|(_, e)| format!("connect: {e}"))?;
    let part = match c.way() {
        Way::Get => Part::between(Way::Get, dst.view(), src.remote()),
        way => Part::between(way, src.view(), dst.remote()),
    };
    if c.way() == Way::Send {
        far.post_recv(&[dst.view()]).say("post_recv")?;
    }
    let ids = part.post(&mut near).say("post")?;
    let mut poller = near_cq.poller().say("poller")?;
    ensure_eq!(ids_of(&wait_on(&c.wait, &mut poller, 1)?)?, Vec::from(ids), "ids of the completions");
    c.wait.until(|| "the bytes".into(), || Ok(ensure_pattern(&dst, 10).ok()))
}

/// Capabilities do not change while a domain lives, and contradict themselves nowhere.
pub(crate) fn capabilities_are_constant_and_consistent<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let caps = c.caps();
    let mut link = c.link()?;
    ensure_eq!(c.caps(), caps, "capabilities asked for twice");
    ensure!(
        caps.max_send_wr >= 1 && caps.max_cqe >= 1 && caps.max_send_sge >= 1,
        "a limit of none: {caps:?}"
    );
    let moves = caps.write.present() || caps.read.present() || caps.atomics.present();
    ensure!(!moves || caps.max_msg_size >= 1, "puts or gets are offered, of no bytes");
    ensure!(caps.max_mr_size >= 1, "regions of no bytes: {caps:?}");
    let receives = caps.send.present() || caps.write_with_imm.present();
    ensure!(!receives || caps.max_recv_wr >= 1, "messages are offered, and no receives");
    ensure!(!caps.send.present() || caps.max_send_size >= 1, "sends are offered, of no bytes");
    let outstanding = caps.read.present() || caps.atomics.present();
    ensure!(!outstanding || caps.max_rd_atomic >= 1, "gets are offered, and none may be outstanding");
    ensure_eq!(link.qp.max_msg_size(), caps.max_msg_size, "max_msg_size of the queue pair");
    ensure_eq!(link.qp.queue_pair().max_msg_size(), caps.max_msg_size, "max_msg_size by the trait");
    ensure_eq!(link.qp.free_slots(), link.qp.config().max_send_wr, "free slots of an idle queue pair");
    Ok(())
}
