//! Gets: exactly the bytes named come back, and are there when their completion is.

use super::prelude::*;
use ibv_core::{Access, Request};

/// Bytes on either side of a get's destination stay as they were.
pub(crate) fn get_reads_exactly_the_bytes_named<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, dst, src) = (c.link()?, c.region(300)?, c.b.alloc(256)?);
    c.b.fill(src, 1)?;
    dst.write_at(0, &[0xee; 300]).say("fill")?;
    let ids = link.qp.get(dst.view().slice(20, 200).say("slice")?, src.at(31, 200)?).say("get")?;
    ensure_eq!(ids.count, 1, "work requests");
    c.finish(&mut link, ids)?;
    let got = dst.to_vec();
    ensure!(got[20..220] == pattern(1, 256)[31..231], "the get fetched other bytes than it named");
    ensure!(got[..20] == [0xee; 20] && got[220..] == [0xee; 80], "the get touched bytes it did not name");
    Ok(())
}

/// A get moves the remote side's length; a longer local side keeps its tail (A14).
pub(crate) fn get_into_a_longer_buffer_leaves_the_rest<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, dst, src) = (c.link()?, c.region(128)?, c.b.alloc(77)?);
    c.b.fill(src, 2)?;
    dst.write_at(0, &[0x55; 128]).say("fill")?;
    let ids = link.qp.get(dst.view(), src.remote).say("get")?;
    c.finish(&mut link, ids)?;
    let got = dst.to_vec();
    ensure!(got[..77] == pattern(2, 77), "the get fetched other bytes than it named");
    ensure!(got[77..] == [0x55; 51], "the get touched the rest of a longer buffer");
    Ok(())
}

/// The seeds' tier: `get(local_dst, remote_src)`, ids in a `Vec` (A14, A20, B10).
pub(crate) fn get_through_the_trait_takes_the_local_side_first<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, dst, src) = (c.link()?, c.region(64)?, c.b.alloc(64)?);
    c.b.fill(src, 3)?;
    let ids: Vec<u64> = link.qp.queue_pair().get(dst.view(), src.remote).say("get")?;
    ensure_eq!(ids.len(), 1, "ids");
    ensure_eq!(c.ids(&mut link, 1)?, ids, "ids of the completions");
    ensure_pattern(&dst, 3)?;
    c.b.expect_untouched(src, 0, &pattern(3, 64))
}

/// Several ranges of several regions are filled in the order given.
pub(crate) fn get_scatters_to_its_ranges_in_order<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let config = several_ranges(c);
    let (mut link, src) = (c.link_with(&config, &config)?, c.b.alloc(60)?);
    c.b.fill(src, 4)?;
    let (x, y) = (c.region(40)?, c.region(40)?);
    let cut = [x.view().slice(8, 27).say("slice")?, y.view().slice(3, 33).say("slice")?];
    let ids = link.qp.post(&Request::get(&cut, src.remote)).say("get")?;
    c.finish(&mut link, ids)?;
    let want = pattern(4, 60);
    ensure!(
        x.to_vec()[8..35] == want[..27] && y.to_vec()[3..36] == want[27..],
        "the ranges hold other bytes"
    );
    ensure!(
        x.to_vec()[..8] == [0; 8] && x.to_vec()[35..] == [0; 5],
        "bytes beside the first range were touched"
    );
    ensure!(
        y.to_vec()[..3] == [0; 3] && y.to_vec()[36..] == [0; 4],
        "bytes beside the second range were touched"
    );
    Ok(())
}

/// The remote side is only read, so the right to read suffices.
pub(crate) fn get_needs_no_more_than_the_right_to_read<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src) = (c.link()?, c.b.alloc_for(90, Access::REMOTE_READ)?);
    let dst = c.region_for(90, Access::LOCAL_WRITE)?;
    c.b.fill(src, 5)?;
    let ids = link.qp.get(dst.view(), src.remote).say("get")?;
    c.finish(&mut link, ids)?;
    ensure_pattern(&dst, 5)
}

