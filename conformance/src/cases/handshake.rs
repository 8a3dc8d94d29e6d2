//! Endpoints and what two of them agree on; configurations, checked and read back.

use super::prelude::*;
use ibv_core::{EndpointError, ErrorKind, Gid, GidChoice, IbvQpInfo, Mtu, QpState, Transport};

/// T4, row 28: an endpoint's byte form says all of it.
pub(crate) fn endpoint_bytes_round_trip<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(8, 1)?);
    for info in [link.info, link.theirs] {
        let read = IbvQpInfo::from_bytes(&info.to_bytes()).say("read an endpoint's own bytes")?;
        ensure_eq!(read, info, "the endpoint read back");
    }
    // End b was connected through the byte form.
    let ids = c.post(&mut link, t.all())?;
    c.finish(&mut link, ids)?;
    t.expect(c, 1)
}

/// T4: truncated, foreign, newer and random bytes are typed errors.
pub(crate) fn malformed_endpoints_are_typed_errors<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let good = c.link()?.info.to_bytes();
    for n in 0..good.len() {
        let cut = IbvQpInfo::from_bytes(&good[..n]);
        ensure!(matches!(cut, Err(EndpointError::Truncated { .. })), "{n} bytes of an endpoint: {cut:?}");
    }
    let mut newer = good;
    newer[4] = newer[4].wrapping_add(1);
    let e = IbvQpInfo::from_bytes(&newer).err().say("another version was read as this one")?;
    ensure!(matches!(e, EndpointError::Version { .. }), "another version: {e}");
    for seed in 0..64 {
        let noise = pattern(seed, 64);
        ensure!(IbvQpInfo::from_bytes(&noise).is_err(), "noise was read as an endpoint: {noise:x?}");
    }
    Ok(())
}

/// A10: one connection in a queue pair's life; the refused second one does no harm.
pub(crate) fn second_connect_is_refused<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (mut link, t) = (c.link()?, c.transfer(8, 2)?);
    let theirs = link.theirs;
    let e = link.qp.queue_pair().connect(&theirs).err().say("a second connect succeeded")?;
    ensure_eq!(e.kind(), ErrorKind::InvalidState, "kind of the error");
    ensure_eq!(link.qp.state().say("state")?, QpState::RTS, "state after a refused connect");
    let ids = c.post(&mut link, t.all())?;
    c.finish(&mut link, ids)?;
    t.expect(c, 2)
}

/// Row 42: who can not talk is told both sides' values, is still in RESET, and may try another peer.
pub(crate) fn peer_of_another_transport_is_refused<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (config, t) = (c.config(), c.transfer(8, 3)?);
    let (mut qp, cq) = c.unconnected(&config)?;
    let info = qp.get_qp_info().say("get_qp_info")?;
    let (peer, theirs) = c.b.create_qp(&config, false)?;
    let mut other = theirs;
    other.transport = Transport(info.transport.0 ^ 0x3f);
    let Err((mut qp, e)) = qp.connect(&other) else {
        return Err("a peer of another transport was connected to".into());
    };
    ensure_eq!(e.kind(), ErrorKind::Incompatible, "kind of the error");
    let (text, ours) = (e.to_string(), info.transport.to_string());
    ensure!(
        text.contains(&ours) && text.contains(&other.transport.to_string()),
        "both transports are not in: {text}"
    );
    ensure_eq!(qp.state().say("state")?, QpState::RESET, "state after a refused connect");
    c.b.connect(peer, &info)?;
    let mut qp = qp.connect(&theirs).map_err(|(_, e)| format!("connect after a refused one: {e}"))?;
    let _ids = c.post_on(&mut qp, peer, t.all())?;
    let mut poller = cq.poller().say("poller")?;
    ids_of(&wait_on(&c.wait, &mut poller, 1)?)?;
    t.expect(c, 3)
}

