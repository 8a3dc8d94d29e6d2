//! Puts: exactly the bytes named arrive, where they were named. Sizes beyond one request are `sizes`'s.

use super::prelude::*;
use ibv_core::{Access, Op, Payload, Request};

/// Bytes on either side of a put stay as they were.
pub(crate) fn put_writes_exactly_the_bytes_named<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(256, 1)?, c.b.alloc(320)?);
    c.b.write(dst, 0, &[0xee; 320])?;
    let ids = link.qp.put(dst.at(32, 256)?, src.view()).say("put")?;
    ensure_eq!(ids.count, 1, "work requests");
    c.finish(&mut link, ids)?;
    c.b.expect_bytes(dst, 32, &pattern(1, 256))?;
    c.b.expect_untouched(dst, 0, &[0xee; 32])?;
    c.b.expect_untouched(dst, 288, &[0xee; 32])
}

/// A slice of a region is put to a slice of another.
pub(crate) fn put_of_a_slice_lands_at_its_offset<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(128, 2)?, c.b.alloc(128)?);
    let part = src.view().slice(17, 41).say("slice")?;
    let ids = link.qp.put(dst.at(63, 41)?, part).say("put")?;
    c.finish(&mut link, ids)?;
    c.b.expect_bytes(dst, 63, &pattern(2, 58)[17..])?;
    c.b.expect_untouched(dst, 0, &[0; 63])?;
    c.b.expect_untouched(dst, 104, &[0; 24])
}

/// The seeds' tier: `put(remote_dst, local_src)`, ids in a `Vec` (A13, A20, B10).
pub(crate) fn put_through_the_trait_takes_the_remote_side_first<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(64, 3)?, c.b.alloc(64)?);
    let ids: Vec<u64> = link.qp.queue_pair().put(dst.remote, src.view()).say("put")?;
    ensure_eq!(ids.len(), 1, "ids");
    ensure_eq!(c.ids(&mut link, 1)?, ids, "ids of the completions");
    c.b.expect_pattern(dst, 3)?;
    ensure_pattern(&src, 3)
}

/// The local side is only read, so its region needs no right to be written.
pub(crate) fn put_leaves_its_source_untouched<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, dst) = (c.link()?, c.b.alloc(200)?);
    let src = c.region_for(200, Access::empty())?;
    src.write_at(0, &pattern(4, 200)).say("fill")?;
    c.b.write(dst, 0, &[0x11; 200])?;
    let ids = link.qp.put(dst.remote, src.view()).say("put")?;
    c.finish(&mut link, ids)?;
    c.b.expect_pattern(dst, 4)?;
    ensure_pattern(&src, 4)
}

/// A destination longer than the source keeps its tail.
pub(crate) fn put_into_a_longer_destination_leaves_the_rest<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(100, 5)?, c.b.alloc(164)?);
    c.b.write(dst, 0, &[0x77; 164])?;
    let ids = link.qp.put(dst.remote, src.view()).say("put")?;
    c.finish(&mut link, ids)?;
    c.b.expect_bytes(dst, 0, &pattern(5, 100))?;
    c.b.expect_untouched(dst, 100, &[0x77; 64])
}

/// Several ranges of several regions arrive in the order given.
pub(crate) fn put_gathers_its_ranges_in_order<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let config = several_ranges(c);
    let (mut link, dst) = (c.link_with(&config, &config)?, c.b.alloc(90)?);
    let (x, y) = (c.patterned(64, 6)?, c.patterned(64, 7)?);
    let cut = [x.view().slice(10, 37).say("slice")?, y.view().slice(5, 53).say("slice")?];
    let ids = link.qp.post(&Request::put(dst.remote, &cut)).say("put")?;
    c.finish(&mut link, ids)?;
    let want = [&pattern(6, 64)[10..47], &pattern(7, 64)[5..58]].concat();
    c.b.expect_bytes(dst, 0, &want)
}

