//! The three ordering facts, each by itself, and the fence. Where a fact is not promised, its case does not
//! run: no case assumes an order.

use super::prelude::*;
use ibv_core::Request;

/// `completions_in_order`: a long request's completion is not overtaken by short ones.
pub(crate) fn completions_come_in_posting_order<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let long = c.one_request(64 << 10);
    let (mut link, t) = (c.link()?, c.transfer(long, 1)?);
    for _ in 0..4 {
        let mut batch = link.qp.batch();
        let mut want = Vec::new();
        for i in 0..24 {
            let part = t.part(0..long, 0..[long, 1, 0, 100][i % 4])?;
            want.extend(part.push(&mut batch).say("push")?.iter());
            c.meet(link.peer, part)?;
        }
        batch.ring().say("ring")?;
        ensure_eq!(c.ids(&mut link, 24)?, want, "ids in order of completion");
    }
    Ok(())
}

/// The same with gets among the puts, where both exist.
pub(crate) fn completions_of_puts_and_gets_come_in_posting_order<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
) -> Done {
    let n = c.one_request(4096);
    let (mut link, near, far) = (c.link()?, c.region(n)?, c.b.alloc(n)?);
    let mut batch = link.qp.batch();
    let mut want = Vec::new();
    for i in 0..20 {
        let part = near.view().slice(0, if i % 3 == 0 { n } else { 8 }).say("slice")?;
        let ids =
            if i % 2 == 0 { batch.get(part, far.at(0, part.len())?) } else { batch.put(far.remote, part) };
        want.extend(ids.say("post")?.iter());
    }
    batch.ring().say("ring")?;
    ensure_eq!(c.ids(&mut link, 20)?, want, "ids in order of completion");
    Ok(())
}

/// `messages_in_order`, T14: what a put wrote is visible when a later immediate announces it.
pub(crate) fn message_is_visible_before_the_one_that_announces_it<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
) -> Done {
    let n = c.one_request(48 << 10);
    let (mut link, flag, dst) = (c.link()?, c.region(1)?, c.b.alloc(n)?);
    let nothing = flag.view().slice(0, 0).ok_or("a view of no bytes")?;
    for round in 0..6 {
        let src = c.patterned(n, round + 1)?;
        c.b.post_recv(link.peer, &[])?;
        let mut batch = link.qp.batch();
        let _data = batch.put(dst.remote, src.view()).say("put")?;
        let _flag = batch.put_with_imm(dst.at(0, 0)?, nothing, round as u32).say("put_with_imm")?;
        batch.ring().say("ring")?;
        // Not end a's completions first: those would let everything arrive.
        ensure_eq!(c.b.wait(link.peer, 1)?[0].imm(), Some(round as u32), "immediate");
        c.b.expect_pattern_now(dst, round + 1).map_err(|e| format!("round {round}: {e}"))?;
        c.ids(&mut link, 2)?;
    }
    Ok(())
}

/// The same with a send as the announcement.
pub(crate) fn put_is_visible_before_the_send_behind_it<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let n = c.one_request(32 << 10);
    let (mut link, word, dst, note) = (c.link()?, c.patterned(8, 2)?, c.b.alloc(n)?, c.b.alloc(8)?);
    for round in 0..6 {
        let src = c.patterned(n, round + 1)?;
        c.b.post_recv(link.peer, &[note.whole()])?;
        let (data, send) = ([src.view()], [word.view()]);
        let mut batch = link.qp.batch();
        let _data = batch.push(&Request::put(dst.remote, &data)).say("put")?;
        let _note = batch.push(&Request::send(&send)).say("send")?;
        batch.ring().say("ring")?;
        ids_of(&c.b.wait(link.peer, 1)?)?;
        c.b.expect_pattern_now(dst, round + 1).map_err(|e| format!("round {round}: {e}"))?;
        c.ids(&mut link, 2)?;
    }
    Ok(())
}

/// `messages_in_order`: of several puts to one place the last one stays.
pub(crate) fn last_put_to_a_place_stays<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, dst) = (c.link()?, c.b.alloc(256)?);
    let versions = (0..8).map(|i| c.patterned(256, 10 + i)).collect::<Result<Vec<_>, _>>()?;
    for round in 0..4 {
        let mut batch = link.qp.batch();
        for v in versions.iter().cycle().skip(round).take(9) {
            let _ids = batch.put(dst.remote, v.view()).say("put")?;
        }
        batch.ring().say("ring")?;
        c.ids(&mut link, 9)?;
        c.b.expect_pattern(dst, 10 + (round as u64 + 8) % 8)?;
    }
    Ok(())
}

