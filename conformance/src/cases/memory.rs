//! Registered memory: what a region covers, and what becomes of it. Access that must fail is `errors`'s.

use super::prelude::*;
use ibv_core::{Access, ErrorKind, HeapMemory, IbvRemoteMemoryRegionView, OutOfRange, QpState};

/// Row 45: a region is covered to its last byte, or not registered at all.
pub(crate) fn region_is_covered_to_its_last_byte<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut link = c.link()?;
    for len in [16, 4095, 4096, 4097, 1 << 20, (1 << 20) + 13] {
        let t = c.transfer_into(16, 1, len)?;
        for at in [0, len - 16] {
            let ids = c.post(&mut link, t.part(at..at + 16, 0..16)?)?;
            c.finish(&mut link, ids).map_err(|e| format!("bytes {at} to {} of {len}: {e}", at + 16))?;
            t.expect_bytes(c, at, &pattern(1, 16))?;
        }
        c.b.deregister(t.far)?;
    }
    Ok(())
}

/// Many regions at once: each has a key of its own, which opens it.
pub(crate) fn many_regions_have_keys_of_their_own<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, way) = (c.link()?, c.way());
    let near = if way == Way::Get { c.region(128 * 8)? } else { c.patterned(128 * 8, 2)? };
    let mut regions = Vec::new();
    for i in 0..128 {
        regions.push(c.b.alloc(8)?);
        if way == Way::Get {
            c.b.write(regions[i], 0, &pattern(2, 128 * 8)[i * 8..][..8])?;
        }
    }
    let mut keys: Vec<_> = regions.iter().map(|r| r.remote.rkey).collect();
    keys.sort_unstable();
    keys.dedup();
    ensure_eq!(keys.len(), regions.len(), "different keys of {} live regions", regions.len());
    for (i, region) in regions.iter().enumerate() {
        let part = near.view().slice(i * 8, 8).say("slice")?;
        let ids = Part::between(way, part, region.remote).post(&mut link.qp).say("post")?;
        c.finish(&mut link, ids)?;
    }
    if way == Way::Get {
        return ensure_pattern(&near, 2);
    }
    for (i, region) in regions.iter().enumerate() {
        c.b.expect_range(region.whole(), 2, i as u64 * 8)?;
    }
    Ok(())
}

/// Deregistering hands the memory back with what is in it.
pub(crate) fn deregistering_hands_the_memory_back<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, dst, src) = (c.link()?, c.region(64)?, c.b.alloc(64)?);
    c.b.fill(src, 3)?;
    let ids = link.qp.get(dst.view(), src.remote).say("get")?;
    c.finish(&mut link, ids)?;
    let memory: HeapMemory = dst.deregister().map_err(|(_, e)| format!("deregister: {e}"))?;
    let again = c.a.register(memory).say("reg_mr")?;
    ensure_pattern(&again, 3)
}

/// T9, row 10: the same memory can be registered again, and the new key works.
pub(crate) fn memory_can_be_registered_again<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, mut t) = (c.link()?, c.transfer(64, 4)?);
    for round in 0..12 {
        let ids = c.post(&mut link, t.all())?;
        c.finish(&mut link, ids).map_err(|e| format!("registration {round}: {e}"))?;
        t.expect(c, 4)?;
        t.clear(c)?;
        let memory = t.near.deregister().map_err(|(_, e)| format!("deregister: {e}"))?;
        t.near = c.a.register(memory).say("reg_mr")?;
    }
    Ok(())
}

/// Registering and forgetting many times runs nothing out.
pub(crate) fn regions_come_and_go<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, mut t) = (c.link()?, c.transfer_into(8, 5, 4096)?);
    c.b.deregister(t.far)?;
    for round in 0..200 {
        t.far = c.b.alloc(4096).map_err(|e| format!("region {round}: {e}"))?;
        if round % 20 == 0 {
            t.load(c, 5)?;
            let ids = c.post(&mut link, t.part(0..8, 0..8)?)?;
            c.finish(&mut link, ids)?;
            t.expect_bytes(c, 0, &pattern(5, 8))?;
        }
        c.b.deregister(t.far)?;
    }
    Ok(())
}

/// T10, row 6: a region that is dropped with work in flight fails the request, at most; never the process.
pub(crate) fn dropped_region_fails_the_request_not_the_process<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let n = c.one_request(4096);
    for steps in [0, 1, 2, 64] {
        let (mut link, t) = (c.link()?, c.transfer(n, 6)?);
        let ids = c.post(&mut link, t.all())?;
        for _ in 0..steps {
            (c.wait.progress)();
        }
        drop(t.near);
        // Its address may be handed out again at once: a device that is late must not touch it.
        let heirs = (0..4).map(|_| c.region(n)).collect::<Result<Vec<_>, _>>()?;
        let wcs = c.completions(&mut link, 1)?;
        ensure_eq!(wcs[0].wr_id, ids.first, "id of the completion");
        if !wcs[0].is_valid() && link.info.transport != ibv_core::Transport::SRD {
            ensure_eq!(link.qp.state().say("state")?, QpState::ERR, "state after {}", wcs[0].status);
        }
        ensure!(
            heirs.iter().all(|h| h.to_vec() == vec![0; n]),
            "memory that was registered later was touched"
        );
    }
    Ok(())
}

