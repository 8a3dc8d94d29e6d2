//! What fails, at whom, and what stays untouched. Root causes and flushes are `root_cause`'s.

use super::prelude::*;
use ibv_core::{Access, IbvMemoryRegionView, IbvRemoteMemoryRegionView, PostError, WcStatus};

/// Puts to `dst`, which must fail with a remote access error and leave all of `region` as it was.
fn refused_put<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
    region: PeerRegion,
    dst: IbvRemoteMemoryRegionView,
    what: &str,
) -> Done {
    let (mut link, src) = (c.link()?, c.patterned(dst.len, 1)?);
    let before = c.b.read(region, 0, region.remote.len)?;
    let ids = link.qp.put(dst, src.view()).say("put")?;
    let wc = c.failure(&mut link, ids.first).map_err(|e| format!("{what}: {e}"))?;
    ensure_eq!(wc.status, WcStatus::REM_ACCESS_ERR, "status of a put to {what}");
    c.b.expect_untouched(region, 0, &before).map_err(|e| format!("a put to {what}: {e}"))
}

/// Gets from `src`, which must fail with a remote access error and fetch nothing.
fn refused_get<D: IbvDomainImpl>(c: &mut Ctx<'_, D>, src: IbvRemoteMemoryRegionView, what: &str) -> Done {
    let (mut link, dst) = (c.link()?, c.region(src.len)?);
    dst.write_at(0, &vec![0x5c; src.len]).say("canary")?;
    let ids = link.qp.get(dst.view(), src).say("get")?;
    let wc = c.failure(&mut link, ids.first).map_err(|e| format!("{what}: {e}"))?;
    ensure_eq!(wc.status, WcStatus::REM_ACCESS_ERR, "status of a get from {what}");
    ensure!(dst.to_vec().iter().all(|b| *b == 0x5c), "a get from {what} fetched something");
    Ok(())
}

/// T7.
pub(crate) fn put_through_a_wrong_key_touches_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let region = c.b.alloc(64)?;
    c.b.fill(region, 9)?;
    for rkey in [!region.remote.rkey, region.remote.rkey ^ 1, 0] {
        refused_put(c, region, IbvRemoteMemoryRegionView { rkey, ..region.remote }, "a wrong key")?;
    }
    Ok(())
}

/// T7.
pub(crate) fn get_through_a_wrong_key_fetches_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let region = c.b.alloc(64)?;
    c.b.fill(region, 9)?;
    for rkey in [!region.remote.rkey, region.remote.rkey ^ 1] {
        refused_get(c, IbvRemoteMemoryRegionView { rkey, ..region.remote }, "a wrong key")?;
    }
    Ok(())
}

/// T7: the end of a region is exact, and so is its beginning.
pub(crate) fn put_beyond_a_region_touches_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let region = c.b.alloc(64)?;
    c.b.fill(region, 8)?;
    let r = region.remote;
    for (addr, len, what) in [
        (r.addr + 57, 8, "the last bytes and one more"),
        (r.addr, 65, "a region and one byte more"),
        (r.addr + 64, 1, "the byte behind a region"),
        (r.addr.wrapping_sub(1), 8, "the byte before a region"),
        (r.addr.wrapping_add(1 << 40), 8, "far behind a region"),
    ] {
        refused_put(c, region, IbvRemoteMemoryRegionView { addr, len, ..r }, what)?;
    }
    Ok(())
}

/// T7.
pub(crate) fn get_beyond_a_region_fetches_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let r = c.b.alloc(64)?.remote;
    for (addr, len, what) in [
        (r.addr + 57, 8, "the last bytes and one more"),
        (r.addr + 64, 1, "the byte behind a region"),
        (r.addr.wrapping_sub(1), 8, "the byte before a region"),
    ] {
        refused_get(c, IbvRemoteMemoryRegionView { addr, len, ..r }, what)?;
    }
    Ok(())
}

