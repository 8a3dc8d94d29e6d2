//! The two sides of a measurement, row by row. The messages are `wire.rs`'s, the loops `bandwidth.rs`'s and
//! `latency.rs`'s.

use super::{
    Bandwidth, Extent, Latency, Operation, Report, Row, Settings, Watch,
    bandwidth::{self, Part},
    end::End,
    latency,
    pace::Pace,
    steps::{Step, steps},
    wire::Message,
};
use crate::{
    Failure,
    wire::{Channel, Link, Protocol},
};
use ibv::{IbvDomain, IbvDomainImpl};

/// Measures against the server behind `link`.
///
/// # Errors
/// See [`Failure`]; the peer is told the reason.
pub fn client<I: IbvDomainImpl, L: Link>(
    domain: &IbvDomain<I>,
    link: L,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Report, Failure> {
    side(domain, link, settings, watch, true)
}

/// Serves the client behind `link`, which measures.
///
/// # Errors
/// See [`Failure`]; the peer is told the reason.
pub fn server<I: IbvDomainImpl, L: Link>(
    domain: &IbvDomain<I>,
    link: L,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Report, Failure> {
    side(domain, link, settings, watch, false)
}

fn side<I: IbvDomainImpl, L: Link>(
    domain: &IbvDomain<I>,
    link: L,
    settings: &Settings,
    watch: &mut dyn Watch,
    client: bool,
) -> Result<Report, Failure> {
    let mut channel = Channel::new(link, settings.timeout);
    let mut run = || {
        settings.check(domain.device_info(), &domain.caps())?;
        let Met { peer_device, limit, in_order } = greet(domain, &mut channel, settings)?;
        let steps = steps(settings, limit, in_order)?;
        let largest = steps.iter().map(|step| step.size).max().unwrap_or(1);
        let end = End::open(domain, &mut channel, settings, largest)?;
        let report = Report::new(domain, settings, client, peer_device);
        let report = Report { left_out: settings.left_out(in_order), ..report };
        let mut side = Side { end, channel: &mut channel, settings, watch, client };
        let rows: Result<_, _> = (0..).zip(steps).map(|(i, step)| side.row(i, step)).collect();
        Ok(Report { rows: rows?, ..report })
    };
    let report = run();
    report.inspect_err(|failure| channel.abort(failure))
}

/// The peer's device; the largest message that both devices take, bytes, and whether both deliver in order.
struct Met {
    peer_device: String,
    limit: usize,
    in_order: bool,
}

/// Compares what both ends were told to do.
fn greet<I: IbvDomainImpl, L: Link>(
    domain: &IbvDomain<I>,
    channel: &mut Channel<L, Message>,
    settings: &Settings,
) -> Result<Met, Failure> {
    let caps = domain.caps();
    let (terms, limit, in_order) = (settings.terms(), settings.limit(&caps), caps.messages_in_order);
    let device = domain.device_info().name.clone();
    channel.send(&Message::Hello { terms: terms.clone(), limit: limit as u64, in_order, device })?;
    match channel.receive("waited for its settings")? {
        Message::Hello { terms: theirs, limit: most, in_order: too, device } => {
            terms.compare(&theirs)?;
            let limit = limit.min(usize::try_from(most).unwrap_or(usize::MAX));
            Ok(Met { peer_device: device, limit, in_order: in_order && too })
        }
        other => Err(other.instead_of("its settings")),
    }
}

/// One end in the middle of a measurement.
struct Side<'s, I: IbvDomainImpl, L> {
    end: End<I>,
    channel: &'s mut Channel<L, Message>,
    settings: &'s Settings,
    watch: &'s mut dyn Watch,
    client: bool,
}

impl<I: IbvDomainImpl, L: Link> Side<'_, I, L> {
    fn row(&mut self, i: u64, step: Step) -> Result<Row, Failure> {
        self.end.prepare(i, self.client, step.size)?;
        if self.settings.operation == Operation::Send {
            self.end.parts(Operation::Send, step.size)?.fill_receives()?;
        }
        self.meet(&Message::Ready)?;
        let total = match self.settings.extent {
            Extent::Iterations(n) if step.latency => n,
            Extent::Iterations(n) => n.saturating_mul(self.settings.qps.into()),
            Extent::Duration(time) => time.as_millis() as u64,
        };
        self.watch.row(&format!("{} {}, {} bytes", self.settings.operation, step.name(), step.size), total);
        let row = if step.latency { self.latency(step)? } else { self.bandwidth(step)? };
        self.verify(i, step)?;
        Ok(row)
    }

    /// Says `word`, and waits for the same of the peer.
    fn meet(&mut self, word: &Message) -> Result<(), Failure> {
        self.channel.send(word)?;
        match self.channel.receive("waited for it to be ready")? {
            Message::Ready => Ok(()),
            other => Err(other.instead_of("\"ready\"")),
        }
    }

    fn bandwidth(&mut self, step: Step) -> Result<Row, Failure> {
        let Settings { operation, bidirectional, extent, .. } = *self.settings;
        let sends = self.client || bidirectional;
        let receives = operation == Operation::Send && (!self.client || bidirectional);
        let timed = matches!(extent, Extent::Duration(_));
        let mut pace = Pace::new(self.channel, self.watch, "was measuring bandwidth", timed);
        let mut parts = Vec::new();
        if sends || receives {
            let part = Part { sends, receives };
            parts.push(bandwidth::run(&mut self.end, self.settings, step.size, part, &mut pace)?);
        }
        if !self.client || bidirectional {
            parts.push(pace.peer_finished()?);
        }
        parts.retain(|part| part.messages > 0);
        let (polls, empty_polls) = (pace.polls, pace.empty);
        let bandwidth = Some(Bandwidth::of(&parts, step.size));
        Ok(Row { bandwidth, polls, empty_polls, ..Row::new("bandwidth", step.size, &parts) })
    }

    fn latency(&mut self, step: Step) -> Result<Row, Failure> {
        let timed = matches!(self.settings.extent, Extent::Duration(_));
        let mut pace = Pace::new(self.channel, self.watch, "was measuring latency", timed);
        let (done, times) = latency::run(&mut self.end, self.settings, step.size, self.client, &mut pace)?;
        let (polls, empty_polls) = (pace.polls, pace.empty);
        let factor = latency::rtt_factor(self.settings.operation);
        let latency = self.client.then(|| Latency::of(&times, factor));
        Ok(Row { latency, polls, empty_polls, ..Row::new("latency", step.size, &[done]) })
    }

    /// Both ends compare what they got, if asked to, and hear of the other's finding.
    fn verify(&mut self, row: u64, step: Step) -> Result<(), Failure> {
        let Settings { operation, bidirectional, verify, .. } = *self.settings;
        let gets = match operation {
            Operation::Read => self.client || bidirectional,
            _ => !self.client || bidirectional || step.latency,
        };
        let counts = step.latency && operation == Operation::Write;
        let wrong = match verify && gets {
            true => self.end.verify(row, self.client, step.size, counts)?,
            false => None,
        };
        self.channel.send(&Message::Verdict { wrong: wrong.clone() })?;
        let theirs = match self.channel.receive("waited for it to verify the bytes")? {
            Message::Verdict { wrong } => wrong.map(|what| format!("at the peer, {what}")),
            other => return Err(other.instead_of("a verdict")),
        };
        match wrong.or(theirs) {
            Some(what) => Err(Failure::WrongBytes(what.chars().filter(|c| !c.is_control()).collect())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::Measure;
    use ibv::{
        Provider,
        mock::{MockDomain, MockProvider},
    };
    use std::{os::unix::net::UnixStream, thread};

    fn open(provider: &MockProvider, i: usize) -> IbvDomain<MockDomain> {
        let info = provider.devices().unwrap().swap_remove(i);
        IbvDomain::new(provider.open(&info).unwrap(), info)
    }

    /// What both ends make of a client that says it moved everything after `moves` had its way.
    fn client_that(
        settings: &Settings,
        moves: impl FnOnce(&mut End<MockDomain>),
    ) -> (Result<Report, Failure>, Result<(), Failure>) {
        let provider = MockProvider::default();
        let (near, far) = (open(&provider, 0), open(&provider, 1));
        let (here, there) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            let served = scope.spawn(|| server(&far, there, settings, &mut ()));
            let mut channel = Channel::new(here, settings.timeout);
            greet(&near, &mut channel, settings).unwrap();
            let mut end = End::open(&near, &mut channel, settings, 64).unwrap();
            end.prepare(0, true, 64).unwrap();
            moves(&mut end);
            let mut side = Side { end, channel: &mut channel, settings, watch: &mut (), client: true };
            side.meet(&Message::Ready).unwrap();
            side.channel.send(&Message::Finished { messages: 1, nanos: 1 }).unwrap();
            let verdict = side.verify(0, Step { latency: false, size: 64 });
            (served.join().unwrap(), verdict)
        })
    }

    #[test]
    fn bytes_that_were_not_moved_are_found_and_both_ends_say_where() {
        let mut settings = Settings::new(Operation::Write, Measure::Bw);
        (settings.size, settings.verify) = (Some(64), true);
        let (served, verdict) = client_that(&settings, |_| {});
        let (served, verdict) = (served.unwrap_err(), verdict.unwrap_err());
        assert!(matches!(&served, Failure::WrongBytes(what) if what.contains("byte 0 of 64")), "{served}");
        assert!(verdict.to_string().contains("at the peer, byte 0 of 64"), "{verdict}");
        settings.verify = false;
        let (served, verdict) = client_that(&settings, |_| {});
        assert!(served.is_ok() && verdict.is_ok());
    }

    /// The last byte alone is wrong at the peer.
    #[test]
    fn one_wrong_byte_is_enough() {
        let mut settings = Settings::new(Operation::Read, Measure::Bw);
        (settings.size, settings.verify) = (Some(64), true);
        let (served, verdict) = client_that(&settings, |end| {
            let expected: Vec<u8> = end.expected(0, 0, true, 64);
            end.region.write_at(64, &expected[..63]).unwrap();
        });
        assert!(verdict.unwrap_err().to_string().contains("byte 63 of 64 of queue pair 0 is 0x00"));
        assert_eq!(served.unwrap_err().code(), 41);
    }
}