/// `messages_in_order`: a get behind a put sees what the put wrote.
pub(crate) fn get_sees_the_put_before_it<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let n = c.one_request(16 << 10);
    let (mut link, back, dst) = (c.link()?, c.region(n)?, c.b.alloc(n)?);
    for round in 0..6 {
        let src = c.patterned(n, round)?;
        let mut batch = link.qp.batch();
        let _put = batch.put(dst.remote, src.view()).say("put")?;
        let _get = batch.get(back.view(), dst.remote).say("get")?;
        batch.ring().say("ring")?;
        c.ids(&mut link, 2)?;
        ensure_pattern(&back, round).map_err(|e| format!("round {round}: {e}"))?;
    }
    Ok(())
}

/// `bytes_in_order`: whoever sees a message's last byte sees all of it.
pub(crate) fn last_byte_becomes_visible_last<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let n = c.one_request(64 << 10);
    let (mut link, dst) = (c.link()?, c.b.alloc(n)?);
    for round in 0..4 {
        let src = c.patterned(n, round + 1)?;
        c.b.write(dst, 0, &vec![0; n])?;
        // Marks the end with a byte that was not there.
        src.write_at(n - 1, &[0xff]).say("mark")?;
        let ids = link.qp.put(dst.remote, src.view()).say("put")?;
        let wait = c.wait.clone();
        wait.until(
            || "the last byte".into(),
            || {
                let arrived = c.b.read(dst, n - 1, 1)?[0] == 0xff;
                Ok(arrived.then_some(()))
            },
        )?;
        let got = c.b.read(dst, 0, n)?;
        let wrong = crate::pattern::difference(&got[..n - 1], round + 1, 0);
        ensure!(
            wrong.is_none(),
            "the last byte was there and others were not: {}",
            wrong.unwrap_or_default()
        );
        c.finish(&mut link, ids)?;
    }
    Ok(())
}

/// A put of what a get fetches, fenced, sends what the get fetched; unfenced it may send what was there
/// before (IB specification vol. 1, 10.8.3.3).
pub(crate) fn fenced_put_sends_what_the_get_before_it_fetched<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let n = c.one_request(16 << 10);
    let (mut link, hop) = (c.link()?, c.region(n)?);
    let (from, to) = (c.b.alloc(n)?, c.b.alloc(n)?);
    for round in 0..8 {
        c.b.fill(from, round + 1)?;
        hop.write_at(0, &vec![0xdd; n]).say("stale bytes")?;
        let view = [hop.view()];
        let mut batch = link.qp.batch();
        let _get = batch.push(&Request::get(&view, from.remote)).say("get")?;
        let _put = batch.push(&Request::put(to.remote, &view).fenced()).say("fenced put")?;
        batch.ring().say("ring")?;
        c.ids(&mut link, 2)?;
        c.b.expect_pattern(to, round + 1).map_err(|e| format!("round {round}: {e}"))?;
    }
    Ok(())
}

/// A fence waits for every earlier get, not only the last.
pub(crate) fn fence_waits_for_all_gets_before_it<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, hop) = (c.link()?, c.region(8 * 64)?);
    let (from, to) = (c.b.alloc(8 * 64)?, c.b.alloc(8 * 64)?);
    for round in 0..6 {
        c.b.fill(from, round + 1)?;
        hop.write_at(0, &[0xdd; 512]).say("stale bytes")?;
        let view = [hop.view()];
        let mut batch = link.qp.batch();
        for i in 0..8 {
            let part = hop.view().slice(i * 64, 64).say("slice")?;
            let _get = batch.get(part, from.at(i * 64, 64)?).say("get")?;
        }
        let _put = batch.push(&Request::put(to.remote, &view).fenced()).say("fenced put")?;
        batch.ring().say("ring")?;
        c.ids(&mut link, 9)?;
        c.b.expect_pattern(to, round + 1).map_err(|e| format!("round {round}: {e}"))?;
    }
    Ok(())
}

/// Where messages are in no order, a put's own completion is what its announcement has to wait for; that is
/// enough, on every provider.
pub(crate) fn put_is_there_when_announced_after_its_completion<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let n = c.one_request(48 << 10);
    let (mut link, flag, dst) = (c.link()?, c.region(1)?, c.b.alloc(n)?);
    let nothing = flag.view().slice(0, 0).ok_or("a view of no bytes")?;
    for round in 0..6 {
        let src = c.patterned(n, round + 1)?;
        c.b.post_recv(link.peer, &[])?;
        let ids = link.qp.put(dst.remote, src.view()).say("put")?;
        c.finish(&mut link, ids)?;
        let ids = link.qp.put_with_imm(dst.at(0, 0)?, nothing, round as u32).say("put_with_imm")?;
        ensure_eq!(c.b.wait(link.peer, 1)?[0].imm(), Some(round as u32), "immediate");
        c.b.expect_pattern_now(dst, round + 1).map_err(|e| format!("round {round}: {e}"))?;
        c.finish(&mut link, ids)?;
    }
    Ok(())
}