/// T4, row 44: ends of different MTU agree on the smaller, both of them, and bytes arrive.
pub(crate) fn both_ends_agree_on_the_smaller_mtu<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let t = c.transfer(c.at_once(5000), 4)?;
    for [ours, theirs] in [[Mtu::B4096, Mtu::B1024], [Mtu::B1024, Mtu::B4096], [Mtu::B256, Mtu::B512]] {
        let mut configs = [c.config(), c.config()];
        (configs[0].path_mtu, configs[1].path_mtu) = (ours, theirs);
        let mut link = c.link_with(&configs[0], &configs[1])?;
        if link.info.transport == Transport::SRD {
            return Err(c.skip("a datagram transport has no path MTU"));
        }
        let least = link.info.mtu.min(link.theirs.mtu);
        ensure!(least <= ours.min(theirs), "asked for {ours} and {theirs}, offered {least}");
        ensure_eq!(link.qp.config().path_mtu, least, "end a's path MTU");
        ensure_eq!(c.b.config(link.peer)?.path_mtu, least, "end b's path MTU");
        t.clear(c)?;
        let ids = c.post(&mut link, t.all())?;
        c.ids(&mut link, ids.count as usize)?;
        t.expect(c, 4)?;
    }
    Ok(())
}

/// Gets outstanding are agreed on, each way by itself.
pub(crate) fn both_ends_agree_on_outstanding_gets<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut configs = [c.config(), c.config()];
    (configs[0].max_rd_atomic, configs[0].max_dest_rd_atomic) = (4, 2);
    (configs[1].max_rd_atomic, configs[1].max_dest_rd_atomic) = (8, 1);
    let mut link = c.link_with(&configs[0], &configs[1])?;
    let (ours, theirs) = (link.info, link.theirs);
    ensure!(
        ours.max_rd_atomic <= 4 && ours.max_dest_rd_atomic <= 2,
        "end a offers more than was asked for: {ours:?}"
    );
    let (a, b) = (link.qp.config().clone(), c.b.config(link.peer)?);
    ensure_eq!(a.max_rd_atomic, ours.max_rd_atomic.min(theirs.max_dest_rd_atomic), "end a as initiator");
    ensure_eq!(b.max_rd_atomic, theirs.max_rd_atomic.min(ours.max_dest_rd_atomic), "end b as initiator");
    ensure_eq!(
        (a.max_dest_rd_atomic, b.max_dest_rd_atomic),
        (b.max_rd_atomic, a.max_rd_atomic),
        "as responders"
    );
    c.no_completion(&mut link)
}

/// Each queue pair draws a first sequence number of its own; one that is set is kept.
pub(crate) fn sequence_numbers_are_drawn_for_each_queue_pair<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut config = c.shallow(1);
    config.psn = None;
    let mut psns = Vec::new();
    for _ in 0..8 {
        psns.push(c.unconnected(&config)?.0.get_qp_info().say("get_qp_info")?.psn);
    }
    ensure!(psns.iter().any(|p| *p != psns[0]), "eight queue pairs all start at {:#x}", psns[0]);
    ensure!(psns.iter().all(|p| p >> 24 == 0), "a sequence number has more than 24 bits: {psns:x?}");
    for psn in [0, 0x12_3456, 0xff_ffff] {
        config.psn = Some(psn);
        let (mut qp, _cq) = c.unconnected(&config)?;
        ensure_eq!(qp.get_qp_info().say("get_qp_info")?.psn, psn, "sequence number");
        ensure_eq!(qp.config().psn, Some(psn), "sequence number in the configuration");
    }
    Ok(())
}

/// The sequence number wraps at 24 bits, on either side, in the middle of a transfer.
pub(crate) fn sequence_numbers_wrap_in_a_transfer<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut config = c.config();
    config.psn = Some(0xff_fffe);
    let n = c.at_once(6 * 4096.min(c.caps().max_msg_size));
    let (mut link, t) = (c.link_with(&config, &config)?, c.transfer(n, 5)?);
    for _ in 0..3 {
        t.clear(c)?;
        let ids = c.post(&mut link, t.all())?;
        c.ids(&mut link, ids.count as usize)?;
        t.expect(c, 5)?;
    }
    Ok(())
}

