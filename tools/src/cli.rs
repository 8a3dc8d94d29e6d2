//! Arguments, output and exit codes. What a command does is in the module of its name.

use crate::{
    Failure, conformance, devices, doctor, listen, topology,
    transfer::{self, Settings, Watch},
};
use clap::{Args, Parser, Subcommand};
use ibv::{
    AnyDomain, Claim, DeviceKind, Error, ErrorKind, IbvDeviceInfo, IbvDomain, Registry, topology::Place,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::{
    ffi::OsString,
    io::{self, Write},
    net::{TcpListener, TcpStream, ToSocketAddrs},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

mod decode;
mod perf;

/// RDMA put and get through whichever provider the host has.
#[derive(Debug, Parser)]
#[command(name = "ibv", version, after_long_help = exit_codes())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List every provider and its devices, or why it has none
    Devices(DevicesArgs),
    /// Say what keeps RDMA from working on this machine, or on one whose facts a file has, and what to do
    #[command(after_long_help = exit_codes())]
    Doctor(DoctorArgs),
    /// Put a file into a peer's registered memory, get it back, and compare checksums
    #[command(after_long_help = transfer_help(), args_override_self = true)]
    Transfer(TransferArgs),
    /// Measure bandwidth and latency of write, read and send, as perftest does
    #[command(after_long_help = perf_help())]
    Perf(perf::PerfArgs),
    /// Say in words what a dump of a queue, or a trace of software devices, holds, and what is wrong with it
    #[command(after_long_help = decode_help())]
    Decode(decode::DecodeArgs),
    /// Certify providers: run the conformance suite on them
    #[command(disable_help_flag = true)]
    Conformance {
        /// The providers efa and verbs split puts and gets into work requests of at most BYTES, so that cases
        /// about splitting run on devices that take longer ones; comes before the suite's arguments
        #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
        max_msg_size: Option<u32>,
        /// Arguments of the suite; see `ibv conformance --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        args: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct DevicesArgs {
    /// List devices by their distance from PLACE instead, nearest first: gpu:N, numa:N or a PCI address
    #[arg(long, value_name = "PLACE", conflicts_with = "topology")]
    near: Option<Place>,
    /// Print how far each device is from each GPU instead
    #[arg(long)]
    topology: bool,
    /// With --near or --topology: read the `sys` folder below DIR, such as a copy of another machine's
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct DoctorArgs {
    /// Also write the facts to FILE, for --from elsewhere; they name devices, addresses and paths of this host
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// Judge the facts in FILE instead of this machine's
    #[arg(long, value_name = "FILE", conflicts_with = "snapshot")]
    from: Option<PathBuf>,
    /// Print one JSON object: usable, findings, snapshot
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct TransferArgs {
    /// The file to send; with --listen, the file to write
    file: PathBuf,
    /// Run this end only, and wait at ADDR (host:port; port 0 picks one) for the sender
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["to", "peer_device"])]
    listen: Option<String>,
    /// Run this end only, and send to who listens at ADDR
    #[arg(long, value_name = "ADDR", conflicts_with = "peer_device")]
    to: Option<String>,
    /// The provider; both ends here default to mock, one end to the first that has a device
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// This end's device [default: the provider's first]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The other end's device, where it is in this process [default: another of a mock, else the same]
    #[arg(long, value_name = "NAME")]
    peer_device: Option<String>,
    /// Bytes in one work request, at most the device's largest message; K, M and G are powers of 1024
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = size)]
    chunk: usize,
    /// Work requests in flight
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,
    /// Work requests that one doorbell publishes, at most
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// With --listen, how long to wait for the sender; strangers that connect are passed over [default: for ever]
    #[arg(long, value_name = "SECONDS", requires = "listen", value_parser = perf::seconds)]
    wait: Option<Duration>,
    /// How long nothing at all may happen
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    timeout: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn exit_codes() -> String {
    let lines = Failure::CODES.map(|(code, meaning)| format!("  {code:>2}  {meaning}"));
    format!("Exit codes:\n{}", lines.join("\n"))
}

/// What the help of `ibv transfer` ends with.
const TRANSFER_EXAMPLES: &str = "\
The bytes go by put and get alone; checksums are compared at the peer and again after the bytes came back.
A received file appears whole under its name or not at all.

Examples:
  ibv transfer FILE                        both ends here, over the mock: no hardware needed
  ibv transfer FILE --provider verbs       both ends here, over a device
  ibv transfer copy.bin --listen 0.0.0.0:7000
                                           receive one file
  ibv transfer FILE --to server.example:7000 --chunk 4M --json
";

fn transfer_help() -> String {
    format!("{TRANSFER_EXAMPLES}\n{}", exit_codes())
}

fn perf_help() -> String {
    format!("{}\n{}", perf::EXAMPLES, exit_codes())
}

fn decode_help() -> String {
    format!("{}\n{}", decode::EXAMPLES, exit_codes())
}

/// A remark that changes nothing.
fn note(what: String) {
    eprintln!("{what}");
}

fn size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: usize =
        digits.parse().map_err(|_| format!("{text} is not a size such as 65536, 64K or 1M"))?;
    match number.checked_mul(1 << shift) {
        Some(0) => Err("no bytes never get anywhere".into()),
        Some(bytes) => Ok(bytes),
        None => Err(format!("{text} is more than memory has addresses")),
    }
}

