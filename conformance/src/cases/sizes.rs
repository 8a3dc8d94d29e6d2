//! Sizes and chunking: any length becomes the promised number of work requests, and all bytes arrive.

use super::prelude::*;
use ibv_core::{IbvMemoryRegionView, IbvRemoteMemoryRegionView, PostError, Request};

/// T11's boundary set around one work request.
fn lengths(max: usize) -> [usize; 8] {
    [0, 1, max - 1, max, max + 1, 2 * max - 1, 2 * max, 3 * max + 7]
}

/// T11, B9: `put(n)` is `max(1, ceil(n / max_msg_size))` requests, each of which costs one credit.
pub(crate) fn put_of_any_length_is_split_as_promised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut link = c.link()?;
    let max = link.qp.max_msg_size();
    for (n, seed) in lengths(max).into_iter().zip(1..) {
        // Not every device registers no bytes.
        let (src, dst) = (c.patterned(n.max(1), seed)?, c.b.alloc(n + 8)?);
        let view = src.view().slice(0, n).say("slice")?;
        c.b.write(dst, n, &[0xab; 8])?;
        let free = link.qp.free_slots();
        let ids = link.qp.put(dst.remote, view).say("put")?;
        let due = n.div_ceil(max).max(1);
        ensure_eq!(ids.count as usize, due, "work requests of {n} bytes");
        ensure_eq!(free - link.qp.free_slots(), ids.count, "credits taken for {n} bytes");
        c.finish(&mut link, ids)?;
        ensure_eq!(link.qp.free_slots(), free, "credits back after {n} bytes");
        c.b.expect_range(dst.range(0, n), seed, 0)?;
        c.b.expect_untouched(dst, n, &[0xab; 8])?;
        c.b.deregister(dst)?;
    }
    Ok(())
}

/// The same for gets.
pub(crate) fn get_of_any_length_is_split_as_promised<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut link = c.link()?;
    let max = link.qp.max_msg_size();
    for (n, seed) in lengths(max).into_iter().zip(1..) {
        let (dst, src) = (c.region(n + 8)?, c.b.alloc(n.max(1))?);
        c.b.fill(src, seed)?;
        dst.write_at(n, &[0xcd; 8]).say("canary")?;
        let ids = link.qp.get(dst.view(), src.at(0, n)?).say("get")?;
        ensure_eq!(ids.count as usize, n.div_ceil(max).max(1), "work requests of {n} bytes");
        c.finish(&mut link, ids)?;
        let got = dst.to_vec();
        let wrong = crate::pattern::difference(&got[..n], seed, 0);
        ensure!(wrong.is_none(), "a get of {n} bytes: {}", wrong.unwrap_or_default());
        ensure!(got[n..] == [0xcd; 8], "a get of {n} bytes wrote more");
        c.b.deregister(src)?;
    }
    Ok(())
}

/// B9, through the seeds' tier: the number of ids, for every length.
pub(crate) fn trait_returns_one_id_for_each_request<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut link = c.link()?;
    let max = link.qp.queue_pair().max_msg_size();
    let t = c.transfer(2 * max + 1, 1)?;
    for n in [0, 1, max, max + 1, 2 * max, 2 * max + 1] {
        let part = t.part(0..2 * max + 1, 0..n)?;
        let ids = part.post_by_trait(link.qp.queue_pair()).say("post")?;
        ensure_eq!(ids.len(), n.div_ceil(max).max(1), "ids of {n} bytes");
        ensure!(ids.windows(2).all(|w| w[1] == w[0] + 1), "ids are not consecutive: {ids:x?}");
        let mut got = c.ids(&mut link, ids.len())?;
        got.sort_unstable();
        ensure_eq!(got, ids, "ids of the completions");
    }
    t.expect(c, 1)
}

/// T11: a split goes by total length, across ranges, wherever the cuts fall.
pub(crate) fn ranges_are_gathered_across_chunks<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let config = several_ranges(c);
    let mut link = c.link_with(&config, &config)?;
    let max = link.qp.max_msg_size();
    for n in [max + 5, 2 * max, 2 * max + 3] {
        let (src, dst) = (c.patterned(n, 2)?, c.b.alloc(n)?);
        for at in [1, max - 1, max, n - 1] {
            let cut = [src.view().slice(at, n - at).say("slice")?, src.view().slice(0, at).say("slice")?];
            let ids = link.qp.post(&Request::put(dst.remote, &cut)).say("put")?;
            ensure_eq!(ids.count as usize, n.div_ceil(max), "work requests of {n} bytes cut at {at}");
            c.finish(&mut link, ids)?;
            c.b.expect_range(dst.range(0, n - at), 2, at as u64)
                .map_err(|e| format!("{n} cut at {at}: {e}"))?;
            c.b.expect_range(dst.range(n - at, at), 2, 0).map_err(|e| format!("{n} cut at {at}: {e}"))?;
        }
        c.b.deregister(dst)?;
    }
    Ok(())
}