/// Sets one field beyond a limit, and what the message has to name besides.
type Beyond = (&'static str, u64, fn(&mut IbvConfig, u32));

/// More than the device has is refused with the field and both numbers.
pub(crate) fn configuration_beyond_the_device_names_both_numbers<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
) -> Done {
    let caps = c.caps();
    let fields: [Beyond; 5] = [
        ("max_send_wr", caps.max_send_wr.into(), |c, n| c.max_send_wr = n),
        ("max_recv_wr", caps.max_recv_wr.into(), |c, n| c.max_recv_wr = n),
        ("max_send_sge", caps.max_send_sge.into(), |c, n| c.max_send_sge = n),
        ("max_recv_sge", caps.max_recv_sge.max(1).into(), |c, n| c.max_recv_sge = n),
        ("max_inline", caps.max_inline.into(), |c, n| c.max_inline = n),
    ];
    let cq = c.a.create_cq(depth_of(&c.config())).say("create_cq")?;
    for (field, limit, set) in fields {
        let mut config = c.config();
        set(&mut config, limit as u32 + 1);
        let made = c.a.create_queue_pair(config, &cq, &cq);
        let e =
            made.err().ok_or_else(|| format!("{field} of {} was taken; the limit is {limit}", limit + 1))?;
        ensure_eq!(e.kind(), ErrorKind::InvalidConfig, "kind of the error about {field}");
        let text = e.to_string();
        let named = [field, &limit.to_string(), &(limit + 1).to_string()].iter().all(|w| text.contains(w));
        ensure!(named, "the field and both numbers are not in: {text}");
    }
    Ok(())
}

/// A field, and what sets it to a value that no device takes.
type Spoil = (&'static str, fn(&mut IbvConfig));

/// Values that no device takes are refused before one is asked.
pub(crate) fn configuration_beyond_the_specification_is_refused<D: IbvDomainImpl>(
    c: &mut Ctx<'_, D>,
) -> Done {
    let fields: [Spoil; 9] = [
        ("port_num", |c| c.port_num = 0),
        ("max_send_wr", |c| c.max_send_wr = 0),
        ("retry_cnt", |c| c.retry_cnt = 8),
        ("rnr_retry", |c| c.rnr_retry = 8),
        ("timeout", |c| c.timeout = 32),
        ("min_rnr_timer", |c| c.min_rnr_timer = 32),
        ("psn", |c| c.psn = Some(1 << 24)),
        ("service_level", |c| c.service_level = 16),
        ("flow_label", |c| c.flow_label = 1 << 20),
    ];
    let cq = c.a.create_cq(depth_of(&c.config())).say("create_cq")?;
    for (field, spoil) in fields {
        let mut config = c.config();
        spoil(&mut config);
        let made = c.a.create_queue_pair(config, &cq, &cq);
        let e = made.err().ok_or_else(|| format!("a {field} that no device has was taken"))?;
        ensure!(
            e.kind() == ErrorKind::InvalidConfig && e.to_string().contains(field),
            "not about {field}: {e}"
        );
    }
    Ok(())
}

/// Row 24: what was set is what the device says, once connected.
pub(crate) fn attributes_read_back_what_was_set<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let mut config = c.config();
    (config.retry_cnt, config.rnr_retry, config.timeout, config.min_rnr_timer) = (5, 3, 17, 9);
    (config.psn, config.traffic_class, config.hop_limit) = (Some(0x45_6789), 0x68, 33);
    (config.max_rd_atomic, config.max_dest_rd_atomic) = (1, 1);
    let mut link = c.link_with(&config, &config)?;
    let got = match link.qp.attributes() {
        Err(e) if e.kind() == ErrorKind::Unsupported => return Err(c.skip(e.to_string())),
        got => got.say("attributes")?,
    };
    ensure_eq!(got.state, QpState::RTS, "state");
    ensure_eq!(got.config.port_num, config.port_num, "port_num");
    ensure_eq!(got.config.psn, config.psn, "psn");
    if link.info.transport == Transport::SRD {
        return Ok(());
    }
    let of = |c: &IbvConfig| {
        (c.retry_cnt, c.rnr_retry, c.timeout, c.min_rnr_timer, c.max_rd_atomic, c.max_dest_rd_atomic)
    };
    ensure_eq!(of(&got.config), of(link.qp.config()), "retries, times and outstanding gets");
    ensure_eq!(
        (got.config.retry_cnt, got.config.rnr_retry, got.config.timeout),
        (5, 3, 17),
        "retries and time-out"
    );
    ensure_eq!(got.config.path_mtu, link.qp.config().path_mtu, "path_mtu");
    ensure_eq!((got.dest_qp_num, got.rq_psn), (Some(link.theirs.qp_num), Some(link.theirs.psn)), "the peer");
    if link.info.gid.is_some() {
        ensure_eq!(
            (got.config.traffic_class, got.config.hop_limit),
            (0x68, 33),
            "traffic class and hop limit"
        );
    }
    Ok(())
}