/// T7: a range that wraps past 2^64 covers no region, whatever its end looks like.
pub(crate) fn range_past_2_to_the_64_touches_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let region = c.b.alloc(64)?;
    for addr in [u64::MAX, u64::MAX - 3, u64::MAX - 7] {
        let wrapping = IbvRemoteMemoryRegionView { addr, len: 8, ..region.remote };
        if c.caps().write.present() {
            refused_put(c, region, wrapping, "a range that wraps")?;
        }
        if c.caps().read.present() {
            refused_get(c, wrapping, "a range that wraps")?;
        }
    }
    Ok(())
}

/// T7: the right to be read is not the right to be written.
pub(crate) fn put_without_the_right_touches_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    for access in [Access::REMOTE_READ, Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_READ] {
        let region = c.b.alloc_for(32, access)?;
        c.b.fill(region, 7)?;
        refused_put(c, region, region.remote, "a region that may not be put to")?;
    }
    Ok(())
}

/// T7: nor the other way round.
pub(crate) fn get_without_the_right_fetches_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    for access in [Access::empty(), Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_WRITE] {
        let region = c.b.alloc_for(32, access)?;
        refused_get(c, region.remote, "a region that may not be got from")?;
    }
    Ok(())
}

/// A key opens its own region only, not its neighbour.
pub(crate) fn key_opens_its_own_region_only<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (x, y) = (c.b.alloc(64)?, c.b.alloc(64)?);
    ensure!(x.remote.rkey != y.remote.rkey, "two live regions have the key {:#x}", x.remote.rkey);
    c.b.fill(y, 6)?;
    let crossed = IbvRemoteMemoryRegionView { rkey: x.remote.rkey, ..y.remote };
    match c.way() {
        Way::Get => refused_get(c, crossed, "another region's bytes"),
        _ => refused_put(c, y, crossed, "another region's bytes"),
    }
}

/// A key of another protection domain, here end a's own, opens nothing through end b's queue pair.
pub(crate) fn key_of_another_domain_opens_nothing<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, near, own) = (c.link()?, c.patterned(32, 2)?, c.region(32)?);
    let ids = Part::between(c.way(), near.view(), own.remote()).post(&mut link.qp).say("post")?;
    let wc = c.failure(&mut link, ids.first)?;
    ensure_eq!(wc.status, WcStatus::REM_ACCESS_ERR, "status");
    ensure!(own.to_vec() == [0; 32], "a put through end b reached end a's own region");
    ensure!(near.to_vec() == pattern(2, 32), "a get through end b fetched from end a's own region");
    Ok(())
}

/// Once deregistered, a key is dead, for puts and gets alike (T7, T9).
pub(crate) fn key_is_dead_once_its_region_is_gone<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(32, 3)?);
    let ids = c.post(&mut link, t.all())?;
    c.finish(&mut link, ids)?;
    c.b.deregister(t.far)?;
    let ids = t.all().post(&mut link.qp).say("post")?;
    let wc = c.failure(&mut link, ids.first)?;
    ensure_eq!(wc.status, WcStatus::REM_ACCESS_ERR, "status of a request through a dead key");
    if !c.caps().read.present() {
        return Ok(());
    }
    refused_get(c, t.far.remote, "a dead key")
}

/// A local key that covers nothing fails the request at this end, and nothing leaves.
pub(crate) fn wrong_local_key_fails_locally<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (near, far) = (c.patterned(32, 4)?, c.b.alloc(64)?);
    let view = near.view();
    for (addr, len, lkey, what) in [
        (view.addr(), 32, !view.lkey(), "a wrong local key"),
        (view.addr(), 33, view.lkey(), "one byte more than the region"),
        (view.addr() + 32, 1, view.lkey(), "the byte behind the region"),
        (view.addr().wrapping_sub(1), 8, view.lkey(), "the byte before the region"),
        (u64::MAX - 3, 8, view.lkey(), "a range that wraps"),
    ] {
        let (mut link, crooked) = (c.link()?, IbvMemoryRegionView::from_raw_parts(addr, len, lkey));
        let ids = Part::between(c.way(), crooked, far.at(0, len)?).post(&mut link.qp).say("post")?;
        let wc = c.failure(&mut link, ids.first).map_err(|e| format!("{what}: {e}"))?;
        ensure_eq!(wc.status, WcStatus::LOC_PROT_ERR, "status of a request with {what}");
        c.b.expect_untouched(far, 0, &[0; 64]).map_err(|e| format!("a request with {what}: {e}"))?;
        ensure_pattern(&near, 4).map_err(|e| format!("a request with {what}: {e}"))?;
    }
    Ok(())
}