/// The same the other way.
pub(crate) fn ranges_are_scattered_across_chunks<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let config = several_ranges(c);
    let mut link = c.link_with(&config, &config)?;
    let max = link.qp.max_msg_size();
    let n = 2 * max + 3;
    let (dst, src) = (c.region(n)?, c.b.alloc(n)?);
    c.b.fill(src, 3)?;
    for at in [1, max, n - 1] {
        let cut = [dst.view().slice(at, n - at).say("slice")?, dst.view().slice(0, at).say("slice")?];
        let ids = link.qp.post(&Request::get(&cut, src.remote)).say("get")?;
        c.finish(&mut link, ids)?;
        let mut got = dst.to_vec();
        got.rotate_left(at);
        let wrong = crate::pattern::difference(&got, 3, 0);
        ensure!(wrong.is_none(), "cut at {at}: {}", wrong.unwrap_or_default());
    }
    Ok(())
}

/// T11: no bytes is one request, which completes and touches nothing.
pub(crate) fn put_of_no_bytes_is_one_request<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(16, 4)?, c.b.alloc(16)?);
    c.b.write(dst, 0, &[0x5a; 16])?;
    let none = src.view().slice(16, 0).say("slice")?;
    for _ in 0..3 {
        let ids = link.qp.put(dst.at(8, 0)?, none).say("put of no bytes")?;
        ensure_eq!(ids.count, 1, "work requests");
        c.finish(&mut link, ids)?;
    }
    let ids = link.qp.post(&Request::put(dst.remote, &[])).say("put of no ranges")?;
    ensure_eq!(ids.count, 1, "work requests");
    c.finish(&mut link, ids)?;
    c.b.expect_untouched(dst, 0, &[0x5a; 16])
}

/// The same for gets.
pub(crate) fn get_of_no_bytes_is_one_request<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, dst, src) = (c.link()?, c.patterned(16, 5)?, c.b.alloc(16)?);
    let ids = link.qp.get(dst.view(), src.at(16, 0)?).say("get of no bytes")?;
    ensure_eq!(ids.count, 1, "work requests");
    c.finish(&mut link, ids)?;
    ensure_pattern(&dst, 5)
}

/// Lengths around one and several packets.
pub(crate) fn lengths_around_packets_arrive_whole<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut link = c.link()?;
    let (put, get) = (c.caps().write.present(), c.caps().read.present());
    let mtu = link.qp.config().path_mtu.bytes() as usize;
    let around = |n: usize| [n - 1, n, n + 1];
    for (n, seed) in [64, 256, mtu, 2 * mtu, 3 * mtu].into_iter().flat_map(around).zip(1..) {
        let (src, dst, back) = (c.patterned(n, seed)?, c.b.alloc(n)?, c.region(n)?);
        if put {
            let ids = link.qp.put(dst.remote, src.view()).say("put")?;
            c.ids(&mut link, ids.count as usize)?;
            c.b.expect_pattern(dst, seed).map_err(|e| format!("put of {n} bytes: {e}"))?;
        } else {
            c.b.fill(dst, seed)?;
        }
        if get {
            let ids = link.qp.get(back.view(), dst.remote).say("get")?;
            c.ids(&mut link, ids.count as usize)?;
            ensure_pattern(&back, seed).map_err(|e| format!("get of {n} bytes: {e}"))?;
        }
    }
    Ok(())
}

/// A long transfer from an odd place to another.
pub(crate) fn long_transfers_need_no_alignment<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut link = c.link()?;
    let n = (2 * link.qp.max_msg_size()).min(1 << 20) + 11;
    let t = c.transfer_into(n + 3, 6, n + 5)?;
    let ids = c.post(&mut link, t.part(5..n + 5, 3..n + 3)?)?;
    c.ids(&mut link, ids.count as usize)?;
    t.expect_range(c, 5..n + 5, 6, 3)?;
    t.expect_untouched(c, 0, &[0; 5])
}

/// T11: lengths of 2^31 and beyond 2^32 are counted whole. Nothing is posted: the batch is dropped.
pub(crate) fn lengths_beyond_32_bits_are_not_truncated<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut link = c.link()?;
    let (max, depth) = (link.qp.max_msg_size(), link.qp.config().max_send_wr as usize);
    for n in [(1usize << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1] {
        let local = IbvMemoryRegionView::from_raw_parts(0x1000, n, 1);
        let remote = IbvRemoteMemoryRegionView { addr: 0x1000, len: n, rkey: 1 };
        let due = n.div_ceil(max);
        match Part::between(c.way(), local, remote).push(&mut link.qp.batch()) {
            Ok(ids) => ensure_eq!(ids.count as usize, due, "work requests of {n} bytes"),
            Err(PostError::QueueFull) => {
                ensure!(due > depth, "{n} bytes are {due} requests and do not fit {depth}")
            }
            Err(e) => return Err(format!("a transfer of {n} bytes: {e}")),
        }
    }
    ensure_eq!(link.qp.free_slots() as usize, depth, "free slots");
    c.no_completion(&mut link)
}