/// T3: a GID index beyond the table is an error when the queue pair is made, not at the first packet.
pub(crate) fn gid_index_beyond_the_table_is_refused<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    if c.link()?.info.gid.is_none() {
        return Err(c.skip("this port has no GIDs"));
    }
    for gid in [GidChoice::Index(255), GidChoice::Index(u32::MAX), GidChoice::Exact(Gid([0xa5; 16]))] {
        let mut config = c.config();
        config.gid = gid;
        ensure!(
            c.unconnected(&config).is_err(),
            "a queue pair was made with {gid:?}, which the port has not"
        );
    }
    c.unconnected(&c.config()).map(drop)
}

/// T3, row 43: a GID can be chosen by its bytes, which do not differ between nodes and boots.
pub(crate) fn gid_is_chosen_by_its_bytes<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let Some(gid) = c.link()?.info.gid else { return Err(c.skip("this port has no GIDs")) };
    let mut config = c.config();
    config.gid = GidChoice::Exact(gid);
    let (mut qp, _cq) = c.unconnected(&config)?;
    ensure_eq!(qp.get_qp_info().say("get_qp_info")?.gid, Some(gid), "the endpoint's GID");
    let port = config.port_num;
    if let Some(port) = c.a.device_info().port(port).filter(|p| !p.gids.is_empty()) {
        ensure!(port.gids.iter().any(|g| g.gid == gid), "the chosen GID {gid} is not in the port's table");
    }
    Ok(())
}

/// T13: a datagram queue pair's key is in its endpoint, and a wrong one reaches nobody.
pub(crate) fn wrong_queue_key_reaches_nobody<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let (config, t) = (c.config(), c.transfer(8, 6)?);
    let (mut qp, cq) = c.unconnected(&config)?;
    let info = qp.get_qp_info().say("get_qp_info")?;
    if info.transport != Transport::SRD {
        return Err(c.skip(format!("{} has no queue keys", info.transport)));
    }
    let (peer, mut theirs) = c.b.create_qp(&config, false)?;
    c.b.connect(peer, &info)?;
    theirs.qkey ^= 1;
    let mut qp = qp.connect(&theirs).map_err(|(_, e)| format!("connect: {e}"))?;
    let _ids = c.post_on(&mut qp, peer, t.all())?;
    let mut poller = cq.poller().say("poller")?;
    // Whether the sender learns of it is the device's; that nothing arrives is not.
    c.wait.settle();
    let mut wc = [ibv_core::IbvWc::default()];
    let n = poller.poll(&mut wc).say("poll")?;
    ensure!(n == 0 || !wc[0].is_valid(), "a request with a wrong queue key succeeded");
    t.expect_untouched(c, 0, &[0; 8])
}

/// A completion queue of another domain is refused, not used.
pub(crate) fn queue_of_another_domain_is_refused<D: IbvDomainImpl>(c: &mut Ctx<'_, D>) -> Done {
    let Some(other) = c.here else { return Err("end b is not here".into()) };
    let config = c.config();
    let (ours, theirs) = (
        c.a.create_cq(depth_of(&config)).say("create_cq")?,
        other.create_cq(depth_of(&config)).say("create_cq")?,
    );
    for (send, recv) in [(&ours, &theirs), (&theirs, &ours), (&theirs, &theirs)] {
        let made = c.a.create_queue_pair(config.clone(), send, recv);
        let e = made.err().say("a queue of another domain was taken")?;
        ensure_eq!(e.kind(), ErrorKind::ForeignHandle, "kind of the error");
    }
    c.a.create_queue_pair(config, &ours, &ours).map(drop).say("create_qp after refused ones")
}