/// T10: so does one that a get was to fill; the bytes go nowhere.
pub(crate) fn dropped_destination_is_never_written_late<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let n = c.one_request(4096);
    let src = c.b.alloc(n)?;
    c.b.fill(src, 7)?;
    for steps in [0, 1, 2, 3] {
        let (mut link, dst) = (c.link()?, c.region(n)?);
        let ids = link.qp.get(dst.view(), src.remote).say("get")?;
        for _ in 0..steps {
            (c.wait.progress)();
        }
        let memory = dst.deregister().map_err(|(_, e)| format!("deregister in flight: {e}"))?;
        let heir = c.a.register(memory).say("reg_mr")?;
        let before = heir.to_vec();
        ensure_eq!(c.completions(&mut link, 1)?[0].wr_id, ids.first, "id of the completion");
        c.wait.settle();
        ensure!(heir.to_vec() == before, "the get wrote after its region was deregistered ({steps} steps)");
    }
    Ok(())
}

/// T7, T10: the peer's region goes while puts are on their way; the sender learns it, nothing breaks.
pub(crate) fn region_dropped_by_the_peer_fails_the_request<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let n = c.one_request(4096);
    for steps in [0, 1, 3] {
        let (mut link, t) = (c.link()?, c.transfer(n, 8)?);
        let ids = c.post(&mut link, t.all())?;
        for _ in 0..steps {
            (c.wait.progress)();
        }
        c.b.deregister(t.far)?;
        let wc = c.completions(&mut link, 1)?[0];
        ensure_eq!(wc.wr_id, ids.first, "id of the completion");
        let fine =
            [ibv_core::WcStatus::SUCCESS, ibv_core::WcStatus::REM_ACCESS_ERR, ibv_core::WcStatus::REM_OP_ERR];
        ensure!(fine.contains(&wc.status), "status {} after the peer's region went", wc.status);
    }
    Ok(())
}

/// `mem::forget` of a region is safe code: it leaks, and its key goes on working.
pub(crate) fn forgotten_region_goes_on_working<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(64, 9)?);
    let (way, view, key) = (t.way, t.near.view(), t.near.remote());
    let view = ibv_core::IbvMemoryRegionView::from_raw_parts(view.addr(), view.len(), view.lkey());
    let far = t.far;
    std::mem::forget(t.near);
    if way == Way::Send {
        c.b.post_recv(link.peer, &[far.whole()])?;
    }
    let ids = Part::between(way, view, far.remote).post(&mut link.qp).say("post")?;
    c.finish(&mut link, ids)?;
    if way != Way::Get {
        return c.b.expect_pattern(far, 9);
    }
    // Nobody here can look at what was got any more; the peer can.
    let seen = c.b.alloc(64)?;
    c.b.post(link.peer, WireRequest::get(seen.whole(), key))?;
    ids_of(&c.b.wait(link.peer, 1)?)?;
    c.b.expect_pattern(seen, 9)
}

/// Remote writes without local ones are a contradiction, refused before a device sees it.
pub(crate) fn contradictory_access_is_refused<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_WRITE | Access::REMOTE_READ] {
        let made = c.a.register_with(HeapMemory::zeroed(64).say("alloc")?, access);
        let e = made.err().ok_or_else(|| format!("a region was registered for {access:?}"))?;
        ensure_eq!(e.kind(), ErrorKind::InvalidConfig, "kind of the error");
    }
    let region = c.region_for(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    ensure_eq!(region.access(), Access::LOCAL_WRITE | Access::REMOTE_WRITE, "access of the region");
    Ok(())
}

/// Views and host access stay inside their region.
pub(crate) fn views_stay_inside_their_region<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let region = c.region(64)?;
    for (at, len, inside) in [(0, 64, true), (64, 0, true), (63, 1, true), (64, 1, false), (1, 64, false)] {
        ensure_eq!(region.view().slice(at, len).is_some(), inside, "local slice {at}+{len} of 64");
        ensure_eq!(region.remote().slice(at, len).is_some(), inside, "remote slice {at}+{len} of 64");
        let mut out = vec![0; len];
        ensure_eq!(region.read_at(at, &mut out).is_ok(), inside, "read of {at}+{len} of 64");
        ensure_eq!(region.write_at(at, &out).is_ok(), inside, "write of {at}+{len} of 64");
    }
    ensure!(region.view().slice(usize::MAX, 2).is_none(), "a slice that wraps");
    let refused = region.read_at(usize::MAX, &mut [0; 2]);
    ensure_eq!(refused, Err(OutOfRange { at: usize::MAX, len: 2, size: 64 }), "a read that wraps");
    Ok(())
}

/// T11: a region of no bytes exists or is refused by name; transfers of nothing go through one.
pub(crate) fn region_of_no_bytes_does_no_harm<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, near, far, way) = (c.link()?, c.region(0), c.b.alloc(8)?, c.way());
    if let Ok(near) = near {
        // A get moves as much as it names of the far side.
        let named = far.at(0, if way == Way::Get { 0 } else { 8 })?;
        let ids = Part::between(way, near.view(), named).post(&mut link.qp).say("transfer of no bytes")?;
        c.finish(&mut link, ids)?;
    }
    c.b.expect_untouched(far, 0, &[0; 8])?;
    let past = IbvRemoteMemoryRegionView { addr: far.remote.addr + 8, len: 0, ..far.remote };
    let none = c.region(8)?;
    let part = Part::between(way, none.view().slice(8, 0).say("slice")?, past);
    let ids = part.post(&mut link.qp).say("transfer of no bytes at the end")?;
    c.finish(&mut link, ids)
}