/// T14 of row 9: a completion of a get is written after the bytes it stands for.
pub(crate) fn bytes_are_there_when_their_gets_completion_is<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let len = c.one_request(8192);
    let (mut link, dst, src) = (c.link()?, c.region(len)?, c.b.alloc(len)?);
    for round in 0..16 {
        c.b.fill(src, round)?;
        let ids = link.qp.get(dst.view(), src.remote).say("get")?;
        c.finish(&mut link, ids)?;
        ensure_pattern(&dst, round).map_err(|e| format!("round {round}, right after its completion: {e}"))?;
    }
    Ok(())
}

/// Row 38: gets beyond `max_rd_atomic` wait, they do not fail.
pub(crate) fn more_gets_than_may_be_outstanding_wait_their_turn<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
) -> Done {
    let mut config = c.config();
    (config.max_rd_atomic, config.max_dest_rd_atomic) = (1, 1);
    let (mut link, dst, src) = (c.link_with(&config, &config)?, c.region(32 * 16)?, c.b.alloc(32 * 16)?);
    c.b.fill(src, 6)?;
    let mut batch = link.qp.batch();
    let mut want = Vec::new();
    for i in 0..32 {
        let part = dst.view().slice(i * 16, 16).say("slice")?;
        want.extend(batch.get(part, src.at(i * 16, 16)?).say("get")?.iter());
    }
    batch.ring().say("ring")?;
    let mut got = c.ids(&mut link, 32)?;
    got.sort_unstable();
    ensure_eq!(got, want, "ids of the completions");
    ensure_pattern(&dst, 6)
}

/// What was put comes back.
pub(crate) fn put_then_get_is_a_round_trip<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, src, dst) = (c.link()?, c.patterned(1000, 7)?, c.region(1000)?);
    let far = c.b.alloc(1000)?;
    let ids = link.qp.put(far.remote, src.view()).say("put")?;
    c.finish(&mut link, ids)?;
    let ids = link.qp.get(dst.view(), far.remote).say("get")?;
    c.finish(&mut link, ids)?;
    ensure_pattern(&dst, 7)
}

/// Source and destination may start at any address.
pub(crate) fn get_works_at_every_alignment<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, dst, src) = (c.link()?, c.region(64)?, c.b.alloc(64)?);
    c.b.fill(src, 8)?;
    for (from, to) in (0..9).flat_map(|from| [2usize, 3, 8].map(|to| (from, to))) {
        dst.write_at(0, &[0; 64]).say("clear")?;
        let ids = link.qp.get(dst.view().slice(to, 21).say("slice")?, src.at(from, 21)?).say("get")?;
        c.finish(&mut link, ids)?;
        let got = dst.to_vec();
        ensure!(got[to..to + 21] == pattern(8, 64)[from..from + 21], "from {from} to {to}: other bytes");
        ensure!(got[..to].iter().chain(&got[to + 21..]).all(|b| *b == 0), "from {from} to {to}: more bytes");
    }
    Ok(())
}

/// Both ends get at the same time, over the same connection.
pub(crate) fn gets_go_both_ways_at_once<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, ours, our_dst) = (c.link()?, c.patterned(400, 9)?, c.region(400)?);
    let (theirs, their_dst) = (c.b.alloc(400)?, c.b.alloc(400)?);
    c.b.fill(theirs, 10)?;
    c.b.post(link.peer, WireRequest::get(their_dst.whole(), ours.remote()))?;
    let ids = link.qp.get(our_dst.view(), theirs.remote).say("get")?;
    c.finish(&mut link, ids)?;
    ids_of(&c.b.wait(link.peer, 1)?)?;
    ensure_pattern(&our_dst, 10)?;
    c.b.expect_pattern_now(their_dst, 9)
}
