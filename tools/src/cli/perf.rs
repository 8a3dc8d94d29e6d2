//! `ibv perf`: arguments and output. What is measured, and how, is module `perf`'s.

use super::{Chosen, connect, note, one_end, show, size};
use crate::{
    Failure,
    file::Whole,
    listen,
    perf::{self, Ends, Extent, Measure, Operation, Report, Settings, Watch},
};
use clap::Args;
use ibv::{Mtu, Registry};
use indicatif::{ProgressBar, ProgressStyle};
use std::{net::TcpListener, path::PathBuf, time::Duration};

/// What help ends with.
pub(super) const EXAMPLES: &str = "\
Two ends measure, each started with the same settings: the server first, then the client with the server's host.
Settings travel over TCP, payload over RDMA alone. Options mean what they mean to perftest's ib_write_bw and its
siblings, and defaults are theirs, but for --iters (perftest's ib_write_bw does 5000).

Examples:
  ibv perf write bw                        the server
  ibv perf write bw server.example         its client: 1000 writes of 64 KiB
  ibv perf write bw -a --loopback          every size, both ends in this process
  ibv perf send lat -s 64 -D 10 --loopback 10 seconds of 64-byte ping-pong
  ibv perf read all -a --html read.html server.example
                                           bandwidth, then latency, of every size, with plots
  ibv perf write bw -q 8 -l 16 -b --verify --json server.example

Output:
  Bandwidth is payload from the first post to the last completion; MiB/s is what perftest calls MB/sec.
  Latency of write and send is half of a round trip, as perftest has it; of read a whole operation. The
  arrival of a write is told by its last byte, as perftest does, which says nothing on a device that orders no
  messages: write lat is refused there, and write all leaves latency out and says so.
  --json prints one object: the settings, what was left out and why, and rows of {measure, bytes, messages, seconds, bandwidth, latency,
  polls, empty_polls}; latencies are microseconds, and `histogram` has each of them and how often it occurred.
";

#[derive(Debug, Args)]
pub(super) struct PerfArgs {
    /// What a message is
    #[arg(value_enum)]
    operation: Operation,
    /// What is asked about it
    #[arg(value_enum)]
    measure: Measure,
    /// The server; without one, this end is the server
    host: Option<String>,
    /// Run both ends here, in one process
    #[arg(long, conflicts_with = "host")]
    loopback: bool,
    /// Bytes in a message; K, M and G are powers of 1024 [default: 64K for bandwidth, 2 for latency]
    #[arg(short, long, value_name = "BYTES", value_parser = size)]
    size: Option<usize>,
    /// Every power of two from 2 to 8M bytes that both devices take
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Messages on each queue pair, for each size
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    iters: u64,
    /// Instead of so many messages, as many as fit into this time, for each size
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with = "iters", value_parser = seconds)]
    duration: Option<Duration>,
    /// Queue pairs; for bandwidth
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    qp: u32,
    /// Work requests that one doorbell publishes
    #[arg(short = 'l', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    post_list: u32,
    /// Work requests in flight on each queue pair
    #[arg(short, long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    tx_depth: u32,
    /// Receives posted on each queue pair, for sends
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    rx_depth: u32,
    /// One completion for so many work requests [default: 100 up to 8192 bytes, else 1; a post list's length]
    #[arg(short = 'Q', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cq_mod: Option<u32>,
    /// Largest message inside its work request [default: 0; for latency 220 (write), 236 (send) or the device's]
    #[arg(short = 'I', long, value_name = "BYTES")]
    inline: Option<u32>,
    /// Bandwidth in both directions at once
    #[arg(short, long)]
    bidirectional: bool,
    /// Compare the bytes that arrived last with those that were sent
    #[arg(long)]
    verify: bool,
    /// TCP port of the server
    #[arg(short, long, value_name = "PORT", default_value_t = 18515, conflicts_with = "loopback")]
    port: u16,
    /// The provider [default: the first that has a device]
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// This end's device [default: the provider's first]
    #[arg(short, long, visible_alias = "ib-dev", value_name = "NAME")]
    device: Option<String>,
    /// With --loopback, the other end's device [default: another of a mock, else the same]
    #[arg(long, value_name = "NAME", requires = "loopback")]
    peer_device: Option<String>,
    /// The device's port
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    ib_port: u8,
    /// Index into the port's GID table [default: the best entry]
    #[arg(short = 'x', long, value_name = "N")]
    gid_index: Option<u32>,
    /// Largest packet payload: 256, 512, 1024, 2048 or 4096 bytes [default: the port's]
    #[arg(short, long, value_name = "BYTES", value_parser = mtu)]
    mtu: Option<Mtu>,
    /// How long a server waits for its client [default: for ever]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with_all = ["host", "loopback"])]
    wait: Option<Duration>,
    /// How long nothing at all may happen
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    timeout: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Also write a page with tables and plots to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is not a number of seconds"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() && seconds <= 31_536_000.0 => Ok(time),
        _ => Err(format!("{text} is not more than 0 and at most 31536000 seconds")),
    }
}