/// A get needs the right to write its own memory.
pub(crate) fn get_into_memory_that_may_not_be_written_fails<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src) = (c.link()?, c.b.alloc(32)?);
    c.b.fill(src, 5)?;
    let dst = c.region_for(32, Access::empty())?;
    let ids = link.qp.get(dst.view(), src.remote).say("get")?;
    let wc = c.failure(&mut link, ids.first)?;
    let local = [WcStatus::LOC_PROT_ERR, WcStatus::LOC_ACCESS_ERR];
    ensure!(local.contains(&wc.status), "status {} where a local error was due", wc.status);
    ensure!(dst.to_vec() == [0; 32], "a get wrote memory that may not be written");
    Ok(())
}

/// A13, A14: too small a side is refused with both sizes, and nothing is posted.
pub(crate) fn sizes_that_do_not_fit_are_named<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, long, short) = (c.link()?, c.patterned(48, 6)?, c.region(31)?);
    let (theirs_short, theirs_long) = (c.b.alloc(31)?, c.b.alloc(48)?);
    let free = link.qp.free_slots();
    let (put, get) = (c.caps().write.present(), c.caps().read.present());
    let put = put.then(|| link.qp.queue_pair().put(theirs_short.remote, long.view()));
    let get = get.then(|| link.qp.queue_pair().get(short.view(), theirs_long.remote));
    for (what, refused) in [("put", put), ("get", get)] {
        let Some(refused) = refused else { continue };
        let e = refused.err().ok_or_else(|| format!("a {what} that does not fit was posted"))?;
        ensure_eq!(e.post_error(), Some(PostError::OutOfBounds), "the error of a {what} that does not fit");
        let text = e.to_string();
        ensure!(text.contains("48") && text.contains("31"), "both sizes are not in: {text}");
    }
    ensure_eq!(link.qp.free_slots(), free, "free slots");
    c.no_completion(&mut link)?;
    c.b.expect_untouched(theirs_short, 0, &[0; 31])
}

/// T12: a peer that is gone ends in an error, not in silence.
pub(crate) fn peer_that_is_gone_ends_in_an_error<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut config = c.config();
    (config.retry_cnt, config.timeout) = (1, 10);
    let (mut link, t) = (c.link_with(&config, &config)?, c.transfer(16, 7)?);
    let ids = c.post(&mut link, t.all())?;
    c.finish(&mut link, ids)?;
    c.b.drop_qp(link.peer)?;
    let ids = t.all().post(&mut link.qp).say("post")?;
    c.failure(&mut link, ids.first)?;
    let cause = link.qp.first_error().say("no root cause was kept")?;
    ensure_eq!(cause.wr_id, ids.first, "the root cause's request");
    ensure!(!cause.is_wr_flush_err(), "a flush was kept as the root cause");
    Ok(())
}

/// T12: so does one that has gone to the error state.
pub(crate) fn peer_in_error_ends_in_an_error<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut config = c.config();
    (config.retry_cnt, config.timeout) = (1, 10);
    let (mut link, t) = (c.link_with(&config, &config)?, c.transfer(16, 8)?);
    c.b.start_close(link.peer)?;
    let ids = t.all().post(&mut link.qp).say("post")?;
    c.failure(&mut link, ids.first)?;
    t.expect_untouched(c, 0, &[0; 16])
}

/// What fails on one queue pair is nothing to another.
pub(crate) fn error_stays_with_its_queue_pair<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut bad, mut good, t) = (c.link()?, c.link()?, c.transfer(16, 9)?);
    let failing = t.all().astray().post(&mut bad.qp).say("post")?;
    let ids = c.post(&mut good, t.all())?;
    c.finish(&mut good, ids)?;
    c.failure(&mut bad, failing.first)?;
    for _ in 0..3 {
        let ids = c.post(&mut good, t.all())?;
        c.finish(&mut good, ids)?;
    }
    ensure_eq!(good.qp.first_error(), None, "the other queue pair's root cause");
    t.expect(c, 9)
}
