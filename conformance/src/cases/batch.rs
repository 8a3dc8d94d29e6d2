//! Batches and doorbells: all or nothing, nothing before the ring, everything after it.

use super::prelude::*;
use ibv_core::{Payload, PostError, Request};

/// One ring publishes all; ids are consecutive, and each completes once.
pub(crate) fn batch_posts_everything_with_one_ring<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    const N: usize = 16;
    let (mut link, t) = (c.link()?, c.transfer(N * 8, 1)?);
    let mut batch = link.qp.batch();
    let mut ids = Vec::new();
    for i in 0..N {
        let part = t.piece(i * 8, 8)?;
        ids.extend(part.push(&mut batch).say("push")?.iter());
        c.meet(link.peer, part)?;
    }
    batch.ring().say("ring")?;
    ensure!(ids.windows(2).all(|w| w[1] == w[0] + 1), "ids of a batch are not consecutive: {ids:x?}");
    let mut got = c.ids(&mut link, N)?;
    got.sort_unstable();
    ensure_eq!(got, ids, "ids of the completions");
    t.expect(c, 1)
}

/// T6: dropping a batch un-builds it: no byte moves, no credit is gone, the next request gets its id.
pub(crate) fn dropped_batch_posts_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer_into(96, 2, 64)?);
    let wrong = t.part(0..64, 0..64)?;
    let free = link.qp.free_slots();
    let mut batch = link.qp.batch();
    let first = wrong.push(&mut batch).say("push")?;
    let _second = wrong.push(&mut batch).say("push")?;
    drop(batch);
    ensure_eq!(link.qp.free_slots(), free, "free slots after the drop");
    c.no_completion(&mut link)?;
    t.expect_untouched(c, 0, &[0; 64])?;
    // The next doorbell must not publish what was dropped.
    let ids = c.post(&mut link, t.part(0..32, 64..96)?)?;
    ensure_eq!(ids, first, "ids after the drop");
    c.finish(&mut link, ids)?;
    c.no_completion(&mut link)?;
    t.expect_bytes(c, 0, &pattern(2, 96)[64..])?;
    t.expect_untouched(c, 32, &[0; 32])
}

/// T6: leaking a batch is safe code; the next doorbell does not ring it either.
pub(crate) fn leaked_batch_is_never_rung<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer_into(96, 4, 64)?);
    let mut batch = link.qp.batch();
    let leaked = t.part(0..64, 0..64)?.push(&mut batch).say("push")?;
    std::mem::forget(batch);
    c.no_completion(&mut link)?;
    let ids = c.post(&mut link, t.part(0..32, 64..96)?)?;
    ensure_eq!(ids, leaked, "ids after the leak");
    c.finish(&mut link, ids)?;
    c.no_completion(&mut link)?;
    t.expect_bytes(c, 0, &pattern(4, 96)[64..])?;
    t.expect_untouched(c, 32, &[0; 32])
}

/// The seeds' tier begins by discarding what a leaked batch built, too.
pub(crate) fn leaked_batch_is_not_rung_by_the_trait<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer_into(96, 6, 64)?);
    let mut batch = link.qp.batch();
    let _leaked = t.part(0..64, 0..64)?.push(&mut batch).say("push")?;
    std::mem::forget(batch);
    let ids = t.part(0..32, 64..96)?.post_by_trait(link.qp.queue_pair()).say("post")?;
    ensure_eq!(c.ids(&mut link, 1)?, ids, "ids of the completions");
    c.no_completion(&mut link)?;
    t.expect_bytes(c, 0, &pattern(6, 96)[64..])?;
    t.expect_untouched(c, 32, &[0; 32])
}