fn mtu(text: &str) -> Result<Mtu, String> {
    let known = Mtu::ALL.into_iter().find(|mtu| mtu.to_string() == text);
    known.ok_or_else(|| format!("{text} is none of 256, 512, 1024, 2048, 4096"))
}

impl PerfArgs {
    fn settings(&self) -> Settings {
        Settings {
            size: self.size,
            all: self.all,
            extent: self.duration.map_or(Extent::Iterations(self.iters), Extent::Duration),
            bidirectional: self.bidirectional,
            verify: self.verify,
            qps: self.qp,
            post_list: self.post_list,
            tx_depth: self.tx_depth,
            rx_depth: self.rx_depth,
            cq_mod: self.cq_mod,
            inline: self.inline,
            port_num: self.ib_port,
            gid_index: self.gid_index,
            mtu: self.mtu,
            timeout: self.timeout,
            ..Settings::new(self.operation, self.measure)
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &PerfArgs, registry: Registry) -> Result<(), Failure> {
    let unwritable = |source| {
        let path = args.html.clone().unwrap_or_default();
        Failure::ReportUnwritable { path, source }
    };
    // Now, not after minutes of measuring.
    let page = args.html.as_deref().map(Whole::create).transpose().map_err(unwritable)?;
    let (settings, mut bar) = (args.settings(), Bar::default());
    let report = match &args.host {
        Some(host) => client(args, registry, host, &settings, &mut bar),
        None if args.loopback => loopback(args, registry, &settings, &mut bar),
        None => server(args, registry, &settings, &mut bar),
    };
    drop(bar);
    let report = report?;
    if let Some(page) = page {
        page.write(report.html().as_bytes()).map_err(unwritable)?;
    }
    show(&report, args.json)
}

fn loopback(
    args: &PerfArgs,
    registry: Registry,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Report, Failure> {
    let chosen = Chosen::new(registry, args.provider.as_deref(), args.device.as_deref(), |_| true)?;
    let near = chosen.open(&chosen.device.name)?;
    let far = chosen.open(&args.peer_device.clone().unwrap_or_else(|| chosen.opposite()))?;
    let report = Ends::Both(near, far).measure(settings, watch)?;
    Ok(Report { provider: chosen.provider.into(), ..report })
}

fn client(
    args: &PerfArgs,
    registry: Registry,
    host: &str,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Report, Failure> {
    let (provider, domain) = one_end(args.provider.as_deref(), args.device.as_deref(), registry)?;
    settings.check(domain.device_info(), &domain.caps())?;
    let unreachable = |source| Failure::Unreachable { addr: format!("{host}, port {}", args.port), source };
    let link = connect((host, args.port), settings.timeout).map_err(unreachable)?;
    let report = Ends::Client(domain, link).measure(settings, watch)?;
    Ok(Report { provider: provider.into(), ..report })
}

fn server(
    args: &PerfArgs,
    registry: Registry,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<Report, Failure> {
    let (provider, domain) = one_end(args.provider.as_deref(), args.device.as_deref(), registry)?;
    settings.check(domain.device_info(), &domain.caps())?;
    // Both families where the host has both.
    let listener =
        TcpListener::bind(("::", args.port)).or_else(|_| TcpListener::bind(("0.0.0.0", args.port)));
    let unreachable = |source| Failure::Unreachable { addr: format!("port {}", args.port), source };
    let listener = listener.map_err(unreachable)?;
    eprintln!("listening on port {}", listener.local_addr().map_err(unreachable)?.port());
    let link = listen::accept(&listener, perf::MAGIC, args.wait, &mut note)?;
    let report = Ends::Server(domain, link).measure(settings, watch)?;
    Ok(Report { provider: provider.into(), ..report })
}

/// The progress bar; it draws on standard error, and only where that is a terminal.
#[derive(Default)]
struct Bar(Option<ProgressBar>);

impl Watch for Bar {
    fn row(&mut self, what: &str, total: u64) {
        let style = ProgressStyle::with_template("{msg:32} {wide_bar} {percent:>3}%");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = self.0.get_or_insert_with(|| ProgressBar::new(total).with_style(style));
        bar.set_length(total);
        bar.set_position(0);
        bar.set_message(what.to_owned());
    }
    fn done(&mut self, part: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(part);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}
