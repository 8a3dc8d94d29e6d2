//! The two sides of a transfer, step by step. The messages are `wire.rs`'s, the bytes `end.rs`'s.

use super::{
    Checksums, RECEIVER_COPIES, Report, SENDER_COPIES, Settings, Sha256, Watch,
    end::{End, Way},
    fits,
    wire::Message,
};
use crate::{
    Failure,
    file::{Destination, Source, checksum},
    wire::{Channel, Link, Protocol},
};
use ibv::{Access, HeapMemory, IbvDomain, IbvDomainImpl, IbvMemoryRegion, IbvRemoteMemoryRegionView};
use std::path::Path;

/// Sends `path` to the peer behind `link`, gets it back and compares.
///
/// # Errors
/// See [`Failure`]; the peer is told the reason.
pub fn send<I: IbvDomainImpl, L: Link>(
    domain: &IbvDomain<I>,
    link: L,
    path: &Path,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Report, Failure> {
    let mut channel = Channel::new(link, settings.timeout);
    let sent = sender(domain, &mut channel, path, settings, watch);
    sent.inspect_err(|failure| channel.abort(failure))
}

/// Receives a file from the peer behind `link`. It appears at `path` once the sender has it back
/// unchanged, and not at all otherwise; without a `path` it is verified and forgotten.
///
/// # Errors
/// See [`Failure`]; the peer is told the reason.
pub fn receive<I: IbvDomainImpl, L: Link>(
    domain: &IbvDomain<I>,
    link: L,
    path: Option<&Path>,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Report, Failure> {
    let mut channel = Channel::new(link, settings.timeout);
    let received = receiver(domain, &mut channel, path, settings, watch);
    received.inspect_err(|failure| channel.abort(failure))
}

fn sender<I: IbvDomainImpl, L: Link>(
    domain: &IbvDomain<I>,
    channel: &mut Channel<L, Message>,
    path: &Path,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Report, Failure> {
    let file = Source::open(path)?;
    let bytes = file.len();
    fits(path.display(), bytes, SENDER_COPIES)?;
    let mut end = End::open(domain, channel, settings)?;
    let (src, back) = (region(domain, bytes)?, region(domain, bytes)?);
    let source = file.read_into(&src, || channel.beat())?;
    let remote = offer(channel, bytes, source)?;

    watch.phase("put", bytes);
    let put = end.pump(Way::Put, src.view(), remote, |n| {
        watch.done(n);
        channel.beat()
    });
    let put = put.map_err(|e| channel.explain(e))?;
    let notified = end.notify(src.view(), remote).map_err(|e| channel.explain(e))?;
    channel.send(&Message::Placed { notified })?;
    let destination = match channel.receive("waited for it to verify the bytes")? {
        Message::Verdict { sha256 } => sha256,
        other => return Err(other.instead_of("a checksum")),
    };
    same(source, destination, "at the peer")?;

    watch.phase("get", bytes);
    let get = end.pump(Way::Get, back.view(), remote, |n| {
        watch.done(n);
        channel.beat()
    });
    let get = get.map_err(|e| channel.explain(e))?;
    let returned = checksum(&back, || channel.beat())?;
    same(source, returned, "after getting them back")?;
    channel.send(&Message::Returned)?;
    match channel.receive("waited for it to keep the file")? {
        Message::Stored => {}
        other => return Err(other.instead_of("\"stored\"")),
    }
    let sha256 = Checksums { source, destination, returned: Some(returned) };
    let report = Report::new(path, domain, bytes, sha256);
    let cut = Some(end.cut());
    end.close();
    Ok(Report { cut, put: Some(put), get: Some(get), ..report })
}

fn receiver<I: IbvDomainImpl, L: Link>(
    domain: &IbvDomain<I>,
    channel: &mut Channel<L, Message>,
    path: Option<&Path>,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Report, Failure> {
    path.map(Destination::create).transpose()?;
    let mut end = End::open(domain, channel, settings)?;
    let (bytes, source) = match channel.receive("waited for an offer")? {
        Message::Offer { bytes, sha256 } => (bytes, sha256),
        other => return Err(other.instead_of("an offer")),
    };
    watch.phase("receive", bytes);
    fits("the offered file", bytes, RECEIVER_COPIES)?;
    let dst = region(domain, bytes)?;
    let IbvRemoteMemoryRegionView { addr, len, rkey } = dst.remote();
    channel.send(&Message::Grant { addr, len: len as u64, rkey })?;
    match channel.receive("waited for the bytes")? {
        Message::Placed { notified: true } => end.notified().map_err(|e| channel.explain(e))?,
        Message::Placed { notified: false } => {}
        other => return Err(other.instead_of("\"placed\"")),
    }
    let destination = checksum(&dst, || channel.beat())?;
    watch.done(bytes);
    channel.send(&Message::Verdict { sha256: destination })?;
    same(source, destination, "as they arrived")?;
    match channel.receive("waited for it to get the bytes back")? {
        Message::Returned => {}
        other => return Err(other.instead_of("\"returned\"")),
    }
    if let Some(path) = path {
        let mut file = Destination::create(path)?;
        file.fill(&dst, || channel.beat())?;
        file.keep()?;
    }
    channel.send(&Message::Stored)?;
    let sha256 = Checksums { source, destination, returned: None };
    let name = path.unwrap_or(Path::new(""));
    let report = Report::new(name, domain, bytes, sha256);
    end.close();
    Ok(report)
}

/// Offers the file; where the peer wants it.
fn offer<L: Link>(
    channel: &mut Channel<L, Message>,
    bytes: u64,
    sha256: Sha256,
) -> Result<IbvRemoteMemoryRegionView, Failure> {
    channel.send(&Message::Offer { bytes, sha256 })?;
    match channel.receive("waited for it to make room")? {
        Message::Grant { addr, len, rkey } if len >= bytes => {
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            Ok(IbvRemoteMemoryRegionView { addr, len, rkey })
        }
        Message::Grant { len, .. } => {
            Err(Failure::Garbage(format!("it granted {len} bytes for a file of {bytes}")))
        }
        other => Err(other.instead_of("a grant")),
    }
}

/// A region for the whole file. Atomics are nobody's business here.
fn region<I: IbvDomainImpl>(
    domain: &IbvDomain<I>,
    bytes: u64,
) -> Result<IbvMemoryRegion<I, HeapMemory>, Failure> {
    let too_large = |_| Failure::TooLarge { what: "file".into(), need: bytes, available: usize::MAX as u64 };
    let len = usize::try_from(bytes).map_err(too_large)?;
    let access = Access::ALL.difference(Access::REMOTE_ATOMIC);
    Ok(domain.register_with(HeapMemory::zeroed(len)?, access)?)
}

fn same(ours: Sha256, theirs: Sha256, whose: &'static str) -> Result<(), Failure> {
    if ours == theirs {
        return Ok(());
    }
    Err(Failure::Mismatch { ours: ours.to_string(), theirs: theirs.to_string(), whose })
}
