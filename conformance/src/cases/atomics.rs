//! Atomics: eight aligned bytes, in the host's byte order, changed in one step.

use super::prelude::*;
use ibv_core::{Access, PostError, Request, WcOpcode, WcStatus};

fn word<D: IbvDomainImpl>(c: &mut Ctx<'_, D>, region: PeerRegion, at: usize) -> Result<u64, String> {
    let bytes = c.b.read(region, at, 8)?;
    bytes.first_chunk().map(|b| u64::from_ne_bytes(*b)).say("end b read too little")
}

fn old<D: IbvDomainImpl>(region: &Region<D>) -> Result<u64, String> {
    let mut bytes = [0; 8];
    region.read_at(0, &mut bytes).say("read")?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The old value comes back, the sum stays, the neighbours are untouched.
pub(crate) fn fetch_add_returns_the_old_value_and_adds<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, back, target) = (c.link()?, c.region(8)?, c.b.alloc(24)?);
    c.b.write(target, 0, &[0x66; 24])?;
    let mut value = 0x0102_0304_0506_0708u64;
    c.b.write(target, 8, &value.to_ne_bytes())?;
    for add in [1, 0xff, 1 << 40, 0] {
        let ids =
            link.qp.post(&Request::fetch_add(target.at(8, 8)?, &[back.view()], add)).say("fetch_add")?;
        let wc = c.completions(&mut link, 1)?[0];
        ensure_eq!(
            (wc.wr_id, wc.status, wc.opcode),
            (ids.first, WcStatus::SUCCESS, WcOpcode::FETCH_ADD),
            "completion"
        );
        ensure_eq!(old(&back)?, value, "old value");
        value = value.wrapping_add(add);
        c.b.expect_bytes(target, 8, &value.to_ne_bytes())?;
    }
    c.b.expect_untouched(target, 0, &[0x66; 8])?;
    c.b.expect_untouched(target, 16, &[0x66; 8])
}

/// Sums wrap at 2^64.
pub(crate) fn fetch_add_wraps<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, back, target) = (c.link()?, c.region(8)?, c.b.alloc(8)?);
    c.b.write(target, 0, &u64::MAX.to_ne_bytes())?;
    let ids = link.qp.post(&Request::fetch_add(target.remote, &[back.view()], 3)).say("fetch_add")?;
    c.finish(&mut link, ids)?;
    ensure_eq!(old(&back)?, u64::MAX, "old value");
    c.b.expect_bytes(target, 0, &2u64.to_ne_bytes())
}

/// Equal: swapped. Not equal: not. The old value comes back either way.
pub(crate) fn compare_swap_swaps_only_on_a_match<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, back, target) = (c.link()?, c.region(8)?, c.b.alloc(8)?);
    c.b.write(target, 0, &0xaabb_u64.to_ne_bytes())?;
    for (compare, swap, before, after) in [(0xaabb, 0xccdd, 0xaabb, 0xccdd), (0xaabb, 1, 0xccdd, 0xccdd_u64)]
    {
        let request = Request::compare_swap(target.remote, &[], compare, swap);
        ensure_eq!(
            link.qp.post(&request),
            Err(PostError::OutOfBounds),
            "an atomic without room for the old value"
        );
        let view = [back.view()];
        let ids =
            link.qp.post(&Request::compare_swap(target.remote, &view, compare, swap)).say("compare_swap")?;
        let wc = c.completions(&mut link, 1)?[0];
        ensure_eq!(
            (wc.wr_id, wc.status, wc.opcode),
            (ids.first, WcStatus::SUCCESS, WcOpcode::COMP_SWAP),
            "completion"
        );
        ensure_eq!(old(&back)?, before, "old value");
        c.b.expect_bytes(target, 0, &after.to_ne_bytes())?;
    }
    Ok(())
}