/// What is built is invisible until the ring (A15).
pub(crate) fn unrung_requests_are_invisible<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(48, 8)?);
    let mut batch = link.qp.batch();
    let ids = t.all().push(&mut batch).say("push")?;
    c.meet(link.peer, t.all())?;
    t.expect_untouched(c, 0, &[0; 48])?;
    let early = wait_nothing(c, &mut link.poller)?;
    ensure_eq!(early, 0, "completions before the ring");
    batch.ring().say("ring")?;
    c.finish(&mut link, ids)?;
    t.expect(c, 8)
}

fn wait_nothing<D: IbvDomainImpl>(c: &Ctx<'_, D>, poller: &mut ibv_core::Poller<D>) -> Result<usize, String> {
    c.wait.settle();
    poller.poll(&mut [ibv_core::IbvWc::default(); 4]).say("poll")
}

/// Ringing an empty batch does nothing, as often as one likes (A16).
pub(crate) fn ringing_nothing_does_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(16, 9)?);
    for _ in 0..3 {
        link.qp.batch().ring().say("ring of nothing")?;
    }
    c.no_completion(&mut link)?;
    let ids = c.post(&mut link, t.all())?;
    link.qp.batch().ring().say("ring of nothing")?;
    c.finish(&mut link, ids)?;
    t.expect(c, 9)
}

/// A batch may be longer than what the device takes between two doorbells.
pub(crate) fn batch_fills_the_whole_queue<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let depth = c.caps().max_send_wr.min(300);
    let theirs = c.receiving(c.config(), depth);
    let (mut link, n) = (c.link_with(&c.shallow(depth), &theirs)?, depth as usize);
    let t = c.transfer(n * 4, 10)?;
    for _ in 0..3 {
        let mut batch = link.qp.batch();
        for i in 0..n {
            let part = t.piece(i * 4, 4)?;
            let _ids = part.push(&mut batch).map_err(|e| format!("request {i} of {n}: {e}"))?;
            c.meet(link.peer, part)?;
        }
        batch.ring().say("ring")?;
        c.ids(&mut link, n)?;
        t.expect(c, 10)?;
        t.clear(c)?;
    }
    Ok(())
}

/// A refused request leaves the rest of its batch as it was, and refusing costs no credit.
pub(crate) fn refused_request_leaves_its_batch_intact<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(64, 11)?);
    let mut batch = link.qp.batch();
    let first = t.piece(0, 32)?.push(&mut batch).say("push")?;
    let too_long = t.part(0..63, 0..64)?;
    ensure_eq!(too_long.push(&mut batch), Err(PostError::OutOfBounds), "a transfer that does not fit");
    let last = t.piece(32, 32)?.push(&mut batch).say("push")?;
    batch.ring().say("ring")?;
    ensure_eq!(last.first, first.first + 1, "id after a refused request");
    c.ids(&mut link, 2)?;
    t.expect(c, 11)
}

/// Puts and gets in one batch.
pub(crate) fn puts_and_gets_mix_in_a_batch<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, back) = (c.link()?, c.patterned(128, 12)?, c.region(128)?);
    let (dst, theirs) = (c.b.alloc(128)?, c.b.alloc(128)?);
    c.b.fill(theirs, 13)?;
    let mut batch = link.qp.batch();
    for i in 0..8 {
        let _ids = batch.put(dst.at(i * 16, 16)?, src.view().slice(i * 16, 16).say("slice")?).say("put")?;
        let _ids =
            batch.get(back.view().slice(i * 16, 16).say("slice")?, theirs.at(i * 16, 16)?).say("get")?;
    }
    batch.ring().say("ring")?;
    c.ids(&mut link, 16)?;
    ensure_pattern(&back, 13)?;
    c.b.expect_pattern(dst, 12)
}

