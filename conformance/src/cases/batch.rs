//! Batches and doorbells: all or nothing, nothing before the ring, everything after it.

use super::prelude::*;
use ibv_core::{Op, Payload, PostError, Request};

/// One ring publishes all; ids are consecutive, and each completes once.
pub(crate) fn batch_posts_everything_with_one_ring<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    const N: usize = 16;
    let (mut link, src, dst) = (c.link()?, c.patterned(N * 8, 1)?, c.b.alloc(N * 8)?);
    let mut batch = link.qp.batch();
    let mut ids = Vec::new();
    for i in 0..N {
        let part = src.view().slice(i * 8, 8).say("slice")?;
        ids.extend(batch.put(dst.at(i * 8, 8)?, part).say("put")?.iter());
    }
    batch.ring().say("ring")?;
    ensure!(ids.windows(2).all(|w| w[1] == w[0] + 1), "ids of a batch are not consecutive: {ids:x?}");
    let mut got = c.ids(&mut link, N)?;
    got.sort_unstable();
    ensure_eq!(got, ids, "ids of the completions");
    c.b.expect_pattern(dst, 1)
}

/// T6: dropping a batch un-builds it: no byte moves, no credit is gone, the next request gets its id.
pub(crate) fn dropped_batch_posts_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, wrong, src) = (c.link()?, c.patterned(64, 2)?, c.patterned(64, 3)?);
    let dst = c.b.alloc(64)?;
    let free = link.qp.free_slots();
    let mut batch = link.qp.batch();
    let first = batch.put(dst.remote, wrong.view()).say("put")?;
    let _second = batch.put(dst.remote, wrong.view()).say("put")?;
    drop(batch);
    ensure_eq!(link.qp.free_slots(), free, "free slots after the drop");
    c.no_completion(&mut link)?;
    c.b.expect_untouched(dst, 0, &[0; 64])?;
    // The next doorbell must not publish what was dropped.
    let ids = link.qp.put(dst.at(0, 32)?, src.view().slice(0, 32).say("slice")?).say("put")?;
    ensure_eq!(ids, first, "ids after the drop");
    c.finish(&mut link, ids)?;
    c.no_completion(&mut link)?;
    c.b.expect_bytes(dst, 0, &pattern(3, 64)[..32])?;
    c.b.expect_untouched(dst, 32, &[0; 32])
}

/// T6: leaking a batch is safe code; the next doorbell does not ring it either.
pub(crate) fn leaked_batch_is_never_rung<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, wrong, src) = (c.link()?, c.patterned(64, 4)?, c.patterned(32, 5)?);
    let dst = c.b.alloc(64)?;
    let mut batch = link.qp.batch();
    let leaked = batch.put(dst.remote, wrong.view()).say("put")?;
    std::mem::forget(batch);
    c.no_completion(&mut link)?;
    let ids = link.qp.put(dst.at(0, 32)?, src.view()).say("put")?;
    ensure_eq!(ids, leaked, "ids after the leak");
    c.finish(&mut link, ids)?;
    c.no_completion(&mut link)?;
    c.b.expect_bytes(dst, 0, &pattern(5, 32))?;
    c.b.expect_untouched(dst, 32, &[0; 32])
}

/// The seeds' tier begins by discarding what a leaked batch built, too.
pub(crate) fn leaked_batch_is_not_rung_by_the_trait<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, wrong, src) = (c.link()?, c.patterned(64, 6)?, c.patterned(32, 7)?);
    let dst = c.b.alloc(64)?;
    let mut batch = link.qp.batch();
    let _leaked = batch.put(dst.remote, wrong.view()).say("put")?;
    std::mem::forget(batch);
    let ids = link.qp.queue_pair().put(dst.at(0, 32)?, src.view()).say("put")?;
    ensure_eq!(c.ids(&mut link, 1)?, ids, "ids of the completions");
    c.no_completion(&mut link)?;
    c.b.expect_bytes(dst, 0, &pattern(7, 32))?;
    c.b.expect_untouched(dst, 32, &[0; 32])
}

/// What is built is invisible until the ring (A15).
pub(crate) fn unrung_requests_are_invisible<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(48, 8)?, c.b.alloc(48)?);
    let mut batch = link.qp.batch();
    let ids = batch.put(dst.remote, src.view()).say("put")?;
    c.b.expect_untouched(dst, 0, &[0; 48])?;
    let early = wait_nothing(c, &mut link.poller)?;
    ensure_eq!(early, 0, "completions before the ring");
    batch.ring().say("ring")?;
    c.finish(&mut link, ids)?;
    c.b.expect_pattern(dst, 8)
}

fn wait_nothing<D: IbvDomainImpl>(c: &Ctx<'_, D>, poller: &mut ibv_core::Poller<D>) -> Result<usize, String> {
    c.wait.settle();
    poller.poll(&mut [ibv_core::IbvWc::default(); 4]).say("poll")
}

/// Ringing an empty batch does nothing, as often as one likes (A16).
pub(crate) fn ringing_nothing_does_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(16, 9)?, c.b.alloc(16)?);
    for _ in 0..3 {
        link.qp.batch().ring().say("ring of nothing")?;
    }
    c.no_completion(&mut link)?;
    let ids = link.qp.put(dst.remote, src.view()).say("put")?;
    link.qp.batch().ring().say("ring of nothing")?;
    c.finish(&mut link, ids)?;
    c.b.expect_pattern(dst, 9)
}