/// Two queue pairs add to one word: nothing is lost, and each sees a value of its own.
pub(crate) fn contended_adds_sum_up<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    const EACH: usize = 40;
    let (mut x, mut y, target) = (c.link()?, c.link()?, c.b.alloc(8)?);
    let backs = [c.region(EACH * 8)?, c.region(EACH * 8)?];
    for i in 0..EACH {
        for (link, back) in [&mut x, &mut y].into_iter().zip(&backs) {
            let view = [back.view().slice(i * 8, 8).say("slice")?];
            let _ids = link.qp.post(&Request::fetch_add(target.remote, &view, 1)).say("fetch_add")?;
        }
    }
    c.ids(&mut x, EACH)?;
    c.ids(&mut y, EACH)?;
    ensure_eq!(word(c, target, 0)?, 2 * EACH as u64, "sum");
    let bytes = [backs[0].to_vec(), backs[1].to_vec()].concat();
    let mut seen: Vec<u64> = bytes.as_chunks().0.iter().map(|b| u64::from_ne_bytes(*b)).collect();
    seen.sort_unstable();
    ensure!(seen.iter().copied().eq(0..2 * EACH as u64), "old values repeat or are missing: {seen:?}");
    Ok(())
}

/// Of many compare-and-swaps for one value a single one wins.
pub(crate) fn one_of_many_compare_swaps_wins<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut x, mut y, target) = (c.link()?, c.link()?, c.b.alloc(8)?);
    let backs = [c.region(8 * 8)?, c.region(8 * 8)?];
    for i in 0..8 {
        for (who, (link, back)) in [&mut x, &mut y].into_iter().zip(&backs).enumerate() {
            let view = [back.view().slice(i * 8, 8).say("slice")?];
            let mine = (1 + i + 8 * who) as u64;
            let _ids =
                link.qp.post(&Request::compare_swap(target.remote, &view, 0, mine)).say("compare_swap")?;
        }
    }
    c.ids(&mut x, 8)?;
    c.ids(&mut y, 8)?;
    let bytes = [backs[0].to_vec(), backs[1].to_vec()].concat();
    let seen: Vec<u64> = bytes.as_chunks().0.iter().map(|b| u64::from_ne_bytes(*b)).collect();
    ensure_eq!(seen.iter().filter(|v| **v == 0).count(), 1, "winners; the old values are {seen:?}");
    let winner = word(c, target, 0)?;
    ensure!((1..=16).contains(&winner), "the word holds {winner}, which nobody swapped in");
    Ok(())
}

/// Not 8 aligned bytes: refused before anything is posted.
pub(crate) fn crooked_atomic_is_refused<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, back, target) = (c.link()?, c.region(32)?, c.b.alloc(32)?);
    for (at, len, room) in [(1, 8, 8), (4, 8, 8), (0, 7, 8), (0, 8, 7), (0, 8, 9), (8, 0, 8)] {
        let view = [back.view().slice(0, room).say("slice")?];
        let refused = link.qp.post(&Request::fetch_add(target.at(at, len)?, &view, 1));
        ensure_eq!(refused, Err(PostError::OutOfBounds), "an atomic on {len} bytes at {at} into {room}");
    }
    c.no_completion(&mut link)?;
    c.b.expect_untouched(target, 0, &[0; 32])
}

/// T7: without the right, nothing changes.
pub(crate) fn atomic_without_the_right_fails<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let access = Access::ALL - Access::REMOTE_ATOMIC;
    let (mut link, back, target) = (c.link()?, c.region(8)?, c.b.alloc_for(8, access)?);
    let ids = link.qp.post(&Request::fetch_add(target.remote, &[back.view()], 1)).say("fetch_add")?;
    let wc = c.failure(&mut link, ids.first)?;
    ensure_eq!(wc.status, WcStatus::REM_ACCESS_ERR, "status");
    ensure_eq!(old(&back)?, 0, "old value of a refused atomic");
    c.b.expect_untouched(target, 0, &[0; 8])
}

/// Atomics beyond `max_rd_atomic` wait, as gets do.
pub(crate) fn more_atomics_than_may_be_outstanding_wait_their_turn<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
) -> Done {
    let mut config = c.config();
    (config.max_rd_atomic, config.max_dest_rd_atomic) = (1, 1);
    let (mut link, back, target) = (c.link_with(&config, &config)?, c.region(8)?, c.b.alloc(8)?);
    let view = [back.view()];
    let mut batch = link.qp.batch();
    for _ in 0..32 {
        let _ids = batch.push(&Request::fetch_add(target.remote, &view, 5)).say("fetch_add")?;
    }
    batch.ring().say("ring")?;
    c.ids(&mut link, 32)?;
    c.b.expect_bytes(target, 0, &160u64.to_ne_bytes())
}