/// T6: full is an error of its own, nothing is overwritten, and completions make room; many times over.
pub(crate) fn full_queue_is_refused_and_recovers<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link_with(&c.shallow(8), &c.config())?, c.transfer_into(8, 14, 80)?);
    for round in 0..5 {
        ensure_eq!(link.qp.free_slots(), 8, "free slots in round {round}");
        let mut want = Vec::new();
        for i in 0..8 {
            want.extend(c.post(&mut link, t.part(i * 8..i * 8 + 8, 0..8)?)?.iter());
        }
        let refused = t.part(72..80, 0..8)?.post(&mut link.qp);
        ensure_eq!(refused, Err(PostError::QueueFull), "a request into a full queue");
        let mut got = c.ids(&mut link, 8)?;
        got.sort_unstable();
        ensure_eq!(got, want, "ids of the completions in round {round}");
    }
    t.expect_untouched(c, 72, &[0; 8])
}

/// A transfer of more work requests than there are slots is refused whole.
pub(crate) fn transfer_larger_than_the_queue_is_refused_whole<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let max = c.caps().max_msg_size;
    let (mut link, t) = (c.link_with(&c.shallow(2), &c.config())?, c.transfer(2 * max + 1, 15)?);
    let refused = t.all().post(&mut link.qp);
    ensure_eq!(refused, Err(PostError::QueueFull), "three requests into two slots");
    ensure_eq!(link.qp.free_slots(), 2, "free slots");
    c.no_completion(&mut link)?;
    t.expect_untouched(c, 0, &[0; 64])?;
    let ids = c.post(&mut link, t.piece(0, 2 * max)?)?;
    c.finish(&mut link, ids)?;
    t.expect_range(c, 0..2 * max, 15, 0)
}

/// T6: what `ibv_post_send` answers with one number are four errors, and none of them posts anything.
pub(crate) fn refusals_have_names_and_post_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link_with(&c.shallow(2), &c.config())?, c.transfer(64, 16)?);
    let (sges, inline) = (link.qp.config().max_send_sge as usize, link.qp.config().max_inline as usize);
    let ranges = vec![t.near.view().slice(0, 1).say("slice")?; sges + 1];
    let several = t.way.request(&ranges, t.far.at(0, sges + 1)?);
    let mut batch = link.qp.batch();
    ensure_eq!(batch.push(&several), Err(PostError::TooManySge), "{} ranges", sges + 1);
    if let Some(op) = c.inline_op() {
        let data = vec![0; inline + 1];
        let too_long = Request::new(op, t.far.remote, Payload::Inline(&data));
        ensure_eq!(batch.push(&too_long), Err(PostError::InlineTooLong), "{} inline bytes", inline + 1);
    }
    if t.way != Way::Send {
        let beyond = t.part(0..8, 0..64)?.push(&mut batch);
        ensure_eq!(beyond, Err(PostError::OutOfBounds), "a transfer that does not fit");
    }
    batch.ring().say("ring of nothing")?;
    ensure_eq!(link.qp.free_slots(), 2, "free slots");
    c.no_completion(&mut link)?;
    t.expect_untouched(c, 0, &[0; 64])?;
    let mut batch = link.qp.batch();
    for _ in 0..2 {
        let _ids = t.all().push(&mut batch).say("push")?;
        c.meet(link.peer, t.all())?;
    }
    let third = t.all().push(&mut batch);
    ensure_eq!(third, Err(PostError::QueueFull), "a third request in two slots");
    batch.ring().say("ring")?;
    c.ids(&mut link, 2)?;
    t.expect(c, 16)
}

/// Ids go on counting over batches, over refusals and over dropped batches.
pub(crate) fn ids_count_on_over_batches<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(8, 17)?);
    let mut next = None;
    for round in 0..200 {
        let dropped = t.all().push(&mut link.qp.batch()).say("push")?;
        let ids = c.post(&mut link, t.all())?;
        ensure_eq!(dropped, ids, "id of a dropped request and of the next, round {round}");
        ensure!(next.is_none_or(|n| n == ids.first), "round {round}: id {:#x} does not follow", ids.first);
        next = Some(ids.first + 1);
        c.finish(&mut link, ids)?;
    }
    Ok(())
}