/// Runs the command line `args` with the providers that `registry` lists, prints, and says how it ended:
/// one of [`Failure::CODES`]. `registry` is asked anew whenever a command needs a list of its own.
pub fn run(args: impl IntoIterator<Item = OsString>, registry: &dyn Fn() -> Registry) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(usage) => {
            let _ = usage.print();
            return ExitCode::from(usage.exit_code() as u8);
        }
    };
    let done = match cli.command {
        Command::Devices(args) => devices(&args, registry),
        Command::Doctor(args) => doctor(&args, registry),
        Command::Transfer(args) => transfer(&args, registry()),
        Command::Perf(args) => perf::run(&args, registry()),
        Command::Decode(args) => decode::run(&args),
        Command::Conformance { max_msg_size, args } => return conformance::run(args, max_msg_size),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

fn devices(args: &DevicesArgs, registry: &dyn Fn() -> Registry) -> Result<(), Failure> {
    if let Some(place) = args.near {
        return show(&topology::Ranking::of(&topology::read(&args.root)?, place)?, args.json);
    }
    if args.topology {
        return show(&topology::Matrix::of(topology::read(&args.root)?), args.json);
    }
    show(&devices::Listing::of(registry), args.json)
}

fn doctor(args: &DoctorArgs, registry: &dyn Fn() -> Registry) -> Result<(), Failure> {
    let report = match &args.from {
        Some(file) => doctor::Report::from_file(file)?,
        None => doctor::Report::of_this_machine(registry),
    };
    if let Some(file) = &args.snapshot {
        report.write_snapshot(file)?;
    }
    show(&report, args.json)?;
    report.verdict()
}

fn transfer(args: &TransferArgs, registry: Registry) -> Result<(), Failure> {
    let settings = Settings {
        chunk: args.chunk,
        depth: args.depth,
        batch: args.batch,
        timeout: Duration::from_secs(args.timeout),
    };
    let mut bar = Bar::default();
    let report = match (&args.listen, &args.to) {
        (Some(addr), _) => listen(args, registry, addr, &settings, &mut bar),
        (None, Some(addr)) => send_to(args, registry, addr, &settings, &mut bar),
        (None, None) => both_ends(args, registry, &settings, &mut bar),
    };
    drop(bar);
    show(&report?, args.json)
}

fn both_ends(
    args: &TransferArgs,
    registry: Registry,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<transfer::Report, Failure> {
    crate::file::Source::open(&args.file)?;
    let mock = args.device.is_none().then_some("mock");
    let chosen = Chosen::new(registry, args.provider.as_deref().or(mock), args.device.as_deref(), |_| true)?;
    let near = chosen.open(&chosen.device.name)?;
    let opposite = args.peer_device.clone().unwrap_or_else(|| chosen.opposite());
    let far = chosen.open(&opposite)?;
    let report = transfer::both_ends(&near, &far, &args.file, settings, watch)?;
    let peer_device = Some(far.device_info().name.clone());
    Ok(transfer::Report { provider: chosen.provider.into(), peer_device, ..report })
}

fn listen(
    args: &TransferArgs,
    registry: Registry,
    addr: &str,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<transfer::Report, Failure> {
    let (chosen, domain) = one_end(args.provider.as_deref(), args.device.as_deref(), registry)?;
    crate::file::Destination::create(&args.file)?;
    let unreachable = |source| Failure::Unreachable { addr: addr.into(), source };
    let listener = TcpListener::bind(addr).map_err(unreachable)?;
    eprintln!("listening on {}", listener.local_addr().map_err(unreachable)?);
    let link = listen::accept(&listener, transfer::MAGIC, args.wait, &mut note)?;
    let report = transfer::receive(&domain, link, Some(&args.file), settings, watch)?;
    Ok(transfer::Report { provider: chosen.into(), ..report })
}

fn send_to(
    args: &TransferArgs,
    registry: Registry,
    addr: &str,
    settings: &Settings,
    watch: &mut dyn Watch,
) -> Result<transfer::Report, Failure> {
    crate::file::Source::open(&args.file)?;
    let (chosen, domain) = one_end(args.provider.as_deref(), args.device.as_deref(), registry)?;
    let link = connect(addr, settings.timeout)
        .map_err(|source| Failure::Unreachable { addr: addr.into(), source })?;
    let report = transfer::send(&domain, link, &args.file, settings, watch)?;
    Ok(transfer::Report { provider: chosen.into(), ..report })
}

fn connect(addr: impl ToSocketAddrs, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no address of that name");
    for addr in addr.to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, timeout) {
            Ok(link) => return link.set_nodelay(true).map(|()| link),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// A device that another process can reach; the provider's name and the open domain.
fn one_end(
    provider: Option<&str>,
    device: Option<&str>,
    registry: Registry,
) -> Result<(&'static str, IbvDomain<AnyDomain>), Failure> {
    let reachable = |d: &IbvDeviceInfo| d.kind != DeviceKind::Mock;
    // Without a choice, whatever can be reached; but if there is only a mock, say what is wrong with it.
    let open = provider.is_some() || device.is_some() || !any(&registry, reachable);
    let chosen = Chosen::new(registry, provider, device, |d| open || reachable(d))?;
    if !reachable(&chosen.device) {
        return Err(Failure::OneProcess(chosen.provider.into()));
    }
    let domain = chosen.open(&chosen.device.name)?;
    Ok((chosen.provider, domain))
}

fn any(registry: &Registry, wanted: impl Fn(&IbvDeviceInfo) -> bool) -> bool {
    claimed(registry).iter().any(|(_, d)| wanted(d))
}

/// Every device with the provider that claims it, in order of preference.
fn claimed(registry: &Registry) -> Vec<(&'static str, IbvDeviceInfo)> {
    let mut all = Vec::new();
    for found in registry.survey() {
        for (device, claim) in found.devices.unwrap_or_default() {
            if matches!(claim, Claim::Yes(_)) {
                all.push((found.provider, device));
            }
        }
    }
    all
}

/// One provider and one of its devices.
struct Chosen {
    registry: Registry,
    provider: &'static str,
    device: IbvDeviceInfo,
}

impl Chosen {
    fn new(
        registry: Registry,
        provider: Option<&str>,
        device: Option<&str>,
        wanted: impl Fn(&IbvDeviceInfo) -> bool,
    ) -> Result<Self, Failure> {
        let registry = match provider {
            Some(name) => registry.only(name)?,
            None => registry,
        };
        let fits = |d: &IbvDeviceInfo| device.map_or_else(|| wanted(d), |name| d.name == name);
        let found = claimed(&registry).into_iter().find(|(_, d)| fits(d));
        let Some((provider, device)) = found else { return Err(nothing(&registry, device)) };
        Ok(Self { registry: registry.only(provider)?, provider, device })
    }

    fn open(&self, device: &str) -> Result<IbvDomain<AnyDomain>, Failure> {
        Ok(self.registry.open(device)?)
    }

    /// Where the other end goes by default: a mock has a second device to talk to, and elsewhere the one
    /// port that is sure to reach a device is its own.
    fn opposite(&self) -> String {
        let others = claimed(&self.registry).into_iter().map(|(_, d)| d);
        let mut mocks = others.filter(|d| d.kind == DeviceKind::Mock && d.name != self.device.name);
        match self.device.kind {
            DeviceKind::Mock => mocks.next().unwrap_or(self.device.clone()).name,
            _ => self.device.name.clone(),
        }
    }
}

/// The registry's own words for having nothing to open.
fn nothing(registry: &Registry, device: Option<&str>) -> Failure {
    let opened = device.map_or_else(|| registry.open_any(), |name| registry.open(name));
    match opened {
        Err(e) => e.into(),
        Ok(_) => Error::new(ErrorKind::NoDevice, "open", "no suitable device").into(),
    }
}

fn show(what: &(impl std::fmt::Display + Serialize), json: bool) -> Result<(), Failure> {
    if json { print_json(what) } else { print(what) }
}

fn print(text: &impl std::fmt::Display) -> Result<(), Failure> {
    writeln!(io::stdout().lock(), "{text}").map_err(Failure::output)
}

fn print_json(data: &impl Serialize) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, data).map_err(|e| Failure::output(e.into()))?;
    writeln!(out).map_err(Failure::output)
}

/// The progress bar; it draws on standard error, and only where that is a terminal.
#[derive(Default)]
struct Bar(Option<ProgressBar>);

impl Watch for Bar {
    fn phase(&mut self, name: &'static str, bytes: u64) {
        self.clear();
        let shape = "{msg:8} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec}";
        let style = ProgressStyle::with_template(shape).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.0 = Some(ProgressBar::new(bytes).with_style(style).with_message(name));
    }
    fn done(&mut self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(bytes);
        }
    }
}

impl Bar {
    fn clear(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}