/// T11: ranges of no bytes are legal anywhere in the list and mean nothing, above all not 2^31 bytes.
pub(crate) fn put_passes_over_ranges_of_no_bytes<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let config = several_ranges(c);
    let (mut link, src, dst) = (c.link_with(&config, &config)?, c.patterned(48, 8)?, c.b.alloc(64)?);
    c.b.write(dst, 0, &[0x33; 64])?;
    let none = src.view().slice(7, 0).say("slice")?;
    for ranges in [[none, src.view()], [src.view(), none]] {
        let ids = link.qp.post(&Request::put(dst.remote, &ranges)).say("put")?;
        c.finish(&mut link, ids)?;
        c.b.expect_bytes(dst, 0, &pattern(8, 48))?;
        c.b.expect_untouched(dst, 48, &[0x33; 16])?;
        c.b.write(dst, 0, &[0x33; 48])?;
    }
    let ids = link.qp.post(&Request::put(dst.remote, &[none, none])).say("put of no bytes")?;
    c.finish(&mut link, ids)?;
    c.b.expect_untouched(dst, 0, &[0x33; 64])
}

/// Inline bytes are copied when the request is built, so the caller may change them before the ring.
pub(crate) fn put_copies_inline_bytes_at_once<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut config = c.config();
    config.max_inline = 8;
    let (mut link, dst) = (c.link_with(&config, &config)?, c.b.alloc(16)?);
    let mut data = *b"inline 8";
    let mut batch = link.qp.batch();
    let ids = batch.push(&Request::new(Op::Write, dst.remote, Payload::Inline(&data))).say("push")?;
    data.fill(0);
    batch.ring().say("ring")?;
    c.finish(&mut link, ids)?;
    c.b.expect_bytes(dst, 0, b"inline 8")?;
    c.b.expect_untouched(dst, 8, &[0; 8])
}

/// Every inline length up to the limit that the device reports.
pub(crate) fn put_takes_inline_bytes_up_to_the_limit<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let max = c.caps().max_inline.min(c.b.caps.max_inline) as usize;
    let mut config = c.config();
    config.max_inline = max as u32;
    let (mut link, dst) = (c.link_with(&config, &config)?, c.b.alloc(max + 8)?);
    for len in [0, 1, 3, max / 2, max - 1, max] {
        c.b.write(dst, 0, &vec![0; max + 8])?;
        let data = pattern(len as u64, len);
        let request = Request::new(Op::Write, dst.remote, Payload::Inline(&data));
        let ids = link.qp.post(&request).say("put inline")?;
        c.finish(&mut link, ids)?;
        c.b.expect_bytes(dst, 0, &data)?;
        c.b.expect_untouched(dst, len, &[0; 8])?;
    }
    Ok(())
}

/// Source and destination may start at any address.
pub(crate) fn put_works_at_every_alignment<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(64, 9)?, c.b.alloc(64)?);
    for (from, to) in (0..9).flat_map(|from| [1usize, 4, 7].map(|to| (from, to))) {
        c.b.write(dst, 0, &[0; 64])?;
        let ids = link.qp.put(dst.at(to, 23)?, src.view().slice(from, 23).say("slice")?).say("put")?;
        c.finish(&mut link, ids)?;
        c.b.expect_bytes(dst, to, &pattern(9, 64)[from..from + 23])?;
        c.b.expect_untouched(dst, to + 23, &[0; 8])?;
    }
    Ok(())
}

/// Both ends put at the same time, over the same connection.
pub(crate) fn puts_go_both_ways_at_once<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, ours, theirs) = (c.link()?, c.patterned(512, 10)?, c.b.alloc(512)?);
    let (their_src, our_dst) = (c.b.alloc(512)?, c.region(512)?);
    c.b.fill(their_src, 11)?;
    let put = WireRequest::put(our_dst.remote(), their_src.whole());
    let (theirs_id, _) = c.b.post(link.peer, put)?;
    let ids = link.qp.put(theirs.remote, ours.view()).say("put")?;
    c.finish(&mut link, ids)?;
    ensure_eq!(ids_of(&c.b.wait(link.peer, 1)?)?, [theirs_id], "ids of end b's completions");
    c.b.expect_pattern(theirs, 10)?;
    c.wait.until(|| "end b's bytes".into(), || Ok(ensure_pattern(&our_dst, 11).ok()))
}