/// Requests of one batch, and what the id of each completion says to be done with that one.
fn as_they_complete<D: IbvDomainImpl>(
    c: &Ctx<'_, D>,
    link: &mut Link<D>,
    posted: &[u64],
    mut done: impl FnMut(usize) -> Done,
) -> Done {
    let (mut left, mut out) = (posted.len(), [ibv_core::IbvWc::default(); 2]);
    let wait = c.wait.clone();
    wait.until_all(
        || format!("{} completions", posted.len()),
        || {
            let n = link.poller.poll(&mut out).say("poll")?;
            for id in ids_of(&out[..n])? {
                let i = posted.iter().position(|p| *p == id);
                done(i.ok_or_else(|| format!("a completion of {id:#x}, which was not posted"))?)?;
            }
            left -= n.min(left);
            Ok(crate::wait::Look::counted(n, posted.len() - left, posted.len()))
        },
    )
}

/// A completion frees the source of its own put, and says nothing of others: a client that goes by ids may
/// reuse each at once, in whatever order they come.
pub(crate) fn source_is_free_once_its_own_put_completes<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    const N: usize = 8;
    let n = c.one_request(6 << 10);
    let (mut link, dst) = (c.link()?, c.b.alloc(N * n)?);
    for round in 0..3 {
        let seed = |i: usize| (1 + round * N + i) as u64;
        let sources = (0..N).map(|i| c.patterned(n, seed(i))).collect::<Result<Vec<_>, _>>()?;
        let (mut batch, mut posted) = (link.qp.batch(), Vec::new());
        for (i, source) in sources.iter().enumerate() {
            // The first ones are the longest, so that others overtake them where anything can.
            let part = source.view().slice(0, n - i * (n / N)).say("slice")?;
            posted.extend(batch.put(dst.at(i * n, part.len())?, part).say("put")?.iter());
        }
        batch.ring().say("ring")?;
        let reused = vec![0xee; n];
        as_they_complete(c, &mut link, &posted, |i| sources[i].write_at(0, &reused).say("reuse"))?;
        for i in 0..N {
            let range = dst.range(i * n, n - i * (n / N));
            c.b.expect_range(range, seed(i), 0).map_err(|e| format!("put {i} of round {round}: {e}"))?;
        }
    }
    Ok(())
}

/// A get's bytes are there when its own completion is, whichever of many comes first.
pub(crate) fn each_of_many_gets_is_there_once_it_completes<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    const N: usize = 8;
    let n = c.one_request(6 << 10);
    let (mut link, src) = (c.link()?, c.b.alloc(n)?);
    for round in 0..3 {
        c.b.fill(src, round + 1)?;
        let targets = (0..N).map(|_| c.region(n)).collect::<Result<Vec<_>, _>>()?;
        let (mut batch, mut posted) = (link.qp.batch(), Vec::new());
        for (i, target) in targets.iter().enumerate() {
            let part = target.view().slice(0, n - i * (n / N)).say("slice")?;
            posted.extend(batch.get(part, src.at(0, part.len())?).say("get")?.iter());
        }
        batch.ring().say("ring")?;
        as_they_complete(c, &mut link, &posted, |i| {
            let got = targets[i].to_vec();
            match crate::pattern::difference(&got[..n - i * (n / N)], round + 1, 0) {
                None => Ok(()),
                Some(why) => Err(format!("get {i} of round {round} completed before its bytes: {why}")),
            }
        })?;
    }
    Ok(())
}

/// A receive is reported after the bytes of its own message, whatever else is out of order.
pub(crate) fn bytes_are_there_when_their_receive_is<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let n = c.one_request(4 << 10).min(c.caps().max_send_size);
    let (mut link, dst) = (c.link()?, c.b.alloc(n)?);
    for round in 0..8 {
        let src = c.patterned(n, round + 1)?;
        c.b.post_recv(link.peer, &[dst.whole()])?;
        let ids = link.qp.send(src.view()).say("send")?;
        // Not end a's completion first: that would let everything arrive.
        c.b.wait(link.peer, 1)?;
        c.b.expect_pattern_now(dst, round + 1).map_err(|e| format!("round {round}: {e}"))?;
        c.finish(&mut link, ids)?;
    }
    Ok(())
}