/// A batch may be longer than what the device takes between two doorbells.
pub(crate) fn batch_fills_the_whole_queue<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let depth = c.caps().max_send_wr.min(300);
    let (mut link, n) = (c.link_with(&c.shallow(depth), &c.config())?, depth as usize);
    let (src, dst) = (c.patterned(n * 4, 10)?, c.b.alloc(n * 4)?);
    for _ in 0..3 {
        let mut batch = link.qp.batch();
        for i in 0..n {
            let part = src.view().slice(i * 4, 4).say("slice")?;
            let _ids = batch.put(dst.at(i * 4, 4)?, part).map_err(|e| format!("put {i} of {n}: {e}"))?;
        }
        batch.ring().say("ring")?;
        c.ids(&mut link, n)?;
        c.b.expect_pattern(dst, 10)?;
        c.b.fill(dst, 0)?;
    }
    Ok(())
}

/// A refused request leaves the rest of its batch as it was, and refusing costs no credit.
pub(crate) fn refused_request_leaves_its_batch_intact<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(64, 11)?, c.b.alloc(64)?);
    let mut batch = link.qp.batch();
    let first = batch.put(dst.at(0, 32)?, src.view().slice(0, 32).say("slice")?).say("put")?;
    ensure_eq!(batch.put(dst.at(0, 63)?, src.view()), Err(PostError::OutOfBounds), "a put that does not fit");
    let last = batch.put(dst.at(32, 32)?, src.view().slice(32, 32).say("slice")?).say("put")?;
    batch.ring().say("ring")?;
    ensure_eq!(last.first, first.first + 1, "id after a refused request");
    c.ids(&mut link, 2)?;
    c.b.expect_pattern(dst, 11)
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
    let (mut link, src, dst) =
        (c.link_with(&c.shallow(8), &c.config())?, c.patterned(8, 14)?, c.b.alloc(80)?);
    for round in 0..5 {
        ensure_eq!(link.qp.free_slots(), 8, "free slots in round {round}");
        let mut want = Vec::new();
        for i in 0..8 {
            want.extend(link.qp.put(dst.at(i * 8, 8)?, src.view()).say("put")?.iter());
        }
        let refused = link.qp.put(dst.at(72, 8)?, src.view());
        ensure_eq!(refused, Err(PostError::QueueFull), "a put into a full queue");
        let mut got = c.ids(&mut link, 8)?;
        got.sort_unstable();
        ensure_eq!(got, want, "ids of the completions in round {round}");
    }
    c.b.expect_untouched(dst, 72, &[0; 8])
}

/// A transfer of more work requests than there are slots is refused whole.
pub(crate) fn transfer_larger_than_the_queue_is_refused_whole<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let max = c.caps().max_msg_size;
    let (mut link, src) = (c.link_with(&c.shallow(2), &c.config())?, c.patterned(2 * max + 1, 15)?);
    let dst = c.b.alloc(2 * max + 1)?;
    ensure_eq!(
        link.qp.put(dst.remote, src.view()),
        Err(PostError::QueueFull),
        "three requests into two slots"
    );
    ensure_eq!(link.qp.free_slots(), 2, "free slots");
    c.no_completion(&mut link)?;
    c.b.expect_untouched(dst, 0, &[0; 64])?;
    let ids = link.qp.put(dst.at(0, 2 * max)?, src.view().slice(0, 2 * max).say("slice")?).say("put")?;
    c.finish(&mut link, ids)?;
    c.b.expect_range(dst.range(0, 2 * max), 15, 0)
}

/// T6: what `ibv_post_send` answers with one number are four errors, and none of them posts anything.
pub(crate) fn refusals_have_names_and_post_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) =
        (c.link_with(&c.shallow(2), &c.config())?, c.patterned(64, 16)?, c.b.alloc(64)?);
    let (sges, inline) = (link.qp.config().max_send_sge as usize, link.qp.config().max_inline as usize);
    let ranges = vec![src.view().slice(0, 1).say("slice")?; sges + 1];
    let data = vec![0; inline + 1];
    let too_long = Request::new(Op::Write, dst.remote, Payload::Inline(&data));
    let mut batch = link.qp.batch();
    ensure_eq!(
        batch.push(&Request::put(dst.remote, &ranges)),
        Err(PostError::TooManySge),
        "{} ranges",
        sges + 1
    );
    ensure_eq!(batch.push(&too_long), Err(PostError::InlineTooLong), "{} inline bytes", inline + 1);
    ensure_eq!(batch.put(dst.at(0, 8)?, src.view()), Err(PostError::OutOfBounds), "a put that does not fit");
    batch.ring().say("ring of nothing")?;
    ensure_eq!(link.qp.free_slots(), 2, "free slots");
    c.no_completion(&mut link)?;
    c.b.expect_untouched(dst, 0, &[0; 64])?;
    let mut batch = link.qp.batch();
    let _two = (batch.put(dst.remote, src.view()).say("put")?, batch.put(dst.remote, src.view()).say("put")?);
    ensure_eq!(batch.put(dst.remote, src.view()), Err(PostError::QueueFull), "a third request in two slots");
    batch.ring().say("ring")?;
    c.ids(&mut link, 2)?;
    c.b.expect_pattern(dst, 16)
}

/// Ids go on counting over batches, over refusals and over dropped batches.
pub(crate) fn ids_count_on_over_batches<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(8, 17)?, c.b.alloc(8)?);
    let mut next = None;
    for round in 0..200 {
        let dropped = link.qp.batch().put(dst.remote, src.view()).say("put")?;
        let ids = link.qp.put(dst.remote, src.view()).say("put")?;
        ensure_eq!(dropped, ids, "id of a dropped request and of the next, round {round}");
        ensure!(next.is_none_or(|n| n == ids.first), "round {round}: id {:#x} does not follow", ids.first);
        next = Some(ids.first + 1);
        c.finish(&mut link, ids)?;
    }
    Ok(())
}
